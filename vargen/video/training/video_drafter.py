"""Training of a draft head for a Video-LLM on the target's own answers and hidden states.

A head learns to guess the target's next hidden state from a token's embedding and the hidden state before it, and from
that guess the target's distribution of the next token. The losses are SmoothL1 on the features and a tenth of the soft
cross-entropy of the tokens (EAGLE, arXiv 2401.15077; FLASH, arXiv 2505.12728, equations 4 to 6), with uniform noise on
the features read. A head that guesses K tokens at once has both losses for each of them.

When it drafts, the head reads its own guesses in place of features. Sparrow (arXiv 2602.15318, section 3.2) and ViSpec
therefore feed the guesses of the first pass to a second pass and add its losses. The rows of the video and of the
prompt stay as they are, and nothing is learned from them.

Papers train on hundreds of thousands of texts and pictures, first without pictures. Here steps in which the video has
no rows stand for that first stage. Sparrow drafts without these rows and needs such steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.methods.catalogue import resolve_method
from vargen.training.config import DrafterRunConfig, check
from vargen.training.cpu_attention import FLOAT32_ATTENTION
from vargen.training.drafter_task import DrafterTask
from vargen.training.run import RunResult, autocast, prepare, train
from vargen.video.drafters.video_head import KINDS, VISUAL_INPUTS, TargetStates, VideoHead
from vargen.video.drafters.video_head_folder import new_video_head, save_video_head
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.generation_settings import stop_tokens
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Generation, decode
from vargen.video.training.video_answers import Ask, VideoAnswersConfig, open_target, teachers
from vargen.video.training.video_states import TeacherForcing

_OWN_PASSES = {"eagle": 0, "msd": 0, "vispec": 1, "sparrow": 1, "flash": 0}
"""Further passes over the head's own guesses, whose losses are added."""
_BLIND_SHARE = {"eagle": 0.0, "msd": 0.0, "vispec": 0.0, "sparrow": 0.5, "flash": 0.0}
_MEASURED_DEPTHS = 4  # of heads that guess one token at a time
_HEAD_FIELDS = ("visual", "num_queries", "text_only", "draft_length")


@dataclass
class VideoDrafterTrainingConfig(VideoAnswersConfig, DrafterRunConfig):
    """Settings of `vargen train video-drafter`, beside those of every drafter's run and of the videos asked about."""

    kind: str = option("sparrow", choices=KINDS)
    """Kind of the head, "eagle", "msd", "vispec", "sparrow" or "flash"; `vargen.video.drafters.video_head` describes
    them. A setting below that is null has the value of the kind."""
    visual: str | None = option(None, choices=VISUAL_INPUTS)
    """What stands for the video; "embeddings" turns Sparrow's bridging off."""
    num_queries: int | None = option(None, least=1)
    """Learned queries of "vispec" and "flash"."""
    text_only: bool | None = None
    """Draft without rows for the video."""
    draft_length: int | None = option(None, least=1, most=MAX_DRAFT)
    """Tokens guessed at once."""
    blind_share: float | None = option(None, least=0.0, most=1.0)
    """Share of steps in which the video has no rows."""
    num_decoded_videos: int = option(4, least=1)
    """Held-out videos whose answers are decoded for the accepted length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.compile, "compile", True, "gains nothing here: no two steps are of one length; leave it out")
        remedy = f"must be at most evaluation_size ({self.evaluation_size})"
        check(self.num_decoded_videos <= self.evaluation_size, "num_decoded_videos", self.num_decoded_videos, remedy)

    def architecture(self) -> dict[str, Any]:
        return {"kind": self.kind, **{name: getattr(self, name) for name in _HEAD_FIELDS}}

    def new_video_head(self, model: Any) -> VideoHead:
        """The untrained head. Raises UserError for a setting that does not fit the kind or the target."""
        given = {name: value for name in _HEAD_FIELDS if (value := getattr(self, name)) is not None}
        try:
            return new_video_head(self.kind, model, **given)
        except ValueError as error:
            raise UserError(str(error)) from error


def offset_losses(
    guesses: Tensor, features: Tensor, learned: Tensor, output_head: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Losses of guesses of the next K features.

    Column i of row r guesses the feature of row r + i. It counts if both rows are learned from, so nothing after the
    end of a sequence counts.

    Args:
        guesses: [B, n, K, dim].
        features: [B, n, dim] the target's, at the same rows.
        learned: [B, n] bool.
        output_head: gives logits [..., V] of features.

    Returns:
        Two tensors [K], means over the rows that count: SmoothL1 of the features, and the soft cross-entropy of the
        tokens in nats minus the target's own entropy, which keeps the gradient and gives a perfect guess 0.
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
    """The head's guesses for whole answers: from the target's features, then from its own guesses, and so on.

    Args:
        network: the head.
        states: of the target.
        learned: [B, L] bool, the tokens whose features are replaced by guesses after the first pass.
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


