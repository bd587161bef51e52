"""Cosmos's discrete tokenizer, whose decoder makes SimpleAR's pixels: a TorchScript file that the user names.

Belongs here: running `decoder.jit` of nvidia/Cosmos-1.0-Tokenizer-DV8x16x16 on one frame, and its codes as vectors.
Does not belong here: looking for such a file. TorchScript is a program: nothing of it is run but the file whose path
the user gave.

Source: wdrink/SimpleAR at d56b6e5c, `generate.py`; codes are finite scalars (FSQ, Mentzer et al. 2023, arXiv
2309.15505) of Cosmos's levels (arXiv 2501.03575).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.base.reading import reason_of

LEVELS = (8, 8, 8, 5, 5, 5)
"""Values of each coordinate of a code, the fastest first: 64,000 codes."""
PIXELS_A_CODE = 16


class CosmosDecoder(nn.Module):
    """Pictures of codes by a TorchScript program.

    Args:
        script: takes int64 [1, frames, h, w] and gives [1, 3, frames, 16 h, 16 w], nominally in [-1, 1].
        path: of its file, for errors.
    """

    def __init__(self, script: Any, path: Path) -> None:
        super().__init__()
        self.script, self.path = script, path
        self._encoder: Any = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights; pipelines of diffusers ask."""
        return next((weight.dtype for weight in self.parameters()), torch.float32)

    @property
    def device(self) -> torch.device:
        """The device of its weights; pipelines of diffusers ask."""
        return next((weight.device for weight in self.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def forward(self, codes: Tensor) -> Tensor:
        """fp32 [1, 3, 16 h, 16 w] of codes [1, h, w]. Raises UserError if the program is another one."""
        expected = (1, 3, 1, codes.shape[1] * PIXELS_A_CODE, codes.shape[2] * PIXELS_A_CODE)
        frames = self._ran(self.path, lambda: self.script(codes[:, None]), expected)
        return frames[:, :, 0].float()

    @torch.no_grad()
    def encode(self, pictures: Tensor) -> Tensor:
        """int64 [1, h, w]: codes of pictures fp32 [1, 3, H, W] in [-1, 1], by encoder.jit beside the decoder's file.

        Raises UserError where it is missing or another program.
        """
        path = self.path.with_name("encoder.jit")
        if self._encoder is None:
            self._encoder = _load_script(path)
        expected = (1, 1, pictures.shape[2] // PIXELS_A_CODE, pictures.shape[3] // PIXELS_A_CODE)
        found = self._ran(path, lambda: self._encoder(pictures[:, :, None].to(self.dtype))[0], expected)
        return found[:, 0].long()

    def _ran(self, path: Path, run: Callable[[], Any], expected: tuple[int, ...]) -> Tensor:
        name = "encoder.jit" if path.name == "encoder.jit" else "decoder.jit"
        try:
            found = run()
            if isinstance(found, Tensor) and found.shape == expected:
                return found
            reason = f"gives {list(found.shape)}" if isinstance(found, Tensor) else "gives no tensor"
            reason = f"it {reason} where {list(expected)} is needed"
        except (RuntimeError, TypeError) as error:
            reason = reason_of(error)
        raise UserError(f"vqvae: {path} is not {name} of Cosmos-1.0-Tokenizer-DV8x16x16 ({reason})")

    def code_vectors(self) -> Tensor:
        """fp32 [64000, 6]: coordinates of the codes, in [-1, 1]."""
        codes = torch.arange(torch.tensor(LEVELS).prod().item())
        coordinates = []
        for levels in LEVELS:
            coordinates.append((codes % levels - levels // 2) / (levels // 2))
            codes = codes // levels
        return torch.stack(coordinates, 1)


def load_cosmos_decoder(path: Path) -> CosmosDecoder:
    """The decoder in a file. Raises UserError if it is no TorchScript."""
    return CosmosDecoder(_load_script(path), path).eval()


def _load_script(path: Path) -> Any:
    """A program. Raises UserError if the file is no TorchScript."""
    if not path.is_file():
        name = path.name if path.name == "encoder.jit" else "decoder.jit"
        absence = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"vqvae must be the TorchScript file {name} of Cosmos, but {path} {absence}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, and this is all there is
            return torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"vqvae: {path} cannot be read as TorchScript ({reason_of(error)}); download it again"
        ) from error
