"""Ways to decode an answer about a video, by name. Listing them imports no torch; a new one is one line here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vargen.base.errors import UserError
from vargen.methods.base import MethodConfig, configure
from vargen.methods.video.assisted import AssistedConfig
from vargen.methods.video.base import VideoMethodConfig
from vargen.methods.video.fly import FlyConfig
from vargen.methods.video.lossy import FastVConfig, SparseVLMConfig
from vargen.methods.video.lvspec import LVSpecConfig
from vargen.methods.video.parallelvlm import ParallelConfig
from vargen.methods.video.plain import PlainConfig
from vargen.methods.video.sparse_draft import SparseToDenseConfig
from vargen.methods.video.speculative import SpeculativeConfig, SpecVLMConfig
from vargen.methods.video.trained import EagleHeadConfig, FlashConfig, MSDConfig, SparrowConfig, ViSpecConfig

VIDEO_METHODS: tuple[type[VideoMethodConfig], ...] = (
    PlainConfig,
    SpeculativeConfig,
    SpecVLMConfig,
    SparseToDenseConfig,
    EagleHeadConfig,
    MSDConfig,
    ViSpecConfig,
    SparrowConfig,
    FlashConfig,
    ParallelConfig,
    FlyConfig,
    LVSpecConfig,
    FastVConfig,
    SparseVLMConfig,
    AssistedConfig,
)
"""Every known method, in the order in which they are listed."""


def default_method(trained: Collection[str], paired: bool) -> str:
    """The method of whoever names none: exact, and of what there is a drafter for the fastest on the shipped pair.

    Args:
        trained: kinds of trained drafters that came with the model.
        paired: whether there is a smaller model.
    """
    there = [name for name in ("flash", "sparrow", "msd", "vispec", "eagle") if name in trained]
    return there[0] if there else "sd" if paired else "ar"


def resolve_video_method(method: str | MethodConfig, options: Mapping[str, Any] | None = None) -> VideoMethodConfig:
    """The settings of a method given by name, or as settings already.

    Args:
        options: fields that differ from the defaults; only with a name.

    Raises:
        UserError: no method for videos has this name, or an option is unknown or out of range.
    """
    if isinstance(method, VideoMethodConfig):
        if options:
            raise UserError("method_options cannot be given beside a method's settings; put them there")
        return method
    name = method.name if isinstance(method, MethodConfig) else method
    by_name = {config.name: config for config in VIDEO_METHODS}
    if not isinstance(method, str) or method not in by_name:
        raise UserError(f"method {name!r} is not known for videos; choose one of: {', '.join(by_name)}")
    return configure(by_name[method], options or {})
