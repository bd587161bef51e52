"""What is fused between two passes: the operations that a kernel does in one call, and which tensors it takes.

Belongs here: the door to `judging.cpp` and `lines.cpp`. Does not belong here: the meaning of an operation. That stands
in operations of torch right behind the call, in the function of that name, for other devices, compiled code, and
machines without a compiler. Both give the same bits, which `tests/specdecode/kernels/test_fused_ops.py` tries for all
of them.

A function here returns None where the kernels do not serve. `fused` makes it the fast form of a plain function.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from specdecode.kernels.build import library
from specdecode.kernels.in_graph import in_graph

P = ParamSpec("P")
Made = TypeVar("Made")


def fused(kernel: Callable[..., Any]) -> Callable[[Callable[P, Made]], Callable[P, Made]]:
    """A decorator of a plain function: `kernel`, with the same arguments, does the same where it serves."""

    def decorate(plain: Callable[P, Made]) -> Callable[P, Made]:
        @functools.wraps(plain)
        def operation(*given: P.args, **named: P.kwargs) -> Made:
            made: Made | None = kernel(*given, **named)
            return plain(*given, **named) if made is None else made

        return operation

    return decorate


@dataclass(frozen=True)
class Ahead:
    """Random numbers of consecutive counters.

    Args:
        first: [B] int64, the first counter of each row.
        numbers: [B, W] float64 or [B, W, V] float32, those of counters `first[b]` to `first[b] + W - 1`.
    """

    first: Tensor
    numbers: Tensor

    def fields(self) -> tuple[Tensor, Tensor, int]:
        """The fields as the kernels take them."""
        return self.numbers, self.first, self.numbers.shape[1]


@dataclass(frozen=True)
class RowWindowState:
    """The tensors that a run over row windows keeps from step to step; the kernels change them. All contiguous.

    Args:
        geometry: [1 or B, 4] int64, of each row: tokens of a line, lines, places from line to line, and places.
        counts, guesses: [B, R] int64, decided tokens of each line, and guesses behind them.
        fed: [B, R, S] bool, places whose decided tokens were fed.
        visits: [B, R, S] int64, passes that have drawn each place.
        windows: [B, R] int64, decided tokens of the line before when a line opens.
        guessable: [B] int64, so many first tokens of a line may be guesses.
        active: [B] bool, rows that go on.
        buffer: [B, N + 1] int64, tokens.
        placeholders: how many lines have one.
    """

    geometry: Tensor
    counts: Tensor
    guesses: Tensor
    fed: Tensor
    visits: Tensor
    windows: Tensor
    guessable: Tensor
    active: Tensor
    buffer: Tensor
    placeholders: int

    @property
    def num_places(self) -> int:
        """N."""
        return self.buffer.shape[1] - 1

    def fields(self) -> tuple[Any, ...]:
        """The fields as the kernels take them."""
        state = self.counts, self.guesses, self.fed, self.visits, self.windows, self.guessable, self.active, self.buffer
        return self.geometry, len(self.geometry), *state, *self.fed.shape, self.num_places, self.placeholders


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these: on a CPU, in eager code, int64, bool, or whole rows of float32.

    Here a function asks by itself. Callers ask only where they have to make something for it.
    """
    global _found, _choice
    if in_graph():
        return False
    for each in tensors:
        if each.device.type != "cpu" or not _fits(each):
            return False
    if (choice := os.environ.get("VARGEN_KERNELS", "")) != _choice:  # to look the library up takes as long as a kernel
        _found, _choice = library(), choice
    return _found is not None


def _fits(tensor: Tensor) -> bool:
    """Whether a tensor is of a type that the kernels read; what they see is an address."""
    if tensor.dtype == torch.float32:
        return tensor.stride(-1) == 1
    return tensor.dtype in (torch.int64, torch.bool)


def uniform(keys: Tensor, counters: Tensor, elements: Tensor, size: int | None) -> Tensor | None:
    """Uniform numbers [B, ..., size or none] of keys [B] and counters [B, ...]; see `sampling._uniform`."""
    if not serves(keys, counters):
        return None
    numbers = torch.empty(*counters.shape, *([] if size is None else [size]), dtype=torch.float64)
    sizes = len(keys), counters.numel() // max(len(keys), 1), 1 if size is None else size
    _call("uniform", keys, counters, *sizes, numbers)
    return numbers


