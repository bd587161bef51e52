"""Linear layers of other libraries' models, computed by the kernels for few rows on a CPU.

Belongs here: making a model of transformers use the product of few rows. Does not belong here: the product
(`native.py`), and models whose whole forward passes run in the kernels (`fast_pass.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specdecode.kernels.build import library
from specdecode.kernels.native import fits_linear, linear, linear_now

MOST_ROWS = {torch.float32: 256, torch.bfloat16: 48}
"""The most rows for which the kernels are used. On two cores of an AMD EPYC they beat torch up to 272 rows in float32
and up to about 50 in bfloat16; the limits leave a margin for other machines."""


class FewRowLinear(nn.Linear):
    """`nn.Linear` whose products of few rows run in the kernels; all others are torch's.

    In compiled code too, if there were kernels when the layer was converted.
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
    """Make every plain linear layer of a model use the kernels. Weights and their names stay as they are.

    Layers of another class (quantized, an adapter) are left alone.
    """
    in_kernels = library() is not None
    for module in model.modules():
        if type(module) is nn.Linear:
            layer: Any = module
            layer.__class__ = FewRowLinear
            layer.in_kernels = in_kernels
