"""Where shipped weights and configurations lie, in a checkout and in an installed wheel.

A checkout keeps `configs/` at the repository's root; the wheel carries the same files at `vargen/configs/`. Weights
lie inside the package in both. Nothing here opens a file's contents, and nothing here imports torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from vargen.base.errors import UserError

DEFAULT_MODEL = "scenes-128"
"""The model `vargen generate` loads when none is named."""

_PACKAGE = Path(__file__).resolve().parent.parent


def cache_folder() -> Path:
    """What can be made again: `$VARGEN_CACHE`, else `vargen` in the user's cache directory."""
    if folder := os.environ.get("VARGEN_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vargen"


def weights_folder() -> Path:
    """The folder of shipped weights, one folder per model. It need not exist in a checkout that has none yet."""
    return _PACKAGE.parent / "scenes" / "weights"


def configs_folder() -> Path:
    """The folder of shipped YAML files.

    Raises:
        UserError: neither place has one, so the installation is incomplete.
    """
    installed = _PACKAGE / "configs"
    if installed.is_dir():
        return installed
    checkout = _PACKAGE.parent
    # `site-packages/configs` may belong to anybody; only beside this project's own pyproject.toml is it ours.
    if (checkout / "configs").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / "configs"
    raise UserError(f"configs: not found in {installed} nor {checkout / 'configs'}; reinstall vargen")


def shipped_clip() -> Path:
    """The folder of the CLIP that came with vargen, which knows the scene world only."""
    return weights_folder() / "clip"


def find_config(name: str) -> Path:
    """A shipped configuration by its path below `configs/`, with or without `.yaml`, such as "train/tokenizer".

    Raises:
        UserError: there is none; the message lists those there are.
    """
    folder = configs_folder()
    for candidate in (folder / name, folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    raise UserError(f"config {name!r} is not shipped; known: {', '.join(known) or 'none'}")


def shipped_models() -> list[str]:
    """Names of the shipped pipelines."""
    return sorted(index.parent.name for index in weights_folder().glob("*/model_index.json"))


DEFAULT_VIDEO_MODEL = "video-llm"
"""The Video-LLM `vargen caption` loads when none is named; the one that drafts for it is called so and "-draft"."""
VIDEO_FRAMES, VIDEO_SIDE, VIDEO_CAPTIONS = 32, 96, "written"
"""Frames of the videos that it knows, their side in pixels, how they are told: `scenes.captions.languages`."""


def shipped_video_models() -> list[str]:
    """Names of the shipped Video-LLMs."""
    return sorted(config.parent.name for config in weights_folder().glob("video-llm*/config.json"))


def find_video_model(model: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a Video-LLM: a shipped one by name (None: the default), or any folder of transformers' layout.

    Raises:
        UserError: no such folder, or one without a `config.json`.
    """
    name = DEFAULT_VIDEO_MODEL if model is None else os.fspath(model)
    folder = weights_folder() / name if model is None or name in shipped_video_models() else Path(name).expanduser()
    if (folder / "config.json").is_file():
        return folder
    shipped = ", ".join(shipped_video_models()) or "(none shipped)"
    raise UserError(
        f"model: {folder} is no folder with a config.json; give one written by save_pretrained, or one of: {shipped}"
    )


def find_trained_drafters(folder: Path) -> dict[str, Path]:
    """Drafters that came with a Video-LLM, by kind: `drafters/KIND` in its folder."""
    return {config.parent.name: config.parent for config in sorted(folder.glob("drafters/*/config.json"))}


def find_model(model: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a pipeline: a shipped one by name (None: the default), or any folder with a `model_index.json`.

    Raises:
        UserError: no such model, or the folder holds no pipeline.
    """
    return _find_model(model, ("model_index.json",))


def find_model_of_any_family(model: str | os.PathLike[str] | None = None) -> Path:
    """The same, where a folder in the layout of transformers, with a `config.json`, will do as well."""
    return _find_model(model, ("model_index.json", "config.json"))


def _find_model(model: str | os.PathLike[str] | None, files: tuple[str, ...]) -> Path:
    name = DEFAULT_MODEL if model is None else os.fspath(model)
    shipped = weights_folder() / name
    folder = shipped if model is None or name in shipped_models() else Path(name).expanduser()
    if any((folder / file).is_file() for file in files):
        return folder
    shipped_names = ", ".join(shipped_models()) or "(none shipped)"
    remedy = f"give a folder written by save_pretrained or `vargen convert`, or one of: {shipped_names}"
    if not folder.exists():
        raise UserError(f"model: {folder} does not exist; {remedy}")
    raise UserError(f"model: {folder} has no {' or '.join(files)}; {remedy}")
