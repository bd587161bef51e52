"""Published weights with tensors of other sizes: converted, or refused in one line, whichever family they are of."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from official_layout import SMALL_CHANNELS, fill_by_rule, golden, official_transformer_shapes, official_vq_shapes
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vargen.base.errors import UserError
from vargen.drafters.convert_draft_head import convert_lantern_drafter
from vargen.models.llamagen.convert_llamagen import infer_transformer_config, load_transformer, load_vq_model
from vargen.models.token_images.convert_token_images import MetaChameleon, _chameleon_config, convert_meta_chameleon
from vargen.models.vqgan import infer_vqgan_config, load_vqgan

Weights = dict[str, Tensor]
DAMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda weight: weight.new_zeros(()),
    "a row": lambda weight: weight.new_zeros(weight.numel()),
    "nothing": lambda weight: weight.new_zeros(weight.shape)[:0],
    "rows of nothing": lambda weight: weight.new_zeros(weight.shape)[..., :0],
    "nothing at all": lambda weight: weight.new_zeros(()).expand([0] * weight.ndim),
    "a row less": lambda weight: weight[:-1],
    "half the rows": lambda weight: weight[: len(weight) // 2],
    "rows twice": lambda weight: torch.cat((weight, weight)),
    "shorter rows": lambda weight: weight[..., :-1],
    "a batch": lambda weight: weight[None],
    "a matrix": lambda weight: weight.new_zeros(3, 5),
    "integers": lambda weight: weight.int(),
}


def llamagen(weights: Weights, num_attention_heads: int = 4) -> None:
    load_transformer(weights, infer_transformer_config(weights, num_attention_heads) | {"grid_size": 4})


def anole(weights: Weights) -> None:
    vqgan, words = of_vqgan("lumina_mgpt_tiny"), {"<s>": 0, "<image>": 1}
    params = {"dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "consolidated.pth"
        torch.save(weights, path)
        config = _chameleon_config(params, words, infer_vqgan_config(vqgan), path)
        convert_meta_chameleon(MetaChameleon(path, config, PreTrainedTokenizerFast, vqgan))  # type: ignore[arg-type]


def drafter(config: dict[str, object]) -> Callable[[Weights], None]:
    def convert(weights: Weights) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "published"
            source.mkdir()
            (source / "config.json").write_text(json.dumps(config))
            save_file({name: weight.contiguous() for name, weight in weights.items()}, source / "model.safetensors")
            convert_lantern_drafter(source, Path(folder) / "out")

    return convert


def of_transformer(**condition: object) -> Weights:
    return fill_by_rule(official_transformer_shapes(32, 2, 48, 40, **condition))  # type: ignore[arg-type]


def of_anole(fused: bool) -> Weights:
    attention = {"wqkv": 64} if fused else {"wq": 32, "wk": 16, "wv": 16}
    shapes = {f"layers.0.attention.{name}.weight": [rows, 32] for name, rows in (attention | {"wo": 32}).items()}
    for name in ("q", "k"):
        shapes |= {f"layers.0.attention.{name}_normalization.{kind}": [8] for kind in ("weight", "bias")}
    rows = {"w13": 96} if fused else {"w1": 48, "w3": 48}
    shapes |= {f"layers.0.feed_forward.{name}.weight": [count, 32] for name, count in rows.items()}
    shapes |= {"layers.0.attention_norm.weight": [32], "layers.0.ffn_norm.weight": [32], "norm.weight": [32]}
    shapes |= {"layers.0.feed_forward.w2.weight": [32, 48], "tok_embeddings.weight": [24, 32]}
    return fill_by_rule(shapes | {"output.weight": [24, 32]})


def of_drafter(with_norms: bool) -> Weights:
    shapes = {f"layers.0.self_attn.{name}_proj.weight": [16, 16] for name in "qkvo"}
    shapes |= {f"layers.0.mlp.{name}_proj.weight": [20, 16] for name in ("gate", "up")}
    shapes |= {"layers.0.mlp.down_proj.weight": [16, 20], "layers.0.post_attention_layernorm.weight": [16]}
    if with_norms:
        shapes |= {"layers.0.input_layernorm.weight": [16]}
        shapes |= {f"layers.0.self_attn.{name}_norm.{kind}": [1, 8] for name in "qk" for kind in ("weight", "bias")}
    return fill_by_rule(shapes | {"embed_tokens.weight": [11, 16], "fc.weight": [16, 32], "fc.bias": [16]})


def of_vqgan(name: str) -> Weights:
    return fill_by_rule(golden(name)[0]["tokenizer_state_dict"])


HEAD = {
    "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 20, "vocab_size": 11, "rms_norm_eps": 1e-6,
    "input_type": "t2i",
}  # fmt: skip
FAMILIES: dict[str, tuple[Callable[[], Weights], Callable[[Weights], object]]] = {
    "LlamaGen of classes": (lambda: of_transformer(num_classes=6), llamagen),
    "LlamaGen of text": (lambda: of_transformer(caption=(5, 12)), llamagen),
    "LlamaGen's tokenizer": (
        lambda: fill_by_rule(official_vq_shapes(SMALL_CHANNELS, num_codes=40, code_dim=4, latent_channels=16)),
        load_vq_model,
    ),
    "VQGAN": (lambda: of_vqgan("lumina_mgpt_tiny"), load_vqgan),
    "MoVQ": (lambda: of_vqgan("movq_tiny"), load_vqgan),
    "Anole": (lambda: of_anole(False), anole),
    "Anole, fused": (lambda: of_anole(True), anole),
    "a drafter for LlamaGen": (lambda: of_drafter(False), drafter(HEAD)),
    "a drafter for Chameleon": (lambda: of_drafter(True), drafter(HEAD | {"model_type": "chameleon"})),
}


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_damaged_tensor_is_an_error_of_one_line(family, data):
    make, convert = FAMILIES[family]
    weights = make()
    for key in data.draw(st.lists(st.sampled_from(sorted(weights)), max_size=2, unique=True)):
        weights[key] = DAMAGES[data.draw(st.sampled_from(sorted(DAMAGES)))](weights[key])
    for key in data.draw(st.lists(st.sampled_from(sorted(weights)), max_size=1)):
        del weights[key]
    try:
        convert(weights)
    except UserError as error:
        assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_weights_are_converted(family):
    make, convert = FAMILIES[family]
    convert(make())
