"""A trained head beside a Video-LLM in the decode loop: its cache and its positions.

Belongs here: how pairs become a forward pass. Does not belong here: how drafts grow (`specdecode.drafters.eagle`,
`semi_autoregressive.py`), the network, and its rows for a prompt (`video_head.py`).

The cache holds the prompt's rows, then one row for every accepted token, fed with the target's hidden state at the
token before it. Nodes of a draft are fed with the head's own guesses and then forgotten.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.drafters.draft_size import DraftSizer
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import TargetOutput
from specdecode.targets.transformers import SlotCache, reach
from vargen.video.drafters.video_head import DrafterRows, TargetStates, VideoHead
from vargen.video.models.target import SeenPrompt, VideoTarget


class VideoDraftHead:
    """`specdecode.drafters.semi_autoregressive.SemiAutoregressiveHead` over the requests of a target.

    Args:
        network: in eval mode, made for this target (`video_head_folder.check_target`), of its dtype, on its device.
        target: lends its embeddings, its output head and its states of the prompts.

    Attributes:
        forward_passes: of the network, those over prompts included.
        prompt_passes: those over prompts.
        flops: of these passes and their logits; see `VideoHead.flops`.

    Raises:
        ValueError: the target does not capture the states that the head reads, or a prompt exceeds its positions.
    """

    def __init__(self, network: VideoHead, target: VideoTarget) -> None:
        missing = set(network.config.capture_layers) - set(target.capture_layers)
        if missing:
            raise ValueError(
                f"target must be made with capture_layers={network.config.capture_layers}: this head reads them"
            )
        longest = int(target.model.config.get_text_config().max_position_embeddings)
        end = max(request.next_position for request in target.requests)
        if end >= longest:
            raise ValueError(
                f"video is too long: the prompt reaches position {end}, the model has {longest}; give fewer frames"
            )
        self.network = network
        self.target = target
        self.vocab_size = target.vocab_size
        self.draft_length = network.config.draft_length
        self.forward_passes = self.prompt_passes = 0
        self.flops = 0
        self._room = 0  # slots for new rows
        self._cache = SlotCache(type(network).__name__, 1, target.batch_size)

    def drafter(self, shape: DynamicTree | StaticTree, sizer: DraftSizer) -> EagleDrafter:
        """The Drafter role of this network; arguments as for `EagleDrafter`.

        Raises:
            ValueError: see `EagleDrafter` and `SemiAutoregressiveDrafter`.
        """
        self._room = EagleDrafter.most_new_pairs(shape, sizer.largest)
        drafter = EagleDrafter if self.draft_length == 1 else SemiAutoregressiveDrafter
        return drafter(self, shape, sizer)

    @torch.no_grad()
    def start(self, prompt: TargetOutput) -> Tensor:
        """Feed the prompts. Returns [B, 1, dim], the target's hidden state at the last token of each."""
        config = self.network.config
        fed = [self._prompt_rows(seen) for seen in self.target.prompts]
        lengths = [rows.inputs.shape[1] for rows in fed]
        self._end = max(lengths)
        self._cache.start_prompt(self._end, self._end + self.target.max_new_tokens + self._room)
        for row, rows in enumerate(fed):
            self._cache.row = row
            self.prompt_passes += 1
            self._run(rows.inputs, rows.positions, None, lengths[row])
        starts = torch.tensor([self._end - length for length in lengths], device=self.target.device)
        self._cache.finish_prompt(starts)
        self._cache.allocated().expect_from(self._end)
        self._num_new = 0
        scenes = [rows.scene for rows in fed if rows.scene is not None]
        self._scene = torch.cat(scenes) if scenes else None
        after = lengths if config.compact else [request.next_position for request in self.target.requests]
        self._first_positions = torch.tensor(after, device=self.target.device)[:, None]
        return self.features(prompt)[:, -1:]

    def _prompt_rows(self, seen: SeenPrompt) -> DrafterRows:
        """The network's input rows for a prompt."""
        request, config = seen.request, self.network.config
        visual_states = None
        if config.capture_layers:
            visual_states = seen.captured[config.capture_layers[0]][None, request.is_visual]
        features = seen.hidden_states[None]
        states = TargetStates(request.inputs_embeds, features, request.position_ids, request.is_visual, visual_states)
        return self.network.rows(states, with_video=not config.text_only)

    def features(self, output: TargetOutput) -> Tensor:
        """[B, n, dim]: the target's hidden states."""
        assert output.hidden_states is not None
        return output.hidden_states

    @torch.no_grad()
    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """Guess what follows new pairs; see `DraftHead.forward`.

        Returns:
            Logits of the next token, and the features [B, q, K * dim] guessed for the next K tokens.
        """
        num_pairs, num_new = tokens.shape[1], mask.shape[2]
        static = self._cache.allocated()
        kv_length = reach(static, num_new)
        self._num_new = num_new
        self._cache.start_tokens(num_new, kv_length, num_pairs)
        positions = self._first_positions + static.lengths[:, None] - self._end + depths  # [B, q]
        rows = self.network.pairs(self.target.model.get_input_embeddings()(tokens), features, self._scene)
        axes = len(self.target.requests[0].position_ids)
        mask = static.attention_mask(mask, kv_length)  # [B, 1, q, S]
        hidden_states = self._run(rows, positions.expand(axes, -1, -1), mask, kv_length)
        guesses = self.network.guesses(hidden_states)  # [B, q, K, dim]
        return DraftHeadOutput(self._logits(guesses[:, :, 0]), guesses.flatten(2))

    def later_logits(self, features: Tensor) -> Tensor:
        """[B, K - 1, V] of guessed features [B, K * dim]; see `SemiAutoregressiveHead.later_logits`."""
        return self._logits(features.unflatten(1, (self.draft_length, -1))[:, 1:])

    def advance(self, counts: Tensor) -> None:
        """The first `counts[b]` new rows of each sequence stay."""
        self._cache.allocated().advance(counts)
        self._cache.allocated().expect(self._num_new)

    def _run(self, rows: Tensor, positions: Tensor, mask: Tensor | None, num_keys: int) -> Tensor:
        """Outputs [B, q, dim] of new rows [B, q, dim]; mask [B, 1, q, S]."""
        self.forward_passes += 1
        self.flops += len(rows) * self.network.flops(rows.shape[1], num_keys)
        return self.network(rows, positions, mask, self._cache)

    def _logits(self, features: Tensor) -> Tensor:
        """[B, n, V] float32."""
        head = self.target.architecture.output_head(self.target.model)
        self.flops += 2 * head.weight.numel() * features.shape[:2].numel()
        return head(features.to(head.weight.dtype))[..., : self.vocab_size].float()
