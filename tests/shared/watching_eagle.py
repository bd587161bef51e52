"""An EAGLE drafter that keeps what it drafted and saw, for comparison with a form without a cache."""

from __future__ import annotations

from torch import Tensor

from specdecode.drafters.eagle import EagleDrafter
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict


class Watching(EagleDrafter):
    """Keeps every tree it drafted, with the lengths of the rows at that moment, and all target features."""

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        super().start(prompt, state)
        self.prompt = prompt
        self.trees: list[tuple[Draft, Tensor]] = []
        # Features of the committed tokens, by row.
        self.known: dict[int, list[Tensor]] = {row: [] for row in range(len(state.lengths))}

    def propose(self, state: DecodeState) -> Draft:
        draft = super().propose(state)
        self.trees.append((draft, state.lengths.clone()))
        return draft

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        super().observe(draft, output, verdict, state)
        features = self.head.features(output)
        for row, count in enumerate(((verdict.accepted + 1) * draft.tree.valid[:, 0]).tolist()):
            self.known[row] += list(features[row, verdict.path[row, :count]])
