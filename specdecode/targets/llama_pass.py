"""Whole passes of unmodified models of transformers with Llama's layers, in the kernels for few rows on a CPU.

Belongs here: which models and modules the kernels may stand for, and their weights. Does not belong here: the kernels
(`specdecode.kernels`), prompts, and single linear layers of other architectures (`specdecode.kernels.linears`).

A pass over one token calls some thirty small operations of torch in each layer, which on a CPU take longer than its
products. The kernels read the modules' weights where they lie: nothing is copied, and the model stays as it is. Every
module must be transformers' own, without hooks, adapters, quantization or compilation; else the modules are called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specdecode.kernels.as_written import as_written, untouched
from specdecode.kernels.build import library
from specdecode.kernels.linears import is_plain_linear
from specdecode.kernels.native import Geometry, LayerWeights, NewTokens, Weights, decoder_pass, fits_pass, fits_weights
from specdecode.kv_cache import StaticKVCache
from specdecode.targets.grouped_attention import grouped_attention

_FAMILIES = {"Llama": "llama", "Mistral": "mistral", "Qwen2": "qwen2", "Qwen3": "qwen3"}
"""Families with layers of [RMSNorm, attention, RMSNorm, SwiGLU], and their modules in transformers."""
_PARTS = {
    "model": "Model",
    "self_attn": "Attention",
    "mlp": "MLP",
    "rotary_emb": "RotaryEmbedding",
    **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm", "q_norm", "k_norm"), "RMSNorm"),
}
"""Names of modules and the family's classes for them. All others, but for `_OTHERS`, are linear layers."""
_OTHERS = {"layers": (nn.ModuleList,), "embed_tokens": (nn.Embedding,), "act_fn": (nn.SiLU, SiLUActivation)}
_STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotary positions whose frequencies are the same in every pass."""


class LlamaPass:
    """Forward passes over new tokens.

    Args:
        model: see `llama_pass`.
        geometry, layers: of its weights.
        num_positions: positions that may occur.
    """

    def __init__(self, model: Any, geometry: Geometry, layers: list[LayerWeights], num_positions: int) -> None:
        decoder, self._dtype = model.model, model.lm_head.weight.dtype
        like = torch.zeros(1, dtype=self._dtype)
        cosine, sine = decoder.rotary_emb(like, torch.arange(num_positions)[None])
        half = geometry.head_dim // 2
        rotary = torch.stack([cosine[0, :, :half], sine[0, :, :half]], 1).float().contiguous()
        embedding, head = decoder.embed_tokens.weight, model.lm_head.weight
        self._weights = Weights(
            layers, geometry, rotary, embedding.detach(), norm_out=decoder.norm.weight.detach(), head=head.detach()
        )

    def fits(self) -> bool:
        """Whether the weights are of the sizes that the geometry says."""
        return fits_weights(self._weights)

    def run(
        self,
        tokens: Tensor,
        mask: Tensor,
        positions: Tensor,
        kv_cache: StaticKVCache,
        feature_layers: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor] | None:
        """One pass over new tokens, whose keys and values are written to the cache behind its rows.

        Args:
            tokens: [R, n] int64.
            mask: [R, n, n] bool, which new tokens each sees.
            positions: [R, n] int64.
            kv_cache: of the model's layers.
            feature_layers: numbers of layers, rising, the last one at the end.

        Returns:
            Hidden states [R, n, F] after `feature_layers`, side by side, the last ones normed; and logits float32
            [R, n, V]. None where the cache does not fit the kernels; nothing was written.
        """
        if not fits_pass(self._dtype, kv_cache.keys[0], self._weights.geometry):
            return None
        lengths = kv_cache.lengths
        new = NewTokens(
            positions, mask, tokens=tokens, lengths=lengths, starts=kv_cache.starts, origins=lengths
        )  # the lengths are in the positions already
        output = decoder_pass(self._weights, new, kv_cache.keys, kv_cache.values, kept_layers=feature_layers)
        if output is None or output[1] is None:
            return None
        return output[0], output[1]


def llama_pass(model: Any, num_positions: int) -> LlamaPass | None:
    """The kernels' passes of a model; None where its modules must be called.

    Args:
        model: a causal language model of transformers.
        num_positions: positions that may occur, drafts included.
    """
    family = type(model).__name__.removesuffix("ForCausalLM")
    where = f"transformers.models.{_FAMILIES.get(family)}.modeling_{_FAMILIES.get(family)}"
    modeling = sys.modules.get(where)
    if type(model) is not getattr(modeling, f"{family}ForCausalLM", None) or library() is None:
        return None
    if not _is_as_published(model, modeling, family):
        return None
    config, decoder = model.config, model.model
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if rotation not in _STEADY_ROTATIONS or (windowed and window is not None and num_positions > window):
        return None
    first = decoder.layers[0]
    epsilons = {norm.variance_epsilon for norm in decoder.modules() if hasattr(norm, "variance_epsilon")}
    head_dim = first.self_attn.head_dim
    layers = [_weights(layer) for layer in decoder.layers]
    if len(epsilons) != 1 or head_dim % 2 or any(layer is None for layer in layers):
        return None
    heads, inner = (config.num_attention_heads, config.num_key_value_heads), first.mlp.gate_proj.out_features
    geometry = Geometry(*heads, head_dim, inner, epsilons.pop(), rotary_halves=True)
    made = LlamaPass(model, geometry, [layer for layer in layers if layer is not None], num_positions)
    return made if made.fits() else None  # pruned layers, say, are not all of one size


def _is_in_place(name: str, module: nn.Module, modeling: Any, family: str) -> bool:
    """Whether a module is what transformers puts where a model has this name."""
    name = name.rpartition(".")[2]
    if name in _OTHERS:
        return type(module) in _OTHERS[name]
    part = "DecoderLayer" if name.isdigit() else _PARTS.get(name)
    return is_plain_linear(module) if part is None else type(module) is getattr(modeling, family + part, None)


def _is_as_published(model: Any, modeling: Any, family: str) -> bool:
    """Whether every module is transformers' own or a plain linear layer, at its place and with the numbers of the
    configuration, and calling it runs its class's `forward` and the attention that transformers has under its name."""
    modules = list(model.modules())
    names = list(model.named_modules(remove_duplicate=False))[1:]
    if not all(_is_in_place(name, module, modeling, family) for name, module in names) or not untouched(modules):
        return False
    config, layers = model.config, list(model.model.layers)
    if not layers or len(layers) != config.num_hidden_layers:
        return False
    attentions = [layer.self_attn for layer in layers]
    head_dim = attentions[0].head_dim
    for name in {each.config._attn_implementation for each in attentions}:
        function = modeling.ALL_ATTENTION_FUNCTIONS.get(name, modeling.eager_attention_forward)
        known = (sdpa_attention_forward, grouped_attention, modeling.eager_attention_forward)
        if function not in known or not as_written(function):
            return False
    dtype = model.lm_head.weight.dtype
    return (
        model.model.embed_tokens.max_norm is None
        and not any(module.training for module in modules)
        and model._compiled_call_impl is None
        and config.hidden_act == "silu"
        and [each.layer_idx for each in attentions] == [*range(len(layers))]
        and {(each.head_dim, each.scaling) for each in attentions} == {(head_dim, head_dim**-0.5)}
        and {each.num_key_value_groups for each in attentions}
        == {config.num_attention_heads // config.num_key_value_heads}
        and model.lm_head.bias is None
        and all(type(each) is nn.Parameter and each.is_cpu and each.dtype == dtype for each in model.parameters())
    )


def _weights(layer: Any) -> LayerWeights | None:
    """One layer's weights; None where a bias stands where the kernels have none."""
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [projection.bias for projection in projections]
    if any(each.bias is not None for each in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        return None
    if None in biases and any(bias is not None for bias in biases):
        return None
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query, key, value = (projection.weight.detach() for projection in projections)
    return LayerWeights(
        layer.input_layernorm.weight.detach(),
        query,
        attention.o_proj.weight.detach(),
        layer.post_attention_layernorm.weight.detach(),
        mlp.gate_proj.weight.detach(),
        mlp.down_proj.weight.detach(),
        key=key,
        value=value,
        up=mlp.up_proj.weight.detach(),
        qkv_bias=None if None in biases else torch.cat([bias.detach().float() for bias in biases]),
        out_bias=None if attention.o_proj.bias is None else attention.o_proj.bias.detach().float(),
        norm_query=None if norms[0] is None else norms[0].weight.detach(),
        norm_key=None if norms[1] is None else norms[1].weight.detach(),
    )
