"""A causal language model of transformers, unmodified, in the roles of Target and of a draft model.

Belongs here: its cache, masks and positions, and which architectures are refused. Does not belong here: the meaning of
tokens, prompts (`generate.py`), and guidance (a subclass feeds copies of the rows and combines them).

The prompt goes through the model as in its own `generate`: the model makes the mask from the prompt's padding. After
that, since rows have their own lengths and tokens form trees, the model is given a four-dimensional additive mask
(which transformers passes on as it is), `position_ids`, and a `Cache` whose layers write to the slots of one
`StaticKVCache` and attend to it. Nothing waits for the device.

Layers that attend to the last `sliding_window` tokens only get a mask of their own. The window counts positions in the
sequence, and the position of a tree node follows from its depth, not its slot. All keys stay in the cache, so a window
saves no memory here. An architecture that mixes kinds of layers takes a dictionary of masks by kind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache

from specdecode import ragged
from specdecode.checks import check_counts, shown
from specdecode.kernels.in_graph import in_graph
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import MakesGraphs, TargetOutput
from specdecode.targets.arguments import cache_name, takes
from specdecode.targets.grouped_attention import GROUPED_ATTENTION
from specdecode.tree import chain_layout

if TYPE_CHECKING:
    from specdecode.roles import Positions
    from specdecode.targets.llama_pass import LlamaPass

_POSITIONS_OFFSET = 2
"""Rows of OPT's table of positions before the first position."""
_WINDOWS = {"full_attention": False, "sliding_attention": True}
"""The supported kinds of layers, by transformers' names, and whether they attend through a window."""
_VIEW_KEYS = ("GPTNeoXJapaneseForCausalLM",)
"""Models whose attention takes a view of all heads of all rows, which a part of a cache has not."""


