"""Training of a small CLIP on scenes and their captions: the measure of how well a picture and a sentence agree.

The model is transformers' own `CLIPModel` (Radford et al., arXiv 2103.00020), so everything that reads a CLIP reads
this one. To the batch's other captions, which differ in almost everything, each picture gets one more: of the same
scene with a single attribute of one object changed (hard negatives, after Yuksekgonul et al., arXiv 2210.01936), since
that is what a generator gets wrong.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

from metrics.clip_score import retrieval_accuracy
from scenes.captions.picture_captions import MAX_CAPTION_TOKENS, compose_caption
from scenes.captions.text_tokenizer import build_tokenizer
from scenes.models.architectures import TowerConfig
from scenes.rendering.scene import ATTRIBUTE_VALUES, SETTING_VALUES, Scene
from scenes.seeds import HELDOUT_SEED
from scenes.training.data import RenderedSceneSource, SceneSource
from vargen.base.bounds import MAX_PIXELS
from vargen.base.options import option
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.runs.files import save_image_atomic
from vargen.training.config import RunConfig, check
from vargen.training.run import RunResult, Task, prepare, train

_LARGEST_LOGIT_SCALE = 4.605  # ln 100, where CLIP stops it
_SHEET_IMAGES = 16
_SPLIT = "all"  # a measure must know the combinations that are held out from the generator


@dataclass
class ClipTrainingConfig(RunConfig):
    """Settings of `vargen train clip`, beside those of every run."""

    image_size: int = option(128, least=32, most=MAX_PIXELS)
    """Side of the training pictures, pixels."""
    patch_size: int = option(8, least=1)
    """Side of a patch, pixels."""
    vision: TowerConfig = option(lambda: TowerConfig(96, 384, 5, 4))
    """Shapes of the towers."""
    text: TowerConfig = option(lambda: TowerConfig(96, 384, 3, 4))
    """Shapes of the towers."""
    projection_dim: int = option(128, least=1)
    """Dimensions of the features."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.image_size % self.patch_size == 0
        check(fits, "image_size", self.image_size, f"must be a multiple of patch_size {self.patch_size}")
        check(self.batch_size > 1, "batch_size", self.batch_size, "must be above 1: pictures are told apart")

    def architecture(self) -> dict[str, Any]:
        shapes = {"vision": vars(self.vision), "text": vars(self.text)}
        return {name: getattr(self, name) for name in ("image_size", "patch_size", "projection_dim")} | shapes


def altered(scene: Scene, rng: random.Random) -> Scene:
    """The scene with one thing said wrong: an attribute of one object, the ground or the sky."""
    name = rng.choice([*ATTRIBUTE_VALUES, *ATTRIBUTE_VALUES, *SETTING_VALUES])
    number = None if name in SETTING_VALUES else rng.randrange(len(scene.objects))
    changed: Any = scene if number is None else scene.objects[number]
    others = [value for value in {**ATTRIBUTE_VALUES, **SETTING_VALUES}[name] if value != getattr(changed, name)]
    changed = replace(changed, **{name: rng.choice(others)})
    if number is None:
        return changed
    return replace(scene, objects=(*scene.objects[:number], changed, *scene.objects[number + 1 :]))


def contrastive_loss(images: Tensor, texts: Tensor, negatives: Tensor, wrong: Tensor, scale: Tensor) -> Tensor:
    """CLIP's symmetric loss with hard negatives on the side of the texts.

    Args:
        images, texts, negatives: unit vectors `[B, D]`; row i of each belongs to picture i.
        wrong: bool `[B]`, whether the negative differs from the text at all.
        scale: factor on the cosines.
    """
    own = torch.arange(len(images), device=images.device)
    logits = scale * images @ texts.T  # [B, B]
    hard = (scale * images @ negatives.T).masked_fill(
        ~wrong, float("-inf")
    )  # a column that is no negative says nothing
    to_text = F.cross_entropy(torch.cat((logits, hard), dim=1), own)
    return (to_text + F.cross_entropy(logits.T, own)) / 2


