"""That the arguments of a call are of the kinds which its signature names, checked before anything is computed.

Belongs here: kinds, also of a pipeline's modules, and values that a tensor or text of a certain name may not hold. Does
not belong here: bounds of numbers, and arguments that do not fit each other.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import NoneType, SimpleNamespace
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from vargen.base.bounds import check_magnitudes, check_text, shown
from vargen.base.errors import UserError, did_you_mean
from vargen.base.kinds import WORDS, alternatives, fits, in_words, is_list

_WORDS = WORDS | {bool: "True or False", NoneType: "None", Tensor: "a tensor", torch.Generator: "a torch.Generator"}
_OF_DENOISING = (
    *("num_inference_steps", "timesteps", "sigmas", "latents", "eta"),
    *("strength", "scheduler", "cross_attention_kwargs"),
)
"""Arguments of diffusers' pipelines that nothing here can mean."""


def check_arguments(call: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments of another kind than the annotations of a call say, and those that it does not have.

    What has no annotation, or one that is not understood here, may be anything. Beside kinds it refuses texts that no
    model reads (`check_text`), embeddings of whole numbers, and masks with other values than 0 and 1.

    Args:
        call: a method with annotations.
        given: its own arguments by name, such as `locals()` at its beginning; `unknown` holds names of others.

    Raises:
        UserError: with the argument's name.
    """
    hints = _hints(call)
    for name in given.get("unknown", ()):
        if name in _OF_DENOISING:
            raise UserError(f"{name} cannot be used: tokens are drawn, not denoised; leave it out")
        if name == "reference_images":
            kind = (
                "Janus, whose authors say that it cannot edit untuned" if "Janus" in call.__qualname__ else "LlamaGen"
            )
            raise UserError(f"{name} cannot be used with {kind}; Emu3.5 and Anole read them")
        raise UserError(f"{name} is no argument of this call{did_you_mean(name, {**hints, **given})}; leave it out")
    for name, value in given.items():
        check_argument(name, value, hints.get(name, Any))


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
    if not fits(value, hint):
        elements = value if is_list(value) else ()
        wrong = next((each for each in elements if not any(fits([each], part) for part in alternatives(hint))), value)
        held = "" if wrong is value else "a list that holds "
        kind, remedy = ("the class", "; give an instance") if isinstance(wrong, type) else (type(wrong).__name__, "")
        raise UserError(f"{name} must be {in_words(hint, _WORDS)}, got {held}{kind} {shown(wrong)}{remedy}")
    if isinstance(value, int) or is_list(value):
        check_magnitudes(name, value)
    for text in [value] if isinstance(value, str) else value if is_list(value) else ():
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
    scope = vars(sys.modules[function.__module__])
    for name, annotation in inspect.get_annotations(function).items():
        try:
            found |= get_type_hints(SimpleNamespace(__annotations__={name: annotation}), scope)
        except (NameError, TypeError):  # imported for type checkers only
            found[name] = Any
    return found
