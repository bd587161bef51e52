"""Draft heads for Video-LLMs: one decoder layer that continues the target's own features.

Belongs here: the network, its input rows for a prompt, and the settings that turn it into the published methods. Does
not belong here: its cache and its part in the decode loop (`video_draft_head.py`), its files and the check of its
target (`video_head_folder.py`), training.

All heads read pairs, as EAGLE does (arXiv 2401.15077): the embedding of token t, and the target's final hidden state at
token t - 1, which is the input of its output head. One decoder layer of the target's own class guesses the hidden state
at token t from them, and the target's output head gives the logits. The first token of a prompt has no row. The methods
differ in the rows that stand for the video, `VideoHeadConfig.visual`:

    "pairs"                  eagle    pairs, as for all other tokens
    "embeddings"             msd      embeddings of the visual tokens (arXiv 2505.14260)
    "states"                 sparrow  the target's hidden states after half its layers (arXiv 2602.15318, section 3.2)
    "compressed_embeddings"  vispec   a few learned means of embeddings; one more mean is mixed into every feature
                                      after the video (arXiv 2509.15235)
    "compressed_features"    flash    a few learned means of final hidden states (arXiv 2505.12728, section 3.2)

Two more settings: with `text_only` (Sparrow, section 3.1) the video has rows in training and none when drafting; with
`draft_length` (FLASH, section 3.3) several tokens are guessed at once.

Choices where papers are silent or releases differ: the layer is the library's class unmodified, so it has the norm
before its attention that EAGLE's releases leave out. Each row has its token's own position (or its number, `compact`).
Compressed rows have the positions of the last visual tokens. FLASH's release guesses K tokens by two linear maps with a
SiLU between, after an attention without residual or feed-forward; here the same two maps add to the output of a whole
decoder layer. With K = 1 there are no such maps, and the head is an EAGLE head.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, Cache, PreTrainedConfig

from specdecode.targets.arguments import cache_name
from vargen.video.models.architectures.catalogue import layer_classes

VISUAL_INPUTS = ("pairs", "embeddings", "states", "compressed_embeddings", "compressed_features")

KINDS: dict[str, dict[str, Any]] = {
    "eagle": {"visual": "pairs"},
    "msd": {"visual": "embeddings"},
    "vispec": {"visual": "compressed_embeddings", "num_queries": 2, "scale": True},
    "sparrow": {"visual": "states", "text_only": True},
    "flash": {"visual": "compressed_features", "num_queries": 16, "draft_length": 4},
}
"""The published methods, as values of `VideoHeadConfig`."""

_OF_COMPRESSION = ("num_queries", "scale")


@dataclass(frozen=True)
class VideoHeadConfig:
    """Settings of a head.

    Args:
        kind: its name, one of `KINDS`. Nothing depends on it.
        text_config: transformers' configuration of the target's language model, as plain values.
        visual: what stands for the video; see the module.
        visual_layer: for "states": the number of the target's decoder layer after which they are read; 0 is the
            embeddings.
        num_queries: C, for the compressed kinds. ViSpec mixes the last one into the features, the others are rows.
        scale: for the compressed kinds: scale the scores; see `VisualCompressor`.
        text_only: the video has no rows when drafting.
        draft_length: K, tokens guessed at once.
        compact: rows have consecutive positions; else each has its token's own.
        target: description of the target for which it was trained; see `video_head_folder.py`.

    Raises:
        ValueError: a field out of range.
    """

    kind: str
    text_config: dict[str, Any]
    visual: str
    visual_layer: int | None = None
    num_queries: int = 0
    scale: bool = False
    text_only: bool = False
    draft_length: int = 1
    compact: bool = False
    target: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.visual not in VISUAL_INPUTS:
            raise ValueError(f"visual must be one of {', '.join(VISUAL_INPUTS)}, got {self.visual!r}")
        layer_classes(self.text_config.get("model_type"))
        if self.draft_length < 1:
            raise ValueError(f"draft_length must be at least 1, got {self.draft_length}")
        if (self.visual == "states") != (self.visual_layer is not None):
            raise ValueError('visual_layer must be given for visual "states", and for nothing else')
        fewest = {"compressed_embeddings": 2, "compressed_features": 1}.get(self.visual, 0)
        if self.num_queries < fewest or (not fewest and self.num_queries):
            raise ValueError(
                f"num_queries must be {f'at least {fewest}' if fewest else 0} for visual {self.visual!r}, got "
                f"{self.num_queries}"
            )
        if self.scale and not fewest:
            raise ValueError(f"scale must be false for visual {self.visual!r}: there are no scores")

    @classmethod
    def of_kind(cls, kind: str, model: Any, **changes: Any) -> VideoHeadConfig:
        """The settings of a published method beside a target.

        Args:
            kind: one of `KINDS`.
            model: transformers' Video-LLM that it drafts for.
            **changes: fields that differ from the method's.

        Raises:
            ValueError: an unknown kind, a field out of range, or a layer that the target does not have.
        """
        text = model.config.get_text_config()
        values: dict[str, Any] = {"visual": "", **KINDS.get(kind, {}), **changes}
        if values["visual"] == "states" and values.get("visual_layer") is None:
            values["visual_layer"] = max(1, text.num_hidden_layers // 2)
        if not 0 <= (values.get("visual_layer") or 0) <= text.num_hidden_layers:
            raise ValueError(
                f"visual_layer must lie between 0 and the target's {text.num_hidden_layers} layers, got "
                f"{values['visual_layer']}"
            )
        if not values["visual"].startswith("compressed"):
            # Without compression the method's own settings of it go; those that were asked for are refused.
            values = {name: each for name, each in values.items() if name in changes or name not in _OF_COMPRESSION}
        # Fields that every configuration of the library has, such as names of classes, mean nothing to a layer.
        common = set(PreTrainedConfig().to_dict()) - {"model_type"}
        layer = {name: value for name, value in text.to_dict().items() if name not in common}
        layer |= {"num_hidden_layers": 1, "use_sliding_window": False}
        if "layer_types" in layer:
            layer["layer_types"] = None
        return cls(kind=kind, text_config=layer, **values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> VideoHeadConfig:
        """Make a configuration of what `to_dict` gives. Raises ValueError for a field that is unknown, missing or out
        of range."""
        known = {each.name for each in fields(cls)}
        required = {"kind", "text_config", "visual"}
        for name in sorted(required - set(values)) + sorted(set(values) - known):
            raise ValueError(f"{name} is {'missing' if name in required else 'not a setting of a draft head'}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    @property
    def capture_layers(self) -> tuple[int, ...]:
        """The layers that `VideoTarget` must capture for it."""
        if self.visual_layer is None or self.text_only:
            return ()
        return (self.visual_layer,)


@dataclass(frozen=True)
class TargetStates:
    """A target's states for B sequences of L tokens whose videos stand at the same places.

    Args:
        embeds: [B, L, dim] input embeddings, the video's among them.
        features: [B, L, dim] final hidden states.
        positions: [A, B or 1, L] int64 of the tokens, as in `VideoRequest`.
        is_visual: [L] bool.
        visual_states: [B, m, dim] hidden states of the visual tokens after `visual_layer` layers, if the head reads
            them.
    """

    embeds: Tensor
    features: Tensor
    positions: Tensor
    is_visual: Tensor
    visual_states: Tensor | None = None


@dataclass(frozen=True)
class DrafterRows:
    """Input rows of a head.

    Args:
        inputs: [B, R, dim].
        positions: [A, B or 1, R].
        text_rows: [n] int64, the rows that are pairs of text.
        text_places: [n] int64, the places of their tokens in the sequence, ascending.
        scene: [B, 1, dim], mixed into every feature after the video (ViSpec); else None.
    """

    inputs: Tensor
    positions: Tensor
    text_rows: Tensor
    text_places: Tensor
    scene: Tensor | None


class VisualCompressor(nn.Module):
    """Weighted means of visual tokens, one for each learned query, for heads that cannot afford all of them.

    FLASH (arXiv 2505.12728, equation 3) has queries only: softmax(C F^T) F, without a scale. The features' norm grows
    with the square root of their width, so the softmax soon selects one token and stops learning; `scale` divides by
    the square root of the width, as attention does. ViSpec (arXiv 2509.15235) scales, and projects keys and values; its
    several attention heads are one here.

    Args:
        dim: width of a visual token.
        num_queries: C, number of output tokens.
        scale: divide the scores by the square root of `dim`.
        projected: learn projections of keys and values, which start as the identity.

    Raises:
        ValueError: no query.
    """

    def __init__(self, dim: int, num_queries: int, scale: bool = False, projected: bool = False) -> None:
        super().__init__()
        if num_queries < 1:
            raise ValueError(f"num_queries must be at least 1, got {num_queries}")
        self.queries = nn.Parameter(torch.randn(num_queries, dim) / dim**0.5)
        self.factor = dim**-0.5 if scale else 1.0
        self.keys: nn.Module = _identity(dim) if projected else nn.Identity()
        self.values: nn.Module = _identity(dim) if projected else nn.Identity()

    def weights(self, visual: Tensor) -> Tensor:
        """[B, C, m] float32: the weight of each of the visual tokens [B, m, dim] for each query."""
        with torch.autocast(visual.device.type, enabled=False):  # large scores in bfloat16 are often equal
            keys = self.keys(visual.to(self.queries.dtype)).float()
            return (self.queries.float() @ keys.mT * self.factor).softmax(-1)

    def forward(self, visual: Tensor) -> Tensor:
        """[B, C, dim] of visual tokens [B, m, dim]; m must be above 0."""
        values = self.values(visual.to(self.queries.dtype))
        return self.weights(visual).to(values.dtype) @ values


def _identity(dim: int) -> nn.Linear:
    projection = nn.Linear(dim, dim, bias=False)
    nn.init.eye_(projection.weight)
    return projection


class VideoHead(nn.Module):
    """The network of a head with these settings."""

    def __init__(self, config: VideoHeadConfig) -> None:
        super().__init__()
        self.config = config
        layer_type, rotary_type = layer_classes(config.text_config["model_type"])
        self.text_config = AutoConfig.for_model(**config.text_config)
        self.set_attention("sdpa")
        dim = int(self.text_config.hidden_size)
        self.dim = dim
        self.fc = nn.Linear(2 * dim, dim)
        self.layer = layer_type(self.text_config, layer_idx=0)
        self._cache_name = cache_name(self.layer)
        self.rotary = rotary_type(self.text_config)
        self.compressor: VisualCompressor | None = None
        self.mix_scene: nn.Linear | None = None
        if config.visual.startswith("compressed"):
            of_embeddings = config.visual == "compressed_embeddings"
            self.compressor = VisualCompressor(dim, config.num_queries, config.scale, projected=of_embeddings)
            if of_embeddings:
                self.mix_scene = nn.Linear(2 * dim, dim)
        self.offsets: nn.Sequential | None = None
        if config.draft_length > 1:
            later = nn.Linear(4 * dim, config.draft_length * dim, bias=False)
            self.offsets = nn.Sequential(nn.Linear(dim, 4 * dim, bias=False), nn.SiLU(), later)
            nn.init.zeros_(later.weight)
        with torch.no_grad():
            # At first the guess is the sum of embedding and feature; this start saves much of the training.
            for module in (self.fc, self.mix_scene):
                if module is not None:
                    module.weight.zero_()
                    module.bias.zero_()
            self.fc.weight.copy_(torch.eye(dim).repeat(1, 2))
            if self.mix_scene is not None:
                self.mix_scene.weight[:, :dim].copy_(torch.eye(dim))

    @property
    def dtype(self) -> torch.dtype:
        """The type that it computes in; its matrices may be rounded to integers."""
        return self.layer.input_layernorm.weight.dtype

    def set_attention(self, name: str) -> None:
        """The attention that its layer uses, by transformers' name."""
        self.text_config._attn_implementation = name

    def pairs(self, embeds: Tensor, features: Tensor, scene: Tensor | None = None) -> Tensor:
        """[B, n, dim]: input rows of pairs.

        Args:
            embeds: [B, n, dim] of the tokens. features: [B, n, dim] at the tokens before them.
            scene: [B, 1, dim], mixed into the features.
        """
        embeds, features = embeds.to(self.dtype), features.to(self.dtype)
        if self.mix_scene is not None and scene is not None:
            features = self.mix_scene(torch.cat((features, scene.expand_as(features)), dim=-1))
        return self.fc(torch.cat((embeds, features), dim=-1))

    def rows(self, states: TargetStates, with_video: bool) -> DrafterRows:
        """Input rows for whole sequences.

        Args:
            states: of the target.
            with_video: whether the video has rows.

        Raises:
            ValueError: the states of the layer that it reads are missing.
        """
        is_visual, device = states.is_visual, states.is_visual.device
        place = torch.arange(len(is_visual), device=device)
        text = place[~is_visual & (place > 0)]
        visual = place[is_visual]
        after = text > (int(visual[-1]) if len(visual) else -1)
        scene, parts, places = None, [], []
        if len(visual) and (with_video or self.mix_scene is not None):
            given, at = self._visual_rows(states, visual)
            if self.mix_scene is not None:
                given, scene = given[:, :-1], given[:, -1:]
            if with_video:
                parts, places = [given], [at]
        before, behind = (
            self.pairs(states.embeds[:, chosen], states.features[:, chosen - 1], mixed)
            for chosen, mixed in ((text[~after], None), (text[after], scene))
        )
        inputs = torch.cat((before, behind, *parts), dim=1)
        order = torch.cat((text, *places)).argsort(stable=True)
        positions = states.positions[..., torch.cat((text, *places))][..., order]
        if self.config.compact:
            positions = torch.arange(len(order), device=device).expand(len(positions), 1, -1)
        return DrafterRows(
            inputs=inputs[:, order],
            positions=positions,
            text_rows=order.argsort()[: len(text)],
            text_places=text,
            scene=scene,
        )

    def _visual_rows(self, states: TargetStates, visual: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [B, r, dim] for the visual tokens at the places `visual` [m], and their own places [r]."""
        if self.config.visual == "pairs":
            visual = visual[visual > 0]
            return self.pairs(states.embeds[:, visual], states.features[:, visual - 1]), visual
        if self.config.visual == "embeddings":
            return states.embeds[:, visual].to(self.dtype), visual
        if self.compressor is None:
            if states.visual_states is None:
                raise ValueError(f"visual_states after {self.config.visual_layer} layers are missing; capture them")
            return states.visual_states.to(self.dtype), visual
        source = states.embeds if self.config.visual == "compressed_embeddings" else states.features
        compressed = self.compressor(source[:, visual])
        count = compressed.shape[1] - (self.mix_scene is not None)
        # With fewer visual tokens than rows, several rows share the first token's place.
        last = torch.arange(len(visual) - count, len(visual), device=visual.device)
        return compressed, visual[last.clamp(min=0)]

    def forward(
        self, inputs: Tensor, positions: Tensor, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """[B, R, dim]: the layer's output for rows.

        Args:
            inputs: [B, R, dim].
            positions: [A, B or 1, R].
            mask: [B or 1, 1, R, S] bool, true for cached and new rows that a row sees; None: all before it, without a
                cache.
            cache: keeps keys and values; None: they are not kept.
        """
        positions = positions.expand(-1, len(inputs), -1)
        output = self.layer(
            inputs,
            attention_mask=mask,
            position_embeddings=self.rotary(inputs, positions if len(positions) > 1 else positions[0]),
            **{self._cache_name: cache},
            use_cache=cache is not None,
        )
        return output if isinstance(output, Tensor) else output[0]

    def guesses(self, hidden_states: Tensor) -> Tensor:
        """Features [B, R, K, dim] guessed from the layer's output [B, R, dim], at each row's token and after it."""
        if self.offsets is None:
            return hidden_states[:, :, None]
        steps = self.offsets(hidden_states).unflatten(-1, (self.config.draft_length, self.dim))
        return hidden_states[:, :, None] + steps

    def flops(self, num_rows: int, num_keys: int) -> int:
        """Multiplications and additions of one pass over `num_rows` rows, each of which sees `num_keys` keys.

        It counts the layer and the projections around it, but neither the output head nor the compressor.
        """
        modules = (self.fc, self.layer, self.offsets)
        weights = sum(
            each.numel() for module in modules if module is not None for each in module.parameters() if each.ndim == 2
        )
        return num_rows * (2 * weights + 4 * num_keys * self.dim)