class ClipTask(Task):
    """The CLIP as the common loop sees it."""

    def __init__(self, config: ClipTrainingConfig, source: SceneSource, device: torch.device) -> None:
        self.config, self.source, self.device = config, source, device
        self.tokenizer = build_tokenizer()
        clip: Any = CLIPModel(
            CLIPConfig(
                text_config={
                    **vars(config.text),
                    "vocab_size": len(self.tokenizer),
                    "max_position_embeddings": MAX_CAPTION_TOKENS,
                    "pad_token_id": self.tokenizer.pad_token_id,
                    "bos_token_id": None,
                    "eos_token_id": self.tokenizer.eos_token_id,
                },
                vision_config={**vars(config.vision), "image_size": config.image_size, "patch_size": config.patch_size},
                projection_dim=config.projection_dim,
            )
        )
        self.clip = clip.to(device)
        self.module = self.clip
        self.run_clip = torch.compile(self.clip) if config.compile else self.clip
        heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")
        self.heldout_images = heldout.images
        self.heldout_texts, self.heldout_negatives = self._captions(heldout.scenes)

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        towers = (self.clip.vision_model.encoder, self.clip.text_model.encoder)
        return [each for tower in towers for each in tower.parameters() if each.ndim == 2]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        batch = self.source(config.seed + step * config.batch_size, config.batch_size, _SPLIT)
        texts, negatives = self._captions(batch.scenes)
        count = len(texts)
        output = self.run_clip(pixel_values=batch.images.to(self.device), **self._tokens([*texts, *negatives]))
        images, words = (F.normalize(each.float(), dim=-1) for each in (output.image_embeds, output.text_embeds))
        wrong = torch.tensor([a != b for a, b in zip(texts, negatives, strict=True)], device=self.device)
        with torch.autocast(config.device, enabled=False):
            scale = self.clip.logit_scale.clamp(max=_LARGEST_LOGIT_SCALE).exp()
            loss = contrastive_loss(images, words[:count], words[count:], wrong, scale)
        told_apart = (images * words[:count]).sum(-1) > (images * words[count:]).sum(-1)
        return loss, {"hard_negatives": told_apart[wrong].float().mean().detach(), "scale": scale.detach()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The shares of held-out pictures that find their caption among 32, and that prefer it to an altered one."""
        images = self._image_features(self.heldout_images)
        texts, negatives = (self._text_features(each) for each in (self.heldout_texts, self.heldout_negatives))
        wrong = torch.tensor([a != b for a, b in zip(self.heldout_texts, self.heldout_negatives, strict=True)])
        preferred = ((images * texts).sum(-1) > (images * negatives).sum(-1))[wrong]
        return {
            "retrieval_among_32": retrieval_accuracy(images, texts),
            "preferred_to_altered": float(preferred.float().mean()),
            "mean_score": float(100 * (images * texts).sum(-1).mean()),
            "mean_score_of_altered": float(100 * (images * negatives).sum(-1)[wrong].mean()),
        }

    def draw_samples(self, path: Path) -> None:
        images = self._image_features(self.heldout_images[:_SHEET_IMAGES])
        scores = 100 * (images * self._text_features(self.heldout_texts[:_SHEET_IMAGES])).sum(-1)
        pictures = to_pil(self.heldout_images[:_SHEET_IMAGES] * 0.5 + 0.5)
        labels = [f"{score:.1f}: {text}" for score, text in zip(scores.tolist(), self.heldout_texts, strict=False)]
        save_image_atomic(contact_sheet(pictures, labels), path)

    def export(self, folder: Path) -> None:
        exported = copy.deepcopy(self.clip).to(torch.bfloat16)
        exported.save_pretrained(folder)
        self.tokenizer.model_max_length = MAX_CAPTION_TOKENS
        self.tokenizer.save_pretrained(folder)
        side = {"height": self.config.image_size, "width": self.config.image_size}
        CLIPImageProcessorPil(
            size=side, do_center_crop=False, crop_size=side, image_mean=[0.5] * 3, image_std=[0.5] * 3
        ).save_pretrained(folder)

    def _captions(self, scenes: Sequence[Scene]) -> tuple[list[str], list[str]]:
        """A caption of each scene, and the same sentence about the scene with one thing changed."""
        others = [altered(scene, random.Random(scene.seed)) for scene in scenes]
        texts, negatives = ([compose_caption(each, each.seed).text for each in told] for told in (scenes, others))
        return texts, negatives

    def _tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        tokens = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=MAX_CAPTION_TOKENS, return_tensors="pt"
        ).to(self.device)
        return {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}

    @torch.no_grad()
    def _image_features(self, images: Tensor) -> Tensor:
        features = self.clip.get_image_features(pixel_values=images.to(self.device)).pooler_output
        return F.normalize(features.float(), dim=-1).cpu()

    @torch.no_grad()
    def _text_features(self, texts: Sequence[str]) -> Tensor:
        features = self.clip.get_text_features(**self._tokens(texts)).pooler_output
        return F.normalize(features.float(), dim=-1).cpu()


def train_clip(config: ClipTrainingConfig, source: SceneSource | None = None) -> RunResult:
    """Train the CLIP that scores how well pictures and captions agree.

    Args:
        source: where scenes come from; the renderer if not given.

    Raises:
        UserError: for a field or checkpoint that does not fit.
    """
    device = prepare(config)
    return train(config, ClipTask(config, source or RenderedSceneSource(config.image_size, device), device))
