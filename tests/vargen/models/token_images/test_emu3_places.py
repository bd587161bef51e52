"""Emu3 by places: a row begins behind an end-of-row token; tokens are those of full forward passes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import emu3_models
import pytest
import torch
import torch.nn.functional as F
from emu3_models import AWAY, COLUMNS, PROMPTS, ROWS, Emu3Target
from place_oracles import FullPasses, in_flight, staggered, with_prompt
from torch import Tensor

from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines, each_window
from specdecode.grid.row_windows import RowWindows
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, apply_guidance
from vargen.methods.catalogue import resolve_method
from vargen.models.reuse import Reuse
from vargen.models.token_images.emu3 import EMU3
from vargen.models.token_images.grammar import vocabulary_of

SAMPLING = SamplingConfig()
CODES = emu3_models.CODES
LINES = Lines(ROWS * (COLUMNS + 1) - 1, COLUMNS, row_end=CODES)


@pytest.fixture(scope="module")
def model() -> Any:
    return emu3_models.make()


def target_of(
    model: Any, requests: list[int], scale: float, grids: Sequence[tuple[int, int]] = ((ROWS, COLUMNS),)
) -> Emu3Target:
    (ids, mask), (away, away_mask) = emu3_models.tokens(PROMPTS), emu3_models.tokens([AWAY] * 3)
    return Emu3Target(
        model, ids[requests], mask[requests], negative_input_ids=away[requests],
        negative_attention_mask=away_mask[requests], guidance_scale=scale, max_draft_nodes=8, grids=grids,
    )  # fmt: skip


class Emu3Passes(FullPasses):
    """See `FullPasses`."""

    def __init__(self, model: Any, request: int, scale: float, rows: int = ROWS, columns: int = COLUMNS) -> None:
        super().__init__(request, SAMPLING, rows, columns, row_end=CODES)
        self.model, self.scale, self.ids = model, scale, vocabulary_of(EMU3, model).ids
        (ids, mask), (away, away_mask) = emu3_models.tokens(PROMPTS), emu3_models.tokens([AWAY] * 3)
        prompts = [(ids, mask), (away, away_mask)][: 2 if scale > 1 else 1]
        self.prompts = [rows[request : request + 1, seen[request] > 0] for rows, seen in prompts]

    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        rows = []
        for prompt in self.prompts:
            length = prompt.shape[1]
            embeds = self.model.get_input_embeddings()(torch.cat((prompt, self.ids[ids]), 1))
            mask = torch.zeros(1, 1, length + len(seen), length + len(seen), dtype=embeds.dtype)
            mask.masked_fill_(~with_prompt(seen, length), torch.finfo(embeds.dtype).min)
            positions = torch.cat((torch.arange(length)[None], length + places), 1)
            states = self.model.model.text_model(
                inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False
            ).last_hidden_state
            rows.append(self.model.lm_head(states)[:, -len(seen) - 1 :, self.ids[:-1]].float())
        return F.pad(apply_guidance(rows[0], rows[-1], self.scale), (0, 1), value=-torch.inf)


ORDERS: list[RowWindows] = [
    RowWindows(LINES, 1),
    RowWindows(LINES, 2),
    RowWindows(LINES, COLUMNS),
    RowWindows(LINES, 2, confirm_first=True),
    RowWindows(LINES, 2, guesses=2),
    RowWindows(LINES, 2, guesses=2, confirm_first=True),
    RowWindows(LINES, COLUMNS, guesses=3, max_visits=2, start_from_row_above=True),
]


def tokens_of(model: Any, requests: list[int], scale: float, order: RowWindows | None) -> list[list[int]]:
    target = target_of(model, requests, scale)
    streams = RandomStreams.from_seeds(requests)
    run = new_run(target, max_new_tokens=LINES.num_places, sampling=SAMPLING, streams=streams, order=order)
    result = run.finish()
    assert result.trace.row_tokens == result.lengths.tolist() == [LINES.num_places] * len(requests)
    assert [len(origins) for origins in result.trace.token_origins] == result.trace.row_tokens
    return result.tokens.tolist()


@pytest.mark.parametrize("scale", [3.0, 1.0], ids=["guided", "unguided"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_token_is_that_of_full_forward_passes(model, order, scale):
    together = tokens_of(model, [0, 1, 2], scale, order)
    for request in range(3):
        passes = Emu3Passes(model, request, scale)
        expected = in_flight(passes, order)
        if order == RowWindows(LINES, order.window):  # without guesses
            assert expected["tokens"] == staggered(passes, order.window)["tokens"]
        assert together[request] == expected["tokens"] == tokens_of(model, [request], scale, order)[0]


@pytest.mark.parametrize("order", [RowWindows(LINES, COLUMNS), RowWindows(LINES, COLUMNS, guesses=2)])
def test_a_window_of_a_whole_row_is_plain_decoding(model, order):
    assert tokens_of(model, [0, 1, 2], 3.0, order) == tokens_of(model, [0, 1, 2], 3.0, None)


@pytest.mark.parametrize(
    "rule",
    [
        RowWindows(LINES, 1),
        RowWindows(LINES, 3, confirm_first=True),
        RowWindows(LINES, 2, guesses=2),
        RowWindows(LINES, (1, 3), guesses=3, max_visits=2, start_from_row_above=True),
    ],
)
def test_pictures_of_several_sizes_are_those_of_full_forward_passes(model, rule):
    """A window longer than a picture's rows is a whole row there."""
    grids = [(2, 5), (4, 2), (ROWS, COLUMNS)]
    lines = [Lines(rows * (columns + 1) - 1, columns, row_end=CODES) for rows, columns in grids]
    target = target_of(model, [0, 1, 2], 3.0, grids)
    assert isinstance(target.lines, MixedGrids) and [*target.lines.rows] == lines
    most, places = target.lines.num_places, [each.num_places for each in lines]
    result = new_run(
        target, max_new_tokens=most, sampling=SAMPLING, streams=RandomStreams.from_seeds([0, 1, 2]),
        row_tokens=torch.tensor(places), order=replace(rule, lines=target.lines),
    ).finish()  # fmt: skip
    assert result.lengths.tolist() == result.trace.row_tokens == places
    for request, (rows, columns) in enumerate(grids):
        windows = tuple(min(each, columns) for each in each_window(rule.window))
        own = replace(rule, lines=lines[request], window=windows)
        expected = in_flight(Emu3Passes(model, request, 3.0, rows, columns), own)
        assert result.tokens[request, : places[request]].tolist() == expected["tokens"]
        assert not result.tokens[request, places[request] :].any()
        assert result.trace.rows_fed[request] == expected["fed"]
        assert result.trace.row_passes[request] == expected["passes"]


def test_its_rows_are_offered_to_methods(model):
    components = emu3_models.Emu3Components(model, target_of(model, [0], 3.0), Reuse())
    for name in ("zipar", "pjd", "vvs-rows"):
        method = resolve_method(name).build(components)
        assert method.order is not None and method.order.lines.num_places == LINES.num_places
