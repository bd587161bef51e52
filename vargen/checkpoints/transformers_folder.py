"""Loading a complete model of transformers from a folder or the hub, with one line for every failure.

Belongs here: checks that every family of transformers needs, and those of arguments that pipelines of diffusers need,
too. Does not belong here: folders in the layout of diffusers (`vargen.checkpoints.model_folder`), and any family.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_stored, check_variant, has_torch_files
from vargen.checkpoints.options import check_attention

Model = TypeVar("Model", bound=PreTrainedModel)
Processor = TypeVar("Processor", bound=ProcessorMixin)

_RUN_CODE = ("trust_remote_code", "custom_pipeline", "custom_revision")
_HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only", "subfolder")
_CHECKED = ("dtype", "torch_dtype", "device_map", "attn_implementation", "config")
"""Arguments that other messages are about, or that no user gave."""


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
            `tp_plan="auto"` splits the model over the processes of torchrun; all of them must draw the same.

    Raises:
        UserError: the model cannot be loaded, is of another family, or has pickled or missing weights; dtype or
            attn_implementation is none that can be used; or code of a repository is to be run.
    """
    kwargs = checked_arguments(kwargs, "auto")
    check_family(source, model_type, **kwargs)
    folder = folder_of(source, kwargs)
    if os.path.isdir(source):
        check_variant(source, kwargs.get("variant"), [folder])
    check_stored(folder, variant=kwargs.get("variant"))
    arguments = {"use_safetensors": None if has_torch_files(folder) else True, **kwargs}
    if (plan := arguments.pop("tp_plan", None)) is not None:
        arguments["distributed_config"] = _split(plan)
    try:
        loaded: Any = model_class.from_pretrained(source, output_loading_info=True, **arguments)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        if plan is not None and "has no `tp_plan`" in str(error):
            raise _has_no_plan(model_class) from error
        raise unloadable(source, error, kwargs) from error
    model, report = loaded
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith(absent)):
        raise UserError(
            f"{source} lacks {len(missing)} weights of a {model_class.__name__}, such as {missing[0]}; copy the whole "
            f"folder again"
        )
    if plan is not None and not any(".layers." in f".{name}" for name in model._tp_plan or ()):
        raise _has_no_plan(model_class)
    check_weights(model, source)
    return model.eval()


def _has_no_plan(model_class: type[Any]) -> UserError:
    what = f"transformers has none for the layers of a {model_class.__name__}"
    return UserError(f"tp_plan: {what}; leave it out, or give a device_map")


def _split(plan: object) -> Any:
    """The tensor parallelism of a plan. Raises UserError for another than "auto", or where there is one process."""
    from transformers.distributed import DistributedConfig

    if plan != "auto" or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise UserError(f'tp_plan must be "auto", in several processes of torchrun, got {plan!r}; leave it out')
    return DistributedConfig(tp_plan="auto")


def load_processor(source: str | os.PathLike[str], processor_class: type[Processor], **kwargs: Any) -> Processor | None:
    """The processor beside a model, or None if the folder has none; `kwargs` as for `load_model`. Raises UserError
    where it is damaged or cannot be reached."""
    names = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json")
    folder = folder_of(source, kwargs)
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        return None
    try:
        return processor_class.from_pretrained(source, **hub_arguments(kwargs))
    except Exception as error:  # tokenizers raise the plain class
        raise UserError(
            f"{source}: its processor cannot be loaded ({reason_of(error)}); copy its files again"
        ) from error


def read_config(source: str | os.PathLike[str], **kwargs: Any) -> dict[str, Any]:
    """The content of config.json. Raises UserError where there is none that can be read."""
    folder = folder_of(source, kwargs)
    if Path(source).is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"{folder / 'config.json'} is missing; name a folder that holds a model of transformers")
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


def checked_arguments(arguments: Mapping[str, Any], *words: str) -> dict[str, Any]:
    """The arguments of a `from_pretrained` with precisions as torch has them. Raises UserError for a precision or an
    attention that cannot be used, and for code of a repository.

    Args:
        arguments: by name.
        words: what the library takes as a precision, beside those of torch.
    """
    refuse_remote_code(arguments)
    check_attention(arguments.get("attn_implementation"))
    given = {name: arguments[name] for name in ("dtype", "torch_dtype") if arguments.get(name) is not None}
    return {**arguments, **{name: as_dtype(value, *words) for name, value in given.items()}}


def as_dtype(dtype: Any, *words: str) -> Any:
    """A precision of weights, which diffusers would else replace by float32 and log it.

    Args:
        dtype: of torch, the name of one, or a mapping of these by component.
        words: what is handed on as it is.

    Raises:
        UserError: it is no precision that weights can be computed in.
    """
    if isinstance(dtype, Mapping):
        return {name: as_dtype(each, *words) for name, each in dtype.items()}
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point and found.itemsize > 1:
        return found
    if dtype in words:
        return dtype
    raise UserError(f"dtype must be torch.float32, torch.bfloat16, torch.float16 or the name of one, got {dtype!r}")


def folder_of(source: str | os.PathLike[str], kwargs: Mapping[str, Any]) -> Path:
    """Where a model's files lie, if `source` is a folder."""
    return Path(source, kwargs.get("subfolder") or "")


def check_family(source: str | os.PathLike[str], model_type: str | None, **kwargs: Any) -> None:
    """Refuse a model of another family, and other files. Raises UserError."""
    found = read_config(source, **kwargs).get("model_type")
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
    elif isinstance(error, TypeError | ValueError | ImportError):
        remedy += or_leave_out(kwargs or {})
    return UserError(f"{source} cannot be loaded ({reason_of(error)}); {remedy}")


def or_leave_out(kwargs: Mapping[str, Any]) -> str:
    """The end of a remedy: arguments of a `from_pretrained` that may be the reason; empty where there are none."""
    given = [name for name, value in kwargs.items() if value is not None and name not in (*_HUB_ARGUMENTS, *_CHECKED)]
    return f", or leave out {', '.join(given)}" if given else ""
