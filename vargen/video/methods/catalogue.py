"""Every method for videos, as the entry point "video" of the group `vargen.methods` names them, and the default.

Belongs here: the list. Each method has a file of its own. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Collection

from vargen.video.methods.base import VideoMethodConfig
from vargen.video.methods.fly import FlyConfig
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.methods.parallelvlm import ParallelConfig
from vargen.video.methods.plain import PlainConfig
from vargen.video.methods.speculative import SpeculativeConfig, SpecVLMConfig
from vargen.video.methods.trained import EagleHeadConfig, FlashConfig, MSDConfig, SparrowConfig, ViSpecConfig

METHODS: tuple[type[VideoMethodConfig], ...] = (
    PlainConfig,
    SpeculativeConfig,
    SpecVLMConfig,
    EagleHeadConfig,
    MSDConfig,
    ViSpecConfig,
    SparrowConfig,
    FlashConfig,
    ParallelConfig,
    FlyConfig,
    LVSpecConfig,
)
"""In the order of lists."""


def default_method(trained: Collection[str], paired: bool) -> str:
    """The fastest exact method on the shipped pair whose drafter is there.

    Args:
        trained: kinds of draft heads that came with the model.
        paired: whether there is a draft model.
    """
    there = [name for name in ("flash", "sparrow", "msd", "vispec", "eagle") if name in trained]
    return there[0] if there else "sd" if paired else "ar"
