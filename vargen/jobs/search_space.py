"""The settings that a search may try: what is fixed, and the points where a search begins.

Belongs here: settings before they are measured. Does not belong here: what a method lets vary (its own `search`), and
measured points (`vargen.jobs.study`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vargen.base.errors import UserError
from vargen.methods.base import AUTO, ImageMethodConfig, MethodConfig, Suggestions
from vargen.methods.catalogue import find_presets, methods_for, resolve_method


class _Retracing(Suggestions):
    """Walks a search space along a method's `search_terms`, and notes the suggestions of Optuna that would lead there.

    A setting that the space cannot express is left out. Optuna draws it, and the given settings are still measured.
    """

    def __init__(self, terms: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.terms = {**terms, **fixed}
        self.fixed = fixed
        self.parameters: dict[str, Any] = {}

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        return self.number(name, low, high)

    def number(self, name: str, low: float, high: float) -> Any:
        value = self.terms[name]
        if name not in self.fixed and value != AUTO and low <= value <= high:
            self.parameters[name] = value
        return value

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        value = self.terms.get(name)
        if name not in self.fixed and value in values:
            self.parameters[name] = value
        return value


@dataclass(frozen=True)
class StartingPoint:
    """Settings to measure before the search begins.

    Args:
        settings: of the method, all that are not fixed, ready for JSON.
        parameters: the same in terms of the search space, as far as it can express them.
    """

    settings: Mapping[str, Any]
    parameters: Mapping[str, Any]


def starting_points(
    method: str,
    fixed: Mapping[str, Any],
    resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig],
) -> list[StartingPoint]:
    """The method's defaults, its shipped presets, and its own `search_starts`, each once and with the fixed settings.

    Args:
        method: its name.
        fixed: settings that are not varied.
        resolve: gives the method of a name with the model that is tuned.
    """
    presets = [resolve(name, None) for name in find_presets()]
    starts: list[StartingPoint] = []
    default = resolve(method, None)
    own = [
        resolve(method, settings)
        for settings in default.search_starts()
        if all(fixed.get(name, value) == value for name, value in settings.items())
    ]
    for config in (default, *(preset for preset in presets if preset.name == method), *own):
        settings = {key: value for key, value in settings_of(config).items() if key not in ("method", *fixed)}
        if settings not in [start.settings for start in starts]:
            retracing = _Retracing(config.search_terms(), fixed)
            config.search(retracing)
            starts.append(StartingPoint(settings, retracing.parameters))
    return starts


def settings_of(config: MethodConfig) -> dict[str, Any]:
    """`method: NAME` and every setting, as a preset holds them and as JSON gives them back (tuples become lists)."""
    settings = config.to_dict()
    return json.loads(json.dumps({"method": settings.pop("name"), **settings}))


def check_fixed(method: str, fixed: Mapping[str, Any]) -> None:
    """Raises UserError for a method that cannot be tuned, or a fixed setting that it does not have or cannot use."""
    by_name = methods_for("image")
    tunable = [name for name, config in by_name.items() if fields(config)]
    if method not in tunable:
        what = "has nothing to tune" if method in by_name else "is not known"
        raise UserError(f"method {method!r} {what}; choose one of: {', '.join(tunable)}")
    known = [field.name for field in fields(by_name[method])]
    for name in fixed:
        if name not in known:
            raise UserError(f"fixed: method {method!r} has no setting {name!r}; it has: {', '.join(known)}")
    try:
        resolve_method(method, fixed)
    except UserError as error:
        raise UserError(f"fixed: {error}") from error
