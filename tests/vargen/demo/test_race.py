"""Pictures drawn side by side are those that each method draws of the seed alone."""

from __future__ import annotations

import threading

import janus_models
import pytest
import torch

from vargen.demo.race import Commission, Race
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.base import beside
from vargen.pipelines.janus import JanusPipeline

METHODS = {"plain": resolve_method("ar"), "drafted": resolve_method("scd", {"window": 3})}


def alone(pipeline, method, seed: int) -> torch.Tensor:
    """Tokens of one picture."""
    generator = torch.Generator().manual_seed(seed)
    return pipeline("a red cube", method=method, generator=generator, guidance_scale=2.0, output_type="latent").tokens


def test_every_lane_draws_the_picture_of_its_seed(tiny_pipeline) -> None:
    race = Race(tiny_pipeline, Commission("a red cube", (4, 5), 2.0), METHODS)
    looks = list(race.run())
    for lane in looks[-1]:
        expected = torch.cat([alone(tiny_pipeline, lane.method, seed) for seed in (4, 5)])
        assert lane.finished and torch.equal(lane.tokens, expected)
        assert lane.passes == lane.trace.target_passes and lane.lengths == [16, 16] and lane.seconds > 0
    plain, drafted = looks[-1]
    assert plain.passes == 16 > drafted.passes


def test_two_requests_at_once_give_each_the_picture_of_its_seed(tiny_pipeline) -> None:
    races = [Race(tiny_pipeline, Commission("a red cube", (seed,), 2.0), METHODS) for seed in (1, 2)]
    threads = [threading.Thread(target=lambda race=race: list(race.run())) for race in races]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for race, seed in zip(races, (1, 2), strict=True):
        for lane in race.lanes:
            assert torch.equal(lane.tokens, alone(tiny_pipeline, lane.method, seed))


def test_another_family_is_drawn_and_shown_alike() -> None:
    janus = JanusPipeline(janus_models.make(), janus_models.processor())
    janus.set_progress_bar_config(disable=True)
    *_, lanes = Race(janus, Commission(janus_models.PROMPTS[0], (3,)), METHODS).run()
    for lane in lanes:
        generator = torch.Generator().manual_seed(3)
        expected = janus(janus_models.PROMPTS[0], generator=generator, method=lane.method)
        assert torch.equal(lane.tokens, expected.tokens)
        assert lane.images[0].tobytes() == expected.images[0].tobytes()


def test_pipelines_side_by_side_share_weights_and_no_cache(tiny_pipeline) -> None:
    alone(tiny_pipeline, METHODS["plain"], 0)
    other = beside(tiny_pipeline)
    assert other.transformer is tiny_pipeline.transformer
    alone(other, METHODS["plain"], 0)
    assert other.reuse.memory.caches is not tiny_pipeline.reuse.memory.caches


def test_rows_appear_as_they_are_decided(tiny_pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(tiny_pipeline, Commission("a red cube", (0,)), {"plain": METHODS["plain"]})
    shown = []
    preview = race._preview
    monkeypatch.setattr(race, "_preview", lambda *args: shown.append(preview(*args)) or shown[-1])
    list(race.run())
    assert 4 <= len(shown) <= 8
    for images in shown[:-1]:
        alpha = images[0].getchannel("A")
        assert set(alpha.getdata()) == {0, 255}
        assert alpha.getpixel((0, 0)) == 255 and alpha.getpixel((7, 7)) == 0


def test_rows_that_are_drawn_side_by_side_appear_together(tiny_pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(tiny_pipeline, Commission("a red cube", (0,)), {"rows": resolve_method("zipar", {"window": 2})})
    shown = []
    preview = race._preview
    monkeypatch.setattr(race, "_preview", lambda *args: shown.append(preview(*args)) or shown[-1])
    list(race.run())
    begun = []
    for images in shown:
        alpha = images[0].getchannel("A")
        counts = [sum(alpha.getpixel((2 * column, 2 * row)) == 255 for column in range(4)) for row in range(4)]
        assert counts == sorted(counts, reverse=True)  # none overtakes
        begun.append(sum(0 < count < 4 for count in counts))
    assert max(begun) == 2


def test_a_stop_ends_both_before_their_end(tiny_pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    race = Race(tiny_pipeline, Commission("a red cube", (0,)), METHODS)
    step = race._step

    def stop_at_once(*args) -> None:
        race.stop()
        step(*args)

    monkeypatch.setattr(race, "_step", stop_at_once)
    *_, lanes = race.run()
    assert not any(lane.finished or lane.error for lane in lanes)
    assert sum(lane.passes for lane in lanes) <= 2


def test_a_failure_stands_in_its_lane_and_the_other_goes_on(tiny_pipeline) -> None:
    methods = {"plain": METHODS["plain"], "eagle": resolve_method("eagle", {"total_tokens": 3, "depth": 2})}
    *_, lanes = Race(tiny_pipeline, Commission("a red cube", (0,)), methods).run()
    assert lanes[0].finished
    assert not lanes[1].finished and "drafter" in lanes[1].error
