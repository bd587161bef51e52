"""Places: every token equals that of a slow, obvious form of the rule, in every batch; planted faults are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from llamagen_models import CONDITION_LENGTH, make_model, valid_mask
from synthetic import MarkovTarget, random_table
from torch import Tensor

from specdecode.continuous import decode_queue
from specdecode.loop import DecodeRun
from specdecode.places import PlacedRun, StaggeredLines
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, apply_guidance, draw_tokens
from specdecode.skipping import new_run
from specdecode.verifiers.exact import ExactVerifier
from vargen.models.llamagen.target import LlamaGenTarget

SIDE = 5
COUNT = SIDE * SIDE
GUIDANCE = 2.5
LENGTHS = [5, 3, 4, 2, 5, 1, 3]
"""Prompt tokens of each request."""
DRAWN, GREEDY = SamplingConfig(), SamplingConfig(temperature=0)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(grid_size=SIDE, condition_rotary="identity")


def condition(model: Any, requests: range) -> tuple[Tensor, Tensor]:
    """Embedded prompts [B, T, dim], padded on the left, and their mask [B, T]."""
    texts = torch.randn(len(LENGTHS), CONDITION_LENGTH, 12, generator=torch.Generator().manual_seed(7))
    mask = valid_mask([LENGTHS[each] for each in requests])
    with torch.no_grad():
        return model.embed_condition(caption_embeds=texts[list(requests)]), mask


def run_of(model: Any, requests: range, sampling: SamplingConfig, window: int | None, **settings: Any) -> DecodeRun:
    """A run that is not started; window None: plain decoding."""
    target = LlamaGenTarget(
        model, *condition(model, requests), guidance_scale=GUIDANCE, max_draft_nodes=SIDE, **settings
    )
    return new_run(
        target,
        max_new_tokens=COUNT,
        sampling=sampling,
        streams=RandomStreams.from_seeds(list(requests)),
        order=None if window is None else StaggeredLines(COUNT, SIDE, window),
    )


def sees(one: dict[str, int], other: dict[str, int], nodes: list[dict[str, int]]) -> bool:
    """Whether a fed token sees another."""
    if other["pass"] > one["pass"]:
        return False
    if not other["stands_in"]:
        return other["place"] <= one["place"]
    real = [each for each in nodes if each["place"] == other["place"] and not each["stands_in"]]
    return one["line"] == other["line"] and not any(each["pass"] <= one["pass"] for each in real)


@torch.no_grad()
def oracle(model: Any, request: int, sampling: SamplingConfig, window: int) -> tuple[list[int], int, int]:
    """Tokens, passes and rows fed of one request, by full forward passes without a cache.

    A line opens once the line above has `window` tokens, and every open line draws one token a pass. A token that is
    fed sees the tokens before it that have been fed by then. A line begins behind a stand-in, where the token before
    it is missing, and sees this stand-in until that token is fed.
    """
    (embeds, mask), streams = condition(model, range(request, request + 1)), RandomStreams.from_seeds([request])
    text = embeds[:, mask[0]]
    null = model.null_condition(1, CONDITION_LENGTH)[:, mask[0]]
    drawn: dict[int, int] = {}
    nodes: list[dict[str, int]] = []  # all that was fed
    passes = 0
    while len(drawn) < COUNT:
        counts = [sum(place // SIDE == line for place in drawn) for line in range(SIDE)]
        is_open = [counts[line] < SIDE and (line == 0 or counts[line - 1] >= window) for line in range(SIDE)]
        new = sorted(set(drawn) - {COUNT - 1} - {node["place"] for node in nodes if not node["stands_in"]})
        nodes += [{"token": drawn[p], "place": p, "line": p // SIDE, "stands_in": 0, "pass": passes} for p in new]
        drawing = []  # (node drawn from, place)
        for line in range(SIDE):
            place = line * SIDE + counts[line]
            if passes == 0 and place == 0:
                drawing.append((-1, 0))  # from the end of the prompt
            elif is_open[line]:
                if place - 1 not in drawn:
                    other = max(line - 2, 0)
                    newest = drawn[other * SIDE + counts[other] - 1]
                    nodes.append({"token": newest, "place": place - 1, "line": line, "stands_in": 1, "pass": passes})
                    drawing.append((len(nodes) - 1, place))
                else:
                    at = next(i for i, each in enumerate(nodes) if each["place"] == place - 1 and not each["stands_in"])
                    drawing.append((at, place))

        size, length = text.shape[1] + len(nodes), text.shape[1]
        seen = torch.ones(size, size, dtype=torch.bool).tril()
        for i, one in enumerate(nodes):
            for j, other in enumerate(nodes):
                seen[length + i, length + j] = sees(one, other, nodes)
        seen[:length, length:] = False
        positions = torch.tensor([[-1] * length + [node["place"] for node in nodes]])
        ids = torch.tensor([[node["token"] for node in nodes]], dtype=torch.int64)
        halves = [
            model(
                inputs_embeds=torch.cat((prompt, model.token_embedding(ids)), 1),
                positions=positions,
                attention_mask=seen[None, None],
            ).logits
            for prompt in (text, null)
        ]
        logits = apply_guidance(*halves, GUIDANCE)[:, [length + at for at, _ in drawing]]
        places = [place for _, place in drawing]
        tokens = draw_tokens(logits, sampling, streams, torch.tensor([places]), Tag.TARGET)[0].tolist()
        drawn.update(zip(places, tokens, strict=True))
        passes += 1
    return [drawn[place] for place in range(COUNT)], passes, len(nodes)


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY], ids=["drawn", "greedy"])
@pytest.mark.parametrize("window", range(1, SIDE + 1))
def test_every_token_is_that_of_full_forward_passes(model: Any, window: int, sampling: SamplingConfig) -> None:
    expected = [oracle(model, request, sampling, window) for request in range(3)]
    together = run_of(model, range(3), sampling, window).finish()
    assert together.tokens.tolist() == [tokens for tokens, _, _ in expected]
    assert together.trace.target_passes == expected[0][1] == SIDE + (SIDE - 1) * window
    assert together.trace.rows_fed == [fed for _, _, fed in expected]
    assert together.trace.row_tokens == together.lengths.tolist() == [COUNT] * 3
    for request in range(3):
        alone = run_of(model, range(request, request + 1), sampling, window).finish()
        assert alone.tokens.tolist() == [expected[request][0]]


def check_against_plain(model: Any) -> None:
    plain, placed = (run_of(model, range(3), DRAWN, window).finish() for window in (None, SIDE))
    assert torch.equal(plain.tokens, placed.tokens)
    assert placed.trace.target_passes == plain.trace.target_passes
    assert placed.trace.rows_fed == plain.trace.rows_fed == [COUNT - 1] * 3


def test_a_window_of_a_whole_line_is_plain_decoding(model: Any) -> None:
    check_against_plain(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_take_places_with_the_bits_of_plain_decoding(own_kernels: None, dtype: torch.dtype) -> None:
    model = make_model(grid_size=SIDE, condition_rotary="identity").to(dtype)
    check_against_plain(model)
    if dtype == torch.float32:
        assert run_of(model, range(1), DRAWN, 2).finish().tokens.tolist() == [oracle(model, 0, DRAWN, 2)[0]]


def differs(model: Any, window: int) -> bool:
    """Whether any of three requests has other tokens than the oracle's."""
    tokens = run_of(model, range(3), DRAWN, window).finish().tokens.tolist()
    return any(tokens[request] != oracle(model, request, DRAWN, window)[0] for request in range(3))


