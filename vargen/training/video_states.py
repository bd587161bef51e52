"""Hidden states of a frozen Video-LLM for questions and its own answers, which a draft head learns from.

Belongs here: the states under teacher forcing, kept in main memory or in files that several runs share. Does not belong
here: the answers (`video_answers.py`), the head and its losses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.drafters.video_head import TargetStates
from vargen.models.video_llms.architectures.catalogue import architecture_of
from vargen.models.video_llms.request import VideoRequest, prepare_request
from vargen.runs.files import atomic_path, own_folder
from vargen.runs.identity import check_identity, digest
from vargen.runs.progress import Progress
from vargen.training.video_questions import Questions


@dataclass(frozen=True)
class AnswerStates:
    """States of one question and its answer: L tokens, of which T are the prompt's.

    Args:
        ids: [L] int64.
        is_visual: [T] bool.
        positions: [A, L] int64.
        visual_embeds: [m, dim].
        features: [L, dim] final hidden states.
        visual_states: [m, dim] after the layer that the head reads; None if it reads none.
    """

    ids: Tensor
    is_visual: Tensor
    positions: Tensor
    visual_embeds: Tensor
    features: Tensor
    visual_states: Tensor | None

    @property
    def num_bytes(self) -> int:
        """Memory of the states."""
        values = (self.visual_embeds, self.features, self.visual_states)
        return sum(value.nbytes for value in values if value is not None)

    def to(self, device: torch.device) -> AnswerStates:
        """The same states on a device."""
        moved: dict[str, Any] = {
            each.name: None if (value := getattr(self, each.name)) is None else value.to(device)
            for each in fields(self)
        }
        return AnswerStates(**moved)


@dataclass(frozen=True)
class StatesFolder:
    """States in files of one batch of answers each, which several runs share.

    Files are mapped, not read: unused states cost nothing, several runs share one copy in main memory, and the system
    drops states that do not fit.

    Args:
        path: the folder.
        settings: values that decide the states beside questions and answers, such as the weights' fingerprint.
    """

    path: Path
    settings: dict[str, Any]

    def read(self, name: str, described: dict[str, Any]) -> list[AnswerStates] | None:
        """States of one batch, or None without such a file. Raises UserError if it is damaged or of other settings."""
        path = self._file(name)
        if not path.exists():
            return None
        with reading(path, "delete it", "states"), safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            before = json.loads(metadata.get("settings", "{}"))
            check_identity(path, before, {**self.settings, **described}, holds="states", argument="states")
            tensors: dict[str, Any] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            names = [each.name for each in fields(AnswerStates)]
            rows = range(int(metadata["answers"]))
            kept: list[dict[str, Any]] = [{name: tensors.get(f"{row}.{name}") for name in names} for row in rows]
            return [AnswerStates(**each) for each in kept]

    def write(self, name: str, described: dict[str, Any], rows: Sequence[AnswerStates]) -> None:
        """Write one batch."""
        tensors = {
            f"{row}.{field.name}": value.contiguous().cpu()
            for row, each in enumerate(rows)
            for field in fields(each)
            if (value := getattr(each, field.name)) is not None
        }
        metadata = {"settings": json.dumps({**self.settings, **described}), "answers": str(len(rows))}
        with atomic_path(self._file(name)) as temporary:
            save_file(tensors, temporary, metadata=metadata)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"


class TeacherForcing:
    """A frozen target that reads questions and its own answers to them, batch by batch.

    Args:
        model: the target.
        questions: numbered from 0 on.
        answers: token ids of each.
        layer: number of the decoder layer after which the visual tokens' hidden states are needed; None: of none.
        dtype: of the states.
        num_bytes: the most main memory for states, without a folder. Kept states are computed in the batches in which
            the answers were generated, so that a resumed run reads the same numbers.
        folder: keeps all states in files.
    """

    def __init__(
        self,
        model: Any,
        questions: Questions,
        answers: Sequence[Sequence[int]],
        layer: int | None,
        dtype: torch.dtype,
        num_bytes: float,
        folder: StatesFolder | None = None,
    ) -> None:
        self.model, self.questions, self.answers = model, questions, answers
        self.layer, self.dtype, self.folder = layer, dtype, folder
        self._left = num_bytes
        self._kept: dict[int, AnswerStates] = {}
        self._filled = False

    def batches(self, numbers: Sequence[int]) -> list[tuple[TargetStates, Tensor]]:
        """States of some answers, padded on the right, and the tokens that a head learns from.

        Returns:
            One batch for all answers whose visual tokens stand at the same places, as for videos of one size: the
            states, and [B, L] bool, true for all tokens of the answers but the last one.

        Raises:
            UserError: the folder holds other states, or another run is writing to it.
        """
        if not self._filled:
            self._fill()
            self._filled = True
        known = all(number in self._kept for number in numbers)
        device = self.model.get_input_embeddings().weight.device
        rows = [self._kept[number].to(device) for number in numbers] if known else self.states(numbers)
        alike: dict[tuple[int, ...], list[AnswerStates]] = {}
        for row in rows:
            alike.setdefault(tuple(row.is_visual.nonzero()[:, 0].tolist()), []).append(row)
        return [self._padded(group) for group in alike.values()]

    def _fill(self) -> None:
        size = self.questions.batch_size
        batches = [range(start, min(start + size, len(self.answers))) for start in range(0, len(self.answers), size)]
        if self.folder is None:
            self._fill_memory(batches)
        else:
            self._fill_folder(self.folder, batches)

    def _fill_memory(self, batches: Sequence[range]) -> None:
        with self._progress() as bar:
            for numbers in batches:
                if self._left <= 0:
                    return
                for number, each in zip(numbers, self.states(numbers), strict=True):
                    self._left -= each.num_bytes
                    if self._left < 0:
                        return
                    self._kept[number] = each
                bar.update(len(numbers))

    def _fill_folder(self, folder: StatesFolder, batches: Sequence[range]) -> None:
        missing = [numbers for numbers in batches if not self._take(folder, numbers)]
        if not missing:
            return
        with own_folder(folder.path, argument="states"), self._progress() as bar:
            bar.skip(len(self._kept))
            for numbers in missing:
                if not self._take(folder, numbers):  # another run may have written it
                    folder.write(*self._file_of(numbers), self.states(numbers))
                    self._take(folder, numbers)
                bar.update(len(numbers))

    def _take(self, folder: StatesFolder, numbers: range) -> bool:
        """Keep the states in the file of some answers; returns whether there is one."""
        rows = folder.read(*self._file_of(numbers))
        if rows is None:
            return False
        self._kept |= dict(zip(numbers, rows, strict=True))
        return True

    def _file_of(self, numbers: range) -> tuple[str, dict[str, Any]]:
        """The name of the file of some answers, and values that describe them."""
        layer = "none" if self.layer is None else self.layer
        described = {
            **self.questions.described,
            "answers": digest([list(self.answers[number]) for number in numbers]),
            "layer": self.layer,
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        return f"{self.questions.split}-layer-{layer}-{numbers.start:07d}-{len(numbers)}", described

    def _progress(self) -> Progress:
        total = len(self.answers)
        return Progress(total=total, unit="answer", desc=f"states of {self.questions.split} answers", disable=None)

    @torch.no_grad()
    def states(self, numbers: Sequence[int]) -> list[AnswerStates]:
        """Compute states. Raises UserError if an answer reaches past the target's positions."""
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
                # Padding comes last, where no token sees it. Without a mask, transformers would assume packing.
                attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device),
                position_ids=positions if len(positions) > 1 else positions[0],
                use_cache=False,
            ).last_hidden_state
        finally:
            for handle in handles:
                handle.remove()
        return (None if self.layer is None else reached[0]), final

    def _padded(self, rows: Sequence[AnswerStates]) -> tuple[TargetStates, Tensor]:
        """A batch of rows whose visual tokens stand at the same places, and the tokens learned from."""
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
