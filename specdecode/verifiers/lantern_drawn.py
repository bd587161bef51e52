"""LANTERN for children that were drawn at random: probability moves to where the drafter looks for it.

Belongs here: the distribution that stands for the target's where the drafter's is known. Does not belong here: the
tests of the children, which are the exact ones (`exact.multi_round_walk`), and the rule for any children (`lantern`).

Why drawn children need a rule of their own. The one-draw form of `lantern` draws from the target first and then looks
for the drawn token, or a look-alike of it, among the children: it accepts a child x with probability p(x) or little
more, where the test against the distribution q that x was drawn from, min(1, p(x) / q(x)), accepts most of a good
drafter's guesses. LANTERN's own remedy (arXiv 2410.03355; LANTERN++, arXiv 2502.06352, with drawn children) is to test
with the aggregated probability of x and its neighbours, min(1, p(A(x)) / q(x)). Its budget holds for each x on its own:
every child has its own relaxed target, what is emitted is none of them, and its total variation from p may be more than
twice delta (tests/specdecode/test_lantern_drawn.py has examples).

The rule here. At a node with the target's distribution p and its first child's distribution q there is *one* relaxed
distribution p' for all children, made from p and q alone, not from the tokens that were drawn:

* A token with p > q has p - q to spare, one with p < q lacks q - p. What is to spare moves to tokens that lack it, if
  they look alike: a token receives from its k nearest neighbours only. Nobody gives more than it has to spare nor
  receives more than it lacks, so p' lies between p and q at every token.
* Nearest first: movement begins with a few of the nearest neighbours of each token and goes on with ever more of them.
  Among equals, a token asks its neighbours in proportion to what they have to spare, and where one is asked for more
  than that, all who ask get the same share of it. Nothing depends on the order of tokens.
* Additive: in all at most delta moves; what the budget does not cover of a round is cut evenly. Multiplicative: a token
  x receives at most (multiplier - 1) p(x).

Then the children are tested in order with p' in place of p: accepted with probability min(1, p'(x) / q(x)), after a
rejection p' <- normalised max(p' - q, 0), at last a draw from what is left.

What is emitted at a node is p', exactly: speculative sampling emits the distribution it tests against, however many
children there are, with or without replacement. Hence, for the additive rule,

* the total variation between the emitted and the target's distribution at a node is the probability moved, at most
  delta;
* the first child is accepted with probability sum min(p', q) = (1 - total variation of p and q) + the probability
  moved: continuous in delta and never falling. No rule within delta of p can add more than delta, so this one is the
  best there is as long as look-alikes have enough to spare. Later siblings are tested against what is left of p', so
  all children together gain less.

A first child that the exact rule accepts is accepted here with the same random number. At zero relaxation p' is p.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_WIDENING = 4  # how many times as many neighbours a round looks at as the one before


class NeighbourSums:
    """Sums over every token's nearest neighbours, and over those that it is a neighbour of.

    Args:
        neighbours: [V, k] int64, nearest first; k >= 1.

    Attributes:
        widths: the numbers of neighbours that sums may run over, rising, the last one k.
    """

    def __init__(self, neighbours: Tensor) -> None:
        vocab_size, width = neighbours.shape
        widths: list[int] = []
        while width > 0:
            widths.append(width)
            width //= _WIDENING
        self.widths = tuple(reversed(widths))
        self._near: dict[int, Tensor] = {}
        self._admirers: dict[int, tuple[Tensor, Tensor]] = {}
        for width in self.widths:
            near = neighbours[:, :width].contiguous()
            self._near[width] = near
            # The same pairs in the order of the neighbour: token i's admirers stand from start[i] on.
            order = near.flatten().argsort(stable=True)
            start = torch.cat([near.new_zeros(1), near.flatten().bincount(minlength=vocab_size).cumsum(0)])
            self._admirers[width] = (order // width, start)

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        return self._near[self.widths[-1]].device

    def over_neighbours(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over its nearest `width` neighbours."""
        return F.embedding_bag(self._near[width], values.T.contiguous(), mode="sum").T

    def over_admirers(self, values: Tensor, width: int) -> Tensor:
        """[B, V]: for each token the sum of `values` [B, V] over those that have it among their nearest `width`."""
        tokens, start = self._admirers[width]
        return F.embedding_bag(tokens, values.T.contiguous(), start, mode="sum", include_last_offset=True).T


def relaxed_target(
    target: Tensor,
    drawn_from: Tensor,
    sums: NeighbourSums,
    *,
    delta: float | None = None,
    multiplier: float | None = None,
) -> Tensor:
    """p': the target's distribution with probability moved to look-alikes that lack it; see the module's description.

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
