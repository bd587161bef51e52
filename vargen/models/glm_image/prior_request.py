"""Requests to GLM-Image's autoregressive part: prompts from its processor, and the grids that it draws.

Belongs here: prompts with the codes of their pictures, positions, and the part of the drawn tokens that is the prior.
Does not belong here: passes (`target.py`), and calling the processor (`vargen.pipelines.glm_image`).

From text alone the model draws a small preview, then the picture; from pictures and text, the picture at once. Only the
picture's codes are the prior, and diffusers takes each of them as a square of 2 x 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import GlmImageForConditionalGeneration

from vargen.models.glm_image.positions import Grid, drawn_positions, prompt_positions


@dataclass(frozen=True)
class PriorRequest:
    """One batch of prompts; every row draws the same grids.

    Args:
        input_ids: [B, T] int64, padded on the left, codes in the places of pictures.
        attention_mask: [B, T] int64, 0 at padding.
        position_ids: [3, B, T] int64 of the prompts.
        drawn_positions: [3, B, N] int64 of the tokens that are drawn.
        grids: drawn in this order, the picture last.
        sources: for every row, codes [rows, columns] of each of its pictures; None: the prompts are text.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    drawn_positions: Tensor
    grids: tuple[Grid, ...]
    sources: list[list[Tensor]] | None = None

    @property
    def num_tokens(self) -> int:
        """Drawn tokens of a row."""
        return sum(rows * columns for rows, columns in self.grids)

    def repeated(self, count: int) -> Self:
        """Every row `count` times, copies side by side."""
        return type(self)(
            self.input_ids.repeat_interleave(count, 0),
            self.attention_mask.repeat_interleave(count, 0),
            self.position_ids.repeat_interleave(count, 1),
            self.drawn_positions.repeat_interleave(count, 1),
            self.grids,
            None if self.sources is None else [row for row in self.sources for _ in range(count)],
        )

    def picture_codes(self, tokens: Tensor) -> Tensor:
        """[B, rows, columns] of the picture among drawn tokens [B, N]."""
        rows, columns = self.grids[-1]
        return tokens[:, -rows * columns :].view(-1, rows, columns)


@torch.no_grad()
def read_request(model: GlmImageForConditionalGeneration, inputs: Mapping[str, Any]) -> PriorRequest:
    """The request in the outputs of `GlmImageProcessor`.

    Args:
        model: turns pictures into codes.
        inputs: "input_ids" and "attention_mask" [B, T]; "image_grid_thw" [grids, 3], for every row the grids of its
            pictures, then those to draw, the picture before its preview; "images_per_sample" [B], their number;
            "pixel_values" of the pictures, if there are any.
    """
    weight: Any = model.get_input_embeddings().weight
    device = weight.device
    input_ids, mask = inputs["input_ids"].to(device), inputs["attention_mask"].to(device)
    config: Any = model.config
    grids = [
        [(rows, columns) for _, rows, columns in own.tolist()]  # of one frame
        for own in inputs["image_grid_thw"].split(inputs["images_per_sample"].tolist())
    ]
    pixels, sources = inputs.get("pixel_values"), None
    num_drawn = 2 if pixels is None else 1
    if pixels is not None:
        sources = _codes(model, pixels.to(device), [own[:-num_drawn] for own in grids])
        codes = torch.cat([each.flatten() for own in sources for each in own])
        input_ids = input_ids.masked_scatter(input_ids == config.image_token_id, codes)
    drawn = tuple(reversed(grids[0][-num_drawn:]))
    position_ids = torch.ones(3, *input_ids.shape, dtype=torch.int64)  # as in the model; those of padding are not read
    following = []
    for row, (ids, seen) in enumerate(zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True)):
        positions, start = prompt_positions(
            ids[seen].tolist(), grids[row][:-num_drawn], config.image_start_token_id, config.image_end_token_id
        )
        position_ids[:, row, seen] = positions
        following.append(drawn_positions(start, drawn))
    return PriorRequest(input_ids, mask, position_ids.to(device), torch.stack(following, 1).to(device), drawn, sources)


def upsampled(codes: Tensor) -> Tensor:
    """[B, 4 * rows * columns] int64 from codes [B, rows, columns], each as a square of 2 x 2, as diffusers wants."""
    return codes.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)


def _codes(
    model: GlmImageForConditionalGeneration, pixels: Tensor, grids: Sequence[Sequence[Grid]]
) -> list[list[Tensor]]:
    """The codes [rows, columns] of every row's pictures."""
    listed = [grid for own in grids for grid in own]
    features = model.get_image_features(pixels, torch.tensor([[1, *grid] for grid in listed], device=pixels.device))
    sizes = [rows * columns for rows, columns in listed]
    codes = iter(model.model.get_image_tokens(features.pooler_output).split(sizes))
    return [[next(codes).view(grid) for grid in own] for own in grids]
