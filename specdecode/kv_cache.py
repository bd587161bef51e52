"""A static key/value cache whose rows have their own lengths.

Belongs here: where keys and values lie, how new ones are written and kept, and which slots a new token sees. Does not
belong here: attention, the meaning of tokens, and verification.

A *slot* is a position in the cache, counted from 0 in every row. Slots below a row's length are committed. A forward
pass over `n` new tokens writes them to the slots `length .. length + n - 1`, until some of them are kept. A slot at or
above the length holds old numbers (rejected tokens, padding), and nothing ever clears it: the attention mask alone
decides what is seen, so rolling back is nothing but lowering a length.

After construction nothing here reads a tensor back to the host or allocates more than it returns, so the same calls run
eagerly, compiled, and inside a CUDA graph. `lengths` is always changed in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdecode.checks import check_counts, check_room
from specdecode.kernels import fused_ops
from specdecode.kernels.in_graph import in_graph


class StaticKVCache:
    """Preallocated keys and values of all layers for a batch of sequences of different lengths.

    Everything lies in one buffer `[num_layers, 2, batch * max_length, num_heads * head_dim]`: a token's key is one
    contiguous row, so writing is a row copy, and `keep` moves all layers at once. `keys[layer]` and `values[layer]` are
    views of it in attention's layout `[batch, num_heads, max_length, head_dim]`.

    Attributes:
        keys, values: one view `[B, H, S, D]` per layer.
        device, dtype: of keys and values.
        lengths: int64 `[B]`, the committed tokens of each row.
        starts: int64 `[B]` or None; slots below a row's start are padding that no new token sees (left-padded prompts).
        most_kept: how many tokens commits since the beginning may have kept, as the host knows.
        most_new: how many tokens a pass in a graph fed at most.
        slots_in_graph: what `reach` says in a graph.
        max_length: S, the slots of a row. Leave room for the longest draft beyond the longest sequence: nothing looks
            whether a row is full, and what has no room is written to the next row.

    Args:
        num_layers, batch_size, num_heads, max_length, head_dim: the sizes; `num_heads` counts key/value heads.
        device, dtype: of keys and values.

    Raises:
        ValueError: a size is not a positive integer.
        MemoryError: the device's whole memory is too small; nothing was allocated.
    """

    graph_state = ("lengths", "starts")  # keys and values never move, and graphs are of one cache

    def __init__(
        self,
        num_layers: int,
        batch_size: int,
        num_heads: int,
        max_length: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        sizes = {
            "num_layers": num_layers,
            "batch_size": batch_size,
            "num_heads": num_heads,
            "max_length": max_length,
            "head_dim": head_dim,
        }
        check_counts(**sizes)
        self.num_layers = num_layers
        self.batch_size = batch_size
        self.num_heads = num_heads
        self.max_length = max_length
        self.head_dim = head_dim

        num_bytes = 2 * num_layers * batch_size * max_length * num_heads * head_dim * dtype.itemsize
        check_room("keys and values", num_bytes, sizes, device)
        # Zeros, not empty: masked slots still enter `probability 0 * value`, and 0 * NaN would be NaN.
        self._rows = torch.zeros(
            num_layers, 2, batch_size * max_length, num_heads * head_dim, device=device, dtype=dtype
        )
        self.device, self.dtype = self._rows.device, dtype
        self._lay_views()
        self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.starts: Tensor | None = None
        self.most_kept, self.most_new, self.slots_in_graph = 0, 0, max_length
        self.expect_from(0)
        self._row_offsets = torch.arange(batch_size, device=device)[:, None] * max_length  # [B, 1]
        self._slot_index = torch.arange(max_length, device=device)  # [S]

    def _lay_views(self) -> None:
        """Keys and values by layer: [B, H, S, D], and as rows [B * S, H * D]."""
        in_heads = self._rows.view(self.num_layers, 2, -1, self.max_length, self.num_heads, self.head_dim)
        in_heads, layers = in_heads[:, :, : self.batch_size].transpose(3, 4), range(self.num_layers)
        self.keys, self.values = ([in_heads[layer, kind] for layer in layers] for kind in (0, 1))
        self._key_rows, self._value_rows = ([self._rows[layer, kind] for layer in layers] for kind in (0, 1))

    def __getstate__(self) -> dict[str, Any]:
        """All but views of the buffer, each of which would be copied or pickled whole, and lie elsewhere afterwards."""
        views = ("keys", "values", "_key_rows", "_value_rows")
        return {name: value for name, value in vars(self).items() if name not in views}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lay_views()

    def fits(self, max_length: int, **sizes: object) -> bool:
        """Whether it can replace a new cache with at least `max_length` slots and exactly these other `sizes`."""
        return self.max_length >= max_length and all(getattr(self, name) == size for name, size in sizes.items())

    def reset(self) -> None:
        """Forget everything: all lengths zero, no padding. Old keys and values stay where they are, unseen."""
        self.lengths.zero_()
        self.starts = None
        self.expect_from(0)

    def expect_from(self, length: int, most: int | None = None) -> None:
        """No row has more committed tokens than `length`, nor will have more than `most`; None: than there are slots.

        Exact counts are on the device. This bound is on the host, and spares every pass the empty end of the cache."""
        self.most_committed, self.most_to_come = length, self.max_length if most is None else most

    def expect(self, num_kept: int) -> None:
        """A commit keeps at most so many tokens of every row. A graph counts nothing (`specdecode.graphs`)."""
        if not torch.compiler.is_compiling():
            self.most_kept += num_kept
            self.most_committed = min(self.most_committed + num_kept, self.most_to_come)

    def reach(self, num_new: int) -> int:
        """How many slots attention reads in a pass over so many new tokens; in a graph, as its maker has set it."""
        if in_graph():
            if not torch.compiler.is_compiling():
                self.most_new = max(self.most_new, num_new)
            return self.slots_in_graph
        return min(self.most_committed + num_new, self.max_length)

    def new_slots(self, num_tokens: int) -> Tensor:
        """The slots `length .. length + num_tokens - 1` of every row, int64 `[B, num_tokens]`."""
        return self.lengths[:, None] + self._slot_index[:num_tokens]

    def flatten_slots(self, slots: Tensor) -> Tensor:
        """Slots `[B, n]` of each row as indices `[B * n]` into all rows laid end to end.

        `update` takes either form; a model flattens once per forward instead of once per layer.
        """
        return (slots + self._row_offsets).flatten()

    def update(
        self, layer_index: int, key: Tensor, value: Tensor, slots: Tensor, kv_length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values, and return what attention reads.

        Args:
            layer_index: which layer.
            key, value: `[B, H, n, D]`.
            slots: int64 `[B, n]`, distinct within a row, or the same from `flatten_slots`, `[B * n]`.
            kv_length: return only the first `kv_length` slots (as views), where the host knows that rows reach no
                further: this saves attention over the empty rest of the buffer.

        Returns:
            Keys and values `[B, H, kv_length or S, D]`.
        """
        if slots.ndim == 2:
            slots = self.flatten_slots(slots)
        width = self.num_heads * self.head_dim
        # [B, H, n, D] -> [B * n, H * D]; a model that makes its keys as [B, n, H, D] gets this as a view.
        self._key_rows[layer_index].index_copy_(0, slots, key.transpose(1, 2).reshape(-1, width))
        self._value_rows[layer_index].index_copy_(0, slots, value.transpose(1, 2).reshape(-1, width))
        if torch.compiler.is_compiling():
            # Views of the written tensors: a compiler would copy the whole buffer for two overlapping inputs.
            keys, values = (self._in_heads(rows[layer_index]) for rows in (self._key_rows, self._value_rows))
        else:
            keys, values = self.keys[layer_index], self.values[layer_index]
            if kv_length == self.max_length:
                return keys, values
        return keys[:, :, :kv_length], values[:, :, :kv_length]

    def _in_heads(self, rows: Tensor) -> Tensor:
        """[B, H, S, D] of one layer's rows [B * S, H * D]."""
        return rows.view(self.batch_size, self.max_length, self.num_heads, self.head_dim).transpose(1, 2)

    def attention_mask(self, new_token_mask: Tensor, kv_length: int | None = None) -> Tensor:
        """Which slots each of `q` new tokens sees, of `n` that lie in `new_slots(n)`.

        A new token sees the committed slots of its row (from `starts` on), and those new tokens that
        `new_token_mask` allows. Usually q is n; it is less where new tokens are fed in several forwards.

        Args:
            new_token_mask: bool `[B, q, n]` (or `[1, q, n]`), entry `[b, i, j]`: the i-th of the queries sees new token
                j. A token must see itself.
            kv_length: as in `update`; must reach the last new token of every row.

        Returns:
            bool `[B, 1, q, kv_length or S]`.
        """
        num_queries, num_tokens = new_token_mask.shape[-2:]
        slot_index = self._slot_index if kv_length is None else self._slot_index[:kv_length]
        relative = slot_index - self.lengths[:, None]  # [B, S]: the new token that a slot belongs to, < 0 if committed
        committed = relative < 0
        if self.starts is not None:
            committed = committed & (slot_index >= self.starts[:, None])
        is_new = (relative >= 0) & (relative < num_tokens)
        which = relative.clamp(0, num_tokens - 1)[:, None, :]  # [B, 1, S]
        batch_size = which.shape[0]
        among_new = new_token_mask.expand(batch_size, -1, -1).gather(2, which.expand(-1, num_queries, -1))  # [B, q, S]
        return (committed[:, None] | (is_new[:, None] & among_new))[:, None]

    def distances(self, depths: Tensor, kv_length: int | None = None) -> Tensor:
        """How many positions each slot lies before each new token, for sliding-window attention.

        Args:
            depths: int64 `[B, n]`, the position of each token in `new_slots(n)`, after the row's committed ones.
            kv_length: as in `attention_mask`.

        Returns:
            int64 `[B, n, kv_length or S]`; negative at later tokens, and without meaning at empty slots.
        """
        slot_index = self._slot_index if kv_length is None else self._slot_index[:kv_length]
        relative = slot_index - self.lengths[:, None]  # [B, S]: as in `attention_mask`; committed slots stand there
        places = torch.where(relative < 0, relative, depths.gather(1, relative.clamp(0, depths.shape[1] - 1)))
        return depths[:, :, None] - places[:, None, :]

    def advance(self, counts: Tensor | int) -> None:
        """Commit the first `counts` (`[B]`, or one number) tokens of the last forward; negative ones are taken back."""
        self.lengths.add_(counts)

    @fused_ops.fused(fused_ops.move)
    def keep(self, node_indices: Tensor, counts: Tensor) -> None:
        """Commit some tokens of the last forward, in the order given, and drop the others.

        Token `node_indices[b, j]` of the last forward (which wrote to `new_slots(n)`) moves to slot `lengths[b] + j`
        in every layer, and `lengths` grows by `counts`.

        Args:
            node_indices: int64 `[B, k]`, of which row b uses the first `counts[b]`; the others may be anything.
            counts: int64 `[B]`, each at most k.
        """
        num_kept = node_indices.shape[1]
        # Unused entries may be -1 or past the end; what they copy lands beyond the new length, where nothing looks.
        sources = (self.lengths[:, None] + node_indices.clamp(min=0)).clamp(max=self.max_length - 1)  # [B, k]
        targets = self.new_slots(num_kept)  # [B, k]
        moved = self._rows.index_select(2, self.flatten_slots(sources))  # [L, 2, B * k, H * D], a copy
        self._rows.index_copy_(2, self.flatten_slots(targets), moved)
        self.lengths.add_(counts)

    def first_rows(self, count: int) -> StaticKVCache:
        """The first rows of this cache, which is the one that counts what is expected. Others must not be put in."""
        part = object.__new__(StaticKVCache)
        part.__dict__.update(vars(self))
        part.keys, part.values = ([each[:count] for each in kind] for kind in (self.keys, self.values))
        part.batch_size, part.lengths, part._row_offsets = count, self.lengths[:count], self._row_offsets[:count]
        part.starts = None if self.starts is None else self.starts[:count]
        return part

    def replace_rows(self, rows: Tensor, other: StaticKVCache, num_slots: int) -> None:
        """Replace rows by those of another cache with the same layers and heads.

        Args:
            rows: int64 `[k]`, distinct.
            other: of k rows.
            num_slots: how many slots are copied, the length of its longest row.

        Raises:
            ValueError: the slots do not fit.
        """
        if num_slots > min(self.max_length, other.max_length):
            raise ValueError(
                f"num_slots must be at most {min(self.max_length, other.max_length)}, the slots of both caches, got "
                f"{num_slots}"
            )
        targets = (rows[:, None] * self.max_length + self._slot_index[:num_slots]).flatten()
        sources = (other._row_offsets + other._slot_index[:num_slots]).flatten()
        self._rows.index_copy_(2, targets, other._rows.index_select(2, sources).to(self.dtype))
        self.lengths.index_copy_(0, rows, other.lengths)
        self.most_committed = max(self.most_committed, other.most_committed)
        if self.starts is not None or other.starts is not None:
            mine, theirs = (torch.zeros_like(c.lengths) if c.starts is None else c.starts for c in (self, other))
            self.starts = mine.index_copy(0, rows, theirs)
