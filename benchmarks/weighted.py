"""A network of a large model's size beside the shipped model, so that each forward pass costs what a large one costs.

Belongs here: networks of LlamaGen's published sizes with random weights, and a pipeline that feeds them what its own
networks are fed. Does not belong here: the command that measures (`weighted_bench.py`). No token depends on what these
networks compute.

A projection multiplies counted forward passes by the seconds of a pass measured elsewhere. Here the whole decoding is
measured. Every pass of the target also goes through the large network: the prefill and guided rows too, over the same
rows and tokens, with a cache of its own that keeps the same slots. Every pass of a drafter also goes through a network
of the size that drafts for the large network. One part is left out: logits are verified over the small model's
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from specdecode.drafters.draft_model import DraftModel
from specdecode.drafters.eagle import DraftHead
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.kernels.in_graph import in_graph
from specdecode.kernels.quantized import quantize_linears
from specdecode.roles import Positions, TargetOutput
from vargen.base.errors import UserError
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.kept_caches import KeptCaches
from vargen.methods.base import LoadedDrafter
from vargen.models.components import draft_passes
from vargen.models.llamagen.llamagen_components import LlamaGenComponents
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget, LlamaGenTargetOutput, cache_length, cache_sizes
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.quantization import linear_weights

GEOMETRIES: dict[str, dict[str, int]] = {
    **{name: LLAMAGEN_SIZES[name] for name in ("B", "L", "XL")},
    "8B": {"dim": 4096, "num_layers": 32, "num_attention_heads": 32, "intermediate_size": 14_336},
    "tiny": {"dim": 16, "num_layers": 1, "num_attention_heads": 2},
}
"""Sizes that may be asked for: LlamaGen's; layers as wide as those of Emu3 8B; one for trying whether a script runs."""
SIZES = tuple(GEOMETRIES)
DRAFT_MODEL_SIZE = "B"
"""The size that stands for the draft model."""


@dataclass
class WeightNetworks:
    """The networks with random weights.

    Args:
        label: what every table and record calls them.
        transformer, drafter, draft_model: beside the target, the EAGLE head and the draft model.
        passes: of each, by "target", "head" and "draft model", the number of new tokens of every forward pass, prefills
            excluded.
        caches: their keys and values, used again by the next batch.
    """

    label: str
    transformer: LlamaGenTransformer
    drafter: EagleHead
    draft_model: LlamaGenTransformer
    passes: dict[str, list[int]] = field(default_factory=lambda: {"target": [], "head": [], "draft model": []})
    caches: KeptCaches = field(default_factory=KeptCaches)

    @classmethod
    def of_size(
        cls, size: str, small: LlamaGenTransformer, dtype: torch.dtype, geometries: Mapping[str, Any] = GEOMETRIES
    ) -> Self:
        """Random networks beside a small model of the same grid.

        Args:
            size: one of `SIZES`, with or without "LlamaGen-" before it.
            small: the model that decides every token.
            dtype: of the networks.
            geometries: by size, what `LlamaGenTransformer` takes.

        Raises:
            UserError: an unknown size.
        """
        name = size.removeprefix("LlamaGen-")
        if name not in SIZES:
            raise UserError(f"weighted_by must be one of {', '.join(SIZES)}, got {size!r}")
        shared = {"grid_size": small.config.grid_size, "condition_type": small.config.condition_type}
        transformer, draft_model = (
            LlamaGenTransformer(**geometries[each], **shared) for each in (name, DRAFT_MODEL_SIZE)
        )
        drafter = EagleHead(
            dim=transformer.config.dim,
            num_attention_heads=transformer.config.num_attention_heads,
            vocab_size=transformer.config.vocab_size,
            grid_size=small.config.grid_size,
        )
        # `nn.Module.to`, because diffusers' own `to` warns of modules to be kept in float32; these networks have none.
        placed = [nn.Module.to(each, small.device, dtype).eval() for each in (transformer, drafter, draft_model)]
        told = f"LlamaGen-{name}" if name in LLAMAGEN_SIZES else name
        return cls(f"{told} (random weights, {str(dtype).removeprefix('torch.')})", *placed)

    def quantize(self, quantization: str | None, draft_quantization: str | None) -> None:
        """Quantize the networks' layers as the model's own are, and say so in the label.

        Args:
            quantization: of the network beside the target; None: it stays as it is.
            draft_quantization: of the others.
        """
        drafts = (self.drafter.attn, self.drafter.ff, self.draft_model.transformer_blocks)
        for name, parts in ((quantization, (self.transformer.transformer_blocks,)), (draft_quantization, drafts)):
            if name is not None:
                for layers in parts:
                    quantize_linears(layers, name)
        asked = {"layers": quantization, "drafts": draft_quantization}
        added = "".join(f", {part} in {name}" for part, name in asked.items() if name is not None)
        self.label = f"{self.label.removesuffix(')')}{added})"

    def beside(self, target: LlamaGenTarget, role: str = "target") -> WeightedTarget:
        """A target (or, in the role "draft model", a draft model) with its network beside it."""
        transformer = self.transformer if role == "target" else self.draft_model
        cache = None
        if not target.prompt_only:
            rows = target.batch_size * (2 if target.is_guided else 1)
            slots = cache_length(transformer, target.longest_condition, target.max_draft_nodes)
            cache = self.caches.get(role, **cache_sizes(transformer, rows, slots))
        shape = (target.batch_size, target.condition_length, transformer.config.dim)
        mask = target.condition_mask
        heavy = LlamaGenTarget(
            transformer,
            torch.ones(shape, device=target.device, dtype=transformer.dtype),
            None if mask is None else mask[: target.batch_size],
            guidance_scale=target.guidance_scale,
            max_draft_nodes=target.max_draft_nodes,
            kv_cache=cache,
            longest_condition=target.longest_condition,
            prompt_only=target.prompt_only,
        )
        return WeightedTarget(target, heavy, self.passes[role])

    def beside_head(self, head: LlamaGenDraftHead, target: WeightedTarget, most_new_pairs: int) -> WeightedHead:
        """A draft head with its network beside it; `target` is the one that the head drafts for."""
        kept = None if target.heavy.prompt_only else self.caches
        return WeightedHead(
            head, LlamaGenDraftHead(self.drafter, target.heavy, most_new_pairs, kept), self.passes["head"]
        )


