"""Models of transformers by places: tokens of full forward passes with a mask, whatever the batch.

Janus draws codes alone; with Emu3 a row begins behind an end-of-row token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import emu3_models
import janus_models
import pytest
import torch
import torch.nn.functional as F
from emu3_models import AWAY, COLUMNS, PROMPTS, ROWS
from place_oracles import FullPasses, in_flight, staggered, with_prompt
from synthetic import decoded
from torch import Tensor

from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines, each_window
from specdecode.grid.row_windows import RowWindows
from specdecode.sampling import SamplingConfig, apply_guidance
from vargen.models.janus.janus_target import JanusTarget, SpecialTokens
from vargen.models.token_images.emu3 import EMU3
from vargen.models.token_images.grammar import vocabulary_of

SAMPLING = SamplingConfig()
SIDE = 4
CODES = emu3_models.CODES
LINES = {"janus": Lines(SIDE**2, SIDE), "emu3": Lines(ROWS * (COLUMNS + 1) - 1, COLUMNS, row_end=CODES)}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {"janus": janus_models.make(), "emu3": emu3_models.make()}


class TransformersPasses(FullPasses):
    """See `FullPasses`."""

    model: Any
    prompts: list[Tensor]
    scale: float
    step: Callable[..., Tensor]
    """Logits [1, T + n, V] after a prompt [1, T] and tokens [1, n]."""

    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        rows = []
        for prompt in self.prompts:
            length = prompt.shape[1]
            mask = torch.zeros(1, 1, length + len(seen), length + len(seen), dtype=self.model.dtype)
            mask.masked_fill_(~with_prompt(seen, length), torch.finfo(mask.dtype).min)
            positions = torch.cat((torch.arange(length)[None], length + places), 1)
            logits = self.step(prompt, ids, attention_mask=mask, position_ids=positions, use_cache=False)
            rows.append(logits[:, -len(seen) - 1 :].float())
        return apply_guidance(rows[0], rows[-1], self.scale)


class JanusPasses(TransformersPasses):
    def __init__(self, model: Any, request: int, scale: float) -> None:
        super().__init__(request, SAMPLING, SIDE, SIDE)
        self.model, self.scale = model, scale
        ids, mask = janus_models.prompts()
        prompt = ids[request : request + 1, mask[request] > 0]
        null = SpecialTokens.of(model.generation_config).null_prompt(prompt)
        self.prompts = [prompt, null][: 2 if scale > 1 else 1]

    def step(self, prompt: Tensor, ids: Tensor, **arguments: Any) -> Tensor:
        image = self.model.prepare_embeddings_for_image_generation(ids)
        embeds = torch.cat((self.model.get_input_embeddings()(prompt), image), 1)
        states = self.model.model.language_model(inputs_embeds=embeds, **arguments).last_hidden_state
        return self.model.model.generation_head(states)


class Emu3Passes(TransformersPasses):
    def __init__(self, model: Any, request: int, scale: float, rows: int = ROWS, columns: int = COLUMNS) -> None:
        super().__init__(request, SAMPLING, rows, columns, row_end=CODES)
        self.model, self.scale, self.ids = model, scale, vocabulary_of(EMU3, model).ids
        (ids, mask), (away, away_mask) = emu3_models.tokens(PROMPTS), emu3_models.tokens([AWAY] * 3)
        prompts = [(ids, mask), (away, away_mask)][: 2 if scale > 1 else 1]
        self.prompts = [rows[request : request + 1, seen[request] > 0] for rows, seen in prompts]

    def step(self, prompt: Tensor, ids: Tensor, **arguments: Any) -> Tensor:
        embeds = self.model.get_input_embeddings()(torch.cat((prompt, self.ids[ids]), 1))
        states = self.model.model.text_model(inputs_embeds=embeds, **arguments).last_hidden_state
        return self.model.lm_head(states)[..., self.ids[:-1]]

    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        return F.pad(super().logits(ids, places, seen), (0, 1), value=-torch.inf)


def tokens_of(family: str, model: Any, requests: list[int], scale: float, order: RowWindows | None) -> list[list[int]]:
    if family == "janus":
        ids, mask = (each[requests] for each in janus_models.prompts())
        target: Any = JanusTarget(model, ids, mask, guidance_scale=scale, max_draft_nodes=SIDE)
    else:
        target = emu3_models.target(model, scale, 8, requests)
    count = LINES[family].num_places
    result = decoded(target, count, SAMPLING, requests, order=order)
    assert result.trace.row_tokens == result.lengths.tolist() == [count] * len(requests)
    assert [len(origins) for origins in result.trace.token_origins] == result.trace.row_tokens
    return result.tokens.tolist()


ORDERS: dict[str, Callable[[Lines], RowWindows]] = {
    "staggered by 1": lambda lines: RowWindows(lines, 1),
    "staggered by 2": lambda lines: RowWindows(lines, 2),
    "confirmed first": lambda lines: RowWindows(lines, 2, confirm_first=True),
    "guesses": lambda lines: RowWindows(lines, 2, guesses=2),
    "guesses, confirmed first": lambda lines: RowWindows(lines, 2, guesses=2, confirm_first=True),
    "from the row above": lambda lines: RowWindows(lines, 4, guesses=3, max_visits=2, start_from_row_above=True),
}


@pytest.mark.parametrize("scale", [4.0, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("family", "passes_of"), [("janus", JanusPasses), ("emu3", Emu3Passes)])
def test_every_token_is_that_of_full_forward_passes(models, family, passes_of, order, scale):
    model, rule = models[family], ORDERS[order](LINES[family])
    together = tokens_of(family, model, [0, 1, 2], scale, rule)
    for request in range(3):
        passes = passes_of(model, request, scale)
        expected = in_flight(passes, rule)
        if rule == RowWindows(LINES[family], rule.window):  # without guesses
            assert expected["tokens"] == staggered(passes, rule.window)["tokens"]
        assert together[request] == expected["tokens"] == tokens_of(family, model, [request], scale, rule)[0]


@pytest.mark.parametrize("guesses", [{}, {"guesses": 2}], ids=["no guesses", "guesses"])
def test_a_window_of_a_whole_row_is_plain_decoding(models, guesses):
    whole = tokens_of("emu3", models["emu3"], [0, 1, 2], 3.0, RowWindows(LINES["emu3"], COLUMNS, **guesses))
    assert whole == tokens_of("emu3", models["emu3"], [0, 1, 2], 3.0, None)


@pytest.mark.parametrize(
    "rule",
    [
        RowWindows(LINES["emu3"], 1),
        RowWindows(LINES["emu3"], 3, confirm_first=True),
        RowWindows(LINES["emu3"], 2, guesses=2),
        RowWindows(LINES["emu3"], (1, 3), guesses=3, max_visits=2, start_from_row_above=True),
    ],
)
def test_pictures_of_several_sizes_are_those_of_full_forward_passes(models, rule):
    """A window longer than a picture's rows is a whole row there."""
    grids, model = [(2, 5), (4, 2), (ROWS, COLUMNS)], models["emu3"]
    lines = [Lines(rows * (columns + 1) - 1, columns, row_end=CODES) for rows, columns in grids]
    target = emu3_models.target(model, 3.0, 8, grids=grids)
    assert isinstance(target.lines, MixedGrids) and [*target.lines.rows] == lines
    most, places = target.lines.num_places, [each.num_places for each in lines]
    asked = {"row_tokens": torch.tensor(places), "order": replace(rule, lines=target.lines)}
    result = decoded(target, most, SAMPLING, **asked)
    assert result.lengths.tolist() == result.trace.row_tokens == places
    for request, (rows, columns) in enumerate(grids):
        windows = tuple(min(each, columns) for each in each_window(rule.window))
        own = replace(rule, lines=lines[request], window=windows)
        expected = in_flight(Emu3Passes(model, request, 3.0, rows, columns), own)
        assert result.tokens[request, : places[request]].tolist() == expected["tokens"]
        assert not result.tokens[request, places[request] :].any()
        assert result.trace.rows_fed[request] == expected["fed"]
        assert result.trace.row_passes[request] == expected["passes"]
