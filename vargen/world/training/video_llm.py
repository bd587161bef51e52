"""Training of a small Video-LLM on videos of the scene world: long captions, short questions and answers.

The models are transformers' own classes, unmodified, so that everything that runs them runs the published ones too.
Two things make hours of training minutes. Videos are cut into patches for a whole batch at once. And the truth is
known, so that each visual token is told which object it shows and where and when it stands (the grounding loss; its
heads are thrown away afterwards): once as the vision tower gives it, and once half-way up the language model. Without
the places captions soon name the right colours, and for a long time give them to the wrong objects: rotary positions
say how far two tokens are from each other, and where "left" is has to be found out.
A drafter is trained like a target, smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.errors import UserError
from vargen.runs.files import save_image_atomic
from vargen.training import cpu_attention
from vargen.training.config import RunConfig, check, check_fraction, main
from vargen.training.run import RunResult, prepare, train
from vargen.training.video_source import VideoSource
from vargen.video.frames import CAPTION_PROMPTS
from vargen.world.captions.video_captions import CLAIM_KINDS, caption_accuracy
from vargen.world.models.architectures import VideoLLMConfig, build_model, build_processor
from vargen.world.scenes.video import VideoScene
from vargen.world.seeds import HELDOUT_SEED
from vargen.world.training.grounding import GROUNDING
from vargen.world.training.video_data import (
    IGNORED,
    PLACES,
    Conversations,
    RenderedVideoSource,
    grounding_targets,
    pad,
    place_targets,
    qwen_patches,
)

_SHEET_VIDEOS = 6
_MOST_CAPTION_TOKENS = 220


@dataclass
class VideoLLMTrainingConfig(RunConfig):
    """Settings of `vargen train video-llm`, beside those of every run.

    Args:
        model: what is trained.
        split: videos to train on; "train" never shows a held-out object.
        question_share: share of samples that are questions and answers; the others are captions.
        grounding_weight: weight of the grounding loss at the start; it falls to zero at three quarters of the run.
        initial_weights: folder of a model of the same sizes to start from; null starts fresh.
    """

    model: VideoLLMConfig = field(default_factory=VideoLLMConfig)
    split: str = "train"
    question_share: float = 0.25
    grounding_weight: float = 1.0
    initial_weights: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fraction(self, "question_share")
        check(self.grounding_weight >= 0, "grounding_weight", self.grounding_weight, "must not be negative")

    def architecture(self) -> dict[str, Any]:
        model = vars(self.model)
        return {"model": {**model, "text": vars(self.model.text), "vision": vars(self.model.vision)}}


class VideoLLMTask:
    """A Video-LLM as the common loop sees it."""

    def __init__(self, config: VideoLLMTrainingConfig, source: VideoSource, device: torch.device) -> None:
        self.config, self.source, self.device = config, source, device
        self.is_qwen = config.model.architecture == "qwen2_5_vl"
        self.processor = build_processor(config.model)
        self.tokenizer = self.processor.tokenizer
        self.model = build_model(config.model, self.tokenizer).to(device)
        if config.device == "cpu":
            _avoid_slow_bfloat16(self.model, self.is_qwen)
        self.module: nn.Module = self.model
        if config.initial_weights is not None:
            _copy_weights(self.model, config.initial_weights)
        cells, frames = config.model.grid_size**2, config.model.num_frames
        self.grounded_frames = range(1, frames, 2) if self.is_qwen else range(frames)
        num_visual = cells * frames // 2 if self.is_qwen else cells * frames + 1
        self.heads = nn.ModuleDict(
            {each: _heads(config.model, len(self.grounded_frames)) for each in ("tower", "half-way")}
        ).to(device)
        self.extra_modules = nn.ModuleList([self.heads])
        self.conversations = Conversations(self.tokenizer, num_visual)
        self.heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        model = self.model.model
        blocks = (model.language_model.layers, model.visual.blocks if self.is_qwen else model.vision_tower)
        excluded = set() if self.is_qwen else {id(each) for each in model.vision_tower.embeddings.parameters()}
        return [each for block in blocks for each in block.parameters() if each.ndim == 2 and id(each) not in excluded]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        seed = config.base_seed + step * config.batch_size
        batch = self.source(seed, config.batch_size, config.split)
        samples = [self.conversations.about(video, step, config.question_share) for video in batch.videos]
        ids, labels = (each.to(self.device) for each in pad(samples, int(self.tokenizer.pad_token_id)))
        features = self._features(batch.frames)  # [B, m, dim]
        with self._half_way() as half_way:
            hidden_states = self._hidden_states(ids, features)
        wanted = labels[:, 1:] != IGNORED
        logits = self.model.lm_head(hidden_states[:, :-1][wanted])
        answers = F.cross_entropy(logits.float(), labels[:, 1:][wanted])
        weight = config.grounding_weight * max(0.0, 1 - progress / 0.75)
        parts = {"answers": answers.detach()}
        if not weight:
            return answers, parts
        is_visual = ids == self.model.config.video_token_id
        in_model = half_way[0][is_visual].view(len(ids), -1, half_way[0].shape[-1])
        told = self._grounding({"tower": features, "half-way": in_model}, batch.videos)
        return answers + weight * (told["tower"] + told["half-way"]) / 2, {
            **parts,
            "grounding": told["tower"].detach(),
            "grounding_half_way": told["half-way"].detach(),
        }

    @contextmanager
    def _half_way(self) -> Iterator[list[Tensor]]:
        """Inside, the list gets the hidden states [B, L, dim] after half of the layers."""
        layers = self.model.model.language_model.layers
        kept: list[Tensor] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            kept.append(output if isinstance(output, Tensor) else output[0])

        handle = layers[len(layers) // 2 - 1].register_forward_hook(keep)
        try:
            yield kept
        finally:
            handle.remove()

    def _features(self, frames: Tensor) -> Tensor:
        """[B, m, dim]: what the language model is given for the videos [B, F, 3, size, size]."""
        features = self.model.model.get_video_features(**self._pixels(frames), return_dict=True).pooler_output
        return features if isinstance(features, Tensor) else torch.stack(list(features))

    def _hidden_states(self, ids: Tensor, features: Tensor) -> Tensor:
        """[B, L, dim] final hidden states of conversations about the videos."""
        embeds = self.model.get_input_embeddings()(ids)
        is_visual = ids == self.model.config.video_token_id
        embeds = embeds.masked_scatter(is_visual[..., None], features.to(embeds.dtype))
        return self.model.model.language_model(
            inputs_embeds=embeds,
            # Padding stands behind everything, where nobody sees it. No mask at all would be taken for packing.
            attention_mask=torch.ones_like(ids),
            position_ids=self._positions(ids),
            use_cache=False,
        ).last_hidden_state

    def _positions(self, ids: Tensor) -> Tensor:
        """[3, B, L] for M-RoPE, [B, L] else. All conversations begin alike and go on with text: one row serves all."""
        if not self.is_qwen:
            return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
        size, row = self.config.model, ids[:1]
        positions, _ = self.model.model.get_rope_index(
            row,
            2 * (row == self.model.config.video_token_id).int(),
            video_grid_thw=torch.tensor([[size.num_frames // 2, 2 * size.grid_size, 2 * size.grid_size]]),
            second_per_grid_ts=torch.ones(1),
        )
        return positions[-3:].expand(3, *ids.shape)

    def _grounding(self, states: dict[str, Tensor], videos: Sequence[VideoScene]) -> dict[str, Tensor]:
        """Mean cross entropy, over what is told, of visual tokens [B, m, dim] as they are at each of several points."""
        size = self.config.model
        truth = grounding_targets(videos, self.grounded_frames, size.grid_size)
        places = place_targets(len(self.grounded_frames), size.grid_size)
        losses = {}
        for point, visual in states.items():
            each = []
            heads: Any = self.heads[point]
            for name, head in heads.items():
                target = truth[name] if name in truth else places[name].expand(len(videos), -1)
                logits = head(visual[:, : target.shape[1]]).float()
                each.append(F.cross_entropy(logits.flatten(0, 1), target.flatten().to(self.device)))
            losses[point] = torch.stack(each).mean()
        return losses

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Accuracy of greedy captions of held-out videos; the same where the model sees the frames in another order,
        another video, or a grey one. The last two are chance."""
        frames = self.heldout.frames
        generator = torch.Generator().manual_seed(0)
        shuffled = torch.stack([each[torch.randperm(len(each), generator=generator)] for each in frames])
        shown = {
            "": frames,
            "_shuffled": shuffled,
            "_other": frames.roll(1, 0),
            "_none": torch.full_like(frames, 0.5),
        }
        figures = {}
        for name, each in shown.items():
            captions = self.captions(each)
            for kind in ("all", *CLAIM_KINDS):
                accuracies = [
                    caption_accuracy(video, text, kind)
                    for video, text in zip(self.heldout.videos, captions, strict=True)
                ]
                figures[f"{kind}{name}"] = sum(accuracies) / len(accuracies)
        return figures

    @torch.no_grad()
    def captions(self, frames: Tensor) -> list[str]:
        """Greedy captions of videos [B, F, 3, size, size], by transformers' own generation."""
        prompt = self.conversations.prompt(CAPTION_PROMPTS[0])
        ids = torch.tensor([prompt], device=self.device).expand(len(frames), -1)
        tokens = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            **self._video_inputs(frames, ids),
            max_new_tokens=_MOST_CAPTION_TOKENS,
            do_sample=False,
        )
        return self.tokenizer.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)

    def _pixels(self, frames: Tensor) -> dict[str, Tensor]:
        """What the vision tower reads of videos [B, F, 3, size, size]."""
        frames = frames.to(self.device)
        if not self.is_qwen:
            return {"pixel_values_videos": frames * 2 - 1}
        patches, grid = qwen_patches(frames, self.config.model.patch_size)
        return {"pixel_values_videos": patches, "video_grid_thw": grid.to(self.device)}

    def _video_inputs(self, frames: Tensor, ids: Tensor) -> dict[str, Tensor]:
        """What the processor gives beside the words."""
        pixels = self._pixels(frames)
        if not self.is_qwen:
            return pixels
        return {
            **pixels,
            "second_per_grid_ts": torch.ones(len(frames)),
            "mm_token_type_ids": 2 * (ids == self.model.config.video_token_id).int(),
        }

    def draw_samples(self, path: Path) -> None:
        frames = self.heldout.frames[:_SHEET_VIDEOS]
        captions = self.captions(frames)
        strips = [to_pil(torch.cat(list(each), dim=-1)[None])[0] for each in frames]
        path.parent.mkdir(parents=True, exist_ok=True)
        save_image_atomic(contact_sheet(strips, captions, columns=1), path)

    def export(self, folder: Path) -> None:
        exported = build_model(self.config.model, self.tokenizer)
        exported.load_state_dict(self.model.state_dict())
        exported.to(torch.bfloat16)
        exported.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def _heads(config: VideoLLMConfig, num_steps: int) -> nn.ModuleDict:
    """One linear reader for each thing that a visual token is told."""
    counts = {name: 1 + len(values) for name, values in GROUNDING.items()}
    counts.update(zip(PLACES, (num_steps, config.grid_size, config.grid_size), strict=True))
    return nn.ModuleDict({name: nn.Linear(config.text.hidden_size, count) for name, count in counts.items()})


