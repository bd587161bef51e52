"""Trees read off by tensors against trees walked node by node, on shapes that hypothesis makes up."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_chains import way_to
from refusals import value_error

from specdecode.tree import TokenTree


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """A batch of rows of different shapes; rows with fewer nodes are padded, some entirely."""
    batch_size, num_nodes = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    parents, valid = [], []
    for _ in range(batch_size):
        used = draw(st.integers(0, num_nodes))
        parents.append([-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_nodes)])
        valid.append([node < used for node in range(num_nodes)])
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    tokens = torch.randint(1, 50, (batch_size, num_nodes), generator=generator)
    return TokenTree.from_parents(tokens, torch.tensor(parents), torch.tensor(valid))


@settings(max_examples=60, deadline=None)
@given(tree=trees())
def test_shape_agrees_with_a_walk(tree):
    tree.check()
    paths, mask, leaves, leaf_paths = tree.paths(), tree.ancestor_mask(), tree.leaves(), tree.leaf_paths()
    for row in range(tree.batch_size):
        for node in range(tree.num_nodes):
            path = way_to(tree.parents[row].tolist(), node)
            assert int(tree.depth[row, node]) == len(path) - 1
            assert paths[row, node].tolist() == path + [-1] * (tree.max_depth + 1 - len(path))
            assert mask[row, node].nonzero()[:, 0].tolist() == sorted(path)
            has_child = any(int(parent) == node for parent in tree.parents[row])
            assert bool(leaves[row, node]) == (bool(tree.valid[row, node]) and not has_child)
            expected = paths[row, node] if leaves[row, node] else torch.full_like(paths[row, node], -1)
            assert torch.equal(leaf_paths[row, node], expected)


@settings(max_examples=60, deadline=None)
@given(tree=trees(), data=st.data())
def test_clipping_keeps_exactly_the_shallow_nodes(tree, data):
    limits = [data.draw(st.integers(-1, tree.max_depth)) for _ in range(tree.batch_size)]
    clipped = tree.clip(torch.tensor(limits))
    clipped.check()
    for row, limit in enumerate(limits):
        for node in range(tree.num_nodes):
            stays = bool(tree.valid[row, node]) and int(tree.depth[row, node]) <= limit
            assert bool(clipped.valid[row, node]) == stays
            if stays:
                for name in ("tokens", "parents", "depth"):
                    assert getattr(clipped, name)[row, node] == getattr(tree, name)[row, node]


@settings(max_examples=40, deadline=None)
@given(trees(), st.data())
def test_rows_of_one_tree_or_the_other(one, data):
    other = data.draw(trees().filter(lambda tree: tree.batch_size == one.batch_size))
    rows = torch.tensor(data.draw(st.lists(st.booleans(), min_size=one.batch_size, max_size=one.batch_size)))
    joined = TokenTree.where(rows, one, other)
    joined.check()
    for row, of_one in enumerate(rows.tolist()):
        chosen = one if of_one else other
        for name in ("tokens", "parents", "depth", "valid"):
            assert torch.equal(getattr(joined, name)[row, : chosen.num_nodes], getattr(chosen, name)[row])
        assert not joined.valid[row, chosen.num_nodes :].any()
    assert joined.max_depth == max(one.max_depth, other.max_depth)
    assert joined.max_children == max(one.max_children, other.max_children)


def test_a_chain_is_a_tree_of_width_one():
    tokens = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    chain = TokenTree.chain(tokens)
    chain.check()
    other = TokenTree.from_parents(tokens, torch.tensor([[-1, 0, 1, 2]] * 2))
    for name in ("tokens", "parents", "depth", "valid"):
        assert torch.equal(getattr(chain, name), getattr(other, name))
    assert (chain.max_depth, chain.max_children) == (3, 1)
    assert torch.equal(chain.ancestor_mask(), torch.ones(2, 4, 4, dtype=torch.bool).tril())
    assert chain.leaves().tolist() == [[False, False, False, True]] * 2
    root = TokenTree.chain(tokens[:, :1])
    root.check()
    assert (root.max_depth, root.num_nodes) == (0, 1)


def test_a_padded_chain_sees_what_a_tree_of_its_shape_sees(torch_lines):
    """A chain has lines of its own in torch, a tree has others."""
    tokens, valid = (
        torch.tensor([[5, 6, 7, 8]] * 3),
        torch.tensor([[True] * 4, [True, True, False, False], [False] * 4]),
    )
    parents = torch.tensor([[-1, 0, 1, 2]] * 3)
    chain, tree = (TokenTree.from_parents(tokens, parents, valid, max_children=width) for width in (1, 2))
    assert chain.is_chain and not tree.is_chain
    assert torch.equal(chain.ancestor_mask(), tree.ancestor_mask())


def test_a_tight_depth_bound_changes_only_the_width_of_paths():
    tokens, parents = torch.arange(1, 8)[None], torch.tensor([[-1, 0, 0, 1, 1, 2, 2]])
    loose, tight = TokenTree.from_parents(tokens, parents), TokenTree.from_parents(tokens, parents, max_depth=2)
    assert torch.equal(loose.depth, tight.depth)
    assert torch.equal(loose.ancestor_mask(), tight.ancestor_mask())
    assert torch.equal(loose.paths()[..., :3], tight.paths())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parents": torch.tensor([[-1, 2, 0]])}, "stand before its child"),
        ({"parents": torch.tensor([[-1, -1, 0]])}, "stand before its child"),
        ({"parents": torch.tensor([[0, 0, 0]])}, "must have parent -1"),
        ({"depth": torch.tensor([[0, 1, 2]])}, r"one deeper than its parent \(row 0, node 2\)"),
        ({"depth": torch.tensor([[1, 1, 1]])}, "must have depth 0"),
        ({"max_depth": 0}, "exceed max_depth 0"),
        ({"valid": torch.tensor([[True, True, False]])}, "padding must have"),
        ({"valid": torch.tensor([[True, True]])}, "tree.valid must have the shape"),
    ],
)
def test_broken_trees_are_named(change, message):
    tree = TokenTree.from_parents(torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 0]]))
    tree.check()
    value_error(message, lambda: replace(tree, **change).check())


def test_children_of_padding_are_refused():
    valid = torch.tensor([[True, False, True]])
    tree = TokenTree.from_parents(torch.tensor([[1, 2, 3]]), torch.tensor([[-1, 0, 1]]), valid)
    value_error("parent must not be padding", tree.check)
