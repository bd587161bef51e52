"""The kernels' interface to torch: a linear layer for few rows, and a whole forward pass of a decoder.

Belongs here: which tensors the kernels take, and their registration with torch, so that compiled graphs can contain
them. Does not belong here: building (`build.py`), arithmetic (`few_rows.cpp`), and the weights of a particular model.

The result of a row is the same bits whatever rows are computed beside it and however many threads there are. So every
exact method draws the tokens of plain decoding, in any precision.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specdecode.kernels.build import library

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 4}
"""Supported dtypes and their numbers in the kernels. int8 and uint8 (four bits) are for weights alone."""
_INT8_ROWS = 3
"""The kernels' number for int8 weights with input rows that are rounded to int8, too."""
NIBBLES = 64
"""How many weights in four bits share a scale."""
NIBBLE_BYTES = 4 + NIBBLES // 2
"""Bytes of so many weights and their scale."""
MATRICES = ("qkv", "out", "gate_up", "down")
_NO_SCALES, _NO_PARTS = [0] * len(MATRICES), [0] * 7
_MOST_CHANNELS = 1008  # of a head
_NO_BOUND = 2**62
_ADDRESS, _INTEGER = ctypes.c_void_p, ctypes.c_int64
_LINEAR = [*[_ADDRESS, _INTEGER] * 2, *[_ADDRESS] * 3, *[_INTEGER] * 4, ctypes.c_double, _INTEGER]
"""Kinds of the arguments of the linear layer."""
_OUTSIDE = "positions or slots lie outside the rotary table or the cache"


@dataclass(frozen=True)
class Geometry:
    """Sizes of a decoder with layers of [RMSNorm, attention, RMSNorm, SwiGLU].

    `rotary_halves`: a channel turns with the one half a head further, as in models of transformers; else with its
    neighbour.
    """

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rotary_halves: bool = False


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer. Matrices are [outputs, columns] of one dtype; norms are [dim] of the model's dtype.

    Args:
        norm_attention: None where there is none.
        qkv, out, norm_feed_forward, gate_up, down: queries, keys and values are one matrix in this order; so are gate
            and up. Where `key`, `value` and `up` are given, `qkv` is that of queries alone and `gate_up` the gate's.
        scales: float32 [outputs] of each of `MATRICES` if these are int8; else empty, since four-bit weights contain
            their scales.
        dynamic: whether input rows are rounded to int8, each on a scale of its own.
        key, value, up: matrices of their own, without scales; None: see `qkv`.
        qkv_bias, out_bias: float32, or None.
        norm_query, norm_key: [head_dim] of the model's dtype: RMSNorms of each head, before rotary positions; or None.
    """

    norm_attention: Tensor | None
    qkv: Tensor
    out: Tensor
    norm_feed_forward: Tensor
    gate_up: Tensor
    down: Tensor
    scales: tuple[Tensor, ...] = ()
    dynamic: bool = False
    key: Tensor | None = None
    value: Tensor | None = None
    up: Tensor | None = None
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    norm_query: Tensor | None = None
    norm_key: Tensor | None = None

    def pointers(self) -> tuple[int, ...]:
        """The addresses in the kernels' order. Spelled out: a loop over the fields would take twice as long."""
        return (
            0 if self.norm_attention is None else self.norm_attention.data_ptr(),
            self.qkv.data_ptr(),
            self.out.data_ptr(),
            self.norm_feed_forward.data_ptr(),
            self.gate_up.data_ptr(),
            self.down.data_ptr(),
            *([scale.data_ptr() for scale in self.scales] or _NO_SCALES),
            *(_NO_PARTS if self.key is None and self.qkv_bias is None else self._parts()),
        )

    def _parts(self) -> tuple[int, ...]:
        """What layers of fused matrices without biases do not have."""
        parts = (self.key, self.value, self.up, self.qkv_bias, self.out_bias, self.norm_query, self.norm_key)
        return tuple(map(_address, parts))


