"""Where a new run starts from, if not from random numbers.

Belongs here: putting saved weights into a network, or saying why they do not fit. Does not belong here: reading them,
which every kind of network does in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from vargen.base.errors import UserError


def fill(module: nn.Module, values: Mapping[str, Tensor], what: str, settings: str) -> None:
    """Copy weights into a network.

    Args:
        module: the network.
        values: by name, all of it.
        what: is in them, and where they lie, for the error.
        settings: that say what shape the network has.

    Raises:
        UserError: they are those of another shape.
    """
    wanted = module.state_dict()
    other = sorted(values.keys() ^ wanted.keys())
    other += [name for name in wanted if name in values and values[name].shape != wanted[name].shape]
    if other:
        raise UserError(f"initial_weights: the {what} has another shape than {settings} ({other[0]}); make them agree")
    module.load_state_dict(values)
