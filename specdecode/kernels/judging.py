"""The kernels between two passes: races for tokens, verdicts, windows, and what is kept.

Belongs here: which tensors the kernels take. Does not belong here: their loops (`judging.cpp`), and what they mean: the
caller has the same in operations of torch, for other devices, compiled code, and machines without a compiler. Both give
the same bits.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode.kernels.build import library


@dataclass(frozen=True)
class Ahead:
    """Random numbers of consecutive counters.

    Args:
        first: [B] int64, the first counter of each row.
        numbers: [B, W] float64 or [B, W, V] float32, those of counters `first[b]` to `first[b] + W - 1`.
    """

    first: Tensor
    numbers: Tensor

    @property
    def width(self) -> int:
        """W."""
        return self.numbers.shape[1]


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these: on a CPU, in eager code, of float32 where they have fractions."""
    return (
        not torch.compiler.is_compiling()
        and all(
            each.device.type == "cpu" and (each.dtype == torch.float32 or not each.is_floating_point())
            for each in tensors
        )
        and library() is not None
    )


def covers(ahead: Ahead, counters: Tensor, count: int) -> bool:
    """Whether `count` counters from each of `counters` [B, ...] on are among those whose numbers were made."""
    if serves(counters):
        per_row = counters.numel() // len(ahead.first)
        whole = counters.contiguous()
        return bool(_call("covers", ahead.first, ahead.width, whole, per_row, count, len(ahead.first)))
    places = counters.reshape(len(ahead.first), -1) - ahead.first[:, None]
    return bool(((places >= 0) & (places + count <= ahead.width)).all())


def uniform(keys: Tensor, counters: Tensor, size: int | None) -> Tensor:
    """Uniform numbers [B, ..., size or none] of keys [B] and counters [B, ...]; see `sampling.RandomStreams`."""
    numbers = torch.empty(*counters.shape, *([] if size is None else [size]), dtype=torch.float64)
    per_row = counters.numel() // len(keys)
    _call("uniform", keys, counters.contiguous(), len(keys), per_row, size or 1, numbers)
    return numbers


