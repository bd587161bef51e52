"""A target's answers, kept on disk, which a draft head learns from.

Belongs here: numbered questions as a protocol, and resumable batches of answers. Does not belong here: how a target
answers (`video_answers.py`, `text_answers.py`), its hidden states, the head and its losses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from vargen.base.reading import reading
from vargen.runs.files import atomic_path, own_folder
from vargen.runs.identity import check_identity

FILLER = -1
"""Stands behind the end of shorter answers."""


class NumberedQuestions(Protocol):
    """Questions, numbered from 0 on."""

    @property
    def split(self) -> str:
        """ "train" or "heldout"."""
        ...

    @property
    def described(self) -> dict[str, Any]:
        """Plain values that decide which questions these are."""
        ...

    @property
    def batch_size(self) -> int:
        """Questions that are answered at once."""
        ...

    def inputs(self, number: int) -> dict[str, Tensor]:
        """What the target is given for a question, [1, T] each, or more dimensions."""
        ...


Answer = Callable[[int, Sequence[dict[str, Tensor]]], Tensor]
"""From the number of the first question and the inputs of some, to their answers [B, n] int32, padded with `FILLER`."""


def keep_answers(
    answer: Answer, questions: NumberedQuestions, count: int, folder: Path, settings: dict[str, Any]
) -> list[list[int]]:
    """The answers to the first questions; those that `folder` holds already are not made again.

    Args:
        answer: asks the target.
        questions: numbered from 0 on.
        count: number of answers.
        folder: holds one file per batch.
        settings: values that decide the answers beside the questions, such as the weights' fingerprint; a folder with
            other settings is refused.

    Returns:
        Token ids of each answer, its stop token included.

    Raises:
        UserError: the folder holds other answers, or a damaged file.
    """
    described = {
        **settings,
        **questions.described,
        "split": questions.split,
        "batch_size": questions.batch_size,
    }
    answers: list[list[int]] = []
    bar = tqdm(total=count, unit="answer", desc=f"{questions.split} answers to learn from", disable=None)
    with own_folder(folder, argument="answers"), bar:
        for start in range(0, count, questions.batch_size):
            size = min(questions.batch_size, count - start)
            path = folder / f"{questions.split}-{start:07d}.safetensors"
            tokens = _read(path, described) if path.exists() else None
            if tokens is None or len(tokens) < size:
                tokens = answer(start, [questions.inputs(start + row) for row in range(size)])
                with atomic_path(path) as temporary:
                    save_file({"tokens": tokens}, temporary, metadata={"settings": json.dumps(described)})
            answers += [[token for token in row if token != FILLER] for row in tokens[:size].tolist()]
            bar.update(size)
    return answers


def _read(path: Path, described: dict[str, Any]) -> Tensor:
    """[B, n] int32 of one file, if it was made with these settings."""
    with reading(path, "delete it", "answers"), safe_open(path, framework="pt") as file:
        before = json.loads((file.metadata() or {}).get("settings", "{}"))
        check_identity(path, before, described, holds="answers", argument="answers")
        return file.get_tensor("tokens")
