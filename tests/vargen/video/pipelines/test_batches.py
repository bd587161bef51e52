"""Several requests at once: each row's tokens are those of its request alone, whatever its neighbours are."""

from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.methods.catalogue import methods_for, resolve_method
from vargen.video.drafters.video_head_folder import new_video_head
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Decoded, Generation, decode

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


# One architecture shows that draws are each row's own; what greedy rows say, `test_architectures.py` has of all.
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_rows_are_what_they_are_alone(models, inputs_of, method):
    model, small = models("qwen2_5_vl"), models("qwen2_5_vl", 5, 1)
    config, sampling = method(**SETTINGS.get(method.name, {})), SamplingConfig()
    inputs = [inputs_of("qwen2_5_vl", *request) for request in REQUESTS]
    together = decoded(config, model, small, inputs, sampling).token_ids
    alone = [decoded(config, model, small, [each], sampling).token_ids[0] for each in inputs]
    assert together == alone
    assert len({tuple(row) for row in alone}) == len(alone), "answers that are alike would prove little"


def test_a_method_that_takes_one_at_a_time_says_so(models, inputs_of):
    model, inputs = models("llava_onevision"), inputs_of("llava_onevision")
    config, two = resolve_method("parallelvlm", task="video"), VideoLLMComponents(model, [inputs] * 2, LENGTH, model)
    refused("parallelvlm answers one question at a time, got 2", config.build, two)
