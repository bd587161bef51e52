"""Training of feature drafters for a Video-LLM on its own answers and hidden states.

A drafter learns to guess the target's next hidden state from a token's embedding and the hidden state before it, and by
it the target's distribution of the token after: SmoothL1 on the features plus a tenth of the soft cross-entropy of the
tokens (EAGLE, arXiv 2401.15077; FLASH, arXiv 2505.12728, equations 4 to 6), with uniform noise on the features read.
A drafter that guesses K places at once has both losses for each of them.

Where it drafts alone, it reads its own guesses in place of features. Sparrow (arXiv 2602.15318, section 3.2) and ViSpec
therefore feed a second pass with the first one's guesses and add its losses; the video's rows stay as they are, and so
do the prompt's, of which nothing is learned.

Papers train on hundreds of thousands of texts and pictures, first without pictures; here all is from one small world.
What stands for their first stage are steps in which the video has no rows. Sparrow, which drafts without them, needs
these: trained with the video alone its drafts were right at 80 % of places, where with it they are at 96 %.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import decode
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.base.errors import UserError
from vargen.drafters.video_draft_head import VideoDraftHead
from vargen.drafters.video_head import KINDS, VISUAL_INPUTS, TargetStates, VideoHead
from vargen.drafters.video_head_folder import new_video_head, save_video_head
from vargen.models.model_folder import weights_fingerprint
from vargen.models.video_llms.architectures.catalogue import architecture_of
from vargen.models.video_llms.request import prepare_request
from vargen.models.video_llms.target import VideoTarget
from vargen.pipelines.video.answering import VideoAnswerer
from vargen.pipelines.video.loading import open_video_model
from vargen.pipelines.video.options import VideoOptions
from vargen.training import cpu_attention
from vargen.training.config import RunConfig, check, check_fraction, check_positive
from vargen.training.run import RunResult, autocast, prepare, train
from vargen.training.video_answers import generate_answers, stop_tokens
from vargen.training.video_questions import Questions, VideoQuestions
from vargen.training.video_source import VideoSource
from vargen.training.video_states import StatesFolder, TeacherForcing

_OWN_PASSES = {"eagle": 0, "msd": 0, "vispec": 1, "sparrow": 1, "flash": 0}
_BLIND_SHARE = {"eagle": 0.0, "msd": 0.0, "vispec": 0.0, "sparrow": 0.5, "flash": 0.0}
_AGREEMENT_PLACES = 4  # of drafters that guess one place at a time
_DRAFTER_FIELDS = ("visual", "visual_layer", "num_queries", "scale", "text_only", "draft_length", "compact")


@dataclass
class VideoDrafterTrainingConfig(RunConfig):
    """Settings of `vargen train video-drafter`, beside those of every run.

    Args:
        model: folder of the target, a name on the hub, or the name of a shipped one; empty for the shipped default.
        revision: branch, tag or commit of a target on the hub; null for its main one.
        kind: "eagle", "msd", "vispec", "sparrow" or "flash"; what they are is in
            `vargen.drafters.video_head`.
            Settings below are its own where they are null.
        visual: what stands for the video; "embeddings" turns Sparrow's bridging off.
        visual_layer: after how many of the target's layers the video's hidden states are read; half of them if null.
        num_queries: learned queries of "vispec" and "flash".
        scale: scale their scores.
        text_only: draft without rows for the video.
        draft_length: places guessed at once.
        compact: give rows consecutive positions.
        own_passes: further passes over the drafter's own guesses, whose losses are added.
        blind_share: share of steps in which the video has no rows, the papers' first stage.
        videos: rendered videos, each with an answer to learn from; or a folder of the user's own. Of these every tenth
            is kept apart for evaluation.
        questions: about a folder's videos: a .txt file, each line of which is asked about every video, or a .csv or
            .jsonl file with a "video" and a "question" in each row; null asks for descriptions.
        num_frames: frames of a video; null for as many as the world's own have, and of others for what the target's
            processor does by itself.
        fps: of a folder's videos: frames of each second, instead of `num_frames`.
        max_pixels: of a folder's videos: of a frame, at most; null for the processor's own limit.
        training_frames: frames of it that the target is shown for the answers to learn from; null for all. 1 or 2
            train on stills, where the architecture reads so few. Evaluation shows all of them.
        image_size: side of the rendered frames in pixels; null for the side that the world's own videos have.
        captions: which rendered videos, by a name that the world knows; null for its own.
        answers: folder of the target's answers, which several runs can share; empty for output/answers.
        generation_batch_size: answers made at once, of videos and questions of one size.
        max_answer_tokens: most tokens of an answer.
        token_loss_weight: alpha, weight of the soft cross-entropy.
        feature_noise: width of the uniform noise on the features read, for sequences of 512 tokens; it is divided by
            the tokens of a sequence and multiplied by 512.
        states: folder in which the target's hidden states are kept, a MiB for 1,000 tokens of the shipped one; runs
            that differ in nothing but the drafter share them, and a resumed one need not work them out again. Empty
            keeps them in main memory.
        memory_gib: there they are kept up to so many GiB; what does not fit is worked out again at every step.
        decoded_videos: held-out videos whose answers are decoded for the accepted length.
    """

    model: str = ""
    revision: str | None = None
    kind: str = "sparrow"
    visual: str | None = None
    visual_layer: int | None = None
    num_queries: int | None = None
    scale: bool | None = None
    text_only: bool | None = None
    draft_length: int | None = None
    compact: bool = False
    own_passes: int | None = None
    blind_share: float | None = None
    videos: int | str = 2048
    questions: str | None = None
    num_frames: int | None = None
    fps: float | None = None
    max_pixels: int | None = None
    training_frames: int | None = None
    image_size: int | None = None
    captions: str | None = None
    answers: str = ""
    generation_batch_size: int = 32
    max_answer_tokens: int = 220
    token_loss_weight: float = 0.1
    feature_noise: float = 0.2
    states: str = ""
    memory_gib: float = 4.0
    decoded_videos: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.compile, "compile", True, "gains nothing here: no two steps are of one length; leave it out")
        check(self.kind in KINDS, "kind", self.kind, f"is not one of {', '.join(KINDS)}")
        check(
            self.visual is None or self.visual in VISUAL_INPUTS,
            "visual",
            self.visual,
            f"is not one of {', '.join(VISUAL_INPUTS)}",
        )
        check_positive(self, "image_size", "generation_batch_size", "max_answer_tokens", "decoded_videos")
        self._check_videos()
        for name, least in (("visual_layer", 0), ("num_queries", 1), ("draft_length", 1), ("own_passes", 0)):
            value = getattr(self, name)
            check(value is None or value >= least, name, value, f"must be at least {least}, or null for the kind's own")
        if self.blind_share is not None:
            check_fraction(self, "blind_share")
        frames, most = self.training_frames, self.num_frames
        check(
            frames is None or 1 <= frames <= (most or frames),
            "training_frames",
            frames,
            f"must lie between 1 and num_frames ({most}), or be null for all",
        )
        for name in ("token_loss_weight", "feature_noise", "memory_gib"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        check(
            self.decoded_videos <= self.evaluation_size,
            "decoded_videos",
            self.decoded_videos,
            f"must be at most evaluation_size ({self.evaluation_size})",
        )

    def _check_videos(self) -> None:
        for name in ("num_frames", "fps", "max_pixels"):
            if getattr(self, name) is not None:
                check_positive(self, name)
        if isinstance(self.videos, str):
            check(self.captions is None, "captions", self.captions, "belongs to rendered videos; leave it out")
            both = self.num_frames is not None and self.fps is not None
            check(not both, "fps", self.fps, "and num_frames cannot both be given; leave out one of them")
            return
        check_positive(self, "videos")
        for name in ("questions", "fps", "max_pixels"):
            value = getattr(self, name)
            check(value is None, name, value, "belongs to a folder of videos; name one with videos, or leave it out")
        frames = self.num_frames
        check(frames is None or frames >= 4, "num_frames", frames, "must be at least 4: something has to happen")

    def architecture(self) -> dict[str, Any]:
        return {"kind": self.kind, **{name: getattr(self, name) for name in _DRAFTER_FIELDS}}

    def new_video_head(self, model: Any) -> VideoHead:
        """The untrained drafter.

        Raises:
            UserError: a setting does not fit the kind or the target.
        """
        given = {name: getattr(self, name) for name in _DRAFTER_FIELDS}
        try:
            return new_video_head(
                self.kind, model, **{name: value for name, value in given.items() if value is not None}
            )
        except ValueError as error:
            raise UserError(str(error)) from error


def offset_losses(
    guesses: Tensor, features: Tensor, learned: Tensor, output_head: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """What guesses of the next K places miss.

    Row r guesses in its column i the feature of row r + i. It counts where both rows are learned from, so nothing past
    the end of a sequence does.

    Args:
        guesses: [B, n, K, dim].
        features: [B, n, dim] the target's, at the same rows.
        learned: [B, n] bool.
        output_head: gives logits [..., V] of features.

    Returns:
        Means over what counts, for each of the K places: SmoothL1 of the features [K], and [K] the soft cross-entropy
        of the tokens in nats, less the target's own entropy: the gradient is the same, and a perfect guess has 0.
    """
    regression, classification = [], []
    num_rows = guesses.shape[1]
    for place in range(guesses.shape[2]):
        counts = learned[:, : num_rows - place] & learned[:, place:]
        guess, wanted = guesses[:, : num_rows - place, place][counts], features[:, place:][counts].detach()
        total = max(len(guess), 1)
        each = F.smooth_l1_loss(guess.float(), wanted.float(), reduction="none").mean(-1)
        regression.append(each.sum() / total)
        with torch.no_grad():
            truth = output_head(wanted).float().log_softmax(-1)
        drafted = output_head(guess).float().log_softmax(-1)
        classification.append((truth.exp() * (truth - drafted)).sum() / total)
    return torch.stack(regression), torch.stack(classification)


def drafting_passes(
    network: VideoHead, states: TargetStates, learned: Tensor, count: int, with_video: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """The drafter's guesses for whole answers: by the target's features, then by its own guesses of them, and so on.

    Args:
        network: the drafter.
        states: of the target.
        learned: [B, L] bool, the tokens whose features the passes after the first replace by guesses.
        count: passes.
        with_video: whether the video has rows.

    Yields:
        Guesses [B, n, K, dim] at the text rows, and the places [n] of their tokens.
    """
    for number in range(count):
        rows = network.rows(states, with_video)
        hidden_states = network(rows.inputs, rows.positions)[:, rows.text_rows]
        guesses = network.guesses(hidden_states)
        yield guesses, rows.text_places
        if number + 1 < count:
            own = guesses[:, :, 0].to(states.features.dtype)
            everywhere = torch.zeros_like(states.features).index_copy(1, rows.text_places, own)
            states = replace(states, features=torch.where(learned[..., None], everywhere, states.features))


class VideoDrafterTask:
    """A drafter as the common loop sees it.

    Args:
        config: of the run.
        model: the target.
        training, heldout: its answers.
    """

    def __init__(
        self, config: VideoDrafterTrainingConfig, model: Any, training: TeacherForcing, heldout: TeacherForcing
    ) -> None:
        self.config, self.model = config, model
        self.training, self.heldout = training, heldout
        self.device = torch.device(config.device)
        self.network = config.new_video_head(model).to(self.device).float().train()
        if config.device == "cpu":
            cpu_attention.register()
            self.network.set_attention(cpu_attention.FLOAT32_ATTENTION)
        self.module: nn.Module = self.network
        self.extra_modules = nn.ModuleList()
        self.own_passes = _OWN_PASSES[config.kind] if config.own_passes is None else config.own_passes
        self.blind_share = _BLIND_SHARE[config.kind] if config.blind_share is None else config.blind_share

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """Every matrix but the learned queries."""
        return [p for name, p in self.network.named_parameters() if p.ndim == 2 and not name.endswith("queries")]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = torch.Generator().manual_seed(config.seed + step)
        numbers = torch.randint(len(self.training.answers), (config.batch_size,), generator=generator).tolist()
        losses = []  # [2] of each part of the batch
        for states, learned in self.training.batches(numbers):
            width = config.feature_noise * 512 / states.features.shape[1]
            noise = (torch.rand(states.features.shape, generator=generator) - 0.5).to(states.features) * width
            given = replace(states, features=states.features + noise)
            with_video = float(torch.rand((), generator=generator)) >= self.blind_share
            of_passes = [
                torch.stack(offset_losses(guesses, states.features[:, at], learned[:, at], self._output_head)).sum(1)
                for guesses, at in drafting_passes(self.network, given, learned, 1 + self.own_passes, with_video)
            ]
            losses.append(torch.stack(of_passes).sum(0) * len(learned) / len(numbers))
        features, tokens = torch.stack(losses).sum(0)
        return features + config.token_loss_weight * tokens, {"features": features.detach(), "tokens": tokens.detach()}

    def _output_head(self, features: Tensor) -> Tensor:
        head = architecture_of(self.model).output_head(self.model)
        return head(features.to(head.weight.dtype))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How often the likeliest drafted token is the target's, on held-out answers; and the accepted length there.

        `agreement_1` is by the target's features, `agreement_2` one place on, and so forth: each by the guess before
        it, or of the same forward where the drafter guesses several places at once. `accepted_length` is that of
        chains, without the bonus, greedy. The video has rows or not as when drafting.
        """
        config, drafter = self.config, self.network.config
        passes = 1 if drafter.draft_length > 1 else _AGREEMENT_PLACES
        hits = torch.zeros(max(passes, drafter.draft_length))
        counts = torch.zeros_like(hits)
        for start in range(0, len(self.heldout.answers), config.batch_size):
            numbers = range(start, min(start + config.batch_size, len(self.heldout.answers)))
            with autocast(config):
                for states, learned in self.heldout.batches(numbers):
                    self._count_hits(states, learned, passes, hits, counts)
        agreement = (hits / counts.clamp(min=1)).tolist()
        figures = {f"agreement_{place}": value for place, value in enumerate(agreement, start=1)}
        return {**figures, "accepted_length": self._accepted_length()}

    def _count_hits(self, states: TargetStates, learned: Tensor, passes: int, hits: Tensor, counts: Tensor) -> None:
        """Add, by how far ahead, [n] guesses that are the target's tokens, and all of them."""
        drafter = self.network.config
        drafts = drafting_passes(self.network, states, learned, passes, not drafter.text_only)
        for number, (guesses, places) in enumerate(drafts):
            truth = self._output_head(states.features[:, places]).argmax(-1)  # [B, n]
            guessed = self._output_head(guesses).argmax(-1)  # [B, n, K]
            inside, num_rows = learned[:, places], len(places)
            for column in range(drafter.draft_length):
                ahead = number + column  # places after the last true feature, one less
                right = guessed[:, : num_rows - column, column] == truth[:, column:]
                counted = inside[:, ahead:] & inside[:, : num_rows - ahead]
                hits[ahead] += (right[:, number:] & counted).sum().cpu()
                counts[ahead] += counted.sum().cpu()

    def _accepted_length(self) -> float:
        """Mean over rounds, without the bonus, of chains as long as the agreement is measured for."""
        length = _AGREEMENT_PLACES if self.network.config.draft_length == 1 else self.network.config.draft_length
        accepted = rounds = 0
        for number in range(min(self.config.decoded_videos, len(self.heldout.answers))):
            inputs = {name: value.to(self.device) for name, value in self.heldout.questions.inputs(number).items()}
            request = prepare_request(self.model, inputs)
            target = VideoTarget(
                self.model,
                request,
                capture_layers=self.network.config.capture_layers,
                max_new_tokens=self.config.max_answer_tokens,
                max_draft_nodes=length + 1,
            )
            sizer = FixedDraftSize(DraftSize(length + 1, length))
            drafter: Drafter = VideoDraftHead(self.network, target).drafter(StaticTree.chain(length), sizer)
            trace = decode(
                target,
                max_new_tokens=self.config.max_answer_tokens,
                sampling=SamplingConfig(temperature=0.0),
                streams=RandomStreams.from_seeds([number], device=self.device),
                drafter=drafter,
                stop_token=stop_tokens(self.model) or None,
            ).trace
            accepted += sum(trace.accepted_lengths[0])
            rounds += len(trace.accepted_lengths[0])
        return accepted / max(rounds, 1)

    def draw_samples(self, path: Path) -> None:
        """A drafter has no answers of its own: with it the target gives those that it gives without."""

    def export(self, folder: Path) -> None:
        """Write the drafter in bfloat16."""
        save_video_head(copy.deepcopy(self.network).to(torch.bfloat16), folder)


