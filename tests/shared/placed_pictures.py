"""Pictures of a tiny LlamaGen drawn by places, and full forward passes with a mask to compare them with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from llamagen_models import CONDITION_LENGTH, make_model, valid_mask
from torch import Tensor

from specdecode.loop import DecodeRun
from specdecode.places import Order
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, apply_guidance, draw_tokens
from specdecode.skipping import new_run
from vargen.models.llamagen.target import LlamaGenTarget

SIDE = 5
COUNT = SIDE * SIDE
GUIDANCE = 2.5
LENGTHS = [5, 3, 4, 2, 5, 1, 3]
"""Prompt tokens of each request."""
DRAWN, GREEDY = SamplingConfig(), SamplingConfig(temperature=0)


def make_placed_model(**changes: Any) -> Any:
    return make_model(grid_size=SIDE, condition_rotary="identity", **changes)


def condition(model: Any, requests: range) -> tuple[Tensor, Tensor]:
    """Embedded prompts [B, T, dim], padded on the left, and their mask [B, T]."""
    texts = torch.randn(len(LENGTHS), CONDITION_LENGTH, 12, generator=torch.Generator().manual_seed(7))
    mask = valid_mask([LENGTHS[each] for each in requests])
    with torch.no_grad():
        return model.embed_condition(caption_embeds=texts[list(requests)]), mask


def run_of(
    model: Any, requests: range, order: Order | None, sampling: SamplingConfig = DRAWN, **settings: Any
) -> DecodeRun:
    """A run that is not started; order None: plain decoding."""
    target = LlamaGenTarget(
        model, *condition(model, requests), guidance_scale=GUIDANCE, max_draft_nodes=SIDE, **settings
    )
    streams = RandomStreams.from_seeds(list(requests))
    return new_run(target, max_new_tokens=COUNT, sampling=sampling, streams=streams, order=order)


@dataclass
class Fed:
    """A token that was fed. `sees` are the numbers of the fed tokens that it saw, itself included."""

    token: int
    place: int
    line: int
    is_stand_in: bool = False
    sees: set[int] = field(default_factory=set)


class FullPasses:
    """What the model says after every fed token of one request, by one forward pass over all of them."""

    def __init__(self, model: Any, request: int, sampling: SamplingConfig) -> None:
        self.model, self.sampling, self.streams = model, sampling, RandomStreams.from_seeds([request])
        embeds, mask = condition(model, range(request, request + 1))
        self.text = embeds[:, mask[0]]
        self.null = model.null_condition(1, CONDITION_LENGTH)[:, mask[0]]

    @torch.no_grad()
    def draw(self, fed: list[Fed], drawing: list[tuple[int, int]]) -> list[int]:
        """Tokens for pairs of a fed token's number (-1: the end of the prompt) and the place after it."""
        logits = self._logits(fed)[:, [self.text.shape[1] + number for number, _ in drawing]]
        places = torch.tensor([[place for _, place in drawing]])
        return draw_tokens(logits, self.sampling, self.streams, places, Tag.TARGET)[0].tolist()

    @torch.no_grad()
    def draw_again(self, fed: list[Fed], number: int, place: int) -> int:
        """A token for any place from the distribution after one fed token."""
        return self.draw(fed, [(number, place)])[0]

    def _logits(self, fed: list[Fed]) -> Tensor:
        length = self.text.shape[1]
        size = length + len(fed)
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        seen[length:, length:] = False
        for number, each in enumerate(fed):
            seen[length + number, [length + other for other in each.sees]] = True
        positions = torch.tensor([[-1] * length + [each.place for each in fed]])
        ids = torch.tensor([[each.token for each in fed]], dtype=torch.int64)
        halves = [
            self.model(
                inputs_embeds=torch.cat((prompt, self.model.token_embedding(ids)), 1),
                positions=positions,
                attention_mask=seen[None, None],
            ).logits
            for prompt in (self.text, self.null)
        ]
        return apply_guidance(*halves, GUIDANCE)
