"""What part of a video a language model is given in a training step: which visual tokens, and up to which layer.

Published models read visual tokens in early layers and hardly attend to them later, and draft models need a tenth of
them. Small models learn neither by themselves. So some steps show a part of the visual tokens, some remove all of them
after a layer, and some spread the steps of time.
Belongs here: embeddings and positions of such views, choosing tokens, decoding, and the alignment loss. Does not belong
here: models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from specdecode.targets.arguments import cache_argument
from vargen.video.models.pruning import keep_uniform, token_budget

CHOICES = ("uniform", "random", "objects")
"""Ways to choose visual tokens: evenly spread as LVSpec does, at random, or mostly those that show objects, as SpecVLM
and UV-Prune aim for."""

_SHARPNESS = 10.0  # a likeness of a tenth more decides
_OBJECT_LEAD = 0.5  # of a tenth, three fifths then show objects


def choose_visual(how: str, share: float, shows_object: Tensor, generator: torch.Generator) -> Tensor:
    """Which visual tokens are shown.

    Args:
        how: one of `CHOICES`.
        share: of them, in (0, 1].
        shows_object: bool [B, m].

    Returns:
        [B, k] int64, ascending numbers of visual tokens.
    """
    batch_size, count = shows_object.shape
    budget = token_budget(count, share)
    if how == "uniform":
        return keep_uniform(count, budget).expand(batch_size, budget)
    scores = torch.rand(batch_size, count, generator=generator)
    if how == "objects":
        scores += _OBJECT_LEAD * shows_object
    return scores.topk(budget).indices.sort().values


@dataclass(frozen=True)
class View:
    """Conversations about videos, as the language model is given them.

    Attributes:
        embeds: [B, L, dim].
        positions: [3, B, L], of M-RoPE.
        visual: which of the L columns are visual; the same of all rows.
        repeats: how many tokens each visual token stands for, as in a video that shows each frame so many times.
    """

    embeds: Tensor
    positions: Tensor
    visual: slice
    repeats: int = 1

    @property
    def text_columns(self) -> Tensor:
        """[L - k] int64: columns that are not visual."""
        columns = torch.arange(self.embeds.shape[1], device=self.embeds.device)
        return torch.cat((columns[: self.visual.start], columns[self.visual.stop :]))

    def with_kept(self, kept: Tensor) -> View:
        """The view with some of its visual tokens only, [B, k] ascending numbers; all keep their positions."""
        start, stop = self.visual.start, self.visual.stop
        visual = self.embeds[:, start:stop]
        chosen = visual.gather(1, kept[..., None].expand(-1, -1, visual.shape[-1]))
        places = self.positions[..., start:stop]
        chosen_places = places.gather(-1, kept.expand(*places.shape[:-1], kept.shape[-1]))
        return View(
            torch.cat((self.embeds[:, :start], chosen, self.embeds[:, stop:]), dim=1),
            torch.cat((self.positions[..., :start], chosen_places, self.positions[..., stop:]), dim=-1),
            slice(start, start + kept.shape[1]),
            self.repeats,
        )

    def stretched(self, factor: int) -> View:
        """The view with its steps of time `factor` times as far apart, as a longer video's are."""
        positions = self.positions.clone()
        time = positions[0, :, self.visual]
        positions[0, :, self.visual] = time[:, :1] + factor * (time - time[:, :1])
        return replace(self, positions=positions)

    def mask(self) -> Tensor:
        """Ones [B, L]; if visual tokens are repeated, what is added to attention's scores [1, 1, L, L]."""
        if self.repeats == 1:
            # Padding stands at the end, where no token attends to it. Without a mask the model would assume packing.
            return torch.ones(self.embeds.shape[:2], dtype=torch.int64, device=self.embeds.device)
        length = self.embeds.shape[1]
        added = torch.full((length, length), -torch.inf, device=self.embeds.device).triu(1)
        added[:, self.visual] += math.log(self.repeats)  # so many equal keys
        return added[None, None]


