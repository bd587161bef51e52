"""Which Video-LLM, how it is loaded, which frames it sees, and how it answers.

Belongs here: the options that several commands share, and the checks that need no model.
Does not belong here: finding and loading models (`loading.py`). Importing this imports no torch and opens no file.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from vargen.base.bounds import (
    MAX_FRAMES,
    MAX_NEW_TOKENS,
    MAX_PIXELS,
    MAX_SEED,
    SAMPLING_BOUNDS,
)
from vargen.base.errors import UserError
from vargen.base.options import LOADING, SAMPLING, option
from vargen.base.path_roles import MODEL
from vargen.checkpoints.options import LoadingOptions


@dataclass(frozen=True)
class VideoOptions(LoadingOptions):
    """A Video-LLM, its draft model, and how both answer."""

    model: str | None = None
    """Folder of a Video-LLM with its processor; or a name on the hub, such as Qwen/Qwen2.5-VL-7B-Instruct; or the name
    of a shipped one; null for the shipped default, which knows only rendered videos of this project."""
    device_map: str | None = None
    """Where transformers puts the parts of the models, such as "auto" or "cuda:0", instead of `device`; or one device
    each for target and drafter, such as "cuda:0,cuda:1"."""
    draft_model: str | None = option(None, path=MODEL, group=LOADING)
    """Draft model of the same kind, named as `model` is; null for the one shipped with the default model."""
    draft_revision: str | None = option(None, group=LOADING)
    """Branch, tag or commit of a draft model on the hub; null for its main one."""
    num_frames: int | None = option(None, least=1, most=MAX_FRAMES)
    """Number of frames that the model sees, evenly spread; null for the processor's own choice."""
    fps: float | None = option(None, least=0.001, most=1000.0)
    """Number of frames per second that the model sees, instead of `num_frames`."""
    max_pixels: int | None = option(None, least=1, most=MAX_PIXELS**2)
    """Largest number of pixels of a frame; null for the processor's own limit. For models that keep the shape of
    frames."""
    max_new_tokens: int = option(256, least=1, most=MAX_NEW_TOKENS, group=SAMPLING)
    """Largest number of tokens of an answer."""
    temperature: float | None = option(None, **SAMPLING_BOUNDS["temperature"], group=SAMPLING)
    """0 always takes the likeliest token; null for the model's own generation config."""
    top_k: int | None = option(None, **SAMPLING_BOUNDS["top_k"], group=SAMPLING)
    """Choose among this number of likeliest tokens only; 0 for all; null for the model's own."""
    top_p: float | None = option(None, **SAMPLING_BOUNDS["top_p"], group=SAMPLING)
    """Choose among the likeliest tokens that together have this probability; null for the model's own."""
    repetition_penalty: float | None = option(None, least=0.01, most=100.0, group=SAMPLING)
    """Above 1 makes repeated tokens less likely; 1 is off; null for the model's own."""
    seed: int = option(0, least=0, most=MAX_SEED, group=SAMPLING)
    """Seed of the first answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_frames is not None and self.fps is not None:
            raise UserError("num_frames and fps cannot both be given; leave out one of them")
        if self.draft_revision is not None and self.draft_model is None:
            raise UserError("draft_revision needs draft_model, whose revision it is; give both or leave it out")
        if self.device_map is not None and len(self._places) > 2:
            raise UserError(
                f'device_map must be one word, or one device each for target and drafter, such as "cuda:0,cuda:1", got '
                f"{self.device_map!r}"
            )

    @property
    def _places(self) -> list[str]:
        return [place.strip() for place in (self.device_map or "").split(",")]

    @property
    def of_target(self) -> LoadingOptions:
        """How the target is loaded."""
        own = LoadingOptions(**{field.name: getattr(self, field.name) for field in fields(LoadingOptions)})
        return own if self.device_map is None else replace(own, device_map=self._places[0])

    @property
    def of_draft_model(self) -> LoadingOptions:
        """How the draft model is loaded."""
        own = replace(
            self.of_target,
            model=self.draft_model,
            revision=self.draft_revision,
            quantization=self.draft_quantization or self.quantization,
            draft_quantization=None,
        )
        return own if self.device_map is None else replace(own, device_map=self._places[-1])

    @property
    def paired(self) -> bool:
        """Whether there is a draft model: a named one, or the one shipped with the default model."""
        return self.draft_model is not None or self.model is None

    @property
    def generation(self) -> dict[str, Any]:
        """Arguments of `VideoAnswerer.answer` beside frames, question, method and seed."""
        names = ("max_new_tokens", "temperature", "top_k", "top_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}
