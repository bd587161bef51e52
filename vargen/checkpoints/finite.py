"""Checks that weights and pixels are finite, because a model gives an output for any numbers.

Belongs here: the checks, and errors that say where. Does not belong here: logits, which the decode loop checks
(`specdecode.checks`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from vargen.base.errors import NotFiniteError, UserError
from vargen.checkpoints.model_folder import find_tensor

_NOTHING = 1e-30
"""Below it, all numbers of a matrix are as good as 0."""


def check_weights(model: torch.nn.Module, place: str | os.PathLike[str]) -> None:
    """Refuse weights that are not finite, or mostly zeros.

    Args:
        model: as loaded, on any device.
        place: its folder, or another source.

    Raises:
        UserError: with the file and the tensor.
    """
    # Quantized weights have their own tensor types, which some functions do not take.
    state = {name: tensor for name, tensor in model.state_dict().items() if type(tensor) in (Tensor, Parameter)}
    floating = {name: tensor for name, tensor in state.items() if tensor.is_floating_point() and tensor.numel()}
    if not floating or any(tensor.is_meta for tensor in floating.values()):  # meta: offloaded to a disk
        return
    # Smallest and largest of each tensor: NaN wins both, and one small tensor is copied instead of many masks.
    extremes = [torch.stack(torch.aminmax(tensor.detach())).float().cpu() for tensor in floating.values()]
    matrices = [each for each, tensor in zip(extremes, floating.values(), strict=True) if tensor.ndim > 1]
    if matrices and 2 * int((torch.stack(matrices).abs().amax(1) < _NOTHING).sum()) > len(matrices):
        raise UserError(f"{place}: most weights are 0, as in a file that was never filled; copy or download it again")
    finite = torch.stack(extremes).isfinite().all(1).tolist()
    for (name, tensor), is_finite in zip(floating.items(), finite, strict=True):
        if not is_finite:
            precision = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{find_tensor(Path(place), name)}: the weights {name} are not finite in {precision}; copy the file "
                f"again, or load it with another dtype"
            )


def check_component_weights(components: Mapping[str, object], folder: str | os.PathLike[str]) -> None:
    """`check_weights` of every network of a pipeline of diffusers, each in the folder of its name. Raises UserError."""
    for name, component in components.items():
        if isinstance(component, torch.nn.Module):
            check_weights(component, os.path.join(folder, name))


def check_pixels(pictures: Tensor) -> None:
    """Refuse pictures [B, ...] with pixels that are not finite. Raises NotFiniteError with the first such picture and
    the likely cause."""
    finite = torch.stack(torch.aminmax(pictures.flatten(1), dim=1)).isfinite().all(0)  # [B]
    for row, is_finite in enumerate(finite.tolist()):
        if not is_finite:
            raise NotFiniteError(
                row,
                f"picture {row + 1} of the batch has pixels that are not finite: the image decoder's weights do not "
                "fit its configuration or its precision; copy it again",
            )
