"""Training of a draft model for a Video-LLM on the target's own answers.

A draft model's guesses count only where they are the target's words, so it learns what the target says, not what is
true: the loss is the divergence from the target's distribution at every token of its greedy answers, and the
cross-entropy of the answers themselves (DistillSpec, arXiv 2310.08461, with the target's samples). In each step it sees
a part of the visual tokens, as it will when it drafts. Its vision tower stays as it is and runs once a video.

Belongs here: settings, loss and figures. Does not belong here: the answers (`video_answers.py`), and draft heads, which
read the target's hidden states (`video_drafter.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.base.options import LOADING, option
from vargen.base.path_roles import MODEL
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import copy_files
from vargen.training.config import check
from vargen.training.cpu_attention import FLOAT32_ATTENTION
from vargen.training.run import RunResult, Task, autocast, prepare, train
from vargen.video.methods.base import SPREADS
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.request import VideoRequest, keep_spread, keep_visual, prepare_request
from vargen.video.pipelines.loading import LazyModel
from vargen.video.training.video_answers import Ask, VideoAnswersConfig, open_target, teachers
from vargen.video.training.video_states import TeacherForcing, final_states, positions_with

_NOT_COPIED = ("README.md", "*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt")


@dataclass
class VideoDraftModelTrainingConfig(VideoAnswersConfig):
    """Settings of `vargen train video-draft-model`, beside those of every run on a Video-LLM's answers."""

    draft_model: str | None = option(None, path=MODEL, group=LOADING)
    """What is trained: folder of a smaller model with the target's vocabulary, or its name on the hub; null for the one
    shipped with the shipped target."""
    kept_shares: tuple[float, ...] = option((0.1, 0.1, 0.25, 0.1, 0.02), above=0.0, most=1.0)
    """Shares of the visual tokens that the draft model sees, one drawn for each step."""
    kept_spreads: tuple[str, ...] = option(("uniform", "random"), choices=SPREADS)
    """How these tokens are spread, one drawn for each step; see `vargen.video.methods.base.SPREADS`."""
    answer_loss_weight: float = option(0.5, least=0.0)
    """Weight of the cross-entropy of the target's answers; the divergence has weight 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(not self.compile, "compile", True, "gains nothing here: no two steps are of one length; leave it out")
        check(bool(self.draft_model) or not self.model, "draft_model", self.draft_model, "must name what is trained")
        check(bool(self.kept_shares), "kept_shares", self.kept_shares, "must name one share at least")
        check(bool(self.kept_spreads), "kept_spreads", self.kept_spreads, "must name one spread at least")


class VideoDraftModelTask(Task):
    """A draft model as the training loop sees it.

    Args:
        config: of the run.
        target, draft_model: both of transformers, with one vocabulary.
        folder: where the draft model's other files lie.
        training, heldout: the target's answers and hidden states.
    """

    def __init__(
        self,
        config: VideoDraftModelTrainingConfig,
        target: Any,
        draft_model: Any,
        folder: Path,
        training: TeacherForcing,
        heldout: TeacherForcing,
    ) -> None:
        self.config, self.target, self.folder = config, target, folder
        self.training, self.heldout = training, heldout
        self.device = torch.device(config.device)
        self.draft_model = self.module = draft_model.train()
        self.architecture = architecture_of(draft_model)
        for trained in (self._decoder, draft_model.get_input_embeddings(), self.architecture.output_head(draft_model)):
            trained.requires_grad_(True)
        if config.device == "cpu":
            draft_model.set_attn_implementation(FLOAT32_ATTENTION)
        self._dtype = torch.bfloat16 if config.autocast else torch.float32
        self._left = config.memory_gib * 2**30
        self._shown: dict[tuple[str, int], VideoRequest] = {}

    @property
    def _decoder(self) -> Any:
        return self.architecture.decoder(self.draft_model)

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        return [each for each in self._decoder.layers.parameters() if each.ndim == 2]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        draw = torch.Generator().manual_seed(config.seed + step)
        numbers = torch.randint(len(self.training.answers), (config.batch_size,), generator=draw).tolist()
        share, spread = (_one_of(each, draw) for each in (config.kept_shares, config.kept_spreads))
        said, wanted, answer = self._compare(self.training, numbers, share, spread, step)
        divergence = F.kl_div(said, wanted, log_target=True, reduction="batchmean")
        likelihood = F.nll_loss(said, answer)
        parts = {"divergence": divergence.detach(), "answers": likelihood.detach()}
        return divergence + config.answer_loss_weight * likelihood, parts

    def _compare(
        self, teacher: TeacherForcing, numbers: Sequence[int], share: float, spread: str, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """At all n tokens of answers: log probabilities [n, V] of draft model and target, and the tokens [n]."""
        shown = [self._request(teacher, number) for number in numbers]
        if share < 1:
            shown = [keep_visual(each, keep_spread(each, share, spread, seed + row)) for row, each in enumerate(shown)]
        answers = [torch.tensor(list(teacher.answers[number]), device=self.device) for number in numbers]
        final = self._final_states(shown, answers)
        mine = torch.cat([row[: len(answer)] for row, answer in zip(final, answers, strict=True)])
        with torch.no_grad():
            features = torch.cat(
                [
                    teacher.of(number).to(self.device).features[-len(answer) - 1 : -1]
                    for number, answer in zip(numbers, answers, strict=True)
                ]
            )
            wanted = _log_probabilities(self.target, features)
        return _log_probabilities(self.draft_model, mine), wanted, torch.cat(answers)

    def _final_states(self, shown: Sequence[VideoRequest], answers: Sequence[Tensor]) -> Iterator[Tensor]:
        """For each row [l, dim] final hidden states from the last token of its prompt on, padding included."""
        words = self.draft_model.get_input_embeddings()
        embeds, positions = [], []
        for request, answer in zip(shown, answers, strict=True):
            visual = request.is_visual[:, None]
            prompt = torch.where(visual, request.inputs_embeds[0].float(), words(request.input_ids[0]))
            embeds.append(torch.cat((prompt, words(answer))))
            positions.append(positions_with(request, len(answer)))
        longest = max(map(len, embeds))
        # Padding comes last, where no token sees it.
        padded = torch.stack([F.pad(each, (0, 0, 0, longest - len(each))) for each in embeds])
        places = torch.stack([F.pad(each, (0, longest - each.shape[1])) for each in positions], dim=1)  # [A, B, L]
        final = final_states(self.draft_model, padded, places)
        return (states[request.length - 1 :] for states, request in zip(final, shown, strict=True))

    def _request(self, teacher: TeacherForcing, number: int) -> VideoRequest:
        """What the draft model is asked. Its vision tower runs once, while there is memory left.

        Raises:
            UserError: an architecture that feeds visual tokens to later layers, too (DeepStack).
        """
        key = teacher.questions.split, number
        if (kept := self._shown.get(key)) is not None:
            return kept
        inputs = {name: value.to(self.device) for name, value in teacher.questions.inputs(number).items()}
        request = prepare_request(self.draft_model, inputs)
        if request.deepstack:
            raise UserError(
                f"draft_model: {self.architecture.title} cannot be trained here: its later layers read the video, too"
            )
        request = replace(request, inputs_embeds=request.inputs_embeds.to(self._dtype))
        if request.inputs_embeds.nbytes <= self._left:
            self._left -= request.inputs_embeds.nbytes
            self._shown[key] = request
        return request

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How often the likeliest token is the target's, on held-out answers, by the share of the video seen."""
        figures = {}
        for share in sorted(set(self.config.kept_shares)):
            right = total = 0
            for start in range(0, len(self.heldout.answers), self.config.batch_size):
                numbers = range(start, min(start + self.config.batch_size, len(self.heldout.answers)))
                with autocast(self.config):
                    said, _, answer = self._compare(self.heldout, numbers, share, "uniform", 0)
                right += int((said.argmax(-1) == answer).sum())
                total += len(answer)
            figures[f"agreement_{share:g}"] = right / max(total, 1)
        return figures

    def export(self, folder: Path) -> None:
        """Write the model in bfloat16, with its processor."""
        copy_files(self.folder, folder, _NOT_COPIED)
        exported = copy.deepcopy(self.draft_model)
        exported.set_attn_implementation("sdpa")
        exported.to(torch.bfloat16).save_pretrained(folder)


def _one_of(choices: Sequence[Any], draw: torch.Generator) -> Any:
    return choices[int(torch.randint(len(choices), (), generator=draw))]


def _log_probabilities(model: Any, hidden_states: Tensor) -> Tensor:
    head = architecture_of(model).output_head(model)
    return head(hidden_states.to(head.weight.dtype)).float().log_softmax(-1)


def train_video_draft_model(config: VideoDraftModelTrainingConfig, ask: Ask) -> RunResult:
    """Let the target answer questions about videos, then train a draft model on the answers.

    Raises:
        UserError: for a field, model, video, folder of answers or checkpoint that does not fit.
    """
    prepare(config)
    answerer, fingerprint = open_target(config, config.draft_model)
    draft = answerer.draft_model
    assert isinstance(draft, LazyModel)
    readers = teachers(config, answerer, fingerprint, ask)
    task = VideoDraftModelTask(config, answerer.model, draft.load(), draft.found.folder, *readers)
    return train(config, task, {"target": fingerprint, "draft_model": weights_fingerprint(draft.found.folder)})
