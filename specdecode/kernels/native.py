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

from specdecode.kernels.build import library

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 4}
"""Precisions that are served, and what the kernels call them; of weights alone int8 and, in four bits, uint8."""
_INT8_ROWS = 3
"""What they call int8 weights where what is multiplied with them is rounded to int8 too."""
NIBBLES = 64
"""Weights in four bits that share a scale."""
MATRICES = ("qkv", "out", "gate_up", "down")
_NO_SCALES = [0] * len(MATRICES)
_MOST_CHANNELS = 1008
"""Of a head."""
_NO_BOUND = 2**62
_OUTSIDE = "positions or slots lie outside the rotary table or the cache"


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
        scales: float32 [outputs] of each of `MATRICES`, where these are int8; else empty: four bits hold their own.
        dynamic: whether rows are rounded to int8 before such a matrix, each on a scale of its own.
    """

    norm_attention: Tensor | None
    qkv: Tensor
    out: Tensor
    norm_feed_forward: Tensor
    gate_up: Tensor
    down: Tensor
    scales: tuple[Tensor, ...] = ()
    dynamic: bool = False

    def kind(self) -> int:
        """Of the matrices, as the kernels call it."""
        return _INT8_ROWS if self.dynamic else KINDS[self.qkv.dtype]

    def pointers(self) -> tuple[int, ...]:
        """As the kernels read them; spelled out, since at every pass a loop over the fields takes twice as long."""
        return (
            0 if self.norm_attention is None else self.norm_attention.data_ptr(),
            self.qkv.data_ptr(),
            self.out.data_ptr(),
            self.norm_feed_forward.data_ptr(),
            self.gate_up.data_ptr(),
            self.down.data_ptr(),
            *([scale.data_ptr() for scale in self.scales] or _NO_SCALES),
        )


def fits_linear(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` takes these where there are kernels: on a CPU, of a precision that is served, nothing to be
    learned. Code that is being compiled may ask."""
    return (
        x.device.type == "cpu"
        and not torch.is_grad_enabled()
        and weight.is_contiguous()
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight.dtype in (x.dtype, torch.int8, torch.uint8)
    )


@torch.library.custom_op("vargen::few_row_linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, dynamic: bool = False
) -> Tensor:
    """`x weight^T + bias`, every row by itself. Where there are kernels, and for what `fits_linear`.

    Args:
        x: [..., columns], float32 or bfloat16.
        weight: [outputs, columns] of the same precision, or int8 with `scale`; or as `Int4Linear` has it.
        scale: float32 [outputs] of int8 weights.
        bias: [outputs], as `x`.
        dynamic: whether rows of `x` are rounded to int8 too, each on a scale of its own; beside int8 weights.

    Returns:
        [..., outputs], as `x`.
    """
    y = linear_now(x, weight, scale, bias, dynamic)
    assert y is not None
    return y


