"""What a target made is kept, and taken again only for the prompts that it was made for."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vargen.training.answers import keep_batches

WORDS = ["a dog", "a cat", "a cone"]
lists = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9)


def drawn(prompts: list[str], folder: Path, made: list[int] | None = None) -> list[str]:
    """The prompts that the kept tokens were drawn for; `made` gets the numbers that were drawn now."""

    def make(numbers: range) -> Tensor:
        if made is not None:
            made.extend(numbers)
        return torch.tensor([[WORDS.index(prompts[number])] for number in numbers], dtype=torch.int32)

    whose = {"name": "drawn", "holds": "pictures", "argument": "output"}
    batches = keep_batches(make, len(prompts), 4, folder, {"seed": 0}, prompts=prompts, **whose)
    return [WORDS[token] for token in torch.cat(batches)[:, 0].tolist()]


@settings(deadline=None, max_examples=50)
@given(before=lists, after=lists)
def test_kept_tokens_are_those_of_the_prompts_asked_for_or_are_refused(before, after):
    with tempfile.TemporaryDirectory() as folder:
        assert drawn(before, Path(folder)) == before
        both = min(len(before), len(after))
        if before[:both] == after[:both]:  # grown at its end, or read in part
            assert drawn(after, Path(folder)) == after
            assert drawn(before, Path(folder)) == before
        else:
            refused(r"holds pictures with other prompts at number \d", drawn, after, Path(folder))


def test_a_longer_list_of_prompts_draws_only_what_is_new(tmp_path):
    made: list[int] = []
    drawn(WORDS * 2, tmp_path)
    drawn(WORDS * 3, tmp_path, made)
    assert made == [4, 5, 6, 7, 8]  # with the rest of the batch that was not full


@pytest.mark.parametrize("change", [torch.neg, Tensor.float, Tensor.bool, lambda each: each[:, :0], Tensor.flatten])
def test_kept_tokens_are_believed_as_they_were_written_alone(change, tmp_path):
    drawn(WORDS, tmp_path)
    path = tmp_path / "drawn-0000000.safetensors"
    with safe_open(path, "pt") as file:
        tokens, written = file.get_tensor("tokens"), file.metadata()
    save_file({"tokens": change(tokens)}, path, metadata=written)
    refused("its tokens are not those that were written", drawn, WORDS, tmp_path)
