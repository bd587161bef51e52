"""Guesses of an EAGLE head several levels deep, at all places of a picture or a text at once.

EAGLE-3's training-time test (Li et al. 2025, arXiv 2503.01840, section 3.2). A node at level k of a draft reads its
parent's guess in place of a feature. It sees its k - 1 ancestors in the draft with the features that they read, and all
earlier tokens with the target's features. So level k at place t attends to level 1 up to place t - k + 1, and to level
i at place t - k + i for 1 < i <= k, exactly as in drafting.

Belongs here: the forward pass through the network's parts, and the mean of losses over levels. Does not belong here:
inputs and the losses of a level (`drafter.py`, `text_drafter.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vargen.drafters.eagle_head import PairHead
from vargen.training.config import UnrolledConfig

_CHUNK = 96  # queries at once; as in `scenes.training.transformer_pass`


def loss_over_levels(
    levels: Iterable[Mapping[str, Tensor]], config: UnrolledConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """The weighted sum of a head's losses, and each of them, detached; all are means over levels.

    Args:
        levels: losses by name for each level, from the first on.
        config: has the weights by name, and by how much less a level counts than the one above it.
    """
    decays = [config.level_decay**level for level in range(config.levels)]
    parts: dict[str, Any] = {}
    for decay, losses in zip(decays, levels, strict=True):
        for name, value in losses.items():
            parts[name] = parts.get(name, 0.0) + decay / sum(decays) * value
    loss: Any = sum(config.loss_weights[name] * value for name, value in parts.items())
    return loss, {name: value.detach() for name, value in parts.items()}


def guesses_by_level(
    drafter: PairHead, tokens: Tensor, features: Tensor, positions: Tensor, valid: Tensor, first: int, levels: int
) -> list[Tensor]:
    """The head's hidden states after each pair from pair `first - 1` on, for each level.

    Earlier pairs, and the same ones at later levels, are needed for their keys and values alone, so a prompt costs
    little.

    Args:
        tokens: int64 [R, P]. features: [R, P, dim] fused, of the target. positions: int64 [1, P].
        valid: bool [R, P], False at padding.
        first: the first pair whose feature a draft may guess, 1 or more; pairs before it read the target's at every
            level.
        levels: 1 or more.

    Returns:
        `levels` tensors [R, P - first + 1, dim]. Where a draft of that many levels would begin before pair `first - 1`,
        the state is of the deepest level that does not.
    """
    attention = drafter.attn
    rotary = drafter.rotary_rows(positions)
    embeddings = drafter.token_embedding(tokens).to(drafter.fc.weight.dtype)  # they may be a model's own, in bfloat16
    keys: list[Tensor] = []
    values: list[Tensor] = []
    guesses: list[Tensor] = []
    for level in range(levels):
        # A later level's pairs before `first` are those of the level above it.
        since, start = (first, first) if level else (0, first - 1)
        read = guesses[-1][:, :-1] if level else features
        hidden_states = drafter.fc(torch.cat((embeddings[:, since:], read.to(embeddings.dtype)), dim=-1))
        query, key, value = attention.project(attention, hidden_states, rotary[:, since:])  # [R, H, P - since, D]
        keys.append(torch.cat((keys[0][:, :, :since], key), dim=2) if level else key)
        values.append(torch.cat((values[0][:, :, :since], value), dim=2) if level else value)
        attended = _attend(query[:, :, start - since :], keys, values, valid, start)
        hidden_states = hidden_states[:, start - since :]
        hidden_states = hidden_states + attention.to_out(attended.transpose(1, 2).reshape(hidden_states.shape))
        guess = hidden_states + drafter.ff(drafter.norm2(hidden_states))
        guesses.append(torch.cat((guesses[0][:, :1], guess), dim=1) if level else guess)
    return guesses


def _attend(query: Tensor, keys: list[Tensor], values: list[Tensor], valid: Tensor, start: int) -> Tensor:
    """[R, H, P - start, D]: attention of the deepest level's queries to the keys of all levels, each [R, H, P, D].

    Args:
        query: [R, H, P - start, D], of pair `start` and later ones.
    """
    num_pairs, above = keys[0].shape[2], len(keys) - 1
    query = query * query.shape[-1] ** -0.5
    # Each later level has one visible key, the ancestor's, which stands `back` places before.
    backs = range(above - 1, -1, -1)
    ancestors = [_moved(key, back)[:, :, start:] for key, back in zip(keys[1:], backs, strict=True)]
    along = [_moved(value, back)[:, :, start:] for value, back in zip(values[1:], backs, strict=True)]
    seen = [F.pad(valid, (back, 0))[:, start:num_pairs] for back in backs]  # [R, P - start] each
    places = torch.arange(num_pairs, device=query.device)
    chunks = []
    for begin in range(0, num_pairs - start, _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, num_pairs - start))
        end, of_rows = start + rows.stop, places[start + begin : start + rows.stop, None]
        visible = (places[:end] <= of_rows - above) & valid[:, None, :end]  # [R, c, end]
        if above == 0:
            visible = visible | (places[:end] == of_rows)  # padding sees itself
        scores = [query[:, :, rows] @ keys[0][:, :, :end].mT]  # [R, H, c, end]
        scores[0] = scores[0].masked_fill(~visible[:, None], -torch.inf)
        for number, ancestor in enumerate(ancestors):
            score = (query[:, :, rows] * ancestor[:, :, rows]).sum(-1, keepdim=True)  # [R, H, c, 1]
            if number < above - 1:  # the last is the node itself
                score = score.masked_fill(~seen[number][:, None, rows, None], -torch.inf)
            scores.append(score)
        weights = torch.cat(scores, dim=-1).softmax(dim=-1).to(query.dtype)
        mixed = weights[..., :end] @ values[0][:, :, :end]
        for number, value in enumerate(along):
            mixed = mixed + weights[..., end + number, None] * value[:, :, rows]
        chunks.append(mixed)
    return torch.cat(chunks, dim=2)


def _moved(states: Tensor, back: int) -> Tensor:
    """[R, H, P, D], moved by `back` places towards the end, with zeros at the beginning."""
    return F.pad(states, (0, 0, back, 0))[:, :, : states.shape[2]] if back else states
