"""Diagonals with a vertical branch: every token is that of a slow, obvious form, in every batch; faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from placed_pictures import COUNT, DRAWN, GREEDY, GUIDANCE, LINES, SIDE, LlamaGenPasses, condition, make_placed_model
from torch import Tensor

from specdecode.grid.diagonals import CrossedTokens, Diagonals
from specdecode.grid.positions import Lines
from specdecode.loop import DecodeRun
from specdecode.runs.continuous import decode_queue
from specdecode.runs.skipping import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, apply_guidance, draw_tokens
from vargen.base.errors import UserError
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.models.llamagen.vertical_branch import VerticalBranch, check_branch
from vargen.models.llamagen.vertical_head import LlamaGenVerticalHead

LAYER = 2


def make_branch(model: Any) -> VerticalBranch:
    """A branch whose every weight matters."""
    branch = VerticalBranch.beside(model, LAYER, gate_size=6).eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in branch.parameters():
        std = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0
        torch.nn.init.normal_(parameter, std=std, generator=generator)
    return branch.to(model.dtype)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_placed_model(num_layers=3)


@pytest.fixture(scope="module")
def branch(model: Any) -> VerticalBranch:
    return make_branch(model)


def run_of(
    model: Any, branch: VerticalBranch, requests: range, sampling: SamplingConfig = DRAWN, **settings: Any
) -> DecodeRun:
    settings = {"guidance_scale": GUIDANCE, **settings}
    target = LlamaGenTarget(model, *condition(model, requests), max_draft_nodes=2, **settings)
    order = Diagonals(LINES, LlamaGenVerticalHead(branch, target))
    streams = RandomStreams.from_seeds(list(requests))
    return new_run(target, max_new_tokens=COUNT, sampling=sampling, streams=streams, order=order)


@torch.no_grad()
def expected_of(
    model: Any, branch: VerticalBranch, request: int, sampling: SamplingConfig = DRAWN, scale: float = GUIDANCE
) -> list[int]:
    """Tokens of one request. Each diagonal is drawn after one forward pass over everything before it, without a cache.

    A token is fed with its diagonal. The model's attention shows it the tokens before it in raster order and of no
    later diagonal, the branch's all of no later diagonal.
    """
    passes = LlamaGenPasses(model, request, sampling)
    streams, length = RandomStreams.from_seeds([request]), passes.text.shape[1]
    tokens: dict[tuple[int, int], int] = {}
    for diagonal in range(2 * SIDE - 1):
        drawn = [(row, diagonal - row) for row in range(SIDE) if 0 <= diagonal - row < SIDE]
        fed = sorted(tokens, key=sum)
        causal = torch.ones(length + len(fed), length + len(fed)).tril().bool()
        in_model, in_branch = causal.clone(), causal.clone()
        for i, one in enumerate(fed):
            for j, other in enumerate(fed):
                in_branch[length + i, length + j] = sum(other) <= sum(one)
                in_model[length + i, length + j] = sum(other) <= sum(one) and other <= one
        places = torch.tensor([[-1] * length + [SIDE * row + column for row, column in fed]])
        ids = torch.tensor([[tokens[each] for each in fed]]).long()
        right, down, states = [], [], []
        for prompt in (passes.text, passes.null):
            said = model(
                inputs_embeds=torch.cat((prompt, model.token_embedding(ids)), 1),
                positions=places,
                attention_mask=in_model[None, None],
                feature_layers=(LAYER, model.config.num_layers),
            )
            inner, final = said.features.chunk(2, -1)
            below = branch(inner, places, in_branch[None, None])
            right.append(said.logits)
            down.append(branch.logits(below, model.lm_head))
            states.append((final, below))
        gate_states = states[0]  # the conditional half's
        logits = []
        for row, column in drawn:
            if diagonal == 0:
                logits.append(_guided([each[:, -1] for each in right], scale))
                continue
            left = None if column == 0 else length + fed.index((row, column - 1))
            above = None if row == 0 else length + fed.index((row - 1, column))
            if left is None or above is None:
                chosen, at = (right, left) if left is not None else (down, above)
                logits.append(_guided([each[:, at] for each in chosen], scale))
                continue
            weight = branch.weight_of_left(gate_states[0][:, left], gate_states[1][:, above])
            mixed = [weight * r[:, left] + (1 - weight) * d[:, above] for r, d in zip(right, down, strict=True)]
            logits.append(_guided(mixed, scale))
        counters = torch.tensor([[SIDE * row + column for row, column in drawn]])
        ids_drawn = draw_tokens(torch.stack(logits, 1), sampling, streams, counters, Tag.TARGET)[0].tolist()
        tokens.update(zip(drawn, ids_drawn, strict=True))
    return [tokens[row, column] for row in range(SIDE) for column in range(SIDE)]


def _guided(halves: list[Tensor], scale: float) -> Tensor:
    return apply_guidance(*halves, scale) if scale > 1 else halves[0]


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY], ids=["drawn", "greedy"])
def test_every_token_is_that_of_full_forward_passes(
    model: Any, branch: VerticalBranch, sampling: SamplingConfig
) -> None:
    expected = [expected_of(model, branch, request, sampling) for request in range(3)]
    together = run_of(model, branch, range(3), sampling).finish()
    assert together.tokens.tolist() == expected
    assert together.trace.target_passes == 2 * SIDE - 1
    assert together.trace.rows_fed == [COUNT - 1] * 3
    assert together.trace.row_tokens == together.lengths.tolist() == [COUNT] * 3
    for request in range(3):
        assert run_of(model, branch, range(request, request + 1), sampling).finish().tokens.tolist() == [
            expected[request]
        ]


def test_without_guidance_there_is_one_half(model: Any, branch: VerticalBranch) -> None:
    tokens = run_of(model, branch, range(2), guidance_scale=1.0).finish().tokens.tolist()
    assert tokens == [expected_of(model, branch, request, scale=1.0) for request in range(2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_draw_the_same_in_every_batch(own_kernels: None, dtype: torch.dtype) -> None:
    model = make_placed_model(num_layers=3).to(dtype)
    branch = make_branch(model)
    together = run_of(model, branch, range(4)).finish().tokens
    for request in range(4):
        alone = run_of(model, branch, range(request, request + 1)).finish().tokens
        assert torch.equal(alone[0], together[request])
    if dtype == torch.float32:
        assert together.tolist() == [expected_of(model, branch, request) for request in range(4)]


def test_rows_that_join_are_drawn_as_if_alone(model: Any, branch: VerticalBranch) -> None:
    def start(requests: range, joins: bool) -> DecodeRun:
        return run_of(model, branch, requests, longest_condition=5, prompt_only=joins)

    drawn = {row.request: row.tokens.tolist() for row in decode_queue(start, 5, 2)}
    assert drawn == {request: expected_of(model, branch, request) for request in range(5)}


def test_lengths_count_the_places_without_a_gap(model: Any, branch: VerticalBranch) -> None:
    run = run_of(model, branch, range(1))
    run.start()
    drawn = {0}
    while run.step():
        drawn |= {place for place in range(COUNT) if sum(divmod(place, SIDE)) == run.steps}
        assert run.state.decided[0].nonzero()[:, 0].tolist() == sorted(drawn)
        assert run.state.lengths.tolist() == [next((each for each in range(COUNT) if each not in drawn), COUNT)]
    assert len(drawn) == COUNT and not run.state.active.any()


def test_grids_need_not_be_square() -> None:
    order = Diagonals(Lines(12, 4), None)  # type: ignore[arg-type]
    assert order.num_passes == 6
    drawn = [order.tokens_of(number).drawn.tolist() for number in range(1, 6)]
    assert drawn == [[1, 4], [2, 5, 8], [3, 6, 9], [7, 10], [11]]
    assert [order.leading(number) for number in range(6)] == [1, 2, 3, 7, 11, 12]
    with pytest.raises(ValueError, match="no marks between them"):
        Diagonals(Lines(14, 4, mark=3), None)  # type: ignore[arg-type]


TOKENS = Diagonals.tokens_of


def only_raster_in_branch(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, fed=placed.visible)


def all_fed_in_model(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, visible=placed.fed)


def undrawn_seen(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, visible=(order._places <= placed.positions[0][:, None])[None])


def neighbours_exchanged(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, left=placed.above, above=placed.left)


def gate_in_first_column(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, has_left=torch.ones_like(placed.has_left))


def gate_in_first_row(order: Diagonals, number: int) -> CrossedTokens:
    placed = TOKENS(order, number)
    return replace(placed, has_above=torch.ones_like(placed.has_above))


FAULTS = [
    only_raster_in_branch,
    all_fed_in_model,
    undrawn_seen,
    neighbours_exchanged,
    gate_in_first_column,
    gate_in_first_row,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_tokens(
    model: Any, branch: VerticalBranch, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    expected = [expected_of(model, branch, request) for request in range(3)]
    monkeypatch.setattr(Diagonals, "tokens_of", fault)
    assert run_of(model, branch, range(3)).finish().tokens.tolist() != expected


def test_a_new_branch_goes_on_from_its_model(model: Any) -> None:
    branch = VerticalBranch.beside(model)
    assert branch.config.feature_layer == 1 and branch.config.num_layers == 3
    inputs = torch.randn(2, 4, 32)
    torch.testing.assert_close(branch.logits(inputs, model.lm_head), model.lm_head(inputs))
    assert torch.equal(branch.weight_of_left(inputs, inputs), torch.full((2, 4, 1), 0.5))
    assert torch.equal(branch.block.ff.down_proj.weight, model.transformer_blocks[1].ff.down_proj.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_layer": 3}, r"feature_layer must be at least 1 and below num_layers \(3\), got 3"),
        ({"feature_layer": 0}, "feature_layer must be at least 1"),
        ({"gate_size": 0}, "gate_size must be positive"),
        ({"dim": 30}, "multiple of 4"),
    ],
)
def test_sizes_that_do_not_fit_are_named(branch: VerticalBranch, changes: dict[str, Any], message: str) -> None:
    sizes = {name: value for name, value in branch.config.items() if not name.startswith("_")}
    with pytest.raises(ValueError, match=message):
        VerticalBranch(**{**sizes, **changes})


def test_a_branch_of_another_model_is_refused(branch: VerticalBranch) -> None:
    with pytest.raises(UserError, match="branch was trained for another model: its num_layers is 3, this model has 2"):
        check_branch(branch, make_placed_model())
