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
from specdecode.checks import FLOATS, INTEGERS, check_counts, check_tensor
from specdecode.drafters.draft_size import DraftSize, DraftSizer
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.kernels import fused_ops
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.tree import TokenTree


class PromptLookupDrafter(Drafter):
    """The Drafter role without a model: chains copied from the row itself.

    Args:
        prompt: [B, T] int64, padded on the left; T may be 0.
        sizer: its depth is the length of the chain; or one that chooses it by how many tokens matched. On other devices
            than a CPU that one is not asked, since it would wait: the longest chain is drafted.
        attention_mask: [B, T] bool or int64, 0 at padding; None: nothing is padded.
        max_ngram_size: the most tokens of a suffix; None: 3, or as many as make a difference to the sizer.

    Raises:
        ValueError: `max_ngram_size` < 1, a prompt that is no tokens [B, T], or a mask of another shape.
    """

    def __init__(
        self,
        prompt: Tensor,
        sizer: DraftSizer | LookupDraftLength,
        attention_mask: Tensor | None = None,
        max_ngram_size: int | None = None,
    ) -> None:
        if max_ngram_size is None:
            max_ngram_size = sizer.matched if isinstance(sizer, LookupDraftLength) else 3
        check_counts(max_ngram_size=max_ngram_size)
        check_tensor("prompt must be tokens", prompt, INTEGERS, ("batch", "length"))
        if attention_mask is not None:
            kinds = (*INTEGERS, torch.bool, *FLOATS)  # as models do
            check_tensor("attention_mask must be", attention_mask, kinds, tuple(prompt.shape))
        # No token is negative, so nothing is found in padding.
        self.prompt = prompt if attention_mask is None else prompt.masked_fill(attention_mask == 0, -1)
        self.sizer = sizer
        self.max_ngram_size = max_ngram_size
        self._size = DraftSize(1, 0)

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """Nothing to prepare. Raises ValueError for a prompt of other rows than are decoded."""
        if len(self.prompt) != len(state.tokens):
            raise ValueError(f"prompt must have the target's {len(state.tokens)} rows, got {len(self.prompt)}")
        if isinstance(self.sizer, LookupDraftLength):
            self.sizer.start()

    def propose(self, state: DecodeState) -> Draft:
        """A chain behind each row's newest token."""
        root = state.last_tokens()[:, None]
        if isinstance(self.sizer, LookupDraftLength):
            return self.propose_behind(state, *self.last_occurrence(state))
        self._size = self.sizer.choose()
        if self._size.depth < 1:
            return Draft(TokenTree.chain(root))
        return self._copied(root, state, self._size.depth, *self.last_occurrence(state))

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Only the sizer learns."""
        if not isinstance(self.sizer, LookupDraftLength):
            self.sizer.observe(self._size, verdict.accepted, draft.tree.valid[:, 0])
        elif draft.tree.device.type == "cpu":
            self.sizer.observe(self._match, draft.tree.valid[:, 1:].sum(1), verdict.accepted)

    def propose_behind(self, state: DecodeState, occurrence: Tensor, match: Tensor) -> Draft:
        """A chain as long as the `LookupDraftLength` says, behind what `last_occurrence` gave."""
        root, sizer, self._match = state.last_tokens()[:, None], self.sizer, match
        assert isinstance(sizer, LookupDraftLength)
        depth = sizer.longest
        if root.device.type == "cpu":
            depth = sizer.choose(self._match[state.active].tolist())
            room = (state.ends - 1 - state.lengths)[state.active]
            depth = min(depth, int(room.max())) if len(room) else 0
            sizer.begin(depth)
        return self._copied(root, state, depth, occurrence, match) if depth else Draft(TokenTree.chain(root))

    def _copied(self, root: Tensor, state: DecodeState, depth: int, occurrence: Tensor, match: Tensor) -> Draft:
        """What followed `occurrence` [B, 1] in each row, as far as `match` [B] tokens before it are those before the
        end."""
        row, last = self._rows(state)
        found = (match > 0)[:, None]
        places = torch.arange(depth, device=row.device)
        tokens = row.gather(1, occurrence + 1 + places % (last - occurrence))  # [B, depth]
        valid = (found & state.active[:, None]).expand_as(tokens)
        depth = ragged.columns_needed(valid)
        chain = TokenTree.chain(torch.cat([root, tokens[:, :depth]], 1))
        return Draft(chain.clip(torch.where(found[:, 0], depth, 0)))

    def _rows(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        """[B, S]: the rows, and the place of each one's newest token, [B, 1]."""
        return torch.cat([self.prompt, state.tokens], 1), self.prompt.shape[1] + state.lengths[:, None] - 1

    def replace_rows(self, rows: Tensor, other: PromptLookupDrafter) -> None:
        """See `specdecode.roles.RowReplacing`."""
        mine, theirs = self.prompt, other.prompt
        length = max(mine.shape[1], theirs.shape[1])
        mine, theirs = (F.pad(each, (length - each.shape[1], 0), value=-1) for each in (mine, theirs))
        self.prompt = ragged.put_rows(mine, rows, theirs)

    def last_occurrence(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        """Where the suffix of each row ended before, [B, 1] int64, and how many tokens match there, [B] int64."""
        row, last = self._rows(state)
        if (known := fused_ops.occurrence(row, last, self.max_ngram_size)) is not None:
            return known[0][:, None], known[1]
        place = torch.arange(row.shape[1], device=row.device)
        alike = place < last  # [B, S]
        length = torch.zeros_like(row)  # how many tokens up to each place equal those up to `last`
        for back in range(self.max_ngram_size):
            token = row.gather(1, (last - back).clamp(min=0))
            alike = alike & (row.roll(back, 1) == token) & (place >= back)
            length = length + alike
        # The longest, and of several the latest.
        best = (length * row.shape[1] + place).argmax(1, keepdim=True)
        match = length.gather(1, best)
        return torch.where(match > 0, best, last - 1), match[:, 0]
