"""Loading a complete model of transformers from a folder or the hub, with one line for every failure.

Belongs here: checks that every family of transformers needs. Does not belong here: folders in the layout of diffusers
(`vargen.models.model_folder`), and any family.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.models.finite import check_weights
from vargen.models.model_folder import check_stored, check_variant, has_torch_files

Model = TypeVar("Model", bound=PreTrainedModel)
Processor = TypeVar("Processor", bound=ProcessorMixin)

_RUN_CODE = ("trust_remote_code", "custom_pipeline", "custom_revision")
_HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only", "subfolder")


def load_model(
    source: str | os.PathLike[str],
    model_class: type[Model],
    model_type: str | None,
    absent: tuple[str, ...] = (),
    **kwargs: Any,
) -> Model:
    """A model with all of its weights; transformers alone would fill missing ones with random numbers and log it.

    Args:
        source: a folder, or a name on the hub.
        model_class: of transformers.
        model_type: the family's name in config.json.
        absent: prefixes of weights that may be missing, because nothing here uses them.
        **kwargs: for `from_pretrained`, such as dtype, device_map, quantization_config, attn_implementation, variant.

    Raises:
        UserError: the model cannot be loaded, is of another family, or has pickled or missing weights; or code of a
            repository is to be run.
    """
    refuse_remote_code(kwargs)
    check_family(source, model_type, **kwargs)
    if os.path.isdir(source):
        check_variant(source, kwargs.get("variant"), [Path(source, kwargs.get("subfolder") or "")])
    check_stored(source, variant=kwargs.get("variant"))
    arguments = {"use_safetensors": None if has_torch_files(source) else True, **kwargs}
    try:
        loaded: Any = model_class.from_pretrained(source, output_loading_info=True, **arguments)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise unloadable(source, error, kwargs) from error
    model, report = loaded
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith(absent)):
        raise UserError(
            f"{source} lacks {len(missing)} weights of a {model_class.__name__}, such as {missing[0]}; copy the whole "
            f"folder again"
        )
    check_weights(model, source)
    return model.eval()


def load_processor(source: str | os.PathLike[str], processor_class: type[Processor], **kwargs: Any) -> Processor | None:
    """The processor beside a model, or None if the folder has none; `kwargs` as for `load_model`. Raises UserError
    where it is damaged or cannot be reached."""
    names = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json")
    if Path(source).is_dir() and not any((Path(source) / name).is_file() for name in names):
        return None
    try:
        return processor_class.from_pretrained(source, **hub_arguments(kwargs))
    except Exception as error:  # tokenizers raise the plain class
        raise UserError(
            f"{source}: its processor cannot be loaded ({reason_of(error)}); copy its files again"
        ) from error


def read_family(source: str | os.PathLike[str], **kwargs: Any) -> str | None:
    """The name of a model's family in config.json; None if there is no name. Raises UserError as `read_config`."""
    return read_config(source, **kwargs).get("model_type")


def read_config(source: str | os.PathLike[str], **kwargs: Any) -> dict[str, Any]:
    """The content of config.json. Raises UserError where there is none that can be read."""
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise UserError(f"{Path(source) / 'config.json'} is missing; name a folder that holds a model of transformers")
    try:
        config, _ = PreTrainedConfig.get_config_dict(source, **hub_arguments(kwargs))
    except (OSError, ValueError, RecursionError) as error:
        raise unloadable(source, error) from error
    content: dict[str, Any] = config
    return content


def refuse_remote_code(arguments: Mapping[str, Any]) -> None:
    """Refuse to run code of a repository, or of a folder. Raises UserError."""
    for name in _RUN_CODE:
        if arguments.get(name) not in (None, False):
            raise UserError(f"{name} cannot be used: no code of a repository is run here; leave it out")


def check_family(source: str | os.PathLike[str], model_type: str | None, **kwargs: Any) -> None:
    """Refuse a model of another family, and other files. Raises UserError."""
    found = read_family(source, **kwargs)
    if found != model_type:
        raise UserError(f"{source} holds a model of type {found!r}, where one of type {model_type!r} is needed")


def hub_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments that select files."""
    return {name: value for name, value in kwargs.items() if name in _HUB_ARGUMENTS}


def unloadable(source: str | os.PathLike[str], error: Exception, kwargs: Mapping[str, Any] | None = None) -> UserError:
    """The error if a library cannot load a folder or a name on the hub with these arguments."""
    remedy = "copy or download it again" if Path(source).is_dir() else "name a folder, or try again with a network"
    if kwargs and kwargs.get("quantization_config") is not None:
        remedy += ", without quantization or on another device"
    return UserError(f"{source} cannot be loaded ({reason_of(error)}); {remedy}")
