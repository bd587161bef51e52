"""Training of the small T5 text encoder on captions alone, before there is a transformer to read it.

Scenes are described but not drawn, so a step costs little. The loss is that of `caption_reading`. A transformer then
trains on the frozen encoder, as LlamaGen does on FLAN-T5 (`frozen_text_encoder` of the transformer's run).
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, T5Config, T5EncoderModel

from scenes.captions.picture_captions import MAX_CAPTION_TOKENS, Caption, compose_caption, compose_training_caption
from scenes.captions.text_tokenizer import build_tokenizer
from scenes.rendering.scene import OBJECT_COUNT_WEIGHTS, Scene, sample_scene
from scenes.seeds import CAPTION_SEED, HELDOUT_SEED
from scenes.training.caption_reading import CaptionReader, CaptionTruth, caption_reading_loss, caption_truth
from vargen.base.errors import UserError
from vargen.base.options import Settings, check_options, option
from vargen.checkpoints.model_folder import check_model_folder, check_stored, component_folder
from vargen.training.config import RunConfig, check
from vargen.training.run import RunResult, Task, move, prepare, train

_COMPLETE_CAPTION_SHARE = 0.7  # of captions that say everything, see `compose_training_caption`
_LENGTH_GROUPS = 4  # parts of a batch in which captions are padded, sorted by length
_LENGTH_STEP = 8  # captions are padded to a multiple, so that compiled code meets few shapes


@dataclass
class TextEncoderConfig(Settings):
    """Shape of the text encoder, named as in `transformers.T5Config`."""

    d_model: int = option(128, least=1)
    """Width of a block."""
    d_kv: int = option(32, least=1)
    """Width of a head."""
    d_ff: int = option(256, least=1)
    """Width inside the feed-forward part."""
    num_layers: int = option(4, least=1)
    """Number of blocks."""
    num_heads: int = option(4, least=1)
    """Number of heads."""

    def __post_init__(self) -> None:
        check_options(self, "shape.")


@dataclass
class TextEncoderTrainingConfig(RunConfig):
    """Settings of `vargen train text-encoder`, beside those of every run; a batch is of captions."""

    shape: TextEncoderConfig = option(TextEncoderConfig)
    """Shape of the text encoder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.batch_size % _LENGTH_GROUPS == 0, "batch_size", self.batch_size, f"must divide by {_LENGTH_GROUPS}")

    def architecture(self) -> dict[str, Any]:
        return {f"shape.{name}": value for name, value in asdict(self.shape).items()}


