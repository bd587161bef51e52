"""Models whose weights come to their device only when they are called, by hooks of accelerate.

Belongs here: noticing such hooks, and asking for the weights before a call. Does not belong here: placing them
(`enable_model_cpu_offload` and `device_map` do).
"""

from __future__ import annotations

from torch import nn


def is_offloaded(model: nn.Module) -> bool:
    """Whether a model comes to its device only when it is called."""
    return getattr(model, "_hf_hook", None) is not None


def move_offloaded(model: nn.Module) -> None:
    """Bring a model to its device where offloading waits for its forward, but it is asked other things first."""
    hook = getattr(model, "_hf_hook", None)
    if hook is not None:
        hook.pre_forward(model)


def has_hooks(model: nn.Module) -> bool:
    """Whether anything in a model is moved, or what it is given, as it is called."""
    return any(is_offloaded(module) for module in model.modules())
