"""The EAGLE head for text: `PairHead` beside any causal language model of transformers.

Belongs here: parts that only text has: positions without an end, embeddings and an output head that the model lends,
and the tokens that may be drafted. Does not belong here: the layer (`eagle_head.py`), its part in the decode loop
(`text_draft_head.py`), and its training.

Small models have large output heads: in SmolLM2-135M a fifth of all weights. So a head may draft only some tokens, the
frequent ones, as in EAGLE-3 (Li et al. 2025, arXiv 2503.01840; `d2t` in its release). Nothing is lost: the model can
still say every token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from specdecode.kernels.native import fits_linear, linear_now
from specdecode.kernels.quantized import Int8Linear, quantize_linears
from vargen.drafters.eagle_head import PairHead


class TextHead(PairHead):
    """Guesses a language model's next hidden state from a token and the hidden state before it.

    Call `borrow` before anything else: the embeddings and the output head are the model's own.

    Args:
        dim: width of the model's hidden states, and of the head.
        num_attention_heads: heads; `dim / num_attention_heads` must be even.
        intermediate_size: width of the feed-forward layer.
        vocab_size: V, the model's tokens.
        draft_vocab_size: how many of them may be drafted; None: all.
        norm_eps: epsilon of the one RMSNorm.
        rope_base: base of the rotary frequencies.
        feature_layers: see `EagleHead`.
        target_states: a few hidden states of the model it was trained for; see `target_states.py`.
        accepted_length: tokens of a chain that were accepted when training ended, a mean. No weight depends on it.

    Raises:
        ValueError: the sizes do not fit each other.
    """

    draft_ids: Tensor
    """[draft_vocab_size] int64, rising: the tokens that may be drafted."""

    @register_to_config
    def __init__(
        self,
        dim: int = 576,
        num_attention_heads: int = 9,
        intermediate_size: int = 1536,
        vocab_size: int = 49152,
        draft_vocab_size: int | None = None,
        norm_eps: float = 1e-6,
        rope_base: float = 10000.0,
        feature_layers: list[int] | None = None,
        target_states: list[float] | None = None,
        accepted_length: float | None = None,
    ) -> None:
        super().__init__()
        count = vocab_size if draft_vocab_size is None else draft_vocab_size
        if not 1 <= count <= vocab_size:
            raise ValueError(f"draft_vocab_size must lie between 1 and vocab_size ({vocab_size}), got {count}.")
        self.build(dim, num_attention_heads, intermediate_size, norm_eps, feature_layers)
        self.rotary_rows = TextRotary(self.head_dim, rope_base)
        self.register_buffer("draft_ids", torch.arange(count))
        self._lent: tuple[Any, Any] | None = None
        self._rows: tuple[Tensor, Tensor | None] | None = None
        self._rounded: tuple[Int8Linear] | None = None

    def borrow(self, model: Any) -> None:
        """Use a model's embeddings and output head from now on. They are not part of this module's weights.

        Raises:
            ValueError: the model has none, or its output head is not one matrix.
        """
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        if embedding is None or not isinstance(getattr(output, "weight", None), Tensor):
            raise ValueError(f"drafter cannot draft for {type(model).__name__}: it has no output head of one matrix")
        self._lent = embedding, output
        self._rows = self._rounded = None

    @property
    def token_embedding(self) -> Any:
        """The model's module of embeddings."""
        assert self._lent is not None, "call borrow first"
        return self._lent[0]

    def draft_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits [..., draft_vocab_size] of the tokens `draft_ids`, of hidden states [..., dim]."""
        if self._rounded is not None:
            return self._rounded[0](hidden_states)
        weight, bias = self.output_rows()
        hidden_states = hidden_states.to(weight.dtype)
        fits = fits_linear(hidden_states, weight, bias=bias)
        logits = linear_now(hidden_states, weight, bias=bias) if fits else None
        return F.linear(hidden_states, weight, bias) if logits is None else logits

    def spread(self, logits: Tensor) -> Tensor:
        """Logits [..., V] float32 of logits [..., draft_vocab_size]; tokens that are not drafted have -infinity."""
        size = int(self.config.vocab_size)
        if len(self.draft_ids) == size:
            return logits.float()
        everywhere = logits.new_full((*logits.shape[:-1], size), -torch.inf, dtype=torch.float32)
        return everywhere.index_copy_(-1, self.draft_ids, logits.float())

    def choose_tokens(self, draft_ids: Tensor) -> None:
        """Draft these tokens alone, [draft_vocab_size] int64."""
        self.draft_ids.copy_(draft_ids.sort().values)
        self._rows = self._rounded = None

    @property
    def rounded(self) -> bool:
        """Whether `round_weights` was called."""
        return self._rounded is not None

    @torch.no_grad()
    def round_weights(self) -> None:
        """Round the matrices, and the output rows, to eight bits: a guess waits for weights, and need not be exact.

        For drafting alone: afterwards it can neither be trained nor saved.
        """
        weight, bias = self.output_rows()
        rows = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        rows.weight = nn.Parameter(weight)
        if bias is not None:
            rows.bias = nn.Parameter(bias)
        self._rows = None
        self._rounded = (Int8Linear.of(rows, dynamic=True),)  # a tuple keeps it out of the module's own weights
        for part in (self.attn, self.ff):
            quantize_linears(part, "int8-dynamic")
        if self.feature_layers:
            fuse: Any = Int8Linear.of(self.fuse, dynamic=True)
            self.fuse = fuse

    def output_rows(self) -> tuple[Tensor, Tensor | None]:
        """The rows of the model's output head for `draft_ids`, gathered once."""
        assert self._lent is not None, "call borrow first"
        if self._rows is None:
            output: nn.Linear = self._lent[1]
            weight, bias = output.weight.detach(), None if output.bias is None else output.bias.detach()
            if len(self.draft_ids) < len(weight):
                weight = weight[self.draft_ids].contiguous()
                bias = None if bias is None else bias[self.draft_ids]
            self._rows = weight, bias
        return self._rows


class TextRotary:
    """Rotary embedding of positions, counted from the end of the prompt: fp32 [B, n, 1, head_dim / 2, 2].

    A plain attribute of a model, not a buffer, so that `.to(torch.bfloat16)` cannot round it.
    """

    def __init__(self, head_dim: int, base: float) -> None:
        self.head_dim, self.base = head_dim, base
        self._before = self._after = 0
        self._table: Tensor | None = None

    def reserve(self, before: int, after: int) -> None:
        """Make room in `table` for so many positions before 0, and from 0 on."""
        if before > self._before or after > self._after:
            self._before, self._after = max(before, self._before), max(after, self._after)
            self._table = None

    def table(self, device: torch.device) -> Tensor:
        """[positions, head_dim / 2, 2] for the kernels: from 0 on, then those before 0, counted from the end."""
        if self._table is None or self._table.device != device:
            places = torch.cat((torch.arange(self._after), torch.arange(-self._before, 0))).to(device)
            with torch.inference_mode(False):
                self._table = self(places[None])[0, :, 0].contiguous()
        return self._table

    def __call__(self, positions: Tensor) -> Tensor:
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions[..., None, None] / self.base ** (steps / self.head_dim)
        return torch.stack((angles.cos(), angles.sin()), -1)
