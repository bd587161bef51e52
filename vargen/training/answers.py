"""Answers or pictures that a target made to be learned from, kept on disk in batches.

Belongs here: resumable batches, and numbered questions as a protocol. Does not belong here: how a target answers or
draws (`video_questions.py`, `text_prompts.py`, `pictures.py`), and its hidden states. Those of pictures are computed
again when they are needed: for two thousand pictures they would fill half a gigabyte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vargen.base.reading import parse_json, reading
from vargen.runs.files import atomic_path, own_folder
from vargen.runs.identity import check_identity, digest
from vargen.runs.progress import progress

FILLER = -1
"""Stands behind the end of shorter answers."""


class NumberedQuestions(Protocol):
    """Questions, numbered from 0 on."""

    @property
    def split(self) -> str:
        """ "train" or "heldout"."""

    @property
    def described(self) -> dict[str, Any]:
        """Plain values that decide which questions these are."""

    @property
    def batch_size(self) -> int:
        """Questions that are answered at once."""

    def inputs(self, number: int) -> dict[str, Tensor]:
        """The target's inputs for a question, [1, T] each, or more dimensions."""


Answer = Callable[[int, Sequence[dict[str, Tensor]]], Tensor]
"""A function that takes the number of the first question and the inputs of some. It gives their answers [B, n] int32,
padded with `FILLER`."""


def keep_answers(
    answer: Answer, questions: NumberedQuestions, count: int, folder: Path, settings: dict[str, Any]
) -> list[list[int]]:
    """The answers to the first questions; those that `folder` holds already are not made again.

    Args:
        answer: asks the target.
        questions: numbered from 0 on.
        count: number of answers.
        folder, settings: as for `keep_batches`; the questions' own description is among the settings.

    Returns:
        Token ids of each answer, its stop token included.
    """
    split, size = questions.split, questions.batch_size
    described = {**settings, **questions.described, "split": split, "batch_size": size}
    batches = keep_batches(
        lambda numbers: answer(numbers.start, [questions.inputs(number) for number in numbers]),
        count,
        size,
        folder,
        described,
        name=split,
        holds="answers",
        argument="answers",
    )
    return [[token for token in row if token != FILLER] for tokens in batches for row in tokens.tolist()]


def keep_batches(
    make: Callable[[range], Tensor],
    count: int,
    batch_size: int,
    folder: Path,
    settings: dict[str, Any],
    *,
    name: str,
    holds: str,
    argument: str,
    prompts: Sequence[str] | None = None,
) -> list[Tensor]:
    """Tokens of numbers 0 to `count` - 1, in batches; those that `folder` holds already are not made again.

    Args:
        make: gives tokens int32 [B, n] of some numbers.
        count: how many.
        batch_size: how many are made at once.
        folder: holds one file for each batch.
        settings: values that decide the tokens, such as the weights' fingerprint.
        name: begins the names of files.
        holds: what the tokens are, in the plural.
        argument: that named the folder.
        prompts: what each number asks for, kept beside the tokens of its batch, so that the list may grow at its end;
            None where the settings say it all.

    Raises:
        UserError: the folder was made with other settings or prompts, or holds a damaged file.
    """
    batches = []
    with own_folder(folder, argument=argument), progress(count, f"{holds} to learn from") as shown:
        for start in range(0, count, batch_size):
            numbers = range(start, min(start + batch_size, count))
            path, tokens = folder / f"{name}-{start:07d}.safetensors", None
            asked = None if prompts is None else list(prompts[start : numbers.stop])
            described = now = settings if asked is None else {**settings, "prompts": asked}
            if path.exists():
                with reading(path, "delete it", argument), safe_open(path, framework="pt") as file:
                    written = file.metadata() or {}
                    before = parse_json(written.get("settings", "{}"))
                    if asked is not None:
                        both = min(len(before["prompts"]), len(asked))
                        before["prompts"], now = before["prompts"][:both], {**settings, "prompts": asked[:both]}
                    check_identity(path, before, now, holds=holds, argument=argument)
                    tokens = file.get_tensor("tokens")
                    if written.get("tokens") not in (None, digest(tokens.tolist())):  # earlier versions wrote none
                        raise ValueError("its tokens are not those that were written")
            if tokens is None or len(tokens) < len(numbers):
                tokens = make(numbers)
                with atomic_path(path) as temporary:
                    about = {"settings": json.dumps(described), "tokens": digest(tokens.tolist())}
                    save_file({"tokens": tokens}, temporary, metadata=about)
            batches.append(tokens[: len(numbers)])
            shown.update(len(numbers))
    return batches
