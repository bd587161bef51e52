"""Decoding methods by name: the settings of each, their checks, and one line about it.

A method is a choice of who drafts, who verifies and when the target is asked; here it is a frozen dataclass of plain
values. `vargen.methods.sizing` makes the players; nothing here runs a model, and listing the methods imports none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from vargen.errors import UserError
from vargen.methods.base import AUTO, Auto, MethodConfig, configure
from vargen.resources import configs_folder

TREE_NAMES = (
    "dynamic",
    "naive_extend_57",
    "mc_sim_7b_63",
    "mc_sim_7b_63_balanced",
    "reverse_balanced_25",
    "medusa_2_7b_63",
)
CHILDREN = ("top", "sampled")
COUPLINGS = ("gumbel", "maximal")
INITIAL_GUESSES = ("random", "repeat")
LANTERN_MODES = ("exact_at_zero", "release")
SCHEDULES = ("uniform", "dynamic", "likeness")
PATH_CHOICES = ("sample", "confidence", "central", "drafter")


@dataclass(frozen=True)
class AutoregressiveConfig(MethodConfig):
    """Plain decoding: one target pass for every token. The reference every other method is compared with."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain autoregressive decoding, one target pass per token"
    exact: ClassVar[bool] = True


@dataclass(frozen=True)
class EagleConfig(MethodConfig):
    """A one-layer head on the target's features drafts a token tree; see `specdecode.drafters.eagle`.

    Args:
        drafter: folder of a `LlamaGenDrafter`; null for the one that came with the model.
        tree: "dynamic" (EAGLE-2: grown by confidence), the name of a published fixed tree, or a list of nodes, each a
            list of ranks, such as [[0], [1], [0, 0]].
        total_tokens: nodes of a dynamic tree, its root included.
        depth: levels drafted below the root; of a fixed tree, at most its own.
        tree_top_k: nodes expanded per level of a dynamic tree, and children of each.
        children: "top" for the likeliest tokens, "sampled" for draws without replacement (fixed trees only).
    """

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "EAGLE: a one-layer head on the target's features drafts a tree (EAGLE-2 or fixed)"
    exact: ClassVar[bool] = True

    drafter: str | None = None
    tree: str | tuple[tuple[int, ...], ...] = "dynamic"
    total_tokens: int | Auto = AUTO
    depth: int | Auto = AUTO
    tree_top_k: int = 10
    children: str = "top"

    def __post_init__(self) -> None:
        if isinstance(self.tree, str):
            self._one_of("tree", TREE_NAMES)
        else:
            try:
                object.__setattr__(self, "tree", tuple(tuple(int(rank) for rank in node) for node in self.tree))
            except TypeError as error:
                raise UserError(f"{self.name}.tree must be a name or a list of nodes, got {self.tree!r}") from error
        self._size("total_tokens", lowest=2)
        self._size("depth")
        self._number("tree_top_k", 1, whole=True)
        self._one_of("children", CHILDREN)
        if self.children == "sampled" and self.tree == "dynamic":
            raise UserError(f"{self.name}.children: sampled children need a fixed tree; name one of {TREE_NAMES[1:]}")
        if self.total_tokens != AUTO and self.depth != AUTO and self.depth >= self.total_tokens:
            raise UserError(
                f"{self.name}.depth must be below total_tokens ({self.total_tokens}), got {self.depth}: every level "
                f"needs a node"
            )


@dataclass(frozen=True)
class LanternConfig(EagleConfig):
    """EAGLE's draft, accepted also where the target prefers a token that looks alike; `specdecode.verifiers.lantern`.

    Args:
        delta: LANTERN: the most probability that may move to drafted tokens, a total-variation budget, 0 to 1.
        multiplier: LANTERN++ instead (its lambda): as many times its own probability may a drafted token have, 1 or
            more; null for LANTERN.
        num_neighbours: how many nearest codes may lend their probability; "auto" for a sixteenth of the vocabulary,
            as LANTERN's 1000 of 16384.
        mode: "exact_at_zero" or "release" (the released code's rule, which is not exact at zero relaxation).
    """

    name: ClassVar[str] = "lantern"
    summary: ClassVar[str] = "EAGLE with LANTERN's relaxed acceptance: look-alike codes count together"
    exact: ClassVar[bool] = False

    delta: float = 0.1
    multiplier: float | None = None
    num_neighbours: int | Auto = AUTO
    mode: str = "exact_at_zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("delta", 0, 1)
        if self.multiplier is not None:
            self._number("multiplier", 1)
        self._size("num_neighbours")
        self._one_of("mode", LANTERN_MODES)


