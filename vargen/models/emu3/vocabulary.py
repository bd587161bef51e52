"""Emu3's image tokens: codes, the mark that ends a line, and what both are called in the vocabulary of text.

Belongs here: the tokens that the loop sees, which are codes 0 to C - 1 and the mark C, and how a picture is a sequence
of them. Does not belong here: forwards (`target.py`) and pixels (`vq.py`).

A picture of h lines of w codes is h times w codes and a mark, then three tokens that end the frame, the image and the
text. After the last code nothing is open, so a picture is decoded once that is drawn.
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
        names: [C + 1] int64, of each code and of the mark, in the vocabulary of text.
    """

    names: Tensor

    @classmethod
    def of(cls, model: Emu3ForConditionalGeneration) -> ImageVocabulary:
        """Those of a model.

        Raises:
            UserError: it has no codes, not one for each entry of its codebook, or no mark.
        """
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
        """[N] int64 of a picture of so many codes: the mark where a line ends, -1 at codes; it ends with a code."""
        lines = torch.full((height, width + 1), -1, device=device)
        lines[:, width] = self.mark
        return lines.flatten()[:-1]

    def codes(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """[B, height, width] among drawn tokens [B, N]."""
        lines = torch.nn.functional.pad(tokens, (0, 1)).view(-1, height, width + 1)
        return lines[..., :width]
