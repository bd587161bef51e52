"""Linear layers whose weights are rounded to eight or four bits, which load from memory faster than bfloat16.

Belongs here: the layers, and replacing plain layers by them. Does not belong here: the product (`native.py`), and when
quantization pays, which the caller decides.

int8: weights are integers from -127 to 127, and each output has a scale of its own: half of bfloat16's bytes. Inputs
are not rounded ("weight-only"), so passes over few tokens, which wait for weights, get faster, and passes over many,
which wait for arithmetic, do not.
int8-dynamic: each input row is rounded in the same way, too. A processor then multiplies twice as many numbers in the
same time, and a verification step costs about as much as a pass over one token.
int4: weights are integers from -8 to 7, and 64 weights of an output share a scale; weight-only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdecode.kernels.linears import MOST_ROWS, FewRowLinear
from specdecode.kernels.native import NIBBLE_BYTES, NIBBLES, fits_linear, linear, linear_now

_LARGEST = 127
_LOWEST, _HIGHEST = -8, 7
_SCALES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76)
"""The scales that are tried, as shares of the one that represents a block's largest weight; the least error wins."""
_TINY = torch.finfo(torch.float32).tiny


class QuantizedLinear(nn.Module):
    """`nn.Linear` over rounded weights.

    Args:
        weight: in the kernels' format.
        scale: float32 [outputs]; None where the weights contain their scales.
        bias: [outputs], of the inputs' dtype, or None.

    Attributes:
        weight, scale, bias: these. `Module.to(dtype)` leaves weight and scale as they are.
        dynamic: whether input rows are rounded to int8, too, each on a scale of its own.
        for_many_rows: whether the kernels compute many rows as well, since torch has nothing faster.
    """

    name: str
    """The name in messages."""
    dynamic = False
    for_many_rows = False

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = None if scale is None else nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [..., outputs] of x [..., columns], as `nn.Linear` gives them."""
        few = self.for_many_rows or x.numel() <= MOST_ROWS.get(x.dtype, 0) * x.shape[-1]
        if few and x.numel() and fits_linear(x, self.weight, self.scale, self.bias):
            product = linear if torch.compiler.is_compiling() else linear_now
            if (y := product(x, self.weight, self.scale, self.bias, self.dynamic)) is not None:
                return y
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor) -> Tensor:
        """`x weight^T` by torch's operations."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scale = None if self.scale is None else self.scale.data  # the next line replaces it by a converted one
        super()._apply(fn, recurse)
        if scale is not None:
            self.scale = nn.Parameter(scale.to(self.weight.device), requires_grad=False)
        return self

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        raise ValueError(f"a model in {self.name} cannot be saved; load it without quantization and save that")


class Int8Linear(QuantizedLinear):
    """Weights int8 [outputs, columns], one scale per output."""

    name = "int8"

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear, dynamic: bool = False) -> Self:
        """The layer with each weight rounded to the nearest step."""
        weight = layer.weight.float()
        scale = weight.abs().amax(1) / _LARGEST
        steps = (weight / scale.clamp_min(_TINY)[:, None]).round_().to(torch.int8)
        made = cls(steps, scale, None if layer.bias is None else layer.bias.detach())
        made.dynamic = made.for_many_rows = dynamic
        return made

    def product(self, x: Tensor) -> Tensor:
        assert self.scale is not None
        if self.dynamic:
            steps = (x.float().abs().amax(-1, keepdim=True) / _LARGEST).clamp_min(_TINY)
            return (functional.linear((x / steps).round(), self.weight.float()) * steps * self.scale).to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)


class Int4Linear(QuantizedLinear):
    """Weights in four bits, uint8 [outputs, columns / 64 * 36].

    Every 64 columns are a float32 scale and 32 bytes: the lower halves of the bytes are the first 32 weights, the upper
    halves the others, and 8 is added to each weight.
    """

    name = "int4"
    for_many_rows = True

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear) -> Self:
        """The layer with rounded weights; its number of inputs must be a multiple of 64."""
        blocks = layer.weight.float().unflatten(1, (-1, NIBBLES))  # [outputs, blocks, 64]
        # The weight furthest from zero becomes -8 steps, so that all sixteen steps are used.
        furthest = blocks.gather(2, blocks.abs().argmax(2, keepdim=True))
        best, scale, steps = torch.full_like(furthest, torch.inf), torch.zeros_like(furthest), torch.zeros_like(blocks)
        for share in _SCALES:
            tried = furthest * (share / _LOWEST)
            rounded = (blocks / torch.where(tried == 0, 1.0, tried)).round_().clamp_(_LOWEST, _HIGHEST)
            error = (rounded * tried - blocks).square().sum(2, keepdim=True)
            best, scale, steps = (
                torch.where(error < best, new, old) for new, old in ((error, best), (tried, scale), (rounded, steps))
            )
        low, high = (steps - _LOWEST).to(torch.uint8).chunk(2, dim=2)
        weight = torch.cat((scale.contiguous().view(torch.uint8), low | high << 4), dim=2).flatten(1)
        return cls(weight, None, None if layer.bias is None else layer.bias.detach())

    def dequantized(self) -> Tensor:
        """The weights float32 [outputs, columns]."""
        blocks = self.weight.unflatten(1, (-1, NIBBLE_BYTES))
        scale, pairs = blocks[..., :4].contiguous().view(torch.float32), blocks[..., 4:]
        return ((torch.cat((pairs & 15, pairs >> 4), dim=2).float() + _LOWEST) * scale).flatten(1)

    def product(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.dequantized().to(x.dtype))


_LAYERS: dict[str, Callable[[nn.Linear], QuantizedLinear]] = {
    "int8": Int8Linear.of,
    "int8-dynamic": partial(Int8Linear.of, dynamic=True),
    "int4": Int4Linear.of,
}


def quantization_of(module: nn.Module) -> str | None:
    """How the layers of a module have been quantized by this module; None: none is."""
    found = next((layer for layer in module.modules() if isinstance(layer, QuantizedLinear)), None)
    return None if found is None else found.name + "-dynamic" * found.dynamic


def quantize_linears(module: nn.Module, quantization: str) -> None:
    """Replace every plain linear layer inside a module by a rounded one.

    Layers of another class (quantized already, an adapter) are left alone. int4 also leaves layers whose number of
    inputs is not a multiple of 64.

    Args:
        quantization: "int8", "int8-dynamic" or "int4".

    Raises:
        ValueError: int4 could round none of the plain layers.
    """
    plain = [
        (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear or type(child) is FewRowLinear
    ]
    block = NIBBLES if quantization == Int4Linear.name else 1
    fitting = [(parent, name) for parent, name in plain if getattr(parent, name).in_features % block == 0]
    if plain and not fitting:
        raise ValueError(
            f"quantization {quantization} needs layers whose number of inputs is a multiple of {block}; there is none"
        )
    for parent, name in fitting:
        setattr(parent, name, _LAYERS[quantization](getattr(parent, name)))
