"""Pictures of a tiny LlamaGen drawn by places, and full forward passes to compare them with."""

from __future__ import annotations

from typing import Any

import torch
from llamagen_models import CONDITION_LENGTH, make_model, valid_mask
from place_oracles import FullPasses, with_prompt
from torch import Tensor

from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindows
from specdecode.loop import DecodeRun
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, apply_guidance
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

SIDE = 5
COUNT = SIDE * SIDE
GUIDANCE = 2.5
LENGTHS = [5, 3, 4, 2, 5, 1, 3]
"""Prompt tokens of each request."""
LINES = Lines(COUNT, SIDE)
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
    model: Any,
    requests: range,
    order: RowWindows | None,
    sampling: SamplingConfig = DRAWN,
    compiler: Any = None,
    **settings: Any,
) -> DecodeRun:
    """A run that is not started; order None: plain decoding."""
    target = LlamaGenTarget(
        model, *condition(model, requests), guidance_scale=GUIDANCE, max_draft_nodes=SIDE, **settings
    )
    streams = RandomStreams.from_seeds(list(requests))
    return new_run(target, max_new_tokens=COUNT, sampling=sampling, streams=streams, order=order, compiler=compiler)


class LlamaGenPasses(FullPasses):
    """See `FullPasses`."""

    def __init__(self, model: Any, request: int, sampling: SamplingConfig = DRAWN) -> None:
        super().__init__(request, sampling, SIDE, SIDE)
        self.model = model
        embeds, mask = condition(model, range(request, request + 1))
        self.text = embeds[:, mask[0]]
        self.null = model.null_condition(1, CONDITION_LENGTH)[:, mask[0]]

    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        length = self.text.shape[1]
        halves = [
            self.model(
                inputs_embeds=torch.cat((prompt, self.model.token_embedding(ids)), 1),
                positions=torch.cat((torch.full((1, length), -1), places), 1),
                attention_mask=with_prompt(seen, length)[None, None],
            ).logits
            for prompt in (self.text, self.null)
        ]
        return apply_guidance(*halves, GUIDANCE)
