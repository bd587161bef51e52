"""Saved weights as the start of a new run: copying them into a network, or refusing them."""

from __future__ import annotations

from collections.abc import Mapping

from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.checkpoints.model_folder import check_component_folder


def fill(module: nn.Module, values: Mapping[str, Tensor], what: str, settings: str) -> None:
    """Copy weights into a network.

    Args:
        module: the network.
        values: all weights of the network, by name.
        what: names these weights and their folder in the error.
        settings: names the settings that decide the network's shape in the error.

    Raises:
        UserError: the weights have another shape.
    """
    wanted = module.state_dict()
    other = sorted(values.keys() ^ wanted.keys())
    other += [name for name in wanted if name in values and values[name].shape != wanted[name].shape]
    if other:
        raise UserError(f"initial_weights: the {what} has another shape than {settings} ({other[0]}); make them agree")
    module.load_state_dict(values)


def fill_from(folder: str, module: ModelMixin, what: str, settings: str) -> None:
    """`fill` with the weights in a folder of the same class. Raises UserError for another folder, too."""
    check_component_folder(folder, type(module))
    saved: nn.Module = type(module).from_pretrained(folder)
    fill(module, saved.state_dict(), f"{what} in {folder!r}", settings)
