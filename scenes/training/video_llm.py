"""Training of a small Video-LLM on videos of the scene world: long captions, short questions and answers.

The models are unmodified classes of transformers, so code that runs them runs the published models too. Videos are cut
into patches for a whole batch at once. A grounding loss shortens training: linear heads predict which object a visual
token shows, and its position in frame and time, from the vision tower's output and from a middle layer of the language
model. The heads are not exported. Without the positions, captions name the right colours early but give them to the
wrong objects for a long time. A draft model is trained in the same way, with fewer layers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scenes.captions.story_captions import (
    CLAIM_KINDS,
    MAX_CAPTION_TOKENS,
    content_words,
    visual_words,
    written_accuracy,
)
from scenes.captions.story_wordings import WORDINGS
from scenes.models.architectures import VideoLLMConfig, build_model
from scenes.models.processor import build_processor
from scenes.rendering.story import MIN_STORY_FRAMES, Story
from scenes.seeds import HELDOUT_SEED
from scenes.training.video_data import (
    IGNORED,
    PLACES,
    VIDEO_GROUNDING,
    Conversations,
    RenderedVideoSource,
    grounding_targets,
    pad,
    place_targets,
    qwen_patches,
)
from scenes.training.video_views import (
    CHOICES,
    View,
    alignment_loss,
    choose_visual,
    greedy,
    hidden_states,
    without_visual_after,
)
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.checkpoints.model_folder import check_stored
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.runs.files import save_image_atomic
from vargen.training.config import RunConfig, check
from vargen.training.cpu_attention import FLOAT32_ATTENTION
from vargen.training.initial_weights import fill
from vargen.training.run import RunResult, Task, prepare, train
from vargen.video.models.frames import CAPTION_PROMPTS
from vargen.video.models.pruning import keep_uniform, token_budget
from vargen.video.training.video_questions import VideoSource

_SHEET_VIDEOS = 6
_TIME_STRETCH = 3  # the largest factor by which steps of time are spread, so that they stand as in longer videos
_EVALUATED_SHARE = 0.1  # of the visual tokens
_VISUAL_WORD_WEIGHT = 2.0  # in the loss, of words that describe what is seen
_CAPTIONS_AT_ONCE = 16


@dataclass
class VideoLLMTrainingConfig(RunConfig):
    """Settings of `vargen train video-llm`, beside those of every run."""

    shape: VideoLLMConfig = option(VideoLLMConfig)
    """Shape of the model."""
    question_share: float = option(0.25, least=0.0, most=1.0)
    """Share of samples that are questions and answers; the others are captions."""
    grounded_layer: int | None = option(None, least=1)
    """The layer of the language model whose output the grounding loss reads, counted from 1; null for the middle
    one."""
    alignment_weight: float = option(0.0, least=0.0)
    """Weight of a loss at that layer that makes tokens of what is asked about more similar to the question: of the
    object that it names, or of all objects (`scenes.training.video_views.alignment_loss`)."""
    shown_words_weight: float = option(0.0, least=0.0)
    """Weight of a loss by which the last layer's visual states predict, through the output head, the words for what
    they show. LVSpec as printed compares with these states."""
    frame_counts: tuple[int, ...] = option((), least=MIN_STORY_FRAMES)
    """Frames of the videos, one number drawn for each step; empty for `shape.num_frames` always."""
    short_until: float = option(0.0, least=0.0, most=1.0)
    """Share of the run in which all videos have the fewest of these frames."""
    kept_shares: tuple[float, ...] = option((1.0,), above=0.0, most=1.0)
    """Shares of the visual tokens that the language model is given, one drawn for each step."""
    kept_choices: tuple[str, ...] = option(CHOICES, choices=CHOICES)
    """How these tokens are chosen, one drawn for each step; see `scenes.training.video_views.CHOICES`."""
    fusion_share: float = option(0.0, least=0.0, most=1.0)
    """Share of steps in which visual tokens are removed after a random layer in the last third, so that the model reads
    them before it."""
    repeats: tuple[int, ...] = option((1,), least=1)
    """How many visual tokens each one stands for, one number drawn for each step, so that a model can read videos so
    many times as long as it is shown. A token's two frames are alike then."""
    trained_layers: int | None = option(None, least=1)
    """How many of the language model's last layers are trained, with its last norm; everything else stays as it was,
    and the grounding loss, which teaches lower layers, is left out. null for the whole model."""
    initial_weights: str | None = option(None, path=READ_FOLDER)
    """Folder of a model of the same sizes to start from; null starts fresh."""
    initial_layers: tuple[int, ...] = option((), least=0)
    """Which layers of that language model to start from, counted from 0, one for each layer of this model; empty for
    all of them. A draft model starts from some layers of its target in this way."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.compile, "compile", True, "gains nothing here: no two steps are of one length; leave it out")
        layers, layer, last = self.shape.text.num_hidden_layers, self.grounded_layer, self.trained_layers
        check(layer is None or layer <= layers, "grounded_layer", layer, f"must lie between 1 and {layers}")
        check(last is None or last <= layers, "trained_layers", last, f"must lie between 1 and {layers}")
        alone = last is not None and self.initial_weights is None
        check(not alone, "trained_layers", last, "needs initial_weights for the others")
        if picked := self.initial_layers:
            check(self.initial_weights is not None, "initial_layers", picked, "need initial_weights to be layers of")
            check(len(picked) == layers, "initial_layers", picked, f"must be as many as shape.text has, {layers}")
        for name in ("kept_shares", "kept_choices", "repeats"):
            check(bool(getattr(self, name)), name, getattr(self, name), "must hold one at least")
        odd = [count for count in (self.shape.num_frames, *self.frame_counts) if count % 2]
        check(not odd, "frame_counts", odd, "must be even numbers")

    def architecture(self) -> dict[str, Any]:
        shape = vars(self.shape)
        return {"shape": {**shape, "text": vars(self.shape.text), "vision": vars(self.shape.vision)}}


class VideoLLMTask(Task):
    """A Video-LLM as the common loop sees it."""

    def __init__(self, config: VideoLLMTrainingConfig, source: VideoSource, device: torch.device) -> None:
        self.config, self.source, self.device = config, source, device
        self.processor = build_processor(config.shape.image_size, config.shape.patch_size)
        self.tokenizer = self.processor.tokenizer
        self.model = build_model(config.shape, self.tokenizer).to(device)
        if config.device == "cpu":
            _avoid_slow_bfloat16(self.model)
        self.module = self.model
        if config.initial_weights is not None and not config.goes_on:
            _copy_weights(self.model, config.initial_weights, config.initial_layers)
        self.num_layers = len(self.model.model.language_model.layers)
        if config.trained_layers is not None:
            language_model = self.model.model.language_model
            self.model.requires_grad_(False)
            for trained in (*language_model.layers[-config.trained_layers :], language_model.norm):
                trained.requires_grad_(True)
        self.grounded_layer = config.grounded_layer or max(1, self.num_layers // 2)
        longest = max((config.shape.num_frames, *config.frame_counts))
        heads = {each: _heads(config.shape, longest // 2) for each in ("tower", "half-way")}
        self.heads = nn.ModuleDict(heads).to(device)
        self.extra_modules = nn.ModuleList([self.heads])
        self.word_weights = torch.ones(len(self.tokenizer), device=device)
        self.word_weights[self._word_ids(sorted(visual_words()))] = _VISUAL_WORD_WEIGHT
        self.shown_words = {name: self._words_of(name) for name in VIDEO_GROUNDING}
        shape = config.shape
        self._rendered = cache(lambda num_frames: RenderedVideoSource(shape.image_size, num_frames, device))
        self._about = cache(lambda num_frames: Conversations(self.tokenizer, shape.grid_size**2 * num_frames // 2))
        self.heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        model = self.model.model
        blocks = (model.language_model.layers, model.visual.blocks)
        return [each for block in blocks for each in block.parameters() if each.ndim == 2]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        seed = config.seed + step * config.batch_size
        draw = random.Random(f"view-{config.seed}-{step}")
        num_frames = self._frame_count(draw, progress)
        source = self.source if num_frames == config.shape.num_frames else self._rendered(num_frames)
        batch = source(seed, config.batch_size, "train")
        conversations = self._about(num_frames)
        samples = [conversations.about(video, step, config.question_share) for video in batch.videos]
        padded = pad([each[:2] for each in samples], int(self.tokenizer.pad_token_id))
        ids, labels = (each.to(self.device) for each in padded)
        repeats = random.Random(seed).choice(config.repeats)  # not of `draw`: what that gives stays as it was
        frames = batch.frames if repeats == 1 else batch.frames[:, 1::2].repeat_interleave(2, 1)
        features = self._features(frames)  # [B, m, dim]
        weight = max(0.0, 1 - progress / 0.75) if config.trained_layers is None else 0.0  # of the grounding loss
        truth = self._truth(batch.videos, num_frames)
        view, kept = self._drawn_view(
            draw, step, replace(self.view(ids, features, num_frames), repeats=repeats), truth["shape"] > 0
        )
        layer = None
        if draw.random() < config.fusion_share:
            layer = draw.randrange(-(-2 * self.num_layers // 3), self.num_layers)
        with self._half_way() as half_way, without_visual_after(self.model.model.language_model, layer, view):
            final = hidden_states(self.model.model.language_model, view)
        # Labels stand behind the video, whatever of it is shown and however far.
        behind = ids.shape[1] - int(self._visual(ids).stop)
        labels, hidden = labels[:, -behind:], final[:, -behind:]
        wanted = labels[:, 1:] != IGNORED
        learned = labels[:, 1:][wanted]
        logits = self.model.lm_head(hidden[:, :-1][wanted])
        weights = self.word_weights[learned]
        answers = (F.cross_entropy(logits.float(), learned, reduction="none") * weights).sum() / weights.sum()
        parts = {"answers": answers.detach()}
        loss = answers
        told = truth if kept is None else {name: each.gather(1, kept) for name, each in truth.items()}
        if config.alignment_weight:
            asks = (labels != IGNORED).cumsum(1) == 0  # what is asked first, and nothing of the answers
            named = torch.tensor([each[2] for each in samples], device=self.device)  # [B, 2], zeros for any object
            meant = (told["colour"] == named[:, :1]) & (told["shape"] == named[:, 1:])
            shows = torch.where(named[:, :1] > 0, meant, told["shape"] > 0)
            aligned = alignment_loss(view, half_way[0], asks, shows)
            loss = loss + config.alignment_weight * aligned
            parts["alignment"] = aligned.detach()
        if config.shown_words_weight and layer is None:
            said = self._says_what_it_shows(final[:, view.visual], told)
            loss = loss + config.shown_words_weight * said
            parts["shown_words"] = said.detach()
        if weight:
            tower = self._grounding("tower", features, truth)
            inside = self._grounding("half-way", half_way[0][:, view.visual], told)
            loss = loss + weight * (tower + inside) / 2
            parts |= {"grounding": tower.detach(), "grounding_half_way": inside.detach()}
        return loss, parts

    def _frame_count(self, draw: random.Random, progress: float) -> int:
        counts = self.config.frame_counts or (self.config.shape.num_frames,)
        chosen = draw.choice(counts)
        return min(counts) if progress < self.config.short_until else chosen

    def _word_ids(self, words: Sequence[str]) -> Tensor:
        return torch.tensor(self.tokenizer.convert_tokens_to_ids(list(words)), device=self.device)

    def _words_of(self, name: str) -> Tensor:
        """[1 + classes, V]: the words for each class of a property of visual tokens, as shares; class 0 has none."""
        phrases = {**WORDINGS, "event": WORDINGS["kind"], "surface": WORDINGS["ground"] | WORDINGS["sky"]}[name]
        shares = torch.zeros(1 + len(VIDEO_GROUNDING[name]), len(self.tokenizer), device=self.device)
        for number, value in enumerate(VIDEO_GROUNDING[name], start=1):
            ids = self._word_ids(sorted(content_words(phrases[value])))
            shares[number, ids] = 1 / len(ids)
        return shares

    def _drawn_view(
        self, draw: random.Random, step: int, view: View, shows_object: Tensor
    ) -> tuple[View, Tensor | None]:
        """What of a view this step shows, and the numbers [B, k] of its visual tokens; None for all."""
        share, how = draw.choice(self.config.kept_shares), draw.choice(self.config.kept_choices)
        factor = draw.randint(1, _TIME_STRETCH)
        if factor > 1:
            view = view.stretched(factor)
        if share == 1:
            return view, None
        generator = torch.Generator().manual_seed(self.config.seed + step)
        kept = choose_visual(how, share, shows_object.cpu(), generator).to(self.device)
        return view.with_kept(kept), kept

    @contextmanager
    def _half_way(self) -> Iterator[list[Tensor]]:
        """Inside, the list gets the hidden states [B, L, dim] after the grounded layer."""
        kept: list[Tensor] = []

        def keep(module: Any, inputs: Any, output: Any) -> None:
            kept.append(output if isinstance(output, Tensor) else output[0])

        handle = self.model.model.language_model.layers[self.grounded_layer - 1].register_forward_hook(keep)
        try:
            yield kept
        finally:
            handle.remove()

    def _features(self, frames: Tensor) -> Tensor:
        """[B, m, dim]: what the language model is given for the videos [B, F, 3, size, size]."""
        features = self.model.model.get_video_features(**self._pixels(frames), return_dict=True).pooler_output
        return features if isinstance(features, Tensor) else torch.stack(list(features))

    def view(self, ids: Tensor, features: Tensor, num_frames: int) -> View:
        """Conversations [B, L] about whole videos of so many frames, whose features are [B, m, dim]."""
        embeds, visual = self.model.get_input_embeddings()(ids), self._visual(ids)
        embeds = torch.cat((embeds[:, : visual.start], features.to(embeds.dtype), embeds[:, visual.stop :]), dim=1)
        return View(embeds, self._positions(ids, num_frames), visual)

    def _visual(self, ids: Tensor) -> slice:
        """All conversations begin alike: the columns of the visual tokens are the same in all rows."""
        columns = (ids[0] == self.model.config.video_token_id).nonzero()[:, 0]
        return slice(int(columns[0]), int(columns[-1]) + 1)

    def _positions(self, ids: Tensor, num_frames: int) -> Tensor:
        """[3, B, L]. All conversations begin alike and go on with text: one row serves all."""
        size, row = self.config.shape, ids[:1]
        positions, _ = self.model.model.get_rope_index(
            row,
            2 * (row == self.model.config.video_token_id).int(),
            video_grid_thw=torch.tensor([[num_frames // 2, 2 * size.grid_size, 2 * size.grid_size]]),
            second_per_grid_ts=torch.ones(1),
        )
        return positions[-3:].expand(3, *ids.shape)

    def _truth(self, videos: Sequence[Story], num_frames: int) -> dict[str, Tensor]:
        """What each visual token shows in the later of its two frames, and its position, int64 [B, m] by name."""
        frames, grid_size = range(1, num_frames, 2), self.config.shape.grid_size
        places = place_targets(len(frames), grid_size)
        told = grounding_targets(videos, frames, grid_size)
        told.update({name: place.expand(len(videos), -1) for name, place in places.items()})
        return {name: each.to(self.device) for name, each in told.items()}

    def _grounding(self, point: str, states: Tensor, truth: dict[str, Tensor]) -> Tensor:
        """Mean cross entropy of the heads of a point on visual tokens [B, m, dim]."""
        heads: Any = self.heads[point]
        losses = []
        for name, head in heads.items():
            classes = truth[name].flatten()
            each = F.cross_entropy(head(states).float().flatten(0, 1), classes, reduction="none")
            losses.append(each.mean() if name in PLACES else _balanced(each, classes > 0))
        return torch.stack(losses).mean()

    def _says_what_it_shows(self, states: Tensor, truth: dict[str, Tensor]) -> Tensor:
        """Mean cross entropy of the output head on final visual states [B, m, dim]; all that is told of a token has the
        same share of its words."""
        words = torch.stack([shares[truth[name]] for name, shares in self.shown_words.items()]).sum(0)  # [B, m, V]
        wanted = (words / words.sum(-1, keepdim=True)).flatten(0, 1)
        logits = self.model.lm_head(states).float().flatten(0, 1)
        return _balanced(F.cross_entropy(logits, wanted, reduction="none"), truth["shape"].flatten() > 0)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Accuracy of greedy captions of held-out videos: as they are, with shuffled frames, of another video and of a
        grey one (both are chance), and with a tenth of the visual tokens."""
        frames = self.heldout.frames
        generator = torch.Generator().manual_seed(0)
        shuffled = torch.stack([each[torch.randperm(len(each), generator=generator)] for each in frames])
        shown = {
            "": (frames, 1.0),
            "_shuffled": (shuffled, 1.0),
            "_other": (frames.roll(1, 0), 1.0),
            "_none": (torch.full_like(frames, 0.5), 1.0),
            "_pruned": (frames, _EVALUATED_SHARE),
        }
        figures = {}
        for name, (each, share) in shown.items():
            captions = self.captions(each, share)
            for kind in ("all", *CLAIM_KINDS):
                told = zip(self.heldout.videos, captions, strict=True)
                figures[f"{kind}{name}"] = fmean(written_accuracy(video, text, kind) for video, text in told)
        return figures

    @torch.no_grad()
    def captions(self, frames: Tensor, share: float = 1.0) -> list[str]:
        """Greedy captions of videos [B, F, 3, size, size], by a share of their visual tokens, evenly spread."""
        num_frames, texts = frames.shape[1], []
        prompt = self._about(num_frames).prompt(CAPTION_PROMPTS[0])
        for part in frames.split(_CAPTIONS_AT_ONCE):
            ids = torch.tensor([prompt], device=self.device).expand(len(part), -1)
            view = self.view(ids, self._features(part), num_frames)
            if share < 1:
                count = view.visual.stop - view.visual.start
                view = view.with_kept(keep_uniform(count, token_budget(count, share)).expand(len(part), -1))
            answers = greedy(self.model, view, MAX_CAPTION_TOKENS, [int(self.tokenizer.eos_token_id)])
            texts += self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return texts

    def _pixels(self, frames: Tensor) -> dict[str, Tensor]:
        """What the vision tower reads of videos [B, F, 3, size, size]."""
        patches, grid = qwen_patches(frames.to(self.device), self.config.shape.patch_size)
        return {"pixel_values_videos": patches, "video_grid_thw": grid.to(self.device)}

    def draw_samples(self, path: Path) -> None:
        frames = self.heldout.frames[:_SHEET_VIDEOS]
        captions = self.captions(frames)
        strips = [to_pil(torch.cat(list(each), dim=-1)[None])[0] for each in frames]
        save_image_atomic(contact_sheet(strips, captions, columns=1), path)

    def export(self, folder: Path) -> None:
        exported = build_model(self.config.shape, self.tokenizer)
        exported.load_state_dict(self.model.state_dict())
        exported.to(torch.bfloat16)
        exported.save_pretrained(folder)
        self.processor.save_pretrained(folder)


