"""Text features: alignment against LlamaGen's own loop, trimming, cleaning."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raised
from tiny_pipelines import build_tiny_pipeline
from transformers import T5EncoderModel

from vargen.models.llamagen.text_encoder import clean_captions, encode_text, right_align

DIM = 12


@pytest.fixture
def reader() -> tuple[Any, T5EncoderModel]:
    """A tokenizer that ends a text with a token, and an encoder."""
    pipeline = build_tiny_pipeline()
    return pipeline.tokenizer, pipeline.text_encoder


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_right_align_equals_the_loop_of_the_reference(lengths):
    embeds = torch.randn(len(lengths), 6, 3)
    mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
    aligned, aligned_mask = right_align(embeds, mask)
    assert aligned_mask.dtype == torch.bool
    for row, valid in enumerate(lengths):
        flipped = mask[row].flip(0)
        expected = torch.cat((embeds[row, valid:], embeds[row, :valid])) * flipped[:, None]
        assert torch.equal(aligned[row], expected)
        assert torch.equal(aligned_mask[row], flipped.bool())


@torch.no_grad()
def test_features_end_at_the_end(reader):
    tokenizer, text_encoder = reader
    prompts = ["a red cube", "a blue sphere left of a red cube", "sphere"]
    embeds, mask = encode_text(*reader, prompts, 12, trim=False)
    assert embeds.shape == (3, 12, DIM) and mask.shape == (3, 12)
    assert mask.sum(1).tolist() == [4, 9, 2]  # words and the end token
    for row, prompt in enumerate(prompts):
        alone = text_encoder(**tokenizer(prompt, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(embeds[row, -len(alone) :], alone, atol=1e-5, rtol=0)
        assert not embeds[row, : -len(alone)].any()

    trimmed, trimmed_mask = encode_text(*reader, prompts, 12)
    assert trimmed.shape == (3, 9, DIM)
    assert torch.equal(trimmed_mask, mask[:, -9:])
    torch.testing.assert_close(trimmed, embeds[:, -9:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_long_prompts_are_cut_before_the_end_token(reader):
    tokenizer, text_encoder = reader
    embeds, mask = encode_text(*reader, ["a red cube left of a blue sphere", "cube"], 5)
    assert embeds.shape == (2, 5, DIM) and mask[0].all()
    expected = text_encoder(**tokenizer("a red cube left", return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(embeds[:1], expected, atol=1e-5, rtol=0)


def test_gradients_reach_the_encoder(reader):
    encode_text(*reader, ["a cube"], 8)[0].sum().backward()
    assert reader[1].shared.weight.grad is not None


@torch.no_grad()
def test_cleaning_is_decided_by_the_config(reader, tmp_path):
    """It is applied twice: one pass takes one mark off the front."""
    untidy, tidy = "A <b>RED</b> cube, visit www.cubes.com", "a red cube, visit"
    assert clean_captions([untidy, "_,a cube"]) == [tidy, "a cube"]
    plain = encode_text(*reader, [untidy], 20)[0]
    wanted = encode_text(*reader, [tidy], 20)[0]
    reader[1].config.clean_caption = True
    assert torch.equal(encode_text(*reader, [untidy], 20)[0], wanted) and plain.shape != wanted.shape
    reader[1].save_pretrained(tmp_path)
    assert T5EncoderModel.from_pretrained(tmp_path).config.clean_caption is True


def test_cleaning_refuses_to_do_half(monkeypatch):
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: False)
    raised(ValueError, "ftfy", clean_captions, ["a cube"])
