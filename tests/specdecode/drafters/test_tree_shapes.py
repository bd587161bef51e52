"""Fixed tree shapes: the published counts, a user's list, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_chains import way_to
from refusals import value_error

from specdecode.drafters.tree_shapes import PUBLISHED_TREES, StaticTree

# Nodes by level and leaves, as counted in the released code.
PUBLISHED_COUNTS = {
    "naive_extend_57": ([5, 13, 16, 14, 9], 33),
    "mc_sim_7b_63": ([4, 8, 8, 3, 2], 15),
    "mc_sim_7b_63_balanced": ([3, 8, 9, 3, 2], None),
    "reverse_balanced_25": ([3, 4, 6, 5, 7], None),
    "medusa_2_7b_63": ([10, 23, 23, 7], None),
}


@pytest.mark.parametrize("name", PUBLISHED_TREES)
def test_published_trees_have_the_published_counts(name):
    tree = StaticTree.published(name)
    levels, leaves = PUBLISHED_COUNTS[name]
    assert [len(tree.level(depth)) for depth in range(1, tree.max_depth + 1)] == levels
    assert tree.num_nodes == 1 + sum(levels)
    if leaves is not None:
        assert tree.num_nodes - len(set(tree.parents) - {-1}) == leaves


@st.composite
def paths(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """A random tree as a shuffled list of its nodes."""
    nodes: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for _ in range(draw(st.integers(1, 4))):
        level = [(*node, rank) for node in level for rank in range(draw(st.integers(0, 3)))][:6]
        # A cut level keeps the earlier siblings of every node that stays.
        nodes += level
    if not nodes:
        nodes = [(0,)]
    return draw(st.permutations(nodes))


@given(paths())
def test_a_list_of_nodes_is_read_in_any_order(nodes):
    tree = StaticTree.from_paths(nodes)
    found = [tuple(tree.ranks[each] for each in way_to(tree.parents, node)[1:]) for node in range(1, tree.num_nodes)]
    assert sorted(found) == sorted(nodes)
    assert list(tree.depths) == sorted(tree.depths), "nodes must stand level by level"
    inner = {node for depth in range(tree.max_depth + 1) for node in tree.inner_level(depth)}
    assert inner == set(tree.parents) - {-1}


def test_a_chain_is_a_tree_of_width_one():
    assert StaticTree.chain(3) == StaticTree.from_paths([[0], [0, 0], [0, 0, 0]])
    assert StaticTree.chain(3).max_children == 1


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "at least one node"),
        ([[]], "not the root"),
        ([[0], [0]], "twice"),
        ([[0, 0]], "not its parent"),
        ([[1]], "not the choice before it"),
        ([[0], [-1]], "ranks count from 0"),
    ],
)
def test_lists_that_are_no_tree_are_refused(nodes, message):
    value_error(message, StaticTree.from_paths, nodes)


def test_unknown_names_and_empty_chains_are_refused():
    value_error("naive_extend_57", StaticTree.published, "naive_extend_58")
    value_error("draft_length", StaticTree.chain, 0)


@pytest.mark.parametrize(("count", "length"), [(1, 3), (2, 1), (2, 4), (3, 2)])
def test_branches_are_chains_below_the_root(count, length):
    paths = [[rank, *[0] * depth] for rank in range(count) for depth in range(length)]
    assert StaticTree.branches(count, length) == StaticTree.from_paths(paths)
