"""The grammar of a picture on one model: which tokens are drawn and which are forced, and their ids in its vocabulary.

Belongs here: the tokens that the loop sees, which are codes 0 to C - 1 and, where the family has it, the end-of-row
token C; and looking ids up by a description. Does not belong here: descriptions, prompts, passes (`target.py`).

A picture of h rows of w codes has a beginning, which belongs to the prompt; then rows, each with its end-of-row
token; then a token that ends it. All tokens after the last code are forced, so decoding ends with that code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vargen.base.errors import UserError
from vargen.models.token_images.description import TokenImageFamily


@dataclass(frozen=True)
class ImageVocabulary:
    """Ids of image tokens.

    Args:
        ids: int64 [C + 1], of each code and of the end-of-row token; [C] without one.
        has_row_end: whether the last is an end-of-row token.
        ends_last_row: whether the last row has one, too.
        end: id of the token that ends a picture; None: there is none.
    """

    ids: Tensor
    has_row_end: bool
    ends_last_row: bool = False
    end: int | None = None

    @cached_property
    def _on_device(self) -> dict[torch.device, Tensor]:
        return {}

    def ids_on(self, device: torch.device) -> Tensor:
        """`ids` on a device: the same tensor at every call, since captured graphs read it where it lies."""
        if device not in self._on_device:
            self._on_device[device] = self.ids.to(device)
        return self._on_device[device]

    @property
    def num_codes(self) -> int:
        """C."""
        return len(self.ids) - self.has_row_end

    @property
    def row_end(self) -> int | None:
        """The token at the end of a row, by the loop's number; None: rows follow each other.

        It is forced, so it can stand in for a row's last token before that token is known (two-dimensional decoding).
        """
        return self.num_codes if self.has_row_end else None

    def forced_tokens(self, height: int, width: int, device: torch.device | str) -> Tensor:
        """[N] int64 of a picture of height x width codes: the end-of-row token where a row ends, -1 at codes. The
        last is a code."""
        if not self.has_row_end:
            return torch.full((height * width,), -1, device=device)
        rows = torch.full((height, width + 1), -1, device=device)
        rows[:, width] = self.num_codes
        return rows.flatten()[:-1]

    def codes(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Codes [B, height, width] among drawn tokens [B, N]."""
        if self.has_row_end:
            tokens = F.pad(tokens, (0, 1)).view(-1, height, width + 1)[..., :width]
        return tokens.reshape(-1, height, width)

    def text(self, tokens: Tensor) -> Tensor:
        """[B, M] int64: a picture's ids, from its first code to its end, of drawn tokens [B, N]."""
        forced = [] if self.row_end is None or not self.ends_last_row else [self.row_end]
        ids = self.ids_on(tokens.device)[torch.cat((tokens, tokens.new_tensor(forced).expand(len(tokens), -1)), 1)]
        return ids if self.end is None else F.pad(ids, (0, 1), value=self.end)


def vocabulary_of(family: TokenImageFamily, model: Any, tokenizer: Any = None) -> ImageVocabulary:
    """The image tokens of a model.

    Args:
        model: of transformers.
        tokenizer: if there is one, it must know the special tokens of the family, under their ids.

    Raises:
        UserError: the model or the tokenizer has other tokens than the family.
    """
    special = {name: _id_of(family, name, model, tokenizer) for name in family.special_tokens}
    codes = _ids_of_codes(family, model, special, tokenizer)
    return ImageVocabulary(
        ids=torch.tensor(codes if family.row_end is None else [*codes, special[family.row_end]]),
        has_row_end=family.row_end is not None,
        ends_last_row=family.ends_last_row,
        end=None if family.end is None else special[family.end],
    )


def _ids_of_codes(family: TokenImageFamily, model: Any, special: dict[str, int | None], tokenizer: Any) -> list[int]:
    first, count = family.codes.first, family.codes.count
    vocab_size = int(model.config.get_text_config().vocab_size)
    if first == "named":
        named = model.model.vocabulary_mapping.img2bpe
        count = model.model.vqmodel.config.codebook_size if count is None else count
        if sorted(named) != list(range(count)) or (family.row_end is not None and special[family.row_end] is None):
            raise UserError(
                f"model must name each of its {count} codes and the end of a line in vocabulary_map of its "
                f"config.json, which has {len(named)} codes; without them it cannot draw"
            )
        return [named[code] for code in range(count)]
    assert count is not None
    if first == "last":
        first = vocab_size - count
    if family.codes.behind_text and tokenizer is not None:
        first = len(tokenizer)
    if first <= 0 or first + count > vocab_size:
        raise UserError(
            f"model must have the {count:,} codes of {family.title} from number {first:,} of its vocabulary on, of "
            f"{vocab_size:,} tokens; name a model of this family, such as {family.example}, with its own tokenizer"
        )
    return [*range(first, first + count)]


def _id_of(family: TokenImageFamily, name: str, model: Any, tokenizer: Any) -> int | None:
    """The number in config.json's `vocabulary_map`, else the tokenizer's, else the published one. All must agree."""
    published = family.special_tokens[name]
    listed = (getattr(model.config, "vocabulary_map", None) or {}).get(name)
    found = None
    if tokenizer is not None:
        found = tokenizer.convert_tokens_to_ids(name)
        if found is None or (found == tokenizer.unk_token_id and name != tokenizer.unk_token):
            raise UserError(
                f"tokenizer must have the token {name}, which prompts of {family.title} need; load the tokenizer that "
                f"came with the model"
            )
    known = [each for each in (listed, found, published) if each is not None]
    if any(each != known[0] for each in known):
        raise UserError(
            f"model must be one of {family.title}, whose token {name} is number {known[-1]}; its files say {known[0]}"
        )
    return known[0] if known else None
