"""What makes two runs the same run, for everything that goes on where an earlier run stopped.

An identity is a mapping from names to plain values: everything that decides what a run makes. It is written beside the
results, and whatever takes them up compares its own with it.

In it: the weights by fingerprint, the method with every setting resolved, prompts, seeds, sampling, precision; the
batch size where costs are recorded by batch; and `machine()` where seconds are measured.
Left out: where results go and where a model lies, since folders move; budgets of time, steps and loss of quality,
which a run that goes on may be given more of; what changes speed alone, such as generate's batch size; the amount of
memory, which a machine reports differently from one start to the next; and versions of libraries where nothing is
timed: they are recorded, but an update must not cost a long run its results.

Belongs here: comparing, and a digest. Does not belong here: what is in the identity of which run; its maker knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import read_json

_LONGEST_SHOWN = 60
"""Characters of a value in a message."""


def digest(value: Any, digits: int = 12) -> str:
    """Hexadecimal digits that stand for plain values, whatever the order of names in mappings."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:digits]


def machine() -> dict[str, Any]:
    """What measured seconds depend on beside the run."""
    import torch

    from metrics.provenance import describe_hardware

    hardware = {name: value for name, value in describe_hardware().items() if name != "memory_gib"}
    return {"hardware": hardware, "torch": torch.__version__}


def check_identity(
    place: Path,
    earlier: Any,
    now: Mapping[str, Any],
    *,
    holds: str,
    argument: str = "output",
    remedy: str = "choose another folder or delete it",
) -> None:
    """Refuse to go on with what another run made.

    Args:
        place: where the earlier identity was found.
        earlier: the earlier identity, as JSON gave it back.
        now: this run's.
        holds: what lies there, in the plural or with its article, such as "pictures".
        argument: which argument named the place.
        remedy: what to do about it.

    Raises:
        UserError: the identities differ. The message has the first name that does and both values.
    """
    if not isinstance(earlier, Mapping):
        raise UserError(f"{argument}: {place} does not say what it holds; {remedy}")
    if difference := _first_difference(earlier, json.loads(json.dumps(now))):
        raise UserError(f"{argument}: {place} holds {holds} with {difference}; {remedy}")


def check_identity_file(path: Path, now: Mapping[str, Any], *, holds: str, argument: str = "output") -> None:
    """`check_identity` with the identity in a JSON file, for the folder it lies in; none there is no difference."""
    try:
        earlier = read_json(path, "choose another folder or delete it", argument)
    except FileNotFoundError:
        return
    check_identity(path.parent, earlier, now, holds=holds, argument=argument)


def _first_difference(earlier: Mapping[str, Any], now: Mapping[str, Any], within: str = "") -> str | None:
    for name in {**now, **earlier}:
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        full_name = within + name
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            return _first_difference(before, after, f"{full_name}.")
        place = ""
        if isinstance(before, list) and isinstance(after, list):
            if len(before) != len(after):
                return f"another number of {full_name} ({len(before)}, now {len(after)})"
            first = next(number for number in range(len(before)) if before[number] != after[number])
            before, after, place = before[first], after[first], f" at number {first + 1}"
        another = "other" if full_name.endswith("s") else "another"
        return f"{another} {full_name}{place} ({_shorten(before)}, now {_shorten(after)})"
    return None


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
