"""Several decoding methods as the command line names them: "ar,eagle,mine.yaml", and options for each.

Belongs here: reading lists. What a method is, and which there are, is in `vargen.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vargen.files import UserError
from vargen.methods import MethodConfig, resolve_method


def read_method_list(names: str, options: Mapping[str, Any], field: str) -> dict[str, MethodConfig]:
    """The methods by label, in the order they are named.

    Args:
        names: methods, presets or YAML files of settings, separated by commas. A file's label is its stem.
        options: settings that differ from the defaults, by label, as `options_by_method` reads them.
        field: what errors call the list.

    Raises:
        UserError: no name, an unknown one, one named twice, or options of one that is not named.
    """
    specifications = [name.strip() for name in names.split(",") if name.strip()]
    if not specifications:
        raise UserError(f"{field} must name at least one method, such as ar,eagle")
    own_options = options_by_method(options)
    chosen: dict[str, MethodConfig] = {}
    for specification in specifications:
        label = Path(specification).stem if specification.endswith((".yaml", ".yml")) else specification
        if label in chosen:
            raise UserError(f"{field}: {label} is named twice")
        chosen[label] = resolve_method(specification, own_options.pop(label, None))
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
        # jsonargparse reads the value of `--method_options.eagle.depth 3` as text.
        read = {key: yaml.safe_load(each) if isinstance(each, str) else each for key, each in given.items()}
        by_method.setdefault(method if dot else name, {}).update(read)
    return by_method
