"""Training a tokenizer's decoder on drawn codes: what is drawn, what counts, what stays as it is."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cheap_training import FEW_STEPS
from diffusers.models.autoencoders.vq_model import VQModel
from refusals import refused
from resumed import assert_resumed_run_is_the_same

from scenes.captions.picture_captions import compose_caption
from scenes.training import decoder
from scenes.training.coded import PLACES, token_places
from scenes.training.decoder import DecoderTask, DecoderTrainingConfig, train_decoder
from scenes.training.transformer_pass import training_forward
from specdecode.sampling import SamplingConfig, apply_guidance, logits_to_probabilities
from vargen.models.llamagen.vq import decode_codes, encode_images
from vargen.pipelines.llamagen import LlamaGenPipeline

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path, tiny_model_folder: Path) -> DecoderTrainingConfig:
    return DecoderTrainingConfig(
        output=str(tmp_path / "decoder"), model=str(tiny_model_folder), evaluate_every=3, sample_every=3, **FEW_STEPS
    )


@pytest.fixture
def task(config: DecoderTrainingConfig, tiny_scenes) -> DecoderTask:
    return DecoderTask(config, LlamaGenPipeline.from_pretrained(config.model), tiny_scenes, CPU)


def test_the_pictures_are_those_of_the_pipelines_decoder(task):
    with torch.no_grad():
        torch.testing.assert_close(task._decode(task.heldout_codes), decode_codes(task.vqvae, task.heldout_codes))
    assert torch.equal(task.heldout_codes, encode_images(task.vqvae, task.heldout.images))


def test_codes_are_drawn_as_the_pipeline_would_draw_them(task):
    """Each from the guided distribution given the true codes before it: a chi-square test at one place."""
    torch.nn.init.normal_(task.pipeline.transformer.lm_head.weight, std=0.3)
    batch, codes = task.heldout, task.heldout_codes
    row, place, draws, at_once = 1, 5, 400, 100
    caption = compose_caption(batch.scenes[row], batch.seeds[row]).text
    embeds, mask = task.pipeline.encode_prompt([caption])
    transformer = task.pipeline.transformer
    with torch.no_grad():
        condition = transformer.embed_condition(caption_embeds=embeds)
        null = transformer.null_condition(1, condition.shape[1])
        halves = [training_forward(transformer, each, mask, codes[row][None])[0, place] for each in (condition, null)]
    settings = task.pipeline.config
    guided = apply_guidance(halves[0], halves[1], settings["default_guidance_scale"])
    expected = logits_to_probabilities(guided[None], SamplingConfig(1.0, settings["default_top_k"]))[0]

    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros_like(expected)
    for _ in range(draws // at_once):
        drawn = task._drawn([caption] * at_once, codes[row].expand(at_once, -1), generator)
        counts += torch.bincount(drawn[:, place], minlength=len(counts))
    often = expected * draws >= 5
    observed = torch.cat((counts[often], counts[~often].sum()[None]))
    wanted = torch.cat((expected[often], expected[~often].sum()[None])) * draws
    statistic = ((observed - wanted).square() / wanted.clamp_min(1e-9))[wanted > 0].sum()
    degrees = int((wanted > 0).sum()) - 1
    assert degrees >= 2 and statistic < degrees + 5 * (2 * degrees) ** 0.5
    uniform = torch.full_like(observed, draws / len(observed))
    assert ((observed - uniform).square() / uniform).sum() > degrees + 5 * (2 * degrees) ** 0.5  # it could fail


def test_a_share_of_the_pictures_gets_drawn_codes(task, monkeypatch):
    batch = task.source(0, 4, "train")
    codes = task.encode(batch.images)
    mixed, replaced = task._replaced(batch, codes, torch.Generator().manual_seed(3))
    assert replaced[:2].any() and not replaced[2:].any()
    assert torch.equal(mixed[~replaced], codes[~replaced])
    assert not torch.equal(mixed, codes)
    monkeypatch.setattr(decoder, "_DRAWN_SHARE", 0.0)
    mixed, replaced = task._replaced(batch, codes, torch.Generator().manual_seed(3))
    assert torch.equal(mixed, codes) and not replaced.any()


def test_drawn_codes_count_on_objects_and_not_on_bare_ground(task):
    batch = task.heldout
    side, factor = 4, 2
    places = token_places(batch.object_mask, batch.ground_mask, side)
    assert {PLACES[place] for place in places.unique().tolist()} > {"edge", "ground"}
    everything = torch.ones_like(task.heldout_codes, dtype=torch.bool)
    counts = task._counts(batch, everything)
    for row in range(len(places)):
        for cell, place in enumerate(places[row].tolist()):
            top, left = cell // side * factor, cell % side * factor
            pixels = counts[row, 0, top : top + factor, left : left + factor]
            assert (pixels == float(PLACES[place] in ("object", "edge"))).all()
    assert (task._counts(batch, ~everything) == 1).all()


def test_only_the_decoder_changes_and_it_gets_better(config, repeated_tiny_scenes):
    config = replace(config, steps=40, evaluate_every=1000, sample_every=1000)
    before = VQModel.from_pretrained(Path(config.model) / "vqvae")
    first = DecoderTask(config, LlamaGenPipeline.from_pretrained(config.model), repeated_tiny_scenes, CPU).evaluate()
    result = train_decoder(config, repeated_tiny_scenes)
    assert result.evaluation["psnr"] > first["psnr"] + 0.3
    assert result.evaluation["psnr_objects_drawn"] > first["psnr_objects_drawn"]
    after = VQModel.from_pretrained(Path(config.output) / "export")
    assert after.quantize.embedding.weight.dtype == torch.float32
    changed = set()
    for name, value in before.state_dict().items():
        if not torch.allclose(value.to(torch.bfloat16).float(), after.state_dict()[name].float(), atol=1e-2):
            changed.add(name.split(".")[0])
    assert changed == {"decoder", "post_quant_conv"}
    images = repeated_tiny_scenes(0, 4, "train").images
    codes = [encode_images(each.to(torch.bfloat16), images) for each in (before, after)]
    assert torch.equal(*codes)


def test_a_resumed_run_ends_with_the_same_weights(tmp_path, config, tiny_scenes):
    config = replace(config, adversarial_weight=0.1, adversarial_start=0.3)
    assert assert_resumed_run_is_the_same(train_decoder, config, tiny_scenes, tmp_path, 4)["extra_modules"]


def test_a_run_does_not_go_on_under_another_guidance(config, tiny_scenes):
    train_decoder(replace(config, steps=1), tiny_scenes)
    index = Path(config.model) / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"default_guidance_scale": 2.0}))
    refused("guidance_scale", train_decoder, replace(config, steps=2), tiny_scenes)


def test_class_conditional_models_are_refused(config, tiny_class_model_folder):
    refused("text-conditional", train_decoder, replace(config, model=str(tiny_class_model_folder)))
