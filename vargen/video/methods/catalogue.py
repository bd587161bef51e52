"""Ways to decode an answer about a video, by name: the settings of each, their checks, and one line about it.

As `vargen.methods.catalogue` for pictures; `players.py` makes the players.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vargen.errors import UserError
from vargen.methods.catalogue import AUTO, TREE_NAMES, Auto, MethodConfig, configure

DRAFTERS = ("pair", "self")
WORKERS = ("processes", "threads", "in_turn")
PRUNINGS = ("uniform", "attention", "visual_gain")
TREES = ("chain", *(name for name in TREE_NAMES if name != "dynamic"))


@dataclass(frozen=True)
class PlainConfig(MethodConfig):
    """One target pass for every token. What every other method is compared with."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain decoding, one target pass per token"
    exact: ClassVar[bool] = True


@dataclass(frozen=True)
class SpeculativeConfig(MethodConfig):
    """A smaller model, or the target itself, watches the same video and drafts a chain.

    Args:
        drafter: "pair" for the smaller model, "self" for the target's own weights.
        draft_length: tokens of a chain.
        keep_ratio: share of visual tokens that the drafter is shown.
        pruning: which ones: "uniform"; "attention" (SpecVLM); "visual_gain" (ParallelVLM's UV-Prune).
        pruning_layer: of "visual_gain": the layer that is compared with the embeddings; null for a quarter of them.
        compact: give what is left consecutive positions instead of its own.
    """

    name: ClassVar[str] = "sd"
    summary: ClassVar[str] = "naive speculative decoding: the drafter watches the whole video"
    exact: ClassVar[bool] = True

    drafter: str = "pair"
    draft_length: int = 5
    keep_ratio: float = 1.0
    pruning: str = "uniform"
    pruning_layer: int | None = None
    compact: bool = False

    def __post_init__(self) -> None:
        self._one_of("drafter", DRAFTERS)
        self._number("draft_length", 1, whole=True)
        self._share("keep_ratio")
        self._one_of("pruning", PRUNINGS)
        if self.pruning_layer is not None:
            self._number("pruning_layer", 1, whole=True)

    def _share(self, field: str) -> None:
        self._number(field, 0, 1)
        if getattr(self, field) == 0:
            raise UserError(f"{self.name}.{field} must be above 0: something has to be left")


@dataclass(frozen=True)
class SpecVLMConfig(SpeculativeConfig):
    """SpecVLM (arXiv 2508.16201): a drafter that is shown the tenth of the video that the target attends to.

    Args:
        tree: shape of the draft: "chain", or a published tree's name.
        attention_share: of the first stage of pruning; the rest of the budget is spread evenly.
    """

    name: ClassVar[str] = "specvlm"
    summary: ClassVar[str] = "SpecVLM: the drafter sees what the target attends to, and drafts a tree"
    exact: ClassVar[bool] = True

    keep_ratio: float = 0.1
    pruning: str = "attention"
    tree: str = "mc_sim_7b_63"
    attention_share: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("tree", TREES)
        self._number("attention_share", 0, 1)


@dataclass(frozen=True)
class SparseToDenseConfig(MethodConfig):
    """STD (arXiv 2505.19155): the target drafts for itself over a sparse cache.

    Args:
        keep_ratio: share of visual tokens that each layer's sparse cache keeps.
        draft_length: tokens of a chain.
    """

    name: ClassVar[str] = "std"
    summary: ClassVar[str] = "STD: the target drafts for itself with the part of its cache that it attends to"
    exact: ClassVar[bool] = True

    keep_ratio: float = 0.25
    draft_length: int = 9

    def __post_init__(self) -> None:
        self._number("keep_ratio", 0, 1)
        self._number("draft_length", 1, whole=True)


@dataclass(frozen=True)
class FlyConfig(SpeculativeConfig):
    """FLy (arXiv 2511.22972): a mismatch is forgiven where the target is unsure and agrees again right after.

    Args:
        threshold: least entropy, see `specdecode.verifiers.windowed`.
        window: tokens that must agree after it; null: only the entropy decides.
        mode: "paper" or "release".
    """

    name: ClassVar[str] = "fly"
    summary: ClassVar[str] = "FLy: forgives a mismatch where the target is unsure and agrees again right after"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    threshold: float = 0.3
    window: int | None = 4
    mode: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("threshold", 0)
        if self.window is not None:
            self._number("window", 1, whole=True)
        self._one_of("mode", ("paper", "release"))


