"""Where shipped weights and configurations lie, in a checkout and in an installed wheel.

A checkout keeps `configs/`, the wheel `vargen/configs/`; weights belong to a world (`vargen.base.world`). Does not
belong here: opening a file's contents. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from vargen.base.errors import UserError
from vargen.base.reading import expanded
from vargen.base.world import find_world, require_world

_PACKAGE = Path(__file__).resolve().parent.parent


def cache_folder() -> Path:
    """The folder for what can be made again: `$VARGEN_CACHE`, else `vargen` in the user's cache directory. Raises
    UserError for a user without a home directory."""
    # `specdecode.kernels.build` has the same lines: the core imports nothing of vargen, an installer loads that file by
    # its path before there is anything but the standard library, and importing it from here would import torch.
    if folder := os.environ.get("VARGEN_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vargen"
    except RuntimeError:
        raise UserError("there is no home directory; set VARGEN_CACHE to a folder") from None


def configs_folder() -> Path:
    """The folder of shipped YAML files. Raises UserError where there is none: the installation is incomplete."""
    installed = _PACKAGE / "configs"
    if installed.is_dir():
        return installed
    checkout = _PACKAGE.parent
    # `site-packages/configs` may belong to another package; beside pyproject.toml it is this project's.
    if (checkout / "configs").is_dir() and (checkout / "pyproject.toml").is_file():
        return checkout / "configs"
    raise UserError(f"configs: not found in {installed} nor {checkout / 'configs'}; reinstall vargen")


def shipped_clip() -> Path:
    """The folder of the world's CLIP model, for pictures of that world only. Raises UserError without a world."""
    return require_world("clip", "name the folder of a CLIP model").clip


def find_config(name: str) -> Path:
    """A shipped configuration by its path below `configs/`, with or without `.yaml`, such as "train/tokenizer". Raises
    UserError where there is none; the message lists those there are."""
    folder = configs_folder()
    for candidate in (folder / name, folder / f"{name}.yaml"):
        if candidate.is_file():
            return candidate
    known = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    raise UserError(f"config {name!r} is not shipped; known: {', '.join(known) or 'none'}")


def find_prompts(source: Path) -> Path:
    """A shipped file of prompts by its name, with or without the ending, where no file of a user has it."""
    if source.exists() or source.parent != Path():
        return source
    shipped = configs_folder() / "prompts"
    return next((path for path in shipped.glob("*") if source.name in (path.name, path.stem)), source)


def shipped_models() -> list[str]:
    """Names of the shipped picture models; none without a world."""
    return _shipped("*/model_index.json")


def shipped_video_models() -> list[str]:
    """Names of the shipped Video-LLMs; none without a world."""
    world = find_world()
    return [] if world is None else _shipped(f"{world.video_model}*/config.json")


def find_video_model(model: str | os.PathLike[str] | None = None, argument: str = "model") -> Path:
    """The folder of a Video-LLM: a shipped one by name (None: the default), or any folder of transformers' layout.
    Raises UserError, naming the argument, for no such folder, one without a `config.json`, or None without a world."""
    folder = _model_folder(model, "video_model", shipped_video_models(), argument)
    if (folder / "config.json").is_file():
        return folder
    remedy = f"give one written by save_pretrained, or one of: {', '.join(shipped_video_models()) or '(none shipped)'}"
    raise UserError(f"{argument}: {folder} is no folder with a config.json; {remedy}")


def find_trained_drafters(folder: Path) -> dict[str, Path]:
    """Drafters that came with a Video-LLM, by kind: `drafters/KIND` in its folder."""
    return {config.parent.name: config.parent for config in sorted(folder.glob("drafters/*/config.json"))}


def find_model(model: str | os.PathLike[str] | None = None, files: Sequence[str] = ("model_index.json",)) -> Path:
    """The folder of a pipeline: a shipped one by name (None: the default), or any folder with one of these files.

    Raises UserError for no such model, a folder without a pipeline, or None without a world.
    """
    folder = _model_folder(model, "model", shipped_models())
    if any((folder / file).is_file() for file in files):
        return folder
    wrong = f"has no {' or '.join(files)}" if folder.exists() else "does not exist"
    shipped = f"or one of: {', '.join(shipped_models()) or '(none shipped)'}"
    raise UserError(f"model: {folder} {wrong}; give a folder written by save_pretrained or `vargen convert`, {shipped}")


def _model_folder(
    model: str | os.PathLike[str] | None, default: str, shipped: list[str], argument: str = "model"
) -> Path:
    """The folder that a name stands for; `default` is the world's attribute that names a model for None."""
    if model is not None and os.fspath(model) not in shipped:
        return expanded(model)
    world = require_world(argument, f"name a folder or a model on the hub with --{argument}")
    return world.weights / (getattr(world, default) if model is None else os.fspath(model))


def _shipped(pattern: str) -> list[str]:
    world = find_world()
    return [] if world is None else sorted(path.parent.name for path in world.weights.glob(pattern))