def alignment_loss(view: View, states: Tensor, asks: Tensor, shows_object: Tensor) -> Tensor:
    """How badly UV-Prune's score separates tokens of objects from the rest, in nats.

    The score of ParallelVLM (arXiv 2603.19610) is the growth in similarity to the question. It finds what matters in
    the videos of published models, which have learned from millions of captions. Small models do not learn this
    similarity by themselves, so this loss teaches it. Tokens of objects and all others have the same total weight.

    Args:
        view: as it was given to the model.
        states: [B, L, dim] after a layer.
        asks: bool [B, n], which of the n columns behind the video are the question.
        shows_object: bool [B, k].
    """

    def likeness(values: Tensor) -> Tensor:
        directions = F.normalize(values.float(), dim=-1)
        text = (directions[:, view.visual.stop :] * asks[..., None]).sum(1) / asks.sum(1, keepdim=True)  # [B, dim]
        return (directions[:, view.visual] @ text[..., None])[..., 0]  # [B, k]

    gain = likeness(states) - likeness(view.embeds)
    margin = _SHARPNESS * (gain - gain.mean(1, keepdim=True))
    sides = [F.softplus(-margin)[shows_object], F.softplus(margin)[~shows_object]]
    return torch.stack([each.mean() for each in sides if len(each)]).mean()


@contextmanager
def without_visual_after(language_model: Any, layer: int | None, view: View) -> Iterator[None]:
    """Inside, visual tokens are taken out of a pass over `view` after `layer` layers; None: they stay."""
    if layer is None:
        yield
        return
    stays = view.text_columns

    def cut(_module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
        hidden_states = args[0] if args[0].shape[1] == len(stays) else args[0][:, stays]
        return (hidden_states, *args[1:]), at_places(inputs, stays)

    handles = [each.register_forward_pre_hook(cut, with_kwargs=True) for each in list(language_model.layers)[layer:]]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hidden_states(language_model: Any, view: View, cache: Any = None) -> Tensor:
    """[B, L, dim] final hidden states of a view."""
    return language_model(
        inputs_embeds=view.embeds,
        attention_mask=view.mask(),
        position_ids=view.positions,
        **cache_argument(language_model, cache),
        use_cache=cache is not None,
    ).last_hidden_state


@torch.no_grad()
def greedy(model: Any, prompt: View, max_new_tokens: int, stop: Sequence[int]) -> list[list[int]]:
    """Likeliest answers to prompts of equal length, the token that ends them left out."""
    cache, language_model = DynamicCache(), model.model.language_model
    states = hidden_states(language_model, prompt, cache)
    position = prompt.positions[..., -1:] + 1
    ends = torch.tensor(stop, device=states.device)
    tokens: list[Tensor] = []
    over = torch.zeros(len(states), dtype=torch.bool, device=states.device)
    for _ in range(max_new_tokens):
        newest = model.lm_head(states[:, -1]).argmax(-1)  # [B]
        over |= torch.isin(newest, ends)
        tokens.append(newest.masked_fill(over, -1))
        if bool(over.all()):
            break
        seen = cache.get_seq_length()
        states = language_model(
            inputs_embeds=model.get_input_embeddings()(newest[:, None]),
            attention_mask=torch.ones(len(newest), seen + 1, dtype=torch.int64, device=newest.device),
            position_ids=position,
            **cache_argument(language_model, cache),
            use_cache=True,
        ).last_hidden_state
        position = position + 1
    return [[token for token in row if token >= 0] for row in torch.stack(tokens, dim=1).tolist()]


def at_places(inputs: Mapping[str, Any], places: Tensor) -> dict[str, Any]:
    """The arguments by name of a decoder layer of transformers, but its hidden states, for some of their places [n]."""
    chosen = dict(inputs)
    chosen["position_embeddings"] = tuple(each.index_select(-2, places) for each in inputs["position_embeddings"])
    if (mask := inputs.get("attention_mask")) is not None:
        chosen["attention_mask"] = mask.index_select(-2, places).index_select(-1, places)
    for name in ("position_ids", "cache_position"):
        if inputs.get(name) is not None:
            chosen[name] = inputs[name].index_select(-1, places)
    return chosen