class WeightedPipeline(LlamaGenPipeline):
    """A pipeline whose every forward pass also goes through random networks. Its pictures stay those of its model."""

    networks: WeightNetworks

    @property
    def weights_a_pass(self) -> tuple[int, int]:
        """Weights of the model's layers and of those of the network beside it."""
        both = zip(super().weights_a_pass, linear_weights(self.networks.transformer.transformer_blocks), strict=True)
        read, multiplied = map(sum, both)
        return read, multiplied

    @classmethod
    def of(cls, pipeline: LlamaGenPipeline, networks: WeightNetworks) -> Self:
        """The same model, settings and memory, with networks beside it; its quantized layers quantize theirs too."""
        own = ("default_guidance_scale", "default_top_k", "default_temperature", "max_sequence_length", "methods")
        made = cls(**pipeline.components, **{name: pipeline.config[name] for name in own})
        made.set_progress_bar_config(**getattr(pipeline, "_progress_bar_config", {}))
        made.reuse = pipeline.reuse
        layers = made.reuse.computed_by(made._decoder_layers)
        networks.quantize(layers.get("quantization"), layers.get("draft_quantization"))
        made.networks = networks
        return made

    def _components(self, device: torch.device) -> LlamaGenComponents:
        parts = (self.transformer, self.vqvae, self.drafter, self.draft_model)
        return WeightedComponents(self.networks, *parts, device, self.reuse)


class WeightedComponents(LlamaGenComponents):
    """What the model offers methods, each network with a random one beside it.

    Args:
        networks: the random ones.
        *others: as for `LlamaGenComponents`.
    """

    def __init__(self, networks: WeightNetworks, *others: Any) -> None:
        super().__init__(*others)
        self._networks = networks

    def start(self, *arguments: Any, **keywords: Any) -> Any:
        """See `LlamaGenComponents.start`."""
        self._beside = self._networks.beside(super().start(*arguments, **keywords))
        return self._beside

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """See `LlamaGenComponents.load_draft_head`."""
        own: Any = super().load_draft_head(folder, most_new_pairs)
        head = self._networks.beside_head(own.network, self._beside, most_new_pairs)
        return replace(own, network=head, draft_once=head.draft_once)

    def load_draft_model(self, folder: str | None, most_nodes: int = 0) -> LoadedDrafter[DraftModel]:
        """See `LlamaGenComponents.load_draft_model`."""
        own: Any = super().load_draft_model(folder, most_nodes)
        network = self._networks.beside(own.network, "draft model")
        return replace(own, network=network, draft_once=draft_passes(lambda: network))

    def _probe(self, num_tokens: int) -> Any:
        return self._beside.half_way(num_tokens)

    def _pass_geometry(self) -> dict[str, Any]:
        return {**super()._pass_geometry(), "weighted_by": self._networks.label}


