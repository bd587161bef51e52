"""LVSpec on a Video-LLM: looseness saves passes, and none is plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from specdecode.loop import DecodeResult, decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.players import Players
from vargen.video.prompt import Prompt


def loose_answer(model: Any, inputs: dict[str, Tensor], ratio: float) -> DecodeResult:
    config = LVSpecConfig(drafter="self", draft_length=6, keep_ratio=0.2, loose_ratio=ratio)
    players = config.build(Prompt(model, [inputs], max_new_tokens=30))
    assert isinstance(players, Players)
    return decode(
        players.target,
        max_new_tokens=30,
        sampling=SamplingConfig(temperature=0.0),
        streams=RandomStreams.from_seeds([0]),
        drafter=players.drafter,
        verifier=players.verifier,
    )


def test_looseness_saves_passes_and_none_is_strict(
    architecture: str, models: Callable[..., Any], inputs_of: Callable[..., dict[str, Tensor]]
) -> None:
    model, inputs = models(architecture), inputs_of(architecture, 3)
    results = [loose_answer(model, inputs, ratio) for ratio in (0.0, 0.7, 1.0)]
    plain = model.generate(**inputs, max_new_tokens=30, do_sample=False, eos_token_id=[-1])
    assert results[0].tokens[0].tolist() == plain[0, inputs["input_ids"].shape[1] :].tolist()
    passes = [result.trace.target_passes for result in results]
    assert passes == sorted(passes, reverse=True) and passes[-1] == 1 + -(-29 // 7)