@dataclass(frozen=True)
class VVSConfig(LanternConfig):
    """LANTERN's draft and acceptance, and target passes left out altogether; see `vargen.methods.vvs`.

    Args:
        schedule: "uniform" (VVS-U: every so many steps), "dynamic" (VVS-D: where the tree's paths look alike) or
            "likeness" (as far as what the drafter believes in looks like what is taken).
        interval: VVS-U: of so many iterations one is skipped, 2 or more.
        threshold: VVS-D: likeness of paths above which a step is skipped, -1 to 1; "likeness": the least likeness of
            a token that is taken, 0 to 1.
        choice: the path that a skip takes: "sample" (uniformly), "central", "confidence" (the likeliest) or "drafter"
            (drawn as the drafter would). "confidence" needs a dynamic tree, "drafter" and the schedule "likeness" that
            or sampled children.
        truncate: cut the path at the paths' mean length.
        min_tokens: nothing is skipped before a picture has more tokens than this.
        staleness: positions by which the reused features are older than the newest.
        verified_staleness: -1, fresh features after verified steps; 0 and more for the paper's staleness study.
        refresh: let the drafter read skipped tokens again once their own features are known.
        depth_behind_skip: levels drafted behind skipped tokens, which are certainly judged; null for `depth`.
    """

    name: ClassVar[str] = "vvs"
    summary: ClassVar[str] = "VVS: verification skipped at some steps, LANTERN's acceptance at the others"
    exact: ClassVar[bool] = False

    schedule: str = "uniform"
    interval: int = 3
    threshold: float = 0.65
    choice: str = "sample"
    truncate: bool = True
    min_tokens: int = 5
    staleness: int = 0
    verified_staleness: int = -1
    refresh: bool = False
    depth_behind_skip: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("schedule", SCHEDULES)
        if self.depth_behind_skip is not None:
            self._number("depth_behind_skip", 1, whole=True)
        self._number("interval", 2, whole=True)
        self._number("threshold", -1, 1)
        self._one_of("choice", PATH_CHOICES)
        if self.schedule == "likeness":
            self._number("threshold", 0, 1)
        if self.choice == "confidence" and self.tree != "dynamic":
            raise UserError(f'{self.name}.choice: "confidence" needs tree "dynamic", whose nodes have confidences')
        if self.tree != "dynamic" and self.children == "top":
            for field, value in (("choice", "drafter"), ("schedule", "likeness")):
                if getattr(self, field) == value:
                    raise UserError(
                        f'{self.name}.{field}: "{value}" needs tree "dynamic" or children "sampled": it reads how '
                        f"probable the drafter finds each token"
                    )
        self._number("min_tokens", 1, whole=True)
        self._number("staleness", 0, whole=True)
        self._number("verified_staleness", -1, whole=True)
        for field in ("truncate", "refresh"):
            if not isinstance(getattr(self, field), bool):
                raise UserError(f"{self.name}.{field} must be true or false, got {getattr(self, field)!r}")


@dataclass(frozen=True)
class CoolSDConfig(MethodConfig):
    """An EAGLE chain, accepted by a ratio that is relaxed most for the first drafted tokens (Cool-SD).

    Args:
        drafter: as for "eagle".
        draft_length: tokens drafted.
        delta: mean factor on the acceptance ratio; 1 with decay 0 is exact.
        decay: how quickly the relaxation cools along the draft (the paper's nu).
    """

    name: ClassVar[str] = "coolsd"
    summary: ClassVar[str] = "an EAGLE chain with Cool-SD's relaxed acceptance, cooling along the draft"
    exact: ClassVar[bool] = False

    drafter: str | None = None
    draft_length: int | Auto = AUTO
    delta: float = 1.1
    decay: float = 0.7

    def __post_init__(self) -> None:
        self._size("draft_length")
        self._number("delta", 1)
        self._number("decay", 0)


