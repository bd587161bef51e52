"""A model's generation config is honoured as `generate` honours it, or refused by name."""

import pytest
import torch
from refusals import refused
from tiny_video_llms import by_generate
from transformers import GenerationConfig

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.video.methods.parallelvlm import ParallelConfig
from vargen.video.methods.plain import PlainConfig
from vargen.video.methods.speculative import SpeculativeConfig, SpecVLMConfig
from vargen.video.models.generation_settings import GenerationSettings, generation_settings
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Generation, decode

GREEDY = SamplingConfig(temperature=0.0)


@pytest.mark.parametrize(
    ("own", "asked", "wanted"),
    [
        ({}, {}, GenerationSettings(GREEDY)),
        # Those of published models: Qwen2-VL, Qwen2.5-VL, Qwen3-VL.
        (
            {"do_sample": True, "temperature": 0.01, "top_k": 1, "top_p": 0.001},
            {},
            GenerationSettings(SamplingConfig(0.01, 1, 0.001)),
        ),
        ({"do_sample": True, "temperature": 1e-6, "repetition_penalty": 1.05}, {}, GenerationSettings(GREEDY, 1.05)),
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0},
            {},
            GenerationSettings(SamplingConfig(0.7, 20, 0.8)),
        ),
        ({"do_sample": True, "temperature": 0.7, "top_k": 20}, {"temperature": 0.0}, GenerationSettings(GREEDY)),
        ({"top_k": 20}, {"temperature": 0.5, "top_p": 0.9}, GenerationSettings(SamplingConfig(0.5, 20, 0.9))),
        ({}, {"temperature": 1.0}, GenerationSettings(SamplingConfig(1.0, 50, 1.0))),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.0}, GenerationSettings(GREEDY)),
    ],
)
def test_settings_are_merged_as_by_generate(own, asked, wanted):
    assert generation_settings(GenerationConfig(**own), **asked) == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_beams", 3), ("no_repeat_ngram_size", 2), ("min_p", 0.1), ("suppress_tokens", [3]), ("min_new_tokens", 4)],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, value):
    refused(f"generation_config.json asks for {name}", generation_settings, GenerationConfig(**{name: value}))


@pytest.mark.parametrize("asked", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"repetition_penalty": 0.0}])
def test_numbers_out_of_range_are_refused_by_name(asked):
    refused(next(iter(asked)), generation_settings, GenerationConfig(), **asked)


@pytest.mark.parametrize(
    "method",
    [
        PlainConfig(),
        SpeculativeConfig(keep_ratio=0.5),
        SpecVLMConfig(),
        ParallelConfig(workers="in_turn", draft_length=3),
    ],
    ids=lambda method: method.name,
)
def test_what_was_said_is_less_likely_as_in_generate(method, models, inputs_of):
    model, draft, inputs = models("qwen2_5_vl"), models("qwen2_5_vl", 5, 2), inputs_of("qwen2_5_vl", 1)
    said = []
    for penalty in (1.0, 1.3):
        expected = by_generate(model, inputs, 16, repetition_penalty=penalty)
        components = VideoLLMComponents(model, [inputs], 16, draft, repetition_penalty=penalty)
        generation = Generation(16, GREEDY, [0], (), DecodeTrace(1, torch.device("cpu")))
        assert decode(method.build(components), generation).token_ids == [expected]
        said.append(expected)
    assert said[0] != said[1], "a penalty that changes nothing would prove nothing"
