"""A language model's own continuations of prompts, which a draft head for it learns from.

Belongs here: prompts as numbered questions, and asking the model. Does not belong here: keeping the answers
(`answers.py`), composing prompts (`text_prompts.py`), hidden states, the head and its losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import specdecode
from vargen.training.answers import FILLER


@dataclass(frozen=True)
class TextPrompts:
    """Prompts as numbered questions, in the model's chat template where it has one.

    Args:
        tokenizer: of the model.
        texts: the prompts.
        split: "train" or "heldout".
        described: plain values that decide which prompts these are.
        batch_size: prompts that are continued at once.
    """

    tokenizer: Any
    texts: Sequence[str]
    split: str
    described: dict[str, Any]
    batch_size: int

    def inputs(self, number: int) -> dict[str, Tensor]:
        """{"input_ids": [1, T] int64} of a prompt."""
        text = self.texts[number]
        if getattr(self.tokenizer, "chat_template", None):
            chat = [{"role": "user", "content": text}]
            ids = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        else:
            ids = self.tokenizer(text)["input_ids"]
        return {"input_ids": torch.tensor([ids], dtype=torch.int64)}


@dataclass(frozen=True)
class TextAnswers:
    """Plays `Answer`: a model continues prompts, decoded by `specdecode.generate`.

    Args:
        model: a causal language model of transformers.
        max_new_tokens: of an answer, at most.
        temperatures: of batch after batch, in turns; 0 is greedy.
        seed: of drawn tokens; prompt i has a generator of its own.
    """

    model: Any
    max_new_tokens: int
    temperatures: Sequence[float]
    seed: int

    def __call__(self, first: int, inputs: Sequence[dict[str, Tensor]]) -> Tensor:
        """[B, n] int32 answers to prompts number `first` and on, each with the token that ended it."""
        device = self.model.get_input_embeddings().weight.device
        longest = max(each["input_ids"].shape[1] for each in inputs)
        missing = [longest - each["input_ids"].shape[1] for each in inputs]
        ids = torch.cat([F.pad(each["input_ids"], (left, 0)) for each, left in zip(inputs, missing, strict=True)])
        mask = torch.arange(longest) >= torch.tensor(missing)[:, None]
        result = specdecode.generate(
            self.model,
            ids.to(device),
            attention_mask=mask.to(device),
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperatures[first // len(inputs) % len(self.temperatures)],
            generator=[torch.Generator(device).manual_seed(self.seed + first + row) for row in range(len(inputs))],
        )
        tokens = result.sequences[:, longest:]
        is_over = torch.arange(tokens.shape[1], device=device) >= result.lengths[:, None]
        return tokens.masked_fill(is_over, FILLER).to("cpu", torch.int32)
