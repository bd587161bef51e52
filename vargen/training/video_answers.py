"""Answers that a Video-LLM gave, kept on disk, which a draft head for it learns from.

Belongs here: making the answers in resumable batches. Does not belong here: the questions (`video_questions.py`), the
target's hidden states (`video_states.py`), the head and its losses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from vargen.base.reading import reading
from vargen.runs.files import atomic_path, own_folder
from vargen.runs.identity import check_identity
from vargen.training.video_questions import Questions

_FILLER = -1


def generate_answers(
    model: Any, questions: Questions, count: int, folder: Path, settings: dict[str, Any], max_new_tokens: int
) -> list[list[int]]:
    """The target's greedy answers to the first questions; those that `folder` holds already are not made again.

    Args:
        model: the target.
        questions: numbered from 0 on.
        count: number of answers.
        folder: holds one file per batch.
        settings: values that decide the answers beside the questions, such as the weights' fingerprint; a folder with
            other settings is refused.
        max_new_tokens: the most tokens of an answer.

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
    with reading(path, "delete it", "answers"), safe_open(path, framework="pt") as file:
        before = json.loads((file.metadata() or {}).get("settings", "{}"))
        check_identity(path, before, described, holds="answers", argument="answers")
        return file.get_tensor("tokens")


def generate_batch(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """Greedy answers by transformers' own loop: [B, n] int32, padded with -1.

    Questions of one shape are answered together, others in turn: some architectures answer differently after padding.
    """
    shapes = [tuple(value.shape for value in each.values()) for each in inputs]
    answers: list[Tensor] = [torch.empty(0, dtype=torch.int32)] * len(inputs)
    for shape in dict.fromkeys(shapes):
        rows = [row for row, own in enumerate(shapes) if own == shape]
        together = _generate_together(model, [inputs[row] for row in rows], max_new_tokens)
        for row, answer in zip(rows, together, strict=True):
            answers[row] = answer
    return pad_sequence(answers, batch_first=True, padding_value=_FILLER)


def _generate_together(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """`generate_batch` for questions of one shape."""
    device = model.get_input_embeddings().weight.device
    batch = {name: torch.cat([each[name] for each in inputs]).to(device) for name in inputs[0]}
    length = batch["input_ids"].shape[1]
    tokens = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)[:, length:]
    ends = torch.tensor(stop_tokens(model), device=device)
    is_end = torch.isin(tokens, ends)
    behind = is_end.cumsum(1) - is_end.long() > 0
    return tokens.masked_fill(behind, _FILLER).to("cpu", torch.int32)


def stop_tokens(model: Any) -> list[int]:
    """Token ids that end an answer."""
    listed = model.generation_config.eos_token_id
    return [] if listed is None else list(listed) if isinstance(listed, Sequence) else [int(listed)]
