"""Which Video-LLM, how it is loaded, which frames it sees, and how it answers.

Belongs here: the options that several commands and the lmms-eval plugin share, and the checks that need no model.
Does not belong here: finding and loading models (`loading.py`). Importing this imports no torch and opens no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from vargen.base.bounds import (
    MAX_FRAMES,
    MAX_NEW_TOKENS,
    MAX_PIXELS,
    MAX_SEED,
    check_number,
    check_numbers,
    check_sampling,
)
from vargen.base.errors import UserError
from vargen.base.places import MODEL
from vargen.models.options import LoadingOptions


@dataclass(frozen=True)
class VideoOptions(LoadingOptions):
    """A Video-LLM, its draft model, and how both answer.

    Args:
        model: folder of a Video-LLM with its processor; or a name on the hub, such as Qwen/Qwen2.5-VL-7B-Instruct; or
            the name of a shipped one; null for the shipped default, which knows only rendered videos of this project.
        draft_model: draft model of the same kind, named as `model` is; null for the one shipped with the default model.
        draft_revision: branch, tag or commit of a draft model on the hub; null for its main one.
        device_map: where transformers puts the parts of the models, such as "auto" or "cuda:0", instead of `device`; or
            one device each for target and drafter, such as "cuda:0,cuda:1".
        num_frames: number of frames that the model sees, evenly spread; null for the processor's own choice.
        fps: number of frames per second that the model sees, instead of `num_frames`.
        max_pixels: largest number of pixels of a frame; null for the processor's own limit. For models that keep the
            shape of frames.
        max_new_tokens: largest number of tokens of an answer.
        temperature: 0 always takes the likeliest token; null for the model's own generation config.
        top_k: choose among this number of likeliest tokens only; 0 for all; null for the model's own.
        top_p: choose among the likeliest tokens that together have this probability; null for the model's own.
        repetition_penalty: above 1 makes repeated tokens less likely; 1 is off; null for the model's own.
        seed: seed of the first answer.
    """

    draft_model: str | None = field(default=None, metadata=MODEL)
    draft_revision: str | None = None
    num_frames: int | None = None
    fps: float | None = None
    max_pixels: int | None = None
    max_new_tokens: int = 256
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(
            self,
            {
                "num_frames": (1, MAX_FRAMES),
                "fps": (0.001, 1000.0),
                "max_pixels": (1, MAX_PIXELS**2),
                "max_new_tokens": (1, MAX_NEW_TOKENS),
                "seed": (0, MAX_SEED),
            },
        )
        check_sampling(self.temperature, self.top_k, self.top_p)
        if self.repetition_penalty is not None:
            check_number("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
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
