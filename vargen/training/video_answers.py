"""A Video-LLM's answers by transformers' own loop, which a draft head for it learns from.

Belongs here: asking the model. Does not belong here: keeping the answers (`answers.py`), the questions
(`video_questions.py`), the target's hidden states (`video_states.py`), the head and its losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vargen.training.answers import FILLER, keep_answers
from vargen.training.video_questions import Questions


def generate_answers(
    model: Any, questions: Questions, count: int, folder: Path, settings: dict[str, Any], max_new_tokens: int
) -> list[list[int]]:
    """The target's greedy answers to the first questions, at most `max_new_tokens` tokens each; see `keep_answers`."""
    settings = {**settings, "max_answer_tokens": max_new_tokens}
    return keep_answers(
        lambda first, inputs: generate_batch(model, inputs, max_new_tokens), questions, count, folder, settings
    )


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
    return pad_sequence(answers, batch_first=True, padding_value=FILLER)


def _generate_together(model: Any, inputs: Sequence[dict[str, Tensor]], max_new_tokens: int) -> Tensor:
    """`generate_batch` for questions of one shape."""
    device = model.get_input_embeddings().weight.device
    batch = {name: torch.cat([each[name] for each in inputs]).to(device) for name in inputs[0]}
    length = batch["input_ids"].shape[1]
    tokens = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)[:, length:]
    ends = torch.tensor(stop_tokens(model), device=device)
    is_end = torch.isin(tokens, ends)
    behind = is_end.cumsum(1) - is_end.long() > 0
    return tokens.masked_fill(behind, FILLER).to("cpu", torch.int32)


def stop_tokens(model: Any) -> list[int]:
    """Token ids that end an answer."""
    listed = model.generation_config.eos_token_id
    return [] if listed is None else list(listed) if isinstance(listed, Sequence) else [int(listed)]