class WeightedTarget:
    """Plays Target and DraftModel: returns what the small target returns, and feeds a heavy one the same.

    Args:
        target: the small model's, which decides.
        heavy: beside it.
        passes: gets the number of new tokens of every forward pass.
    """

    graph_state = ("target", "heavy")

    def __init__(self, target: LlamaGenTarget, heavy: LlamaGenTarget, passes: list[int]) -> None:
        self.target, self.heavy, self._passes = target, heavy, passes
        self.vocab_size, self.batch_size, self.device = target.vocab_size, target.batch_size, target.device
        self.compiler = target.compiler

    def prefill(self) -> LlamaGenTargetOutput:
        """See `specdecode.roles.Target`."""
        self.heavy.prefill()
        return self.target.prefill()

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> LlamaGenTargetOutput:
        """See `specdecode.roles.Target`."""
        if not in_graph():  # a graph is not counted
            self._passes.append(tokens.shape[1])
        self.heavy.forward(tokens, mask, depths)
        return self.target.forward(tokens, mask, depths)

    def check_places(self, num_slots: int) -> None:
        """See `specdecode.roles.PlacedTarget`."""
        self.heavy.check_places(num_slots)
        self.target.check_places(num_slots)

    def forward_places(self, tokens: Tensor, placed: Positions) -> LlamaGenTargetOutput:
        """See `specdecode.roles.PlacedTarget`."""
        if not in_graph():  # a graph is not counted
            self._passes.append(tokens.shape[1])
        self.heavy.forward_places(tokens, placed)
        return self.target.forward_places(tokens, placed)

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """See `specdecode.roles.Target`."""
        self.heavy.commit(node_indices, counts)
        self.target.commit(node_indices, counts)

    def rewind(self, counts: Tensor) -> None:
        """See `specdecode.drafters.draft_model.DraftModel`."""
        self.heavy.rewind(counts)
        self.target.rewind(counts)

    def replace_rows(self, rows: Tensor, other: WeightedTarget) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self.heavy.replace_rows(rows, other.heavy)
        self.target.replace_rows(rows, other.target)

    def half_way(self, max_draft_nodes: int) -> WeightedTarget:
        """See `LlamaGenTarget.half_way`; forward passes that only measure costs are not counted."""
        return WeightedTarget(self.target.half_way(max_draft_nodes), self.heavy.half_way(max_draft_nodes), [])


class WeightedHead:
    """Plays `DraftHead`: returns what the small head returns, and feeds a heavy one as many pairs at the same places.

    Args:
        head: the small model's, which decides.
        heavy: beside it. Its features mean nothing.
        passes: gets the number of new pairs of every forward pass.
    """

    graph_state = ("head", "heavy")

    def __init__(self, head: LlamaGenDraftHead, heavy: LlamaGenDraftHead, passes: list[int]) -> None:
        self.head, self.heavy, self._passes = head, heavy, passes
        self.vocab_size = head.vocab_size

    def start(self, prompt: TargetOutput) -> Tensor:
        """See `DraftHead`."""
        target = self.heavy.target
        states = torch.ones(
            target.batch_size,
            target.condition_length,
            self.heavy.drafter.config.dim,
            device=target.device,
            dtype=self.heavy.drafter.dtype,
        )
        self.heavy.start(LlamaGenTargetOutput(prompt.logits, states, states))
        return self.head.start(prompt)

    def features(self, output: TargetOutput) -> Tensor:
        """See `DraftHead`."""
        return self.head.features(output)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """See `DraftHead`."""
        if not in_graph():  # a graph is not counted
            self._passes.append(tokens.shape[1])
        width = self.heavy.drafter.config.dim * (2 if self.heavy.target.is_guided else 1)
        ones = torch.ones(*tokens.shape, width, device=tokens.device, dtype=self.heavy.drafter.dtype)
        self.heavy.forward(tokens, ones, mask, depths)
        return self.head.forward(tokens, features, mask, depths)

    def advance(self, counts: Tensor) -> None:
        """See `DraftHead`."""
        self.heavy.advance(counts)
        self.head.advance(counts)

    def replace_rows(self, rows: Tensor, other: WeightedHead) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self.heavy.replace_rows(rows, other.heavy)
        self.head.replace_rows(rows, other.head)

    def draft_once(self, num_pairs: int) -> None:
        """See `EagleDraftHead.draft_once`."""
        self.heavy.draft_once(num_pairs)
        self.head.draft_once(num_pairs)
