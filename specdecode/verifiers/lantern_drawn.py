"""LANTERN for children that were drawn at random: probability moves to tokens that the drafter overrates.

Belongs here: the relaxed distribution where the drafter's is known. Does not belong here: the tests of the children,
which are the exact ones (`exact.multi_round_walk`), and the rule for other children (`lantern.py`).

Why drawn children need another rule. The one-draw rule of `lantern.py` accepts a child x with probability p(x) or
little more, while the test against its distribution q, min(1, p(x) / q(x)), accepts most of a good drafter's guesses.
LANTERN's own remedy (arXiv 2410.03355; LANTERN++, arXiv 2502.06352, with drawn children) tests with the probability of
x and its neighbours, min(1, p(A(x)) / q(x)). Its budget holds for each x alone: every child has a relaxed target of its
own, and the total variation of what is emitted from p may exceed twice delta (examples:
tests/specdecode/verifiers/test_lantern_drawn.py).

The rule here. At a node with the target's distribution p and the first child's distribution q there is *one* relaxed
distribution p' for all children, made from p and q alone.

* A token with p > q can spare p - q, one with p < q lacks q - p. Probability moves to tokens that lack it from their k
  nearest neighbours only. No token gives more than it can spare or receives more than it lacks, so p' lies between p
  and q at every token.
* Nearest first: movement begins with a few nearest neighbours of each token and continues with ever more. A token asks
  its neighbours in proportion to what they can spare; if a neighbour is asked for more than that, all receive the same
  share. Nothing depends on the order of tokens.
* Additive: in all at most delta moves; a round that exceeds the budget is scaled down evenly. Multiplicative: a token x
  receives at most (multiplier - 1) p(x).

The children are then tested in order with p' in place of p, and speculative sampling emits exactly p', however many
children there are. Hence, for the additive rule,

* the total variation between the emitted and the target's distribution is the probability moved, at most delta;
* the first child is accepted with probability (1 - total variation of p and q) + the probability moved, continuous in
  delta and never falling. No rule within delta of p can add more than delta. Later siblings are tested against what is
  left of p', so all children together gain less.

A first child that the exact rule accepts is accepted here with the same random number. At zero relaxation p' is p.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.verifiers.exact import total

_WIDENING = 4  # each round considers this many times the neighbours of the round before


class NeighbourSums:
    """Sums over the nearest neighbours of every token, and over the tokens whose neighbour it is (its admirers).

    Args:
        neighbours: [V, k] int64, nearest first; k >= 1.

    Attributes:
        widths: the numbers of neighbours that sums may run over, rising, the last one k.
    """

    graph_state = ("_near", "_admirers", "_starts")

    def __init__(self, neighbours: Tensor) -> None:
        vocab_size, width = neighbours.shape
        widths: list[int] = []
        while width > 0:
            widths.append(width)
            width //= _WIDENING
        self.widths = tuple(reversed(widths))
        self._near, admirers, starts = neighbours.contiguous(), [], []
        for width in self.widths:
            # The pairs of a width in the order of the neighbour: token i's admirers stand from start[i] on.
            near = neighbours[:, :width].flatten()
            admirers.append(near.argsort(stable=True) // width)
            starts.append(torch.cat([near.new_zeros(1), near.bincount(minlength=vocab_size).cumsum(0)]))
        self._admirers, self._starts = torch.cat(admirers), torch.stack(starts)  # [V times all widths], [widths, V + 1]

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self._near.device

    def over_neighbours(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over its nearest `width` neighbours."""
        return F.embedding_bag(self._near[:, :width], values.T.contiguous(), mode="sum").T

    def over_admirers(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over the tokens with it among their nearest `width`."""
        number, vocab_size = self.widths.index(width), len(self._near)
        tokens = self._admirers[vocab_size * sum(self.widths[:number]) :][: vocab_size * width]
        start = self._starts[number]
        return F.embedding_bag(tokens, values.T.contiguous(), start, mode="sum", include_last_offset=True).T

    def fields(self) -> tuple[Any, ...]:
        """The tables as the kernels take them."""
        return self._near, self._admirers, self._starts, self._near.shape[1], len(self.widths)


class Relaxation:
    """Plays `exact.Relaxing`.

    Args:
        neighbours: of `NeighbourSums`.
        delta, multiplier: of `relaxed_target`.
    """

    graph_state = ("sums",)

    def __init__(self, neighbours: Tensor, delta: float | None, multiplier: float | None) -> None:
        self.sums, self.delta, self.multiplier = NeighbourSums(neighbours), delta, multiplier
        self._limits = torch.tensor([torch.inf if delta is None else delta, multiplier or 0.0])

    def __call__(self, target: Tensor, drawn_from: Tensor) -> Tensor:
        """See `relaxed_target`."""
        return relaxed_target(target, drawn_from, self.sums, delta=self.delta, multiplier=self.multiplier)

    def fields(self) -> tuple[Any, ...]:
        """The tables and the limits as the kernels take them."""
        return *self.sums.fields(), self._limits


def relaxed_target(
    target: Tensor,
    drawn_from: Tensor,
    sums: NeighbourSums,
    *,
    delta: float | None = None,
    multiplier: float | None = None,
) -> Tensor:
    """The relaxed distribution p'; see the module's description.

    Args:
        target: [B, V] p.
        drawn_from: [B, V] q, what the first child was drawn from.
        sums: of the table of neighbours.
        delta: the most that may move.
        multiplier: the most times as probable a token may become. One of the two.

    Returns:
        [B, V]; its sum is that of `target`.
    """
    wanted = drawn_from if multiplier is None else torch.minimum(drawn_from, multiplier * target)
    relaxed, left = target, torch.full_like(target[:, :1], torch.inf if delta is None else delta)
    for width in sums.widths:
        spare = (relaxed - drawn_from).clamp(min=0)
        lacking = (wanted - relaxed).clamp(min=0)
        offered = sums.over_neighbours(spare, width)
        wish = torch.where(offered > _NOTHING, lacking / offered, 0.0)  # of each neighbour's spare probability
        asked = sums.over_admirers(wish, width)
        granted = 1 / asked.clamp(min=1)  # of each wish
        given, received = spare * asked * granted, wish * sums.over_neighbours(spare * granted, width)
        moved = total(given)
        share = torch.where(moved > left, left / moved, 1.0)
        relaxed, left = relaxed + share * (received - given), (left - share * moved).clamp(min=0)
    return relaxed.clamp(min=0)


_NOTHING = 1e-12  # less probability than this is rounding
