"""A Video-LLM of transformers, unmodified, in the roles of Target and of a draft model.

Belongs here: its cache, its masks and its positions. Does not belong here: what a video is (`request.py`), which tokens
a drafter may see (`pruning.py`).

The cache is transformers' `DynamicCache`. It holds every committed token of the sequence but the newest, which is drawn
and not yet fed. After a forward the accepted nodes' entries are moved behind the committed ones and the rest is cut
off; cropping is by a negative number throughout, since a positive one changed its meaning between releases. One
sequence at a time, and its length is known on the host: the library's cache asks for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from specdecode.roles import TargetOutput
from specdecode.video.request import VideoRequest


class VideoTarget:
    """`specdecode.roles.Target` over one request; also `specdecode.drafters.draft_model.DraftModel`.

    Args:
        model: transformers' `Qwen2_5_VLForConditionalGeneration` or `LlavaOnevisionForConditionalGeneration`.
        request: the prompt, whole or with visual tokens left out.
        capture_layers: hidden states after so many decoder layers are kept from the prefill; 0 are the embeddings.
        vocab_size: of the logits that are compared; None for the model's own. Models of one family pad theirs
            differently, and the shorter one decides.

    Attributes:
        visual_hidden_states: [m, dim] of the prefill, final hidden states at the visual tokens; no logits are made of
            them.
        captured: by layer, [T, dim] of the prefill.

    Raises:
        ValueError: a layer that the model has not, or a vocabulary larger than the model's.
    """

    batch_size = 1

    def __init__(
        self, model: Any, request: VideoRequest, capture_layers: Sequence[int] = (), vocab_size: int | None = None
    ) -> None:
        self.model = model
        self.request = request
        self.language_model = model.model.language_model
        own = int(model.config.get_text_config().vocab_size)
        if vocab_size is not None and not 0 < vocab_size <= own:
            raise ValueError(f"vocab_size must be at most the model's {own}, got {vocab_size}")
        self.vocab_size = own if vocab_size is None else vocab_size
        num_layers = len(self.language_model.layers)
        for layer in capture_layers:
            if not 0 <= layer <= num_layers:
                raise ValueError(f"capture_layers must lie between 0 and the model's {num_layers} layers, got {layer}")
        self.capture_layers = tuple(capture_layers)
        self.captured: dict[int, Tensor] = {}
        self.visual_hidden_states: Tensor | None = None
        self._cache = DynamicCache(config=model.config.get_text_config())
        self._length = 0  # tokens in the cache that are committed
        self._num_new = 0  # tokens of the last forward, behind them
        self.forward_passes = 0

    @property
    def device(self) -> torch.device:
        """Where tokens and logits lie."""
        return self.request.inputs_embeds.device

    @property
    def committed(self) -> int:
        """Generated tokens in the cache."""
        return self._length - self.request.input_ids.shape[1]

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Feed the prompt to an empty cache. Logits [1, 1, V] of the first token; hidden states [1, T, dim]."""
        request = self.request
        self._cache = DynamicCache(config=self.model.config.get_text_config())
        hidden_states = self._run(request.inputs_embeds, None, request.position_ids, capture=True)
        self._length, self._num_new = request.input_ids.shape[1], 0
        self._check_length()
        self.visual_hidden_states = hidden_states[0, request.is_visual]
        return TargetOutput(self._logits(hidden_states[:, -1:]), hidden_states)

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Judge new tokens; see `specdecode.roles.Target.forward`.

        Args:
            tokens: [1, n] int64. mask: [1, n, n] bool. depths: [1, n] int64.
        """
        num_new = tokens.shape[1]
        embeds = self.model.get_input_embeddings()(tokens)
        before = torch.ones(1, num_new, self._length, dtype=torch.bool, device=tokens.device)
        positions = self.request.next_position + self.committed + depths  # [1, n]
        positions = positions.expand(self.request.position_ids.shape[0], 1, -1)
        self._num_new = num_new
        hidden_states = self._run(embeds, torch.cat((before, mask), dim=2)[:, None], positions)
        return TargetOutput(self._logits(hidden_states), hidden_states)

    def commit(self, node_indices: Tensor, counts: Tensor) -> None:
        """Keep tokens of the last forward; see `specdecode.roles.Target.commit`."""
        count = int(counts[0])
        kept = node_indices[0, :count]
        if torch.equal(kept, torch.arange(count, device=kept.device)):
            self._drop(self._num_new - count)  # a chain lies where it belongs
        else:
            self._move(kept + self._length)
        self._length += count
        self._num_new = 0
        self._check_length()

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[0]` committed tokens."""
        count = int(counts[0])
        self._drop(count)
        self._length -= count
        self._check_length()

    def _run(self, embeds: Tensor, mask: Tensor | None, positions: Tensor, capture: bool = False) -> Tensor:
        """Hidden states [1, n, dim] after the final norm.

        Args:
            embeds: [1, n, dim]. mask: [1, 1, n, cached + n] bool; None for a prompt. positions: [A, 1, n].
        """
        self.forward_passes += 1
        wanted = self.capture_layers if capture else ()
        handles = [
            self.language_model.layers[layer - 1].register_forward_hook(self._keeper(layer))
            for layer in wanted
            if layer
        ]
        if 0 in wanted:
            self.captured[0] = embeds[0]
        try:
            output = self.language_model(
                inputs_embeds=embeds,
                attention_mask=mask,
                position_ids=positions if len(positions) > 1 else positions[0],
                past_key_values=self._cache,
                use_cache=True,
            )
        finally:
            for handle in handles:
                handle.remove()
        return output.last_hidden_state

    def _keeper(self, layer: int) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            self.captured[layer] = (output if isinstance(output, Tensor) else output[0])[0]

        return keep

    def _logits(self, hidden_states: Tensor) -> Tensor:
        return self.model.lm_head(hidden_states)[..., : self.vocab_size].float()

    def _drop(self, count: int) -> None:
        """Cut off the last entries of the cache."""
        if count:
            self._cache.crop(-count)

    def _move(self, sources: Tensor) -> None:
        """Put the entries `sources` [k] behind the committed ones, and cut off the rest."""
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                entries = getattr(layer, name)  # [1, heads, length, dim]
                kept = (entries[:, :, : self._length], entries.index_select(2, sources))
                setattr(layer, name, torch.cat(kept, dim=2))

    def _check_length(self) -> None:
        length = int(self._cache.get_seq_length())
        if length != self._length + self._num_new:
            raise RuntimeError(f"the cache holds {length} tokens, not {self._length + self._num_new}")
