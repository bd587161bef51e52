"""The scene world's tokenizer: what it knows, and names what it does not."""

import pytest
from transformers import PreTrainedTokenizerFast

from scenes.captions.text_tokenizer import MODEL_MAX_LENGTH, build_tokenizer
from vargen.base.prompts import unknown_words


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_special_tokens_lie_where_t5_has_them(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    batch = tokenizer(["a red cube", "two cones on sand"], padding=True)
    assert [ids[-1] for ids in batch["input_ids"]] == [0, 1]
    assert batch["attention_mask"][0][-1] == 0 and tokenizer.model_max_length == MODEL_MAX_LENGTH


def test_case_and_marks_do_not_matter(tokenizer):
    plain = tokenizer("a red cube")["input_ids"]
    assert tokenizer("A RED cube")["input_ids"] == plain
    assert tokenizer('a "red" cube!')["input_ids"] == plain
    assert tokenizer("a red, cube.")["input_ids"] != plain  # commas and full stops are words


def test_unknown_words_are_named_once_as_they_were_written(tokenizer):
    assert unknown_words(tokenizer, "a red cube") == []
    assert unknown_words(tokenizer, "A Corgi near a red corgi's cube, Paris") == ["Corgi", "near", "corgi's", "Paris"]
