"""Finding and loading Video-LLMs: shipped, in a folder, or on the hub; at once or later.

Belongs here: from options to a model and its processor, with a one-line error for everything that can go wrong. Does
not belong here: the options (`options.py`), and answering (`answering.py`).
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
from transformers.utils import logging as transformers_logging

from specdecode.kernels.linears import serve_linears
from specdecode.targets.grouped_attention import use_grouped_attention
from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.base.resources import find_video_model, shipped_video_models
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_stored, read_json
from vargen.checkpoints.options import OWN_QUANTIZATION, LoadingOptions
from vargen.checkpoints.quantization import quantize_layers
from vargen.checkpoints.source import SETTINGS, WEIGHTS, fetch, is_hub_name
from vargen.pipelines.loading import loading_arguments
from vargen.pipelines.quantization import check_quantization
from vargen.video.models.architectures.base import Architecture
from vargen.video.models.architectures.catalogue import find_architecture


@dataclass(frozen=True)
class VideoModelFolder:
    """A Video-LLM that has not been loaded.

    Args:
        folder: where its files lie.
        name: its name on the hub, else the folder's.
        architecture: its architecture.
        argument: which argument named it on the hub; None: it is a folder, and all files are there.
    """

    folder: Path
    name: str
    architecture: Architecture
    argument: str | None = None

    @property
    def config(self) -> Any:
        """transformers' configuration. Raises UserError where it cannot be read."""
        try:
            return AutoConfig.from_pretrained(self.folder)
        except Exception as error:  # a damaged file can raise anything
            raise UserError(f"model: {self.folder} cannot be loaded ({reason_of(error)}); copy it again") from error

    def fetch_weights(self) -> None:
        """Fetch the weights of a model on the hub, of the commit that `folder` holds. Raises UserError as `fetch`."""
        if self.argument is not None:
            fetch(self.name, self.folder.name, WEIGHTS, self.argument)


def open_video_model(
    model: str | os.PathLike[str] | None = None, revision: str | None = None, argument: str = "model"
) -> VideoModelFolder:
    """Find a Video-LLM. Only the small files of one on the hub are fetched, so that errors come before gigabytes.

    Args:
        model: a shipped name (None: the default), a folder, or a name on the hub.
        revision: branch, tag or commit on the hub; None for the main one.
        argument: which argument named it.

    Raises:
        UserError: no such model, no network, an unknown architecture, or a revision of a folder.
    """
    name = None if model is None else os.fspath(model)
    if name is not None and is_hub_name(name) and name not in shipped_video_models():
        folder = fetch(name, revision, SETTINGS, argument)
        return VideoModelFolder(folder, name, _architecture_in(folder, name, argument), argument)
    folder = find_video_model(model)
    if revision is not None:
        raise UserError(f"revision cannot be used: {folder} is a folder, and only models on the hub have revisions")
    return VideoModelFolder(folder, folder.name, _architecture_in(folder, str(folder), argument))


def _architecture_in(folder: Path, called: str, argument: str) -> Architecture:
    check_stored(folder, argument)
    return find_architecture(read_json(folder / "config.json").get("model_type"), f"{argument}: {called}")


def load_processor(model: str | os.PathLike[str] | VideoModelFolder | None) -> Any:
    """The processor that lies beside a model's weights.

    Raises:
        UserError: no such model, or a processor that is missing, knows no videos or has no chat template; or the extra
            "video" is not installed.
    """
    if importlib.util.find_spec("torchvision") is None:  # processors of videos resize frames by it
        raise UserError('video: processors of videos need torchvision; run: pip install "vargen[video]"')
    folder = model.folder if isinstance(model, VideoModelFolder) else open_video_model(model).folder
    try:
        processor = AutoProcessor.from_pretrained(folder)
    except Exception as error:  # tokenizers raise no more special kind
        raise UserError(f"model: {folder} has no processor that loads ({reason_of(error)}); copy it again") from error
    for name, what in (("video_processor", "settings of videos"), ("chat_template", "chat template")):
        if getattr(processor, name, None) is None:  # the library makes a processor from a tokenizer alone, too
            raise UserError(f"model: {folder} has no processor that loads (it has no {what}); copy it again")
    return processor


@dataclass
class LazyModel:
    """A Video-LLM that is loaded on demand; until then it can travel to another process.

    Args:
        found: where it lies.
        options: how it is loaded.
    """

    found: VideoModelFolder
    options: LoadingOptions
    _loaded: Any = field(default=None, repr=False)

    @property
    def config(self) -> Any:
        """transformers' configuration."""
        return self.found.config if self._loaded is None else self._loaded.config

    @property
    def device(self) -> torch.device:
        """Where it is, or will be loaded."""
        if self._loaded is not None:
            return self._loaded.device
        place = self.options.device_map
        return torch.device(loading_arguments(self.options)[1] if place in (None, "auto") else place)

    def elsewhere(self) -> LazyModel:
        """The same, not loaded, for another process."""
        return LazyModel(self.found, self.options)

    def load(self) -> Any:
        """The model, in evaluation mode, loaded once. Raises UserError where it cannot be."""
        if self._loaded is None:
            self._loaded = load_video_model(self.found, self.options)
        return self._loaded


def load_video_model(found: VideoModelFolder, options: LoadingOptions) -> Any:
    """Load a model as options say.

    Raises:
        UserError: a device is absent, files are damaged or missing, or its layers lie on several devices.
    """
    arguments, device, dtype = loading_arguments(options)
    if options.quantization in OWN_QUANTIZATION:
        check_quantization(options.quantization, torch.device(arguments.get("device_map", device)), dtype)
    transformers_logging.disable_progress_bar()
    check_stored(found.folder, "model")
    try:
        loaded: Any = AutoModelForImageTextToText.from_pretrained(
            found.folder, use_safetensors=True, output_loading_info=True, **arguments
        )
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise UserError(f"model: {found.folder} cannot be loaded ({reason_of(error)}); copy it again") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"model: {found.folder} lacks {len(missing)} weights, such as {missing[0]}; it was not copied whole"
        )
    _check_places(model, found)
    check_weights(model, found.folder)
    use_grouped_attention(model)
    serve_linears(model)
    model = model.eval().requires_grad_(False)
    if "device_map" not in arguments:
        model = model.to(device)
    if options.quantization in OWN_QUANTIZATION:
        quantize_layers(found.architecture.decoder(model), options.quantization)
    return model


def _check_places(model: Any, found: VideoModelFolder) -> None:
    """Raises UserError for decoder layers on several devices: one cache holds the keys and values of all."""
    decoder = found.architecture.decoder(model)
    places = {str(parameter.device) for parameter in decoder.parameters()}
    if len(places) > 1:
        raise UserError(
            f"device_map: the decoder layers of {found.name} would lie on {' and '.join(sorted(places))}, and must lie "
            f"on one device; name one, such as cuda:0, or take less memory with quantization"
        )
