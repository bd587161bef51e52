"""`judging.py` for a GPU, in Triton: races for tokens, verdicts on chains, windows, and what is kept.

Belongs here: kernels whose results are those of the torch lines that they replace, and what calls them. Does not belong
here: a CPU's kernels (`judging.cpp`), and when either is called.

A race is spread over blocks of the vocabulary: each block offers its winner as one int64, the arrival's bits above the
place counted backwards, so the greatest is the race's winner and the first of equal ones. Random numbers are made where
they are used and never stored. Division rounds as torch's does. A logarithm may differ in its last float64 bit, see
`sampling.RandomStreams`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether these kernels are run by Triton's interpreter, on tensors of a CPU."""
BLOCK = 32 if INTERPRETED else 1024
"""Tokens of a block."""

_ADVANCE = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLY_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = tl.constexpr(0x94D049BB133111EB)
_LAST = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _scrambled(bits):
    bits = (bits ^ (bits >> 30)) * _MULTIPLY_1
    bits = (bits ^ (bits >> 27)) * _MULTIPLY_2
    return bits ^ (bits >> 31)


@triton.jit
def _uniform(key, counter, elements):
    """float64, see `sampling.RandomStreams.uniform`: of int64 key and counter, or elements [BLOCK]."""
    state = _scrambled(counter.to(tl.uint64) * _ADVANCE + key.to(tl.uint64))
    bits = _scrambled(state + (elements + 1).to(tl.uint64) * _ADVANCE) >> 11 | 1
    return bits.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2 ** -53


@triton.jit
def _greatest(numbers):
    return tl.reduce(numbers, 0, tl.standard._elementwise_max)  # as `tl.max`, which the interpreter does not take


@triton.jit
def _offer(best, values, places, takes_part):
    """Raise `best` to the greatest of values float32 [BLOCK], none of them negative; not a number is the greatest."""
    bits = (values.to(tl.int32, bitcast=True) & _LAST).to(tl.int64)
    tl.atomic_max(best, _greatest(tl.where(takes_part, bits << 32 | (_LAST - places), 0)))


