"""`specdecode.generate` gives what transformers' own `generate` gives, in fewer passes. Arguments that it refuses are
rows of `tests/hostile/test_calls.py`."""

import subprocess
import sys
from typing import Any

import language_models
import pytest
import torch
from language_models import METHODS, PAD, ragged_prompts, speculate, true_distribution
from synthetic import chi_square_p_value

import specdecode
from specdecode.sampling import SamplingConfig

ARCHITECTURES = ("llama", "qwen3", "gemma3")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_are_those_of_transformers(architecture, method):
    model, prompts = language_models.make(architecture), ragged_prompts(2)
    # Else prompt lookup chooses by the clock.
    length = {"draft_length": 8} if method == "prompt-lookup" else {}
    result = speculate(model, method, prompts, max_new_tokens=24, **length)
    assert torch.equal(result.sequences, language_models.by_generate(model, prompts, 24))
    assert result.lengths.tolist() == [24] * 3
    if method in ("prompt-lookup", "draft-model"):
        assert result.trace.target_passes < 24, "drafting must have been of use here"


@pytest.mark.parametrize("method", METHODS)
def test_rows_end_where_those_of_transformers_end(method):
    model, prompts = language_models.make("qwen3"), ragged_prompts(1)
    whole = language_models.by_generate(model, prompts, 14)[:, 9:]
    ends = {(int(whole[row, offset]),) for row, offset in ((0, 0), (0, 3), (1, 4), (1, 13), (2, 1), (2, 7))}
    ends.add((int(whole[0, 5]), int(whole[1, 2])))
    several_lengths = False
    for end in ends:
        wanted = language_models.by_generate(model, prompts, 14, eos_token_id=list(end))
        result = speculate(model, method, prompts, max_new_tokens=14, eos_token_id=list(end))
        assert torch.equal(result.sequences, wanted)
        several_lengths |= len(set(result.lengths.tolist())) > 1
    assert several_lengths


@pytest.mark.parametrize("draft_length", [1, 3, 11])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_rows_have_exactly_as_many_tokens_as_asked(count, draft_length):
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    wanted = language_models.by_generate(model, prompts, count)
    for method in METHODS[1:]:
        result = speculate(model, method, prompts, max_new_tokens=count, draft_length=draft_length)
        assert torch.equal(result.sequences, wanted)


def test_the_models_own_tokens_end_and_pad_rows():
    model, prompts = language_models.make("llama"), ragged_prompts(1)
    end = int(language_models.by_generate(model, prompts, 8)[0, 9 + 3])
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = end, 3
    result = specdecode.generate(model, prompts[0], attention_mask=prompts[1], max_new_tokens=8)
    theirs = model.generate(input_ids=prompts[0], attention_mask=prompts[1], max_new_tokens=8, do_sample=False)
    assert torch.equal(result.sequences, theirs) and int(result.sequences[0, -1]) == 3
    assert specdecode.generate(model, prompts[0], max_new_tokens=8, eos_token_id=[]).lengths.tolist() == [8] * 3


VOCAB, LENGTH, DRAWS = 5, 4, 8_000


@pytest.mark.parametrize("sampling", [SamplingConfig(1.5), SamplingConfig(2.0, 4, 0.9)], ids=str)
@pytest.mark.parametrize("method", METHODS[1:])
def test_sampled_tokens_are_distributed_as_the_model_says(method, sampling):
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "num_hidden_layers": 1, "dtype": torch.float32}
    model, prompt = language_models.make("gemma3", **sizes), torch.tensor([1, 3, 2, 1, 3, 4, 1])
    prompts = prompt.expand(DRAWS, -1), torch.ones(DRAWS, len(prompt), dtype=torch.int64)
    result = speculate(
        model, method, prompts, max_new_tokens=LENGTH, temperature=sampling.temperature, top_k=sampling.top_k,
        top_p=sampling.top_p, generator=torch.Generator().manual_seed(0), draft_length=3,
    )  # fmt: skip
    expected, tokens = true_distribution(model, prompt, sampling, LENGTH), result.sequences[:, len(prompt) :]
    assert result.trace.mean_accepted_length > 0.05
    assert chi_square_p_value(tokens, expected, VOCAB) > 1e-3
    # The test would notice: of a model that is a little different it says no.
    other = true_distribution(language_models.disturbed(model, 0.1), prompt, sampling, LENGTH)
    assert chi_square_p_value(tokens, other, VOCAB) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_greedy_decoding_leaves_torchs_own_generator_as_it_is(method):
    model, prompts = language_models.make("llama"), ragged_prompts()
    calls = [lambda: speculate(model, method, prompts, max_new_tokens=6)]
    calls += [
        lambda: model.generate(
            prompts[0], attention_mask=prompts[1], max_new_tokens=6, do_sample=False, pad_token_id=PAD,
            custom_generate=specdecode.custom_generate,
        )
    ]  # fmt: skip
    for call in calls:
        before = torch.get_rng_state()
        call()
        assert torch.equal(torch.get_rng_state(), before)
    speculate(model, method, prompts, max_new_tokens=6, temperature=1.0)
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_row_of_its_own_generator_does_not_depend_on_its_batch():
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 12, "method": "prompt-lookup"}

    def seeded(*seeds: int) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    together = specdecode.generate(model, input_ids, attention_mask=mask, generator=seeded(4, 5, 6), **options)
    alone = specdecode.generate(model, input_ids[1:2, 3:], generator=seeded(5), **options)
    assert together.sequences[1, 9:].tolist() == alone.sequences[0, 6:].tolist()
    other = specdecode.generate(model, input_ids[1:2, 3:], generator=seeded(6), **options)
    assert other.sequences.tolist() != alone.sequences.tolist()


def test_learned_positions_end_and_are_used_to_the_last():
    """The last token that is drawn needs no position, as it is never fed; drafts beyond it have none."""
    model, prompts = language_models.make("gpt2"), ragged_prompts()
    vectors = model.transformer.wpe.weight.data
    vectors[126] = -vectors[127].mul_(8)  # what the last position says, the one before says the opposite of
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel has 128 positions: .* may be 129 together, got 130"):
        specdecode.generate(model, prompts[0], max_new_tokens=121)
    wanted = language_models.by_generate(model, prompts, 120)
    for method in ("jacobi", "prompt-lookup"):
        assert torch.equal(speculate(model, method, prompts, max_new_tokens=120, draft_length=8).sequences, wanted)
    drafted = specdecode.generate(model, prompts[0], attention_mask=prompts[1], draft_model=model, max_new_tokens=120)
    assert torch.equal(drafted.sequences, wanted)


def test_tokens_that_end_rows_may_be_a_tensor():
    model, prompts = language_models.make("llama"), ragged_prompts(1)
    ends = [int(language_models.by_generate(model, prompts, 8)[0, 9 + 3]), 5]
    results = [
        specdecode.generate(model, prompts[0], attention_mask=prompts[1], max_new_tokens=8, eos_token_id=each)
        for each in (ends, torch.tensor(ends), tuple(ends))
    ]
    assert all(torch.equal(result.sequences, results[0].sequences) for result in results)
    assert int(results[0].lengths[0]) <= 4


def test_the_core_is_light():
    code = (
        "import sys, specdecode; heavy = {'transformers', 'diffusers', 'vargen', 'metrics', 'scipy'} & {*sys.modules};"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
    with pytest.raises(AttributeError, match="Decoder"):
        specdecode.Decoder  # noqa: B018
