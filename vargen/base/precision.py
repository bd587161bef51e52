"""In which precision a machine computes, where it is not told.

Belongs here: what a device computes fast. Does not belong here: loading in a precision (`vargen.pipelines.loading`).
"""

from __future__ import annotations


def bfloat16_pays(device: str) -> bool:
    """Whether a device computes faster in bfloat16 than in float32: GPUs, and processors with instructions for it."""
    import torch

    instructions = ("avx512_bf16", "amx_bf16", "bf16")
    return device.split(":")[0] != "cpu" or any(torch.cpu.get_capabilities().get(each) for each in instructions)
