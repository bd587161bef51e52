"""LlamaGen as the Target of the speculative loop: guidance, positions and the cache behind one sequence per row.

Belongs here: how a picture's tokens become a pass of `LlamaGenTransformer`. Does not belong here: sampling, drafting,
text encoding, and turning tokens into pixels.

With guidance the transformer runs on 2B rows, the conditional half first, and both halves are fed the same tokens. Only
`unconditional_hidden_states` shows the second half.

Guidance may end at a place of the picture: tokens from there on are drawn from the conditional half alone. Once no row
needs it, the second half is not fed any more. The gaps in its cache are never read.

Sources of guidance in an interval: LlamaGen's own `cfg_interval`; arXiv 2312.12487 (for diffusion).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdecode.kernels.native import NewTokens
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import TargetOutput
from vargen.drafters.transformer_layers import CONDITION_POSITION, condition_attention_mask
from vargen.models.guided_tokens import Guided, guidance_is_over, where_guided
from vargen.models.llamagen.transformer import LlamaGenTransformer

if TYPE_CHECKING:
    from specdecode.graphs.static_step import StepCompiler
    from specdecode.roles import Positions


@dataclass
class LlamaGenTargetOutput(TargetOutput):
    """`TargetOutput` with the states of both halves, for guided drafters.

    `logits` [B, n, V] are guided; `hidden_states` [B, n, F] are those of the conditional half; F = dim, or k dim if
    `feature_layers` names k layers.

    Args:
        unconditional_hidden_states: [B, n, F] of the other half; None without guidance.
    """

    unconditional_hidden_states: Tensor | None = None


class LlamaGenTarget(Guided):
    """The Target role for one batch of pictures.

    Args:
        transformer: in eval mode, on the device of `condition_embeds`.
        condition_embeds: [B, T, dim] from `transformer.embed_condition`, text right-aligned.
        condition_mask: [B, T] bool, False at padding; None when nothing is padded (a class).
        guidance_scale: classifier-free guidance, on raw logits; off at values <= 1, and then the second half of the
            batch is not computed.
        guided_tokens: guidance leads the first so many tokens of a picture; None: all.
        negative_embeds, negative_mask: what guidance leads away from, shaped as the condition; None: the null
            condition, with the condition's own mask.
        max_draft_nodes: nodes of the largest tree given to `forward`, the root included.
        kv_cache: a cache to use again; it must fit (see `cache_sizes`). None: a new one.
        longest_condition: T of the longest condition that may take a row's place; None: none is longer than these.
        prompt_only: the target only fills rows of another one: it is prefilled, never stepped, and has no more room
            than for `num_given` tokens behind the prompt.
        num_given: see `prompt_only`.

    Attributes:
        compiler: makes steps with this target into graphs, see `compile`; None: they run eagerly.
        feature_layers: numbers of the blocks after which `hidden_states` are taken; none for the final ones alone. A
            head that reads several layers sets it before the prefill.

    Raises:
        ValueError: the condition's shapes do not belong together, or the cache does not fit.
    """

    def __init__(
        self,
        transformer: LlamaGenTransformer,
        condition_embeds: Tensor,
        condition_mask: Tensor | None = None,
        *,
        guidance_scale: float = 1.0,
        guided_tokens: int | None = None,
        negative_embeds: Tensor | None = None,
        negative_mask: Tensor | None = None,
        max_draft_nodes: int = 1,
        kv_cache: StaticKVCache | None = None,
        longest_condition: int | None = None,
        prompt_only: bool = False,
        num_given: int = 0,
    ) -> None:
        if condition_embeds.ndim != 3:
            raise ValueError(f"condition_embeds must be [batch, length, dim], got {list(condition_embeds.shape)}")
        batch_size, condition_length, _ = condition_embeds.shape
        if condition_mask is not None and condition_mask.shape != (batch_size, condition_length):
            raise ValueError(
                f"condition_mask must be [{batch_size}, {condition_length}] like condition_embeds, "
                f"got {list(condition_mask.shape)}"
            )
        self.transformer = transformer
        self.set_guidance(guidance_scale, condition_embeds.device, guided_tokens)
        self.feature_layers: tuple[int, ...] = ()
        self.compiler: StepCompiler | None = None
        self._batch_size = batch_size
        self.condition_length = condition_length
        self.longest_condition = max(longest_condition or 0, condition_length)

        if self.is_guided:
            # Conditional rows first, everywhere. The null condition goes with the prompt's own mask.
            if negative_embeds is None:
                negative_embeds, negative_mask = (
                    transformer.null_condition(batch_size, condition_length),
                    condition_mask,
                )
            if negative_embeds.shape != condition_embeds.shape:
                raise ValueError(
                    f"negative_embeds must be {list(condition_embeds.shape)} like condition_embeds, got "
                    f"{list(negative_embeds.shape)}"
                )
            condition_embeds = torch.cat((condition_embeds, negative_embeds.to(condition_embeds.dtype)))  # [2B, T, dim]
            if condition_mask is not None and negative_mask is not None:
                condition_mask = torch.cat((condition_mask, negative_mask))
        self._condition_embeds = condition_embeds
        self.condition_mask = condition_mask  # [rows, T], rows = 2B when guided
        # [rows]: where pictures begin. All equal, until rows are given to other conditions.
        self._picture_starts = torch.full((len(condition_embeds),), condition_length, device=condition_embeds.device)

        num_slots = condition_length + num_given
        if not prompt_only:
            num_slots = cache_length(transformer, self.longest_condition, max_draft_nodes)
        if kv_cache is None:
            kv_cache = StaticKVCache(**cache_sizes(transformer, condition_embeds.shape[0], num_slots))
        elif not kv_cache.fits(**cache_sizes(transformer, condition_embeds.shape[0], num_slots)):
            raise ValueError(
                f"kv_cache must fit {condition_embeds.shape[0]} rows of {num_slots} slots of this transformer"
            )
        self.kv_cache = kv_cache
        self._max_draft_nodes = max_draft_nodes
        self.prompt_only = prompt_only
        self._num_new = 0  # tokens of the last forward

    def compile(self, compiler: StepCompiler | None) -> None:
        """Steps with this target are graphs; None: they run eagerly.

        So they do where the project's own kernels serve its passes: few calls of theirs are faster than a graph.
        """
        self.compiler = None if self.transformer.fast_pass.serves(self.kv_cache) else compiler

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[b]` committed tokens of row b; [B] int64."""
        self.kv_cache.advance(-torch.cat((counts, counts)) if self.is_guided else -counts)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.transformer.config.vocab_size

    @property
    def batch_size(self) -> int:
        """B, pictures; the transformer has twice as many rows when guided."""
        return self._batch_size

    @property
    def device(self) -> torch.device:
        """Where tokens and logits lie."""
        return self._condition_embeds.device

    @property
    def max_draft_nodes(self) -> int:
        """The most new tokens of a pass that the cache has room for."""
        return self._max_draft_nodes

    def prefill(self) -> LlamaGenTargetOutput:
        """Feed the condition to an empty cache.

        Returns:
            Guided logits [B, 1, V] of image token 0, and hidden states [B, T, dim] of the whole condition (meaningless
            at padding).
        """
        cache, mask = self.kv_cache, self.condition_mask
        length = self.condition_length
        cache.reset()
        cache.starts = torch.zeros_like(cache.lengths)  # also without padding: one graph serves both
        if mask is None:
            mask = torch.ones(1, length, dtype=torch.bool, device=self.device)
        else:
            cache.starts = length - mask.sum(1)  # the text is right-aligned
        positions = torch.full((1, length), CONDITION_POSITION, dtype=torch.long, device=self.device)
        output = self.transformer(
            inputs_embeds=self._condition_embeds,
            positions=positions,
            attention_mask=condition_attention_mask(mask),  # [2B or 1, 1, T, T]
            kv_cache=cache,
            slots=cache.new_slots(length),
            kv_length=length,
            logits_to_keep=1,
            feature_layers=self.feature_layers,
        )
        cache.advance(length)
        # A row never holds more than its condition and all image tokens but the last.
        cache.expect_from(length, self.longest_condition + self.transformer.num_image_tokens - 1)
        return self._split(self.guided(output.logits), output.features)

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> LlamaGenTargetOutput:
        """Judge new tokens; see `specdecode.roles.Target.forward`.

        Args:
            tokens: [B, n] int64 image tokens.
            mask: [B, n, n] bool, new token i sees new token j.
            depths: [B, n] int64, places after the row's committed tokens.

        Returns:
            Guided logits [B, n, V] and hidden states [B, n, dim].

        Raises:
            ValueError: n exceeds the cache's room: `max_draft_nodes`, or more while rows are short.
        """
        num_new = self._num_new = tokens.shape[1]
        if num_new > self._max_draft_nodes and num_new > self.kv_cache.max_length - self.kv_cache.most_committed:
            raise ValueError(f"tokens must be at most max_draft_nodes ({self._max_draft_nodes}) per row, got {num_new}")
        halves, cache, origins = self._fed(lambda: self._num_placed)  # the next tokens stand behind these
        found = self._by_kernels(depths, mask, cache, tokens=tokens, halves=halves, origins=origins)
        if found is None:
            # A token's position in the picture is the number of committed image tokens plus its depth. A finished row
            # has all tokens but the last committed, so that its padding (depth 0) also has a position in the picture.
            positions = _for_halves(depths, halves) + (cache.lengths - origins)[:, None]  # [rows, n]
            slots, kv_length = cache.new_slots(num_new), self.kv_cache.reach(num_new)
            found = self._by_modules(tokens, mask, positions, slots, cache, halves, kv_length)
        features, logits = found
        assert logits is not None
        return self._split(self._guided_at(logits, lambda: self._num_placed[:, None] + depths + 1), features)

    def _by_kernels(
        self, depths: Tensor, mask: Tensor, cache: StaticKVCache, **new: Any
    ) -> tuple[Tensor, Tensor | None] | None:
        """Features, and guided logits, of new tokens by `FastPass.run`; None where it does not serve."""
        return self.transformer.fast_pass.run(
            NewTokens(depths, mask, lengths=cache.lengths, starts=cache.starts, **new),
            cache,
            self.transformer.lm_head,
            guidance_scale=self._scale_at_once,
            kept_layers=self.feature_layers,
        )

    def check_places(self, num_slots: int) -> None:
        """See `specdecode.roles.PlacedTarget`."""
        room = self.kv_cache.max_length - self.longest_condition
        if num_slots > room:
            raise ValueError(f"num_slots must be at most {room}, the cache's room behind the prompt, got {num_slots}")

    def forward_places(self, tokens: Tensor, placed: Positions) -> LlamaGenTargetOutput:
        """Feed tokens [B, n] at explicit places; see `specdecode.roles.PlacedTarget`.

        The cache's lengths stay those of the prompts. The project's kernels take any mask over slots; where they do not
        serve, torch's attention does.

        Returns:
            Guided logits [B, n, V] and hidden states [B, n, dim].
        """
        halves, cache, origins = self._fed(lambda: placed.positions)
        slots = cache.lengths[:, None] + _for_halves(placed.slots, halves)
        own = {"tokens": tokens, "halves": halves, "origins": origins, "places": cache.flatten_slots(slots)}
        found = self._by_kernels(placed.positions, placed.visible, cache, **own)
        if found is None:
            positions, kv_length = _for_halves(placed.positions, halves), self.kv_cache.reach(placed.visible.shape[2])
            found = self._by_modules(tokens, placed.visible, positions, slots, cache, halves, kv_length)
        features, logits = found
        assert logits is not None
        return self._split(self._guided_at(logits, lambda: placed.positions + 1), features)

    @property
    def _num_placed(self) -> Tensor:
        """[B], image tokens in the cache."""
        return (self.kv_cache.lengths - self._picture_starts)[: self.batch_size]

    @property
    def _scale_at_once(self) -> float | None:
        """By which the kernels guide all logits of a pass; None: they give those of every sequence."""
        return self.guidance_scale if self.is_guided and self.guided_tokens is None else None

    def _fed(self, places: Callable[[], Tensor]) -> tuple[int, StaticKVCache, Tensor]:
        """How many sequences of a picture the next pass feeds, with the cache and the beginnings of their pictures.

        Args:
            places: of the tokens to be fed; no later pass feeds earlier ones.
        """
        if self.is_guided and guidance_is_over(self.guided_tokens, self._delayed_read, places):
            return 1, self.kv_cache.first_rows(self.batch_size), self._picture_starts[: self.batch_size]
        return 1 + self.is_guided, self.kv_cache, self._picture_starts

    def _by_modules(
        self, tokens: Tensor, visible: Tensor, positions: Tensor, slots: Tensor, cache: StaticKVCache, halves: int,
        kv_length: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Hidden states [rows, n, F] and logits [rows, n, V] of new tokens by the modules.

        Args:
            tokens, visible: [B, n], and [1 or B, n, ...] what they see.
            positions, slots: [1 or rows, n] in the picture, and the cache's.
            cache: of the rows that are fed, `halves` of each picture.
            kv_length: how many slots attention reads.
        """
        output = self.transformer(
            input_ids=torch.cat((tokens, tokens)) if halves == 2 else tokens,
            positions=positions,
            attention_mask=cache.attention_mask(_for_halves(visible, halves), kv_length),
            kv_cache=cache,
            slots=slots,
            kv_length=kv_length,
            feature_layers=self.feature_layers,
        )
        return output.features, output.logits

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Keep tokens of the last forward; see `specdecode.roles.Target.commit`.

        Args:
            node_indices: [B, k] int64, the first `counts[b]` of row b are kept, in order of position; None: of all.
            counts: [B] int64.
        """
        num_kept = self._num_new if node_indices is None else node_indices.shape[1]
        if self.is_guided:
            counts = torch.cat((counts, counts))
        if node_indices is None:
            self.kv_cache.advance(counts)
        else:
            self.kv_cache.keep(torch.cat((node_indices, node_indices)) if self.is_guided else node_indices, counts)
        self.kv_cache.expect(num_kept)

    def replace_rows(self, rows: Tensor, other: LlamaGenTarget) -> None:
        """See `specdecode.roles.RowReplacing`. The guidance is this target's. Raises ValueError for a condition longer
        than `longest_condition`, or without the half that guidance needs."""
        if other.condition_length > self.longest_condition or other.is_guided != self.is_guided:
            raise ValueError(
                f"conditions must be at most longest_condition ({self.longest_condition}) long and guided alike, got "
                f"{other.condition_length}"
            )
        if self.is_guided:
            rows = torch.cat((rows, rows + self.batch_size))
        self._delayed_read.forget()
        self.kv_cache.replace_rows(rows, other.kv_cache, other.kv_cache.most_committed)
        self._picture_starts.index_copy_(0, rows, other._picture_starts)

    graph_state = ("kv_cache", "_scale", "_picture_starts")

    @torch.no_grad()
    def half_way(self, max_draft_nodes: int) -> LlamaGenTarget:
        """A target of the same shape with its own cache, in the middle of an empty picture; for measuring time."""
        transformer, device = self.transformer, self.device
        shape = (self.batch_size, self.condition_length, transformer.config.dim)
        embeds = torch.zeros(shape, device=device, dtype=transformer.dtype)
        target = LlamaGenTarget(
            transformer, embeds, guidance_scale=self.guidance_scale, max_draft_nodes=max_draft_nodes
        )
        target.prefill()
        half = transformer.num_image_tokens // 2
        target.kv_cache.advance(half)  # times do not depend on the contents of slots
        target.kv_cache.expect(half)
        return target

    def _guided_at(self, logits: Tensor, places: Callable[[], Tensor]) -> Tensor:
        """`guided` logits of a pass where guidance leads; those [B, n, V] of one half as they are.

        Args:
            places: that the logits are for, [1 or B, n].
        """
        if len(logits) == self.batch_size:
            return logits
        guided = self.guided(logits)
        if self.guided_tokens is None:
            return guided
        return where_guided(self.guided_tokens, guided, logits[: self.batch_size].float(), places())

    def _split(self, logits: Tensor, hidden_states: Tensor) -> LlamaGenTargetOutput:
        """The output with guided logits [B, n, V], and the rows' hidden states by halves."""
        if len(hidden_states) == self.batch_size:
            return LlamaGenTargetOutput(logits, hidden_states)
        return LlamaGenTargetOutput(logits, *hidden_states.chunk(2))


def cache_length(transformer: LlamaGenTransformer, condition_length: int, max_draft_nodes: int = 1) -> int:
    """Slots a row needs: the condition, every image token that is fed (all but the last), and one draft beyond them."""
    return condition_length + transformer.num_image_tokens - 1 + max_draft_nodes


def cache_sizes(transformer: LlamaGenTransformer, num_rows: int, num_slots: int) -> dict[str, Any]:
    """Arguments of a `StaticKVCache` of `num_slots` slots for `num_rows` rows (two for a guided picture)."""
    config = transformer.config
    return {
        "num_layers": config.num_layers,
        "batch_size": num_rows,
        "num_heads": config.num_key_value_heads,
        "max_length": num_slots,
        "head_dim": transformer.head_dim,
        "device": transformer.device,
        "dtype": transformer.dtype,
    }


def _for_halves(rows: Tensor, halves: int) -> Tensor:
    """Rows of pictures [1 or B, ...] for every half of guidance; a single row serves all."""
    return torch.cat((rows, rows)) if halves == 2 and len(rows) > 1 else rows
