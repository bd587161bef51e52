"""Checks of a pipeline's folder before anything is loaded: is it complete, and do weights fit their configuration?

diffusers fills missing weights with random numbers and only logs it, names no file for a truncated one, and imports any
module that a model folder names. So components here come from a closed list of libraries, and the headers of weight
files (a few kilobytes) are compared with the configured models, built without memory on the meta device.

Belongs here: everything that can be read from a folder without loading weights. Does not belong here: loading.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from safetensors import SafetensorError, safe_open

from vargen.base import reading
from vargen.base.bounds import check_number
from vargen.base.errors import UserError
from vargen.base.kinds import fits, in_words
from vargen.methods.base import MethodConfig
from vargen.runs.files import inside, write_atomic

if TYPE_CHECKING:
    import torch

_LIBRARIES = ("diffusers", "transformers")
_OUR_MODELS = ("vargen.models.", "vargen.drafters.")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_LAYERS = 1_000
"""The most layers of a model that a folder may describe."""
_USED_LATER = {
    "norm_num_groups": (1, 2**31),
    "dropout_rate": (0.0, 1.0),
    "relative_attention_num_buckets": (4, 2**31),
    "relative_attention_max_distance": (4, 2**31),
}
"""Bounds of numbers that libraries accept unchecked, and that make the first pass fail."""
_BY_END = {"eps": (0.0, 1.0), "epsilon": (0.0, 1.0), "rope_theta": (1.0, 1e12), "rope_base": (1.0, 1e12)}
"""The same, by how names end."""
_WEIGHT_KINDS = ("F64", "F32", "F16", "BF16", "torch.float64", "torch.float32", "torch.float16", "torch.bfloat16")
_LARGEST_SETTINGS = 2**20
"""Bytes of a JSON file that holds settings; a vocabulary may be larger."""
_COUNTED = ("_ids", "_index", "num_batches_tracked")
"""Ends of the names of tensors that are integers in every library."""
SHARED_COMPONENTS = "shared_components.json"
"""Names another model's components that a folder shares."""
_WEIGHT_NAMES = ("diffusion_pytorch_model", "model")
_TORCH_NAMES = ("diffusion_pytorch_model", "pytorch_model")
_VARIANT = re.compile(
    r"(?:diffusion_pytorch_model|model)(?:-\d+-of-\d+)?(?:\.(?P<variant>\w+))?(?:-\d+-of-\d+)?\.safetensors"
)
"""Names of weights, of a variant or of none, in shards or whole."""
_TIED_NAMES = ({"shared.weight", "encoder.embed_tokens.weight"},)
"""Several names of one tensor; a file needs only one of them (T5's token embedding)."""


def check_model_folder(
    folder: str | os.PathLike[str],
    skip: Collection[str] = (),
    required: Collection[str] = (),
    variant: str | None = None,
) -> None:
    """Check every component that `model_index.json` names.

    Args:
        folder: of the pipeline.
        skip: components that the caller gives as objects.
        required: components that the pipeline needs.
        variant: of the weights, as `from_pretrained` takes it; components without it have weights of none.

    Raises:
        UserError: a file is missing, truncated or unreadable, there are weights of another variant alone, weights do
            not fit their configuration, or a component is of a class that a model folder must not name.
    """
    folder = Path(folder)
    _check_files(folder)
    components = read_json(folder / "model_index.json")
    check_variant(folder, variant, [part for part in sorted(folder.iterdir()) if part.is_dir()])
    for component in sorted({*components, *required} - {*skip}):
        value = components.get(component)
        if component not in required and (not isinstance(value, list) or value == [None, None]):
            continue  # a setting of the pipeline, or an absent optional component
        names = value if isinstance(value, list) else []
        if len(names) != 2 or not all(isinstance(name, str) for name in names) or not component.isidentifier():
            raise UserError(
                f"{folder / 'model_index.json'} must name a library and a class for {component!r}, not "
                f"{json.dumps(value)}; copy it again"
            )
        if not (folder / component).is_dir():
            raise UserError(
                f"{folder / component} is missing, but model_index.json names it; copy the whole folder again"
            )
        model_class = _component_class(*names)
        if model_class is not None:
            _check_component(folder / component, model_class, variant)


