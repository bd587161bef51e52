"""Linear layers of other people's models, in the kernels wherever these serve: few rows on a CPU.

Belongs here: how a model of transformers comes to use the product of few rows. Does not belong here: the product
(`native.py`), and models whose whole passes run in the kernels (`specdecode.kernels.fast_pass`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdecode.kernels.build import library
from specdecode.kernels.native import fits_linear, linear, linear_now

MOST_ROWS = {torch.float32: 256, torch.bfloat16: 48}
"""Beyond which torch's own products were as fast, or might be elsewhere: on two cores of an AMD EPYC these were faster
up to 272 rows in float32, and up to about 50 in bfloat16."""


class FewRowLinear(nn.Linear):
    """`nn.Linear`, whose products of few rows run in the kernels where they serve; everything else is torch's.

    In compiled code too, if there were kernels when it was made.
    """

    in_kernels: bool

    def forward(self, x: Tensor) -> Tensor:
        """As `nn.Linear`: x [..., columns] to [..., outputs]."""
        if 0 < x.numel() <= MOST_ROWS.get(x.dtype, 0) * self.in_features:
            if torch.compiler.is_compiling():
                if self.in_kernels and fits_linear(x, self.weight):
                    return linear(x, self.weight, None, self.bias)
            elif fits_linear(x, self.weight) and (y := linear_now(x, self.weight, None, self.bias)) is not None:
                return y
        return functional.linear(x, self.weight, self.bias)


def serve_linears(model: nn.Module) -> None:
    """Let every plain linear layer of a model use the kernels from now on. Weights and their names stay as they are.

    Layers of another class (quantized, an adapter) are left alone.
    """
    in_kernels = library() is not None
    for module in model.modules():
        if type(module) is nn.Linear:
            layer: Any = module
            layer.__class__ = FewRowLinear
            layer.in_kernels = in_kernels
