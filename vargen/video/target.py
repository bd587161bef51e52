"""A Video-LLM of transformers, unmodified, in the roles of Target and of a draft model.

Belongs here: its cache, its masks and its positions. Does not belong here: what a video is (`request.py`), which tokens
a drafter may see (`pruning.py`).

The cache is transformers' `DynamicCache`. It holds every committed token of the sequence but the newest, which is drawn
and not yet fed. After a forward the accepted nodes' entries are moved behind the committed ones and the rest is cut
off; cropping is by a negative number throughout, since a positive one changed its meaning between releases. One
sequence at a time, and its length is known on the host: the library's cache asks for that.

Layers may hold different parts of the prompt (`lossy_targets.py`, `sparse_cache.py`), so whatever is cut or moved is
counted from the end, and positions are counted from the request, never from the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache

from specdecode.roles import TargetOutput
from vargen.video.attention import watch_attention
from vargen.video.request import VideoRequest


class VideoTarget:
    """`specdecode.roles.Target` over one request; also `specdecode.drafters.draft_model.DraftModel`.

    Args:
        model: transformers' `Qwen2_5_VLForConditionalGeneration` or `LlavaOnevisionForConditionalGeneration`.
        request: the prompt, whole or with visual tokens left out.
        capture_layers: hidden states after so many decoder layers are kept from the prefill; 0 are the embeddings.
        capture_attention: keep from the prefill what attention the text after the video pays to the video.
        vocab_size: of the logits that are compared; None for the model's own. Models of one family pad theirs
            differently, and the shorter one decides.
        on_layer: called during the prefill with the hidden states [T, dim] after so many decoder layers, as soon as
            they are there. It must not wait for the device.

    Attributes:
        visual_hidden_states: [m, dim] of the prefill, final hidden states at the visual tokens; no logits are made of
            them.
        captured: by layer, [T, dim] of the prefill.
        visual_attention: for every layer [kv_heads, m] float32: how much attention the tokens after the video pay to
            each visual token, the mean over those tokens, summed over the heads that share a key. See
            `video_attention`.
        prompt_logits: [1, 1, V] of the prefill.
        prompt_places: for every layer [T'] int64, ascending: the tokens of the prompt that it has cached; here all T.

    Raises:
        ValueError: a layer that the model has not, or a vocabulary larger than the model's.
    """

    batch_size = 1
    flops: int | None = None
    """Nobody counts them."""

    def __init__(
        self,
        model: Any,
        request: VideoRequest,
        capture_layers: Sequence[int] = (),
        vocab_size: int | None = None,
        capture_attention: bool = False,
        on_layer: Mapping[int, Callable[[Tensor], None]] | None = None,
    ) -> None:
        self.model = model
        self.request = request
        self.language_model = model.model.language_model
        own = int(model.config.get_text_config().vocab_size)
        if vocab_size is not None and not 0 < vocab_size <= own:
            raise ValueError(f"vocab_size must be at most the model's {own}, got {vocab_size}")
        self.vocab_size = own if vocab_size is None else vocab_size
        num_layers = len(self.language_model.layers)
        self.on_layer = dict(on_layer or {})
        for name, layers in (("capture_layers", capture_layers), ("on_layer", self.on_layer)):
            for layer in layers:
                if not 0 <= layer <= num_layers:
                    raise ValueError(f"{name} must lie between 0 and the model's {num_layers} layers, got {layer}")
        self.capture_layers = tuple(capture_layers)
        self.captured: dict[int, Tensor] = {}
        self.capture_attention = capture_attention
        self.visual_attention: tuple[Tensor, ...] = ()
        self.visual_hidden_states: Tensor | None = None
        self.prompt_logits: Tensor | None = None
        self.prompt_places: list[Tensor] = []
        self._cache: Any = DynamicCache(config=model.config.get_text_config())
        self._prompt_lengths: tuple[int, ...] = ()  # tokens of the prompt in the cache, layer by layer
        self._committed = 0  # generated tokens behind them
        self._num_new = 0  # tokens of the last forward, behind those
        self.forward_passes = 0

    @property
    def device(self) -> torch.device:
        """Where tokens and logits lie."""
        return self.request.inputs_embeds.device

    @property
    def committed(self) -> int:
        """Generated tokens in the cache."""
        return self._committed

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Feed the prompt to an empty cache. Logits [1, 1, V] of the first token; hidden states [1, T, dim].

        Raises:
            ValueError: attention is to be captured, and there is no text after the video.
        """
        request = self.request
        self._cache = DynamicCache(config=self.model.config.get_text_config())
        every_place = torch.arange(request.input_ids.shape[1], device=self.device)
        self.prompt_places = [every_place] * len(self.language_model.layers)
        self._reached(0, request.inputs_embeds[0])
        hidden_states = self._run(request.inputs_embeds, None, request.position_ids, of_prompt=True)
        self._start_after([len(places) for places in self.prompt_places])
        self.visual_hidden_states = hidden_states[0, request.is_visual[self.prompt_places[-1]]]
        self.prompt_logits = self._logits(hidden_states[:, -1:])
        return TargetOutput(self.prompt_logits, hidden_states)

    def captured_attention(self) -> tuple[Tensor, ...]:
        """`visual_attention`, for each layer [kv_heads, m]. Raises ValueError where nothing was captured."""
        if not self.visual_attention:
            raise ValueError("target has captured no attention: make it with capture_attention=True, and prefill it")
        return self.visual_attention

    def video_attention(self) -> Tensor:
        """[m] float32: SpecVLM's score of each visual token (arXiv 2508.16201).

        The attention weight that a token of the text after the video gives it, a mean over these tokens, all heads and
        all layers.

        Raises:
            ValueError: nothing was captured.
        """
        num_heads = int(self.model.config.get_text_config().num_attention_heads)
        return torch.stack([layer.sum(0) for layer in self.captured_attention()]).mean(0) / num_heads

    def prompt_cache(self) -> list[tuple[Tensor, Tensor]]:
        """For every layer, keys and values [1, kv_heads, T, head_dim] of the prompt.

        Raises:
            ValueError: before the prefill.
        """
        if not self._prompt_lengths:
            raise ValueError("target must have been prefilled: its cache is empty")
        lengths = zip(self._cache.layers, self._prompt_lengths, strict=True)
        return [(layer.keys[:, :, :length], layer.values[:, :, :length]) for layer, length in lengths]

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """Judge new tokens; see `specdecode.roles.Target.forward`.

        Args:
            tokens: [1, n] int64. mask: [1, n, n] bool. depths: [1, n] int64.
        """
        num_new = tokens.shape[1]
        embeds = self.model.get_input_embeddings()(tokens)
        num_before = max(self._prompt_lengths) + self.committed
        before = torch.ones(1, num_new, num_before, dtype=torch.bool, device=tokens.device)
        positions = self.request.next_position + self.committed + depths  # [1, n]
        positions = positions.expand(self.request.position_ids.shape[0], 1, -1)
        self._num_new = num_new
        hidden_states = self._run(embeds, _additive(torch.cat((before, mask), dim=2), embeds.dtype)[:, None], positions)
        return TargetOutput(self._logits(hidden_states), hidden_states)

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        """Keep tokens of the last forward; see `specdecode.roles.Target.commit`."""
        count = int(counts[0])
        if node_indices is None or torch.equal(node_indices[0, :count], torch.arange(count, device=counts.device)):
            self._drop(self._num_new - count)  # a chain lies where it belongs
        else:
            self._move(node_indices[0, :count])
        self._committed += count
        self._num_new = 0
        self._check_length()

    def rewind(self, counts: Tensor) -> None:
        """Forget the last `counts[0]` committed tokens."""
        count = int(counts[0])
        self._drop(count)
        self._committed -= count
        self._check_length()

    def _start_after(self, prompt_lengths: Sequence[int]) -> None:
        """The cache holds so many tokens of the prompt in each layer, and nothing else."""
        self._prompt_lengths, self._committed, self._num_new = tuple(prompt_lengths), 0, 0
        self._check_length()

    def _run(self, embeds: Tensor, mask: Tensor | None, positions: Tensor, of_prompt: bool = False) -> Tensor:
        """Hidden states [1, n, dim] after the final norm.

        Args:
            embeds: [1, n, dim]. mask: [1, 1, n, cached + n] additive; None for a prompt. positions: [A, 1, n].
        """
        self.forward_passes += 1
        handles = self._hooks(of_prompt)
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

    def _hooks(self, of_prompt: bool) -> list[RemovableHandle]:
        """What looks at the next pass, or takes part in it."""
        if not of_prompt:
            return []
        layers = self.language_model.layers
        watched = {*self.capture_layers, *self.on_layer} - {0}
        handles = [layers[layer - 1].register_forward_hook(self._keeper(layer)) for layer in watched]
        if self.capture_attention:
            self.visual_attention = ()
            rows = self.request.question_places
            handles += [
                watch_attention(layer.self_attn, self._cache, lambda: rows, self._keep_attention) for layer in layers
            ]
        return handles

    def _keep_attention(self, attention: Tensor) -> None:
        """Of one layer: [heads, T]."""
        of_video = attention[:, self.request.is_visual]  # [heads, m]
        num_kv_heads = self._cache.layers[0].keys.shape[1]
        self.visual_attention += (of_video.unflatten(0, (num_kv_heads, -1)).sum(1),)

    def _keeper(self, layer: int) -> Any:
        prefilling = threading.get_ident()

        def keep(module: Any, inputs: Any, output: Any) -> None:
            # A drafter of the same weights may run through the same layers from another thread meanwhile.
            if threading.get_ident() == prefilling:
                self._reached(layer, (output if isinstance(output, Tensor) else output[0])[0])

        return keep

    def _reached(self, layer: int, states: Tensor) -> None:
        """Hidden states [T, dim] of the prompt after `layer` layers are there."""
        if layer in self.capture_layers:
            self.captured[layer] = states
        if layer in self.on_layer:
            self.on_layer[layer](states)

    def _logits(self, hidden_states: Tensor) -> Tensor:
        return self.model.lm_head(hidden_states)[..., : self.vocab_size].float()

    def _drop(self, count: int) -> None:
        """Cut off the last entries of the cache."""
        if count:
            self._cache.crop(-count)

    def _move(self, sources: Tensor) -> None:
        """Put the new entries `sources` [k] behind the committed ones, and cut off the rest."""
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                entries = getattr(layer, name)  # [1, heads, length, dim]
                num_before = entries.shape[2] - self._num_new
                kept = (entries[:, :, :num_before], entries.index_select(2, sources + num_before))
                setattr(layer, name, torch.cat(kept, dim=2))

    def _check_length(self) -> None:
        behind = self._committed + self._num_new
        for number, (layer, prompt_length) in enumerate(zip(self._cache.layers, self._prompt_lengths, strict=True)):
            if (length := int(layer.get_seq_length())) != prompt_length + behind:
                raise RuntimeError(f"layer {number} of the cache holds {length} tokens, not {prompt_length + behind}")


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `mask` is True, else minus infinity: all attention kernels read this; eager would add a bool as a 1."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
