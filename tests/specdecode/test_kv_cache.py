"""The cache against Python lists: whatever is written, kept and rolled back, a token sees what it should."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raised
from torch import Tensor

from specdecode.kv_cache import StaticKVCache

LAYERS, HEADS, HEAD_DIM, SLOTS = 3, 2, 2, 24


def make_cache(batch_size: int) -> StaticKVCache:
    return StaticKVCache(LAYERS, batch_size, HEADS, SLOTS, HEAD_DIM)


def write(cache: StaticKVCache, identities: Tensor, flat: bool = False, kv_length: int | None = None) -> None:
    """Write tokens `[B, n]` whose keys and values say which token, layer and head they belong to."""
    slots = cache.new_slots(identities.shape[1])
    if flat:
        slots = cache.flatten_slots(slots)
    for layer in range(cache.num_layers):
        head = torch.arange(HEADS).view(1, HEADS, 1, 1)
        key = (identities[:, None, :, None] * 100 + layer * 10 + head).float().expand(-1, -1, -1, HEAD_DIM)
        keys, values = cache.update(layer, key, -key, slots, kv_length)
        assert keys.shape == values.shape == (cache.batch_size, HEADS, kv_length or SLOTS, HEAD_DIM)


def visible(cache: StaticKVCache, mask: Tensor, row: int, token: int, layer: int) -> list[int]:
    """Identities of the tokens that a new token sees, in slot order, read through every head."""
    seen = mask[row, 0, token].nonzero().flatten()
    found = []
    for slot in seen.tolist():
        for head in range(HEADS):
            key = cache.keys[layer][row, head, slot]
            assert torch.equal(cache.values[layer][row, head, slot], -key)
            identity, rest = divmod(int(key[0]), 100)
            assert rest == layer * 10 + head
        found.append(identity)
    return found


def random_forest_mask(num_nodes: int, generator: torch.Generator) -> Tensor:
    """Ancestors and self; a node may have no parent, and then does not see node 0 either."""
    mask = torch.eye(num_nodes, dtype=torch.bool)
    for node in range(1, num_nodes):
        parent = int(torch.randint(-1, node, (), generator=generator))
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), batch_size=st.integers(1, 3), num_steps=st.integers(1, 6))
def test_any_history_is_seen_rightly(seed, batch_size, num_steps):
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    cache = make_cache(batch_size)
    rows: list[list[int]] = [[] for _ in range(batch_size)]  # the oracle
    next_identity = 1
    for _ in range(num_steps):
        num_new = draw(1, 4)
        if max(map(len, rows)) + num_new > SLOTS:
            break
        identities = torch.arange(next_identity, next_identity + batch_size * num_new).view(batch_size, num_new)
        next_identity += batch_size * num_new
        tree = torch.stack([random_forest_mask(num_new, generator) for _ in range(batch_size)])
        bound = max(map(len, rows)) + num_new
        kv_length = None if draw(0, 1) else bound
        mask = cache.attention_mask(tree, kv_length)
        assert mask.shape == (batch_size, 1, num_new, kv_length or SLOTS)
        write(cache, identities, flat=bool(draw(0, 1)), kv_length=kv_length)
        for row in range(batch_size):
            for token in range(num_new):
                expected = rows[row] + identities[row][tree[row, token]].tolist()
                assert visible(cache, mask, row, token, draw(0, LAYERS - 1)) == expected

        action = draw(0, 2)
        if action == 0:  # keep any nodes in any order, a different number in every row
            counts = torch.tensor([draw(0, num_new) for _ in range(batch_size)])
            nodes = torch.stack([torch.randperm(num_new, generator=generator) for _ in range(batch_size)])
            padded = torch.where(torch.arange(num_new) < counts[:, None], nodes, -1)
            cache.keep(padded, counts)
            for row in range(batch_size):
                rows[row] += identities[row][nodes[row, : counts[row]]].tolist()
        elif action == 1:  # commit a prefix
            counts = torch.tensor([draw(0, num_new) for _ in range(batch_size)])
            cache.advance(counts)
            for row in range(batch_size):
                rows[row] += identities[row, : counts[row]].tolist()
        else:  # go back
            lengths = torch.tensor([draw(0, len(row)) for row in rows])
            cache.advance(lengths - cache.lengths)
            rows = [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
        assert cache.lengths.tolist() == list(map(len, rows))


def test_left_padding_is_never_seen():
    cache = make_cache(2)
    write(cache, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    cache.advance(3)
    cache.starts = torch.tensor([2, 0])
    mask = cache.attention_mask(torch.ones(1, 2, 2, dtype=torch.bool).tril())
    write(cache, torch.tensor([[7, 8], [9, 10]]))
    assert visible(cache, mask, 0, 1, 0) == [3, 7, 8]
    assert visible(cache, mask, 1, 0, 1) == [4, 5, 6, 9]
    cache.reset()
    assert cache.starts is None and cache.lengths.tolist() == [0, 0]


def test_lengths_keep_their_memory():
    """A CUDA graph has captured the addresses."""
    cache = make_cache(2)
    address = cache.lengths.data_ptr()
    cache.advance(torch.tensor([1, 2]))
    cache.keep(torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long))
    cache.advance(torch.tensor([-2, -2]))
    cache.reset()
    assert cache.lengths.data_ptr() == address


def test_rows_become_those_of_another_cache():
    """A smaller one here, with padding; the other row stays, and nothing is seen of who had the rows before."""
    cache, other = make_cache(3), StaticKVCache(LAYERS, 2, HEADS, 4, HEAD_DIM)
    write(cache, torch.arange(1, 16).view(3, 5))
    write(other, torch.tensor([[21, 22, 23], [24, 25, 26]]), kv_length=4)
    cache.advance(5)
    other.advance(3)
    other.starts = torch.tensor([1, 0])
    cache.replace_rows(torch.tensor([2, 0]), other, 3)
    mask = cache.attention_mask(torch.ones(1, 1, 1, dtype=torch.bool))
    write(cache, torch.tensor([[31], [32], [33]]))
    seen = [visible(cache, mask, row, 0, 1) for row in range(3)]
    assert seen == [[24, 25, 26, 31], [6, 7, 8, 9, 10, 32], [22, 23, 33]]
    with pytest.raises(ValueError, match="num_slots must be at most 4, the slots of both caches, got 5"):
        cache.replace_rows(torch.tensor([2, 0]), other, 5)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_a_copy_of_a_cache_is_one_of_its_own(again):
    """Its keys and values are still those that are written, and nobody else's."""
    cache = make_cache(2)
    write(cache, torch.tensor([[3], [4]]))
    cache.advance(1)
    copied = again(cache)
    write(copied, torch.tensor([[5], [6]]))
    copied.advance(1)
    write(copied, torch.tensor([[7], [8]]))
    mask = copied.attention_mask(torch.ones(2, 1, 1, dtype=torch.bool))
    assert [visible(copied, mask, row, 0, 0) for row in range(2)] == [[3, 5, 7], [4, 6, 8]]
    assert cache.lengths.tolist() == [1, 1] and not cache._rows[:, :, 1].any()
    assert len(pickle.dumps(cache)) < 2 * cache._rows.nbytes + 20_000


