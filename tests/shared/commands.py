"""Every command with its settings, found by asking the command line, so that a new command is in every list."""

from __future__ import annotations

import contextlib
import io
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, get_type_hints
from unittest import mock

from jsonargparse import Namespace

from vargen.base.world import COMMANDS, listed
from vargen.cli import OWN_COMMANDS, main
from vargen.commands import arguments
from vargen.commands.bench import TASKS
from vargen.commands.convert import SOURCES
from vargen.jobs.training import load_trainer, recipes


@dataclass(frozen=True)
class CommandOfTests:
    """One command that has settings.

    Args:
        words: how it is called, such as "bench --task video".
        settings: its dataclass.
    """

    words: str
    settings: type[Any]

    def __str__(self) -> str:
        return self.words

    def types(self) -> dict[str, Any]:
        return {name: kind for name, kind in get_type_hints(self.settings).items() if name in self.names()}

    def names(self) -> list[str]:
        return [field.name for field in fields(self.settings)]

    def values(self, **given: object) -> Namespace:
        """What the command line would hand to `fill`: nothing but what is required, and `given`."""
        return Namespace(**{**dict.fromkeys(self.names()), "output": "nowhere/out", **self.required(), **given})

    def required(self, *but: str) -> dict[str, str]:
        """A value for each field without a default."""
        types = self.types()
        wanted = [
            field.name
            for field in fields(self.settings)
            if field.default is MISSING and field.default_factory is MISSING and field.name not in but
        ]
        return {name: "256" if types[name] is int else "nowhere" for name in wanted}


@lru_cache
def every_command() -> list[CommandOfTests]:
    """In the order of `vargen --help`; the ones without settings (methods) are left out."""
    split = {
        "bench": [f"bench --task {task}" for task in TASKS],
        "convert": [f"convert {name}" for name in SOURCES],
        "train": [],
    }
    asked = [words for name in listed(OWN_COMMANDS, COMMANDS) for words in split.get(name, [name])]
    found = [CommandOfTests(words, settings) for words in asked for settings in _settings(words)]
    return found + [CommandOfTests(f"train {name}", load_trainer(recipe)[0]) for name, recipe in recipes().items()]


def _settings(words: str) -> list[type[Any]]:
    seen: list[type[Any]] = []
    keep = arguments._add_options

    def note(parser: Any, options: type[Any]) -> None:
        seen.append(options)
        keep(parser, options)

    with (
        mock.patch.object(arguments, "_add_options", note),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit),
    ):
        main([*words.split(), "--help"])
    return seen