class VideoDrafterTask(DrafterTask):
    """A draft head as the training loop sees it.

    Args:
        config: of the run.
        model: the target.
        training, heldout: its answers.
    """

    not_muon = "compressor.queries"

    def __init__(
        self, config: VideoDrafterTrainingConfig, model: Any, training: TeacherForcing, heldout: TeacherForcing
    ) -> None:
        self.config, self.model = config, model
        self.training, self.heldout = training, heldout
        super().__init__(config, config.new_video_head(model).to(config.device).float())
        if config.device == "cpu":
            self.drafter.set_attention(FLOAT32_ATTENTION)
        self.blind_share = _BLIND_SHARE[config.kind] if config.blind_share is None else config.blind_share

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = self.generator(step)
        numbers = torch.randint(len(self.training.answers), (config.batch_size,), generator=generator).tolist()
        losses = []  # [2] of each part of the batch
        for states, learned in self.training.batches(numbers):
            given = replace(states, features=self.noised(states.features, states.features.shape[1], generator))
            with_video = float(torch.rand((), generator=generator)) >= self.blind_share
            of_passes = [
                torch.stack(offset_losses(guesses, states.features[:, at], learned[:, at], self._output_head)).sum(1)
                for guesses, at in drafting_passes(
                    self.drafter, given, learned, 1 + _OWN_PASSES[config.kind], with_video
                )
            ]
            losses.append(torch.stack(of_passes).sum(0) * len(learned) / len(numbers))
        features, tokens = torch.stack(losses).sum(0)
        return features + config.token_loss_weight * tokens, {"features": features.detach(), "tokens": tokens.detach()}

    def _output_head(self, features: Tensor) -> Tensor:
        head = architecture_of(self.model).output_head(self.model)
        return head(features.to(head.weight.dtype))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How often the likeliest draft token is the target's, on held-out answers; and the accepted length there.

        `agreement_1` is of guesses from the target's features. `agreement_2` and so on are one more token ahead each,
        guessed from the guess before, or in the same pass if the head guesses several tokens at once.
        `accepted_length` is of greedy chains, without the bonus token. The video has rows if it has when drafting.
        """
        config, drafter = self.config, self.drafter.config
        passes = 1 if drafter.draft_length > 1 else _MEASURED_DEPTHS
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
        """Add to `hits` the guesses that are the target's tokens, and to `counts` all guesses, by how far ahead."""
        drafter = self.drafter.config
        drafts = drafting_passes(self.drafter, states, learned, passes, not drafter.text_only)
        for number, (guesses, places) in enumerate(drafts):
            truth = self._output_head(states.features[:, places]).argmax(-1)  # [B, n]
            guessed = self._output_head(guesses).argmax(-1)  # [B, n, K]
            inside, num_rows = learned[:, places], len(places)
            for column in range(drafter.draft_length):
                ahead = number + column  # 0 for the token right after the last true feature
                right = guessed[:, : num_rows - column, column] == truth[:, column:]
                counted = inside[:, ahead:] & inside[:, : num_rows - ahead]
                hits[ahead] += (right[:, number:] & counted).sum().cpu()
                counts[ahead] += counted.sum().cpu()

    def _accepted_length(self) -> float:
        """Mean over verification steps, without the bonus token, for chains as long as agreement is measured."""
        config, guessed_at_once = self.config, self.drafter.config.draft_length
        depth = _MEASURED_DEPTHS if guessed_at_once == 1 else guessed_at_once
        method: Any = resolve_method(config.kind, {"depth": depth}, task="video")
        accepted = rounds = 0
        for number in range(min(config.num_decoded_videos, len(self.heldout.answers))):
            inputs = {name: value.to(self.device) for name, value in self.heldout.questions.inputs(number).items()}
            components = VideoLLMComponents(
                self.model, [inputs], config.max_new_tokens, load_draft_head=lambda *_: self.drafter
            )
            trace, greedy = DecodeTrace(1, self.device), SamplingConfig(temperature=0.0)
            generation = Generation(config.max_new_tokens, greedy, [number], stop_tokens(self.model), trace)
            decode(method.build(components), generation)
            accepted += sum(trace.accepted_lengths[0])
            rounds += len(trace.accepted_lengths[0])
        return accepted / max(rounds, 1)

    def export(self, folder: Path) -> None:
        """Write the head in bfloat16."""
        save_video_head(copy.deepcopy(self.drafter).to(torch.bfloat16), folder)


def train_video_drafter(config: VideoDrafterTrainingConfig, ask: Ask) -> RunResult:
    """Let the target answer questions about videos, then train a draft head on the answers.

    Raises:
        UserError: for a field, model, video, folder of answers or checkpoint that does not fit.
    """
    prepare(config)
    answerer, fingerprint = open_target(config)
    layer = config.new_video_head(answerer.model).config.visual_layer  # refuses what does not fit, before any answer
    readers = teachers(config, answerer, fingerprint, ask, layer)
    return train(config, VideoDrafterTask(config, answerer.model, *readers), {"target": fingerprint})
