"""That the arguments of a call are of the kinds which its signature names, checked before anything is computed.

One decorator for the calls of every family, so that a new argument is checked without a line of its own.

Belongs here: kinds, also of a pipeline's modules, and what no tensor or text of a certain name may hold. Does not
belong here: bounds of numbers, and arguments that do not fit each other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from vargen.base.bounds import check_magnitudes, check_text
from vargen.base.errors import UserError, did_you_mean

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_WORDS: dict[Any, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    Tensor: "a tensor",
    torch.Generator: "a torch.Generator",
}
_ELEMENTS_LOOKED_AT = 4096
_OF_DENOISING = ("num_inference_steps", "timesteps", "sigmas", "latents", "eta", "strength", "scheduler")
"""Arguments of diffusers' pipelines that nothing here can mean."""


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a call refuse arguments of another kind than its annotations say, by UserError with the argument's name.

    Annotations that are not understood here fit everything. Beside kinds it refuses texts that no model reads
    (`check_text`), embeddings of whole numbers, and masks with other values than 0 and 1.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        hints = _hints(function)
        for name, value in signature.bind(*arguments, **keywords).arguments.items():
            if name in hints:
                check_argument(name, value, hints[name])
        return function(*arguments, **keywords)

    return call


def check_arguments(call: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments of another kind than the annotations of a call say, and those that it does not have.

    Annotations that are not understood here fit everything. Beside kinds it refuses texts that no model reads
    (`check_text`), embeddings of whole numbers, and masks with other values than 0 and 1.

    Args:
        call: a method with annotations.
        given: its arguments by name, such as `locals()` at its beginning; `unknown` holds those that it does not name.

    Raises:
        UserError: with the argument's name.
    """
    hints = _hints(call)
    for name in [*given.get("unknown", ()), *(name for name in given if name not in hints and name != "self")]:
        if name in _OF_DENOISING:
            raise UserError(f"{name} cannot be used: tokens are drawn, not denoised; leave it out")
        raise UserError(f"{name} is no argument of this call{did_you_mean(name, hints)}; leave it out")
    for name, value in given.items():
        if name != "self":
            check_argument(name, value, hints[name])


def check_module(name: str, value: object) -> None:
    """Refuse a module that another one wraps, as `DataParallel` does: its attributes are hidden. Raises UserError."""
    if isinstance(value, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise UserError(f"{name} must be the model itself, got a {type(value).__name__}; give its .module")


def check_evaluating(modules: Mapping[str, object]) -> None:
    """Refuse a module in training mode, whose dropout would draw another picture. Raises UserError with its name."""
    for name, module in modules.items():
        if isinstance(module, nn.Module) and module.training:
            raise UserError(f"{name} must be in evaluation mode; call {name}.eval()")


def check_argument(name: str, value: Any, hint: Any) -> None:
    """The check of one argument. Raises UserError."""
    if not _fits(value, hint):
        wrong = next((each for each in value if not _fits_inside(each, hint)), value) if _is_list(value) else value
        held = "" if wrong is value else "a list that holds "
        raise UserError(f"{name} must be {_told(hint)}, got {held}{type(wrong).__name__} {_shown(wrong)}")
    if isinstance(value, int) or _is_list(value):
        check_magnitudes(name, value)
    for text in [value] if isinstance(value, str) else value if _is_list(value) else ():
        if isinstance(text, str):
            check_text(name, text)
    if isinstance(value, Tensor):
        if name.endswith("_embeds") and not value.is_floating_point():
            raise UserError(f"{name} must hold floating-point numbers, got {value.dtype}")
        if name.endswith("_mask") and not bool(((value == 0) | (value == 1)).all()):
            raise UserError(f"{name} must hold 0 and 1 only")


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each annotated parameter; Any for one that cannot be resolved here."""
    found: dict[str, Any] = {}
    scope = inspect.unwrap(function).__globals__
    for name, annotation in inspect.get_annotations(function).items():
        try:
            found |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), scope)
        except (NameError, TypeError):  # imported for type checkers only
            found[name] = Any
    return found


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _fits(value: object, hint: Any) -> bool:
    home = get_origin(hint)
    if hint is Any:  # a class since Python 3.11, of which nothing is an instance
        return True
    if home in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint in (None, NoneType):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if home is tuple:
        return isinstance(value, tuple | list)
    if home is not None and isinstance(home, type) and issubclass(home, Iterable) and not issubclass(home, Mapping):
        inner = get_args(hint)[0]
        return _is_list(value) and all(_fits(each, inner) for each in value[:_ELEMENTS_LOOKED_AT])  # type: ignore[index]
    if home is Callable:
        return callable(value)
    if home is Mapping:
        return isinstance(value, Mapping)
    return not (isinstance(hint, type) and home is None) or isinstance(value, hint)


def _fits_inside(value: object, hint: Any) -> bool:
    """Whether it fits as an element of the list that a hint allows."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return any(_fits([value], each) for each in parts)


def _told(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_told(each) for each in get_args(hint)))
    if get_origin(hint) is Callable:
        return "callable"
    if get_origin(hint) is Mapping:
        return "a mapping"
    if get_origin(hint) is not None and get_args(hint):
        return f"a list (each {_told(get_args(hint)[0])})"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: object) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a stranger's class
        return ""
    return text if len(text) <= 40 else f"{text[:37]}..."
