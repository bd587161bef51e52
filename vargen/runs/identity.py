"""The identity of a run: whether a command may continue what an earlier one began.

An identity maps names to plain values. It holds everything that decides the results of a run, and is written beside
them. A command that continues the run compares its own identity with it.

It holds the weights by fingerprint, the method with every setting resolved, prompts, seeds, sampling and precision. It
holds the batch size where costs are recorded by batch, and `machine()` where seconds are measured.

It leaves out the places of results and models, since folders move; budgets of time, steps and quality, which a
continued run may raise; and settings that change speed alone. It leaves out the amount of memory, which a machine
reports differently at each start. It leaves out versions of libraries where nothing is timed: an update must not cost
a long run its results.

Belongs here: comparing, and a digest. Does not belong here: the identity of a particular run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import read_json


def digest(value: Any, digits: int = 12) -> str:
    """Hexadecimal digits for plain values. The order of names in mappings does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:digits]


def machine() -> dict[str, Any]:
    """The hardware, the kernels' kind and the version of torch, on which measured seconds depend."""
    import torch

    from metrics.provenance import describe_hardware
    from specdecode.kernels.build import kind

    hardware = {name: value for name, value in describe_hardware().items() if name != "memory_gib"}
    return {"hardware": hardware, "kernels": kind(), "torch": torch.__version__}


def kind_of_bits(device: str, dtype: str, is_quantized: bool) -> dict[str, str]:
    """What multiplies, by name, where the bits of a result depend on it: on a CPU in any precision but float32."""
    from specdecode.kernels.build import kind

    if device.split(":")[0] != "cpu" or (dtype == "float32" and not is_quantized):
        return {}
    return {"kernels": kind()}


def check_identity(
    place: Path,
    earlier: Any,
    now: Mapping[str, Any],
    *,
    holds: str,
    argument: str = "output",
    remedy: str = "choose another folder or delete it",
) -> None:
    """Refuse to continue the results of another run.

    Args:
        place: where the earlier identity was found.
        earlier: the earlier identity, as JSON gave it back.
        now: this run's.
        holds: the results that lie there, such as "pictures" or "a run".
        argument: the argument that named the place.
        remedy: what the user can do.

    Raises:
        UserError: the identities differ. The message has the first differing name and both values.
    """
    if not isinstance(earlier, Mapping):
        raise UserError(f"{argument}: {place} does not say what it holds; {remedy}")
    if difference := _first_difference(earlier, json.loads(json.dumps(now))):
        raise UserError(f"{argument}: {place} holds {holds} with {difference}; {remedy}")


def check_identity_file(path: Path, now: Mapping[str, Any], *, holds: str, argument: str = "output") -> None:
    """`check_identity` with the identity in a JSON file, for its folder. A missing file is no difference."""
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
    return text if len(text) <= 60 else f"{text[:57]}..."
