"""Who draws when on one pipeline: threads never share a cache, and no drawing changes another that it came between."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vargen.base.errors import UserError
from vargen.pipelines.base import beside
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a cone", "a small shiny blue sphere left of a large green cone on grass", "a red cube", "two cones"]
SCALE = 3.0
PATIENCE = 60
"""Seconds until a test that waits in vain fails."""


@pytest.fixture(scope="module")
def pipeline(drafting_pipeline: LlamaGenPipeline) -> LlamaGenPipeline:
    """In float64, so that no tie is so near that another batch's rounding decides it."""
    exact = copy.deepcopy(drafting_pipeline).to(torch.float64)
    exact.set_progress_bar_config(disable=True)
    return exact


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def call(pipeline: Any, number: int = 0, scale: float = SCALE, **arguments: Any) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    settings = {"guidance_scale": scale, "method": "ar", "output_type": "latent", **arguments}
    tokens: Tensor = pipeline(PROMPTS[number], generator=generator, **settings).tokens
    return tokens[0]


def stream(pipeline: Any, scale: float = SCALE, **arguments: Any) -> Any:
    generators = [torch.Generator().manual_seed(number) for number in range(len(PROMPTS))]
    settings = {"batch_size": 2, "guidance_scale": scale, "method": "jacobi", "output_type": "latent", **arguments}
    return iter(pipeline.stream(PROMPTS, generator=generators, **settings))


def is_each_its_own(pictures: dict[int, Tensor], pipeline: Any, scale: float = SCALE) -> bool:
    """Whether a stream gave every picture, and each as a call draws it."""
    return sorted(pictures) == [*range(len(PROMPTS))] and all(
        torch.equal(tokens, call(pipeline, number, scale)) for number, tokens in pictures.items()
    )


# ---------------------------------------------------------------------------------------------------------------------
# Threads


def test_a_call_waits_for_that_of_another_thread(
    pipeline: LlamaGenPipeline, elsewhere: Callable[..., Future[Any]]
) -> None:
    expected, order, begun = [call(pipeline, number) for number in (0, 1)], list[int](), threading.Event()

    def other() -> Tensor:
        begun.set()
        return call(pipeline, 1, callback_on_step_end=lambda *_: order.append(1))

    def watch(pipeline: Any, step: int, *_: Any) -> None:
        if step == 0:
            waiting.append(elsewhere(other))
            assert begun.wait(PATIENCE)
        order.append(0)

    waiting: list[Future[Tensor]] = []
    assert torch.equal(call(pipeline, 0, callback_on_step_end=watch), expected[0])
    assert torch.equal(waiting[0].result(PATIENCE), expected[1])
    assert order == [0] * 16 + [1] * 16


def test_threads_at_once_draw_what_each_draws_alone(pipeline: LlamaGenPipeline) -> None:
    numbers, meet = range(len(PROMPTS)), threading.Barrier(len(PROMPTS))
    expected = [call(pipeline, number) for number in numbers]

    def draw(number: int) -> list[Tensor]:
        meet.wait(PATIENCE)
        return [call(pipeline, number) for _ in range(5)]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for number, drawn in zip(numbers, pool.map(draw, numbers), strict=True):
            assert all(torch.equal(tokens, expected[number]) for tokens in drawn)


@pytest.mark.parametrize("others", [call, lambda pipeline: next(stream(pipeline))], ids=["call", "stream"])
def test_another_thread_is_refused_while_a_stream_is_open(
    pipeline: LlamaGenPipeline, others: Callable[[Any], Any], elsewhere: Callable[..., Future[Any]]
) -> None:
    opened = stream(pipeline)
    first, at_once = next(opened), []

    def refused() -> str:
        with pytest.raises(UserError) as caught:
            others(pipeline)
        return str(caught.value)

    def look(*_: Any) -> None:  # also while this thread has the turn: nobody waits for a stream
        at_once.append(elsewhere(refused).result(PATIENCE))

    call(pipeline, callback_on_step_end=look)
    line = "pipeline is drawing in another thread; give each thread `beside(pipeline)`"
    assert {elsewhere(refused).result(PATIENCE), *at_once} == {line}
    elsewhere(others, beside(pipeline)).result(PATIENCE)
    assert is_each_its_own({each.index: each.tokens for each in (first, *opened)}, pipeline)
    elsewhere(others, pipeline).result(PATIENCE)


def test_a_stream_that_is_let_go_is_open_no_more(
    pipeline: LlamaGenPipeline, elsewhere: Callable[..., Future[Any]]
) -> None:
    caches = pipeline.reuse.memory.caches
    for _ in stream(pipeline):
        break
    assert torch.equal(elsewhere(call, pipeline).result(PATIENCE), call(pipeline))
    assert pipeline.reuse.memory.caches is caches


def test_a_stream_may_go_on_in_another_thread(
    pipeline: LlamaGenPipeline, elsewhere: Callable[..., Future[Any]]
) -> None:
    """As where a server asks for each picture in any thread of a pool."""
    opened = stream(pipeline)
    pictures = [next(opened), elsewhere(next, opened).result(PATIENCE)]
    with pytest.raises(UserError, match="drawing in another thread"):
        call(pipeline)
    pictures += opened
    assert is_each_its_own({each.index: each.tokens for each in pictures}, pipeline)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pipeline: pickle.loads(pickle.dumps(pipeline))])
def test_a_copy_of_a_pipeline_that_draws_is_free(
    pipeline: LlamaGenPipeline, copied: Callable[[Any], Any], elsewhere: Callable[..., Future[Any]]
) -> None:
    opened, copies = stream(pipeline), []
    next(opened)
    expected = call(pipeline, callback_on_step_end=lambda *_: copies.append(copied(pipeline)) if not copies else None)
    assert torch.equal(elsewhere(call, copies[0]).result(PATIENCE), expected)
    assert copies[0].guidance_scale == SCALE and copies[0].num_timesteps == 16
    assert len([*opened]) == len(PROMPTS) - 1


