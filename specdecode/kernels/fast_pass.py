"""A decoder network's layers in one call of the kernels.

Belongs here: which tensors of a network's modules the kernels read, and when one call of the kernels may replace the
modules. Does not belong here: the kernels (`native.py`), and the networks, which compute where the kernels cannot.

The kernels read the modules' weights where they lie, so nothing is copied. If a module or a function of its class has
been replaced or has a hook (an adapter, another attention), if layers stand in another order or have other numbers, or
weights do not fit each other, `check` notices at the next prompt, and the modules are called one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specdecode.kernels.as_written import as_written, untouched
from specdecode.kernels.build import library
from specdecode.kernels.in_graph import in_graph
from specdecode.kernels.native import Geometry, LayerWeights, NewTokens, Weights, decoder_pass, fits_pass, fits_weights
from specdecode.kernels.quantized import Int4Linear, Int8Linear

_NUMBERS = ("eps", "num_heads", "num_key_value_heads", "head_dim", "layer_index")
"""Attributes of modules that are in the geometry, or that a layer counts itself by."""


class FastPass:
    """The kernels' view of one network.

    Args:
        network: Has `rotary_rows`; may have `token_embedding` (else it is fed hidden states), `norm_out` (a norm at the
            end) and `fc` (maps an embedding and a feature to one input).
        layers: For each layer the norm before attention (or None), attention, the next norm, and the feed-forward.
            Attention has `to_qkv`, `to_out`, `project` and `attend`, the feed-forward `gate_up_proj` and `down_proj`.
        geometry: Sizes.
    """

    def __init__(self, network: Any, layers: Sequence[tuple[Any, Any, Any, Any]], geometry: Geometry) -> None:
        self._network, self._layers, self.geometry = network, layers, geometry
        self._functions = [(attention.project, attention.attend) for _, attention, _, _ in layers]
        self._built = self._order()
        self._norms = {type(norm2) for _, _, norm2, _ in layers}
        self._usable = False
        self._checked: tuple[nn.Module | None] | None = None  # with which head
        # Parameters as `check` found them. Writing into one has effect at once, replacing one at the next prompt.
        self._of_layers: list[LayerWeights] = []
        self._others: tuple[Tensor | None, ...] = ()  # embedding, join, its bias, last norm, head
        self._floating: list[Tensor] = []

    def check(self, head: nn.Module | None = None) -> bool:
        """Whether every module is as it was built, and their weights fit each other. Asked when a prompt is fed, and
        remembered until the next.

        Args:
            head: The output head that `run` will be given.
        """
        network, linears, norms = self._network, [], []
        join, norm_out = getattr(network, "fc", None), getattr(network, "norm_out", None)
        embedding = getattr(network, "token_embedding", None)
        usable = embedding is None or type(embedding) is nn.Embedding
        usable &= join is None or type(join) is nn.Linear
        for functions, (norm, attention, norm2, feed_forward) in zip(self._functions, self._layers, strict=True):
            linears += [attention.to_qkv, attention.to_out, feed_forward.gate_up_proj, feed_forward.down_proj]
            norms += [norm, norm2]
            usable &= (attention.project, attention.attend) == functions and all(map(as_written, functions))
        usable &= self._order() == self._built and not network.training
        usable &= {type(norm) for norm in (*norms, norm_out) if norm is not None} <= self._norms
        usable &= head is None or (type(head) is nn.Linear and head.bias is None)
        usable &= {type(linear) for linear in linears} in ({nn.Linear}, {Int8Linear}, {Int4Linear})
        usable = usable and all(linear.bias is None for linear in linears)
        self._checked = (head,)
        self._usable = usable and untouched(filter(None, (head, *network.modules())))
        if self._usable:
            self._of_layers = [
                LayerWeights(
                    None if norm is None else _own(norm),
                    _own(attention.to_qkv),
                    _own(attention.to_out),
                    _own(norm2),
                    _own(feed_forward.gate_up_proj),
                    _own(feed_forward.down_proj),
                    _scales(attention.to_qkv, attention.to_out, feed_forward.gate_up_proj, feed_forward.down_proj),
                    getattr(attention.to_qkv, "dynamic", False),
                )
                for norm, attention, norm2, feed_forward in self._layers
            ]
            bias = None if join is None else join.bias
            weights = [None if module is None else _own(module) for module in (embedding, join, norm_out, head)]
            self._others = (*weights[:2], bias, *weights[2:])
            given = [getattr(module, "weight", None) for module in (*norms, norm_out, embedding, join, head, *linears)]
            self._floating = [each for each in (*given, bias) if each is not None and each.is_floating_point()]
            self._usable = fits_weights(self._weights(self._of_layers[0].norm_feed_forward.device))
        return self._usable

    def _order(self) -> list[object]:
        """Which part of which layer stands at each place of the network, and the numbers that it computes with."""
        parts = {module: (layer, part) for layer, parts in enumerate(self._layers) for part, module in enumerate(parts)}
        return [
            (name, parts.get(module), *map(module.__dict__.get, _NUMBERS))
            for name, module in self._network.named_modules(remove_duplicate=False)
        ]

    def _weights(self, device: torch.device) -> Weights:
        return Weights(self._of_layers, self.geometry, self._network.rotary_rows.table(device), *self._others)

    def _is_alike(self, kv_cache: Any) -> bool:
        """Whether all but rounded matrices is of the cache's dtype, asked at every pass: modules may be converted."""
        dtype = kv_cache.dtype
        return all(each.dtype == dtype for each in self._floating)

    def serves(self, kv_cache: Any) -> bool:
        """Whether passes over this `specdecode.kv_cache.StaticKVCache` run in the kernels."""
        with torch.no_grad():
            fits = fits_pass(kv_cache.dtype, kv_cache.keys[0], self.geometry)
            return fits and self.check() and self._is_alike(kv_cache) and library() is not None

    def run(
        self, new: NewTokens, kv_cache: Any, head: nn.Module | None = None, is_prompt: bool = False, **options: Any
    ) -> tuple[Tensor, Tensor | None] | None:
        """The same as `decoder_pass`; None where the modules must be called one by one.

        Args:
            kv_cache: a `specdecode.kv_cache.StaticKVCache`.
            head: The output head, if logits are wanted.
            is_prompt: Whether to check the modules again.
            options: The keyword arguments of `decoder_pass`.
        """
        if in_graph() or not fits_pass(kv_cache.dtype, kv_cache.keys[0], self.geometry):
            return None
        if is_prompt or self._checked is None or self._checked[0] is not head:
            self.check(head)
        if not self._usable or not self._is_alike(kv_cache):
            return None
        weights = self._weights(kv_cache.device)
        return decoder_pass(weights, new, kv_cache.keys, kv_cache.values, **options)


def visible(attention_mask: Tensor | None, num_sequences: int) -> Tensor | None:
    """A mask [B or 1, 1, n, S] in the form of `NewTokens.mask`; None for other masks, and in compiled code."""
    if in_graph() or attention_mask is None or attention_mask.dtype != torch.bool or attention_mask.ndim != 4:
        return None
    if attention_mask.shape[0] not in (1, num_sequences) or attention_mask.shape[1] != 1:
        return None
    return attention_mask[:, 0]


def _scales(*linears: nn.Module) -> tuple[Tensor, ...]:
    """The scales of int8 weights; empty for others."""
    return tuple(linear.scale for linear in linears if isinstance(linear, Int8Linear) and linear.scale is not None)


def _own(module: nn.Module) -> Tensor:
    """A module's weight. Faster than the attribute, for which torch searches three dictionaries."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight
