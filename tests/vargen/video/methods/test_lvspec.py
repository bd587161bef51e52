"""LVSpec on a Video-LLM: looseness saves passes, and none is plain decoding."""

from typing import Any

from tiny_video_llms import by_generate
from torch import Tensor

from specdecode.loop import DecodeResult, decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.methods.base import VideoMethod
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.pipelines.components import VideoLLMComponents


def loose_answer(
    model: Any, inputs: dict[str, Tensor], ratio: float, branches: int = 1, temperature: float = 0.0
) -> DecodeResult:
    config = LVSpecConfig(
        drafter="self", draft_length=6, keep_ratio=0.2, loose_ratio=ratio, min_p=0.0, relevant_min_p=1.0,
        branches=branches, position_shift=True,
    )  # fmt: skip
    players = config.build(VideoLLMComponents(model, [inputs], max_new_tokens=30))
    assert isinstance(players, VideoMethod)
    return decode(
        players.target, max_new_tokens=30, sampling=SamplingConfig(temperature=temperature),
        streams=RandomStreams.from_seeds([0]), drafter=players.drafter, verifier=players.verifier,
    )  # fmt: skip


def test_looseness_saves_passes_and_none_is_strict(architecture, models, inputs_of):
    model, inputs = models(architecture), inputs_of(architecture, 3)
    results = [loose_answer(model, inputs, ratio) for ratio in (0.0, 0.7, 1.0)]
    assert results[0].tokens[0].tolist() == by_generate(model, inputs, 30)
    passes = [result.trace.target_passes for result in results]
    assert passes == sorted(passes, reverse=True) and passes[-1] == 1 + -(-29 // 7)


def test_two_branches_are_exact_without_looseness_and_never_take_more_passes(architecture, models, inputs_of):
    """Appendix E's tree: token for token plain decoding's at lambda 0, drawn tokens too."""
    model, inputs = models(architecture), inputs_of(architecture, 3)
    for temperature in (0.0, 1.0):
        chain, tree = (loose_answer(model, inputs, 0.0, branches, temperature) for branches in (1, 2))
        assert tree.tokens.tolist() == chain.tokens.tolist()
        assert tree.trace.target_passes <= chain.trace.target_passes
    assert loose_answer(model, inputs, 1.0, 2).trace.target_passes == 1 + -(-29 // 7)