def all_finite(logits: Tensor) -> bool:
    """Whether the greatest logit of every node of [B, n, V] is finite."""
    logits = logits.contiguous()
    return bool(_call("finite", logits, logits.numel() // logits.shape[-1], logits.shape[-1]))


def largest(values: Tensor) -> Tensor:
    """[...] int64: where the largest of each row of [..., V] stands, the first of equal ones."""
    values = values.contiguous()
    places = torch.empty(values.shape[:-1], dtype=torch.int64)
    _call("largest", values, places.numel(), values.shape[-1], places)
    return places


def race(probabilities: Tensor, noise: Ahead, counters: Tensor) -> Tensor:
    """The winner of each node's race, in the shape of `counters` [B, ...]; [B, n, V] probabilities."""
    tokens = torch.empty_like(counters, memory_format=torch.contiguous_format)
    rows, per_row = len(counters), counters.numel() // len(counters)
    _call(
        *("race", *_distributions(probabilities), noise.numbers, noise.first, noise.width, counters.contiguous()),
        *(rows, per_row, probabilities.shape[-1], tokens),
    )
    return tokens


def walk(
    tokens: Tensor, parents: Tensor, valid: Tensor, target: Tensor, noise: Ahead | None, lengths: Tensor, depth: int,
    is_chain: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Descend a tree along the tokens drawn at its nodes, or along the largest of `target` [B, n, V] without noise.

    Returns:
        The path [B, depth + 1] (None for a chain), the accepted length [B], and the token behind [B].
    """
    batch_size, nodes = tokens.shape
    path = None if is_chain else torch.empty(batch_size, depth + 1, dtype=torch.int64)
    accepted, following = torch.empty(2, batch_size, dtype=torch.int64).unbind()
    given = (None, None, 0) if noise is None else (noise.numbers, noise.first, noise.width)
    _call(
        *("walk", tokens.contiguous(), parents.contiguous(), valid.contiguous(), *_distributions(target), *given),
        *(lengths, batch_size, nodes, depth, target.shape[-1], path, accepted, following),
    )
    return path, accepted, following


def chain(
    tokens: Tensor, parents: Tensor, valid: Tensor, target: Tensor, drawn_from: Tensor, uniform: Ahead, noise: Ahead,
    lengths: Tensor, compared: tuple[Tensor, Tensor] | None, weights: Tensor | None, depth: int,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Judge a chain of drawn tokens; see `verifiers.exact.judge_chain`.

    Returns:
        The accepted length [B], the token behind [B], and what was relaxed [B, depth]; None without another test.
    """
    (batch_size, nodes), vocab_size = tokens.shape, target.shape[-1]
    accepted, following = torch.empty(2, batch_size, dtype=torch.int64).unbind()
    relaxed = None if compared is None else torch.empty(batch_size, depth, dtype=torch.bool)
    numerators, denominators = (None, None) if compared is None else (each.contiguous() for each in compared)
    _call(
        *("chain", tokens.contiguous(), parents.contiguous(), valid.contiguous(), *_distributions(target)),
        *(*_distributions(drawn_from), uniform.numbers, uniform.first, uniform.width, noise.numbers, noise.first),
        *(noise.width, lengths, numerators, denominators, weights, batch_size, nodes, target.shape[1] - 1, depth),
        *(vocab_size, torch.empty(vocab_size), accepted, following, relaxed),
    )
    return accepted, following, relaxed


def window(
    opinions: Tensor, tokens: Tensor, drawn_from: Tensor, accepted: Tensor, last_node: Tensor | int, roots: Tensor,
    noise: Ahead, counters: Tensor, uniform: Ahead | None, random_guess: bool, size: int, is_drawn: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """A Jacobi window; see `drafters.jacobi.JacobiDrafter`.

    Args:
        opinions, tokens, drawn_from: of the last chain, [B, n, V], [B, n] and [B, n, V].
        accepted, last_node: of the last chain, [B], and [B, 1] or a number.
        roots: [B] the newest tokens.
        counters: [B], those of the first guess.
        uniform: for the coupling "maximal", exactly `size` numbers of each row; None for other couplings.
        random_guess: whether there is no opinion beyond the last node.
        is_drawn: whether to return the distributions of guesses.

    Returns:
        The chain [B, size + 1], and what its tokens were drawn from, [B, size + 1, V], zeros at the root.
    """
    batch_size, nodes, vocab_size = opinions.shape
    chain, made_from = torch.empty(batch_size, size + 1, dtype=torch.int64), None
    if is_drawn:
        made_from = torch.empty(batch_size, size + 1, vocab_size)
    varied, last = (last_node, 0) if isinstance(last_node, Tensor) else (None, last_node)
    _call(
        *("window", opinions.contiguous(), tokens.contiguous(), drawn_from.contiguous(), accepted, varied, last, roots),
        *(noise.numbers, noise.first, noise.width, counters, None if uniform is None else uniform.numbers),
        *(int(random_guess), batch_size, nodes, size, vocab_size, torch.empty(2 * vocab_size), chain, made_from),
    )
    return chain, made_from


def keep(
    tokens: Tensor, valid: Tensor, path: Tensor | None, accepted: Tensor, following: Tensor | None, skipped: Tensor,
    stops: Tensor | None, active: Tensor, lengths: Tensor, buffer: Tensor, counts: Tensor | None,
) -> tuple[tuple[Tensor, ...], Tensor, int]:  # fmt: skip
    """Write the accepted tokens of a path, and the one behind, into `buffer` [B, max_new_tokens + 1].

    Args:
        path: [B, depth + 1]; None for a chain.
        counts: [5, B] where the step's record goes, or None.

    Returns:
        Tensors [B] int64: how many of the accepted tokens stay, that and the one behind, tokens written, lengths, and
        newest tokens; which rows go on; and the least room for draft tokens, -1 where a row has ended.
    """
    batch_size, nodes = tokens.shape
    made, going_on = torch.empty(5, batch_size, dtype=torch.int64).unbind(), torch.empty_like(active)
    depth = 0 if path is None else path.shape[1] - 1
    least = _call(
        *("keep", tokens.contiguous(), valid.contiguous(), None if path is None else path.contiguous(), accepted),
        *(following, skipped, stops, 0 if stops is None else len(stops), active, lengths, batch_size, nodes, depth),
        *(buffer.shape[1] - 1, buffer, *made, going_on, counts),
    )
    return made, going_on, least


def ancestors(parents: Tensor) -> Tensor:
    """[B, n, n] bool of parents [B, n]: which nodes are a node itself or its ancestors."""
    batch_size, nodes = parents.shape
    mask = torch.empty(batch_size, nodes, nodes, dtype=torch.bool)
    _call("ancestors", parents.contiguous(), batch_size, nodes, mask)
    return mask


def join(
    pending: Tensor, counts: Tensor, tokens: Tensor, depth: Tensor, valid: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, mask and depths of pending tokens [B, m] and the tree behind; see `skipping.PendingChain.join`."""
    (batch_size, length), nodes = pending.shape, tokens.shape[1]
    fed, depths = torch.empty(2, batch_size, length + nodes, dtype=torch.int64).unbind()
    seen = torch.empty(batch_size, length + nodes, length + nodes, dtype=torch.bool)
    given = (each.contiguous() for each in (pending, counts, tokens, depth, valid, mask))
    _call("join", *given, batch_size, length, nodes, fed, seen, depths)
    return fed, seen, depths


def append(left: Tensor, left_counts: Tensor, right: Tensor) -> Tensor:
    """Each row of `right` [B, r, ...] behind the first `left_counts[b]` entries of `left` [B, k, ...]."""
    left, right = left.contiguous(), right.contiguous()
    length, width = left.shape[1], right.shape[1]
    both = left.new_empty(len(left), length + width, *left.shape[2:])
    _call("append", left, left_counts, right, len(left), length, width, left.stride(1) * left.itemsize, both)
    return both


def store(entries: Tensor, first: Tensor, counts: Tensor, into: Tensor, lead: int, newest: Tensor) -> None:
    """Write the first `counts[b]` of `entries` [B, k, F] to `into` [B, S, F], of the same dtype, from slot `first[b] +
    lead` on. Where there are any, `newest` [B] becomes at least the place of the last one, counted from 0 at `lead`."""
    batch_size, width, size = entries.shape
    sizes = batch_size, width, into.shape[1], size * entries.itemsize
    _call("store", entries.contiguous(), first, counts, lead, *sizes, into, newest)


def _distributions(numbers: Tensor) -> tuple[Tensor, int, int]:
    """Distributions [B, n, V] as the kernels take them, copied only where V is not laid out in one piece."""
    numbers = numbers if numbers.stride(-1) == 1 else numbers.contiguous()
    return numbers, numbers.stride(0), numbers.stride(1)


def _call(name: str, *given: Tensor | int | None) -> int:
    """Call a kernel with addresses and numbers."""
    kernel = getattr(library(), f"judging_{name}")
    passed = (0 if each is None else each if isinstance(each, int) else each.data_ptr() for each in given)
    return int(kernel(*map(ctypes.c_int64, passed)))
