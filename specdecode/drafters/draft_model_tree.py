"""A draft model that drafts a tree of a fixed shape.

Belongs here: growing the tree level by level. Does not belong here: keeping the model in step with accepted tokens
(`draft_model.py`), and shapes (`tree_shapes.py`).

Children are coupled with the target's draws (`tree_plan.coupled`), which changes none of them. Each level is one
forward pass. A pass keeps nothing that is not committed, so the nodes above are fed again with each level; they are
few, and a pass mostly waits for weights. The last pass is committed after verification: the accepted nodes in it need
not be fed again.

Source: SpecVLM (arXiv 2508.16201), whose release drafts the tree "mc_sim_7b_63" of 25 nodes below the root.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.drafters.draft_model import DraftModel, ModelInStep
from specdecode.drafters.tree_plan import coupled, plan_of
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict


class DraftModelTreeDrafter(ModelInStep, Drafter):
    """The Drafter role by a draft model: trees.

    Args:
        model: with its own prompt and cache, before its prefill; same rows and vocabulary as the target, with room for
            the target's tokens and the nodes of the tree.
        tree: the shape.

    Raises:
        ValueError: a tree wider than the vocabulary.
    """

    def __init__(self, model: DraftModel, tree: StaticTree) -> None:
        if tree.max_children > model.vocab_size:
            raise ValueError(
                f"tree must not be wider than the vocabulary of {model.vocab_size} tokens, got {tree.max_children}"
            )
        super().__init__(model)
        self.tree = tree

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Feed the prompt to the model; the first token waits. Raises ValueError for another vocabulary."""
        super().start(prompt, state)
        self._plan = plan_of(self.tree, state.tokens.device)

    def propose(self, state: DecodeState) -> Draft:
        """The tree behind each row's newest token."""
        plan = self._plan
        logits = self._feed(self._counts, state)[:, None]  # [B, nodes with children, V]
        tokens = [state.last_tokens()[:, None]]
        fed = tokens[0][:, :0]
        mask, depths = torch.ones(1, 0, 0, dtype=torch.bool, device=fed.device), fed[:1]
        for number, level in enumerate(plan.levels):
            tokens.append(level.chosen(coupled(logits, level.width, state, number)))
            if number + 1 == len(plan.levels):
                break
            num_new = len(level.inner)
            mask = torch.cat([torch.nn.functional.pad(mask, (0, num_new)), level.mask], 1)
            fed, depths = torch.cat([fed, level.of_inner(tokens[-1])], 1), torch.cat([depths, level.depths], 1)
            logits = self._judge(fed, mask, depths, state)[:, -num_new:]
        return Draft(plan.tree(torch.cat(tokens, 1), len(plan.levels)))

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Commit the accepted nodes that the model has been fed; the others wait."""
        fed = self._plan.place_fed[verdict.path[:, 1:]]  # [B, depth]
        accepted = torch.arange(fed.shape[1], device=fed.device) < verdict.accepted[:, None]
        kept = (accepted & (fed >= 0)).sum(1)
        if len(self._plan.levels) > 1:
            self.model.commit(fed.clamp(min=0), kept)
        self._wait(verdict, kept, state)

    def _judge(self, tokens: Tensor, mask: Tensor, depths: Tensor, state: DecodeState) -> Tensor:
        """Logits [B, n, V] of the nodes fed so far, each behind the committed sequence.

        Args:
            tokens: [B, n] int64. mask: [1, n, n] bool. depths: [1, n] int64, 0 for the root's children.
        """
        # Nodes past the end of a row see only themselves.
        room = torch.where(state.active, state.ends - 1 - state.lengths, 0)
        stays = depths < room[:, None]  # [B, n]
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        return self.model.forward(tokens, (mask & stays[..., None]) | itself, depths * stays).logits
