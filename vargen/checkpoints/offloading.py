"""Models whose weights accelerate moves to their device only in a call.

Belongs here: finding accelerate's hooks, moving weights before a call, and which `device_map` a pipeline takes. Does
not belong here: setting the hooks, which `enable_model_cpu_offload` and `device_map` do.
"""

from __future__ import annotations

from torch import nn

from vargen.base.errors import UserError


def check_device_map(place: object) -> None:
    """Refuse a map that a pipeline of diffusers cannot be laid out by; diffusers says little. Raises UserError."""
    from diffusers.pipelines.pipeline_utils import SUPPORTED_DEVICE_MAP  # not for all who move weights: it is slow

    if place not in (None, *SUPPORTED_DEVICE_MAP):
        known = ", ".join(dict.fromkeys(SUPPORTED_DEVICE_MAP))
        raise UserError(f"device_map of a pipeline of diffusers must be one of {known}, got {place!r}")


def is_offloaded(model: nn.Module) -> bool:
    """Whether a model moves to its device only in a call."""
    return getattr(model, "_hf_hook", None) is not None


def move_offloaded(model: nn.Module) -> None:
    """Move an offloaded model to its device before its weights are used without a call."""
    hook = getattr(model, "_hf_hook", None)
    if hook is not None:
        hook.pre_forward(model)


def has_hooks(model: nn.Module) -> bool:
    """Whether a call of any module moves weights or inputs."""
    return any(is_offloaded(module) for module in model.modules())