def fits_linear(x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> bool:
    """Whether `linear` takes these, given that there are kernels: on a CPU, without gradients, in a supported dtype, in
    sizes that belong together. Compiled code may call this, too."""
    outputs = weight.shape[:1]
    return (
        x.is_cpu
        and not torch.is_grad_enabled()
        and x.dtype in (torch.float32, torch.bfloat16)
        and weight.dtype in (x.dtype, torch.int8, torch.uint8)
        and x.ndim > 0
        and _is(weight, weight.dtype, (*outputs, _columns(x.shape[-1], weight.dtype)))
        and (scale is None) == (weight.dtype != torch.int8)
        and (scale is None or _is(scale, torch.float32, outputs))
        and (bias is None or _is(bias, x.dtype, outputs))
    )


_PLAIN = (nn.Parameter, Tensor)


def _is(tensor: Tensor, dtype: torch.dtype, size: tuple[int, ...]) -> bool:
    """Whether the kernels may read a weight where it lies. They see an address alone, so tensors of other classes, such
    as torchao's, are none of theirs."""
    return (
        type(tensor) in _PLAIN
        and tensor.dtype == dtype
        and tensor.shape == size
        and tensor.is_cpu
        and tensor.is_contiguous()
    )


def _columns(inputs: int, dtype: torch.dtype) -> int:
    """Entries of an output's row of so many inputs; -1 where there can be none."""
    if dtype != torch.uint8:
        return inputs
    return -1 if inputs % NIBBLES else inputs // NIBBLES * NIBBLE_BYTES


@torch.library.custom_op("specdecode::few_row_linear", mutates_args=())
def linear(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, dynamic: bool = False
) -> Tensor:
    """`x weight^T + bias`, each row computed by itself. Needs kernels, and arguments that fit (`fits_linear`).

    Args:
        x: [..., columns], float32 or bfloat16.
        weight: [outputs, columns] of the same dtype, or int8 with `scale`; or the format of `Int4Linear`.
        scale: float32 [outputs] of int8 weights.
        bias: [outputs] of the dtype of `x`.
        dynamic: whether rows of `x` are rounded to int8, too, each on a scale of its own. Needs int8 weights.

    Returns:
        [..., outputs] of the dtype of `x`.
    """
    y = linear_now(x, weight, scale, bias, dynamic)
    assert y is not None
    return y


def linear_now(
    x: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, dynamic: bool = False,
    normed: tuple[int, float] = (0, 0.0),
) -> Tensor | None:  # fmt: skip
    """`linear` without torch's dispatch, which costs more than a small product; None where there are no kernels.

    `normed`: a width and an epsilon: all blocks of so many columns but the last are normed first (RMSNorm without a
    weight); (0, 0): none is."""
    kernels = library()
    if kernels is None:
        return None
    x = x.contiguous()
    outputs, columns = weight.shape[0], x.shape[-1]
    y = x.new_empty(*x.shape[:-1], outputs)
    if y.numel():
        if kernels.few_rows_linear.argtypes is None:
            kernels.few_rows_linear.argtypes = _LINEAR
        kernels.few_rows_linear(
            *(x.data_ptr(), KINDS[x.dtype], weight.data_ptr(), _INT8_ROWS if dynamic else KINDS[weight.dtype]),
            *(_address(scale), _address(bias), y.data_ptr()),
            *(x.numel() // columns, columns, outputs, *normed, torch.get_num_threads()),
        )
    return y


@linear.register_fake
def _(x: Tensor, weight: Tensor, *others: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@dataclass(frozen=True)
class Weights:
    """All weights of a decoder. Matrices [outputs, columns] and tables are contiguous, in the dtype it computes in.

    Args:
        layers: [RMSNorm, attention, RMSNorm, SwiGLU] each.
        geometry: sizes.
        rotary: float32 [positions, head_dim / 2, 2], cosine and sine for each pair of neighbouring channels; with
            `rotary_halves` [positions, 2, head_dim / 2].
        embedding: [words, dim]; None: embeddings are given instead of tokens.
        join: [dim, 2 dim], maps an embedding and a feature to one input; None: there are no features.
        join_bias: [dim], or None.
        norm_out: [dim]; None: no last norm.
        head: [V, dim]; None: no logits.
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
    """The new tokens of S sequences: those of B requests, S = halves * B, all first halves before all second ones.

    Args:
        positions: int64 [1, B or S, n], rows of `Weights.rotary`, counted from its end where negative.
        mask: bool [1, B or S, n, w], which slots behind `lengths` each token sees.
        hidden_states: [S, n, dim], embeddings; None: `tokens` are given.
        tokens: int64 [B, n], rows of `Weights.embedding`.
        features: [B, n, halves * dim], to be joined to the embeddings; or None.
        halves: sequences of a request: 2 with guidance, else 1.
        lengths: int64 [S], slots that are full and seen by all new tokens of a sequence; None: no slot is.
        starts: int64 [S], the first of these slots that is seen; None: 0.
        origins: int64 [S], given with `lengths`: `lengths - origins` is added to positions.
        last_position: greater positions are replaced by it; None: there are none.
        places: int64 [S * n], slots of the tokens, counted through all sequences; None: the last n of the w.
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
    """Whether `decoder_pass` takes this dtype and cache, given that there are kernels: on a CPU, without gradients."""
    _, heads, slots, channels = keys.shape
    return (
        keys.device.type == "cpu"
        and not torch.is_grad_enabled()
        and dtype in (torch.float32, torch.bfloat16)
        and keys.dtype == dtype
        and keys.stride() == (slots * heads * channels, channels, heads * channels, 1)
        and (heads, channels) == (geometry.num_key_value_heads, geometry.head_dim)
        and geometry.head_dim <= _MOST_CHANNELS
        and geometry.head_dim % 2 == 0
    )


def fits_weights(weights: Weights) -> bool:
    """Whether `decoder_pass` takes these: on a CPU, contiguous, in the sizes of the geometry, and all of one dtype but
    rounded matrices, which are rounded alike."""
    geometry, first = weights.geometry, weights.layers[0]
    dim, dtype, kind = first.norm_feed_forward.shape[0], first.norm_feed_forward.dtype, first.qkv.dtype
    queries, keys = (heads * geometry.head_dim for heads in (geometry.num_heads, geometry.num_key_value_heads))
    inner = geometry.intermediate_size
    pairs = (2, geometry.head_dim // 2) if geometry.rotary_halves else (geometry.head_dim // 2, 2)
    wanted: list[tuple[Tensor | None, torch.dtype, tuple[int, ...]]] = [
        (weights.rotary, torch.float32, (len(weights.rotary), *pairs)),
        (weights.join, dtype, (dim, 2 * dim)),
        (weights.join_bias, dtype, (dim,)),
        (weights.norm_out, dtype, (dim,)),
    ]
    wanted += [(table, dtype, (len(table), dim)) for table in (weights.embedding, weights.head) if table is not None]
    for layer in weights.layers:
        is_apart = layer.key is not None
        of_matrices = {  # outputs and inputs
            "qkv": (queries + (0 if is_apart else 2 * keys), dim),
            "out": (dim, queries),
            "gate_up": (inner if is_apart else 2 * inner, dim),
            "down": (dim, inner),
        }
        matrices = [(getattr(layer, name), *of_matrices[name]) for name in MATRICES]
        if is_apart:
            matrices += [(layer.key, keys, dim), (layer.value, keys, dim), (layer.up, inner, dim)]
        wanted += [(matrix, kind, (outputs, _columns(inputs, kind))) for matrix, outputs, inputs in matrices]
        for scale, (outputs, _) in zip(layer.scales, of_matrices.values(), strict=False):
            wanted.append((scale, torch.float32, (outputs,)))
        wanted += [(norm, dtype, (dim,)) for norm in (layer.norm_attention, layer.norm_feed_forward)]
        wanted += [(norm, dtype, (geometry.head_dim,)) for norm in (layer.norm_query, layer.norm_key)]
        wanted += [(layer.qkv_bias, torch.float32, (queries + 2 * keys,)), (layer.out_bias, torch.float32, (dim,))]
        parts, norms = (layer.key, layer.value, layer.up), (layer.norm_query, layer.norm_key)
        if any(len({part is None for part in together}) > 1 for together in (parts, norms)):
            return False
        if len(layer.scales) != (len(MATRICES) if kind == torch.int8 else 0) or layer.dynamic != first.dynamic:
            return False
    return kind in (dtype, torch.int8, torch.uint8) and all(
        tensor is None or _is(tensor, dtype, size) for tensor, dtype, size in wanted
    )


def _fits_tokens(new: NewTokens, weights: Weights, keys: Tensor) -> bool:
    """Whether the kernels may read these beside such a cache. What lies in them they check themselves."""
    sequences, dim = keys.shape[0], weights.layers[0].norm_feed_forward.shape[0]
    requests, num_tokens = sequences // new.halves, new.positions.shape[-1]
    wanted = (
        (new.positions, torch.int64, (len(new.positions), num_tokens)),
        (new.mask, torch.bool, (len(new.mask), num_tokens, new.mask.shape[-1])),
        (new.hidden_states, keys.dtype, (sequences, num_tokens, dim)),
        (new.tokens, torch.int64, (requests, num_tokens)),
        (new.features, keys.dtype, (requests, num_tokens, new.halves * dim)),
        (new.places, torch.int64, (sequences * num_tokens,)),
        *((each, torch.int64, (sequences,)) for each in (new.lengths, new.starts, new.origins)),
    )
    return (
        all(
            tensor is None or (tensor.dtype == dtype and tensor.shape == size and tensor.is_cpu)
            for tensor, dtype, size in wanted
        )
        and min(len(new.positions), len(new.mask)) > 0
        and (new.hidden_states is None) != (new.tokens is None)
        and (new.lengths is None) == (new.origins is None)
        and (new.features is None) == (weights.join is None)
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
    """All layers, the last norm and the output head over new tokens. Needs a cache and weights that fit (`fits_pass`,
    `fits_weights`).

    Args:
        weights: The decoder's.
        new: The tokens and where they stand.
        keys, values: For each layer [S, H_kv, slots, D], in the layout of `StaticKVCache`; new ones are written.
        guidance_scale: Logits of two halves become `second + guidance_scale * (first - second)`; None: no guidance.
        logits_to_keep: How many of the last tokens get logits, at most all; 0: all.
        kept_layers: Numbers of layers, rising, after which hidden states are returned beside the last ones.
        side_by_side: Whether the states of a request's halves lie beside each other; needs empty `kept_layers`.

    Returns:
        States [S, n, k dim] after each of `kept_layers` and, normed and last, after all layers; side by side
        [B, n, halves * dim]. And logits float32 [S, n or logits_to_keep, V], [B, ...] with guidance; None without a
        head. None instead of both where there are no kernels, or the new tokens do not fit; nothing was written.

    Raises:
        IndexError: a token, a position or a slot that does not exist; nothing was written.
    """
    kernels = library()
    if kernels is None or not _fits_tokens(new, weights, keys[0]):
        return None
    geometry, layers, dtype = weights.geometry, weights.layers, keys[0].dtype
    dim, matrices = layers[0].norm_feed_forward.shape[0], layers[0].qkv.dtype
    sequences, num_tokens = keys[0].shape[0], new.positions.shape[-1]
    requests = sequences // new.halves
    inner = [number for number in kept_layers if number < len(layers)]
    if side_by_side:
        states = torch.empty(requests, num_tokens, new.halves * dim, dtype=dtype)
    else:
        states = torch.empty(sequences, num_tokens, (len(inner) + 1) * dim, dtype=dtype)
    kept, logits = min(logits_to_keep or num_tokens, num_tokens), None
    if weights.head is not None:
        rows = sequences if guidance_scale is None else requests
        logits = torch.empty(rows, kept, weights.head.shape[0], dtype=torch.float32)
    sizes = (
        *(KINDS[dtype], _INT8_ROWS if layers[0].dynamic else KINDS[matrices], sequences, num_tokens, dim),
        *(geometry.num_heads, geometry.num_key_value_heads, geometry.head_dim, geometry.intermediate_size, len(layers)),
        *(0 if logits is None else logits.shape[-1], new.halves, keys[0].shape[2], new.mask.shape[-1]),
        *(new.mask.shape[0], kept, new.positions.shape[0]),
        *(_NO_BOUND if new.last_position is None else new.last_position, weights.rotary.shape[0]),
        *(0 if weights.embedding is None else weights.embedding.shape[0], states.shape[-1], int(side_by_side)),
        int(geometry.rotary_halves),
        torch.get_num_threads(),
    )
    fed = (
        *(new.hidden_states, new.tokens, weights.embedding, new.features, weights.join, weights.join_bias),
        *(new.lengths, new.starts, new.origins, new.positions, weights.rotary, new.mask, new.places),
        *(weights.norm_out, weights.head),
    )
    # By name, so that none ends before the pass.
    whole = [None if tensor is None else tensor.contiguous() for tensor in fed]
    last_states = states.data_ptr() + (0 if side_by_side else len(inner) * dim * dtype.itemsize)
    pointers = [*map(_address, whole), last_states, _address(logits)]
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


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
