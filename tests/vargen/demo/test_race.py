"""Pictures drawn side by side are those that each method draws of the seed alone."""

import threading
from types import SimpleNamespace

import family_pipelines
import janus_models
import pytest
import torch
from tiny_pipelines import build_tiny_pipeline

from vargen.demo.race import race
from vargen.methods.catalogue import resolve_method

METHODS = {"plain": resolve_method("ar"), "drafted": resolve_method("scd", {"window": 3})}


def alone(pipeline, method, seed: int):
    """Output of one picture."""
    generator = torch.Generator().manual_seed(seed)
    return pipeline("a red cube", method=method, generator=generator, guidance_scale=2.0, output_type="latent")


def last(looks):
    *_, lanes = looks
    return lanes


def test_every_lane_draws_the_picture_of_its_seed(tiny_pipeline):
    plain, drafted = lanes = last(race(tiny_pipeline, METHODS, "a red cube", (4, 5), guidance_scale=2.0))
    for lane in lanes:
        expected = torch.cat([alone(tiny_pipeline, lane.method, seed).tokens for seed in (4, 5)])
        assert lane.finished and torch.equal(lane.tokens, expected)
        assert lane.passes == lane.trace.target_passes and lane.lengths == [16, 16] and lane.seconds > 0
    assert plain.passes == 16 > drafted.passes


@pytest.mark.parametrize("name", ["jacobi", "vvs-jacobi"])
def test_a_picture_of_the_page_takes_the_passes_of_a_call(name, tmp_path, monkeypatch):
    """A method that the page offers first, and one with several pictures to draw from."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))  # no costs of another test, and no clock
    monkeypatch.setattr("vargen.models.draft_sizes.MeasuredDraftSizes.clock", None)
    pipeline = build_tiny_pipeline()
    method = pipeline.resolve_method(name)
    called = alone(build_tiny_pipeline(), method, 1)
    (lane,) = last(race(pipeline, {name: method}, "a red cube", (1,), guidance_scale=2.0))
    assert torch.equal(lane.tokens, called.tokens) and lane.passes == called.trace.target_passes < 16


def test_two_requests_at_once_give_each_the_picture_of_its_seed(tiny_pipeline):
    drawn = {}

    def draw(seed: int) -> None:
        drawn[seed] = last(race(tiny_pipeline, METHODS, "a red cube", (seed,), guidance_scale=2.0))

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, lanes in drawn.items():
        for lane in lanes:
            assert torch.equal(lane.tokens, alone(tiny_pipeline, lane.method, seed).tokens)


def test_another_family_is_drawn_and_shown_alike():
    janus = family_pipelines.build("janus")
    for lane in last(race(janus, METHODS, janus_models.PROMPTS[0], (3,))):
        generator = torch.Generator().manual_seed(3)
        expected = janus(janus_models.PROMPTS[0], generator=generator, method=lane.method)
        assert torch.equal(lane.tokens, expected.tokens)
        assert lane.images[0].tobytes() == expected.images[0].tobytes()


def previews(pipeline, method) -> list:
    """Pictures as they are shown, one turn a step."""
    shown = []
    for (lane,) in race(pipeline, {"lane": method}, "a red cube", (0,), turn=0.0):
        if lane.images and not (shown and shown[-1] is lane.images[0]):
            shown.append(lane.images[0])
    return shown


def test_rows_appear_as_they_are_decided(tiny_pipeline, monkeypatch):
    monkeypatch.setattr("vargen.demo.race.BETWEEN_LOOKS", 0.0)
    shown = previews(tiny_pipeline, METHODS["plain"])
    assert 4 <= len(shown) <= 8
    for image in shown[:-2]:
        alpha = image.getchannel("A")
        assert set(alpha.getdata()) == {0, 255}
        assert alpha.getpixel((0, 0)) == 255 and alpha.getpixel((7, 7)) == 0


def test_rows_that_are_drawn_side_by_side_appear_together(tiny_pipeline, monkeypatch):
    monkeypatch.setattr("vargen.demo.race.BETWEEN_LOOKS", 0.0)
    begun = []
    for image in previews(tiny_pipeline, resolve_method("zipar", {"window": 2}))[:-1]:
        alpha = image.getchannel("A")
        counts = [sum(alpha.getpixel((2 * column, 2 * row)) == 255 for column in range(4)) for row in range(4)]
        assert counts == sorted(counts, reverse=True)  # none overtakes
        begun.append(sum(0 < count < 4 for count in counts))
    assert max(begun) == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The race's own, which stands unless a test moves it."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("vargen.demo.race.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_turns_go_to_whoever_has_worked_least(tiny_pipeline, clock, monkeypatch):
    """A step of the one costs three times that of the other. The cheap one ends first, as it would alone."""
    costs, order = iter((2, 6)), []

    def working(call, look, seconds, pauses):
        cost = next(costs)
        for _ in range(12):
            clock.now += cost
            order.append(cost)
            yield True

    monkeypatch.setattr("vargen.demo.race.follow", working)
    cheap, dear = last(race(tiny_pipeline, METHODS, "a red cube", (0,)))
    assert (cheap.seconds, dear.seconds) == (12 * 2, 12 * 6)
    assert order[:4] == [2, 6, 2, 2] and order[-8:] == [6] * 8


def test_previews_and_the_page_cost_no_lane_its_seconds(tiny_pipeline, clock, monkeypatch):
    def look(*_):
        clock.now += 1

    monkeypatch.setattr("vargen.demo.race._look", look)
    lanes = last(map(lambda seen: look() or seen, race(tiny_pipeline, METHODS, "a red cube", (0,), turn=0.0)))
    assert clock.now > 20 and all(lane.finished and lane.seconds == 0 for lane in lanes)


def test_a_stop_ends_both_before_their_end(tiny_pipeline, monkeypatch):
    monkeypatch.setattr("vargen.demo.race.BETWEEN_LOOKS", 0.0)
    looks = race(tiny_pipeline, METHODS, "a red cube", (0,), turn=0.0)
    lanes = next(looks)
    looks.close()
    assert not any(lane.finished or lane.error for lane in lanes) and sum(lane.passes for lane in lanes) <= 2


def test_a_failure_stands_in_its_lane_and_the_other_goes_on(tiny_pipeline):
    methods = {"plain": METHODS["plain"], "eagle": resolve_method("eagle", {"total_tokens": 3, "depth": 2})}
    plain, failed = last(race(tiny_pipeline, methods, "a red cube", (0,)))
    assert plain.finished
    assert not failed.finished and "drafter" in failed.error
