"""Weights of other projects: reading their files safely, and putting them into a model completely.

Belongs here: steps of every conversion. Does not belong here: names in the files of one project.
"""

from __future__ import annotations

import argparse
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.base.reading import reading

StateDict = dict[str, Tensor]
Converted = TypeVar("Converted", bound=nn.Module)
_CONTAINERS = ("state_dict", "model", "module", "ema")
"""Where trainers put the weights: others, DDP, DeepSpeed, averages. FSDP files are the bare weights."""
_WRAPPERS = ("_orig_mod.", "module.")
"""What torch.compile and DDP put before every name."""


def load_weights_only(path: Path, argument: str) -> Any:
    """`torch.load` without running code of the file; only one class is allowed, the trainers' command line."""
    with open(path, "rb") as file:
        in_zip_container = file.read(4) == b"PK\x03\x04"
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=in_zip_container)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        if "unsupported global" in str(error).lower():  # torch writes it in two ways
            raise UserError(
                f"{argument} must hold weights only, but {path} holds other objects too; download it again."
            ) from error
        raise UserError(f"{argument}: {path} is truncated or not a .pt file; download it again.") from error


def read_tensors(path: Path, argument: str) -> StateDict:
    """All tensors in a file by name, wherever its trainer put them.

    Args:
        path: a pickled checkpoint (.ckpt, .pt, .pth, .bin), of which only tensors are read, or a .safetensors file.
        argument: names it in errors.

    Raises:
        UserError: it is damaged, or holds something else.
    """
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{argument}: {path} is truncated or not a safetensors file; download it again.") from error
    checkpoint = load_weights_only(path, argument)
    if isinstance(checkpoint, Mapping):
        inner = (checkpoint[name] for name in _CONTAINERS if isinstance(checkpoint.get(name), Mapping))
        checkpoint = next(inner, checkpoint)
    if not isinstance(checkpoint, Mapping):
        raise UserError(f"{argument}: {path} holds no weights by name; download it again.")
    found = {key: value for key, value in checkpoint.items() if isinstance(key, str) and isinstance(value, Tensor)}
    while wrapper := next((each for each in _WRAPPERS if found and all(key.startswith(each) for key in found)), ""):
        found = {key.removeprefix(wrapper): value for key, value in found.items()}
    return found


def load_converted(
    model_class: Callable[..., Converted],
    config: Mapping[str, Any],
    convert: Callable[[StateDict], StateDict],
    weights: StateDict,
    source: str | os.PathLike[str],
) -> Converted:
    """A model with published weights, in eval mode.

    Args:
        model_class, config: of the model.
        convert: gives weights under the model's names.
        weights: under the authors' names.
        source: names the file in errors.

    Raises:
        UserError: a tensor is missing, unknown or of another size.
    """
    with reading(source, "download it again"):
        with torch.device("meta"):
            model = model_class(**config)
        own = convert(weights)
    load_strictly(model, own, source)
    return model.eval()


def load_strictly(model: nn.Module, state_dict: StateDict, source: str | os.PathLike[str]) -> None:
    """Put weights into a model built on the meta device, all of them or none. Raises UserError, in one line."""
    expected = {key: tensor.shape for key, tensor in model.state_dict().items()}
    missing = sorted(expected.keys() - state_dict.keys())
    unexpected = sorted(state_dict.keys() - expected.keys())
    reshaped = sorted(key for key in expected.keys() & state_dict.keys() if expected[key] != state_dict[key].shape)
    name = type(model).__name__
    if missing:
        raise UserError(f"{source} lacks {len(missing)} weights of {name}, such as {missing[0]}; download it again.")
    if unexpected:
        raise UserError(f"{source} has {len(unexpected)} weights that {name} does not have, such as {unexpected[0]}.")
    if reshaped:
        key = reshaped[0]
        raise UserError(
            f"{source} has {len(reshaped)} weights of another size, such as {key}: {tuple(state_dict[key].shape)} "
            f"instead of {tuple(expected[key])}."
        )
    for key, tensor in state_dict.items():
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise UserError(f"{source} holds {key} as {tensor.dtype}, which is no weight; download it again.")
    model.load_state_dict(state_dict, strict=True, assign=True)
