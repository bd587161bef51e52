"""Weights, logits and pixels that are no numbers end a run in one line that says where they were found."""

import emu3_models
import family_pipelines
import glm_image_models
import pytest
import torch
from refusals import raised, refused
from safetensors.torch import load_file, save_file

from vargen.base.errors import NotFiniteError
from vargen.checkpoints.finite import check_pixels, check_weights
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.llamagen import LlamaGenPipeline


class _Quantized(torch.Tensor):
    """A weight that no function takes, as those of torchao are for most of them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "aminmax" in str(func):
            raise NotImplementedError
        return super().__torch_function__(func, types, args, kwargs or {})


def test_quantized_weights_are_not_looked_into():
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.ones(2, 2).as_subclass(_Quantized))
    check_weights(model, "somewhere")
    with torch.no_grad():
        model.bias[0] = torch.nan
    refused("the weights bias are not finite", check_weights, model, "somewhere")


def test_what_overflows_in_another_precision_is_said_to(tiny_model_folder):
    path = tiny_model_folder / "transformer" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    weights[sorted(weights)[0]].view(-1)[0] = 1e6
    save_file(weights, path, metadata={"format": "pt"})
    LlamaGenPipeline.from_pretrained(tiny_model_folder)
    refused("finite in float16; .* dtype", LlamaGenPipeline.from_pretrained, tiny_model_folder, dtype=torch.float16)


@pytest.mark.parametrize("method", ["ar", "sjd"])
def test_logits_that_overflow_name_the_picture_and_the_step(tiny_model_folder, method):
    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    with torch.no_grad():
        pipeline.transformer.lm_head.weight.fill_(1e38)
    message = "picture 1 of the batch: the model's logits are not finite at step 0"
    raised(NotFiniteError, message, pipeline, ["a red cube", "a blue sphere"], method=method)


def test_pixels_that_are_none_name_the_picture():
    pictures = torch.zeros(3, 3, 4, 4)
    check_pixels(pictures)
    pictures[1, 2, 3, 3] = torch.nan
    raised(NotFiniteError, "picture 2 of the batch has pixels that are not finite", check_pixels, pictures)


@pytest.mark.parametrize(
    ("models", "kind", "file"),
    [
        (emu3_models, Emu3Pipeline, "model.safetensors"),
        (glm_image_models, GlmImagePriorPipeline, "vision_language_encoder/model.safetensors"),
        (glm_image_models, GlmImagePriorPipeline, "transformer/diffusion_pytorch_model.safetensors"),
    ],
    ids=["emu3", "glm_image", "glm_image, its transformer"],
)
def test_other_families_are_looked_at_too(models, kind, file, tmp_path):
    models.save(tmp_path)
    weights = load_file(tmp_path / file)
    name = sorted(weights)[2]
    weights[name].view(-1)[0] = torch.nan
    save_file(weights, tmp_path / file, metadata={"format": "pt"})
    refused(r"the weights \S+ are not finite in float32; copy the file", kind.from_pretrained, tmp_path)


@pytest.mark.parametrize("family", ["emu3", "glm_image"])
def test_pixels_of_other_families_that_are_none_name_the_picture(family):
    pipeline, asked = family_pipelines.build(family), {"num_inference_steps": 1} if family == "glm_image" else {}
    decoder = pipeline.model.model.vqmodel.decoder if family == "emu3" else pipeline.vae.decoder
    with torch.no_grad():
        decoder.conv_out.bias.fill_(torch.nan)
    with pytest.raises(NotFiniteError, match="picture 1 of the batch has pixels that are not finite"):
        pipeline("a dog", method="ar", **family_pipelines.SIZES[family], **asked)
