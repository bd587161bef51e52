"""Whether calling modules runs what their classes' files say, and nothing else.

Belongs here: the question, asked before kernels compute in place of modules. Does not belong here: which modules the
kernels can stand for (`fast_pass.py`, `specdecode.targets.llama_pass`).

Tools replace `forward` of a whole class, or a function that it calls, and torch has hooks that hold for all modules.
None of that is written at a module. So the code that would run is compared with that of the files it came from.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as all_modules

_CALLED = {name: name for name in ("_wrapped_call_impl", "_call_impl", "forward")} | {"__call__": "_wrapped_call_impl"}
"""What runs when a module is called, and the names under which it is written."""
_IN_PLACE = (*_CALLED, "_compiled_call_impl")
"""What a module has for itself where something else runs, such as what `module.compile` put there."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CAPTURING = "transformers.utils.output_capturing"
"""Has the hooks that transformers leaves on a model whose hidden states were once asked for. They do nothing unless a
call asks for them again."""
Fact = tuple[Any, str, Any, CodeType | None]
"""An owner, a name, what it is there, and the code of that."""
_known: WeakKeyDictionary[type | FunctionType, list[Fact]] = WeakKeyDictionary()
"""What was true of each class or function when it was found as written."""


def untouched(modules: Iterable[nn.Module]) -> bool:
    """Whether calling these modules runs their classes' own `forward`, as written, and nothing else: no hook of a
    module or of all modules, no mode of torch that takes its functions over, and no weights split over processes."""
    modules = list(modules)
    return (
        no_modes()
        and not all_modules._has_any_global_hook()
        and not any(
            any(getattr(hook, "__module__", "") != _CAPTURING for hook in getattr(module, hooks).values())
            for module in modules
            for hooks in _HOOKS
        )
        and not any(module.__dict__.get(name) for module in modules for name in _IN_PLACE)
        and not any(type(part).__name__ == "DTensor" for module in modules for part in module._parameters.values())
        and all(as_written(kind) for kind in {type(module) for module in modules} if "forward" in _defined(kind))
    )


def no_modes() -> bool:
    """Whether torch's functions do what they say: no mode counts, records or replaces them."""
    return not torch._C._len_torch_function_stack() and not torch._C._len_torch_dispatch_stack()


def as_written(kind: type | FunctionType) -> bool:
    """Whether a function, or the methods that run when a module of a class is called, are those of the file that
    defines them, and so are the functions that they call by name, as far as that file and torch define them."""
    kind = vars(kind).get("stands_for", kind)
    facts = _known.get(kind)
    if facts is None or any(
        (found := getattr(owner, name, None)) is not value or getattr(found, "__code__", None) is not code
        for owner, name, value, code in facts
    ):
        _known.pop(kind, None)
        if (facts := _facts(kind)) is not None:
            _known[kind] = facts
    return facts is not None


def _defined(kind: type) -> set[str]:
    """Names that a class or one of its bases defines, `nn.Module` aside."""
    return {name for base in kind.__mro__ if base not in (nn.Module, object) for name in vars(base)}


def _facts(kind: Any) -> list[Fact] | None:
    """What must stay true of a class or a function; None where something is not as written."""
    facts: dict[tuple[int, str], Fact] = {}
    todo: list[tuple[Any, str]] = [(kind, name) for name in _CALLED]
    if isinstance(kind, FunctionType):
        todo = [(sys.modules.get(kind.__module__), kind.__name__)]
        if getattr(*todo[0], None) is not kind:
            return None
    while todo:
        owner, name = todo.pop()
        if (id(owner), name) in facts:
            continue
        value = getattr(owner, name, None)
        facts[id(owner), name] = owner, name, value, getattr(value, "__code__", None)
        if not isinstance(value, FunctionType):
            if owner is kind or not _is_of_a_library(value):
                return None
            continue
        home, qualified = owner.__name__, name
        if owner is kind:
            definer = next(base for base in kind.__mro__ if name in vars(base))
            home, qualified = definer.__module__, f"{definer.__qualname__}.{_CALLED.get(name, name)}"
        function: Any = value
        while (inner := getattr(function, "__wrapped__", None)) is not None:  # within decorators
            if not _is_written(function, home):
                return None
            function = inner
        is_own = owner is kind or qualified in {code.co_qualname for code in _codes(home)}  # else it is imported there
        place = function.__globals__.get("__name__")
        if not _is_written(function, home) or (is_own and (place, function.__code__.co_qualname) != (home, qualified)):
            return None
        if place == kind.__module__:
            todo += _called_by(function, kind)
    return list(facts.values())


def _called_by(function: FunctionType, kind: Any) -> Iterator[tuple[Any, str]]:
    """Owners and names of what a function may call: of its file, of modules that this names, and methods
    that the file defines."""
    names, owners = function.__code__.co_names, [sys.modules[function.__globals__["__name__"]]]
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, ModuleType) and value not in owners:
                owners.append(value)
            elif callable(value) and not isinstance(value, type):
                yield owner, name
    own = (base for base in getattr(kind, "__mro__", ()) if base.__module__ == kind.__module__)
    yield from ((kind, name) for base in own for name in names if isinstance(vars(base).get(name), FunctionType))


def _is_written(function: Any, home: str) -> bool:
    """Whether a function is of a file, which is torch's, transformers' or of the same package as `home`."""
    place = getattr(function, "__globals__", {}).get("__name__", "")
    packages = ("torch", "transformers", "specdecode", home.partition(".")[0])
    return place.partition(".")[0] in packages and function.__code__ in _codes(place)


def _is_of_a_library(value: Any) -> bool:
    """Whether what is called, and is no function of Python, is none of a user's."""
    is_plain = isinstance(value, BuiltinFunctionType | type)
    return is_plain or type(value).__module__.partition(".")[0] in ("builtins", "torch", "typing", "transformers")


@functools.cache
def _codes(module: str) -> frozenset[CodeType]:
    """All code that the file of a module of Python has; empty where there is no file."""
    loader: Any = getattr(sys.modules.get(module), "__loader__", None)
    try:
        found = [loader.get_code(module)]
    except (AttributeError, ImportError, OSError):
        return frozenset()
    for code in found:
        found += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found)
