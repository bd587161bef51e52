"""Who draws when on one pipeline: threads never share a cache, and no drawing changes another that it came between."""

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
from refusals import raised, refused
from seeds import seeded
from torch import Tensor

from vargen.pipelines.base import beside
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a cone", "a small shiny blue sphere left of a large green cone on grass", "a red cube", "two cones"]
SCALE = 3.0
PATIENCE = 60
"""Seconds until a test that waits in vain fails."""


@pytest.fixture(scope="module")
def pipeline(drafting_pipeline: LlamaGenPipeline) -> LlamaGenPipeline:
    """In float64, so that no tie is so near that another batch's rounding decides it."""
    return copy.deepcopy(drafting_pipeline).to(torch.float64)


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def call(pipeline: Any, number: int = 0, scale: float = SCALE, **arguments: Any) -> Tensor:
    settings = {"guidance_scale": scale, "method": "ar", "output_type": "latent", **arguments}
    return pipeline(PROMPTS[number], generator=seeded(number), **settings).tokens[0]


def stream(pipeline: Any, scale: float = SCALE, **arguments: Any) -> Any:
    generators = seeded(*range(len(PROMPTS)))
    settings = {"batch_size": 2, "guidance_scale": scale, "method": "jacobi", "output_type": "latent", **arguments}
    return iter(pipeline.stream(PROMPTS, generator=generators, **settings))


def is_each_its_own(pictures: dict[int, Tensor], pipeline: Any, scale: float = SCALE, method: str = "ar") -> bool:
    """Whether a stream gave every picture, and each as a call draws it."""
    return sorted(pictures) == [*range(len(PROMPTS))] and all(
        torch.equal(tokens, call(pipeline, number, scale, method=method)) for number, tokens in pictures.items()
    )


# ---------------------------------------------------------------------------------------------------------------------
# Threads


def test_a_call_waits_for_that_of_another_thread(pipeline, elsewhere):
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


def test_threads_at_once_draw_what_each_draws_alone(pipeline):
    numbers, meet = range(len(PROMPTS)), threading.Barrier(len(PROMPTS))
    expected = [call(pipeline, number) for number in numbers]

    def draw(number: int) -> list[Tensor]:
        meet.wait(PATIENCE)
        return [call(pipeline, number) for _ in range(5)]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        for number, drawn in zip(numbers, pool.map(draw, numbers), strict=True):
            assert all(torch.equal(tokens, expected[number]) for tokens in drawn)


@pytest.mark.parametrize("others", [call, lambda pipeline: next(stream(pipeline))], ids=["call", "stream"])
def test_everyone_else_is_refused_while_a_stream_is_open(pipeline, others, elsewhere):
    opened = stream(pipeline)
    first = next(opened)

    line = r"^pipeline is drawing already \(a stream of it is open: finish or close it\); draw with `beside\(pipeline"
    elsewhere(refused, line, others, pipeline).result(PATIENCE)
    refused(line, others, pipeline)
    elsewhere(others, beside(pipeline)).result(PATIENCE)
    assert is_each_its_own({each.index: each.tokens for each in [first, *opened]}, pipeline)
    elsewhere(others, pipeline).result(PATIENCE)


def test_a_stream_that_is_let_go_is_open_no_more(pipeline, elsewhere):
    caches = pipeline.reuse.memory.caches
    for _ in stream(pipeline):
        break
    kept = pipeline.stream(PROMPTS, method="ar", output_type="latent")
    next(iter(kept))
    kept.close()
    assert torch.equal(elsewhere(call, pipeline).result(PATIENCE), call(pipeline))
    assert pipeline.reuse.memory.caches is caches


def test_a_stream_may_go_on_in_another_thread(pipeline, elsewhere):
    """As where a server asks for each picture in any thread of a pool."""
    opened = stream(pipeline)
    pictures = [next(opened), elsewhere(next, opened).result(PATIENCE)]
    refused("drawing already", call, pipeline)
    pictures += opened
    assert is_each_its_own({each.index: each.tokens for each in pictures}, pipeline)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pipeline: pickle.loads(pickle.dumps(pipeline))])
def test_a_copy_of_a_pipeline_that_draws_is_free(pipeline, copied, elsewhere):
    copies: list[Any] = []
    expected = call(pipeline, callback_on_step_end=lambda *_: copies.append(copied(pipeline)) if not copies else None)
    assert torch.equal(elsewhere(call, copies[0]).result(PATIENCE), expected)
    assert copies[0].guidance_scale == SCALE and copies[0].num_timesteps == 16


