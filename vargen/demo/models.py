"""The models that a page offers. Each is loaded when a visitor first uses it.

Belongs here: which models and which of their methods there are, and keeping them. Does not belong here: loading
(`vargen.pipelines`). Importing this imports no torch, so that the page opens at once.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vargen.base.errors import UserError
from vargen.base.resources import find_trained_drafters, find_video_model, shipped_models
from vargen.base.world import find_world
from vargen.checkpoints.model_folder import read_json
from vargen.checkpoints.options import ModelOptions
from vargen.methods.base import ImageMethodConfig, MethodConfig
from vargen.methods.catalogue import find_presets, methods_for
from vargen.models.description import ModelDescription, open_model
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.methods.catalogue import default_method
from vargen.video.models.architectures.catalogue import find_architecture
from vargen.video.pipelines.options import VideoOptions

if TYPE_CHECKING:
    from vargen.pipelines.loading import ImagePipeline
    from vargen.video.pipelines.answering import VideoAnswerer

FIRST = ("jacobi", "scd", "vvs-jacobi", "likeness-quality", "rows-fast", "rows-batch")
"""Methods that README recommends, offered before the others. The first is the default: it draws plain decoding's very
picture."""

_SHOWN = ("llamagen", "janus")
"""Families whose tokens form a square grid and can be decoded to pixels at any time."""


class Models:
    """Models by the names that the page shows. The last one of each kind stays loaded.

    Args:
        options: the model that is offered first, and how each is loaded. The shipped ones are offered beside it.
        video_model, video_draft_model: as `VideoAnswerer.from_pretrained` takes them.

    Attributes:
        names, default: of all picture models, and of the one that is offered first.
        video_default: the method for videos that is offered first, as `VideoAnswerer.default_method`.

    Raises:
        UserError: no such model, one of a family that cannot be shown while it draws, or a Video-LLM or its draft model
            of an architecture that cannot answer.
    """

    def __init__(
        self, options: ModelOptions | None = None, video_model: str | None = None, video_draft_model: str | None = None
    ) -> None:
        self._options = ModelOptions() if options is None else options
        world = find_world()
        shipped = sorted(shipped_models(), key=lambda name: name != world.model)
        own = [self._options] if self._options.model is not None else []
        plain = ModelOptions(device=self._options.device, dtype=self._options.dtype)
        self._loading: dict[str, tuple[ModelDescription, ModelOptions]] = {}
        for each in (*own, *(replace(plain, model=name) for name in shipped)):
            description = open_model(each)
            if description.family not in _SHOWN:
                raise UserError(
                    f"model: the page shows pictures row by row, which it can of the families {' and '.join(_SHOWN)} "
                    f"alone; {description.name} is of the family {description.family}: use vargen generate"
                )
            self._loading.setdefault(description.name, (description, each))
        self.names = list(self._loading)
        self.default = self.names[0]
        self._video = video_model, video_draft_model
        folder = _check_video_model(video_model, "video_model")
        if video_draft_model is not None:
            _check_video_model(video_draft_model, "video_draft_model")
        self._trained = find_trained_drafters(folder)
        self._paired = VideoOptions(model=video_model, draft_model=video_draft_model).paired
        self.video_default = default_method(self._trained, self._paired)
        self._lock = threading.Lock()
        self._pipeline: tuple[str, ImagePipeline] | None = None
        self._answerer: VideoAnswerer | None = None

    def draws_scenes(self, name: str) -> bool:
        """Whether a model draws the project's own world, so that examples of it make sense."""
        return name in shipped_models()

    def methods(self, name: str) -> dict[str, ImageMethodConfig]:
        """Methods and presets by name that the model has the weights for, plain decoding left out: recommended ones,
        then exact ones, then relaxed ones."""
        description = self.description(name)
        names = [*FIRST, *methods_for("image"), *find_presets()]
        configs = {each: description.resolve_method(each, None) for each in dict.fromkeys(names) if each != "ar"}

        def has_weights(config: MethodConfig) -> bool:
            folders = (name for name in config.weights if getattr(config, name) is None)
            return all((description.folder / name).is_dir() for name in folders)

        order = sorted(configs, key=lambda each: (each not in FIRST, each not in FIRST and not configs[each].exact))
        return {each: configs[each] for each in order if has_weights(configs[each])}

    def video_methods(self) -> dict[str, VideoMethodConfig]:
        """Methods for videos by name whose drafters are there."""
        offered = {}
        for name, method in methods_for("video").items():
            with suppress(UserError):
                config = method()
                config.check_drafter(self._trained, self._paired)
                offered[name] = config
        return offered

    def description(self, name: str) -> ModelDescription:
        """The description in a model's folder."""
        return self._loading[name][0]

    def pipeline(self, name: str) -> ImagePipeline:
        """The model, loaded. Raises UserError where it cannot be."""
        with self._lock:
            if self._pipeline is None or self._pipeline[0] != name:
                from vargen.pipelines.loading import load_pipeline

                self._pipeline = None  # free the old one first
                self._pipeline = name, load_pipeline(*self._loading[name])[0]
            return self._pipeline[1]

    def answerer(self) -> VideoAnswerer:
        """The Video-LLM, loaded. Raises UserError where it cannot be."""
        with self._lock:
            if self._answerer is None:
                from vargen.pipelines.loading import place_and_precision
                from vargen.video.pipelines.answering import VideoAnswerer

                device, dtype = place_and_precision(self._options.device, self._options.dtype)
                self._answerer = VideoAnswerer.from_pretrained(*self._video, device, dtype)
            return self._answerer

    def close(self) -> None:
        """End the processes that methods keep between answers."""
        if self._answerer is not None:
            self._answerer.close()


def _check_video_model(model: str | None, argument: str) -> Path:
    """The folder of a Video-LLM that can answer. Raises UserError, which names the argument, for any other folder."""
    folder = find_video_model(model, argument)
    try:
        config = read_json(folder / "config.json")
    except UserError as error:
        raise UserError(f"{argument}: {error}") from error
    find_architecture(config.get("model_type"), f"{argument}: {folder}")
    return folder
