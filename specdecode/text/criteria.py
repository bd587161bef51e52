"""A batch whose rows end by stopping criteria, too: functions of the text so far, as transformers has them.

Belongs here: where in a step's tokens a criterion holds. Does not belong here: stop tokens (`loop.py`), and which
criteria a call wants (`specdecode.text.generate_arguments`).

A criterion is asked about every token by itself, each once and in order, as in plain decoding, although a step may
bring several. Tokens of the same step behind the one at which a criterion holds are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specdecode.loop import DecodeRun, new_tokens
from specdecode.roles import Target
from specdecode.text.processed import Scores, Texts
from specdecode.tree import TokenTree

Criteria = Callable[[Tensor, tuple[Tensor, ...] | None], Tensor]
"""A function that tells which texts [B, length] int64 end, [B] bool; it gets the scores of new tokens if kept."""


class CriteriaRun(DecodeRun):
    """A `DecodeRun` with criteria.

    Args:
        target: see `DecodeRun`.
        criteria: asked about every new token.
        texts: the prompts.
        scores: given to criteria; None: none are kept.
        settings: the other arguments of `DecodeRun`.

    Raises:
        ValueError: as `DecodeRun`.
    """

    def __init__(
        self, target: Target, *, criteria: Criteria, texts: Texts, scores: Scores | None = None, **settings: Any
    ) -> None:
        super().__init__(target, **settings)
        self.criteria, self.texts, self.scores = criteria, texts, scores
        self.may_stop = True

    def _append(
        self,
        tree: TokenTree,
        path: Tensor | None,
        accepted: Tensor,
        next_tokens: Tensor | None,
        counts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `DecodeRun._append`; a row ends with the first token at which a criterion holds."""
        assert next_tokens is not None
        tokens = new_tokens(tree, path, accepted * self.state.active, next_tokens)
        kept, ended = self._cut(tokens, (accepted + 1) * self.state.active)
        # The last token that stays is now the one behind the accepted ones.
        last = (kept - 1).clamp(min=0)
        result = super()._append(tree, path, last, tokens.gather(1, last[:, None])[:, 0], counts)
        self.state.active, self.state.least_room = self.state.active & ~ended, None
        return result

    def _cut(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """How many of the tokens [B, k] each row keeps of `counts` [B], and which rows end with them, [B] bool."""
        state, device = self.state, tokens.device
        lengths, kept = state.lengths.tolist(), counts.tolist()
        ended = [False] * len(kept)
        stops = (torch.zeros_like(tokens) if self.stops is None else torch.isin(tokens, self.stops)).tolist()
        text = torch.zeros(len(lengths), max(lengths) + tokens.shape[1], dtype=torch.int64, device=device)
        text[:, : max(lengths)] = state.tokens[:, : max(lengths)]
        text.scatter_(1, state.lengths[:, None] + torch.arange(tokens.shape[1], device=device), tokens)
        rows, number = [row for row, count in enumerate(kept) if count > 0], 0
        while rows:
            known = [length + min(number + 1, count) for length, count in zip(lengths, kept, strict=True)]
            for texts, members in self.texts.of(text, known, rows):
                num_new = texts.shape[1] - self.texts.prompts.shape[1]
                scores = None if self.scores is None else tuple(self.scores.scores[:num_new])
                holds = self.criteria(texts, scores).tolist()
                for row in members:
                    if holds[row]:
                        kept[row], ended[row] = number + 1, True
            rows = [row for row in rows if number + 1 < kept[row] and not stops[row][number]]
            number += 1
        return torch.tensor(kept, device=device), torch.tensor(ended, device=device)
