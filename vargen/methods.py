"""Decoding methods by name: each is a choice of who drafts, who verifies and when the target is asked.

A method is a frozen dataclass of its settings with a one-line description, and one branch in `build_method`. The roles
themselves live in `specdecode` (and, where they know pictures, elsewhere in `vargen`); nothing here runs a model, and
listing the methods imports none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.files import UserError

if TYPE_CHECKING:
    from specdecode.roles import Drafter, Verifier
    from vargen.target import LlamaGenTarget


@dataclass(frozen=True)
class MethodConfig:
    """Settings of one method. Subclasses add fields, every one of them a plain value.

    Attributes:
        name: what `method=` and `--method` call it.
        summary: one line for `vargen methods`.
        exact: whether its pictures are distributed exactly as those of plain decoding.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool]

    def to_dict(self) -> dict[str, Any]:
        """The name and every setting, ready for JSON."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class AutoregressiveConfig(MethodConfig):
    """Plain decoding: one target pass for every token. The reference every other method is compared with."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain autoregressive decoding, one target pass per token"
    exact: ClassVar[bool] = True


METHODS: tuple[type[MethodConfig], ...] = (AutoregressiveConfig,)
"""Every known method, in the order in which they are listed."""


@dataclass
class Method:
    """The players of one decoding run, as `specdecode.loop.decode` takes them.

    Args:
        drafter: proposes tokens; None: nothing is drafted.
        verifier: judges them; None: the exact one.
        max_draft_nodes: nodes of the largest tree the target is asked about at once, its root included.
    """

    drafter: Drafter | None = None
    verifier: Verifier | None = None
    max_draft_nodes: int = 1


def resolve_method(method: str | MethodConfig) -> MethodConfig:
    """The settings of a method given by name (with default settings) or as settings already.

    Raises:
        UserError: no method has this name; the message lists those there are.
    """
    if isinstance(method, MethodConfig):
        return method
    for config in METHODS:
        if config.name == method:
            return config()
    raise UserError(f"method {method!r} is not known; choose one of: {', '.join(config.name for config in METHODS)}")


def max_draft_nodes(config: MethodConfig) -> int:
    """Nodes of the largest tree this method drafts, the root included: the room a cache needs beyond a picture."""
    return 1


def build_method(config: MethodConfig, target: LlamaGenTarget) -> Method:
    """The players for one run of `target`.

    Raises:
        UserError: the settings are of no known method.
    """
    if isinstance(config, AutoregressiveConfig):
        return Method()
    raise UserError(f"method {config.name!r} cannot be built; choose one of: {', '.join(c.name for c in METHODS)}")
