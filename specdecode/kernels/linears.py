"""Linear layers of other libraries' models, computed by the kernels for few rows on a CPU.

Belongs here: making a model of transformers use the product of few rows, for good or for a while. Does not belong here:
the product (`native.py`), and models whose whole forward passes run in the kernels (`fast_pass.py`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specdecode.kernels.as_written import as_written, no_modes
from specdecode.kernels.build import kind, library
from specdecode.kernels.native import fits_linear, linear, linear_now

MOST_ROWS = {torch.float32: 256, torch.bfloat16: 48}
"""The most rows for which the kernels are used. On two cores of an AMD EPYC they beat torch up to 272 rows in float32
and up to about 50 in bfloat16; the limits leave a margin for other machines."""
BY_TILES = {**MOST_ROWS, torch.bfloat16: 256}
"""The same where products run by tiles, of which 64 rows take two thirds of torch's time. torch would round by their
number."""


class FewRowLinear(nn.Linear):
    """`nn.Linear` whose products of few rows run in the kernels; all others are torch's.

    In compiled code too, if there were kernels when the layer was converted.
    """

    in_kernels: bool
    most_rows: dict[torch.dtype, int]
    stands_for = nn.Linear  # see `as_written`

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [..., outputs] of x [..., columns], as `nn.Linear` gives them."""
        most_rows = getattr(self, "most_rows", MOST_ROWS)  # another thread may just have left
        if 0 < x.numel() <= most_rows.get(x.dtype, 0) * self.in_features:
            if torch.compiler.is_compiling():
                if self.in_kernels and fits_linear(x, self.weight, None, self.bias):
                    return linear(x, self.weight, None, self.bias)
            elif (
                fits_linear(x, self.weight, None, self.bias)
                and as_written(nn.Linear)
                and no_modes()
                and (y := linear_now(x, self.weight, None, self.bias)) is not None
            ):
                return y
        return super().forward(x)


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module is torch's own linear layer, and its weight an ordinary tensor.

    Quantized weights, such as those of torchao, are tensors of classes of their own in plain layers.
    """
    return type(module) in (nn.Linear, FewRowLinear) and type(module._parameters.get("weight")) is nn.Parameter


def serve_linears(model: nn.Module) -> None:
    """Make every plain linear layer of a model that nobody else has use the kernels. Weights and their names stay as
    they are.

    Layers of another class (quantized, an adapter) are left alone.
    """
    in_kernels = library() is not None and as_written(nn.Linear)
    for module in model.modules():
        if type(module) is nn.Linear and is_plain_linear(module):
            layer: Any = module
            layer.in_kernels, layer.most_rows = in_kernels, _most_rows()
            layer.__class__ = FewRowLinear


def _most_rows() -> dict[torch.dtype, int]:
    return BY_TILES if library() is not None and kind().count("+") else MOST_ROWS


_serving: Counter[int] = Counter()
_lock = threading.Lock()


@contextmanager
def served_linears(model: nn.Module | None) -> Iterator[None]:
    """Within this context, every plain linear layer of a model uses the kernels; afterwards the model is as before.
    None: of none.

    Layers that another thread serves at the same time stay served until both have left. Compiled models and models in
    training are left alone.
    """
    modules = [] if model is None else [*model.modules()]
    compiled = any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in modules)
    wanted = modules and library() is not None and not compiled and not modules[0].training
    layers: list[Any] = []
    with _lock:
        for module in modules if wanted else ():
            if is_plain_linear(module) and (type(module) is nn.Linear or _serving[id(module)]):
                layers.append(module)
                layers[-1].in_kernels, layers[-1].most_rows = True, _most_rows()
                layers[-1].__class__ = FewRowLinear
                _serving[id(module)] += 1
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                _serving[id(layer)] -= 1
                if not _serving[id(layer)]:
                    del _serving[id(layer)]
                    layer.__class__ = nn.Linear
                    del layer.in_kernels, layer.most_rows
