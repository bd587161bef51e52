"""A feature drafter beside its target in the decode loop: what it has been fed, and at which positions.

Belongs here: the cache, and how pairs become a forward. Does not belong here: how drafts grow
(`specdecode.drafters.eagle`, `semi_autoregressive.py`), the network and what it is fed for a prompt
(`feature_drafter.py`).

The cache holds the prompt's rows, then a row for every accepted token, fed with the target's own hidden state at the
token before it. Nodes of a draft are fed with the drafter's guesses and forgotten.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from specdecode.draft_size import DraftSizer
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import TargetOutput
from vargen.video.drafters.feature_drafter import FeatureDrafter, TargetStates
from vargen.video.target import VideoTarget


class FeatureHead:
    """`specdecode.drafters.semi_autoregressive.SemiAutoregressiveHead` over one request.

    Args:
        network: in eval mode, made for this target (see `drafter_folder.check_target`), of its dtype and on its device.
        target: lends its embeddings, its output head and what it captured of the prompt.

    Attributes:
        forward_passes: of the network, the prompt's included.
        flops: of these passes and their logits; see `FeatureDrafter.flops`.

    Raises:
        ValueError: the target does not capture what the drafter reads, or the prompt is longer than its positions.
    """

    def __init__(self, network: FeatureDrafter, target: VideoTarget) -> None:
        missing = set(network.config.capture_layers) - set(target.capture_layers)
        if missing:
            raise ValueError(
                f"target must be made with capture_layers={network.config.capture_layers}: this drafter reads them"
            )
        longest = int(target.model.config.get_text_config().max_position_embeddings)
        if target.request.next_position >= longest:
            raise ValueError(
                f"video is too long: the prompt reaches position {target.request.next_position}, the model has "
                f"{longest}; give fewer frames"
            )
        self.network = network
        self.target = target
        self.vocab_size = target.vocab_size
        self.draft_length = network.config.draft_length
        self.forward_passes = 0
        self.flops = 0
        self._cache = DynamicCache()
        self._committed = 0  # rows that stay
        self._num_new = 0  # rows behind them
        self._first_position = 0  # of the first generated token
        self._num_prompt = 0
        self._scene: Tensor | None = None

    def drafter(
        self, shape: DynamicTree | StaticTree, sizer: DraftSizer, children: Literal["top", "sampled"] = "top"
    ) -> EagleDrafter:
        """The Drafter role of this network; arguments as of `EagleDrafter`.

        Raises:
            ValueError: see `EagleDrafter` and `SemiAutoregressiveDrafter`.
        """
        drafter = EagleDrafter if self.draft_length == 1 else SemiAutoregressiveDrafter
        return drafter(self, shape, sizer, children)

    @property
    def cache_length(self) -> int:
        """Rows whose keys and values are held."""
        return self._committed + self._num_new

    def start(self, prompt: TargetOutput) -> Tensor:
        """Feed the prompt. Returns [1, 1, dim], the target's hidden state at its last token."""
        request, config = self.target.request, self.network.config
        features = self.features(prompt)
        visual_states = None
        if config.capture_layers:
            visual_states = self.target.captured[config.capture_layers[0]][None, request.is_visual]
        states = TargetStates(request.inputs_embeds, features, request.position_ids, request.is_visual, visual_states)
        rows = self.network.rows(states, with_video=not config.text_only)
        self._cache, self._committed, self._num_new = DynamicCache(), 0, 0
        self._scene = rows.scene
        self._run(rows.inputs, rows.positions, None)
        self._num_prompt = self._committed = self._num_new
        self._num_new = 0
        self._first_position = self._num_prompt if config.compact else request.next_position
        return features[:, -1:]

    def features(self, output: TargetOutput) -> Tensor:
        """[1, n, dim]: the target's hidden states."""
        assert output.hidden_states is not None
        return output.hidden_states

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """Guess what follows new pairs; see `DraftHead.forward`.

        Returns:
            Logits of the first place, and the features [1, q, K * dim] guessed for all places.
        """
        num_pairs, num_new = tokens.shape[1], mask.shape[2]
        self._drop(self._num_new - (num_new - num_pairs))
        positions = self._first_position + self._committed - self._num_prompt + depths  # [1, q]
        committed = torch.ones(1, num_pairs, self._committed, dtype=torch.bool, device=mask.device)
        rows = self.network.pairs(self.target.model.get_input_embeddings()(tokens), features, self._scene)
        hidden_states = self._run(
            rows, positions.expand(len(self.target.request.position_ids), 1, -1), torch.cat((committed, mask), dim=2)
        )
        guesses = self.network.guesses(hidden_states)  # [1, q, K, dim]
        return DraftHeadOutput(self._logits(guesses[:, :, 0]), guesses.flatten(2))

    def later_logits(self, features: Tensor) -> Tensor:
        """[1, K - 1, V] of guessed features [1, K * dim]; see `SemiAutoregressiveHead.later_logits`."""
        return self._logits(features.unflatten(1, (self.draft_length, -1))[:, 1:])

    def advance(self, counts: Tensor) -> None:
        """The first `counts[0]` new rows stay."""
        count = int(counts[0])
        self._drop(self._num_new - count)
        self._committed += count
        self._num_new = 0

    def _run(self, rows: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """[1, q, dim] of rows [1, q, dim], which are new; mask [1, q, S]."""
        self.forward_passes += 1
        self._num_new += rows.shape[1]
        self.flops += self.network.flops(rows.shape[1], self.cache_length)
        return self.network(rows, positions, None if mask is None else mask[:, None], self._cache)

    def _logits(self, features: Tensor) -> Tensor:
        """[1, n, V] float32."""
        head = self.target.model.lm_head
        self.flops += 2 * head.weight.numel() * features.shape[1]
        return head(features.to(head.weight.dtype))[..., : self.vocab_size].float()

    def _drop(self, count: int) -> None:
        """Forget the last new rows."""
        if count:
            self._cache.crop(-count)
            self._num_new -= count
