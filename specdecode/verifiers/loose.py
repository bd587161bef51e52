"""LVSpec: draft tokens with little relevance to a part of the prompt need not be the target's own.

Belongs here: LVSpec's rule (arXiv 2604.05650, section 3), for any part of a prompt that the answer must follow closely,
its *reference*. The *relevance* of a draft token is the mean of its N highest cosines to the reference's hidden states.
*Centred*, it is by how much that exceeds the mean of all cosines: the paper tells words about a subject from others by
their sharp profile (figure 4), and a high mean is no sharp profile. In each window the share lambda with the least
relevance is *loosened*: accepted whatever the target would draw. A token that the target draws elsewhere in the window
is accepted, too (*position shift*). A loosened token stays as it was drafted, and later tokens are conditioned on it.
Beside the paper's rule stand three settings that are not the paper's. `loosened_by` "entropy" needs no reference: it
loosens the tokens that the target is least sure of. `min_p` is a floor on probability, as samplers know it (arXiv
2407.01082): a draft token that the target finds far less likely than its likeliest is not loosened. `relevant_min_p` is
the same for the relevant tokens, those outside the loosened share, which the paper never loosens.

In a tree each branch from the root to a leaf is judged as a chain, and the one with most accepted tokens stays
(appendix E, which has two branches); of equally long ones the first, which the drafter finds likeliest.

With lambda 0 nothing is loosened or shifted: the result is the exact walk, token for token. End-of-text and other
special tokens are never loosened, so looseness cannot end an answer or keep it from ending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.checks import check_bounds, check_counts
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, draw_tokens
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import chain_length


def relevance_to(hidden_states: Tensor, reference: Tensor, num_nearest: int = 10, centred: bool = False) -> Tensor:
    """[K] float32: the mean of each token's highest cosines to the reference's tokens.

    Args:
        hidden_states: [K, dim] hidden states of draft tokens.
        reference: [m, dim], of tokens of the prompt, after the same layer.
        num_nearest: how many cosines count; all, where there are fewer.
        centred: take the mean of all cosines off. Where all of them count, each relevance is 0.
    """
    return _relevance(hidden_states, F.normalize(reference.float(), dim=-1), num_nearest, centred)


def _relevance(hidden_states: Tensor, directions: Tensor, num_nearest: int, centred: bool) -> Tensor:
    """The same as `relevance_to`, of unit vectors float32."""
    cosines = F.normalize(hidden_states.float(), dim=-1) @ directions.mT  # [K, m]
    nearest = cosines.topk(min(num_nearest, cosines.shape[-1]), dim=-1).values.mean(-1)
    if not centred:
        return nearest
    if cosines.shape[-1] <= num_nearest:  # two means of the same numbers: their difference would be rounding alone
        return torch.zeros_like(nearest)
    return nearest - cosines.mean(-1)


def _branches(tree: TokenTree) -> Tensor:
    """[B, P, max_depth + 1] int64: the nodes from the root to each leaf, -1 behind it; of a chain, P is 1."""
    if not tree.is_chain:
        return tree.leaf_paths()
    places = torch.arange(tree.num_nodes, device=tree.device).expand_as(tree.valid)
    there = places.masked_fill(~tree.valid, -1)[:, None, : chain_length(tree) + 1]
    return F.pad(there, (0, tree.max_depth + 1 - there.shape[-1]), value=-1)


def _at(values: Tensor, nodes: Tensor) -> Tensor:
    """[B, P, D]: values [B, n] at nodes [B, P, D]."""
    return values[:, None].expand(-1, nodes.shape[1], -1).gather(2, nodes)


def _share_of_likeliest(logits: Tensor, drafted: Tensor, before: Tensor) -> Tensor:
    """[B, P, D]: each draft token's probability over the likeliest token's, at the node [B, P, D] before it."""
    rows = torch.arange(len(logits), device=logits.device)[:, None, None]
    return (logits[rows, before, drafted] - _at(logits.amax(-1), before)).exp()


@dataclass(eq=False)
class LooseVerifier:
    """LVSpec's acceptance of a chain, or of one branch of a tree.

    Args:
        reference: gives [m, dim] hidden states of the target's prefill for each row. They are normalised once.
        loose_ratio: lambda, the share of a window or branch that is loosened, 0 to 1, rounded down.
        num_nearest: N, how many tokens of the reference count for a draft token's relevance.
        position_shift: accept a token that the target draws elsewhere in the window, unless lambda is 0.
        protected_tokens: end-of-text and other special tokens, which are never loosened: neither draft tokens nor the
            target's.
        relevance_from: "token": the hidden state at the draft token; "prediction": the one that predicted it. The paper
            does not say which; its text suggests the first.
        centred: see `relevance_to`; the paper's equation 8 is not.
        loosened_by: "relevance": the least relevant draft tokens; "entropy": those in whose place the target's logits
            have most entropy.
        min_p: a loosened token's probability is at least this share of the likeliest token's, 0 to 1, as the target's
            logits give both; 0 asks for nothing.
        relevant_min_p: tokens outside the loosened share are accepted, too, from this share on; 1 accepts only what the
            target draws.

    Raises:
        ValueError: a number out of range, or an unknown word.
    """

    reference: Callable[[], Sequence[Tensor]]
    loose_ratio: float = 0.7
    num_nearest: int = 10
    position_shift: bool = True
    protected_tokens: Sequence[int] = ()
    relevance_from: str = "token"
    centred: bool = False
    loosened_by: str = "relevance"
    min_p: float = 0.0
    relevant_min_p: float = 1.0

    def __post_init__(self) -> None:
        if self.loosened_by not in ("relevance", "entropy"):
            raise ValueError(f'loosened_by must be "relevance" or "entropy", got {self.loosened_by!r}')
        if self.relevance_from not in ("token", "prediction"):
            raise ValueError(f'relevance_from must be "token" or "prediction", got {self.relevance_from!r}')
        check_counts(num_nearest=self.num_nearest)
        for name in ("loose_ratio", "min_p", "relevant_min_p"):
            check_bounds(name, getattr(self, name), 0, 1)
        self._protected: Tensor | None = None
        self._directions: dict[int, tuple[Tensor, Tensor]] = {}  # by row: a reference and its unit vectors

    @property
    def exact(self) -> bool:
        """Whether lambda is 0."""
        return self.loose_ratio == 0

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Accept the longest start of a branch whose every token is the target's, loosened or shifted.

        Args:
            draft: a tree of n nodes, each a deterministic choice.
            output: `logits` [B, n, V] and `hidden_states` [B, n, dim].
            state: lengths, sampling and random streams. A node at depth d is followed by output position d further on,
                whose random number all branches share.

        Raises:
            ValueError: the draft's tokens were drawn at random, or hidden states are missing.
        """
        if draft.probabilities is not None:
            raise ValueError("LooseVerifier judges likeliest tokens, but these were drawn: draft with children top")
        tree = draft.tree
        counters = state.lengths[:, None] + tree.depth
        choices = draw_tokens(output.logits, state.sampling, state.streams, counters, Tag.TARGET)  # [B, n]
        paths = _branches(tree)  # [B, P, D + 1]
        there, paths = paths[..., 1:] >= 0, paths.clamp(min=0)
        drafted, wanted = _at(tree.tokens, paths[..., 1:]), _at(choices, paths[..., :-1])  # [B, P, D]
        matches = drafted == wanted
        passes = matches
        if tree.max_depth and not self.exact:
            allowed = ~self._is_protected(drafted) & ~self._is_protected(wanted)
            loosened = self._loosened(output, paths, there)
            if self.min_p or self.relevant_min_p < 1:
                share = _share_of_likeliest(output.logits, drafted, paths[..., :-1])
                loosened = loosened & (share >= self.min_p)
                if self.relevant_min_p < 1:  # at 1 a likeliest token would pass where the target drew another
                    loosened = loosened | (share >= self.relevant_min_p)
            passes = passes | (allowed & loosened)
            if self.position_shift:
                elsewhere = ((wanted[..., :, None] == drafted[..., None, :]) & there[..., None, :]).any(-1)
                passes = passes | (allowed & elsewhere)
        accepted = (passes & there).cumprod(-1).sum(-1)  # [B, P]
        longest = accepted.amax(1, keepdim=True)
        rows = torch.arange(tree.batch_size, device=tree.device)
        chosen = (accepted == longest).int().argmax(1)  # the first of them
        path, count = paths[rows, chosen], longest[:, 0]
        relaxed = (passes & ~matches)[rows, chosen]
        return Verdict(path, count, choices[rows, path[rows, count]], relaxed)

    def _is_protected(self, tokens: Tensor) -> Tensor:
        """bool like `tokens`."""
        if self._protected is None or self._protected.device != tokens.device:  # once: a copy waits for a device
            self._protected = torch.tensor(self.protected_tokens, dtype=tokens.dtype, device=tokens.device)
        return torch.isin(tokens, self._protected)

    def _loosened(self, output: TargetOutput, paths: Tensor, there: Tensor) -> Tensor:
        """[B, P, D] bool: the least relevant or the least sure draft tokens, as many as lambda of each branch."""
        if self.loose_ratio == 1:
            return there
        if self.loosened_by == "entropy":  # how sure the target is of a token is said by the row before it
            log_probabilities = output.logits.log_softmax(-1)
            sureness = (log_probabilities.exp() * log_probabilities.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
            of_branch = _at(sureness, paths[..., :-1])
        else:
            rows = paths[..., 1:] if self.relevance_from == "token" else paths[..., :-1]
            of_branch = _at(self._relevance(output), rows)
        rank = of_branch.masked_fill(~there, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
        # The millionth makes 0.7 * 10, which is 6.999..., 7.
        count = (self.loose_ratio * there.sum(-1, keepdim=True) + 1e-6).floor()
        return (rank < count) & there

    def _relevance(self, output: TargetOutput) -> Tensor:
        """[B, n] of every node."""
        if output.hidden_states is None:
            raise ValueError("LooseVerifier reads the target's hidden states, but this target gives none")
        pairs = zip(output.hidden_states, self._unit_vectors(), strict=True)
        rows = [_relevance(of_row, directions, self.num_nearest, self.centred) for of_row, directions in pairs]
        return torch.stack(rows)

    def _unit_vectors(self) -> list[Tensor]:
        """The unit vectors of each row's reference, [m, dim] float32."""
        references = self.reference()
        for row, reference in enumerate(references):
            if row not in self._directions or self._directions[row][0] is not reference:
                self._directions[row] = reference, F.normalize(reference.float(), dim=-1)
        return [self._directions[row][1] for row in range(len(references))]