def all_finite(logits: Tensor) -> bool | None:
    """Whether the greatest logit of every node of [B, n, V] is finite."""
    if not serves(logits):
        return None
    return bool(_call("finite", logits, logits.numel() // logits.shape[-1], logits.shape[-1]))


def largest(values: Tensor) -> Tensor | None:
    """[...] int64: where the largest of each row of [..., V] stands, the first of equal ones."""
    if not serves(values) or not values.shape[-1]:
        return None
    places = torch.empty(values.shape[:-1], dtype=torch.int64)
    _call("largest", values, places.numel(), values.shape[-1], places)
    return places


def race(streams: Any, probabilities: Tensor, tag: int, counters: Tensor, revisited: bool = False) -> Tensor | None:
    """See `RandomStreams.race`."""
    if probabilities.shape[:-1] != counters.shape or counters.ndim != 2 or not counters.numel():
        return None
    if not serves(probabilities):
        return None
    noise = streams.numbers(tag, counters, probabilities.shape[-1], 1, revisited)
    if noise is None:
        return None
    tokens = torch.empty(counters.shape, dtype=torch.int64)
    _call("race", *_distributions(probabilities), *noise.fields(), counters, *probabilities.shape, tokens)
    return tokens


def walk(
    tokens: Tensor, parents: Tensor, valid: Tensor, target: Tensor, noise: Ahead | None, lengths: Tensor, depth: int,
    is_chain: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Descend a tree along the tokens drawn at its nodes, or along the largest of `target` [B, n, V] without noise.

    Returns the path [B, depth + 1] (None for a chain), the accepted length [B], and the token behind [B]."""
    path = None if is_chain else torch.empty(len(tokens), depth + 1, dtype=torch.int64)
    accepted, following = _numbers(2, len(tokens))
    given = (None, None, 0) if noise is None else noise.fields()
    sizes = *tokens.shape, depth, target.shape[-1]
    _call("walk", tokens, parents, valid, *_distributions(target), *given, lengths, *sizes, path, accepted, following)
    return path, accepted, following


def lantern(
    tokens: Tensor, parents: Tensor, target: Tensor, noise: Ahead, lengths: Tensor, neighbours: Tensor, bounds: Tensor,
    depth: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """LANTERN's walk; see `verifiers.lantern`. `bounds`, float32 [3]: delta, multiplier - 1, whether the latter counts.

    Returns what `walk` does, and which levels were relaxed [B, depth]."""
    path, (accepted, following) = torch.empty(len(tokens), depth + 1, dtype=torch.int64), _numbers(2, len(tokens))
    relaxed = torch.empty(len(tokens), depth, dtype=torch.bool)
    given = *_distributions(target), *noise.fields(), lengths, neighbours, neighbours.shape[1], bounds
    sizes = *tokens.shape, depth, target.shape[-1]
    _call("lantern", tokens, parents, *given, *sizes, torch.empty(target.shape[-1]), path, accepted, following, relaxed)
    return path, accepted, following, relaxed


def rounds(
    tree: Any, target: Tensor, drawn_from: Tensor, streams: Any, tags: tuple[int, int], lengths: Tensor,
    relaxation: tuple[Any, ...] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Judge a tree of drawn tokens by their distributions [B, n, V]; see `verifiers.exact.multi_round_walk`.

    `tags` as of `chain`. `relaxation`: those of `lantern_drawn.Relaxation`, or None. Returns what `lantern` does,
    None for its levels without a relaxation."""
    (rows, nodes), depth, children, vocab_size = tree.tokens.shape, tree.max_depth, tree.max_children, target.shape[-1]
    path, (accepted, following) = torch.empty(rows, depth + 1, dtype=torch.int64), _numbers(2, rows)
    relaxed = torch.empty(rows, depth, dtype=torch.bool)
    tests = streams.uniform(tags[0], lengths[:, None] + torch.arange(depth), children)
    noise = streams.numbers(tags[1], lengths, vocab_size, depth + 1)
    given = *_distributions(target), *_distributions(drawn_from), tests, *noise.fields(), lengths
    sizes = rows, nodes, children, depth, vocab_size
    made = torch.empty(6 * vocab_size), path, accepted, following, relaxed
    _call("rounds", tree.tokens, tree.parents, *given, *(relaxation or (None,) * 6), *sizes, *made)
    return path, accepted, following, relaxed if relaxation else None


def chain(
    tree: Any, target: Tensor, drawn_from: Tensor, streams: Any, tags: tuple[int, int], lengths: Tensor,
    compared: tuple[Tensor, Tensor] | None, weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None] | None:  # fmt: skip
    """Judge a chain of drawn tokens, a `TokenTree`; see `verifiers.exact.judge_chain`.

    `tags` are those of acceptance tests and of the draw behind them.

    Returns the accepted length [B], the token behind [B], and what another test relaxed [B, depth] (None without)."""
    # One-hot integers, say, are no distributions.
    if not drawn_from.is_floating_point() or not serves(target, drawn_from, lengths):
        return None
    tokens, depth, length = tree.tokens, tree.max_depth, target.shape[1] - 1
    uniform = streams.numbers(tags[0], lengths, None, length)
    noise = streams.numbers(tags[1], lengths, target.shape[-1], length + 1)
    accepted, following = _numbers(2, len(tokens))
    relaxed = None if compared is None else torch.empty(len(tokens), depth, dtype=torch.bool)
    distributions = *_distributions(target), *_distributions(drawn_from)
    given = *uniform.fields(), *noise.fields(), lengths, *(compared or (None, None)), weights
    sizes = *tokens.shape, length, depth, target.shape[-1]
    made = torch.empty(target.shape[-1]), accepted, following, relaxed
    _call("chain", tokens, tree.parents, tree.valid, *distributions, *given, *sizes, *made)
    return accepted, following, relaxed


def window(
    last: tuple[Any, ...], roots: Tensor, streams: Any, tags: tuple[int, int | None], counters: Tensor,
    revisited: bool, random_guess: bool, size: int, is_drawn: bool,
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """A Jacobi window; see `drafters.jacobi.JacobiDrafter`.

    Args:
        last: opinions, tokens, what these were drawn from, accepted [B], and the last node, of the last chain, whose
            number of nodes may vary by row.
        roots, counters: [B], the newest tokens, and the counters of the first guesses.
        tags: of races, and of the tests of the coupling "maximal", None for other couplings.
        revisited: as for `RandomStreams.numbers`.
        random_guess: whether there is no opinion beyond the last node.
        is_drawn: whether to return the distributions of guesses.

    Returns:
        The chain [B, size + 1], and what its tokens were drawn from, [B, size + 1, V], zeros at the root.
    """
    opinions, tokens, drawn_from, accepted, last_node = last
    if not serves(opinions, drawn_from, counters):
        return None
    uniform = None if tags[1] is None else streams.numbers(tags[1], counters, None, size)
    noise = streams.numbers(tags[0], counters, opinions.shape[-1], size, revisited)
    rows, nodes, vocab_size = opinions.shape
    made = torch.empty(rows, size + 1, dtype=torch.int64), torch.empty(rows, size + 1, vocab_size) if is_drawn else None
    at = (last_node, 0) if isinstance(last_node, Tensor) else (None, last_node)
    given = *noise.fields(), counters, None if uniform is None else uniform.numbers, int(random_guess)
    sizes = rows, nodes, size, vocab_size, torch.empty(2 * vocab_size)
    _call("window", opinions, tokens, drawn_from, accepted, *at, roots, *given, *sizes, *made)
    return made


def keep(
    tokens: Tensor, valid: Tensor, path: Tensor | None, accepted: Tensor, following: Tensor | None, skipped: Tensor,
    stops: Tensor | None, active: Tensor, lengths: Tensor, buffer: Tensor, counts: Tensor | None,
) -> tuple[Sequence[Tensor], Tensor, int] | None:  # fmt: skip
    """Write the accepted tokens of a path (None: a chain's), and the one behind, into `buffer` [B, max_new_tokens + 1];
    into `counts` [5, B] the step's record, if wanted.

    Returns:
        Tensors [B] int64: how many of the accepted tokens stay, that and the one behind, tokens written, lengths, and
        newest tokens; which rows go on; and the least room for draft tokens, -1 where a row has ended.
    """
    if not serves(tokens):
        return None
    made, going_on = _numbers(5, len(tokens)), torch.empty_like(active)
    given = accepted, following, skipped, stops, 0 if stops is None else len(stops), active, lengths
    sizes = *tokens.shape, 0 if path is None else path.shape[1] - 1, buffer.shape[1] - 1
    return made, going_on, _call("keep", tokens, valid, path, *given, *sizes, buffer, *made, going_on, counts)


def ancestors(parents: Tensor) -> Tensor | None:
    """[B, n, n] bool of parents [B, n]: which nodes are a node itself or its ancestors."""
    if not serves(parents):
        return None
    mask = torch.empty(*parents.shape, parents.shape[1], dtype=torch.bool)
    _call("ancestors", parents, *parents.shape, mask)
    return mask


def join(pending: Any, tree: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """Tokens, mask and depths of pending tokens and the tree behind; see `skipping.PendingChain.join`."""
    if not serves(pending.tokens):
        return None
    rows, width = len(tree.tokens), pending.tokens.shape[1] + tree.tokens.shape[1]
    fed, depths = torch.empty(2, rows, width, dtype=torch.int64).unbind()
    seen = torch.empty(rows, width, width, dtype=torch.bool)
    given = pending.tokens, pending.counts, tree.tokens, tree.depth, tree.valid, tree.ancestor_mask()
    _call("join", *given, *pending.tokens.shape, tree.tokens.shape[1], fed, seen, depths)
    return fed, seen, depths


def grown(roots: Tensor, best: Tensor, tokens: Tensor, scores: Tensor, frontier: Tensor) -> tuple[Tensor, ...]:
    """Tokens, parents, depths and scores [B, m + 1] of the best nodes [B, m]; see `tree_growth.dynamic_tree`."""
    rows, count = best.shape
    made = *torch.empty(3, rows, count + 1, dtype=torch.int64).unbind(), torch.empty(rows, count + 1)
    _call("grown", roots, best, tokens, scores, frontier, rows, count, tokens.shape[1], frontier.shape[-1], *made)
    return made


def occurrence(rows: Tensor, ends: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """Where up to `most` tokens before each of `ends` [B], and that one, stood before in `rows` [B, S], and how many of
    them, both [B]; see `drafters.prompt_lookup`."""
    if not serves(rows):
        return None
    places, matched = _numbers(2, len(rows))
    _call("occurrence", rows, ends, *rows.shape, most, places, matched)
    return places, matched


def newest(values: Tensor, ends: Tensor, counts: Tensor, width: int) -> Tensor | None:
    """The `counts[b]` entries before `ends[b]` of `values` [B, S, ...]: [B, width, ...]; see `ragged.newest`."""
    if not serves(ends, counts):
        return None
    entries = values.new_empty(len(values), width, *values.shape[2:])
    if values.stride()[1:] != entries.stride()[1:]:
        values = values.contiguous()
    sizes = len(values), width, entries.stride(1) * values.itemsize
    _call("newest", values.data_ptr(), values.stride(0) * values.itemsize, ends, counts, *sizes, entries)
    return entries


def taken(
    alike: Tensor, most: Tensor, lengths: Tensor, active: Tensor, min_tokens: int, min_count: int
) -> tuple[Tensor, bool]:
    """How many tokens of paths [B, depth] are taken unverified [B], and whether any; all tensors of B rows. The first
    that are `alike`, up to `most`; none where these are fewer than `min_count`, or `lengths` at most `min_tokens`."""
    counts = torch.empty_like(most)
    return counts, bool(_call("taken", alike, most, lengths, active, min_tokens, min_count, *alike.shape, counts))


def store(entries: Tensor, first: Tensor, counts: Tensor, into: Tensor, lead: int, newest: Tensor) -> None:
    """Write the first `counts[b]` of `entries` [B, k, F] to `into` [B, S, F], of the same dtype, from slot `first[b] +
    lead` on. Where there are any, `newest` [B] becomes at least the place of the last one, counted from 0 at `lead`."""
    sizes = *entries.shape[:2], into.shape[1], entries.shape[2] * entries.itemsize
    _call("store", entries, first, counts, lead, *sizes, into, newest)


def move(cache: Any, nodes: Tensor, counts: Tensor) -> tuple[()] | None:
    """Move entry `lengths[b] + nodes[b, j]` of row b, in each plane of a cache, to `lengths[b] + j`.

    Only the first `counts[b]` of `nodes` [B, k] count, for the first B rows of the memory. Then lengths grow by
    `counts` [B]. See `StaticKVCache.keep`."""
    if not serves(nodes, counts) or not len(nodes) == len(counts) == cache.batch_size:
        return None
    rows, lengths, slots = cache._rows, cache.lengths, cache.max_length
    planes, all_rows, entry = rows.shape[:-2].numel(), rows.shape[-2] // slots, rows.shape[-1] * rows.itemsize
    kept = torch.empty(nodes.shape[1] * entry, dtype=torch.uint8)
    sizes = planes, all_rows, len(nodes), slots, nodes.shape[1], entry
    _call("move", nodes, counts, *sizes, kept, lengths, rows)
    return ()


def plan_lines(lines: RowWindowState, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tokens that a pass over row windows feeds, at most `most` of a row; see `row_windows.RowWindowRun`.

    Returns slots, positions and tokens [B, n] int64, which of them are real, and the slots that each sees [B, n, W]."""
    rows, width = len(lines.counts), lines.num_places + lines.placeholders
    numbers, real = torch.empty(3, rows * most, dtype=torch.int64), torch.empty(rows * most, dtype=torch.bool)
    visible = torch.empty(rows * most * width, dtype=torch.bool)
    count = _call("plan_lines", *lines.fields(), most, *numbers, real, visible)
    slots, positions, tokens = (each[: rows * count].view(rows, count) for each in numbers)
    seen = visible[: rows * count * width].view(rows, count, width)
    return slots, positions, tokens, real[: rows * count].view(rows, count), seen


def judge_lines(
    lines: RowWindowState, rule: Tensor, ends: Tensor, fed: tuple[Tensor, Tensor, Tensor], drawn: Tensor, most: int
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """What follows from the tokens `drawn` [B, n] behind those that a pass has fed. `lines` change in place.

    Args:
        rule: int64 [4]: guesses, `confirm_first`, `max_visits` or 0, and `start_from_row_above` of `RowWindows`.
        ends: [B] int64, tokens of each row.
        fed: slots, positions, and which of them are real, of `plan_lines`.
        most: guesses of a row that there is room for.

    Returns:
        [5, B] int64: how many tokens were drafted, accepted, added and taken unverified, and how many were fed. By
        place [B, N]: int8, where an added token is from and -1 elsewhere, and bool, which are decided. [B] int64: the
        new lengths; [B] bool, which rows go on. And [B, m] places to guess at, the numbers of the fed tokens whose
        distributions guesses are drawn from, and which of them are real.
    """
    rows, places = len(drawn), lines.num_places
    counts, lengths = torch.empty(5, rows, dtype=torch.int64), torch.empty(rows, dtype=torch.int64)
    by_place, decided = torch.empty(rows, places, dtype=torch.int8), torch.empty(rows, places, dtype=torch.bool)
    going_on, real = torch.empty(rows, dtype=torch.bool), torch.empty(rows * most, dtype=torch.bool)
    numbers = torch.empty(2, rows * most, dtype=torch.int64)
    made = counts[:4], counts[4], by_place, decided, lengths, going_on
    count = _call("judge_lines", *lines.fields(), rule, ends, *fed, drawn, drawn.shape[1], most, *made, *numbers, real)
    at, nodes = (each[: rows * count].view(rows, count) for each in numbers)
    return counts, (by_place, decided), lengths, going_on, (at, nodes, real[: rows * count].view(rows, count))


def _numbers(count: int, rows: int) -> Sequence[Tensor]:
    """So many new tensors [rows] int64."""
    return torch.empty(count, rows, dtype=torch.int64).unbind()


def _distributions(numbers: Tensor) -> tuple[int, int, int]:
    """Distributions [B, n, V] as the kernels take them: whole rows, which need not lie side by side."""
    return numbers.data_ptr(), numbers.stride(0), numbers.stride(1)


def _call(name: str, *given: Tensor | int | None) -> int:
    """Call a kernel with addresses and numbers. Raises IndexError where it was given a token or a node that is none."""
    kernel = getattr(_found, "judging_" + name)
    if kernel.argtypes is None:
        kernel.argtypes = [ctypes.c_int64] * len(given)
    held = [each.contiguous() if isinstance(each, Tensor) else each or 0 for each in given]
    said: int = kernel(*[each.data_ptr() if isinstance(each, Tensor) else each for each in held])
    if said == _OUTSIDE:
        raise IndexError("a token lies outside the vocabulary, or a node outside its tree or its row")
    return said


_found: ctypes.CDLL | None = None
_choice: str | None = None
"""The library as `serves` found it last, and for which choice of kernels."""
_OUTSIDE = -2
"""What kernels say of a token or a node that is none."""
