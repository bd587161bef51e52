"""GSD: in the acceptance test, a group of look-alike tokens stands for the draft token.

Belongs here: grouped speculative decoding's test ("Grouped speculative decoding for autoregressive image generation",
ICCV 2025). Does not belong here: the walk along the chain (`exact.judge_chain`).

A draft token x, drawn from q, is accepted with probability min(1, p(G) / q(G)). Its group G is x and, of the group_size
// 2 tokens on either side of it in the order of p, those close to x both in probability (|p(y) - p(x)|) and in the
codebook (squared distance). A rejected token is replaced by one from the normalised max(p - q, 0), as in the exact
rule, although the test's rejection probability differs. So the emitted distribution departs from p, and no budget
bounds by how much. A larger group does not always accept more: it helps tokens that q overrates, at the cost of tokens
that q underrates, which were accepted anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.checks import FLOATS, check_bounds, check_tensor, check_vocabulary, is_integer
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.verifiers.exact import ExactVerifier, chain_masses, chain_targets, check_chain, judge_chain


class GroupedVerifier:
    """Accepts by groups. Takes chains whose tokens were drawn at random, with `probabilities`.

    Greedy decoding is exact and takes any chain: p is 1 at one token and 0 at the others, and no group contains both.

    Args:
        vectors: [V, d] of any float type, the codebook.
        group_size: The most tokens of a group, the draft token included (one more at an even size, since both sides are
            equal). At 0 or 1 the rule is exact.
        max_probability_difference: Members differ from the draft token by less than this in p.
        max_distance: Members' vectors have less than this squared distance from the draft token's.

    Raises:
        ValueError: An argument is out of range.
    """

    graph_state = ("vectors",)

    def __init__(
        self, vectors: Tensor, group_size: int, max_probability_difference: float = 0.15, max_distance: float = 0.5
    ) -> None:
        check_tensor("vectors must be", vectors, FLOATS, ("tokens", "dim"))
        if not is_integer(group_size) or group_size < 0:
            raise ValueError(f"group_size must be an integer >= 0 (0 and 1 are exact), got {group_size!r}")
        self.vectors = vectors.float()
        self.group_size = group_size
        self.max_probability_difference = check_bounds("max_probability_difference", max_probability_difference, 0, 1)
        self.max_distance = check_bounds("max_distance", max_distance, 0)

    @property
    def exact(self) -> bool:
        """Whether every group is its draft token alone."""
        return self.group_size <= 1 or self.max_probability_difference == 0 or self.max_distance == 0

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Judge a chain; see the module's description.

        Args:
            draft: A chain of n nodes with `probabilities` [B, n, V], a bare root, or, when greedy, any chain.
            output: `logits` [B, n, V].
            state: Lengths, sampling and random streams.

        Raises:
            ValueError: The draft is no such chain, or the target has another vocabulary than `vectors`.
        """
        check_chain("GroupedVerifier", draft)
        check_vocabulary("vectors", self.vectors, output.logits)
        if state.sampling.is_greedy or draft.tree.max_depth == 0:
            return ExactVerifier().accept(draft, output, state)
        if draft.probabilities is None:
            raise ValueError(
                "GroupedVerifier compares with the distributions the draft tokens were drawn from, but this draft "
                "has no probabilities: use a drafter that samples, or another verifier"
            )
        target = chain_targets(draft.tree, output, state)
        if self.exact:
            return judge_chain(draft, target, state)
        own, proposed = chain_masses(draft, target)
        others = self._group(target[:, :-1], draft.tree.tokens[:, 1 : target.shape[1]], own)
        of_groups = (
            own + _sum_over(target[:, :-1], *others),
            proposed + _sum_over(draft.probabilities[:, 1 : target.shape[1]], *others),
        )
        return judge_chain(draft, target, state, of_groups)

    def _group(self, target: Tensor, tokens: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
        """The other tokens of each draft token's group.

        Args:
            target: [B, L, V]. tokens: [B, L] drafted. masses: [B, L] their probabilities.

        Returns:
            [B, L, m] int64 candidates, and [B, L, m] bool, whether each is a member.
        """
        if self.vectors.device != target.device:
            self.vectors = self.vectors.to(target.device)
        vocab_size = target.shape[-1]
        side = min(self.group_size // 2, vocab_size)
        # Non-negative floats are ordered like their bits; equal ones by index, so that every device sees one order.
        # Two selections of a few tokens cost a fraction of a sort of the vocabulary.
        keys = target.view(torch.int32).long().bitwise_left_shift_(32)
        keys.bitwise_or_(torch.arange(vocab_size - 1, -1, -1, device=target.device))
        # The complement reverses the order: the nearest above and below are both the largest of smaller keys.
        both = torch.stack((keys.bitwise_not(), keys), dim=2)  # [B, L, 2, V]
        own = both.gather(3, tokens[..., None, None].expand(-1, -1, 2, 1))
        nothing = torch.iinfo(torch.int64).min
        nearest = both.masked_fill_(both >= own, nothing).topk(side, dim=3)
        others = nearest.indices.flatten(2)  # [B, L, m]
        exists = nearest.values.flatten(2) > nothing
        difference = (target.gather(2, others) - masses[..., None]).abs()
        distance = (self.vectors[others] - self.vectors[tokens][..., None, :]).square().sum(-1)
        return others, exists & (difference < self.max_probability_difference) & (distance < self.max_distance)


def _sum_over(probabilities: Tensor, tokens: Tensor, is_member: Tensor) -> Tensor:
    """[B, L]: the mass that distributions [B, L, V] give the members among tokens [B, L, m]."""
    return (probabilities.gather(2, tokens) * is_member).sum(2)
