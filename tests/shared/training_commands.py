"""What a printed `vargen train ...` stands for."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

from vargen.base.resources import find_config
from vargen.commands.arguments import build_parser
from vargen.jobs.training import load_trainer, recipes


def configuration_of(line: str) -> Any:
    """The configuration that the command line makes of it, which its checks accept."""
    program, command, name, *options = shlex.split(line)
    assert (program, command) == ("vargen", "train")
    config_type, _ = load_trainer(recipes()[name])
    values = build_parser("train", "", config_type).parse_args(
        ["--config", str(find_config(f"train/{name}")), *options]
    )
    return config_type(**{field.name: getattr(values, field.name) for field in fields(config_type)})