def test_distances_are_counted_from_where_tokens_stand():
    """Siblings stand at one place; what is committed stands where it lies."""
    cache, lengths = make_cache(3), [0, 4, 9]
    cache.lengths.copy_(torch.tensor(lengths))
    depths = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2], [0, 0, 1, 3]])
    found = cache.distances(depths, 14)
    assert found.shape == (3, 4, 14)
    for row, length in enumerate(lengths):
        places = [slot - length for slot in range(length)] + depths[row].tolist()
        for token, depth in enumerate(depths[row].tolist()):
            assert found[row, token, : length + 4].tolist() == [depth - place for place in places]


def test_a_cache_fits_where_all_but_its_slots_is_the_same_and_those_suffice():
    sizes = {"num_layers": 2, "batch_size": 3, "num_heads": 2, "max_length": 8, "head_dim": 4}
    place = {"device": torch.device("cpu"), "dtype": torch.float32}
    cache = StaticKVCache(**sizes, **place)
    assert cache.fits(**sizes, **place) and cache.fits(**sizes | {"max_length": 5}, **place)
    for name, other in (*((name, size + 1) for name, size in sizes.items()), ("dtype", torch.bfloat16)):
        assert not cache.fits(**{**sizes, **place, name: other}), name


def test_what_no_memory_holds_is_refused_with_the_figure():
    raised(MemoryError, r"keys and values need 4,194,304\.0 GiB", StaticKVCache, 1, 1, 1, 1 << 30, 1 << 19)
