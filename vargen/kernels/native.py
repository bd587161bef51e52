"""The kernels on tensors: a linear layer for few rows, and a whole decoder pass.

Belongs here: which tensors the kernels can be given, and their registration with torch, so that compiled graphs hold
them. Does not belong here: building (`build.py`), arithmetic (`few_rows.cpp`), and which model has which weights.

A row's result is the same bits whatever rows stand beside it, however many, and whatever number of threads: see the
kernels' own first lines. So decoding with them in any precision gives the same tokens plain and by every exact method.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vargen.kernels.build import library

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Precisions that are served, and what the kernels call them; int8 of weights alone."""
MATRICES = ("qkv", "out", "gate_up", "down")
_MOST_CHANNELS = 1008
"""Of a head."""


@dataclass(frozen=True)
class Geometry:
    """Sizes of a decoder: layers of [RMSNorm, attention, RMSNorm, SwiGLU], no biases."""

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are [outputs, columns] of one precision; norms [dim] of the model's, None where missing.

    Args:
        norm_attention, qkv, out, norm_feed_forward, gate_up, down: queries, keys and values are one matrix in this
            order; so are gate and up.
        scales: float32 [outputs] of each of `MATRICES`, where these are int8; else empty.
    """

    norm_attention: Tensor | None
    qkv: Tensor
    out: Tensor
    norm_feed_forward: Tensor
    gate_up: Tensor
    down: Tensor
    scales: tuple[Tensor, ...] = ()

    def pointers(self) -> list[int]:
        """As the kernels read them."""
        norm = 0 if self.norm_attention is None else self.norm_attention.data_ptr()
        scales = [scale.data_ptr() for scale in self.scales] or [0, 0, 0, 0]
        matrices = (self.qkv, self.out, self.norm_feed_forward, self.gate_up, self.down)
        return [norm, *(matrix.data_ptr() for matrix in matrices), *scales]


def serves_linear(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` takes these: on a CPU, of a precision that is served, nothing to be learned."""
    return (
        x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and weight.is_contiguous()
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight.dtype in (x.dtype, torch.int8)
        and library() is not None
    )


