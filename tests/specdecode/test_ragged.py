"""Rows of different lengths behind each other, against Python lists."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode import ragged

rows = st.lists(st.lists(st.integers(1, 99), max_size=5), min_size=3, max_size=3)


def padded(lists: list[list[int]], width: int) -> torch.Tensor:
    return torch.tensor([row + [-1] * (width - len(row)) for row in lists])


@settings(deadline=None, max_examples=60)
@given(rows, rows, st.integers(0, 2))
def test_a_block_behind_another(left, right, room):
    counts = [torch.tensor([len(row) for row in block]) for block in (left, right)]
    blocks = [padded(block, 5 + room) for block in (left, right)]
    joined, lengths = ragged.append(blocks[0], counts[0], blocks[1], counts[1])
    expected = [one + other for one, other in zip(left, right, strict=True)]
    assert [row[:length] for row, length in zip(joined.tolist(), lengths.tolist(), strict=True)] == expected
    wide, _ = ragged.append(
        blocks[0][..., None].expand(-1, -1, 2), counts[0], blocks[1][..., None].expand(-1, -1, 2), counts[1]
    )
    assert torch.equal(wide, joined[..., None].expand(-1, -1, 2))
    assert ragged.at_most(lengths, 10) == max(map(len, expected))


@settings(deadline=None, max_examples=60)
@given(rows, st.integers(0, 3), st.integers(1, 5), st.integers(0, 3))
def test_the_last_entries_before_an_end(lists, cut, width, wanted):
    values = padded([[7, *row] for row in lists], 8)
    ends = torch.tensor([max(len(row) + 1 - cut, 1) for row in lists])
    found = ragged.newest(values, ends, torch.full((3,), wanted), width)
    for row, end, made in zip(values.tolist(), ends.tolist(), found.tolist(), strict=True):
        assert made[:wanted] == [row[max(end - wanted + i, 0)] for i in range(min(wanted, width))]
        assert set(made[wanted:]) <= {row[end - 1]}
    assert torch.equal(
        ragged.newest(values[..., None].expand(-1, -1, 2), ends, ends, 2)[..., 1], ragged.newest(values, ends, ends, 2)
    )


def test_how_many_columns_hold_all_that_is_true():
    mask = torch.tensor([[True, False, False, False], [False, False, True, False]])
    assert ragged.columns_needed(mask) == 3 and ragged.columns_needed(mask & False) == 0
    assert ragged.surely_none(mask & False) and not ragged.surely_none(mask)


def test_compiled_code_reads_no_number():
    def bounds(mask: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        nobody, everyone = ragged.surely_none(mask[:, 0]), ragged.on_host(counts)
        return (
            counts
            + ragged.columns_needed(mask)
            + 10 * ragged.at_most(counts, 9)
            + 100 * nobody
            + (0 if everyone is None else sum(everyone))
        )

    mask, counts = torch.zeros(2, 5, dtype=torch.bool), torch.tensor([1, 2])
    compiled = torch.compile(bounds, backend="eager", fullgraph=True)
    assert compiled(mask, counts).tolist() == [1 + 5 + 90, 2 + 5 + 90]
    assert bounds(mask, counts).tolist() == [1 + 0 + 20 + 100 + 3, 2 + 0 + 20 + 100 + 3]