# ---------------------------------------------------------------------------------------------------------------------
# Drawings within others


def end(pipeline: Any, *_: Any) -> None:
    pipeline._interrupt = True


def lead_more(pipeline: Any, *_: Any) -> None:
    pipeline._guidance_scale = 9.0


def fail(*_: Any) -> None:
    raise ZeroDivisionError


def failing(pipeline: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        call(pipeline, 1, 1.0, callback_on_step_end=fail)


LEFT_OPEN: list[Any] = []
INNER: dict[str, Callable[[Any], Any]] = {
    "more guidance": lambda pipeline: call(pipeline, 1, 6.0),
    "no guidance": lambda pipeline: call(pipeline, 1, 1.0),
    "guidance of a callback": lambda pipeline: call(pipeline, 1, callback_on_step_end=lead_more),
    "interrupted": lambda pipeline: call(pipeline, 1, callback_on_step_end=end),
    "failing": failing,
    "whole stream": lambda pipeline: [*stream(pipeline, 6.0)],
    "interrupted stream": lambda pipeline: [*stream(pipeline, 6.0, callback_on_step_end=end)],
    "stream left open": lambda pipeline: (LEFT_OPEN.append(stream(pipeline, 6.0)), next(LEFT_OPEN[-1])),
    "stream let go": lambda pipeline: next(stream(pipeline, 6.0)),
}


@pytest.fixture(autouse=True)
def _close_streams() -> Iterator[None]:
    yield
    LEFT_OPEN.clear()


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("watched", [False, True], ids=["alone", "with callback"])
def test_what_is_drawn_between_two_pictures_changes_none(
    pipeline: LlamaGenPipeline, inner: Callable[[Any], Any], watched: bool
) -> None:
    pictures = {}
    for picture in stream(pipeline, callback_on_step_end=(lambda *_: None) if watched else None):
        pictures[picture.index] = picture.tokens
        inner(pipeline)
        if inner is not INNER["stream left open"]:
            assert pipeline.guidance_scale == SCALE and not pipeline.interrupt
    assert is_each_its_own(pictures, pipeline)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_what_a_callback_draws_changes_no_picture(pipeline: LlamaGenPipeline, inner: Callable[[Any], Any]) -> None:
    def draw(pipeline: Any, step: int, *_: Any) -> None:
        if step in (0, 5):
            inner(pipeline)
            assert pipeline.guidance_scale == SCALE and pipeline.num_timesteps == step + 1 and not pipeline.interrupt

    assert torch.equal(call(pipeline, callback_on_step_end=draw), call(pipeline))
    pictures = {each.index: each.tokens for each in stream(pipeline, callback_on_step_end=draw)}
    assert is_each_its_own(pictures, pipeline)


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_what_a_callback_asked_for_stays_whatever_it_draws(
    pipeline: LlamaGenPipeline, inner: Callable[[Any], Any]
) -> None:
    def ask(pipeline: Any, step: int, *_: Any) -> None:
        pipeline._guidance_scale, pipeline._interrupt = 9.0, step == 5
        inner(pipeline)

    def ask_alone(pipeline: Any, *_: Any) -> None:
        lead_more(pipeline)

    whole = call(pipeline, callback_on_step_end=ask_alone)
    assert not torch.equal(whole, call(pipeline))
    tokens = call(pipeline, callback_on_step_end=ask)
    assert torch.equal(tokens[:6], whole[:6]) and not tokens[6:].any()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.sampled_from([0, 1, 2]), max_size=12))
def test_streams_in_turns_keep_their_own_guidance(pipeline: LlamaGenPipeline, turns: list[int]) -> None:
    scales = (1.0, 3.0, 6.0)
    streams = [stream(pipeline, scale) for scale in scales]
    pictures: list[dict[int, Tensor]] = [{} for _ in scales]
    for which in [*turns, *[0, 1, 2] * len(PROMPTS)]:
        if (picture := next(streams[which], None)) is not None:
            assert pipeline.guidance_scale == scales[which], "of the stream that drew last"
            pictures[which][picture.index] = picture.tokens
    for own, scale in zip(pictures, scales, strict=True):
        assert is_each_its_own(own, pipeline, scale)


# ---------------------------------------------------------------------------------------------------------------------
# The end that nobody's callback asked for


def test_a_call_without_a_callback_is_interrupted(pipeline: LlamaGenPipeline) -> None:
    whole, passes = call(pipeline), []

    def count(*_: Any) -> None:
        passes.append(None)
        pipeline._interrupt = len(passes) == 6

    watching = pipeline.transformer.lm_head.register_forward_hook(count)
    try:
        tokens = call(pipeline)
    finally:
        watching.remove()
    assert torch.equal(tokens[:6], whole[:6]) and not tokens[6:].any()
    assert len(passes) == pipeline.num_timesteps == 6 and pipeline.interrupt
    assert torch.equal(call(pipeline), whole) and not pipeline.interrupt


@pytest.mark.parametrize("continuous", [True, False])
def test_a_stream_without_a_callback_is_interrupted_between_pictures(
    pipeline: LlamaGenPipeline, continuous: bool
) -> None:
    given = []
    for picture in stream(pipeline, method="ar", continuous=continuous):
        given.append(picture.index)
        call(pipeline, 1, callback_on_step_end=end)  # which ends itself alone
        pipeline._interrupt = True
    assert given == [0, 1], "those that were finished together"