def build_text_encoder(config: TextEncoderConfig, tokenizer: PreTrainedTokenizerBase) -> T5EncoderModel:
    """A new T5 encoder of the configured shape, weights from torch's global random state."""
    return T5EncoderModel(
        T5Config(
            **asdict(config),
            vocab_size=len(tokenizer),
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def load_text_encoder(folder: str) -> T5EncoderModel:
    """The text encoder of a pipeline's folder, or of the export of `vargen train text-encoder`, in fp32.

    Raises:
        UserError: if there is none, or its weights are none.
    """
    path = component_folder(folder, "text_encoder")
    if (Path(folder) / "model_index.json").is_file():
        check_model_folder(folder)
    if not (path / "config.json").is_file():
        raise UserError(f"frozen_text_encoder: {folder!r} holds no text_encoder; name a text-conditional pipeline")
    check_stored(path, "frozen_text_encoder")
    return T5EncoderModel.from_pretrained(path, dtype=torch.float32)


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A short hash of a tokenizer's words: with other words, weights mean nothing."""
    return hashlib.sha256(" ".join(sorted(tokenizer.get_vocab())).encode()).hexdigest()[:16]


class TextEncoderTask(Task):
    """The text encoder as the common loop sees it; the reader trains beside it and is not exported."""

    def __init__(self, config: TextEncoderTrainingConfig, device: torch.device):
        self.config = config
        self.device = device
        self.tokenizer = build_tokenizer()
        self.text_encoder = build_text_encoder(config.shape, self.tokenizer)
        self.module = nn.ModuleDict({"text_encoder": self.text_encoder.train()})
        self.reader = CaptionReader(config.shape.d_model)
        self.extra_modules = nn.ModuleList([self.reader])
        move(self.module, device)
        move(self.extra_modules, device)
        self.batch_loss = torch.compile(self._batch_loss, dynamic=False) if config.compile else self._batch_loss

    def identity(self) -> dict[str, Any]:
        return {"vocabulary": vocabulary_fingerprint(self.tokenizer)}

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """The matrices inside the blocks: no embedding, no table of relative positions."""
        return [
            parameter
            for name, parameter in self.text_encoder.encoder.block.named_parameters()
            if parameter.ndim == 2 and "relative_attention_bias" not in name
        ]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        first = CAPTION_SEED + config.seed + step * config.batch_size
        seeds = range(first, first + config.batch_size)
        scenes = _scenes(seeds, "train")
        pairs = zip(scenes, seeds, strict=True)
        captions = [compose_training_caption(scene, seed, _COMPLETE_CAPTION_SHARE) for scene, seed in pairs]
        order = sorted(range(len(captions)), key=lambda index: len(captions[index].text.split()))
        size = config.batch_size // _LENGTH_GROUPS
        losses, sums = [], dict[str, Tensor]()
        for start in range(0, len(order), size):
            part = order[start : start + size]
            batch = self._batch([scenes[index] for index in part], [captions[index] for index in part])
            loss, parts = self.batch_loss(*batch)
            losses.append(loss)
            sums = {name: sums.get(name, 0.0) + value / _LENGTH_GROUPS for name, value in parts.items()}
        return torch.stack(losses).mean(), sums

    def _batch_loss(self, input_ids: Tensor, mask: Tensor, truth: CaptionTruth) -> tuple[Tensor, dict[str, Tensor]]:
        states = self.text_encoder(input_ids=input_ids, attention_mask=mask.long()).last_hidden_state
        return caption_reading_loss(self.reader(states, mask), truth)

    def _batch(self, scenes: Sequence[Scene], captions: Sequence[Caption]) -> tuple[Tensor, Tensor, CaptionTruth]:
        """Captions as tokens, right-padded, int64 and bool `[B, T]`, and what is to be read in them."""
        tokens = self.tokenizer(
            [caption.text for caption in captions],
            padding="longest",
            pad_to_multiple_of=_LENGTH_STEP,
            truncation=True,
            max_length=MAX_CAPTION_TOKENS,
            return_tensors="pt",
        ).to(self.device)
        truth = caption_truth(scenes, captions, tokens.input_ids.shape[1])
        truth = CaptionTruth(*(getattr(truth, name).to(self.device) for name in ("scene", "shapes", "words")))
        return tokens.input_ids, tokens.attention_mask.bool(), truth

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The loss and its parts on held-out captions."""
        losses: dict[str, float] = defaultdict(float)
        last = HELDOUT_SEED + self.config.evaluation_size
        for start in range(HELDOUT_SEED, last, self.config.batch_size):
            seeds = range(start, min(last, start + self.config.batch_size))
            scenes = _scenes(seeds, "heldout")
            captions = [compose_caption(scene, seed) for scene, seed in zip(scenes, seeds, strict=True)]
            loss, parts = self._batch_loss(*self._batch(scenes, captions))
            for name, value in {"loss": loss, **parts}.items():
                losses[name] += value.item() * len(seeds) / self.config.evaluation_size
        return dict(losses)

    def export(self, folder: Path) -> None:
        """Write `text_encoder/` in bfloat16 and `tokenizer/`."""
        text_encoder: Any = copy.deepcopy(self.text_encoder)
        text_encoder.to(torch.bfloat16).save_pretrained(folder / "text_encoder")
        self.tokenizer.save_pretrained(folder / "tokenizer")


def _scenes(seeds: Sequence[int], split: str) -> list[Scene]:
    return [sample_scene(seed, split, OBJECT_COUNT_WEIGHTS) for seed in seeds]


def train_text_encoder(config: TextEncoderTrainingConfig) -> RunResult:
    """Train the text encoder on captions of scenes, without pictures.

    Raises:
        UserError: for a field, folder or checkpoint that does not fit.
    """
    device = prepare(config)
    task = TextEncoderTask(config, device)
    return train(config, task, task.identity())