def linear_now(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, dynamic: bool = False
) -> Tensor | None:
    """The same without torch's dispatch, which costs more than a small product; None where there are no kernels."""
    kernels = library()
    if kernels is None:
        return None
    x = x.contiguous()
    outputs, columns = weight.shape[0], x.shape[-1]
    y = x.new_empty(*x.shape[:-1], outputs)
    if y.numel():
        kernels.few_rows_linear(
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_int64(KINDS[x.dtype]),
            ctypes.c_void_p(weight.data_ptr()),
            ctypes.c_int64(_INT8_ROWS if dynamic else KINDS[weight.dtype]),
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
def _(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, dynamic: bool = False
) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@dataclass(frozen=True)
class Weights:
    """All of a decoder; matrices [outputs, columns] and tables contiguous, of the precision that it computes in.

    Args:
        layers: [RMSNorm, attention, RMSNorm, SwiGLU] each.
        geometry: sizes.
        rotary: float32 [positions, head_dim / 2, 2], cosine and sine for each pair of neighbouring channels.
        embedding: [words, dim], or None: it is given embeddings.
        join: [dim, 2 dim], what makes one input of an embedding and a feature, or None: there are no features.
        join_bias: [dim], or None.
        norm_out: [dim], or None: no last norm.
        head: [V, dim], or None: no logits.
    """

    layers: Sequence[LayerWeights]
    geometry: Geometry
    rotary: Tensor
    embedding: Tensor | None = None
    join: Tensor | None = None
    join_bias: Tensor | None = None
    norm_out: Tensor | None = None
    head: Tensor | None = None


@dataclass(frozen=True)
class NewTokens:
    """What is fed, S sequences at once: those of B pictures, S = halves * B, all first halves before all second ones.

    Args:
        positions: int64 [1, B or S, n], rows of `Weights.rotary`, from its end where negative.
        mask: bool [1, B or S, n, w], which slots behind `lengths` each token sees.
        hidden_states: [S, n, dim], embeddings; or None, and then
        tokens: int64 [B, n], rows of `Weights.embedding`.
        features: [B, n, halves * dim], to be joined to them; or None.
        halves: of a picture.
        lengths: int64 [S], slots that are full and seen by all its tokens; None: none are.
        starts: int64 [S], the first of these that is seen; None: 0.
        origins: int64 [S], beside `lengths`: `lengths - origins` is added to positions.
        last_position: greater ones become it; None: there are none.
        places: int64 [S * n], slots of the tokens, all sequences counted through; None: the last n of the w.
    """

    positions: Tensor
    mask: Tensor
    hidden_states: Tensor | None = None
    tokens: Tensor | None = None
    features: Tensor | None = None
    halves: int = 1
    lengths: Tensor | None = None
    starts: Tensor | None = None
    origins: Tensor | None = None
    last_position: int | None = None
    places: Tensor | None = None


def fits_pass(dtype: torch.dtype, keys: Tensor, geometry: Geometry) -> bool:
    """Whether `decoder_pass`, where there is one, computes in this precision over this cache: on a CPU, nothing to be
    learned."""
    _, heads, slots, channels = keys.shape
    return (
        keys.device.type == "cpu"
        and not torch.is_grad_enabled()
        and dtype in (torch.float32, torch.bfloat16)
        and keys.dtype == dtype
        and keys.stride() == (slots * heads * channels, channels, heads * channels, 1)
        and geometry.head_dim <= _MOST_CHANNELS
        and geometry.head_dim % 2 == 0
    )


def decoder_pass(
    weights: Weights,
    new: NewTokens,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    *,
    guidance_scale: float | None = None,
    logits_to_keep: int = 0,
    kept_layers: Collection[int] = (),
    side_by_side: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """All layers, the last norm and the output head over new tokens, where `fits_pass`.

    Args:
        weights: of the decoder.
        new: what is fed.
        keys, values: for each layer [S, H_kv, slots, D], tokens lying side by side; the new ones are written.
        guidance_scale: of the logits of two halves, `second + guidance_scale * (first - second)`; None: each its own.
        logits_to_keep: of the last so many tokens; 0: of all.
        kept_layers: after how many layers states are kept, rising, at most all; the last states always are.
        side_by_side: whether the states of a picture's halves lie beside each other; then no others are kept.

    Returns:
        States [S, n, k dim] after each of `kept_layers`, those after all of them normed and last; side by side
        [B, n, halves * dim]. And logits float32 [S, n or logits_to_keep, V], None without a head; [B, ...] if guided.
        None where there are no kernels.

    Raises:
        IndexError: a token, a position or a slot that does not exist; nothing was written.
    """
    kernels = library()
    if kernels is None:
        return None
    geometry, layers, dtype = weights.geometry, weights.layers, keys[0].dtype
    dim = layers[0].norm_feed_forward.shape[0]
    given = new.tokens if new.hidden_states is None else new.hidden_states
    assert given is not None
    num_tokens = given.shape[1]
    pictures = given.shape[0] // (1 if new.hidden_states is None else new.halves)
    sequences = pictures * new.halves
    inner = [number for number in kept_layers if number < len(layers)]
    if side_by_side:
        states = torch.empty(pictures, num_tokens, new.halves * dim, dtype=dtype)
    else:
        states = torch.empty(sequences, num_tokens, (len(inner) + 1) * dim, dtype=dtype)
    kept, logits = logits_to_keep or num_tokens, None
    if weights.head is not None:
        rows = sequences if guidance_scale is None else pictures
        logits = torch.empty(rows, kept, weights.head.shape[0], dtype=torch.float32)
    sizes = (
        *(KINDS[dtype], layers[0].kind(), sequences, num_tokens, dim, geometry.num_heads),
        *(geometry.num_key_value_heads, geometry.head_dim, geometry.intermediate_size, len(layers)),
        *(0 if logits is None else logits.shape[-1], new.halves, keys[0].shape[2], new.mask.shape[-1]),
        *(new.mask.shape[0], kept, new.positions.shape[0]),
        *(_NO_BOUND if new.last_position is None else new.last_position, weights.rotary.shape[0]),
        *(0 if weights.embedding is None else weights.embedding.shape[0], states.shape[-1], int(side_by_side)),
        torch.get_num_threads(),
    )
    fed = [
        *(_whole(tensor) for tensor in (new.hidden_states, new.tokens, weights.embedding, new.features)),
        *(weights.join, weights.join_bias),
        *(_whole(tensor) for tensor in (new.lengths, new.starts, new.origins, new.positions)),
        weights.rotary,
        *(_whole(tensor) for tensor in (new.mask, new.places)),
        *(weights.norm_out, weights.head),
    ]
    last_states = states.data_ptr() + (0 if side_by_side else len(inner) * dim * dtype.itemsize)
    pointers = [_address(tensor) for tensor in fed] + [last_states, _address(logits)]
    of_layers = array("q")
    for number, (layer, key, value) in enumerate(zip(layers, keys, values, strict=True), start=1):
        kept_here = states.data_ptr() + inner.index(number) * dim * dtype.itemsize if number in inner else 0
        of_layers.extend((*layer.pointers(), key.data_ptr(), value.data_ptr(), kept_here))
    scalars = array("d", (geometry.norm_eps, guidance_scale or 0.0))
    given_bytes = array("q", sizes).tobytes() + scalars.tobytes() + array("q", pointers).tobytes()
    if wrong := kernels.few_rows_pass(given_bytes, ctypes.c_void_p(of_layers.buffer_info()[0])):
        what = "tokens lie outside the vocabulary" if wrong == 2 else _OUTSIDE
        raise IndexError(what)
    return states, logits


def _whole(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