def _copy_weights(model: Any, folder: str) -> None:
    """Raises UserError for weights that are not there, or of other sizes."""
    try:
        other = type(model).from_pretrained(folder, dtype=torch.float32)
        model.load_state_dict(other.state_dict())
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"initial_weights: {folder} does not fit ({str(error).splitlines()[0]})") from error


def _avoid_slow_bfloat16(model: Any, is_qwen: bool) -> None:
    """Keep in float32 what a CPU does slowly in bfloat16: the backward of attention, and that of the convolution that
    embeds patches (15 times slower as measured)."""
    cpu_attention.register()
    model.set_attn_implementation(cpu_attention.FLOAT32_ATTENTION)
    embedding = model.model.visual.patch_embed if is_qwen else model.model.vision_tower.embeddings.patch_embedding
    embedding.forward = torch.autocast("cpu", enabled=False)(embedding.forward)


def train_video_llm(config: VideoLLMTrainingConfig, source: VideoSource | None = None) -> RunResult:
    """Train a Video-LLM, a target or a smaller one to draft for it.

    Args:
        source: where videos come from; the renderer if not given.

    Raises:
        UserError: for a field or checkpoint that does not fit.
    """
    device = prepare(config)
    source = source or RenderedVideoSource(config.model.image_size, config.model.num_frames, device)
    return train(config, VideoLLMTask(config, source, device))


if __name__ == "__main__":
    main(VideoLLMTrainingConfig, train_video_llm)