def shared_components(folder: str | os.PathLike[str]) -> tuple[Path, tuple[str, ...]] | None:
    """The folder of a model that has some of this one's components, and their names; None: this one has all itself.

    `shared_components.json` says so: {"folder": "../scenes-128", "components": ["vqvae", "text_encoder"]}. The path
    begins at the folder of that file. Some weights of a shared component may be this model's own: a file beside that
    one, "vqvae.safetensors" for the vqvae, holds them.

    Raises:
        UserError: the file says anything else, or the other folder is not there.
    """
    path = Path(folder) / SHARED_COMPONENTS
    if not path.is_file():
        return None
    told = read_json(path)
    name, components = told.get("folder"), told.get("components")
    if not isinstance(name, str) or not name or Path(name).is_absolute():
        raise UserError(f"{path} must have a relative path in 'folder', not {json.dumps(name)}; copy it again")
    if not (isinstance(components, list) and all(isinstance(each, str) and each.isidentifier() for each in components)):
        raise UserError(f"{path} must name components in 'components', not {json.dumps(components)}; copy it again")
    other = Path(os.path.normpath(Path(folder).resolve() / name))
    if not (other / "model_index.json").is_file() or (other / SHARED_COMPONENTS).exists():
        raise UserError(
            f"{other} must be a whole model, whose {' and '.join(components)} {folder} shares; copy it, too"
        )
    for each in components:
        if not (other / each).is_dir():
            raise UserError(f"{other / each} is missing, but {path} names it; copy the whole folder again")
        if (Path(folder) / each).exists():
            raise UserError(f"{each} is in both {folder} and {other}; take it out of one, or out of {path.name}")
    return other, tuple(components)


def own_weights(folder: str | os.PathLike[str], component: str) -> Path | None:
    """The file of weights that a model has in place of some of a shared component's, see `shared_components`; None:
    there is none."""
    path = Path(folder) / f"{component}.safetensors"
    return path if path.is_file() else None


def component_folder(folder: str | os.PathLike[str], component: str) -> Path:
    """Where a component of a model lies: in the model's folder, or in that of the model that it is shared with. Raises
    UserError as `shared_components`."""
    other, shared = shared_components(folder) or (Path(folder), ())
    return (other if component in shared else Path(folder)) / component


def component_fingerprint(folder: str | os.PathLike[str], component: str) -> str:
    """A short hash of what decides a component's results, wherever it lies: its folder, and weights that the model has
    of its own. Raises UserError as `shared_components`."""
    told = weights_fingerprint(component_folder(folder, component))
    path = own_weights(folder, component)
    return told if path is None else hashlib.sha256(told.encode() + reading.read_bytes(path)).hexdigest()[:16]


def check_new_folder(output: Path, overwrite: bool) -> None:
    """Refuse a place where no new folder can be written. Raises UserError."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output must be a folder to create, but {output} is a file; choose another path.")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise UserError(f"output must not exist yet, but {output} is not empty; choose another path or overwrite it.")


def check_pipeline_class(folder: str | os.PathLike[str], names: Collection[str]) -> None:
    """Refuse the folder of a pipeline without one of these class names. Raises UserError."""
    found = read_json(Path(folder) / "model_index.json").get("_class_name")
    if found not in names:
        raise UserError(f"{folder} holds a {found!r}, where a {' or '.join(names)} is needed")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when it is missing or no JSON object."""
    try:
        value = reading.read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the whole model folder again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object; copy it again")
    return value


def write_own_settings(folder: str | os.PathLike[str], method: MethodConfig) -> None:
    """Make these settings the model's defaults of their method, in `methods` of the folder's model_index.json."""
    path, defaults = Path(folder) / "model_index.json", type(method)().to_dict()
    settings = {name: value for name, value in method.to_dict().items() if value != defaults[name]}
    index = read_json(path)
    index["methods"] = {**(index.get("methods") or {}), method.name: settings}
    write_atomic(path, index_text(index))


def index_text(index: Mapping[str, Any]) -> str:
    """The name of a file as diffusers writes it."""
    return json.dumps(index, indent=2, sort_keys=True) + "\n"


def _without_methods(content: bytes) -> bytes:
    """A model_index.json without the settings of methods, if it has any."""
    try:
        index = reading.parse_json(content)
    except (ValueError, RecursionError):
        return content
    if not isinstance(index, dict) or "methods" not in index:
        return content
    del index["methods"]
    return index_text(index).encode()


