"""Linear layers of rounded weights: bytes, or four bits each, which come from memory sooner than bfloat16.

Belongs here: the layers, and putting them in the place of others. Does not belong here: the product (`native.py`), and
who asks for it (`vargen.pipelines.quantization`).

int8: each output's weights are the integers from -127 to 127 nearest to them on a scale of its own, half of bfloat16's
bytes. What is fed to a layer stays as it is ("weight-only"): a pass over one token or a few waits for weights, and one
over many, which waits for arithmetic, takes what it did. int8-dynamic: every row is rounded in the same way when it is
fed; then a processor multiplies twice as many in the same time, and drafts are judged at about the cost of one token.
int4: sixty-four weights of an output share a scale, and are integers from -8 to 7 on it; weight-only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdecode.kernels.linears import MOST_ROWS, FewRowLinear
from specdecode.kernels.native import NIBBLES, fits_linear, linear, linear_now

_LARGEST = 127
_LOWEST, _HIGHEST = -8, 7
_SCALES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76)
"""Shares of the scale that holds a block's largest weight, of which the one that errs least is taken."""
_TINY = torch.finfo(torch.float32).tiny


class QuantizedLinear(nn.Module):
    """`nn.Linear` of given rounded weights.

    Args:
        weight: as the kernels read it.
        scale: float32 [outputs], where one is kept apart; else None.
        bias: [outputs], of what is fed, or None.

    Attributes:
        weight, scale, bias: these. Where a model goes to another precision, weight and scale stay as they are.
        dynamic: whether rows are rounded to int8 too, each on a scale of its own.
        for_many_rows: whether the kernels serve many rows as well, since torch has nothing faster.
    """

    name: str
    """What messages call it."""
    dynamic = False
    for_many_rows = False

    def __init__(self, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = None if scale is None else nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`: x [..., columns] to [..., outputs]."""
        few = self.for_many_rows or x.numel() <= MOST_ROWS.get(x.dtype, 0) * x.shape[-1]
        if few and x.numel() and fits_linear(x, self.weight):
            product = linear if torch.compiler.is_compiling() else linear_now
            if (y := product(x, self.weight, self.scale, self.bias, self.dynamic)) is not None:
                return y
        y = self.product(x)
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor) -> Tensor:
        """`x weight^T` by torch's operations."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scale = None if self.scale is None else self.scale.data  # which the next line puts another in the place of
        super()._apply(fn, recurse)
        if scale is not None:
            self.scale = nn.Parameter(scale.to(self.weight.device), requires_grad=False)
        return self

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        raise ValueError(f"a model in {self.name} cannot be saved; load it without quantization and save that")


class Int8Linear(QuantizedLinear):
    """Weights int8 [outputs, columns], one scale an output."""

    name = "int8"

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear, dynamic: bool = False) -> Self:
        """The nearest one to a layer of floating-point weights."""
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
    """Weights in four bits, uint8 [outputs, columns / 64 * 36]: of every sixty-four columns a float32 scale, and then
    32 bytes whose lower halves are the first 32 weights and whose upper halves the others, 8 added."""

    name = "int4"
    for_many_rows = True

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear) -> Self:
        """Near a layer of floating-point weights, whose inputs are a multiple of 64."""
        blocks = layer.weight.float().unflatten(1, (-1, NIBBLES))  # [outputs, blocks, 64]
        # The weight furthest from zero becomes -8 of them, so that all sixteen steps are of use.
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
        blocks = self.weight.unflatten(1, (-1, 4 + NIBBLES // 2))
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
    """How layers inside a module have been quantized here; None: none is."""
    found = next((layer for layer in module.modules() if isinstance(layer, QuantizedLinear)), None)
    return None if found is None else found.name + "-dynamic" * found.dynamic


def quantize_linears(module: nn.Module, quantization: str) -> None:
    """Put a rounded layer in the place of every plain linear layer inside a module, one after the other.

    Layers of another class (quantized already, an adapter) are left alone; so is, by int4, one whose inputs are no
    multiple of 64.

    Args:
        quantization: "int8", "int8-dynamic" or "int4".

    Raises:
        ValueError: int4 leaves all plain layers alone.
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
            f"quantization {quantization} takes layers of a multiple of {block} inputs, of which there is none"
        )
    for parent, name in fitting:
        setattr(parent, name, _LAYERS[quantization](getattr(parent, name)))
