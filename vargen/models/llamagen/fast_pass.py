"""LlamaGen's layers in one call of the project's own kernels, where these serve: few rows on a CPU.

Belongs here: which tensors of LlamaGen's modules the kernels read, and when they may read them in the modules' place.
Does not belong here: the kernels (`vargen.kernels`), and the network itself, which computes wherever they do not serve.

The kernels take the modules' weights as they lie in memory, so nothing is copied and nothing goes stale. What somebody
has put in a module's place (an adapter, a hook, another attention) is noticed whenever a prompt is fed, and is obeyed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vargen.kernels.native import Geometry, LayerWeights, decoder_pass, serves_pass

if TYPE_CHECKING:
    from specdecode.kv_cache import StaticKVCache


def untouched(modules: Iterable[nn.Module]) -> bool:
    """Whether calling these modules would run their classes' own `forward` and nothing else."""
    return not any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or "forward" in module.__dict__
        for module in modules
    )


class FastPass:
    """The kernels' view of one network.

    Args:
        layers: for each layer its norm before attention (None: there is none), attention, norm and feed-forward.
        geometry: sizes.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Any, Any, Any, Any]],
        geometry: Geometry,
    ) -> None:
        self._layers, self.geometry = layers, geometry
        self._functions = [(attention.project, attention.attend) for _, attention, _, _ in layers]
        self._usable: bool | None = None

    def check(self) -> bool:
        """Whether every module is what it was built as; asked where a prompt is fed, remembered until the next."""
        modules: list[nn.Module] = []
        usable = True
        for functions, (norm, attention, norm2, feed_forward) in zip(self._functions, self._layers, strict=True):
            linears = (attention.to_qkv, attention.to_out, feed_forward.gate_up_proj, feed_forward.down_proj)
            modules += [attention, norm2, feed_forward, *linears] + ([] if norm is None else [norm])
            usable &= (attention.project, attention.attend) == functions
            usable &= all(type(linear) is nn.Linear and linear.bias is None for linear in linears)
        self._usable = usable and untouched(modules)
        return self._usable

    def serves(self, kv_cache: StaticKVCache) -> bool:
        """Whether passes over this cache run here, of a mask as a cache makes it."""
        states = torch.empty(0, dtype=kv_cache.dtype, device=kv_cache.device)
        mask = torch.empty(1, 1, 1, 1, dtype=torch.bool)
        with torch.no_grad():
            return serves_pass(states, mask, kv_cache.keys[0], self.geometry) and self.check()

    def weights(self) -> list[LayerWeights]:
        """Of every layer, as they are now."""
        return [
            LayerWeights(
                None if norm is None else _own(norm),
                _own(attention.to_qkv),
                _own(attention.to_out),
                _own(norm2),
                _own(feed_forward.gate_up_proj),
                _own(feed_forward.down_proj),
            )
            for norm, attention, norm2, feed_forward in self._layers
        ]

    def run(
        self,
        hidden_states: Tensor,
        positions: Tensor,
        rotary: Tensor,
        mask: Tensor | None,
        kv_cache: StaticKVCache,
        places: Tensor,
        norm_out: nn.Module | None = None,
        head: nn.Module | None = None,
        logits_to_keep: int = 0,
        kept_layers: Collection[int] = (),
        is_prompt: bool = False,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]] | None:
        """As `decoder_pass`, or None where the modules must be called one by one.

        Args:
            is_prompt: whether to look at the modules anew.
        """
        if torch.compiler.is_compiling() or not serves_pass(hidden_states, mask, kv_cache.keys[0], self.geometry):
            return None
        if is_prompt or self._usable is None:
            self.check()
        if not self._usable:
            return None
        layers = self.weights()
        if layers[0].qkv.dtype != hidden_states.dtype:
            return None
        assert mask is not None
        return decoder_pass(
            hidden_states,
            positions,
            rotary,
            mask,
            places,
            layers,
            kv_cache.keys,
            kv_cache.values,
            self.geometry,
            None if norm_out is None else _own(norm_out),
            None if head is None else _own(head),
            logits_to_keep,
            kept_layers,
        )


def _own(module: nn.Module) -> Tensor:
    """A module's weight; not by its name, which torch looks for in three places."""
    weight = module._parameters["weight"]
    assert weight is not None
    return weight