Asked = tuple[Questions, int]
"""Questions, and how many of them."""


def rendered_questions(
    config: VideoDrafterTrainingConfig, source: VideoSource, first_seeds: Mapping[str, int]
) -> Callable[[VideoAnswerer], tuple[Asked, Asked]]:
    """What `train_video_drafter` asks about videos that are numbered by seeds.

    Args:
        config: num_frames, image_size and captions are those of the source.
        source: where videos come from.
        first_seeds: of the videos to learn from, "train", and of those kept apart, "heldout".
    """
    settings: dict[str, Any] = {"frames": [config.num_frames, config.image_size]}
    if config.captions != "plain":
        settings["captions"] = config.captions

    def ask(answerer: VideoAnswerer) -> tuple[Asked, Asked]:
        size, processor = config.generation_batch_size, answerer.processor
        first = first_seeds["train"] + config.seed
        train = VideoQuestions(processor, source, first, "train", size, config.training_frames, settings)
        heldout = VideoQuestions(processor, source, first_seeds["heldout"], "heldout", size, settings=settings)
        assert isinstance(config.videos, int)
        return (train, config.videos), (heldout, config.evaluation_size)

    return ask


def train_video_drafter(
    config: VideoDrafterTrainingConfig, ask: Callable[[VideoAnswerer], tuple[Asked, Asked]]
) -> RunResult:
    """Have the target answer questions about videos, then train a drafter on the answers.

    Args:
        ask: of the target: what it is asked for answers to learn from, and for those kept apart.

    Raises:
        UserError: for a field, model, video, folder of answers or checkpoint that does not fit.
    """
    prepare(config)
    on_gpu = config.device == "cuda" and config.autocast
    options = VideoOptions(
        model=config.model or None,
        revision=config.revision,
        device=config.device,
        dtype="bfloat16" if on_gpu else "float32",
    )
    found = open_video_model(options.model, options.revision)
    answerer = VideoAnswerer.from_options(options, found)
    model = answerer.model
    network = config.new_video_head(model)  # what does not fit is said before answers are made
    fingerprint = weights_fingerprint(found.folder)
    kept = Path(config.answers or Path(config.output) / "answers")
    readers = []
    folder = StatesFolder(Path(config.states), {"target": fingerprint}) if config.states else None
    for questions, count in ask(answerer):
        answers = generate_answers(
            model,
            questions,
            count,
            kept,
            settings={"target": fingerprint},
            max_new_tokens=config.max_answer_tokens,
        )
        dtype = torch.bfloat16 if config.autocast else torch.float32
        memory = config.memory_gib * 2**30
        readers.append(TeacherForcing(model, questions, answers, network.config.visual_layer, dtype, memory, folder))
    return train(config, VideoDrafterTask(config, model, *readers), {"target": fingerprint})
