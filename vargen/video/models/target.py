"""A Video-LLM of transformers, unmodified, in the roles of Target and of a draft model.

Belongs here: feeding prompts, and hidden states and attention that are read on their way through the layers. Does not
belong here: videos (`request.py`), which tokens a drafter may see (`pruning.py`), caches, masks and trees, which are
those of any language model (`specdecode.targets.transformers`).

Prompts are long and of different lengths, so each is fed alone, without padding: the fastest kernels need no mask, and
the states of a prompt do not depend on its neighbours. From then on all rows go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from specdecode.roles import TargetOutput
from specdecode.targets.arguments import cache_among
from specdecode.targets.repetition import RepetitionPenalty
from specdecode.targets.transformers import TransformersTarget
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.attention import watch_attention
from vargen.video.models.request import VideoRequest


@dataclass
class SeenPrompt:
    """What was seen of a prompt of T tokens while it was fed, m of them visual.

    Attributes:
        request: the prompt.
        captured: by layer, hidden states [T, dim], as the next layer reads them.
        attention: for every layer [kv_heads, m] float32: how much attention the tokens after the video pay to each
            visual token, the mean over those tokens, summed over the heads that share a key.
        hidden_states: [T, dim], those that the target gives: final ones, or after `states_after` layers.
        logits: [1, V] after the last token.
    """

    request: VideoRequest
    captured: dict[int, Tensor] = field(default_factory=dict)
    attention: list[Tensor] = field(default_factory=list)
    hidden_states: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))

    @cached_property
    def visual_hidden_states(self) -> Tensor:
        """[m, dim], `hidden_states` at the visual tokens."""
        return self.hidden_states[self.request.is_visual]

    def attention_by_layer(self) -> list[Tensor]:
        """`attention`. Raises ValueError where nothing was captured."""
        if not self.attention:
            raise ValueError("target has captured no attention: make it with capture_attention=True")
        return self.attention


class VideoTarget(TransformersTarget):
    """`specdecode.roles.Target` over requests, one a row; also `specdecode.drafters.draft_model.DraftModel`.

    Args:
        model: see `vargen.video.models.request.encode_video`. DeepStack is added between its layers.
        requests: the prompts, whole or with visual tokens left out.
        capture_layers: hidden states after so many decoder layers are kept from the prefill; 0 are the embeddings.
        capture_attention: keep from the prefill what attention the text after the video pays to the video.
        states_after: the hidden states of all passes are those after so many decoder layers; None: the final ones.
        on_layer: called while a prompt is fed with the hidden states [T, dim] after so many decoder layers, as soon as
            they are there. It must not wait for the device.
        max_new_tokens, max_draft_nodes, vocab_size: see `TransformersTarget`.
        repetition_penalty: of transformers' `generate`; see `specdecode.targets.repetition`. Logits have it already.

    Attributes:
        forward_passes: of the model.
        prompt_passes: those over prompts.

    Raises:
        ValueError: a layer that the model has not, or a model that cannot be served.
    """

    flops: int | None = None
    """Nobody counts them."""

    def __init__(
        self,
        model: Any,
        requests: VideoRequest | Sequence[VideoRequest],
        capture_layers: Sequence[int] = (),
        capture_attention: bool = False,
        on_layer: Mapping[int, Callable[[Tensor], None]] | None = None,
        *,
        states_after: int | None = None,
        max_new_tokens: int = 256,
        max_draft_nodes: int = 64,
        vocab_size: int | None = None,
        repetition_penalty: float = 1.0,
    ) -> None:
        self.requests = (requests,) if isinstance(requests, VideoRequest) else tuple(requests)
        self.architecture = architecture_of(model)
        self.language_model = self.architecture.decoder(model)
        self.on_layer = dict(on_layer or {})
        self.capture_layers, self.capture_attention = tuple(capture_layers), capture_attention
        num_layers = len(self.language_model.layers)
        self.states_after = states_after
        asked = {
            "capture_layers": self.capture_layers,
            "on_layer": self.on_layer,
            "states_after": () if states_after is None else (states_after,),
        }
        for name, layers in asked.items():
            for layer in layers:
                if not int(name == "states_after") <= layer <= num_layers:
                    raise ValueError(f"{name} must lie between 0 and the model's {num_layers} layers, got {layer}")
        self._prompts: list[SeenPrompt] = []
        self.repetition_penalty = repetition_penalty
        self._repetition: RepetitionPenalty | None = None
        self._fed = torch.empty(0)  # [B, n] of the last forward
        self.forward_passes = self.prompt_passes = 0
        super().__init__(
            model,
            pad_sequence([each.input_ids[0] for each in self.requests], batch_first=True),
            max_new_tokens=max_new_tokens,
            max_draft_nodes=max_draft_nodes,
            positions=self._positions_after,
            vocab_size=vocab_size,
            decoder=self.language_model,
            output_head=self.architecture.output_head(model),
            embed=model.get_input_embeddings(),
        )

    @property
    def prompts(self) -> list[SeenPrompt]:
        """What was seen of each. Raises ValueError before the prefill."""
        if not self._prompts:
            raise ValueError("the target must have been prefilled first: nothing is known of its prompts")
        return self._prompts

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Feed the prompts to an empty cache, one after the other.

        Returns:
            Logits [B, 1, V] of the first token; hidden states [B, T, dim], shorter prompts padded on the left.

        Raises:
            ValueError: attention is to be captured, and there is no text after the video.
        """
        self.start_prompts()
        for row, prompt in enumerate(self.prompts):
            self._feed(row, prompt)
        self.finish_prompts()
        if self._repetition is not None:
            logits = self._repetition.of_prompts(torch.stack([prompt.logits for prompt in self.prompts]))
            for prompt, lowered in zip(self.prompts, logits, strict=True):
                prompt.logits = lowered
        last = torch.stack([prompt.hidden_states[-1:] for prompt in self.prompts])
        return TargetOutput(torch.stack([prompt.logits for prompt in self.prompts]), last)

    def start_prompts(self) -> None:
        """Empty the cache, and forget what was seen."""
        self._prompts = [SeenPrompt(each) for each in self.requests]
        self._next_positions = torch.tensor([[each.next_position] for each in self.requests], device=self.device)
        self.lay_out(max(each.length for each in self.requests))
        if self.repetition_penalty != 1:
            prompts = [each.input_ids[0] for each in self.requests]
            size = self.max_new_tokens + self.max_draft_nodes
            self._repetition = RepetitionPenalty(self.repetition_penalty, prompts, self.vocab_size, size)

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        output = super().forward(tokens, mask, depths)
        if self._repetition is not None:
            self._fed = tokens
            output.logits = self._repetition.of_nodes(output.logits, tokens, mask, self._num_kept())
        return output

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        if self._repetition is not None:
            kept = self._fed if node_indices is None else self._fed.gather(1, node_indices.clamp(min=0))
            self._repetition.keep(kept, self._num_kept())
        super().commit(node_indices, counts)

    def _num_kept(self) -> Tensor:
        """[B] int64: committed tokens behind the prompts."""
        return self._cache.allocated().lengths - self.prompt_length

    def finish_prompts(self) -> None:
        """All prompts lie in the cache."""
        lengths = torch.tensor([each.length for each in self.requests], device=self.device)
        self.finish_prompt(self.prompt_length - lengths)

    def video_attention(self, row: int = 0) -> Tensor:
        """[m] float32: SpecVLM's score of each visual token of a prompt (arXiv 2508.16201).

        The attention weight that a token of the text after the video gives it, a mean over these tokens, all heads and
        all layers. Raises ValueError where nothing was captured.
        """
        num_heads = int(self.model.config.get_text_config().num_attention_heads)
        return torch.stack([layer.sum(0) for layer in self.prompts[row].attention_by_layer()]).mean(0) / num_heads

    def run(self, *arguments: Any, **options: Any) -> TargetOutput:
        self.forward_passes += 1
        if self.states_after is None:
            return super().run(*arguments, **options)
        kept: list[Tensor] = []
        layer = self.language_model.layers[self.states_after - 1]
        handle = layer.register_forward_hook(self._for_this_cache(kept.append), with_kwargs=True)
        try:
            output = super().run(*arguments, **options)
        finally:
            handle.remove()
        return TargetOutput(output.logits, kept[0])

    def _positions_after(self, places: Tensor) -> Tensor:
        """Position ids of places [B, n] behind the prompts."""
        positions = self._next_positions + places
        axes = len(self.requests[0].position_ids)
        return positions.expand(axes, -1, -1) if axes > 1 else positions

    def _feed(self, row: int, prompt: SeenPrompt) -> None:
        """One pass over a prompt."""
        self.prompt_passes += 1
        request, positions = prompt.request, prompt.request.position_ids
        self._cache.row = row
        self._reached(prompt, 0, request.inputs_embeds[0])
        handles = self._hooks(prompt)
        try:
            inputs = {"inputs_embeds": request.inputs_embeds}
            output = self.run(inputs, None, positions if len(positions) > 1 else positions[0], last_only=True)
        finally:
            for handle in handles:
                handle.remove()
        assert output.hidden_states is not None
        prompt.hidden_states, prompt.logits = output.hidden_states[0], output.logits[0]

    def _hooks(self, prompt: SeenPrompt) -> list[RemovableHandle]:
        """What looks at the pass over a prompt, or takes part in it."""
        layers = self.language_model.layers
        # First what is added, then who looks at the sum.
        handles = [
            layers[number].register_forward_hook(self._deepener(prompt, number), with_kwargs=True)
            for number in range(len(prompt.request.deepstack))
        ]
        handles += [
            layers[layer - 1].register_forward_hook(self._keeper(prompt, layer), with_kwargs=True)
            for layer in {*self.capture_layers, *self.on_layer} - {0}
        ]
        if self.capture_attention:
            rows = prompt.request.question_places

            num_kv_heads = int(self.model.config.get_text_config().num_key_value_heads)

            def keep(attention: Tensor) -> None:  # [heads, T]
                of_video = attention[:, prompt.request.is_visual]  # [heads, m]
                prompt.attention.append(of_video.unflatten(0, (num_kv_heads, -1)).sum(1))

            handles += [watch_attention(layer.self_attn, self._cache, lambda: rows, keep) for layer in layers]
        return handles

    def _deepener(self, prompt: SeenPrompt, number: int) -> Any:
        """A hook behind layer `number`, counted from 0, that adds DeepStack's features at the visual tokens."""
        visual, features = prompt.request.is_visual.nonzero()[:, 0], prompt.request.deepstack[number]

        def add(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> Any:
            if cache_among(inputs) is not self._cache:
                return None  # another request's pass through the same model
            states = output if isinstance(output, Tensor) else output[0]
            states = states.index_add(1, visual, features[None].to(states))
            return states if isinstance(output, Tensor) else (states, *output[1:])

        return add

    def _keeper(self, prompt: SeenPrompt, layer: int) -> Any:
        return self._for_this_cache(lambda states: self._reached(prompt, layer, states[0]))

    def _for_this_cache(self, use: Callable[[Tensor], None]) -> Any:
        """A hook behind a layer that hands over hidden states [B, n, dim]."""

        def hand_over(module: Any, args: Any, inputs: dict[str, Any], output: Any) -> None:
            # A drafter of the same weights may run through the same layers from another thread meanwhile.
            if cache_among(inputs) is self._cache:
                use(output if isinstance(output, Tensor) else output[0])

        return hand_over

    def _reached(self, prompt: SeenPrompt, layer: int, states: Tensor) -> None:
        """Hidden states [T, dim] of a prompt after `layer` layers are there."""
        if layer in self.capture_layers:
            prompt.captured[layer] = states
        if layer in self.on_layer:
            self.on_layer[layer](states)