@triton.jit
def race_kernel(
    numbers, of_row, of_node, nodes, taken, taken_of_row, taken_of_node, children, weights, keys, counters, best,
    copied, vocab, even, leaves: tl.constexpr, weighs: tl.constexpr, copies: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One block of the race of item (row, k): see `_raced`."""
    row, items = tl.program_id(0).to(tl.int64), tl.num_programs(1)
    item = row * items + tl.program_id(1)
    place = tl.program_id(2) * block + tl.arange(0, block)
    inside, node = place < vocab, tl.load(nodes + item)
    wanted = tl.load(numbers + row * of_row + node * of_node + place, mask=inside & (node >= 0), other=0.0)
    wanted = tl.where(node >= 0, wanted, even)
    if copies:
        tl.store(copied + (item + row + 1) * vocab + place, wanted, mask=inside)
    noise = -tl.log(_uniform(tl.load(keys + row), tl.load(counters + item), place))
    noise = noise.to(tl.float32)
    _offer(best + 2 * item, tl.div_rn(wanted, noise), place, inside)
    if leaves:
        child = tl.load(children + item)
        there = inside & (child >= 0)
        less = tl.load(taken + row * taken_of_row + child * taken_of_node + place, mask=there, other=0.0)
        if weighs:
            # Behind the last draft token nothing was rejected, and there is no weight to read.
            less = tl.minimum(less, tl.load(weights + node, mask=child >= 0, other=1.0) * wanted)
        left = wanted - less
        _offer(best + 2 * item + 1, tl.div_rn(left, noise), place, there & (left > 0))


@triton.jit
def accept_kernel(
    tokens, parents, valid, target, of_row, of_node, drawn, drawn_of_row, drawn_of_node, keys, lengths, numerators,
    denominators, nodes_of_row, length, depth, accepted, children, counters, relaxed, compares: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """The tests of one row's chain; `children` gets the node that was rejected, -1 where none was."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    there, position = i < length, tl.load(lengths + row)
    token = tl.load(tokens + row * nodes_of_row + i + 1, mask=there, other=0)
    own = tl.load(target + row * of_row + i * of_node + token, mask=there, other=0.0)
    proposed = tl.load(drawn + row * drawn_of_row + (i + 1) * drawn_of_node + token, mask=there, other=0.0)
    threshold = _uniform(tl.load(keys + row), position + i, i * 0)
    numerator, denominator = own, proposed
    if compares:
        numerator = tl.load(numerators + row * length + i, mask=there, other=0.0)
        denominator = tl.load(denominators + row * length + i, mask=there, other=0.0)
        strange = threshold * proposed.to(tl.float64) >= own.to(tl.float64)
        tl.store(relaxed + row * depth + i, strange & there, mask=i < depth)
    passes = threshold * denominator.to(tl.float64) < numerator.to(tl.float64)
    passes = passes & (tl.load(valid + row * nodes_of_row + i + 1, mask=there, other=0) != 0)
    count = length - _greatest(tl.where(there & (passes == 0), length - i, 0))
    child = tl.minimum(count + 1, length)
    is_rejected = tl.load(parents + row * nodes_of_row + child) == count
    tl.store(accepted + row, count.to(tl.int64))
    tl.store(children + row, tl.where(is_rejected, child, -1).to(tl.int64))
    tl.store(counters + row, position + count)


@triton.jit
def keep_kernel(
    tokens, valid, path, accepted, following, skipped, stops, active, lengths, nodes_of_row, depth, num_stops, most,
    buffer, made, going_on, counts, walks: tl.constexpr, follows: tl.constexpr, notes: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """`judging.keep` for one row."""
    row, rows, i = tl.program_id(0).to(tl.int64), tl.num_programs(0), tl.arange(0, block)
    goes = tl.load(active + row) != 0
    stays, before = tl.where(goes, tl.load(accepted + row), 0), tl.load(lengths + row)
    wanted = stays
    if follows:
        wanted = stays + tl.where(goes, 1, 0)
    node = i + 1
    if walks:
        node = tl.load(path + row * (depth + 1) + i + 1, mask=i < stays, other=0).to(tl.int32)
    token = tl.load(tokens + row * nodes_of_row + node, mask=i < stays, other=0)
    if follows:
        token = tl.where(i < stays, token, tl.load(following + row))
    is_stop = i < 0
    for number in range(num_stops):
        is_stop = is_stop | (token == tl.load(stops + number))
    is_stop = is_stop & (i < wanted)
    first = block - _greatest(tl.where(is_stop, block - i, 0))  # `block` where there is none
    written = tl.minimum(wanted, first + 1)
    end = before + written
    tl.store(buffer + row * (most + 1) + before + i, token, mask=i < written)
    newest = _greatest(tl.where(i == written - 1, token, 0))
    newest = tl.where(written > 0, newest, tl.load(buffer + row * (most + 1) + before - 1, mask=before > 0, other=0))
    tl.store(made + row, stays)
    tl.store(made + rows + row, wanted)
    tl.store(made + 2 * rows + row, written)
    tl.store(made + 3 * rows + row, end)
    tl.store(made + 4 * rows + row, newest)
    tl.store(going_on + row, goes & (first == block) & (end < most))
    if notes:
        drafted = stays * 0
        for other in range(1, nodes_of_row):
            drafted += tl.where(tl.load(valid + row * nodes_of_row + other) != 0, 1, 0)
        tl.store(counts + row, tl.where(goes, 1, 0).to(tl.int64))
        tl.store(counts + rows + row, drafted)
        tl.store(counts + 2 * rows + row, tl.minimum(stays, written))
        tl.store(counts + 3 * rows + row, written)
        tl.store(counts + 4 * rows + row, tl.load(skipped + row))


def _raced(
    numbers: Tensor, nodes: Tensor, keys: Tensor, counters: Tensor, taken: Tensor | None = None,
    children: Tensor | None = None, weights: Tensor | None = None, copied: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Winners [B, K] of races of the distributions `numbers` [B, n, V] at `nodes` [B, K], -1 for even ones.

    Where there are `children` [B, K], not -1, what is left beyond `taken` [B, m, V] there, or beyond the lesser of that
    and `weights` [L] times the distribution, races instead, if anything is. `copied` [B, K + 1, V] gets distributions.
    """
    (rows, items), vocab = nodes.shape, numbers.shape[-1]
    best = torch.zeros(rows, items, 2, dtype=torch.int64, device=nodes.device)
    whole = numbers if taken is None else taken
    race_kernel[rows, items, triton.cdiv(vocab, BLOCK)](
        *(numbers, *numbers.stride()[:2], nodes, whole, *whole.stride()[:2], nodes if children is None else children),
        *(numbers if weights is None else weights, keys, counters, best, numbers if copied is None else copied, vocab),
        *(1.0 / vocab, children is not None, weights is not None, copied is not None, BLOCK),
    )
    return _LAST.value - (best[..., 1].where(best[..., 1] > 0, best[..., 0]) & _LAST.value)


def race(probabilities: Tensor, keys: Tensor, counters: Tensor) -> Tensor:
    """Winners [B, n] of the races of [B, n, V]; keys [B] of a tag and counters [B, n]; see `RandomStreams.race`."""
    nodes = torch.arange(counters.shape[1], device=keys.device).expand(counters.shape)
    return _raced(probabilities, nodes.contiguous(), keys, counters.contiguous())


def chain(
    tokens: Tensor, parents: Tensor, valid: Tensor, target: Tensor, drawn_from: Tensor, keys: tuple[Tensor, Tensor],
    lengths: Tensor, compared: tuple[Tensor, Tensor] | None, weights: Tensor | None, depth: int,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """`judging.chain`; `keys` [B] are those of `Tag.ACCEPT` and `Tag.TARGET`."""
    (rows, nodes), length = tokens.shape, target.shape[1] - 1
    accepted, children, counters = torch.empty(3, rows, 1, dtype=torch.int64, device=tokens.device).unbind()
    relaxed = None if compared is None else torch.empty(rows, depth, dtype=torch.bool, device=tokens.device)
    accept_kernel[(rows,)](
        *(tokens.contiguous(), parents.contiguous(), valid.contiguous(), target, *target.stride()[:2]),
        *(drawn_from, *drawn_from.stride()[:2], keys[0], lengths),
        *((target, target) if compared is None else (each.contiguous() for each in compared)),
        *(nodes, length, depth, accepted, children, counters, accepted if relaxed is None else relaxed),
        *(compared is not None, triton.next_power_of_2(max(length, depth))),
    )
    following = _raced(target, accepted, keys[1], counters, drawn_from, children, weights)
    return accepted[:, 0], following[:, 0], relaxed


def window(
    opinions: Tensor, tokens: Tensor, drawn_from: Tensor, accepted: Tensor, last_node: Tensor | int, roots: Tensor,
    key: Tensor, counters: Tensor, thresholds: Tensor | None, random_guess: bool, size: int, is_drawn: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`judging.window`; `key` [B] is that of the race's tag, `thresholds` [B, size] are for the coupling "maximal"."""
    offsets = torch.arange(size, device=roots.device)
    node = accepted[:, None] + 1 + offsets  # [B, size]
    here = node.clamp(max=last_node)
    nodes = here.where(node <= last_node, -1) if random_guess else here
    copied = opinions.new_zeros(len(roots), size + 1, opinions.shape[-1]) if is_drawn else None
    counters = counters[:, None] + offsets
    if thresholds is None:
        guesses = _raced(opinions, nodes, key, counters, copied=copied)
    else:
        there, before, rows = (
            node < last_node,
            (node + 1).clamp(max=last_node),
            torch.arange(len(roots), device=roots.device)[:, None],
        )
        old = tokens.gather(1, before)
        stays = there & (thresholds * drawn_from[rows, before, old] < opinions[rows, here, old])
        children = before.where(there, -1)
        guesses = _raced(opinions, nodes, key, counters, drawn_from, children, copied=copied)
        guesses = old.where(stays, guesses)
    return torch.cat([roots[:, None], guesses], 1), copied


def keep(
    tokens: Tensor, valid: Tensor, path: Tensor | None, accepted: Tensor, following: Tensor | None, skipped: Tensor,
    stops: Tensor | None, active: Tensor, lengths: Tensor, buffer: Tensor, counts: Tensor | None,
) -> tuple[tuple[Tensor, ...], Tensor, None]:  # fmt: skip
    """`judging.keep`; the host does not learn the least room."""
    (rows, nodes), walk = tokens.shape, accepted if path is None else path.contiguous()
    made, going_on = torch.empty(5, rows, dtype=torch.int64, device=tokens.device), torch.empty_like(active)
    depth = nodes - 1 if path is None else walk.shape[1] - 1
    keep_kernel[(rows,)](
        *(tokens.contiguous(), valid.contiguous(), walk, accepted, accepted if following is None else following),
        *(skipped, accepted if stops is None else stops, active, lengths, nodes, depth),
        *(0 if stops is None else len(stops), buffer.shape[1] - 1, buffer, made, going_on),
        *(made if counts is None else counts, path is not None, following is not None, counts is not None),
        triton.next_power_of_2(depth + 1),
    )
    return made.unbind(), going_on, None