@torch.library.custom_op("vargen::few_row_linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """`x weight^T + bias`, every row by itself. Where `serves_linear`.

    Args:
        x: [..., columns], float32 or bfloat16.
        weight: [outputs, columns] of the same precision, or int8 with `scale`.
        scale: float32 [outputs] of int8 weights.
        bias: [outputs], as `x`.

    Returns:
        [..., outputs], as `x`.
    """
    return linear_now(x, weight, scale, bias)


def linear_now(x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """The same without torch's dispatch, which costs more than a small product."""
    kernels = library()
    assert kernels is not None
    x = x.contiguous()
    outputs, columns = weight.shape
    y = x.new_empty(*x.shape[:-1], outputs)
    if y.numel():
        kernels.few_rows_linear(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_int64(KINDS[x.dtype]),
            ctypes.c_void_p(weight.data_ptr()),
            ctypes.c_int64(KINDS[weight.dtype]),
            ctypes.c_void_p(0 if scale is None else scale.data_ptr()),
            ctypes.c_void_p(0 if bias is None else bias.data_ptr()),
            ctypes.c_void_p(y.data_ptr()),
            ctypes.c_int64(x.numel() // columns),
            ctypes.c_int64(columns),
            ctypes.c_int64(outputs),
            ctypes.c_int64(torch.get_num_threads()),
        )
    return y


@linear.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def serves_pass(hidden_states: Tensor, mask: Tensor | None, keys: Tensor, geometry: Geometry) -> bool:
    """Whether `decoder_pass` takes these: on a CPU, of a precision that is served, nothing to be learned."""
    batch, heads, slots, channels = keys.shape
    return (
        hidden_states.device.type == "cpu"
        and not torch.is_grad_enabled()
        and hidden_states.dtype in (torch.float32, torch.bfloat16)
        and keys.dtype == hidden_states.dtype
        and keys.stride() == (slots * heads * channels, channels, heads * channels, 1)
        and mask is not None
        and mask.dtype == torch.bool
        and mask.ndim == 4
        and mask.shape[0] in (1, batch)
        and mask.shape[1] == 1
        and geometry.head_dim <= _MOST_CHANNELS
        and geometry.head_dim % 2 == 0
        and library() is not None
    )


def decoder_pass(
    hidden_states: Tensor,
    positions: Tensor,
    rotary: Tensor,
    mask: Tensor,
    places: Tensor,
    layers: Sequence[LayerWeights],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    geometry: Geometry,
    norm_out: Tensor | None = None,
    head: Tensor | None = None,
    logits_to_keep: int = 0,
    kept_layers: Collection[int] = (),
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """All layers, the last norm and the output head over new tokens. Where `serves_pass`.

    Args:
        hidden_states: [B, n, dim], embeddings.
        positions: int64 [B or 1, n], rows of `rotary`, from its end where negative.
        rotary: float32 [positions, head_dim / 2, 2], cosine and sine for each pair of neighbouring channels.
        mask: bool [B or 1, 1, n, S], what each token sees of the first S slots.
        places: int64 [B * n], slots of the new tokens, all sequences counted through.
        layers: weights.
        keys, values: for each layer [B, H_kv, slots, D], tokens lying side by side; the new ones are written.
        geometry: sizes.
        norm_out: [dim], or None: no last norm.
        head: [V, dim], or None: no logits.
        logits_to_keep: of the last so many tokens; 0: of all.
        kept_layers: after how many layers states are kept.

    Returns:
        States after the last norm [B, n, dim]; logits float32 [B, n or logits_to_keep, V], None without a head; and
        states [B, n, dim] after each of `kept_layers`, in rising order.

    Raises:
        IndexError: a position or a place that does not exist; nothing was written.
    """
    kernels = library()
    assert kernels is not None
    hidden_states, positions, mask, places = (
        tensor.contiguous() for tensor in (hidden_states, positions, mask, places)
    )
    batch, tokens, dim = hidden_states.shape
    kind = KINDS[hidden_states.dtype]
    kept = logits_to_keep or tokens
    vocabulary = 0 if head is None else head.shape[0]
    states = torch.empty_like(hidden_states)
    logits = None if head is None else torch.empty(batch, kept, vocabulary, dtype=torch.float32)
    sizes = array(
        "q",
        [
            *(kind, KINDS[layers[0].qkv.dtype], batch, tokens, dim, geometry.num_heads, geometry.num_key_value_heads),
            *(geometry.head_dim, geometry.intermediate_size, len(layers), vocabulary, keys[0].shape[2], mask.shape[-1]),
            *(mask.shape[0], kept, positions.shape[0], rotary.shape[0], torch.get_num_threads()),
        ],
    )
    pointers = array(
        "q",
        [
            *(tensor.data_ptr() for tensor in (hidden_states, positions, rotary, mask, places)),
            *(0 if tensor is None else tensor.data_ptr() for tensor in (norm_out, head, states, logits)),
        ],
    )
    of_layers = array("q")
    kept_states = []
    for number, (layer, key, value) in enumerate(zip(layers, keys, values, strict=True), start=1):
        kept_here = 0
        if number in kept_layers:
            kept_states.append(torch.empty_like(hidden_states))
            kept_here = kept_states[-1].data_ptr()
        of_layers.extend((*layer.pointers(), key.data_ptr(), value.data_ptr(), kept_here))
    given = sizes.tobytes() + array("d", (geometry.norm_eps,)).tobytes() + pointers.tobytes()
    if kernels.few_rows_pass(given, ctypes.c_void_p(of_layers.buffer_info()[0])):
        raise IndexError("positions or slots lie outside the rotary table or the cache")
    return states, logits, kept_states
