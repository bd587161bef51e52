"""One call for a CPU or a GPU: whose kernels serve, and what they are given.

Belongs here: the choice between `judging.py` and `judging_gpu.py`, whose random numbers come in two forms. Does not
belong here: kernels, and what they mean: where a function here gives None, the caller has the same in lines of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdecode.kernels import judging


def chain(
    tree: Any, target: Tensor, drawn_from: Tensor, streams: Any, tags: tuple[int, int], lengths: Tensor,
    compared: tuple[Tensor, Tensor] | None, weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None] | None:  # fmt: skip
    """`judging.chain` of a `TokenTree`; `tags` are those of acceptance tests and of the draw behind them."""
    length, what = target.shape[1] - 1, (tree.tokens, tree.parents, tree.valid, target, drawn_from)
    rest = lengths, compared, weights, tree.max_depth
    if not drawn_from.is_floating_point():  # one-hot integers, say
        return None
    if judging.serves(target, drawn_from, lengths):
        uniform = streams.numbers(tags[0], lengths, None, length)
        return judging.chain(*what, uniform, streams.numbers(tags[1], lengths, target.shape[-1], length + 1), *rest)
    if length and judging.serves_gpu(target, drawn_from):
        given: tuple[Tensor, Tensor, Tensor | None] = judging.gpu.chain(*what, tuple(map(streams.key_of, tags)), *rest)
        return given
    return None


def race(probabilities: Tensor, streams: Any, tag: int, counters: Tensor, revisited: bool) -> Tensor | None:
    """`judging.race`, with the arguments of `RandomStreams.race`."""
    if probabilities.shape[:-1] != counters.shape or counters.ndim != 2 or not counters.numel():
        return None
    if judging.serves(probabilities):
        noise = streams.numbers(tag, counters, probabilities.shape[-1], 1, revisited)
        return None if noise is None else judging.race(probabilities, noise, counters)
    if judging.serves_gpu(probabilities):
        tokens: Tensor = judging.gpu.race(probabilities, streams.key_of(tag), counters)
        return tokens
    return None


def window(
    last: tuple[Any, ...], streams: Any, tags: tuple[int, int | None], counters: Tensor, revisited: bool,
    asked: tuple[bool, int, bool], lengths: Tensor, known: judging.Known | None,
) -> tuple[Tensor, Tensor | None, bool] | None:  # fmt: skip
    """`judging.window`, and whether known tokens are written.

    Args:
        last: its first arguments up to `roots`.
        tags: of races, and of the tests of the coupling "maximal", None for other couplings.
        counters: [B] int64, of the first guesses. revisited: as for `RandomStreams.numbers`.
        asked: its arguments `random_guess`, `size` and `is_drawn`.
    """
    opinions, _, drawn_from, *_ = last
    (tag, couple), size = tags, asked[1]
    if judging.serves(opinions, drawn_from, lengths):
        uniform = None if couple is None else streams.numbers(couple, counters, None, size)
        noise = streams.numbers(tag, counters, opinions.shape[-1], size, revisited)
        given = *last, noise, counters, uniform, *asked, lengths, known
        return *judging.window(*given), known is not None
    if judging.serves_gpu(opinions, drawn_from, lengths):
        positions = counters[:, None] + torch.arange(size, device=counters.device)
        thresholds = None if couple is None else streams.uniform(couple, positions)
        return *judging.gpu.window(*last, streams.key_of(tag), counters, thresholds, *asked), False
    return None


def keep(tokens: Tensor, *given: Tensor | None) -> tuple[Any, Tensor, int | None] | None:
    """`judging.keep`."""
    kernels: Any = judging if judging.serves(tokens) else judging.gpu if judging.serves_gpu(tokens) else None
    return None if kernels is None else kernels.keep(tokens, *given)
