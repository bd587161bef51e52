"""Emu3's image tokens: codes, the mark that ends a line, and the names of both in the text vocabulary.

Belongs here: the tokens that the loop sees, which are codes 0 to C - 1 and the mark C, and how a picture is a sequence
of them. Does not belong here: passes (`target.py`) and pixels (`vq.py`).

A picture of h lines of w codes is h times w codes and a mark, then three tokens that end the frame, the image and the
text. All tokens after the last code are known, so decoding ends with that code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration

from vargen.base.errors import UserError


@dataclass(frozen=True)
class ImageVocabulary:
    """Names of image tokens.

    Args:
        names: [C + 1] int64, text tokens of each code and of the mark.
    """

    names: Tensor

    @classmethod
    def of(cls, model: Emu3ForConditionalGeneration) -> ImageVocabulary:
        """Those of a model. Raises UserError if it does not name each entry of its codebook and the mark."""
        vocabulary: Any = model.vocabulary_mapping
        names, num_codes = vocabulary.img2bpe, model.model.vqmodel.config.codebook_size
        if sorted(names) != list(range(num_codes)) or vocabulary.eol_token_id is None:
            raise UserError(
                f"model must name each of its {num_codes} codes and the end of a line in vocabulary_map of its "
                f"config.json, which has {len(names)} codes; without them it cannot draw"
            )
        return cls(torch.tensor([*(names[code] for code in range(num_codes)), vocabulary.eol_token_id]))

    @property
    def mark(self) -> int:
        """The token that ends a line."""
        return len(self.names) - 1

    def known_tokens(self, height: int, width: int, device: torch.device) -> Tensor:
        """[N] int64 of a picture of height x width codes: the mark where a line ends, -1 at codes; the last is a
        code."""
        lines = torch.full((height, width + 1), -1, device=device)
        lines[:, width] = self.mark
        return lines.flatten()[:-1]

    def codes(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Codes [B, height, width] among drawn tokens [B, N]."""
        lines = torch.nn.functional.pad(tokens, (0, 1)).view(-1, height, width + 1)
        return lines[..., :width]
