"""Hidden states of a frozen Video-LLM for questions and its own answers, which a draft head learns from.

Belongs here: the states under teacher forcing, kept in main memory or in files that several runs share. Does not belong
here: the answers (`video_questions.py`), the head and its losses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vargen.base.errors import UserError
from vargen.base.reading import parse_json, reading
from vargen.runs.files import atomic_path
from vargen.runs.identity import check_identity, digest
from vargen.video.drafters.video_head import TargetStates
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.training.video_questions import Questions


@dataclass(frozen=True)
class AnswerStates:
    """States of one question and its answer: L tokens, the first T of them the prompt's.

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
    visual_states: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Memory of the states."""
        values = (self.visual_embeds, self.features, self.visual_states)
        return sum(value.nbytes for value in values if value is not None)

    def to(self, device: torch.device) -> AnswerStates:
        """The same states on a device."""
        moved: dict[str, Any] = {name: None if each is None else each.to(device) for name, each in vars(self).items()}
        return AnswerStates(**moved)


@dataclass(frozen=True)
class StatesFolder:
    """States in a file for each answer, which several runs share.

    Files are mapped, not read: unused states cost nothing, several runs share one copy in main memory, and the system
    drops states that do not fit.

    Args:
        path: the folder.
        settings: values that decide the states beside questions and answers, such as the weights' fingerprint.
    """

    path: Path
    settings: dict[str, Any]

    def of(self, name: str, described: dict[str, Any], compute: Callable[[], AnswerStates]) -> AnswerStates:
        """The states in the file of this name, which is written first if it is missing. Raises UserError if it is
        damaged or of other settings."""
        path, settings = self.path / f"{name}.safetensors", {**self.settings, **described}
        if not path.exists():
            tensors = {key: value.contiguous().cpu() for key, value in vars(compute()).items() if value is not None}
            self.path.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                save_file(tensors, temporary, metadata={"settings": json.dumps(settings)})
        with reading(path, "delete it", "states"), safe_open(path, framework="pt") as file:
            before = parse_json((file.metadata() or {}).get("settings", "{}"))
            check_identity(path, before, settings, holds="states", argument="states")
            kept: dict[str, Any] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return AnswerStates(**kept)


def positions_with(request: VideoRequest, count: int) -> Tensor:
    """[A, L] int64: positions of a request's prompt and of an answer of `count` tokens."""
    behind = request.next_position + torch.arange(count, device=request.position_ids.device)
    return torch.cat((request.position_ids[:, 0], behind.expand(len(request.position_ids), -1)), dim=1)


def final_states(model: Any, embeds: Tensor, positions: Tensor) -> Tensor:
    """[B, L, dim] final hidden states of embeddings [B, L, dim] at [A, B, L], all of which are seen."""
    decoder = architecture_of(model).decoder(model)
    return decoder(
        inputs_embeds=embeds,
        # Padding comes last, where no token sees it. Without a mask, transformers would assume packing.
        attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device),
        position_ids=positions if len(positions) > 1 else positions[0],
        use_cache=False,
    ).last_hidden_state


class TeacherForcing:
    """A frozen target that reads questions and its own answers to them.

    Each answer is fed alone, so its states do not depend on others, and a resumed run reads the same numbers.

    Args:
        model: the target.
        questions: numbered from 0 on.
        answers: token ids of each.
        layer: number of the decoder layer after which the visual tokens' hidden states are needed; None: of none.
        dtype: of the states.
        num_bytes: the most main memory for states, without a folder.
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

    def batches(self, numbers: Sequence[int]) -> list[tuple[TargetStates, Tensor]]:
        """States of some answers, padded on the right, and the tokens that a head learns from.

        Returns:
            One batch for all answers whose visual tokens stand at the same places, as for videos of one size: the
            states, and [B, L] bool, true for all tokens of the answers but the last one.

        Raises:
            UserError: the folder holds other states, or an answer reaches past the target's positions.
        """
        device = self.model.get_input_embeddings().weight.device
        alike: dict[tuple[int, ...], list[AnswerStates]] = {}
        for row in (self.of(number).to(device) for number in numbers):
            alike.setdefault(tuple(row.is_visual.nonzero()[:, 0].tolist()), []).append(row)
        return [self._padded(group) for group in alike.values()]

    def of(self, number: int) -> AnswerStates:
        """The states of an answer: kept ones, or those of its file, or new ones."""
        if (kept := self._kept.get(number)) is not None:
            return kept
        if self.folder is not None:
            layer = "none" if self.layer is None else self.layer
            described = {
                **self.questions.described,
                "answer": digest(list(self.answers[number])),
                "layer": self.layer,
                "dtype": str(self.dtype).removeprefix("torch."),
            }
            name = f"{self.questions.split}-layer-{layer}-{number:07d}"
            return self._kept.setdefault(number, self.folder.of(name, described, lambda: self.states(number)))
        states = self.states(number)
        if states.num_bytes <= self._left:
            self._left -= states.num_bytes
            self._kept[number] = states
        return states

    @torch.no_grad()
    def states(self, number: int) -> AnswerStates:
        """Compute the states of an answer. Raises UserError if it reaches past the target's positions."""
        device = self.model.get_input_embeddings().weight.device
        request = prepare_request(
            self.model, {name: value.to(device) for name, value in self.questions.inputs(number).items()}
        )
        answer = torch.tensor(list(self.answers[number]), device=device)
        longest = int(self.model.config.get_text_config().max_position_embeddings)
        if request.next_position + len(answer) > longest:
            raise UserError(
                f"num_frames: a video and its answer reach past the {longest} positions of model; show fewer frames"
            )
        words = self.model.get_input_embeddings()(answer)
        embeds = torch.cat((request.inputs_embeds[0], words))
        positions = positions_with(request, len(answer))
        visual = request.is_visual.nonzero()[:, 0]
        # DeepStack's features at the visual tokens, zero everywhere else.
        stacked = [torch.zeros_like(embeds).index_copy(0, visual, each.to(embeds)) for each in request.deepstack]
        middle, final = self._hidden_states(embeds[None], positions[:, None], stacked)
        return AnswerStates(
            ids=torch.cat((request.input_ids[0], answer)),
            is_visual=request.is_visual,
            positions=positions,
            visual_embeds=request.inputs_embeds[0, visual].to(self.dtype),
            features=final[0].to(self.dtype, copy=True),
            visual_states=None if middle is None else middle[0, visual].to(self.dtype),
        )

    def _hidden_states(
        self, embeds: Tensor, positions: Tensor, stacked: Sequence[Tensor]
    ) -> tuple[Tensor | None, Tensor]:
        """[B, L, dim] after `layer` layers, and after the last norm, of embeddings [B, L, dim] at [A, B, L].

        `stacked`, [L, dim] each, is added after the first layer, the second, and so on.
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
            final = final_states(self.model, embeds, positions)
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
