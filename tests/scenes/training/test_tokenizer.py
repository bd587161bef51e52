from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers.models.autoencoders.vq_model import VQModel
from PIL import Image
from resumed import assert_resumed_run_is_the_same
from safetensors.torch import load_file

from scenes.training.tokenizer import TokenizerTask, build_tokenizer_model, exported_copy, train_tokenizer
from vargen.models.llamagen.vq import decode_codes, encode_images
from vargen.runs.files import read_jsonl

CPU = torch.device("cpu")


def test_the_exported_model_gives_the_codes_and_pictures_of_training(tokenizer_config, cheap_scenes):
    train_tokenizer(tokenizer_config, cheap_scenes)
    folder = Path(tokenizer_config.output) / "export"
    exported = VQModel.from_pretrained(folder)
    for name, value in load_file(folder / "diffusion_pytorch_model.safetensors").items():
        assert value.dtype == (torch.float32 if name == "quantize.embedding.weight" else torch.bfloat16)
    codebook = exported.quantize.embedding.weight
    torch.testing.assert_close(codebook.norm(dim=1), torch.ones(len(codebook)), atol=1e-6, rtol=0)

    task = TokenizerTask(tokenizer_config, cheap_scenes, CPU)
    task.vqvae.load_state_dict(exported.state_dict())
    images = task.heldout.images
    pictures, codes = task._reconstruct(images)
    with torch.no_grad():
        latents = exported.encode(images).latents
        _, _, (_, _, own_codes) = exported.quantize(latents)  # VQModel's own search, which never normalises
        assert torch.equal(own_codes.reshape(codes.shape), codes)
        assert torch.equal(encode_images(exported, images), codes)
        torch.testing.assert_close(decode_codes(exported, codes), pictures, atol=1e-4, rtol=0)
        torch.testing.assert_close(exported.decode(latents).sample, pictures, atol=1e-4, rtol=0)


@pytest.mark.parametrize("adversarial_weight", [0.0, 0.1])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, tokenizer_config, cheap_scenes, adversarial_weight):
    config = replace(tokenizer_config, adversarial_weight=adversarial_weight, adversarial_start=0.3)
    kept = assert_resumed_run_is_the_same(train_tokenizer, config, cheap_scenes, tmp_path, 4)
    assert (len(kept["extra_modules"]) > 0) == (adversarial_weight > 0)


def test_it_learns_one_batch(tokenizer_config, repeated_scenes):
    config = replace(tokenizer_config, steps=40, log_every=5, evaluate_every=1000, sample_every=1000)
    train_tokenizer(config, repeated_scenes)
    losses = [entry["loss"] for entry in read_jsonl(Path(config.output) / "log.jsonl") if "event" not in entry]
    assert losses[-1] < 0.7 * losses[0]


def test_evaluation_and_sample_sheet(tokenizer_config, cheap_scenes):
    result = train_tokenizer(tokenizer_config, cheap_scenes)
    assert result.evaluation.keys() == {"psnr", "psnr_objects", "perplexity", "used_codes"}
    assert 1 <= result.evaluation["used_codes"] <= 32
    sheets = sorted((Path(tokenizer_config.output) / "samples").iterdir())
    assert [sheet.name for sheet in sheets] == ["0000003.png", "0000006.png"]
    assert Image.open(sheets[0]).size == (4 * 16, 2 * 16)


def test_neither_adversarial_loss_reaches_the_other_side(tokenizer_config, cheap_scenes):
    config = replace(tokenizer_config, adversarial_weight=0.5, adversarial_start=0.0)
    task = TokenizerTask(config, cheap_scenes, CPU)
    images = task.heldout.images
    reconstructions = task.vqvae.decoder(torch.randn(4, 16, 8, 8))
    reconstruction = (reconstructions - images).abs().mean()
    adversarial, discriminator = task.picture_loss.adversarial(reconstruction, images, reconstructions)
    discriminator_weights = list(task.picture_loss.discriminator.parameters())
    decoder_weight = task.vqvae.decoder.conv_out.weight
    reached = torch.autograd.grad(adversarial, discriminator_weights, retain_graph=True, allow_unused=True)
    assert reached == (None,) * len(discriminator_weights)
    assert torch.autograd.grad(discriminator, decoder_weight, retain_graph=True, allow_unused=True) == (None,)
    assert torch.autograd.grad(adversarial, decoder_weight, retain_graph=True)[0].abs().sum() > 0
    assert all(parameter.requires_grad for parameter in discriminator_weights)


def test_an_export_does_not_say_where_its_tokenizer_was_loaded_from(tmp_path, tokenizer_config):
    build_tokenizer_model(tokenizer_config).save_pretrained(tmp_path / "first")
    exported_copy(VQModel.from_pretrained(tmp_path / "first")).save_pretrained(tmp_path / "second")
    assert str(tmp_path) not in (tmp_path / "second" / "config.json").read_text()
    assert VQModel.from_pretrained(tmp_path / "second").quantize.embedding.weight.dtype == torch.float32
