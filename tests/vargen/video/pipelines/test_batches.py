"""Several requests at once: each row's tokens are those of its request alone, whatever its neighbours are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.base.errors import UserError
from vargen.methods.catalogue import methods_for, resolve_method
from vargen.video.drafters.video_head_folder import new_video_head
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Decoded, Generation, decode

Models = Callable[..., Any]
Inputs = Callable[..., dict[str, Tensor]]
# Seed, words of the question and frames of each.
REQUESTS = ((3, 6, 4), (1, 9, 2), (4, 3, 6))
METHODS = [method for method in methods_for("video").values() if not method.one_at_a_time]
SETTINGS: dict[str, dict[str, Any]] = {
    "sd": {"keep_ratio": 0.3, "pruning": "visual_gain"},
    "specvlm": {"keep_ratio": 0.3},
    "lvspec": {"keep_ratio": 0.3},
    "fly": {"keep_ratio": 0.3, "threshold": 0.01},
    "eagle": {"tree": "dynamic", "total_tokens": 12, "depth": 3},
}
LENGTH = 22


def decoded(
    config: VideoMethodConfig, model: Any, small: Any, inputs: list[dict[str, Tensor]], sampling: SamplingConfig
) -> Decoded:
    def trained(kind: str, folder: str | None) -> Any:
        torch.manual_seed(0)
        return new_video_head(kind, model).eval()

    components = VideoLLMComponents(model, inputs, LENGTH, small, (2,), trained)
    seeds = [int(each["input_ids"][0, -1]) for each in inputs]  # of a request, wherever it stands
    trace = DecodeTrace(len(inputs))
    result = decode(config.build(components), Generation(LENGTH, sampling, seeds, [2], trace))
    assert [len(row) for row in result.token_ids] == trace.row_tokens
    for row in range(len(inputs)):
        alone = trace.of_row(row)
        assert alone.row_tokens == [trace.row_tokens[row]] and alone.row_passes == [trace.row_passes[row]]
        assert alone.accepted_lengths == [trace.accepted_lengths[row]]
        assert alone.token_origins == [trace.token_origins[row]]
    return result


@pytest.fixture(scope="module")
def plain(models: Models, inputs_of: Inputs) -> Callable[[str], list[list[int]]]:
    """What `generate` says to each request, greedily, by architecture."""

    @cache
    def get(architecture: str) -> list[list[int]]:
        model, answers = models(architecture), []
        for request in REQUESTS:
            each = inputs_of(architecture, *request)
            output = model.generate(**each, max_new_tokens=LENGTH, do_sample=False, eos_token_id=2)
            answers.append(output[0, each["input_ids"].shape[1] :].tolist())
        return answers

    return get


# Draws are made of numbers alone, so one architecture shows that they are each row's own.
@pytest.mark.parametrize(
    ("architecture", "temperature"),
    [("qwen2_5_vl", 1.0), ("llava_onevision", 0.0)],
    indirect=["architecture"],
)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_rows_are_what_they_are_alone(
    architecture: str,
    models: Models,
    inputs_of: Inputs,
    plain: Callable[[str], list[list[int]]],
    method: type[VideoMethodConfig],
    temperature: float,
) -> None:
    model, small = models(architecture), models(architecture, 5, 1)
    config, sampling = method(**SETTINGS.get(method.name, {})), SamplingConfig(temperature=temperature)
    inputs = [inputs_of(architecture, *request) for request in REQUESTS]
    together = decoded(config, model, small, inputs, sampling).token_ids
    alone = [decoded(config, model, small, [each], sampling).token_ids[0] for each in inputs]
    assert together == alone
    assert len({tuple(row) for row in alone}) == len(alone), "answers that are alike would prove little"
    if config.exact and temperature == 0:
        assert together == plain(architecture)


def test_a_method_that_takes_one_at_a_time_says_so(models: Models, inputs_of: Inputs) -> None:
    model, inputs = models("llava_onevision"), inputs_of("llava_onevision")
    config = resolve_method("parallelvlm", task="video")
    with pytest.raises(UserError, match="parallelvlm answers one question at a time, got 2"):
        config.build(VideoLLMComponents(model, [inputs, inputs], LENGTH, model))
