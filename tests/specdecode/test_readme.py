"""The examples of the core's README run as they are written."""

import re
from pathlib import Path
from typing import Any

import specdecode

README = Path(specdecode.__file__).parent / "README.md"


def test_the_examples_run_as_written():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "readme"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{README.name}, example {number + 1}", "exec"), names)  # they build on one another
    assert names["result"].trace.tokens_per_pass > 1


def test_players_that_it_names_are_exported():
    named = set(re.findall(r"`(\w+(?:Drafter|Verifier|Target))`", README.read_text()))
    assert len(named) > 10 and all(hasattr(specdecode, name) for name in named)