# ---------------------------------------------------------------------------------------------------------------------
# Drawings within others


END = {"callback_on_step_end": lambda pipeline, *_: setattr(pipeline, "_interrupt", True)}
FAIL = {"callback_on_step_end": lambda *_: 1 / 0}
LEAD_MORE = {"callback_on_step_end": lambda pipeline, *_: setattr(pipeline, "_guidance_scale", 9.0)}
INNER: dict[str, Callable[[Any], Any]] = {
    "more guidance": lambda pipeline: call(pipeline, 1, 6.0),
    "no guidance": lambda pipeline: call(pipeline, 1, 1.0),
    "guidance of a callback": lambda pipeline: call(pipeline, 1, **LEAD_MORE),
    "interrupted": lambda pipeline: call(pipeline, 1, **END),
    "failing": lambda pipeline: raised(ZeroDivisionError, "by zero", call, pipeline, 1, 1.0, **FAIL),
    "whole stream": lambda pipeline: [*stream(pipeline, 6.0)],
    "interrupted stream": lambda pipeline: [*stream(pipeline, 6.0, **END)],
    "stream let go": lambda pipeline: next(stream(pipeline, 6.0)),
}


@pytest.mark.parametrize("inner", [call, lambda pipeline: next(stream(pipeline))], ids=["call", "stream"])
def test_nothing_is_drawn_within_a_callback(pipeline, inner):
    within = {"callback_on_step_end": lambda *_: inner(pipeline)}
    refused(r"^pipeline is drawing already \(in this callback\); draw with `beside", call, pipeline, **within)
    refused(r"^pipeline is drawing already \(a stream of it is open", next, stream(pipeline, **within))
    assert call(pipeline).numel(), "what was refused left nothing behind"


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_what_is_drawn_beside_a_pipeline_changes_no_picture(pipeline, inner):
    """Between two pictures of a stream and in a callback: each pipeline has a memory and a guidance of its own."""
    other = beside(pipeline)

    def draw(pipeline: Any, step: int, *_: Any) -> None:
        if step in (0, 5):
            inner(other)
            assert pipeline.guidance_scale == SCALE and pipeline.num_timesteps == step + 1 and not pipeline.interrupt

    assert torch.equal(call(pipeline, callback_on_step_end=draw), call(pipeline))
    pictures = {}
    for picture in stream(pipeline, callback_on_step_end=draw):
        pictures[picture.index] = picture.tokens
        inner(other)
        assert pipeline.guidance_scale == SCALE and not pipeline.interrupt
    assert is_each_its_own(pictures, pipeline)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.sampled_from([0, 1, 2]), max_size=12),
    method=st.sampled_from(["jacobi", "eagle", "draft-model", "vvs"]),
)
def test_streams_of_pipelines_beside_each_other_keep_their_own_guidance(pipeline, turns, method):
    scales = (1.0, 3.0, 6.0)
    pipelines = [beside(pipeline) for _ in scales]
    streams = [stream(each, scale, method=method) for each, scale in zip(pipelines, scales, strict=True)]
    pictures: list[dict[int, Tensor]] = [{} for _ in scales]
    for which in [*turns, *[0, 1, 2] * len(PROMPTS)]:
        if (picture := next(streams[which], None)) is not None:
            pictures[which][picture.index] = picture.tokens
        assert torch.is_grad_enabled()
    for own, scale, each in zip(pictures, scales, pipelines, strict=True):
        assert each.guidance_scale == scale and is_each_its_own(own, pipeline, scale, method)


# ---------------------------------------------------------------------------------------------------------------------
# The end that nobody's callback asked for


def test_a_call_without_a_callback_is_interrupted(pipeline):
    whole, passes = call(pipeline), []

    def count(*_: Any) -> None:
        passes.append(None)
        pipeline._interrupt = len(passes) == 6

    with pipeline.transformer.lm_head.register_forward_hook(count):
        tokens = call(pipeline)
    assert torch.equal(tokens[:6], whole[:6]) and not tokens[6:].any()
    assert len(passes) == pipeline.num_timesteps == 6 and pipeline.interrupt
    assert torch.equal(call(pipeline), whole) and not pipeline.interrupt


@pytest.mark.parametrize("continuous", [True, False])
def test_a_stream_without_a_callback_is_interrupted_between_pictures(pipeline, continuous):
    given = []
    for picture in stream(pipeline, method="ar", continuous=continuous):
        given.append(picture.index)
        pipeline._interrupt = True
    assert given == [0, 1], "those that were finished together"