class TransformersTarget:
    """`specdecode.roles.Target` over a batch of prompts; also `specdecode.drafters.draft_model.DraftModel`.

    Where a model's own forward does more than turn token ids into logits, its parts are given: `embed` turns tokens
    into the decoder's inputs, `decoder` those into hidden states, and `output_head` these into logits.

    A subclass that feeds several rows for each sequence (guidance: a conditional and a null row) sets
    `rows_per_sequence` and overrides `combine`; its prompt has all rows of the first kind first. A subclass that feeds
    prompts in another way overrides `prefill`: `lay_out`, passes, `SlotCache.finish_prompt`.

    Args:
        model: transformers' `...ForCausalLM`, or a model that contains one; in evaluation mode.
        input_ids: [R, T] int64, the prompts, padded on the left; R = B * `rows_per_sequence`.
        attention_mask: [R, T] bool or int64, 0 at padding; None: nothing is padded.
        inputs_embeds: [R, T, dim] instead of `input_ids`.
        max_new_tokens: tokens of a complete row; all but the last are fed.
        max_draft_nodes: the most tokens of one `forward`, roots and pending tokens included.
        position_ids: of the prompts, [R, T], or [A, R, T] for architectures with several axes. None: counted from 0
            after the padding.
        positions: maps places [R, n] int64 after the prompt, counted from 0, to position ids [R, n] or [A, R, n]. None:
            positions continue those of the prompt.
        vocab_size: V; None: the model's own. A smaller one cuts off the last tokens, which are padding in models of one
            family; a larger one adds logits of minus infinity.
        decoder: takes `inputs_embeds` or `input_ids`, `attention_mask`, `position_ids`, `past_key_values` and
            `use_cache`, and returns an output with `last_hidden_state`; None: `model` itself does everything.
        output_head: from hidden states [R, n, dim] to logits; given if and only if `decoder` is.
        embed: from tokens [R, n] to embeddings [R, n, dim]; None: the model is given tokens.
        kv_cache: the cache of a finished target, to be used again; None: a new one, made in the prefill.
        longest_prompt: T of the longest prompt that may later take a row; None: none is longer than these.

    Attributes:
        prompt_ids: [R, T] int64; None where the prompts are embeddings, of which a subclass may know better.
        prompt_mask: [R, T] bool, False at padding; None where nothing is padded.
        compiler: makes steps with this target into graphs, see `compile`; None: they run eagerly.
        fast: passes over new tokens in the kernels, see `specdecode.targets.llama_pass`; None: the model's own.
        kv_cache: None before the first prefill if none was given.
        feature_layers: the decoder layers, by transformers' numbers, after which `hidden_states` are taken, side by
            side; the last one's is normed. Empty for the final states alone, and without a `decoder` for none. Must be
            set before the prefill.

    Raises:
        ValueError: an architecture that is not supported, by name; or arguments that do not belong together.
    """

    rows_per_sequence = 1
    graph_state: tuple[str, ...] = ("_cache", "_prompt_lengths", "_onward_from")

    def __init__(
        self,
        model: Any,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        max_new_tokens: int,
        max_draft_nodes: int = 1,
        position_ids: Tensor | None = None,
        positions: Callable[[Tensor], Tensor] | None = None,
        vocab_size: int | None = None,
        decoder: Callable[..., Any] | None = None,
        output_head: Callable[[Tensor], Tensor] | None = None,
        embed: Callable[[Tensor], Tensor] | None = None,
        kv_cache: StaticKVCache | None = None,
        longest_prompt: int | None = None,
    ) -> None:
        check_model(model, decoder)
        prompt = inputs_embeds if input_ids is None else input_ids
        if prompt is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give the prompts as input_ids or as inputs_embeds, one of them")
        if (decoder is None) != (output_head is None):
            raise ValueError("decoder and output_head belong together; give both or none")
        check_counts(max_new_tokens=max_new_tokens, max_draft_nodes=max_draft_nodes)
        if not isinstance(prompt, Tensor):
            raise ValueError(f"prompts must be a tensor, got a {type(prompt).__name__}")
        num_rows, length = prompt.shape[:2]
        if num_rows % self.rows_per_sequence:
            raise ValueError(f"prompts must come in {self.rows_per_sequence} rows a sequence, got {num_rows} rows")
        self.model = model
        self._config = model.config.get_text_config()
        self._longest_to_come = longest_prompt or 0
        longest = max(self._longest_to_come, length)
        _check_rotation(model, self._config, length, longest + max_new_tokens + max_draft_nodes)
        # The last position that a model has a vector for; None: positions are computed, and none is the last.
        self._last_position: int | None = None
        if positions is None:
            served = model if decoder is None else decoder
            self._last_position = _last_position(served, self._config, longest + max_new_tokens - 1)
        self._layer_kinds = _layer_kinds(model, self._config)
        self.prompt_mask = left_padded(attention_mask, num_rows, length)
        if position_ids is None:
            counted = torch.ones(num_rows, length, device=prompt.device).long()
            counted = counted if self.prompt_mask is None else self.prompt_mask.long()
            position_ids = (counted.cumsum(1) - 1).clamp(min=0)
        self._position_ids, self._axes = position_ids, position_ids.shape[:-2]
        # [R, 1]: the position after each prompt, alike on all axes; where positions go onwards from there.
        self._onward_from = position_ids.reshape(-1, *position_ids.shape[-2:]).amax((0, 2))[:, None] + 1
        self._given_positions = positions
        self._own_vocab_size = int(self._config.vocab_size)
        self.vocab_size = self._own_vocab_size if vocab_size is None else vocab_size
        if vocab_size is not None and input_ids is not None:
            prompt = input_ids.clamp(max=self._own_vocab_size - 1)  # another model's tokens, as in `_run_new`
        self._prompt = {"inputs_embeds" if input_ids is None else "input_ids": prompt}
        self.prompt_ids = input_ids
        self.batch_size = num_rows // self.rows_per_sequence
        self.device = prompt.device
        self.decoder, self.output_head, self.embed = decoder, output_head, embed
        # Now, not within a compiled pass.
        self._cache_name = cache_name(model if decoder is None or output_head is None else decoder)
        self.feature_layers: tuple[int, ...] = ()
        self.compiler: MakesGraphs | None = None
        self.fast: LlamaPass | None = None
        self.max_new_tokens, self.max_draft_nodes = max_new_tokens, max_draft_nodes
        self._num_rows = num_rows
        self._cache = SlotCache(type(model).__name__, int(self._config.num_hidden_layers), num_rows, kv_cache)
        self._num_new = 0  # tokens of the last forward
        self.prompt_length = length
        # [R]: where the tokens after the prompt begin. All rows have one number until they are given to other prompts.
        self._prompt_lengths = torch.full((num_rows,), length, device=prompt.device)

    @property
    def longest_prompt(self) -> int:
        """T of the longest prompt that rows have room for."""
        return max(self._longest_to_come, self.prompt_length)

    @property
    def _most_to_come(self) -> int:
        """The most committed tokens of a row."""
        return self.longest_prompt + self.max_new_tokens - 1

    @property
    def kv_cache(self) -> StaticKVCache | None:
        """Where keys and values lie."""
        return self._cache.static

    def compile(self, compiler: MakesGraphs | None, kv_cache: StaticKVCache | None = None) -> None:
        """Make steps with this target into graphs, from the next prefill on.

        Args:
            compiler: None: they run eagerly.
            kv_cache: of an earlier batch, used again if it fits, so that graphs of its sizes do.
        """
        self.compiler = compiler
        self._cache.offered = kv_cache

    def lay_out(self, prompt_length: int) -> None:
        """Empty the cache for prompts of at most so many tokens, whose last tokens lie in the same slot."""
        self.prompt_length = prompt_length
        self._prompt_lengths = torch.full((self._num_rows,), prompt_length, device=self.device)
        num_slots = self._most_to_come + self.max_draft_nodes
        if self.compiler is not None:
            num_slots = self.compiler.round_up(num_slots)  # so that prompts of similar lengths share a graph
        self._cache.start_prompt(prompt_length, num_slots)

    def finish_prompt(self, starts: Tensor | None) -> None:
        """End the prompts. Slots of row b before `starts[b]`, [R] int64, are empty; None: no slots are."""
        self._cache.finish_prompt(starts)
        self._cache.allocated().expect_from(self.prompt_length, self._most_to_come)
        self._num_new = 0

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Feed the prompts to an empty cache.

        Returns:
            Logits [B, 1, V] of the first token. Where there is a `decoder`, or there are `feature_layers`, hidden
            states [B, T, F] of the prompts, without meaning at padding; else None.

        Raises:
            ValueError: layers whose keys and values do not fit one cache, or a `kv_cache` that does not fit.
        """
        self.lay_out(self.prompt_length)
        mask = None if self.prompt_mask is None else self.prompt_mask.long()
        output = self.run(self._prompt, mask, self._position_ids, last_only=True)
        self.finish_prompt(None if mask is None else self.prompt_length - mask.sum(1))
        return self.combine(output)

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Judge new tokens; see `specdecode.roles.Target.forward`.

        Raises:
            ValueError: more tokens than the cache has room for: `max_draft_nodes`, or more while a row is short.
        """
        return self.combine(self._run_new(tokens, mask, depths, self._length_with(tokens.shape[1])))

    @torch.no_grad()
    def hidden_states_of(self, tokens: Tensor) -> Tensor:
        """[B, T + n, F]: hidden states of the prompts and of tokens [B, n] behind them. Needs a `decoder`.

        For training draft heads: they are the same as in decoding, `combine` included.
        """
        prompt = self.prefill()
        count = tokens.shape[1]
        chain = chain_layout(*tokens.shape, tokens.device)
        behind = self.combine(self._run_new(tokens, chain.mask, chain.depth, self._length_with(count), last_only=True))
        assert prompt.hidden_states is not None and behind.hidden_states is not None
        return torch.cat((prompt.hidden_states, behind.hidden_states), 1)

    def forced_logits(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits [k, n, V] of all of tokens [k, n], each given those before it; with gradients, and without the cache.

        Needs `embed` and a `decoder`.

        Args:
            tokens: what stands behind k prompts.
            rows: [k] int64, which of the R prompts these are.
        """
        assert self.embed is not None and self.decoder is not None
        fed = tokens[:, :-1]
        embeds = torch.cat((self._prompt["inputs_embeds"][rows], self.embed(fed)), 1)
        mask = None if self.prompt_mask is None else F.pad(self.prompt_mask[rows].long(), (0, fed.shape[1]), value=1)
        places = torch.arange(fed.shape[1], device=self.device).expand(self._num_rows, -1)
        positions = torch.cat((self._position_ids, self._positions(places)), -1)[..., rows, :]
        output = self.decoder(inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False)
        return self.logits(output.last_hidden_state[:, self.prompt_length - 1 :])

    def half_way(self, max_draft_nodes: int) -> TransformersTarget:
        """A copy with a cache of its own, in the middle of its rows, for timing passes."""
        probe = copy.copy(self)
        probe.max_draft_nodes = max_draft_nodes
        probe._cache = SlotCache(type(self.model).__name__, int(self._config.num_hidden_layers), self._num_rows)
        probe.prefill()
        half = (self.max_new_tokens - 1) // 2
        probe._cache.allocated().advance(half)  # the content of the slots does not change the time
        probe._cache.allocated().expect(half)
        return probe

    def _length_with(self, num_new: int) -> int:
        """Slots in use, with so many new tokens per row."""
        static = self._cache.allocated()
        if num_new > self.max_draft_nodes and num_new > static.max_length - static.most_committed:
            raise ValueError(f"tokens must be at most max_draft_nodes ({self.max_draft_nodes}) per row, got {num_new}")
        self._num_new = num_new
        return reach(static, num_new)

    def check_places(self, num_slots: int) -> None:
        """See `specdecode.roles.PlacedTarget`. Raises ValueError for layers with windows, too."""
        if any(_WINDOWS[kind] for kind in self._layer_kinds):
            raise ValueError(
                f"{type(self.model).__name__} takes no places: some of its layers see the last tokens alone"
            )
        room = self._cache.allocated().max_length - self.longest_prompt
        if num_slots > room:
            raise ValueError(f"num_slots must be at most {room}, the cache's room behind the prompt, got {num_slots}")

    @torch.no_grad()
    def forward_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        """Feed tokens [B, n] at explicit places; see `specdecode.roles.PlacedTarget`.

        The cache's lengths stay those of the prompts.
        """
        return self.combine(self._run_places(tokens, placed))

    def _run_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        """`forward_places` of all rows, not yet combined."""
        static, num_rows = self._cache.allocated(), len(tokens) * self.rows_per_sequence
        positions, slots, visible = (
            self._for_all_rows(each) if len(each) > 1 else each.expand(num_rows, *each.shape[1:])
            for each in (placed.positions, placed.slots, placed.visible)
        )
        kv_length = reach(static, visible.shape[2])
        self._cache.start_slots(static.lengths[:, None] + slots, kv_length)
        masks = self._masks(static, visible, positions, kv_length)
        return self.run(self._inputs(self._for_all_rows(tokens)), masks, self._positions(positions))

    def _inputs(self, tokens: Tensor) -> dict[str, Tensor]:
        """What the model is fed for tokens [R, n]."""
        if self.embed is None:
            return {"input_ids": tokens.clamp(max=self._own_vocab_size - 1)}
        return {"inputs_embeds": self.embed(tokens)}

    def _run_new(
        self, tokens: Tensor, mask: Tensor, depths: Tensor, kv_length: int, last_only: bool = False
    ) -> TargetOutput:
        tokens, mask, depths = (self._for_all_rows(value) for value in (tokens, mask, depths))
        static = self._cache.allocated()
        self._cache.start_tokens(tokens.shape[1], kv_length)
        places = (static.lengths - self._prompt_lengths)[:, None] + depths  # [R, n]
        if self.fast is not None and not last_only and not in_graph():
            fed = tokens.clamp(max=self._own_vocab_size - 1)
            found = self.fast.run(fed, mask, self._positions(places), static, self.feature_layers)
            if found is not None:
                states, logits = found
                return TargetOutput(self._fitted(logits), states if self.feature_layers else None)
        masks = self._masks(static, mask, depths, kv_length)
        return self.run(self._inputs(tokens), masks, self._positions(places), last_only)

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Keep tokens of the last forward; see `specdecode.roles.Target.commit`."""
        static, counts = self._cache.allocated(), self._for_all_rows(counts)
        if node_indices is None:
            static.advance(counts)
        else:
            static.keep(self._for_all_rows(node_indices), counts)
        num_kept = self._num_new if node_indices is None else node_indices.shape[1]
        static.expect(num_kept)

    def replace_rows(self, rows: Tensor, other: TransformersTarget) -> None:
        """See `specdecode.roles.RowReplacing`.

        Raises:
            ValueError: `positions` was given, which belongs to particular prompts; or a prompt is longer than
                `longest_prompt`.
        """
        if self._given_positions is not None or other._given_positions is not None:
            raise ValueError("rows cannot be given to other prompts where positions are given; decode in fixed batches")
        if other.prompt_length > self.longest_prompt:
            raise ValueError(
                f"prompts must be at most longest_prompt ({self.longest_prompt}), got {other.prompt_length}"
            )
        rows = torch.cat([rows + kind * self.batch_size for kind in range(self.rows_per_sequence)])
        theirs = other._cache.allocated()
        self._cache.allocated().replace_rows(rows, theirs, theirs.most_committed)
        self._prompt_lengths.index_copy_(0, rows, other._prompt_lengths)
        self._onward_from = self._onward_from.index_copy(0, rows, other._onward_from)

    def _positions(self, places: Tensor) -> Tensor:
        """Position ids [R, n] or [A, R, n] of places [R, n] after the prompt."""
        if self._given_positions is not None:
            return self._given_positions(places)
        onward = self._onward_from + places
        if self._last_position is not None:
            onward = onward.clamp(max=self._last_position)  # drafts beyond the last token, which nobody keeps
        return onward.expand(*self._axes, -1, -1)

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[b]` committed tokens of row b; [B] int64."""
        self._cache.allocated().advance(-self._for_all_rows(counts))

    def run(self, inputs: dict[str, Tensor], mask: Any, positions: Tensor, last_only: bool = False) -> TargetOutput:
        """One forward pass of the model.

        Args:
            inputs: "input_ids" [R, n] or "inputs_embeds" [R, n, dim].
            mask: the model's `attention_mask`: for a prompt [R, n] or None, else additive.
            positions: [R, n] or [A, R, n].
            last_only: logits of the last token only.

        Returns:
            Logits [R, n or 1, V]; and hidden states [R, n, F] where there is a `decoder`, or there are
            `feature_layers`. F = dim for each layer.

        Raises:
            ValueError: the model gives no hidden states of its layers.
        """
        arguments = {"attention_mask": mask, "position_ids": positions, self._cache_name: self._cache}
        if self.feature_layers:
            arguments["output_hidden_states"] = True
        if self.decoder is None or self.output_head is None:
            kept = {"logits_to_keep": 1} if last_only and takes(self.model, "logits_to_keep") else {}
            output = self.model(**inputs, **arguments, **kept, use_cache=True)
            logits = output.logits[:, -1:] if last_only else output.logits
            return TargetOutput(self._fitted(logits), self._features(output))
        output = self.decoder(**inputs, **arguments, use_cache=True)
        hidden_states = output.last_hidden_state
        features = self._features(output) if self.feature_layers else hidden_states
        return TargetOutput(self.logits(hidden_states[:, -1:] if last_only else hidden_states), features)

    def _features(self, output: Any) -> Tensor | None:
        """[R, n, F]: hidden states after `feature_layers`, side by side; None where there are no such layers."""
        if not self.feature_layers:
            return None
        states = getattr(output, "hidden_states", None)
        if states is None or len(states) <= self.feature_layers[-1]:
            raise ValueError(f"{type(self.model).__name__} gives no hidden states of its layers, which a head reads")
        return torch.cat([states[layer] for layer in self.feature_layers], dim=-1)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Logits [R, n, V] float32 of hidden states [R, n, dim], guessed ones too. Needs a `decoder`."""
        assert self.output_head is not None
        return self._fitted(self.output_head(hidden_states))

    def _fitted(self, logits: Tensor) -> Tensor:
        """Logits of V tokens, float32."""
        if missing := self.vocab_size - logits.shape[-1]:
            logits = F.pad(logits, (0, missing), value=-torch.inf)  # a negative number cuts off
        return logits.float()

    def combine(self, output: TargetOutput) -> TargetOutput:
        """The output of B sequences, of that of R rows."""
        return output

    def _for_all_rows(self, value: Tensor) -> Tensor:
        """[B, ...] to [R, ...]: every row of a sequence is fed the same."""
        return value if self.rows_per_sequence == 1 else torch.cat([value] * self.rows_per_sequence)

    def _masks(
        self, static: StaticKVCache, mask: Tensor, depths: Tensor, kv_length: int | None
    ) -> Tensor | dict[str, Tensor]:
        """The additive mask [R, 1, n, S]; a dictionary by kind of layer, where there are several kinds."""
        visible = static.attention_mask(mask, kv_length)
        masks = {}
        for kind in self._layer_kinds:
            seen = visible
            if _WINDOWS[kind]:
                near = static.distances(depths, kv_length) < self._config.sliding_window
                seen = visible & near[:, None]
            nothing = torch.zeros_like(seen, dtype=static.dtype)
            masks[kind] = nothing.masked_fill_(~seen, torch.finfo(nothing.dtype).min)
        return masks if len(masks) > 1 else masks[self._layer_kinds[0]]


class SlotCache(Cache):
    """transformers' interface to a `StaticKVCache`: attention layers write to its slots and read from them.

    The cache is allocated at the first write of the first prompt, which shows the sizes of keys and values.

    Attributes:
        offered: a cache to use instead of a new one if it fits.
        row: the row whose prompt the next pass feeds; None: all rows.

    Args:
        name: of the model, for errors.
        num_layers, num_rows: of the cache.
        static: a cache to use again; None: a new one.
    """

    graph_state = ("static",)

    def __init__(self, name: str, num_layers: int, num_rows: int, static: StaticKVCache | None = None) -> None:
        super().__init__(layers=[])
        self._name, self._num_layers, self._num_rows = name, num_layers, num_rows
        self.static = static
        self.offered: StaticKVCache | None = None
        self.row: int | None = None
        self._slots: Tensor | None = None  # [R * n], where the tokens of this pass are written
        self._kv_length: int | None = None  # how many slots attention reads; None: all
        self._num_before = 0  # of those, the ones before this pass
        self._is_prompt = True
        self._end = self._num_slots = 0

    def allocated(self) -> StaticKVCache:
        """The cache. Raises ValueError before the prefill."""
        if self.static is None or self._is_prompt:
            raise ValueError("the target must have been prefilled first: its cache is empty")
        return self.static

    def start_prompt(self, end: int, num_slots: int) -> None:
        """Empty the cache for prompts, whose last tokens lie before slot `end` of `num_slots` per row."""
        if self.static is not None:
            self.static.reset()
        self.row = None
        self._end, self._num_slots = end, num_slots
        self._num_before, self._is_prompt = 0, True

    def finish_prompt(self, starts: Tensor | None) -> None:
        """See `TransformersTarget.finish_prompt`."""
        self._is_prompt = False
        static = self.allocated()
        static.advance(self._end)
        # Always there, so that one graph serves rows with and without padding.
        static.starts = torch.zeros_like(static.lengths) if starts is None else starts

    def continue_prompt(self) -> None:
        """Go on behind prompts that `static` holds already."""
        self._is_prompt = False

    def start_tokens(self, num_new: int, kv_length: int | None, num_fed: int | None = None) -> None:
        """Prepare for new tokens.

        Args:
            num_new: per row, behind the committed ones.
            kv_length: see `StaticKVCache.update`.
            num_fed: how many of them are fed now, the last ones; None: all.
        """
        slots = self.allocated().new_slots(num_new)[:, num_new - (num_new if num_fed is None else num_fed) :]
        self.start_slots(slots, kv_length)

    def start_slots(self, slots: Tensor, kv_length: int | None) -> None:
        """Prepare for new tokens in slots [R, n] int64; `kv_length` as for `start_tokens`."""
        static = self.allocated()
        self._slots, self._kv_length = static.flatten_slots(slots), kv_length
        self._num_before = (static.max_length if kv_length is None else kv_length) - slots.shape[1]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer: new keys and values [R, H, n, D]. Returns those to read, [R, H, S, D]."""
        if self._is_prompt:
            self._check(key_states, value_states, layer_idx)
        static, slots = self.static, self._slots
        assert static is not None
        width, padded = value_states.shape[-1], value_states
        if width < key_states.shape[-1]:  # latent attention: keys carry positions beside what values carry
            padded = F.pad(value_states, (0, key_states.shape[-1] - width))
        if self._is_prompt:  # it sees nothing but itself
            static.update(layer_idx, key_states, padded, self._slots_of_prompt(static, key_states.shape[2]))
            return key_states, value_states
        assert slots is not None
        keys, values = static.update(layer_idx, key_states, padded, slots, self._kv_length)
        values = values[..., :width]
        return (keys.contiguous(), values.contiguous()) if self._name in _VIEW_KEYS else (keys, values)

    def prompt_keys(self, layer: int, length: int) -> Tensor:
        """[1, H, length, D]: a layer's keys of the prompt of one row."""
        assert self.static is not None
        return self.static.keys[layer][self.row, None, :, self._end - length : self._end]

    def _slots_of_prompt(self, static: StaticKVCache, length: int) -> Tensor:
        """The last `length` slots before the prompts' end, of one row or all."""
        slots = static.flatten_slots(torch.arange(self._end - length, self._end, device=static.device)[None])
        return slots if self.row is None else slots.view(-1, length)[self.row]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Slots before this pass; 0 before a prompt."""
        return self._num_before

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """How many slots attention reads, and their first."""
        return self._num_before + query_length, 0

    def _check(self, key: Tensor, value: Tensor, layer: int) -> None:
        """Allocate for the first layer of a prompt; the others must be like it."""
        num_rows, num_heads, head_dim = len(key) if self.row is None else self._num_rows, key.shape[1], key.shape[3]
        sizes: dict[str, Any] = {"batch_size": num_rows, "num_heads": num_heads, "head_dim": head_dim}
        sizes |= {"dtype": key.dtype, "device": key.device}
        offered = None if self.static is not None else self.offered
        if offered is not None and offered.fits(self._num_slots, num_layers=self._num_layers, **sizes):
            self.static, self.offered = offered, None
            offered.reset()
        if self.static is None:
            self.static = StaticKVCache(self._num_layers, max_length=self._num_slots, **sizes)
        static = self.static
        is_alike = static.fits(0, **sizes)
        has_room = static.num_layers >= self._num_layers and static.max_length >= self._num_slots
        if layer == 0 and not (is_alike and has_room):
            raise ValueError(
                f"kv_cache must fit {self._num_layers} layers and {num_rows} rows of {self._num_slots} slots, with "
                f"{num_heads} heads of {head_dim} in {key.dtype} on {key.device}; leave it out for a new one"
            )
        if not is_alike or value.shape[:3] != key.shape[:3] or value.shape[3] > head_dim:
            raise ValueError(
                f"{self._name} cannot be served: layer {layer} makes keys {list(key.shape)} and values "
                f"{list(value.shape)} on {key.device}; one cache holds layers alike, here with {static.num_heads} "
                f"heads of {static.head_dim} on {static.device}"
            )


def reach(static: StaticKVCache, num_new: int) -> int:
    """`StaticKVCache.reach`, as near as a look at the lengths tells where that costs nothing."""
    return min(ragged.at_most(static.lengths, static.max_length) + num_new, static.reach(num_new))


def check_model(model: Any, decoder: Callable[..., Any] | None = None) -> None:
    """Raises ValueError, with the reason, for an architecture that cannot judge tokens in trees, and what is no model.

    Args:
        model, decoder: see `TransformersTarget`.
    """
    if not callable(model) or not hasattr(getattr(model, "config", None), "get_text_config"):
        remedy = (
            "; give its .module" if isinstance(getattr(model, "module", None), torch.nn.Module) else ""
        )  # DataParallel
        raise ValueError(f"model must be a causal language model of transformers, got {shown(model)}{remedy}")
    config = model.config.get_text_config()
    name, served = type(model).__name__, decoder or model
    if hasattr(model, "get_base_model"):  # PEFT's wrapper, whose own forward hides the model's
        raise ValueError(f"{name} cannot be served; give its get_base_model(), whose layers have the adapter")
    reasons = {
        "it is an encoder-decoder": bool(getattr(config, "is_encoder_decoder", False)),
        "its layers keep a running state instead of keys and values": bool(getattr(model, "_is_stateful", False)),
        "its forward takes no position_ids": not takes(served, "position_ids"),
        "its forward takes no keys and values of earlier tokens": not takes(served, cache_name(served)),
        "its keys and values lie in a dictionary of its own": takes(served, "langs"),  # XLM and Flaubert
        "its attention is in chunks": getattr(config, "attention_chunk_size", None) is not None,
        "its positions are biases by place in the cache (alibi)": bool(getattr(config, "alibi", False)),
        "its layers hide keys by their order in the cache, where draft tokens stand in trees": any(
            buffer.dtype == torch.bool and buffer.ndim == 4 for buffer in getattr(served, "buffers", tuple)()
        ),
    }
    for kind in dict.fromkeys(getattr(config, "layer_types", None) or ()):
        reasons[f"its layers of kind {kind!r} are none of {', '.join(_WINDOWS)}"] = kind not in _WINDOWS
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"{name} cannot be served: {reason}")
    if (kernel := getattr(config, "_attn_implementation", "eager")) not in ("eager", "sdpa", GROUPED_ATTENTION):
        raise ValueError(
            f"{name} must attend by 'sdpa' or 'eager', which read masks of trees, not by {kernel!r}; call "
            f"model.set_attn_implementation('sdpa')"
        )
    if getattr(model, "training", False):
        raise ValueError(f"{name} must be in evaluation mode; call model.eval()")


def _check_rotation(model: Any, config: Any, prompt_length: int, end: int) -> None:
    """Raises ValueError where the frequencies of rotary positions would change before position `end`.

    They depend on the greatest position of a pass, which a draft changes.
    """
    given = getattr(config, "rope_parameters", None) or {}
    for parameters in (given, *(value for value in given.values() if isinstance(value, dict))):
        kind = parameters.get("rope_type")
        limit = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
        changes = kind == "dynamic" or (kind == "longrope" and prompt_length <= limit)
        if changes and end > limit:
            raise ValueError(
                f"{type(model).__name__} cannot be served beyond {limit} tokens, got up to {end}: the frequencies of "
                f"its {kind!r} positions change on the way; shorten the prompt or max_new_tokens"
            )


def _last_position(model: Any, config: Any, fed: int) -> int | None:
    """The last position of a model that has a vector for each one (GPT-2, OPT). Raises ValueError where it has none for
    the last of `fed` tokens; the last token that is drawn is never fed."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or not isinstance(model, torch.nn.Module):
        return None
    for name, module in model.named_modules():
        is_table = isinstance(module, torch.nn.Embedding) and 0 <= module.num_embeddings - limit <= _POSITIONS_OFFSET
        if is_table and (name.endswith("wpe") or "position" in name):
            if fed > limit:
                raise ValueError(
                    f"{type(model).__name__} has {limit} positions: a prompt and max_new_tokens may be {limit + 1} "
                    f"together, got {fed + 1}; give fewer"
                )
            return int(limit) - 1
    return None


def _layer_kinds(model: Any, config: Any) -> tuple[str, ...]:
    """The kinds of layers a model has."""
    if kinds := getattr(config, "layer_types", None):
        return tuple(dict.fromkeys(kinds))
    return ("full_attention",) if getattr(config, "sliding_window", None) is None else ("sliding_attention",)


def left_padded(attention_mask: Tensor | None, num_rows: int, length: int) -> Tensor | None:
    """[R, T] bool; None where nothing is padded. Waits for the device, once a batch.

    Raises:
        ValueError: another shape, an empty row, or padding that is not on the left.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor) or attention_mask.shape != (num_rows, length):
        got = list(attention_mask.shape) if isinstance(attention_mask, Tensor) else f"a {type(attention_mask).__name__}"
        raise ValueError(f"attention_mask must be [{num_rows}, {length}], got {got}")
    mask = attention_mask.bool()
    if bool(mask.all()):
        return None
    if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
        raise ValueError(
            "attention_mask must be 0 at padding on the left and 1 at every token after it; pad with "
            "tokenizer.padding_side = 'left'"
        )
    return mask
