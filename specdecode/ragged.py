"""Rows of different lengths in one tensor: left-aligned, with a count per row.

Belongs here: appending and picking entries row by row, and reading numbers where that is cheap. Does not belong here:
the meaning of entries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._guards import active_fake_mode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from specdecode.kernels import fused_ops
from specdecode.kernels.in_graph import in_graph


def append(left: Tensor, left_counts: Tensor, right: Tensor, right_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Each row of `right` behind the same row of `left`.

    Args:
        left: [B, k, ...], the first `left_counts[b]` entries of row b count.
        right: [B, r, ...], likewise.
        left_counts, right_counts: [B] int64.

    Returns:
        [B, k + r, ...] left-aligned, entries past a row's count being some entry or other, and the counts [B].
    """
    length, width = left.shape[1], right.shape[1]
    place = torch.arange(length + width, device=left.device)
    behind = length + (place - left_counts[:, None]).clamp(0, width - 1)
    source = torch.where(place < left_counts[:, None], place, behind)  # [B, k + r]
    source = source.view(*source.shape, *[1] * (left.ndim - 2)).expand(-1, -1, *left.shape[2:])
    return torch.cat([left, right], 1).gather(1, source), left_counts + right_counts


@fused_ops.fused(fused_ops.newest)
def newest(values: Tensor, ends: Tensor, counts: Tensor, width: int) -> Tensor:
    """The last entries of each row before an end.

    Args:
        values: [B, S, ...], whole rows.
        ends, counts: [B] int64: of row b the `counts[b]` entries before entry `ends[b]` are wanted.

    Returns:
        [B, width, ...] left-aligned; past a row's count its last entry stands, before its beginning its first.
    """
    place = (ends - counts)[:, None] + torch.arange(width, device=ends.device)
    return take(values, torch.minimum(place, ends[:, None] - 1).clamp(min=0))


def take(values: Tensor, index: Tensor) -> Tensor:
    """Entries `index` [B, k] of each row of `values` [B, m, width]: [B, k, width]."""
    return values[rows_of(values), index]  # whole rows are copied, where `gather` would look every number up


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """[B, n] of values [B, N] at places [B, n]; past the end the last one, which means nothing."""
    return values.gather(1, places.clamp(max=values.shape[1] - 1))


def rows_of(values: Tensor) -> Tensor:
    """[B, 1] int64, the number of each row of [B, ...]; do not write to it."""
    return _numbers(len(values), values.device)


Made = TypeVar("Made")


def constant(make: Callable[..., Made]) -> Callable[..., Made]:
    """A function of sizes, shapes and a device that keeps the tensors it made for the last 64; do not write to them.

    A captured graph reads them where they lie, so the next run needs the same. torch's compiler traces how they are
    made instead, and `FakeTensorMode` takes its tensors with it.
    """
    kept = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def get(*sizes: Any) -> Made:
        passing = torch.compiler.is_compiling() or (is_in_torch_dispatch_mode() and active_fake_mode() is not None)
        return make(*sizes) if passing else kept(*sizes)

    return get


@constant
def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)[:, None]


def first(values: Tensor, width: int) -> Tensor:
    """The first `width` entries of each row of `values` [B, k, ...]; itself where these are all."""
    return values if values.shape[1] == width else values[:, :width]


def put_rows(values: Tensor, rows: Tensor, others: Tensor) -> Tensor:
    """`values` with rows `rows` [k] replaced by `others`; entries along dimension 1 that either has more are zeros.

    Args:
        values: [B, m, ...], or [B]; it stays as it is.
        rows: [k] int64.
        others: [k, n, ...], or [k].

    Returns:
        [B, max(m, n), ...], or [B].
    """
    if values.ndim > 1 and values.shape[1] != others.shape[1]:
        width = max(values.shape[1], others.shape[1])
        values, others = (
            torch.cat([each, each.new_zeros(len(each), width - each.shape[1], *each.shape[2:])], 1)
            for each in (values, others)
        )
    return values.index_copy(0, rows, others.to(values.dtype))


def _on_cpu(tensor: Tensor) -> bool:
    """Whether to read a number costs nothing: on a CPU, in eager code."""
    return tensor.device.type == "cpu" and not in_graph()


def columns_needed(mask: Tensor) -> int:
    """How many first columns of bool [B, C] contain every True; all of them where a look would cost a wait."""
    if not _on_cpu(mask):
        return mask.shape[1]
    columns = mask.any(0).nonzero()
    return int(columns[-1]) + 1 if len(columns) else 0


def at_most(counts: Tensor, bound: int) -> int:
    """The greatest of int64 [B]; its known upper bound where a look would cost a wait."""
    return int(counts.max()) if _on_cpu(counts) else bound


def surely_none(flags: Tensor) -> bool:
    """Whether no flag is set; False where a look would cost a wait."""
    return _on_cpu(flags) and not bool(flags.any())


def on_host(numbers: Tensor) -> list[int] | None:
    """The numbers [B]; None where a look would cost a wait."""
    return numbers.tolist() if _on_cpu(numbers) else None