@dataclass(frozen=True)
class LVSpecConfig(SpeculativeConfig):
    """LVSpec (arXiv 2604.05650): the drafted tokens that have least to do with what is seen need not be the target's.

    Args:
        loose_ratio: lambda, share of a window that is loosened; 0 is strict.
        num_nearest: N, visual tokens whose cosines make a token's relevance.
        position_shift: accept what the target says elsewhere in the window.
        relevance_from: "token" or "prediction", see `specdecode.verifiers.loose`.
    """

    name: ClassVar[str] = "lvspec"
    summary: ClassVar[str] = "LVSpec: tokens with little visual relevance are accepted as drafted"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    loose_ratio: float = 0.7
    num_nearest: int = 10
    position_shift: bool = True
    relevance_from: str = "token"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("loose_ratio", 0, 1)
        self._number("num_nearest", 1, whole=True)
        self._one_of("relevance_from", ("token", "prediction"))


@dataclass(frozen=True)
class ParallelConfig(SpeculativeConfig):
    """ParallelVLM (arXiv 2603.19610): the drafter works while the target does, in a process of its own.

    Args:
        draft_length: tokens of a window; "auto" measures how many the drafter makes during one target pass.
        workers: "processes", two of them; "threads", two in one process, on a GPU each with a stream of its own;
            "in_turn", one after the other in one, with the same result.
    """

    name: ClassVar[str] = "parallelvlm"
    summary: ClassVar[str] = "ParallelVLM: drafter and target work at the same time, in two processes"
    exact: ClassVar[bool] = True

    draft_length: int | Auto = AUTO  # type: ignore[assignment]
    keep_ratio: float = 0.1
    pruning: str = "visual_gain"
    workers: str = "processes"

    def __post_init__(self) -> None:
        self._one_of("drafter", DRAFTERS)
        self._size("draft_length")
        self._share("keep_ratio")
        self._one_of("pruning", ("uniform", "visual_gain"))
        self._one_of("workers", WORKERS)
        if self.pruning_layer is not None:
            self._number("pruning_layer", 1, whole=True)


@dataclass(frozen=True)
class FastVConfig(MethodConfig):
    """FastV (arXiv 2403.06764): plain decoding with part of the video dropped early. Loses quality.

    Args:
        layer: K, the decoder layer after which visual tokens are dropped.
        drop_ratio: R, share of them.
    """

    name: ClassVar[str] = "fastv"
    summary: ClassVar[str] = "FastV: plain decoding; most visual tokens are dropped after an early layer"
    exact: ClassVar[bool] = False

    layer: int = 2
    drop_ratio: float = 0.5

    def __post_init__(self) -> None:
        self._number("layer", 1, whole=True)
        self._number("drop_ratio", 0, 1)
        if self.drop_ratio == 1:
            raise UserError(f"{self.name}.drop_ratio must be below 1: something has to be left")


@dataclass(frozen=True)
class SparseVLMConfig(MethodConfig):
    """SparseVLM (arXiv 2410.04417): plain decoding; visual tokens are dropped step by step, some recycled.

    Args:
        keep_ratio: share of visual tokens that is left in the end.
    """

    name: ClassVar[str] = "sparsevlm"
    summary: ClassVar[str] = "SparseVLM: plain decoding; visual tokens are dropped layer by layer, some merged"
    exact: ClassVar[bool] = False

    keep_ratio: float = 0.25

    def __post_init__(self) -> None:
        self._number("keep_ratio", 0, 1)


@dataclass(frozen=True)
class AssistedConfig(MethodConfig):
    """transformers' own assisted generation with the smaller model, for comparison.

    Args:
        draft_length: tokens of a chain.
    """

    name: ClassVar[str] = "assisted"
    summary: ClassVar[str] = "transformers' own assisted generation (its drafter never sees the video)"
    exact: ClassVar[bool] = True

    draft_length: int = 5

    def __post_init__(self) -> None:
        self._number("draft_length", 1, whole=True)