@dataclass(frozen=True)
class JacobiConfig(MethodConfig):
    """Speculative Jacobi decoding: guesses for a window, redrawn from every pass; no training, no drafter.

    Args:
        window: tokens guessed ahead.
        initial_guess: where nothing is known yet: "random" tokens, or "repeat" draws from the last known distribution.
    """

    name: ClassVar[str] = "sjd"
    summary: ClassVar[str] = "speculative Jacobi decoding: a window of guesses, redrawn at every pass; no drafter"
    exact: ClassVar[bool] = True

    window: int | Auto = AUTO
    initial_guess: str = "random"

    def __post_init__(self) -> None:
        self._size("window")
        self._one_of("initial_guess", INITIAL_GUESSES)


@dataclass(frozen=True)
class CoupledJacobiConfig(JacobiConfig):
    """Jacobi decoding whose guesses change as little as they can from pass to pass (SCD, also MC-SJD).

    Args:
        coupling: "gumbel" (the same noise at every pass) or "maximal".
    """

    name: ClassVar[str] = "scd"
    summary: ClassVar[str] = "Jacobi decoding with coupled guesses, which stay put unless the target changes its mind"
    exact: ClassVar[bool] = True

    coupling: str = "gumbel"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("coupling", COUPLINGS)


@dataclass(frozen=True)
class GroupedConfig(JacobiConfig):
    """Jacobi decoding, accepted by the ratio of whole groups of look-alike tokens (GSD).

    Args:
        group_size: tokens in a group at most; 1 is exact.
        max_probability_difference: of members from the drafted token.
        max_distance: squared distance of members' codes from the drafted one's.
    """

    name: ClassVar[str] = "gsd"
    summary: ClassVar[str] = "Jacobi decoding accepted by groups of look-alike tokens (GSD)"
    exact: ClassVar[bool] = False

    group_size: int = 15
    max_probability_difference: float = 0.15
    max_distance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("group_size", 1, whole=True)
        self._number("max_probability_difference", 0, 1)
        self._number("max_distance", 0)


@dataclass(frozen=True)
class DraftModelConfig(MethodConfig):
    """A smaller model of the same vocabulary drafts a chain.

    Args:
        draft_model: folder of the smaller pipeline; null for the one that came with the model.
        draft_length: tokens drafted.
        children: "sampled" from its distribution, or "top" for its likeliest.
    """

    name: ClassVar[str] = "draft-model"
    summary: ClassVar[str] = "a smaller model of the same vocabulary drafts a chain"
    exact: ClassVar[bool] = True

    draft_model: str | None = None
    draft_length: int | Auto = AUTO
    children: str = "sampled"

    def __post_init__(self) -> None:
        self._size("draft_length")
        self._one_of("children", CHILDREN)


METHODS: tuple[type[MethodConfig], ...] = (
    AutoregressiveConfig,
    EagleConfig,
    LanternConfig,
    VVSConfig,
    CoolSDConfig,
    JacobiConfig,
    CoupledJacobiConfig,
    GroupedConfig,
    DraftModelConfig,
)
"""Every known method, in the order in which they are listed."""


def resolve_method(method: str | MethodConfig, options: Mapping[str, Any] | None = None) -> MethodConfig:
    """The settings of a method given by name, by preset, or as settings already.

    Args:
        method: the name of a method; or that of a preset, a YAML file in `configs/methods/` or anywhere, which names
            a method and those of its settings that differ from the defaults; or settings.
        options: fields that differ from these; only with a name or a preset.

    Raises:
        UserError: no method or preset has this name, or an option is unknown or out of range; the message lists those
            there are.
    """
    if isinstance(method, MethodConfig):
        if options:
            raise UserError("method_options cannot be given beside a method's settings; put them there")
        return method
    by_name = {config.name: config for config in METHODS}
    if method in by_name:
        return configure(by_name[method], options or {})
    presets = find_presets()
    path = presets.get(method, Path(method))
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"method {method!r} is not known; choose one of: {', '.join([*by_name, *presets])}")
    preset = _read_preset(path)
    name = preset.pop("method", None)
    if name not in by_name:
        raise UserError(f"{path}: `method` must be one of {', '.join(by_name)}, got {name!r}")
    return configure(by_name[name], {**preset, **(options or {})})


def find_presets() -> dict[str, Path]:
    """The shipped presets by name."""
    return {path.stem: path for path in sorted((configs_folder() / "methods").glob("*.yaml"))}


def _read_preset(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"method preset {path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"method preset {path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"method preset {path} must hold `method: NAME` and settings, one a line")
    return values
