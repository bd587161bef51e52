"""Models whose weights accelerate moves to their device only in a call.

Belongs here: finding accelerate's hooks, and moving weights before a call. Does not belong here: setting the hooks,
which `enable_model_cpu_offload` and `device_map` do.
"""

from __future__ import annotations

from torch import nn


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
