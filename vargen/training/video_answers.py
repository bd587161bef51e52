"""Answers that a Video-LLM gave, kept on disk, and what it made of them: what a drafter for it is trained on.

Belongs here: making the answers in resumable batches, and the target's hidden states under teacher forcing. Does not
belong here: what is asked about which videos (`video_questions.py`), the drafter and its losses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from vargen.errors import UserError
from vargen.runs.files import atomic_path, own_folder
from vargen.runs.identity import check_identity
from vargen.training.video_questions import Questions
from vargen.video.architectures.catalogue import architecture_of
from vargen.video.drafters.feature_drafter import TargetStates
from vargen.video.request import VideoRequest, prepare_request

_FILLER = -1


def generate_answers(
    model: Any,
    questions: Questions,
    count: int,
    folder: Path,
    *,
    settings: dict[str, Any],
    max_new_tokens: int,
) -> list[list[int]]:
    """The target's likeliest answers; those that are in `folder` already are not made again.

    Args:
        model: the target.
        questions: what is asked.
        count: answers wanted; of the first questions.
        folder: holds one file per batch.
        settings: what decides the answers beside the questions, such as the weights' fingerprint; a folder of other
            settings is refused.
        max_new_tokens: at most so many.

    Returns:
        Token ids of each answer, the one that ends it included.

    Raises:
        UserError: the folder holds other answers.
    """
    described = {
        **settings,
        **questions.described,
        "split": questions.split,
        "batch_size": questions.batch_size,
        "max_answer_tokens": max_new_tokens,
    }
    answers: list[list[int]] = []
    bar = tqdm(total=count, unit="answer", desc=f"{questions.split} answers to learn from", disable=None)
    with own_folder(folder, argument="answers"), bar:
        for start in range(0, count, questions.batch_size):
            size = min(questions.batch_size, count - start)
            path = folder / f"{questions.split}-{start:07d}.safetensors"
            tokens = _read(path, described) if path.exists() else None
            if tokens is None or len(tokens) < size:
                tokens = generate_batch(model, [questions.inputs(start + row) for row in range(size)], max_new_tokens)
                with atomic_path(path) as temporary:
                    save_file({"tokens": tokens}, temporary, metadata={"settings": json.dumps(described)})
            answers += [[token for token in row if token != _FILLER] for row in tokens[:size].tolist()]
            bar.update(size)
    return answers


def _read(path: Path, described: dict[str, Any]) -> Tensor:
    """[B, n] int32 of one file, if it was made with these settings."""
    with safe_open(path, framework="pt") as file:
        before = json.loads((file.metadata() or {}).get("settings", "{}"))
        check_identity(path, before, described, holds="answers", argument="answers")
        return file.get_tensor("tokens")


def generate_batch(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """Greedy answers, by transformers' own loop: [B, n] int32, filled up with -1. Questions of one shape are answered
    together, others in turn: not every architecture answers alike behind padding."""
    shapes = [tuple(value.shape for value in each.values()) for each in inputs]
    answers: list[Tensor] = [torch.empty(0, dtype=torch.int32)] * len(inputs)
    for shape in dict.fromkeys(shapes):
        rows = [row for row, own in enumerate(shapes) if own == shape]
        together = _generate_together(model, [inputs[row] for row in rows], max_new_tokens)
        for row, answer in zip(rows, together, strict=True):
            answers[row] = answer
    return pad_sequence(answers, batch_first=True, padding_value=_FILLER)


def _generate_together(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """As `generate_batch`, of questions of one shape."""
    device = model.get_input_embeddings().weight.device
    batch = {name: torch.cat([each[name] for each in inputs]).to(device) for name in inputs[0]}
    length = batch["input_ids"].shape[1]
    tokens = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)[:, length:]
    ends = torch.tensor(stop_tokens(model), device=device)
    is_end = torch.isin(tokens, ends)
    behind = is_end.cumsum(1) - is_end.long() > 0
    return tokens.masked_fill(behind, _FILLER).to("cpu", torch.int32)


def stop_tokens(model: Any) -> list[int]:
    """What ends an answer."""
    listed = model.generation_config.eos_token_id
    return [] if listed is None else list(listed) if isinstance(listed, Sequence) else [int(listed)]


@dataclass(frozen=True)
class AnswerStates:
    """What the target made of one question and its answer, L tokens, T of them the prompt's.

    Args:
        ids: [L] int64.
        is_visual: [T] bool.
        positions: [A, L] int64.
        visual_embeds: [m, dim].
        features: [L, dim] final hidden states.
        visual_states: [m, dim] after the layer that was asked for; None where none was.
    """

    ids: Tensor
    is_visual: Tensor
    positions: Tensor
    visual_embeds: Tensor
    features: Tensor
    visual_states: Tensor | None

    @property
    def num_bytes(self) -> int:
        """What it takes to keep."""
        values = (self.visual_embeds, self.features, self.visual_states)
        return sum(value.nbytes for value in values if value is not None)


class TeacherForcing:
    """A frozen target that reads questions and its own answers to them, batch by batch.

    Args:
        model: the target.
        questions: what was asked.
        answers: token ids of each.
        layer: after how many decoder layers the visual tokens' hidden states are wanted; None: not at all.
        dtype: of what is given back.
        num_bytes: what has been worked out is kept in main memory up to so many. What is kept is worked out in the
            batches in which it was generated, so that a resumed run reads the very same numbers.
    """

    def __init__(
        self,
        model: Any,
        questions: Questions,
        answers: Sequence[Sequence[int]],
        layer: int | None,
        dtype: torch.dtype,
        num_bytes: float,
    ) -> None:
        self.model, self.questions, self.answers = model, questions, answers
        self.layer, self.dtype = layer, dtype
        self._left = num_bytes
        self._kept: dict[int, AnswerStates] = {}
        self._filled = False

    def batches(self, numbers: Sequence[int]) -> list[tuple[TargetStates, Tensor]]:
        """States of some answers, padded on the right, and which of their tokens a drafter learns from.

        Returns:
            For all whose visual tokens stand at the same places: the states, and [B, L] bool, the tokens of the answers
            but the last, which is followed by nothing. Videos of one size are a single batch.
        """
        if not self._filled:
            self._fill()
            self._filled = True
        known = all(number in self._kept for number in numbers)
        rows = [self._kept[number] for number in numbers] if known else self.states(numbers)
        alike: dict[tuple[int, ...], list[AnswerStates]] = {}
        for row in rows:
            alike.setdefault(tuple(row.is_visual.nonzero()[:, 0].tolist()), []).append(row)
        return [self._padded(group) for group in alike.values()]

    def _fill(self) -> None:
        size = self.questions.batch_size
        for start in range(0, len(self.answers), size):
            numbers = range(start, min(start + size, len(self.answers)))
            if self._left <= 0:
                return
            for number, each in zip(numbers, self.states(numbers), strict=True):
                self._left -= each.num_bytes
                if self._left < 0:
                    return
                self._kept[number] = each

    @torch.no_grad()
    def states(self, numbers: Sequence[int]) -> list[AnswerStates]:
        """Work them out.

        Raises:
            UserError: an answer reaches past the target's positions.
        """
        device = self.model.get_input_embeddings().weight.device
        requests: list[VideoRequest] = []
        for number in numbers:
            inputs = {name: value.to(device) for name, value in self.questions.inputs(number).items()}
            requests.append(prepare_request(self.model, inputs))
        answers = [torch.tensor(list(self.answers[number]), device=device) for number in numbers]
        longest = int(self.model.config.get_text_config().max_position_embeddings)
        if any(each.next_position + len(answer) > longest for each, answer in zip(requests, answers, strict=True)):
            raise UserError(
                f"num_frames: a video and its answer reach past the {longest} positions of model; show fewer frames"
            )
        lengths = [each.input_ids.shape[1] + len(answer) for each, answer in zip(requests, answers, strict=True)]
        embeds, positions = [], []
        for request, answer in zip(requests, answers, strict=True):
            fill = (0, 0, 0, max(lengths) - request.input_ids.shape[1] - len(answer))
            words = self.model.get_input_embeddings()(answer)
            embeds.append(F.pad(torch.cat((request.inputs_embeds[0], words)), fill))
            behind = request.next_position + torch.arange(len(answer), device=device)
            places = torch.cat((request.position_ids[:, 0], behind.expand(len(request.position_ids), -1)), dim=1)
            positions.append(F.pad(places, (0, fill[3])))
        middle, final = self._hidden_states(
            torch.stack(embeds), torch.stack(positions, dim=1), _stacked(requests, max(lengths))
        )
        result = []
        for row, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            visual = request.is_visual.nonzero()[:, 0]
            result.append(
                AnswerStates(
                    ids=torch.cat((request.input_ids[0], answer)),
                    is_visual=request.is_visual,
                    positions=positions[row][:, : lengths[row]],
                    visual_embeds=request.inputs_embeds[0, visual].to(self.dtype),
                    features=final[row, : lengths[row]].to(self.dtype, copy=True),
                    visual_states=None if middle is None else middle[row, visual].to(self.dtype),
                )
            )
        return result

    def _hidden_states(
        self, embeds: Tensor, positions: Tensor, stacked: Sequence[Tensor]
    ) -> tuple[Tensor | None, Tensor]:
        """[B, L, dim] after `layer` layers, and after the last norm, of embeddings [B, L, dim] at [A, B, L].

        `stacked`, [B, L, dim] each, is added after the first layer, the second, and so on.
        """
        language_model = architecture_of(self.model).decoder(self.model)
        reached: list[Tensor] = [] if self.layer else [embeds]
        handles = []
        for layer, added in zip(language_model.layers, stacked, strict=False):
            handles.append(layer.register_forward_hook(lambda module, inputs, output, added=added: output + added))
        if self.layer:

            def keep(module: Any, inputs: Any, output: Any) -> None:
                reached.append(output if isinstance(output, Tensor) else output[0])

            handles.append(language_model.layers[self.layer - 1].register_forward_hook(keep))
        try:
            final = language_model(
                inputs_embeds=embeds,
                # Padding stands behind everything, where nobody sees it. No mask at all would be taken for packing.
                attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device),
                position_ids=positions if len(positions) > 1 else positions[0],
                use_cache=False,
            ).last_hidden_state
        finally:
            for handle in handles:
                handle.remove()
        return (None if self.layer is None else reached[0]), final

    def _padded(self, rows: Sequence[AnswerStates]) -> tuple[TargetStates, Tensor]:
        """Of rows whose visual tokens stand at the same places."""
        longest = max(len(row.ids) for row in rows)
        first, device = rows[0], rows[0].ids.device
        place = torch.arange(longest, device=device)
        is_visual = F.pad(first.is_visual, (0, longest - len(first.is_visual)))
        embeds, features, positions, learned = [], [], [], []
        for row in rows:
            missing = longest - len(row.ids)
            words = self.model.get_input_embeddings()(row.ids).to(self.dtype)
            words[: len(row.is_visual)][row.is_visual] = row.visual_embeds
            embeds.append(F.pad(words, (0, 0, 0, missing)))
            features.append(F.pad(row.features, (0, 0, 0, missing)))
            positions.append(F.pad(row.positions, (0, missing)))
            learned.append((place >= len(row.is_visual)) & (place < len(row.ids) - 1))
        visual_states = [row.visual_states for row in rows if row.visual_states is not None]
        states = TargetStates(
            embeds=torch.stack(embeds),
            features=torch.stack(features),
            positions=torch.stack(positions, dim=1),
            is_visual=is_visual,
            visual_states=torch.stack(visual_states) if visual_states else None,
        )
        return states, torch.stack(learned)


def _stacked(requests: Sequence[VideoRequest], length: int) -> list[Tensor]:
    """[B, length, dim] each: DeepStack's features at the visual tokens, zero everywhere else."""
    result = []
    for number in range(len(requests[0].deepstack)):
        rows = []
        for each in requests:
            row = each.inputs_embeds.new_zeros(length, each.inputs_embeds.shape[-1])
            row[: each.length][each.is_visual] = each.deepstack[number]
            rows.append(row)
        result.append(torch.stack(rows))
    return result