@dataclass(frozen=True)
class TrainedDrafterConfig(MethodConfig):
    """What methods with a trained drafter share; see `vargen.video.drafters.feature_drafter`.

    Args:
        drafter: folder that `vargen train video-drafter` exported; null for the one that came with the model.
        tree: "chain"; "dynamic" (EAGLE-2: grown by confidence), which pays where a pass over many tokens costs no more
            than over one, as on a GPU; or the name of a published fixed tree.
        total_tokens: nodes of a dynamic tree, its root included.
        depth: levels drafted below the root; null for eight, or, of a drafter that guesses several places at once, as
            many as it guesses.
        tree_top_k: nodes expanded per level of a dynamic tree, and children of each.
    """

    exact: ClassVar[bool] = True

    drafter: str | None = None
    tree: str = "chain"
    total_tokens: int = 30
    depth: int | None = None
    tree_top_k: int = 4

    def __post_init__(self) -> None:
        self._one_of("tree", ("dynamic", *TREES))
        self._number("total_tokens", 2, whole=True)
        self._number("tree_top_k", 1, whole=True)
        if self.depth is not None:
            self._number("depth", 1, whole=True)


@dataclass(frozen=True)
class EagleHeadConfig(TrainedDrafterConfig):
    """EAGLE (arXiv 2401.15077) as it is: visual tokens are rows like all others."""

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "EAGLE: a trained layer continues the target's features, the video's like the text's"


@dataclass(frozen=True)
class MSDConfig(TrainedDrafterConfig):
    """MSD (arXiv 2505.14260): the drafter reads the video's embeddings."""

    name: ClassVar[str] = "msd"
    summary: ClassVar[str] = "MSD: a trained layer that reads the video's embeddings"


@dataclass(frozen=True)
class ViSpecConfig(TrainedDrafterConfig):
    """ViSpec (arXiv 2509.15235): the drafter reads one learned mean of the video; another is mixed into features."""

    name: ClassVar[str] = "vispec"
    summary: ClassVar[str] = "ViSpec: a trained layer that reads the video compressed into a vector or two"


@dataclass(frozen=True)
class SparrowConfig(TrainedDrafterConfig):
    """Sparrow (arXiv 2602.15318): the drafter keeps text alone, whose features have seen the video.

    Args:
        text_only: the video has no rows when drafting; null: as the drafter was trained to; for ablations.
    """

    name: ClassVar[str] = "sparrow"
    summary: ClassVar[str] = "Sparrow: a trained layer over text alone, as cheap for an hour as for a second"

    text_only: bool | None = None


@dataclass(frozen=True)
class FlashConfig(TrainedDrafterConfig):
    """FLASH (arXiv 2505.12728): the drafter reads compressed features and guesses several places in one forward."""

    name: ClassVar[str] = "flash"
    summary: ClassVar[str] = "FLASH: a trained layer that guesses several tokens in one forward"


VIDEO_METHODS: tuple[type[MethodConfig], ...] = (
    PlainConfig,
    SpeculativeConfig,
    SpecVLMConfig,
    SparseToDenseConfig,
    EagleHeadConfig,
    MSDConfig,
    ViSpecConfig,
    SparrowConfig,
    FlashConfig,
    ParallelConfig,
    FlyConfig,
    LVSpecConfig,
    FastVConfig,
    SparseVLMConfig,
    AssistedConfig,
)
"""Every known method, in the order in which they are listed."""


def resolve_video_method(method: str | MethodConfig, options: Mapping[str, Any] | None = None) -> MethodConfig:
    """The settings of a method given by name, or as settings already.

    Args:
        options: fields that differ from the defaults; only with a name.

    Raises:
        UserError: no method has this name, or an option is unknown or out of range.
    """
    if isinstance(method, MethodConfig):
        if options:
            raise UserError("method_options cannot be given beside a method's settings; put them there")
        return method
    by_name = {config.name: config for config in VIDEO_METHODS}
    if method not in by_name:
        raise UserError(f"method {method!r} is not known for videos; choose one of: {', '.join(by_name)}")
    return configure(by_name[method], options or {})
