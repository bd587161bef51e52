"""Prompt lookup: the tokens that followed the newest tokens at their last occurrence are drafted again.

Belongs here: finding the last few tokens of a row earlier in the row. Does not belong here: models, and other texts.

The longest suffix of a row, up to `max_ngram_size` tokens, that occurs earlier is looked for, and of several
occurrences the latest counts. The tokens behind it are the draft, a deterministic choice. A draft that reaches the end
of the row continues with itself, so a period is continued. Rows without an occurrence draft nothing.

Source: Saxena 2023, "Prompt lookup decoding" (github.com/apoorvumang/prompt-lookup-decoding), which is transformers'
`prompt_lookup_num_tokens`. Both take the earliest occurrence and stop at the end of the row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_counts
from specdecode.draft_size import DraftSize, DraftSizer
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.tree import TokenTree


class PromptLookupDrafter(Drafter):
    """The Drafter role without a model: chains copied from the row itself.

    Args:
        prompt: [B, T] int64, padded on the left; T may be 0.
        sizer: its depth is the length of the chain.
        attention_mask: [B, T] bool or int64, 0 at padding; None: nothing is padded.
        max_ngram_size: the most tokens of a suffix.

    Raises:
        ValueError: `max_ngram_size` < 1, or a mask of another shape than the prompt.
    """

    def __init__(
        self, prompt: Tensor, sizer: DraftSizer, attention_mask: Tensor | None = None, max_ngram_size: int = 3
    ) -> None:
        check_counts(max_ngram_size=max_ngram_size)
        if attention_mask is not None and attention_mask.shape != prompt.shape:
            raise ValueError(
                f"attention_mask must have the prompt's shape {list(prompt.shape)}, got {list(attention_mask.shape)}"
            )
        # No token is negative, so nothing is found in padding.
        self.prompt = prompt if attention_mask is None else prompt.masked_fill(attention_mask == 0, -1)
        self.sizer = sizer
        self.max_ngram_size = max_ngram_size
        self._size = DraftSize(1, 0)

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Nothing to prepare. Raises ValueError for a prompt of other rows than are decoded."""
        if len(self.prompt) != len(state.tokens):
            raise ValueError(f"prompt must have the target's {len(state.tokens)} rows, got {len(self.prompt)}")

    def propose(self, state: DecodeState) -> Draft:
        """A chain behind each row's newest token."""
        self._size = self.sizer.choose()
        root = state.last_tokens()[:, None]
        if self._size.depth < 1:
            return Draft(TokenTree.chain(root))
        row = torch.cat([self.prompt, state.tokens], 1)  # [B, S]
        last = self.prompt.shape[1] + state.lengths[:, None] - 1  # [B, 1] place of the newest token
        occurrence, found = self._last_occurrence(row, last)
        places = torch.arange(self._size.depth, device=row.device)
        tokens = row.gather(1, occurrence + 1 + places % (last - occurrence))  # [B, depth]
        valid = (found & state.active[:, None]).expand_as(tokens)
        depth = ragged.columns_needed(valid)
        chain = TokenTree.chain(torch.cat([root, tokens[:, :depth]], 1))
        return Draft(chain.clip(torch.where(found[:, 0], depth, 0)))

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Only the sizer learns."""
        self.sizer.observe(self._size, verdict.accepted, draft.tree.valid[:, 0])

    def replace_rows(self, rows: Tensor, other: PromptLookupDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        mine, theirs = self.prompt, other.prompt
        length = max(mine.shape[1], theirs.shape[1])
        mine, theirs = (F.pad(each, (length - each.shape[1], 0), value=-1) for each in (mine, theirs))
        self.prompt = ragged.put_rows(mine, rows, theirs)

    def _last_occurrence(self, row: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Where the suffix that ends at `last` [B, 1] ended before: [B, 1] int64, and whether it did, [B, 1] bool."""
        place = torch.arange(row.shape[1], device=row.device)
        alike = place < last  # [B, S]
        length = torch.zeros_like(row)  # how many tokens up to each place equal those up to `last`
        for back in range(self.max_ngram_size):
            token = row.gather(1, (last - back).clamp(min=0))
            alike = alike & (row.roll(back, 1) == token) & (place >= back)
            length = length + alike
        # The longest, and of several the latest.
        best = (length * row.shape[1] + place).argmax(1, keepdim=True)
        found = length.gather(1, best) > 0
        return torch.where(found, best, last - 1), found
