"""Janus by places: the tokens of full forward passes with a mask, whatever the batch."""

from typing import Any

import janus_models
import pytest
import torch
from place_oracles import FullPasses, in_flight, staggered, with_prompt
from torch import Tensor

from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindows
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, apply_guidance
from vargen.models.janus.janus_target import JanusTarget, SpecialTokens

SIDE = 4
COUNT = SIDE * SIDE
LINES = Lines(COUNT, SIDE)
SAMPLING = SamplingConfig()


@pytest.fixture(scope="module")
def model() -> Any:
    return janus_models.make()


class JanusPasses(FullPasses):
    """See `FullPasses`."""

    def __init__(self, model: Any, request: int, guidance_scale: float) -> None:
        super().__init__(request, SAMPLING, SIDE, SIDE)
        self.model, self.guidance_scale = model, guidance_scale
        ids, mask = janus_models.prompts()
        prompt = ids[request : request + 1, mask[request] > 0]
        self.prompts = [prompt]
        if guidance_scale > 1:
            self.prompts.append(SpecialTokens.of(model.generation_config).null_prompt(prompt))

    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        image = self.model.prepare_embeddings_for_image_generation(ids)
        rows = []
        for prompt in self.prompts:
            length = prompt.shape[1]
            embeds = torch.cat((self.model.get_input_embeddings()(prompt), image), 1)
            mask = torch.zeros(1, 1, length + len(seen), length + len(seen), dtype=embeds.dtype)
            mask.masked_fill_(~with_prompt(seen, length), torch.finfo(embeds.dtype).min)
            positions = torch.cat((torch.arange(length)[None], length + places), 1)
            states = self.model.model.language_model(
                inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False
            ).last_hidden_state
            rows.append(self.model.model.generation_head(states).float())
        return apply_guidance(rows[0], rows[-1], self.guidance_scale)


ORDERS: list[RowWindows] = [
    RowWindows(LINES, 1),
    RowWindows(LINES, 2),
    RowWindows(LINES, 2, confirm_first=True),
    RowWindows(LINES, 2, guesses=2),
    RowWindows(LINES, SIDE, guesses=3, max_visits=2, start_from_row_above=True),
]


@pytest.mark.parametrize("guidance_scale", [5.0, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_token_is_that_of_full_forward_passes(model, order, guidance_scale):
    ids, mask = janus_models.prompts()

    def tokens_of(requests: list[int]) -> list[list[int]]:
        target = JanusTarget(model, ids[requests], mask[requests], guidance_scale=guidance_scale, max_draft_nodes=SIDE)
        streams = RandomStreams.from_seeds(requests)
        run = new_run(target, max_new_tokens=COUNT, sampling=SAMPLING, streams=streams, order=order)
        return run.finish().tokens.tolist()

    together = tokens_of([0, 1, 2])
    for request in range(3):
        passes = JanusPasses(model, request, guidance_scale)
        expected = in_flight(passes, order)
        if order == RowWindows(LINES, order.window):  # without guesses
            assert expected["tokens"] == staggered(passes, order.window)["tokens"]
        assert together[request] == expected["tokens"] == tokens_of([request])[0]