VISIBLE, FED = StaggeredLines._visible, StaggeredLines._fed_in


def stand_in_seen_below(order: StaggeredLines, fed: list, number: int) -> Tensor:
    visible = VISIBLE(order, fed, number)
    for row, token in zip(visible, fed, strict=True):
        if token.line > 1:
            row[COUNT + token.line - 2] = True
    return visible


def undecided_seen(order: StaggeredLines, fed: list, number: int) -> Tensor:
    visible = VISIBLE(order, fed, number)
    visible[:, :COUNT] = torch.arange(COUNT) <= torch.tensor([[token.position] for token in fed])
    return visible


def last_token_not_fed(order: StaggeredLines, number: int) -> list:
    order._fed_in_pass[SIDE - 1 :: SIDE] = COUNT**2  # nor seen
    return [token for token in FED(order, number) if token.draws is not None]


def overtaking(order: StaggeredLines, line: int) -> int:
    return line * order.window - 2 * (line == 2)


FAULTS = [
    ("_visible", stand_in_seen_below),
    ("_visible", undecided_seen),
    ("_fed_in", last_token_not_fed),
    ("opens_in", overtaking),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_faults_change_tokens(model: Any, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any) -> None:
    assert not differs(model, 2)
    monkeypatch.setattr(StaggeredLines, name, fault)
    assert differs(model, 2)


def test_other_requests_take_all_rows_together(model: Any) -> None:
    def start(requests: range, joins: bool) -> DecodeRun:
        return run_of(model, requests, DRAWN, 2, prompt_only=joins)

    rows = {each.request: each for each in decode_queue(start, len(LENGTHS), 3)}
    for request in range(len(LENGTHS)):
        alone = run_of(model, range(request, request + 1), DRAWN, 2).finish()
        assert torch.equal(rows[request].tokens, alone.tokens[0])
        assert rows[request].trace.row_passes == alone.trace.row_passes
        assert rows[request].trace.rows_fed == alone.trace.rows_fed


def test_rows_do_not_change_half_way(model: Any) -> None:
    run, other = run_of(model, range(2), DRAWN, 2), run_of(model, range(2, 3), DRAWN, 2)
    run.start()
    run.step()
    other.start()
    with pytest.raises(ValueError, match="must all have ended"):
        run.replace_rows(torch.tensor([0]), other)


def test_lengths_count_the_places_without_a_gap(model: Any) -> None:
    run, order = run_of(model, range(1), DRAWN, 2), StaggeredLines(COUNT, SIDE, 2)
    run.start()
    for number in range(1, order.num_passes):
        run.step()
        drawn = {place for place in range(COUNT) if order.drawn_in(place) <= number}
        leading = next((place for place in range(COUNT) if place not in drawn), COUNT)
        assert run.state.lengths.tolist() == [leading] == [order.leading(number)]
    assert not run.state.active.any() and run.step() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((25, 5, 0), "window must be"),
        ((25, 5, 6), r"window must be at most line_length \(5\), got 6"),
        ((25, 4, 1), r"num_places must be a multiple of line_length \(4\), got 25"),
    ],
)
def test_orders_that_do_not_fit_are_named(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaggeredLines(*arguments)


def test_settings_that_do_not_go_with_places_are_named(model: Any) -> None:
    target = LlamaGenTarget(model, *condition(model, range(1)))
    settings: dict[str, Any] = {
        "order": StaggeredLines(COUNT, SIDE, 2),
        "max_new_tokens": COUNT,
        "sampling": DRAWN,
        "streams": RandomStreams.from_seeds([0]),
    }
    for changes, message in (
        ({"verifier": ExactVerifier()}, "verifier must be None"),
        ({"stop_token": 3}, "stop_token must be None"),
        ({"max_new_tokens": 20}, "order must have max_new_tokens"),
        ({"schedule": object()}, "schedule must be None"),
    ):
        with pytest.raises(ValueError, match=message):
            new_run(target, **{**settings, **changes})
    with pytest.raises(ValueError, match="num_slots must be at most 25"):
        new_run(target, **settings).finish()
    other = MarkovTarget(random_table(8, seed=1), torch.zeros(1, 2, dtype=torch.int64), COUNT)
    with pytest.raises(ValueError, match="MarkovTarget takes no places"):
        PlacedRun(other, **settings)