def _balanced(losses: Tensor, shows: Tensor) -> Tensor:
    """Mean loss of visual tokens. Those that show something and those that do not have the same total weight, because
    few tokens show an object."""
    return torch.stack([side.mean() for side in (losses[shows], losses[~shows]) if len(side)]).mean()


def _heads(config: VideoLLMConfig, num_steps: int) -> nn.ModuleDict:
    """One linear head for each property of a visual token."""
    counts = {name: 1 + len(values) for name, values in VIDEO_GROUNDING.items()}
    counts.update(zip(PLACES, (num_steps, config.grid_size, config.grid_size), strict=True))
    return nn.ModuleDict({name: nn.Linear(config.text.hidden_size, count) for name, count in counts.items()})


def _copy_weights(model: Any, folder: str, picked: Sequence[int]) -> None:
    """Raises UserError for weights or layers that are not there, or of other sizes or kinds."""
    check_stored(folder, "initial_weights")
    try:
        other = type(model).from_pretrained(folder, dtype=torch.float32)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"initial_weights: {folder} cannot be read ({str(error).splitlines()[0]})") from error
    if picked:
        layers = other.model.language_model.layers
        inside = all(0 <= number < len(layers) for number in picked)
        check(inside, "initial_layers", picked, f"must lie between 0 and {len(layers) - 1}, the last of {folder}")
        other.model.language_model.layers = nn.ModuleList(layers[number] for number in picked)
    fill(model, other.state_dict(), f"model in {folder!r}", "model (and initial_layers) say")


def _avoid_slow_bfloat16(model: Any) -> None:
    """Keep in float32 what a CPU does slowly in bfloat16: the backward of attention, and that of the convolution that
    embeds patches (15 times slower as measured)."""
    model.set_attn_implementation(FLOAT32_ATTENTION)
    embedding = model.model.visual.patch_embed
    embedding.forward = torch.autocast("cpu", enabled=False)(embedding.forward)


def train_video_llm(config: VideoLLMTrainingConfig, source: VideoSource | None = None) -> RunResult:
    """Train a Video-LLM, a target or a smaller one to draft for it.

    Args:
        source: where videos come from; the renderer if not given.

    Raises:
        UserError: for a field or checkpoint that does not fit.
    """
    device = prepare(config)
    shape = config.shape
    source = source or RenderedVideoSource(shape.image_size, shape.num_frames, device)
    return train(config, VideoLLMTask(config, source, device))