def read_tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file, from its header, or in a file of torch. Raises UserError
    where the file is missing, truncated, or of another kind."""
    if path.suffix == ".bin":
        return {name: tuple(tensor.shape) for name, tensor in _torch_tensors(path).items()}
    again = "copy or download it again"
    if not path.is_file():
        raise UserError(f"{path} is missing; {again}")
    try:
        with safe_open(path, framework="np") as file:  # refuses bytes that the header does not cover
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping
    except Exception as error:  # a garbled header can raise anything
        reason = reading.reason_of(error)
        raise UserError(f"{path} is truncated or no safetensors file ({reason}); {again}") from error


def find_tensor(folder: Path, name: str) -> Path:
    """The weight file of a model folder that holds a tensor, or the folder if none does."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            names = read_tensor_shapes(path)
        except UserError:
            continue
        if any(name == stored or name.endswith(f".{stored}") or stored.endswith(f".{name}") for stored in names):
            return path
    return folder


def _component_class(library: str, class_name: str) -> type[torch.nn.Module] | None:
    """The model class of a component; None if it has no weights, such as a tokenizer.

    Importing runs a module's code, so the libraries are a closed list: this project, diffusers and transformers. For a
    component of a pipeline's own module, diffusers writes the module's name instead of the library's.
    """
    import torch
    from diffusers import DiffusionPipeline  # refused: its folder names further classes

    is_known = library in _LIBRARIES or library.startswith(_OUR_MODELS)
    try:
        home = importlib.import_module(library if is_known else f"diffusers.pipelines.{library}")
        found = getattr(home, class_name, None)
    except ImportError:
        found = None
    if not (isinstance(found, type) and hasattr(found, "from_pretrained")) or issubclass(found, DiffusionPipeline):
        raise UserError(
            f"model_index.json names {library}.{class_name}, which is not a component of vargen, diffusers or "
            "transformers; name one of theirs or update them"
        )
    return found if issubclass(found, torch.nn.Module) else None


def check_variant(source: str | os.PathLike[str], variant: str | None, parts: Iterable[Path]) -> None:
    """Refuse a variant of weights that no part of a folder has. Raises UserError."""
    found = {each for part in parts for each in _variants(part)}
    if variant is not None and variant not in found:
        others = ", ".join(repr(each) for each in sorted(found - {""}))
        remedy = f"it holds {others}" if others else "leave it out"
        raise UserError(  # it begins with diffusers' sentence, by which its users and its tests know it
            f"variant: You are trying to load the model files of the `variant={variant}`, but {source} holds no "
            f"weights of {variant!r}; {remedy}"
        )


def _variants(folder: Path) -> set[str]:
    """The variants of weights in the folder of one network; that of plain names is empty."""
    found = [_VARIANT.fullmatch(path.name) for path in folder.glob("*.safetensors")]
    return {each["variant"] or "" for each in found if each}


def check_stored(folder: str | os.PathLike[str], argument: str = "", variant: str | None = None) -> None:
    """Check what libraries accept in the folder of one network although it means nothing. Every reader of weights asks
    this first.

    Args:
        folder: of the network.
        argument: that named it.
        variant: of weights that is asked for, where the reader can ask for one.

    Raises:
        UserError: a pipe, only weights of a variant that is not asked for, only pickled weights, weights of integers,
            truth values or eight bits, a number in config.json that spoils every pass, or a key twice in any JSON file,
            of which libraries take the last.
    """
    folder = Path(folder)
    where = f"{argument}: " if argument else ""
    if not folder.is_dir():
        return
    _check_files(folder, where)
    config = _config_of(folder)
    _check_config_numbers(f"{where}{folder / 'config.json'}", config)
    known = _variants(folder)
    if known and not {"", variant} & known:
        raise UserError(
            f"{where}{folder} holds weights of the variant {min(known)!r} alone; give variant={min(known)!r} in "
            f"Python, or save the model without variant"
        )
    files = sorted(folder.glob("*.bin" if has_torch_files(folder) else "*.safetensors"))
    pickled = [path for path in sorted(folder.iterdir()) if path.suffix in _PICKLED]
    if pickled and not files:
        raise UserError(
            f"{where}{pickled[0]} holds pickled weights, which may run code when loaded; save them as safetensors"
        )
    if "quantization_config" in config:  # its library reads such weights, and only it
        return
    for path in files:
        for name, kind in _stored_kinds(path).items():
            if kind not in _WEIGHT_KINDS and not name.endswith(_COUNTED):
                raise UserError(
                    f"{where}{path} holds {name} as {kind}, which is no weight; save it as float or bfloat16"
                )


