"""Cool-SD: a relaxed acceptance ratio that cools along the draft.

Belongs here: the weights of "Annealed relaxation of speculative decoding for faster autoregressive image generation"
(AAAI 2026, arXiv 2601.09212) and their residual. Does not belong here: the walk along the chain (`exact.judge_chain`).

Draft token i = 0, 1, ... is accepted with probability f_i(x) = min(1, w_i p(x) / q(x)), and a rejected one is replaced
by a token from the normalised max(p - q f_i, 0), which the paper proves best. With weights that fall along the draft,
the same accepted length costs less total variation than with equal ones.

The weights are w_i = delta exp(-decay i - mu). The text at hand does not say how the paper sets mu. Our reading: mu
makes the mean of exp(-decay i - mu) over the draft 1. So delta is the mean weight, and `decay` only shifts relaxation
to the front.

A weight w_i < 1 keeps the rule exact: q f_i = min(q, w_i p) never exceeds p, so the residual supplies all that is
missing. Only w_i > 1 gives some token more than p, which no residual can take back. So delta <= 1 with decay 0 is exact
(1 is the exact rule), and with a decay > 0 the front of the draft is relaxed even at delta = 1.

Deterministic children (`draft.probabilities` None) have q = 1: x is accepted with probability min(1, w p(x)), else a
token is drawn from p without x. Both happen in one draw, with plain decoding's random number, from p with the odds of x
raised until it has min(1, w p(x)). For w < 1 nothing is raised: rejecting x only to draw it again would end the draft
for nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.checks import check_bounds
from specdecode.ragged import constant
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, sample
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import (
    ExactVerifier,
    chain_by_token,
    chain_counters,
    chain_follows,
    chain_length,
    chain_masses,
    chain_targets,
    check_chain,
    judge_chain,
)


class AnnealedVerifier:
    """Accepts by a weighted ratio. Takes chains, deterministic or drawn at random (then with `probabilities`).

    Greedy decoding leaves nothing to relax (p is 0 at all tokens but one), so there it is exact.

    Args:
        delta: Mean weight over the positions of a draft, > 0; above 1 more is accepted than exactness allows.
        decay: The paper's nu, >= 0: how quickly the weights fall; 0 makes them equal.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(self, delta: float, decay: float = 0.7) -> None:
        self.delta = check_bounds("delta", delta, 0)
        self.decay = check_bounds("decay", decay, 0)
        if self.delta == 0:
            raise ValueError("delta must be > 0; at 0 nothing would ever be accepted (1 with decay 0 is exact)")

    @property
    def exact(self) -> bool:
        """Whether no weight exceeds 1, whatever the length of the draft."""
        return self.delta <= 1 and self.decay == 0

    def weights(self, length: int) -> list[float]:
        """w_0, w_1, ... for a draft of `length` tokens."""
        cooling = [math.exp(-self.decay * position) for position in range(length)]
        return [self.delta * (value * length / sum(cooling)) for value in cooling]

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Judge a chain; see the module's description.

        Args:
            draft: A chain of n nodes; `probabilities` [B, n, V] where its tokens were drawn at random.
            output: `logits` [B, n, V].
            state: Lengths, sampling and random streams.

        Raises:
            ValueError: The draft is no chain.
        """
        check_chain("AnnealedVerifier", draft)
        if state.sampling.is_greedy or draft.tree.max_depth == 0:
            return ExactVerifier().accept(draft, output, state)
        target = chain_targets(draft.tree, output, state)
        weights = _weights(self, chain_length(draft.tree), target.device)
        if draft.probabilities is None:
            return _one_draw_chain(draft.tree, target, weights, state)
        own, proposed = chain_masses(draft, target)
        return judge_chain(draft, target, state, (weights * own, proposed), weights)


@constant
def _weights(verifier: AnnealedVerifier, length: int, device: torch.device) -> Tensor:
    """[L] float32, kept, since every new one has to be copied to a GPU."""
    return torch.tensor(verifier.weights(length), device=device)


def _one_draw_chain(tree: TokenTree, target: Tensor, weights: Tensor, state: DecodeState) -> Verdict:
    """One draw after each node of a chain of deterministic tokens.

    Args:
        tree: The chain.
        target: [B, L + 1, V].
        weights: [L].
        state: Lengths and random streams.
    """
    tokens = tree.tokens[:, 1 : target.shape[1], None]  # [B, L, 1]
    mass = target[:, :-1].gather(2, tokens)
    # After the end of a chain there is no token to be favoured.
    weight = torch.where(chain_follows(tree), weights.clamp(min=1), 1.0)[..., None]
    share = weight * mass
    # The race needs no normalisation: raising x alone by the ratio of the odds gives it its share of the whole. At
    # weight 1 the ratio is 1 to the last bit. A certain winner gets infinite odds.
    odds = mass * weight * ((1 - mass) / (1 - share))
    raised = target[:, :-1].scatter(2, tokens, torch.where(share < 1, odds, torch.inf))
    counters = chain_counters(tree, state)
    noise = state.streams.exponential(Tag.TARGET, counters, target.shape[-1])
    verdict = chain_by_token(tree, sample(torch.cat([raised, target[:, -1:]], dim=1), noise))
    lent = sample(target[:, :-1], noise[:, :-1]) != tokens[..., 0]
    return replace(verdict, relaxed=F.pad(lent, (0, tree.max_depth - lent.shape[1])))
