"""Passes that cost what a large model's cost: beside the players of a small model run networks of another geometry.

Belongs here: networks of LlamaGen's published sizes with random weights, and players that feed them what the small
model's are fed. Does not belong here: who asks for them (`vargen bench --weighted-by`), and any result: no token
depends on what these networks say.

A projection multiplies counted passes by the seconds of a pass measured elsewhere. Here the whole decoding is measured:
every pass of the target, the prefill and guided rows included, also goes through the large network, over the same rows
and nodes, with a cache of its own that keeps the same slots; every pass of a drafter through one of the geometry that a
drafter beside the large network has. What is left out: logits are judged over the small model's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.kernels.quantized import quantize_linears
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import TargetOutput
from vargen.base.errors import UserError
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.kept_caches import KeptCaches
from vargen.models.llamagen.target import (
    LlamaGenTarget,
    LlamaGenTargetOutput,
    cache_length,
    cache_sizes,
)
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer

WEIGHTS = ("B", "L", "XL")
"""Sizes that may be asked for."""
DRAFT_MODEL_SIZE = "B"
"""What stands for the smaller model that drafts."""


@dataclass
class WeightNetworks:
    """The networks.

    Args:
        label: what every table and record calls them.
        transformer, drafter, smaller: beside the target, an EAGLE head, and a smaller model that drafts.
        passes: of each, by "target", "head" and "smaller", the number of new tokens of every forward, prefills
            excluded.
    """

    label: str
    transformer: LlamaGenTransformer
    drafter: EagleHead
    smaller: LlamaGenTransformer
    passes: dict[str, list[int]] = field(default_factory=lambda: {"target": [], "head": [], "smaller": []})

    @classmethod
    def of_size(
        cls, size: str, small: LlamaGenTransformer, dtype: torch.dtype, geometries: Mapping[str, Any] = LLAMAGEN_SIZES
    ) -> WeightNetworks:
        """Random networks beside a small model of the same grid.

        Args:
            size: one of `WEIGHTS`, with or without "LlamaGen-" before it.
            small: the model that decides.
            dtype: of the networks.
            geometries: by size, what `LlamaGenTransformer` takes.

        Raises:
            UserError: an unknown size.
        """
        name = size.removeprefix("LlamaGen-")
        if name not in WEIGHTS:
            raise UserError(
                f"weighted_by must be one of {', '.join(f'LlamaGen-{each}' for each in WEIGHTS)}, got {size!r}"
            )
        shared = {"grid_size": small.config.grid_size, "condition_type": small.config.condition_type}
        transformer, smaller = (LlamaGenTransformer(**geometries[each], **shared) for each in (name, DRAFT_MODEL_SIZE))
        drafter = EagleHead(
            dim=transformer.config.dim,
            num_attention_heads=transformer.config.num_attention_heads,
            vocab_size=transformer.config.vocab_size,
            grid_size=small.config.grid_size,
        )
        # Of torch alone: diffusers' own `to` warns of modules to be kept in float32, and these networks have none.
        placed = [nn.Module.to(each, small.device, dtype).eval() for each in (transformer, drafter, smaller)]
        told = f"LlamaGen-{name} (random weights, {str(dtype).removeprefix('torch.')})"
        return cls(told, *placed)

    def quantize(self, quantization: str | None, draft_quantization: str | None) -> None:
        """Have the networks' layers rounded as the model's own are, and say so in the label.

        Args:
            quantization: of the network beside the target; None: as it is.
            draft_quantization: of the others.
        """
        drafts = (self.drafter.attn, self.drafter.ff, self.smaller.transformer_blocks)
        for name, parts in ((quantization, (self.transformer.transformer_blocks,)), (draft_quantization, drafts)):
            if name is not None:
                for layers in parts:
                    quantize_linears(layers, name)
        told = {"layers": quantization, "drafts": draft_quantization}
        added = "".join(f", {part} in {name}" for part, name in told.items() if name is not None)
        self.label = f"{self.label.removesuffix(')')}{added})"

    def beside(self, target: LlamaGenTarget, caches: KeptCaches, role: str = "target") -> WeightedTarget:
        """A target (or, in the role "smaller", a draft model) with its network beside it.

        Args:
            caches: of networks of earlier batches, to be used again.
        """
        transformer = self.transformer if role == "target" else self.smaller
        rows = target.batch_size * (2 if target.is_guided else 1)
        cache = None
        if not target.prompt_only:
            slots = cache_length(transformer, target.longest_condition, target.max_draft_nodes)
            cache = caches.get(role, **cache_sizes(transformer, rows, slots))
        return WeightedTarget(target, self._heavy(target, transformer, cache), self.passes[role])

    def beside_head(
        self, head: LlamaGenDraftHead, target: WeightedTarget, most_new_pairs: int, caches: KeptCaches
    ) -> WeightedHead:
        """A head with its network beside it; `target` is the one that the head drafts for."""
        kept = None if target.heavy.prompt_only else caches
        heavy = LlamaGenDraftHead(self.drafter, target.heavy, most_new_pairs, kept)
        return WeightedHead(head, heavy, self.passes["head"])

    def _heavy(
        self, target: LlamaGenTarget, transformer: LlamaGenTransformer, cache: StaticKVCache | None
    ) -> LlamaGenTarget:
        shape = (target.batch_size, target.condition_length, transformer.config.dim)
        mask = target.condition_mask
        return LlamaGenTarget(
            transformer,
            torch.ones(shape, device=target.device, dtype=transformer.dtype),
            None if mask is None else mask[: target.batch_size],
            guidance_scale=target.guidance_scale,
            max_draft_nodes=target.max_draft_nodes,
            kv_cache=cache,
            longest_condition=target.longest_condition,
            prompt_only=target.prompt_only,
        )


class WeightedTarget:
    """Plays Target and DraftModel: says what one target says, while another is fed the same.

    Args:
        target: the small model, which decides.
        heavy: beside it.
        passes: gets the number of new tokens of every forward.
    """

    def __init__(self, target: LlamaGenTarget, heavy: LlamaGenTarget, passes: list[int]) -> None:
        self.target, self.heavy, self._passes = target, heavy, passes
        self.vocab_size, self.batch_size, self.device = target.vocab_size, target.batch_size, target.device

    def prefill(self) -> LlamaGenTargetOutput:
        """See `specdecode.roles.Target`."""
        self.heavy.prefill()
        return self.target.prefill()

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> LlamaGenTargetOutput:
        """See `specdecode.roles.Target`."""
        self._passes.append(tokens.shape[1])
        self.heavy.forward(tokens, mask, depths)
        return self.target.forward(tokens, mask, depths)

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
        """See `LlamaGenTarget.half_way`; passes of the clock are not counted."""
        return WeightedTarget(self.target.half_way(max_draft_nodes), self.heavy.half_way(max_draft_nodes), [])


class WeightedHead:
    """Plays `DraftHead`: guesses what one head guesses, while another is fed as many pairs at the same places.

    Args:
        head: the small model's, which decides.
        heavy: beside it. Its features are of no meaning.
        passes: gets the number of new pairs of every forward.
    """

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
        """See `PictureDraftHead.draft_once`."""
        self.heavy.draft_once(num_pairs)
        self.head.draft_once(num_pairs)
