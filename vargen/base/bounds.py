"""Numbers that mean something: bounds of what users give, checked before anything is loaded or allocated.

Does not belong here: bounds that only one option has, and whether words, files and devices are there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import Any

from vargen.base.errors import UserError

MAX_SEED = 2**63 - 1
MAX_COUNT = 10**12
"""The upper limit of anything that is counted: steps, pictures, tokens, bytes of a cache."""
MAX_AMOUNT = 1e15
"""The upper limit of anything that is measured, such as seconds."""
MAX_GUIDANCE_SCALE = 100.0
"""Published models are used with 1.5 to 20. Far beyond, the difference of two rounded logits is all that is left."""
TEMPERATURES = (0.01, 100.0)
"""The range of a temperature that is not 0. Below it the likeliest token is always taken; above it all are alike."""
MAX_TOP_K = 2**31 - 1
MAX_BATCH_SIZE = 65_536
MAX_PICTURES = 1_000_000
"""The most pictures of one run: their names have six digits."""
MAX_NEW_TOKENS = 131_072
"""The most tokens of an answer: the longest context of the models that are known here."""
MAX_PIXELS = 4_096
"""The most pixels along a side of a picture."""
MAX_FRAMES = 10_000
"""The most frames of a video, taken or rendered."""
MAX_COMPILE_BUCKET = 65_536
"""Tokens. One bucket then holds the longest sequence that is known here."""
MAX_THREADS = 1_024
"""The most threads of one process. torch ends without a word where a system gives no more."""
MAX_WARM_UP = 1_000
"""The most calls that do not count."""
MAX_DRAFT = 4_096
"""Tokens drafted at once. Far fewer are ever accepted, and masks grow with the square."""
MAX_DEPTH = 100
"""The most levels of nesting in an argument or a YAML file."""
MAX_ARGUMENT = 100_000
"""The most characters of one argument; the reader of options takes a minute for a million."""
MAX_CHARACTERS = 10_000
"""The most characters of a prompt or a question. No model here reads more than a few thousand."""


SAMPLING_BOUNDS: dict[str, dict[str, Any]] = {
    "temperature": {"least": TEMPERATURES[0], "most": TEMPERATURES[1], "also": (0,)},
    "top_k": {"least": 0, "most": MAX_TOP_K},
    "top_p": {"above": 0.0, "most": 1.0},
    "guidance_scale": {"least": 0.0, "most": MAX_GUIDANCE_SCALE},
}
"""Bounds of how tokens are drawn, as `check_number` takes them."""


def check_number(
    name: str,
    value: object,
    least: float | None = None,
    most: float | None = None,
    whole: bool | None = None,
    above: float | None = None,
    below: float | None = None,
    also: tuple[float, ...] = (),
) -> None:
    """Refuse what is no number within bounds; not-a-number is none.

    Args:
        name: what the argument is called.
        value: what was given.
        least, most: both allowed; None: there is no such bound.
        whole: whether it must be an integer; None: where `least` is one.
        above, below: bounds that are not allowed themselves.
        also: numbers that are allowed beside these.

    Raises:
        UserError: see above.
    """
    whole = isinstance(least, int) if whole is None else whole
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real) or value != value:
        kind = "an integer" if whole else "a number"
        raise UserError(f"{name} must be {kind}{range_in_words(least, most, above, below)}, got {shown(value)}")
    for word, bound, holds in (
        ("at least", least, ge),
        ("at most", most, le),
        ("above", above, gt),
        ("below", below, lt),
    ):
        if bound is not None and value not in also and not holds(value, bound):
            others = "".join(f", or {each}" for each in also)
            raise UserError(f"{name} must be {word} {_told(bound)}{others}, got {shown(value)}")


def range_in_words(
    least: float | None, most: float | None, above: float | None = None, below: float | None = None
) -> str:
    """Bounds as `check_number` takes them, to stand behind "a number"; empty without any."""
    if least is not None and most is not None:
        return f" from {_told(least)} to {_told(most)}"
    bounds = {"of at least": least, "above": above, "of at most": most, "below": below}
    words = " and ".join(f"{word} {_told(bound)}" for word, bound in bounds.items() if bound is not None)
    return f" {words}" if words else ""


def check_choice(name: str, value: object, known: Collection[str]) -> None:
    """Refuse what is none of a few words. Raises UserError, which lists them."""
    if value not in known:
        raise UserError(f"{name} must be one of {', '.join(known)}, got {shown(value)}")


def check_sampling_bounds(temperature: object, top_k: object, top_p: object, guidance_scale: object = None) -> None:
    """Refuse settings of sampling that mean nothing. None stands for a default. Raises UserError that says what is
    allowed."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "guidance_scale": guidance_scale}
    for name, value in given.items():
        if value is not None:
            check_number(name, value, **SAMPLING_BOUNDS[name])


def check_magnitudes(name: str, value: object) -> None:
    """Refuse a number, at any depth of an argument, that no setting can mean. Raises UserError."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_magnitudes(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            check_magnitudes(name, inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        check_number(name, value, -MAX_SEED, MAX_SEED if name.split(".")[-1] == "seed" else MAX_COUNT)
    elif isinstance(value, float):
        check_number(name, value, -MAX_AMOUNT, MAX_AMOUNT)


def check_text(name: str, text: str) -> None:
    """Refuse a text that no model reads and no file holds: too long, or not of whole characters. Raises UserError."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{name} has {len(text):,} characters; give at most {MAX_CHARACTERS:,}")
    check_characters(name, text)


def check_characters(name: str, text: str) -> None:
    """Refuse a zero character, which no path may hold, and what cannot be written as UTF-8. Raises UserError."""
    if "\0" in text:
        raise UserError(f"{name} holds a zero character; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if _is_utf8_of_the_command_line(text):
            raise UserError(f"{name} is UTF-8 text, but the locale is not of UTF-8; set PYTHONUTF8=1") from None
        raise UserError(f"{name} is not UTF-8 text (character {error.start + 1}); write it as UTF-8") from None


def _is_utf8_of_the_command_line(text: str) -> bool:
    """Whether Python took UTF-8 apart into single bytes, as it does where the locale is ASCII."""
    try:
        text.encode("ascii", "surrogateescape").decode()
    except UnicodeError:
        return False
    return True


def check_argument(name: str, text: str) -> None:
    """`check_characters`, and refuse what `is_too_deep`. Raises UserError."""
    if len(text) > MAX_ARGUMENT:
        raise UserError(f"{name} has {len(text):,} characters; give at most {MAX_ARGUMENT:,}, or a file")
    check_characters(name, text)
    if is_too_deep(text):
        raise UserError(f"{name} is nested too deeply; give a value")


def is_too_deep(text: str) -> bool:
    """Whether brackets or dashes of YAML stand within each other beyond reason: its parsers take hours, or crash."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH or f"{'- ' * MAX_DEPTH}" in text


def _told(bound: float) -> str:
    powers: dict[float, str] = {MAX_SEED: "2**63 - 1", MAX_TOP_K: "2**31 - 1"}
    return powers.get(bound) or (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}")


def shown(value: object) -> str:
    """A value for an error, at most 40 characters of it; empty for one that cannot say what it is."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a stranger's class
        return ""
    return text if len(text) <= 40 else f"{text[:37]}..."
