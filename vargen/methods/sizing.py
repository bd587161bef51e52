"""From a method's settings to its players: the one place where drafters and verifiers are put together for pictures.

Belongs here: one branch per method of `vargen.methods.catalogue`. Does not belong here: settings, how any player works,
and the loop they play in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode.draft_size import AdaptiveDraftSize, DraftSize, DraftSizer, FixedDraftSize, StepCosts
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import Drafter, Schedule, Verifier
from specdecode.verifiers import AnnealedVerifier, ExactVerifier, GroupedVerifier, LanternVerifier
from vargen.errors import UserError
from vargen.methods.catalogue import (
    AUTO,
    AutoregressiveConfig,
    CoolSDConfig,
    CoupledJacobiConfig,
    DraftModelConfig,
    EagleConfig,
    GroupedConfig,
    JacobiConfig,
    LanternConfig,
    MethodConfig,
    VVSConfig,
)
from vargen.methods.step_costs import step_costs
from vargen.methods.vvs import DynamicSchedule, FeatureCache, LikenessSchedule, PathSelector, UniformSchedule
from vargen.models.llamagen.draft_head import LlamaGenDraftHead
from vargen.models.llamagen.drafter import LlamaGenDrafter
from vargen.models.llamagen.target import LlamaGenTarget

_TREE_NODES = (4, 8, 12, 16, 24, 32, 48, 64)
_TREE_DEPTHS = (1, 2, 3, 4, 5, 6)
_CHAIN_LENGTHS = (1, 2, 3, 4, 5, 6, 8)
_WINDOWS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
# How often one drafted token is taken to be accepted before anything is known. Methods whose pictures depend on the
# draft never learn better; an EAGLE drafter trained here brings its own.
_EAGLE_RATE, _JACOBI_RATE, _DRAFT_MODEL_RATE = 0.4, 0.6, 0.5


@dataclass
class Method:
    """The players of one decoding run, as `specdecode.loop.decode` takes them.

    Args:
        drafter: proposes tokens; None: nothing is drafted.
        verifier: judges them; None: the exact one.
        schedule: says when nobody is asked; None: never.
    """

    drafter: Drafter | None = None
    verifier: Verifier | None = None
    schedule: Schedule | None = None


@dataclass
class Components:
    """What methods need beside the target; each is asked for only by the method that needs it.

    Args:
        drafter: gives the EAGLE drafter in a folder, or (None) the one that came with the model.
        draft_target: gives a smaller model, likewise, fed with the same prompts.
        codebook: gives the vectors [V, d] of the image tokens.
        neighbours: gives the nearest codes [V, k] of each, k of them.
    """

    drafter: Callable[[str | None], LlamaGenDrafter]
    draft_target: Callable[[str | None], LlamaGenTarget]
    codebook: Callable[[], Tensor]
    neighbours: Callable[[int], Tensor]


def draft_sizes(config: MethodConfig, num_image_tokens: int) -> tuple[DraftSize, ...]:
    """The sizes a method may draft: one if its settings say so, else those that `auto` chooses from.

    Raises:
        UserError: a draft longer than the picture.
    """
    longest = num_image_tokens - 1
    if isinstance(config, EagleConfig):
        shape = _tree_shape(config)
        if isinstance(shape, StaticTree):
            depths = tuple(range(1, shape.max_depth + 1)) if config.depth == AUTO else (config.depth,)
            if max(depths) > shape.max_depth:
                raise UserError(
                    f"{config.name}.depth must be at most {shape.max_depth} with this tree, got {config.depth}"
                )
            sizes = [DraftSize(sum(at <= depth for at in shape.depths), depth) for depth in depths]
        else:
            nodes = _TREE_NODES if config.total_tokens == AUTO else (config.total_tokens,)
            depths = _TREE_DEPTHS if config.depth == AUTO else (config.depth,)
            sizes = [DraftSize(count, depth) for count in nodes for depth in depths if depth < count]
            if config.total_tokens != AUTO and config.depth == AUTO:
                sizes = sizes or [DraftSize(config.total_tokens, config.total_tokens - 1)]
        name = "depth"
    elif isinstance(config, JacobiConfig):
        sizes = _chains(_WINDOWS if config.window == AUTO else (config.window,))
        name = "window"
    elif isinstance(config, CoolSDConfig | DraftModelConfig):
        sizes = _chains(_CHAIN_LENGTHS if config.draft_length == AUTO else (config.draft_length,))
        name = "draft_length"
    else:
        return (DraftSize(1, 0),)
    fitting = tuple(size for size in sizes if size.depth <= longest)
    if not fitting:
        raise UserError(
            f"{config.name}.{name} must leave room in a picture of {num_image_tokens} tokens: at most {longest}, got "
            f"{min(size.depth for size in sizes)}"
        )
    return fitting


def max_draft_nodes(config: MethodConfig, num_image_tokens: int) -> int:
    """The most nodes a method feeds at once: the largest tree, its root included, and what was skipped before it."""
    sizes = draft_sizes(config, num_image_tokens)
    most_skipped = max(size.depth for size in sizes) if isinstance(config, VVSConfig) else 0
    return max(size.total_tokens for size in sizes) + most_skipped


def build_method(config: MethodConfig, target: LlamaGenTarget, components: Components) -> Method:
    """The players for one run of `target`.

    Raises:
        UserError: the settings do not fit this model, or something the method needs is missing.
    """
    if isinstance(config, AutoregressiveConfig):
        return Method()
    try:
        if isinstance(config, EagleConfig):
            return _build_eagle(config, target, components)
        if isinstance(config, CoolSDConfig):
            shape = StaticTree.chain(max(size.depth for size in _sizes(config, target)))
            drafter = _eagle_drafter(config, target, components, shape, "sampled")
            return Method(drafter, AnnealedVerifier(config.delta, config.decay))
        if isinstance(config, JacobiConfig):
            return _build_jacobi(config, target, components)
        if isinstance(config, DraftModelConfig):
            return _build_draft_model(config, target, components)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"method {config.name}: {error}") from error
    raise UserError(f"method {config.name!r} cannot be built")


def _sizes(config: MethodConfig, target: LlamaGenTarget) -> tuple[DraftSize, ...]:
    return draft_sizes(config, target.transformer.num_image_tokens)


def _chains(lengths: tuple[int, ...]) -> list[DraftSize]:
    return [DraftSize(length + 1, length) for length in lengths]


def _tree_shape(config: EagleConfig) -> DynamicTree | StaticTree:
    try:
        if not isinstance(config.tree, str):
            return StaticTree.from_paths(config.tree)
        return DynamicTree(config.tree_top_k) if config.tree == "dynamic" else StaticTree.published(config.tree)
    except ValueError as error:
        raise UserError(f"{config.name}.tree: {error}") from error


def _build_eagle(config: EagleConfig, target: LlamaGenTarget, components: Components) -> Method:
    drafter = _eagle_drafter(config, target, components, _tree_shape(config), config.children)
    schedule = None
    if isinstance(config, VVSConfig):
        drafter.feature_reuse = FeatureCache(
            target.transformer.num_image_tokens, config.staleness, config.verified_staleness
        )
        drafter.refresh = config.refresh
        drafter.depth_behind_skip = config.depth_behind_skip
        schedule = _build_schedule(config, components)
    if not isinstance(config, LanternConfig):
        return Method(drafter, ExactVerifier())
    num_neighbours = max(1, target.vocab_size // 16) if config.num_neighbours == AUTO else config.num_neighbours
    # The released code removes one neighbour more than it merges, and the verifier reads that one off the table.
    neighbours = components.neighbours(num_neighbours + (config.mode == "release"))
    relaxation = {"delta": config.delta} if config.multiplier is None else {"multiplier": config.multiplier}
    return Method(drafter, LanternVerifier(neighbours, mode=config.mode, **relaxation), schedule)  # type: ignore[arg-type]


def _build_schedule(config: VVSConfig, components: Components) -> Schedule:
    codebook = components.codebook()
    selector = PathSelector(config.choice, config.truncate, codebook)  # type: ignore[arg-type]
    if config.schedule == "uniform":
        return UniformSchedule(config.interval, selector, config.min_tokens)
    if config.schedule == "likeness":
        return LikenessSchedule(config.threshold, selector, codebook, min_tokens=config.min_tokens)
    return DynamicSchedule(config.threshold, selector, codebook, min_tokens=config.min_tokens)


def _eagle_drafter(
    config: EagleConfig | CoolSDConfig,
    target: LlamaGenTarget,
    components: Components,
    shape: DynamicTree | StaticTree,
    children: str,
) -> EagleDrafter:
    network = components.drafter(config.drafter)
    sizes = _sizes(config, target)
    largest = DraftSize(max(size.total_tokens for size in sizes), max(size.depth for size in sizes))
    head = LlamaGenDraftHead(network, target, EagleDrafter.most_new_pairs(shape, largest))

    def draft_step() -> None:
        expanded = shape.top_k if isinstance(shape, DynamicTree) else 1
        rows = target.batch_size
        tokens = torch.zeros(rows, expanded, dtype=torch.long, device=target.device)
        width = network.config.dim * (2 if target.is_guided else 1)
        features = torch.zeros(rows, expanded, width, dtype=network.dtype, device=target.device)
        mask = torch.eye(expanded, dtype=torch.bool, device=target.device)[None]
        head.forward(tokens, features, mask, tokens[:1]).logits.topk(min(expanded, target.vocab_size))

    # Only with the likeliest children do an exact method's pictures not depend on what was drafted.
    adapt = config.exact and children == "top"
    measured = network.config.acceptance_rate if children == "top" else network.config.sampled_acceptance_rate
    rate = measured or _EAGLE_RATE
    sizer = _sizer(sizes, target, draft_step, f"eagle-{network.config.dim}-{children}-{shape}", adapt, rate)
    return EagleDrafter(head, shape, sizer, children)  # type: ignore[arg-type]


def _build_jacobi(config: JacobiConfig, target: LlamaGenTarget, components: Components) -> Method:
    verifier: Verifier = ExactVerifier()
    if isinstance(config, GroupedConfig):
        verifier = GroupedVerifier(
            components.codebook(),
            config.group_size,
            max_probability_difference=config.max_probability_difference,
            max_distance=config.max_distance,
        )
    drafter = JacobiDrafter(
        target.vocab_size,
        _sizer(_sizes(config, target), target, None, "jacobi", adapt=False, prior_rate=_JACOBI_RATE),
        initial_guess=config.initial_guess,
        coupling=config.coupling if isinstance(config, CoupledJacobiConfig) else "independent",
    )
    return Method(drafter, verifier)


def _build_draft_model(config: DraftModelConfig, target: LlamaGenTarget, components: Components) -> Method:
    smaller = components.draft_target(config.draft_model)

    def draft_step() -> None:
        tokens = torch.zeros(smaller.batch_size, 1, dtype=torch.long, device=smaller.device)
        smaller.forward(tokens, torch.ones_like(tokens, dtype=torch.bool)[..., None], torch.zeros_like(tokens))

    layers, dim = smaller.transformer.config.num_layers, smaller.transformer.config.dim
    adapt = config.children == "top"
    key = f"transformer-{layers}-{dim}"
    sizer = _sizer(_sizes(config, target), target, draft_step, key, adapt, _DRAFT_MODEL_RATE)
    return Method(DraftModelDrafter(smaller, sizer, children=config.children), ExactVerifier())


def _sizer(
    sizes: tuple[DraftSize, ...],
    target: LlamaGenTarget,
    draft_step: Callable[[], None] | None,
    drafter_key: str,
    adapt: bool,
    prior_rate: float,
) -> DraftSizer:
    """A fixed size where there is no choice, else one chosen by cost on this machine and by acceptance."""
    if len(sizes) == 1:
        return FixedDraftSize(sizes[0])
    most_nodes = max(size.total_tokens for size in sizes)
    costs = step_costs(target, most_nodes, draft_step, drafter_key)
    prior_rate = min(max(prior_rate, 0.05), 0.95)
    if not adapt:
        return AdaptiveDraftSize(sizes, costs, adapt=False, prior_rate=prior_rate)
    # What one picture taught serves the next: no picture depends on it, and each would pay for learning it again.
    key = (costs, sizes, drafter_key)
    if key not in _learned:
        _learned[key] = AdaptiveDraftSize(sizes, costs, prior_rate=prior_rate)
    _learned[key].start()
    return _learned[key]


_learned: dict[tuple[StepCosts, tuple[DraftSize, ...], str], AdaptiveDraftSize] = {}
