"""Text features: alignment against LlamaGen's own loop, trimming, cleaning."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raised
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from vargen.models.llamagen.text_encoder import clean_captions, encode_text, right_align

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "cube", "sphere", "left", "of"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture
def text_encoder() -> T5EncoderModel:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config).eval()


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
def test_features_end_at_the_end(tokenizer, text_encoder):
    prompts = ["a red cube", "a blue sphere left of a red cube", "sphere"]
    embeds, mask = encode_text(tokenizer, text_encoder, prompts, 12, trim=False)
    assert embeds.shape == (3, 12, 16) and mask.shape == (3, 12)
    assert mask.sum(1).tolist() == [4, 9, 2]  # words and the end token
    for row, prompt in enumerate(prompts):
        ids = torch.tensor([[WORDS.index(word) for word in prompt.split()] + [1]])
        alone = text_encoder(input_ids=ids).last_hidden_state[0]
        torch.testing.assert_close(embeds[row, -len(alone) :], alone, atol=1e-5, rtol=0)
        assert not embeds[row, : -len(alone)].any()

    trimmed, trimmed_mask = encode_text(tokenizer, text_encoder, prompts, 12)
    assert trimmed.shape == (3, 9, 16)
    assert torch.equal(trimmed_mask, mask[:, -9:])
    torch.testing.assert_close(trimmed, embeds[:, -9:], atol=1e-5, rtol=0)


@torch.no_grad()
def test_long_prompts_are_cut_before_the_end_token(tokenizer, text_encoder):
    embeds, mask = encode_text(tokenizer, text_encoder, ["a red cube left of a blue sphere", "cube"], 5)
    assert embeds.shape == (2, 5, 16) and mask[0].all()
    expected = text_encoder(input_ids=torch.tensor([[3, 4, 6, 8, 1]])).last_hidden_state
    torch.testing.assert_close(embeds[:1], expected, atol=1e-5, rtol=0)


def test_gradients_reach_the_encoder(tokenizer, text_encoder):
    encode_text(tokenizer, text_encoder, ["a cube"], 8)[0].sum().backward()
    assert text_encoder.shared.weight.grad is not None


@torch.no_grad()
def test_cleaning_is_decided_by_the_config(tokenizer, text_encoder, tmp_path):
    """It is applied twice: one pass takes one mark off the front."""
    untidy, tidy = "A <b>RED</b> cube, visit www.cubes.com", "a red cube, visit"
    assert clean_captions([untidy, "_,a cube"]) == [tidy, "a cube"]
    plain = encode_text(tokenizer, text_encoder, [untidy], 20)[0]
    wanted = encode_text(tokenizer, text_encoder, [tidy], 20)[0]
    text_encoder.config.clean_caption = True
    assert torch.equal(encode_text(tokenizer, text_encoder, [untidy], 20)[0], wanted) and plain.shape != wanted.shape
    text_encoder.save_pretrained(tmp_path)
    assert T5EncoderModel.from_pretrained(tmp_path).config.clean_caption is True


def test_cleaning_refuses_to_do_half(monkeypatch):
    monkeypatch.setattr("diffusers.utils.is_ftfy_available", lambda: False)
    raised(ValueError, "ftfy", clean_captions, ["a cube"])
