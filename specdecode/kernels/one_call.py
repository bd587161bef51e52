"""Steps between passes in one call of the kernels, with the random numbers that they need.

Belongs here: what `judging.py` is given. Where a function here gives None, its caller has the same in lines of torch.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specdecode.kernels import judging


def chain(
    tree: Any, target: Tensor, drawn_from: Tensor, streams: Any, tags: tuple[int, int], lengths: Tensor,
    compared: tuple[Tensor, Tensor] | None, weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None] | None:  # fmt: skip
    """`judging.chain` of a `TokenTree`; `tags` are those of acceptance tests and of the draw behind them."""
    # One-hot integers, say, are no distributions.
    if not drawn_from.is_floating_point() or not judging.serves(target, drawn_from, lengths):
        return None
    length = target.shape[1] - 1
    uniform = streams.numbers(tags[0], lengths, None, length)
    noise = streams.numbers(tags[1], lengths, target.shape[-1], length + 1)
    given = tree.tokens, tree.parents, tree.valid, target, drawn_from, uniform, noise
    return judging.chain(*given, lengths, compared, weights, tree.max_depth)


def race(probabilities: Tensor, streams: Any, tag: int, counters: Tensor, revisited: bool) -> Tensor | None:
    """`judging.race`, with the arguments of `RandomStreams.race`."""
    if probabilities.shape[:-1] != counters.shape or counters.ndim != 2 or not counters.numel():
        return None
    if not judging.serves(probabilities):
        return None
    noise = streams.numbers(tag, counters, probabilities.shape[-1], 1, revisited)
    return None if noise is None else judging.race(probabilities, noise, counters)


def window(
    last: tuple[Any, ...], streams: Any, tags: tuple[int, int | None], counters: Tensor, revisited: bool,
    asked: tuple[bool, int, bool], lengths: Tensor, known: judging.Known | None,
) -> tuple[Tensor, Tensor | None] | None:  # fmt: skip
    """`judging.window`, which writes known tokens, too.

    Args:
        last: its first arguments up to `roots`.
        tags: of races, and of the tests of the coupling "maximal", None for other couplings.
        counters: [B] int64, of the first guesses. revisited: as for `RandomStreams.numbers`.
        asked: its arguments `random_guess`, `size` and `is_drawn`.
    """
    opinions, _, drawn_from, *_ = last
    (tag, couple), size = tags, asked[1]
    if not judging.serves(opinions, drawn_from, lengths):
        return None
    uniform = None if couple is None else streams.numbers(couple, counters, None, size)
    noise = streams.numbers(tag, counters, opinions.shape[-1], size, revisited)
    return judging.window(*last, noise, counters, uniform, *asked, lengths, known)


def keep(tokens: Tensor, *given: Any) -> tuple[Any, Tensor, int] | None:
    """`judging.keep`."""
    return judging.keep(tokens, *given) if judging.serves(tokens) else None
