"""A method's settings as text that people edit: one `name: value` a line, as in a preset.

Settings that name a folder are left out, since visitors of a page must not reach files of the machine behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from vargen.base.errors import UserError
from vargen.base.reading import parse_yaml, reason_of
from vargen.methods.base import MethodConfig, configure

AnyConfig = TypeVar("AnyConfig", bound=MethodConfig)


def write_settings(config: MethodConfig) -> str:
    """Every setting that may be changed, one a line; empty where there is none."""
    hidden = ("name", *config.weights)
    return "".join(f"{name}: {_written(value)}\n" for name, value in config.to_dict().items() if name not in hidden)


def _written(value: Any) -> str:
    """The value as JSON, which is also YAML; a plain word without quotes where YAML reads it back."""
    return value if isinstance(value, str) and parse_yaml(value) == value else json.dumps(value)


def read_method(methods: Mapping[str, AnyConfig], name: str, text: str) -> AnyConfig:
    """The method of this name with the settings of a text. Raises UserError as `read_settings`, or for another name."""
    if name not in methods:
        raise UserError(f"method {name!r} does not fit this model; choose another")
    return read_settings(methods[name], text)


def read_settings(config: AnyConfig, text: str) -> AnyConfig:
    """The method with the settings of a text. Settings that the text leaves out keep their values. Raises UserError for
    a text that is no list of settings, an unknown setting, a folder, or a value out of range."""
    try:
        given: Any = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"settings: write one `name: value` a line ({reason_of(error)})") from error
    if given is None:
        return config
    if not isinstance(given, dict):
        raise UserError(f"settings: write one `name: value` a line, got {text.strip()!r}")
    for name in given:
        if name in config.weights:
            raise UserError(f"settings: {name} names a folder and cannot be set here; start `vargen demo` with --model")
    kept = {name: value for name, value in config.to_dict().items() if name != "name"}
    return configure(type(config), {**kept, **{str(name): value for name, value in given.items()}})
