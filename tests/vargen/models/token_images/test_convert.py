"""Published files of these families: Meta's layout against an independent forward, norms per shard, VQGANs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import VQModel
from official_layout import fill_by_rule, golden
from refusals import refused
from safetensors.torch import save_file
from token_image_models import tiny_family, tiny_model
from torch import Tensor
from transformers import AutoTokenizer, ChameleonForConditionalGeneration
from vqgans import vq_config

from vargen.cli import main
from vargen.models.token_images.convert_token_images import (
    _chameleon_config,
    norms_per_head,
    read_meta_chameleon,
    read_vqgan,
)
from vargen.models.token_images.token_image_loading import load_family_model

DIM, HEADS, KV_HEADS, WIDTH, LAYERS = 32, 4, 2, 48, 2
HEAD_DIM = DIM // HEADS
WORDS = [
    "<s>", "<pad>", "</s>", "<unk>", *(f"IMGIMG{letter}Z" for letter in "ABCDEFGH"), "<eoss>", "<racm3:break>",
    "<reserved08706>", "<reserved08707>", "a", "red", "cube",
]  # fmt: skip
VOCAB = 24  # some rows of the head have no word


def meta_weights(fused: bool) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (VOCAB, DIM), "norm.weight": (DIM,)}
    shapes["output.weight"] = (VOCAB, DIM)
    for layer in range(LAYERS):
        rows = {"wq": HEADS * HEAD_DIM, "wk": KV_HEADS * HEAD_DIM, "wv": KV_HEADS * HEAD_DIM, "wo": DIM}
        own: dict[str, tuple[int, ...]] = {f"attention.{name}.weight": (size, DIM) for name, size in rows.items()}
        for name in ("q", "k"):
            own |= {f"attention.{name}_normalization.{kind}": (HEAD_DIM,) for kind in ("weight", "bias")}
        own |= {"attention_norm.weight": (DIM,), "ffn_norm.weight": (DIM,)}
        own |= {f"feed_forward.w{number}.weight": (WIDTH, DIM) for number in (1, 3)}
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
        shapes[f"layers.{layer}.feed_forward.w2.weight"] = (DIM, WIDTH)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * 0.4 for name, shape in shapes.items()}
    if fused:
        for layer in range(LAYERS):
            parts = [weights.pop(f"layers.{layer}.attention.w{name}.weight") for name in "qkv"]
            weights[f"layers.{layer}.attention.wqkv.weight"] = torch.cat(parts)
            parts = [weights.pop(f"layers.{layer}.feed_forward.w{name}.weight") for name in (1, 3)]
            weights[f"layers.{layer}.feed_forward.w13.weight"] = torch.cat(parts)
    return weights


def meta_forward(weights: dict[str, Tensor], tokens: list[int], swin_norm: bool) -> Tensor:
    """Meta's Chameleon as its source describes it, whose neighbouring channels turn as a complex number: [n, VOCAB]."""
    angles = torch.arange(len(tokens))[:, None] / 10000.0 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]  # [n, 1, HEAD_DIM / 2]

    def normed(states: Tensor, name: str) -> Tensor:
        return states / (states.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]

    def attention(states: Tensor, own: str) -> Tensor:
        heads = {name: (states @ weights[f"{own}.w{name}.weight"].T).unflatten(-1, (-1, HEAD_DIM)) for name in "qkv"}
        for name in "qk":
            norm = (weights[f"{own}.{name}_normalization.{kind}"] for kind in ("weight", "bias"))
            pairs = torch.view_as_complex(F.layer_norm(heads[name], (HEAD_DIM,), *norm).unflatten(-1, (-1, 2)))
            heads[name] = torch.view_as_real(pairs * turn).flatten(-2)
        shared = {name: heads[name].repeat_interleave(HEADS // KV_HEADS, 1) for name in "kv"}
        scores = torch.einsum("nhd,mhd->hnm", heads["q"], shared["k"]) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        rows = torch.einsum("hnm,mhd->nhd", scores.softmax(-1), shared["v"])
        return rows.flatten(1) @ weights[f"{own}.wo.weight"].T

    def feed_forward(states: Tensor, own: str) -> Tensor:
        first, second, third = (weights[f"{own}.w{number}.weight"] for number in (1, 2, 3))
        return (F.silu(states @ first.T) * (states @ third.T)) @ second.T

    states = weights["tok_embeddings.weight"][tokens]
    for layer in range(LAYERS):
        for part, inner, name in ((attention, "attention", "attention"), (feed_forward, "feed_forward", "ffn")):
            inner, norm = f"layers.{layer}.{inner}", f"layers.{layer}.{name}_norm"
            states = states + (normed(part(states, inner), norm) if swin_norm else part(normed(states, norm), inner))
    return normed(states, "norm") @ weights["output.weight"].T


@pytest.fixture
def vqgan_weights() -> dict[str, Tensor]:
    description, _ = golden("lumina_mgpt_tiny")
    return fill_by_rule(description["tokenizer_state_dict"], f"{description['salt']}/vq")


@pytest.fixture
def anole(tmp_path, vqgan_weights) -> Callable[..., Path]:
    """Writes a folder in Meta's layout, and gives its place."""

    def write(fused: bool = False, **params: Any) -> Path:
        folder = tmp_path / "anole"
        model, tokenizer = folder / "models" / "7b", folder / "tokenizer"
        model.mkdir(parents=True), tokenizer.mkdir()
        torch.save(meta_weights(fused) | {"rope.freqs": None}, model / "consolidated.pth")
        own = {"dim": DIM, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "norm_eps": 1e-5}
        own |= {"rope_theta": 10000.0, "qk_normalization": True, "swin_norm": False}
        (model / "params.json").write_text(json.dumps({"model_parallel_size": 8, "model": own | params}))
        (model / "consolidate_params.json").write_text(json.dumps({"model_parallel_size": 1}))
        words = {"type": "WordLevel", "vocab": {word: at for at, word in enumerate(WORDS)}, "unk_token": "<unk>"}
        added = [
            {"id": WORDS.index(word), "content": word, "special": True, "normalized": False, "single_word": False,
             "lstrip": False, "rstrip": False}
            for word in ("<reserved08706>", "<reserved08707>", "<racm3:break>")
        ]  # fmt: skip
        content = {"version": "1.0", "added_tokens": added, "model": words, "pre_tokenizer": {"type": "Whitespace"}}
        (tokenizer / "text_tokenizer.json").write_text(json.dumps(content))
        torch.save({"state_dict": vqgan_weights | {"loss.weight": torch.zeros(1)}}, tokenizer / "vqgan.ckpt")
        return folder

    return write


@pytest.mark.parametrize(("fused", "swin_norm"), [(False, False), (True, False), (True, True)])
@torch.no_grad()
def test_metas_layout_gives_the_same_logits(anole, tmp_path, vqgan_weights, fused, swin_norm):
    source, output = anole(fused, swin_norm=swin_norm), tmp_path / "out"
    assert main(["convert", "anole", "--checkpoint", str(source), "--output", str(output)]) == 0
    model, report = ChameleonForConditionalGeneration.from_pretrained(output, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    tokens = [0, 16, 17, 18, 14, 13, 4, 9]
    found = model.lm_head(model.model(torch.tensor([tokens])).last_hidden_state)[0]
    torch.testing.assert_close(found, meta_forward(meta_weights(False), tokens, swin_norm), atol=1e-4, rtol=1e-4)
    assert (model.config.bos_token_id, model.config.vocabulary_map["<image>"]) == (0, 15)
    assert model.config.vocabulary_map["IMGIMGCZ"] == 6

    loaded, family = load_family_model(output)  # its norms are for every head already
    assert family.name == "anole"
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())

    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer("a red cube<reserved08706>", add_special_tokens=False)["input_ids"] == [16, 17, 18, 14]
    assert (tokenizer.bos_token_id, tokenizer.sep_token_id) == (0, 14)
    pixels = VQModel.from_pretrained(output / "vqvae")
    assert torch.equal(pixels.quantize.embedding.weight, vqgan_weights["quantize.embedding.weight"])


def test_settings_of_metas_files_reach_the_configuration(anole):
    config = read_meta_chameleon(anole(norm_eps=1e-3, rope_theta=5000.0, swin_norm=True)).config
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"], config.swin_norm) == (1e-3, 5000.0, True)


def test_a_vqgan_that_attends_does_so_at_its_own_level():
    vqgan = vq_config((32, 32, 64), layers_per_block=1, latent_channels=8, num_vq_embeddings=8, vq_embed_dim=8)
    params = {"dim": DIM, "n_layers": 1, "n_heads": HEADS, "model_parallel_size": 1}
    encoder = ChameleonForConditionalGeneration(_chameleon_config(params, {}, vqgan, Path())).model.vqmodel.encoder
    assert [len(level.attn) for level in encoder.down] == [0, 0, 1]


def test_precision_is_chosen(anole, tmp_path):
    command = ["convert", "anole", "--dtype", "bfloat16", "--output", str(tmp_path / "out"), "--checkpoint"]
    assert main([*command, str(anole())]) == 0
    model = ChameleonForConditionalGeneration.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == model.lm_head.weight.dtype == torch.bfloat16
    assert VQModel.from_pretrained(tmp_path / "out" / "vqvae").dtype == torch.float32


def rewrite(name: str, change: Callable[[Any], Any]) -> Callable[[Path], object]:
    """Change what a pickled file holds."""

    def damage(folder: Path) -> None:
        torch.save(change(torch.load(folder / name)), folder / name)

    return damage


CHECKPOINT = "models/7b/consolidated.pth"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "models/7b/consolidated.01.pth").touch(), "holds 2; a model in several files"),
        (lambda folder: (folder / "tokenizer/vqgan.ckpt").unlink(), "vqgan.ckpt does not exist"),
        (lambda folder: (folder / "tokenizer/text_tokenizer.json").write_text("{}"), "text_tokenizer.json cannot be"),
        (rewrite(CHECKPOINT, lambda weights: {"a": torch.zeros(1)}), "lacks tok_embeddings.weight; it is not a"),
        (rewrite(CHECKPOINT, lambda weights: weights | {"b.c": torch.zeros(1)}), "does not have, such as b.c"),
        (
            rewrite(CHECKPOINT, lambda weights: {key: weights[key] for key in weights if "1.attention.wk." not in key}),
            "lacks 1 weights of ChameleonForConditionalGeneration, such as model.layers.1.self_attn.k_proj.weight",
        ),
        (rewrite("tokenizer/vqgan.ckpt", lambda weights: meta_weights(False)), "holds no 'quantize.embedding.weight'"),
    ],
)
def test_damaged_folders_leave_nothing(anole, tmp_path, capsys, damage, message):
    source, output = anole(), tmp_path / "out"
    damage(source)
    assert main(["convert", "anole", "--checkpoint", str(source), "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not output.exists()


# Norms per shard ------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("shards", [1, 2])
def test_norms_are_repeated_for_every_head(shards):
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS}
    model = tiny_model(tiny_family("anole"), **sizes).model
    stored = {key: torch.randn(value.shape) for key, value in model.state_dict().items() if "layers.0" in key}
    for key in stored:
        if re.search("[qk]_norm", key):
            stored[key] = torch.randn(shards, HEAD_DIM)
    repeated = norms_per_head(stored, HEADS, KV_HEADS)
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        for kind in ("weight", "bias"):
            key = f"layers.0.self_attn.{name}_norm.{kind}"
            assert repeated[key].shape == model.state_dict()[key].shape
            for head in range(heads):  # a shard has neighbouring heads
                assert torch.equal(repeated[key][head], stored[key][head // (heads // shards)])
    assert norms_per_head(repeated, HEADS, KV_HEADS).keys() == stored.keys()
    assert all(torch.equal(value, repeated[key]) for key, value in norms_per_head(repeated, HEADS, KV_HEADS).items())
    other = {"model.layers.0.self_attn.q_norm.weight": torch.zeros(3, 8)}
    refused("stored for 3 shards", norms_per_head, other, HEADS, KV_HEADS)


# VQGAN ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["state_dict", "model", None])
def test_a_checkpoint_becomes_a_folder(tmp_path, vqgan_weights, capsys, container):
    surplus = {"loss.discriminator.main.0.weight": torch.zeros(1), "model_ema.decay": torch.zeros(1)}
    content = vqgan_weights | surplus
    torch.save(content if container is None else {container: content, "epoch": 3}, tmp_path / "vqgan.ckpt")
    command = ["convert", "vqgan", "--checkpoint", str(tmp_path / "vqgan.ckpt"), "--output", str(tmp_path / "out")]
    assert main([*command, "--json"]) == 0
    parameters = sum(value.numel() for value in vqgan_weights.values())
    said = {"output": str(tmp_path / "out"), "num_codes": 64, "pixels_a_code": 4, "num_parameters": parameters}
    assert json.loads(capsys.readouterr().out) == said
    network = VQModel.from_pretrained(tmp_path / "out")
    assert torch.equal(network.decoder.conv_out.weight, vqgan_weights["decoder.conv_out.weight"])


def test_a_vqgan_inside_a_model(tmp_path, vqgan_weights):
    inside = {f"model.vqmodel.{key}": value for key, value in vqgan_weights.items()}
    names = sorted(inside)
    (tmp_path / "whole").mkdir()
    save_file({key: inside[key] for key in names[::2]}, tmp_path / "whole" / "model-00001-of-00002.safetensors")
    rest = {key: inside[key] for key in names[1::2]} | {"lm_head.weight": torch.zeros(1)}
    save_file(rest, tmp_path / "whole" / "model-00002-of-00002.safetensors")
    read = read_vqgan(tmp_path / "whole")
    assert read.keys() == vqgan_weights.keys() and all(torch.equal(read[key], vqgan_weights[key]) for key in read)
    save_file({key: inside[key] for key in names if "decoder" not in key}, tmp_path / "encoder.safetensors")
    refused("no decoder, so it makes no pictures", read_vqgan, tmp_path / "encoder.safetensors")
