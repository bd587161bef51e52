"""Linear layers whose weights are bytes: half of what bfloat16 reads from memory, a quarter of float32.

Belongs here: the layer, and putting it in the place of others. Does not belong here: the product (`native.py`), and who
asks for it (`vargen.pipelines.quantization`).

Each output's weights are the integers from -127 to 127 nearest to them on a scale of its own. What is fed to a layer
stays as it is ("weight-only"): a pass over one token or a few waits for weights, so it takes about half of bfloat16's
time, and one over many, which waits for arithmetic, what it did. Or every row is rounded in the same way when it is fed
("dynamic"): then a processor multiplies twice as many in the same time, and drafts are judged at about the cost of one
token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from vargen.errors import UserError
from vargen.kernels.linears import MOST_ROWS, FewRowLinear
from vargen.kernels.native import fits_linear, linear, linear_now, serves_linear

_LARGEST = 127


class Int8Linear(nn.Module):
    """`nn.Linear` of given int8 weights, one scale an output.

    Args:
        weight: int8 [outputs, columns].
        scale: float32 [outputs].
        bias: [outputs], of what is fed, or None.
        dynamic: whether rows are rounded to int8 too, each on a scale of its own.

    Attributes:
        weight, scale, bias, dynamic: these. Where a model goes to another precision, weight and scale stay as they are.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None, dynamic: bool = False) -> None:
        super().__init__()
        self.dynamic = dynamic
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @classmethod
    @torch.no_grad()
    def of(cls, layer: nn.Linear, dynamic: bool = False) -> Self:
        """The nearest one to a layer of floating-point weights."""
        weight = layer.weight.float()
        scale = weight.abs().amax(1) / _LARGEST
        steps = weight / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
        bias = None if layer.bias is None else layer.bias.detach()
        return cls(steps.round_().to(torch.int8), scale, bias, dynamic)

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`: x [..., columns] to [..., outputs]."""
        if x.numel() and (self.dynamic or x.numel() <= MOST_ROWS.get(x.dtype, 0) * self.weight.shape[1]):
            if torch.compiler.is_compiling():
                if fits_linear(x, self.weight):
                    return linear(x, self.weight, self.scale, self.bias, self.dynamic)
            elif serves_linear(x, self.weight):
                return linear_now(x, self.weight, self.scale, self.bias, self.dynamic)
        if self.dynamic:
            steps = (x.float().abs().amax(-1, keepdim=True) / _LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
            y = (functional.linear((x / steps).round(), self.weight.float()) * steps * self.scale).to(x.dtype)
        else:
            y = functional.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return y if self.bias is None else y + self.bias

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        scale = self.scale.data  # which the next line puts another in the place of
        super()._apply(fn, recurse)
        self.scale = nn.Parameter(scale.to(self.weight.device), requires_grad=False)
        return self

    def _save_to_state_dict(self, *arguments: Any, **named: Any) -> None:
        raise UserError("a model in int8 cannot be saved; load it without quantization and save that")


def is_quantized(module: nn.Module, dynamic: bool = False) -> bool:
    """Whether some layer inside a module has been quantized here, in this way."""
    return any(type(layer) is Int8Linear and layer.dynamic == dynamic for layer in module.modules())


def quantize_linears(module: nn.Module, dynamic: bool = False) -> None:
    """Put an `Int8Linear` in the place of every plain linear layer inside a module, one after the other.

    Layers of another class (quantized already, an adapter) are left alone.
    """
    for name, child in module.named_children():
        if type(child) is nn.Linear or type(child) is FewRowLinear:
            setattr(module, name, Int8Linear.of(child, dynamic))
        else:
            quantize_linears(child, dynamic)
