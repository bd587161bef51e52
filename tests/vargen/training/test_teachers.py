"""What a drafter learns from, for families of transformers: states of decoding, numbers, a drafter that fits."""

from typing import Any

import family_pipelines
import janus_models
import pytest
import torch
from recorded import recorded

from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.training.teachers import TransformersTeacher, teacher_of


@pytest.fixture(scope="module", params=["janus", "emu3"])
def pipeline(request: pytest.FixtureRequest) -> Any:
    made = family_pipelines.build(request.param)
    made.model.float()
    return made


def draw(pipeline: Any, method: Any = "ar") -> Any:
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    return pipeline(janus_models.PROMPTS, generator=generators, method=method, temperature=0, output_type="latent")


@pytest.mark.parametrize("layers", [(), (1, 3)], ids=["last", "two depths"])
def test_a_teacher_says_what_decoding_sees(pipeline, layers):
    """Prompts of different lengths, both halves of guidance, several depths, and guided logits."""
    teacher = teacher_of(pipeline)
    assert isinstance(teacher, TransformersTeacher) and teacher.halves == 2
    target = pipeline.target_of(janus_models.PROMPTS, 1)
    target.feature_layers = layers
    assert teacher.num_layers == 3
    seen, tokens = recorded(target), draw(pipeline).tokens
    streams = RandomStreams.from_seeds([0, 1, 2])
    decode(target, max_new_tokens=tokens.shape[1], sampling=SamplingConfig(0), streams=streams)
    features, mask, length = teacher.features(janus_models.PROMPTS, tokens, layers)
    stepwise = torch.cat([output.hidden_states for output in seen if output.hidden_states is not None], 1)
    rows = torch.cat(stepwise.chunk(2, -1))
    size = (6, length + tokens.shape[1] - 1, 32 * max(len(layers), 1))
    assert features.shape == rows.shape == size and not mask.all()
    valid = torch.cat((mask, torch.ones(6, tokens.shape[1] - 1, dtype=torch.bool)), 1)
    torch.testing.assert_close(features[valid], rows[valid], rtol=1e-4, atol=1e-4)
    guided = teacher.guided(teacher.logits(features[:, length - 1 :, -32:]))
    logits = torch.cat([output.logits for output in seen], 1)
    codes = tokens < 24  # the end of a line is forced while drawing, and no drafter is asked for it
    torch.testing.assert_close(guided.argmax(-1)[codes], logits.argmax(-1)[codes])
