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

import torch
import torch.nn.functional as F
from torch import Tensor

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
        self._near: dict[int, Tensor] = {}
        self._admirers: dict[int, Tensor] = {}
        self._starts: dict[int, Tensor] = {}
        for width in self.widths:
            near = neighbours[:, :width].contiguous()
            self._near[width] = near
            # The same pairs in the order of the neighbour: token i's admirers stand from start[i] on.
            order = near.flatten().argsort(stable=True)
            start = torch.cat([near.new_zeros(1), near.flatten().bincount(minlength=vocab_size).cumsum(0)])
            self._admirers[width], self._starts[width] = order // width, start

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self._near[self.widths[-1]].device

    def over_neighbours(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over its nearest `width` neighbours."""
        return F.embedding_bag(self._near[width], values.T.contiguous(), mode="sum").T

    def over_admirers(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over the tokens with it among their nearest `width`."""
        tokens, start = self._admirers[width], self._starts[width]
        return F.embedding_bag(tokens, values.T.contiguous(), start, mode="sum", include_last_offset=True).T


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
        total = given.sum(1, keepdim=True)
        share = torch.where(total > left, left / total, 1.0)
        relaxed, left = relaxed + share * (received - given), (left - share * total).clamp(min=0)
    return relaxed.clamp(min=0)


_NOTHING = 1e-12  # less probability than this is rounding
