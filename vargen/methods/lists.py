"""Several decoding methods as the command line names them: "ar,eagle,mine.yaml", and options for each.

Belongs here: reading lists. What a method is, and which there are, is in `vargen.methods.catalogue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vargen.errors import UserError
from vargen.methods.catalogue import MethodConfig, resolve_method


def read_method_list(
    names: str,
    options: Mapping[str, Any],
    field: str,
    resolve: Callable[[str, Mapping[str, Any] | None], MethodConfig] = resolve_method,
) -> dict[str, MethodConfig]:
    """The methods by label, in the order they are named.

    Args:
        names: methods, presets or YAML files of settings, separated by commas. A file's label is its stem; LABEL=NAME
            gives a label of one's own, so that one method can stand there with several settings.
        options: settings that differ from the defaults, by label, as `options_by_method` reads them.
        field: what errors call the list.
        resolve: what knows the names.

    Raises:
        UserError: no name, an unknown one, one named twice, or options of one that is not named.
    """
    specifications = [name.strip() for name in names.split(",") if name.strip()]
    if not specifications:
        raise UserError(f"{field} must name at least one method, such as ar,eagle")
    own_options = options_by_method(options)
    chosen: dict[str, MethodConfig] = {}
    for specification in specifications:
        label, equals, named = specification.partition("=")
        if equals:
            specification = named
        elif specification.endswith((".yaml", ".yml")):
            label = Path(specification).stem
        if label in chosen:
            raise UserError(f"{field}: {label} is named twice")
        chosen[label] = resolve(specification, own_options.pop(label, None))
    if own_options:
        raise UserError(
            f"{field.removesuffix('s')}_options: {next(iter(own_options))!r} is not among {field} ({names})"
        )
    return chosen


def options_by_method(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`{"eagle": {"depth": 3}}` from that, or from `{"eagle.depth": 3}`."""
    by_method: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        method, dot, option = name.rpartition(".")
        if not dot and not isinstance(value, Mapping):
            raise UserError(f"method_options.{name} must say which method it is for, such as eagle.{name}")
        given = {option: value} if dot else value
        by_method.setdefault(method if dot else name, {}).update(read_options(given))
    return by_method


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of one method as numbers and words: jsonargparse reads `--method_options.depth 3` as text."""
    return {name: yaml.safe_load(value) if isinstance(value, str) else value for name, value in options.items()}