def _check_files(folder: Path, where: str = "") -> None:
    """Refuse a pipe or a device among a model's files, which libraries would wait for, and keys that come twice."""
    for path in sorted(folder.rglob("*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{where}{path} is a device or a pipe; copy the model's files again")
        if path.suffix == ".json":
            _check_keys(path, where)


def _check_keys(path: Path, where: str) -> None:
    """Refuse a JSON file with a key that comes twice. Its reader says more about other damage."""
    if not path.is_file() or path.stat().st_size > _LARGEST_SETTINGS:
        return
    try:
        reading.parse_json(path.read_bytes())
    except reading.RepeatedKeyError as error:
        raise UserError(f"{where}{path} cannot be read ({error}); copy it again") from error
    except (ValueError, RecursionError):
        return


def _config_of(folder: Path) -> dict[str, Any]:
    """Its config.json; empty for a missing or damaged one: its reader says more."""
    try:
        return read_json(folder / "config.json")
    except UserError:
        return {}


def _check_config_numbers(where: str, config: Mapping[str, Any], within: str = "") -> None:
    """Bounds of numbers that libraries accept unchecked, also inside a configuration's own parts."""
    for name, value in config.items():
        if isinstance(value, dict):
            _check_config_numbers(where, value, f"{within}{name}.")
        elif name in _USED_LATER:
            check_number(f"{where}: {within}{name}", value, *_USED_LATER[name])
        elif isinstance(value, int | float) and name.endswith(tuple(_BY_END)):  # of another kind: its reader says more
            bounds = next(bounds for end, bounds in _BY_END.items() if name.endswith(end))
            check_number(f"{where}: {within}{name}", value, *bounds)


def _stored_kinds(path: Path) -> dict[str, str]:
    """The dtypes of the tensors in a file, as the library that reads it names them; none of a damaged file of
    safetensors, of which its reader says more."""
    if path.suffix == ".bin":
        return {name: str(tensor.dtype) for name, tensor in _torch_tensors(path).items()}
    try:
        with safe_open(path, framework="np") as file:
            return {name: str(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118  # no mapping
    except MemoryError as error:
        raise UserError(f"{path} is larger than memory ({reading.reason_of(error)}); copy it again") from error
    except (SafetensorError, OSError):
        return {}


def has_torch_files(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder's only weights are files `*.bin` of torch that hold tensors and nothing else.

    torch reads these with `weights_only=True`, which runs no code. The libraries that load them then do the same.

    Raises:
        UserError: its only weights are pickled, and torch does not read them so.
    """
    folder = Path(folder)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return False
    files = sorted(folder.glob("*.bin"))
    for path in files:
        _torch_tensors(path)
    return bool(files)


def _torch_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file of torch, without their values. Raises UserError for anything else in it."""
    import torch

    try:
        tensors = dict(torch.load(path, map_location="meta", weights_only=True))
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
            raise TypeError("no tensors")
        return tensors
    except Exception as error:  # a pickle can raise anything
        raise UserError(
            f"{path} holds pickled weights, which may run code when loaded; save them as safetensors"
        ) from error


def _weight_files(folder: Path, variant: str | None) -> list[Path]:
    """The weight files of a component, from its index if it is sharded; empty for a sharded variant."""
    for name in [f"{name}.{variant}" for name in _WEIGHT_NAMES if variant] + [*_WEIGHT_NAMES]:
        index = folder / f"{name}.safetensors.index.json"
        if index.is_file():
            shards = read_json(index).get("weight_map")
            if not isinstance(shards, dict) or any(Path(str(shard)).name != shard for shard in shards.values()):
                raise UserError(f"{index} must name files beside it in its weight_map; copy it again")
            return sorted({inside(folder, shard, linked=True) for shard in shards.values()})
        if (folder / f"{name}.safetensors").is_file():
            return [folder / f"{name}.safetensors"]
    variants = list(folder.glob("*.safetensors"))
    for path in variants:
        if not path.is_file():
            raise UserError(f"{path} is no file of safetensors; copy or download the weights again")
    if variants:
        return []  # which from_pretrained can read
    if has_torch_files(folder):
        return [path for path in (folder / f"{name}.bin" for name in _TORCH_NAMES) if path.is_file()]
    raise UserError(f"{folder / (_WEIGHT_NAMES[0] + '.safetensors')} is missing; copy or download the weights again")


def check_component_folder(folder: str | os.PathLike[str], model_class: type[torch.nn.Module]) -> None:
    """Check the folder of one model. Raises UserError like `check_model_folder`."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a folder; name one with the files of {model_class.__name__}")
    _check_component(Path(folder), model_class)


def _check_component(folder: Path, model_class: type[torch.nn.Module], variant: str | None = None) -> None:
    config = read_json(folder / "config.json")
    check_stored(folder, variant=variant)
    files = _weight_files(folder, variant)
    if not files:
        return
    found = {name: shape for path in files for name, shape in read_tensor_shapes(path).items()}
    expected = _expected_shapes(model_class, config, folder)
    remedy = f"{folder / 'config.json'} and the weights beside it must come from the same model"
    for name, shape in expected.items():
        if name in found and found[name] != shape:
            raise UserError(
                f"weights of {folder.name} have another size: {name} is {list(found[name])} in the file, "
                f"{list(shape)} by config.json; {remedy}"
            )
    missing = sorted(expected.keys() - found.keys())
    for names in _TIED_NAMES:
        if names & found.keys():
            missing = [name for name in missing if name not in names]
    unexpected = sorted(found.keys() - expected.keys())
    if missing:
        raise UserError(f"weights of {folder.name} lack {len(missing)} tensors, such as {missing[0]}; {remedy}")
    if unexpected:
        raise UserError(
            f"weights of {folder.name} hold {len(unexpected)} tensors too many, such as {unexpected[0]}; {remedy}"
        )


def _expected_shapes(model_class: Any, config: dict[str, Any], folder: Path) -> dict[str, tuple[int, ...]]:
    import torch

    if numerous := [name for name, value in config.items() if "layers" in name and _is_beyond(value, MAX_LAYERS)]:
        raise UserError(
            f"{folder / 'config.json'} does not describe a {model_class.__name__}: {numerous[0]} must be at most "
            f"{MAX_LAYERS:,}; copy it again"
        )
    try:
        with torch.device("meta"):
            if hasattr(model_class, "config_class") and model_class.config_class is not None:  # a transformers model
                model = model_class(model_class.config_class.from_dict(config))
            else:
                _check_kinds(model_class, config)
                model = model_class.from_config(config)
    except Exception as error:  # whatever a value does in the constructors of three libraries
        reason = reading.reason_of(error)
        raise UserError(f"{folder / 'config.json'} does not describe a {model_class.__name__}: {reason}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _check_kinds(model_class: Any, config: Mapping[str, Any]) -> None:
    """Compare the types of a configuration's values with those of the constructor, which may use them only later.
    Raises ValueError that names a value of another kind."""
    hints = get_type_hints(model_class.__init__)
    for name, parameter in inspect.signature(model_class.__init__).parameters.items():
        if name not in config or name not in hints or config[name] == parameter.default:
            continue
        value = config[name]
        if not fits(value, hints[name]) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{name} must be {in_words(hints[name])}, not {json.dumps(value)[:100]}")


def _is_beyond(value: object, most: int) -> bool:
    """Whether a value, or one in a list, is a number above `most`; thousands of layers are slow even on meta."""
    if isinstance(value, list):
        return any(_is_beyond(each, most) for each in value)
    return isinstance(value, int | float) and value > most


def weights_fingerprint(folder: str | os.PathLike[str], apart_from: str | None = None) -> str:
    """A short hash of everything in a model folder that decides its pictures, fast also for gigabytes.

    Small files count completely. A large file counts by its size, its first 64 KiB (with the header of a weight file)
    and 255 evenly spread samples of 4 KiB, since any retraining changes all tensors. Chat templates count: they change
    prompts. The heads of a Video-LLM (`drafters/`) do not count, since they do not change its answers; nor do settings
    of methods in `model_index.json`, since every run records the settings that it uses. Components that are shared with
    another model count as this one's own, wherever they lie.

    Args:
        folder: of a model, or a part of one.
        apart_from: a folder in it that does not count, such as "drafter" for pictures drawn without one.
    """
    digest = hashlib.sha256()
    folder = Path(folder)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix not in (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"):
            continue
        if path.relative_to(folder).parts[0] in ("drafters", SHARED_COMPONENTS, apart_from):
            continue
        size = path.stat().st_size
        if size <= 1 << 21:
            content = path.read_bytes() if path != folder / "model_index.json" else _without_methods(path.read_bytes())
            digest.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode() + content)
            continue
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
        with open(path, "rb") as file:
            digest.update(file.read(1 << 16))
            for sample in range(1, 256):
                file.seek(sample * (size - 4096) // 255)
                digest.update(file.read(4096))
    other, shared = shared_components(folder) or (folder, ())
    for name in shared:
        digest.update(weights_fingerprint(other / name).encode())
    return digest.hexdigest()[:16]
