"""Prompts for the training of a text drafter, and a language model's own continuations, which the head learns from.

Prompts can be composed from words: an endless supply, a function of a seed. Those that a benchmark asks
(`benchmarks/real_text_prompts.json`) share no sentence with these, so a head is judged on other texts.

Belongs here: prompts, and asking the model. Does not belong here: keeping the answers (`answers.py`), hidden states,
the head and its losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import specdecode
from vargen.base.reading import read_yaml
from vargen.training.answers import FILLER

_TEXTS = Path(__file__).with_name("text_prompts.yaml")


def compose_prompts(split: str, seed: int, count: int) -> list[str]:
    """Prompts of six kinds in turns.

    Args:
        split: "train" or "heldout", which have other prompts at the same seed.
        seed: of all of them; prompt i is the same whatever `count` is.
    """
    return [_prompt(number, Random(f"{split} {seed} {number}")) for number in range(count)]


@cache
def _texts() -> dict[str, Any]:
    """Words by the place they take in a pattern, and patterns."""
    texts: dict[str, Any] = read_yaml(_TEXTS)
    return texts


def _prompt(number: int, random: Random) -> str:
    """One prompt, of the kind whose turn it is."""
    tasks = _texts()["tasks"]
    pattern = random.choice(tasks[number % len(tasks)].splitlines())
    return _filled(pattern, random).replace("|", "\n")


def _filled(pattern: str, random: Random) -> str:
    """A pattern with words in its places."""
    own = _texts()
    words = {name: random.choice(listed.split()).replace("_", " ") for name, listed in own["words"].items()}
    texts = {"body": _filled(random.choice(own["bodies"].splitlines()), random)} if "{body}" in pattern else {}
    for name, fewest, most in (("few", 1, 3), ("passage", 4, 8)):
        if f"{{{name}}}" in pattern:
            chosen = random.sample(own["sentences"].splitlines(), random.randint(fewest, most))
            texts[name] = " ".join(_filled(each, random) for each in chosen)
    return pattern.format(**words, **texts, day=random.randint(2, 28), number=random.randint(30, 400))


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
            method="ar",  # of many rows, the slowest decides how many passes there are
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperatures[first // len(inputs) % len(self.temperatures)],
            generator=[torch.Generator(device).manual_seed(self.seed + first + row) for row in range(len(inputs))],
        )
        tokens = result.sequences[:, longest:]
        is_over = torch.arange(tokens.shape[1], device=device) >= result.lengths[:, None]
        return tokens.masked_fill(is_over, FILLER).to("cpu", torch.int32)
