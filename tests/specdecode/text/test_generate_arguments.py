"""The arguments of transformers' `generate` do here what they do there, whatever was drafted."""

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import language_models
import pytest
import tokenizers
import torch
from language_models import METHODS, PAD, VOCAB_SIZE, Puts, ragged_prompts, speculate
from refusals import value_error
from synthetic import chi_square_p_value
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

import specdecode
from specdecode.sampling import SamplingConfig, logits_to_probabilities
from specdecode.text import processed
from specdecode.text.processed import ProcessedVerifier, Texts

END, theirs = 7, language_models.by_generate

SETTINGS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[11], [3, 4], [29, 29]]},
    "suppress_tokens": {"suppress_tokens": list(range(0, VOCAB_SIZE, 3))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(0, VOCAB_SIZE, 2))},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(1, VOCAB_SIZE, 2))},
    "forced_eos_token_id": {"forced_eos_token_id": END},
    "sequence_bias": {"sequence_bias": {(5,): 9.0, (5, 6): 30.0}},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 2.5), "eos_token_id": END},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 2.5},
    "renormalize_logits": {"renormalize_logits": True, "repetition_penalty": 1.7},
}


def alike(model: PreTrainedModel, prompts: Any, methods: Sequence[str] = METHODS, **options: Any) -> tuple[Tensor, Any]:
    """What transformers says in 16 tokens, and the result of each method, which must say the same."""
    wanted, results = theirs(model, prompts, **options), {}
    for method in methods:
        results[method] = speculate(model, method, prompts, max_new_tokens=16, **options)
        assert torch.equal(results[method].sequences, wanted), method
    return wanted, results


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_tokens_under_every_setting_are_those_of_transformers(name):
    model, prompts, settings = language_models.make("llama"), ragged_prompts(2), SETTINGS[name]
    wanted, results = alike(model, prompts, **settings)
    assert not torch.equal(wanted, theirs(model, prompts)), "the setting must matter here"
    assert results["draft-model"].trace.target_passes <= results["ar"].trace.target_passes


def test_a_setting_counts_wherever_it_stands():
    model, prompts = language_models.make("qwen3"), ragged_prompts(2)
    wanted = theirs(model, prompts, repetition_penalty=1.7)
    options: dict[str, Any] = {"attention_mask": prompts[1], "max_new_tokens": 16, "pad_token_id": PAD}
    for config in (GenerationConfig(repetition_penalty=1.7), GenerationConfig(repetition_penalty=1.7, do_sample=True)):
        given = specdecode.generate(model, prompts[0], generation_config=config, temperature=0, **options)
        assert torch.equal(given.sequences, wanted)
    other = GenerationConfig(repetition_penalty=2.5, max_new_tokens=16, pad_token_id=PAD)
    model.generation_config.repetition_penalty = 1.7  # of the model: was ignored once
    assert torch.equal(specdecode.generate(model, prompts[0], **options).sequences, wanted)
    given = specdecode.generate(model, prompts[0], attention_mask=prompts[1], generation_config=other)
    assert torch.equal(given.sequences, theirs(model, prompts, repetition_penalty=2.5))
    given = specdecode.generate(model, prompts[0], repetition_penalty=1.0, **options)
    assert torch.equal(given.sequences, theirs(model, prompts, repetition_penalty=1.0))


def test_lengths_come_from_the_call_then_the_model():
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    count = lambda **options: specdecode.generate(model, prompts[0], **options).lengths.tolist()  # noqa: E731
    assert count(max_length=14) == [5] * 3 and count(max_length=14, max_new_tokens=3) == [3] * 3
    assert count(generation_config=GenerationConfig(max_new_tokens=4)) == [4] * 3
    model.generation_config.max_new_tokens = 6
    assert count() == [6] * 3 and count(max_new_tokens=2) == [2] * 3


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("no_repeat_ngram_size", "x", "an integer, got 'x'"),
        ("min_new_tokens", 2.5, "an integer, got 2.5"),
        ("max_length", [20], r"an integer, got \[20\]"),
        ("min_p", "0.1", "a number, got '0.1'"),
        ("repetition_penalty", True, "a number, got True"),
        ("suppress_tokens", ["a"], r"a list of tokens, got \['a'\]"),
        ("begin_suppress_tokens", 5, "a list of tokens, got 5"),
        ("exponential_decay_length_penalty", 5, "a start, which is an integer, and a factor, got 5"),
        ("forced_eos_token_id", "end", "a list of tokens, got 'end'"),
        ("stop_strings", 5, "text or a list of texts, got 5"),
    ],
)
def test_a_setting_of_another_kind_is_named(name, value, wanted):
    """transformers would end in the middle, by a TypeError that names a line of its own."""
    model, (ids, mask) = language_models.make("llama"), ragged_prompts(2)
    for given in ({name: value}, {"generation_config": GenerationConfig(**{name: value})}):
        value_error(f"^{name} must be {wanted}$", specdecode.generate, model, ids, attention_mask=mask, **given)


class Recorded(LogitsProcessor):
    """Remembers every text that it was shown, and forbids what it says by a rule that depends on all of it."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.texts += input_ids.tolist()
        shift = input_ids.sum(1, keepdim=True) % 5
        return scores.masked_fill((torch.arange(scores.shape[1]) + shift) % 5 == 0, -torch.inf)


@pytest.mark.parametrize("method", METHODS)
def test_a_processor_sees_each_text_of_plain_decoding_once_and_no_other(method):
    model = language_models.make("gemma3")
    for row in range(3):
        ids, mask = (part[row : row + 1] for part in ragged_prompts(2))
        mine, their = Recorded(), Recorded()
        wanted = theirs(model, (ids, mask), logits_processor=LogitsProcessorList([their]))
        result = speculate(model, method, (ids, mask), max_new_tokens=16, logits_processor=[mine])
        assert torch.equal(result.sequences, wanted) and mine.texts == their.texts
    alike(model, ragged_prompts(2), [method], logits_processor=LogitsProcessorList([Recorded()]))


def test_a_processor_may_depend_on_the_row_and_refuse_impossible_texts():
    """A grammar of each row's own, which knows no way on from a text that it forbids."""
    model, prompts = language_models.make("llama"), ragged_prompts(2)

    def allowed(row: int, text: Tensor) -> list[int]:
        new = [token for token in text[9:].tolist() if token != PAD]
        for earlier, token in zip([int(text[8]), *new], new, strict=False):
            assert (token - earlier) % 7 == row + 1, "drafted, but never said"
        last = int(new[-1] if new else text[8])
        return [token for token in range(VOCAB_SIZE) if (token - last) % 7 == row + 1 and token != PAD]

    alike(model, prompts, prefix_allowed_tokens_fn=allowed)


# ---------------------------------------------------------------------------------------------------------------------
# Sampling


@pytest.mark.parametrize("method", METHODS)
def test_without_processors_the_verifier_is_the_exact_one(method):
    """Draw for draw, where scores are wanted and nothing else."""
    model, prompts = language_models.make("qwen3"), ragged_prompts(2)

    def draw(**options: Any) -> Tensor:
        seeds = [torch.Generator().manual_seed(seed) for seed in (1, 2, 3)]
        options = {"temperature": 1.0, "max_new_tokens": 14, "generator": seeds, **options}
        sequences: Tensor = speculate(model, method, prompts, **options).sequences
        return sequences

    assert torch.equal(draw(), draw(output_scores=True))
    assert torch.equal(
        draw(temperature=0.7, top_k=9, top_p=0.9), draw(temperature=0.7, top_k=9, top_p=0.9, output_scores=True)
    )


SMALL, LENGTH, DRAWS = 5, 3, 4_000


@torch.no_grad()
def true_distribution(model: PreTrainedModel, prompt: Tensor, processors: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """[V ** LENGTH] float64, from passes without a cache and processors text by text."""
    product = torch.ones(1, dtype=torch.float64)
    for place in range(LENGTH):
        texts = torch.tensor(list(itertools.product(range(SMALL), repeat=place)), dtype=torch.int64)
        ids = torch.cat([prompt.expand(len(texts), -1), texts], 1)
        logits = model(ids, use_cache=False).logits[:, -1].float()
        each = logits_to_probabilities(processors(ids, logits), SamplingConfig(1.0)).double()
        product = (product[:, None] * each / each.sum(1, keepdim=True)).flatten()
    return product


@pytest.mark.parametrize("method", METHODS[1:])
def test_sampled_tokens_have_the_processed_distribution(method):
    from transformers.generation.logits_process import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor
    from transformers.generation.logits_process import TemperatureLogitsWarper as Temperature

    sizes: dict[str, Any] = {"vocab_size": SMALL, "num_hidden_layers": 1, "dtype": torch.float32}
    model, prompt = language_models.make("gemma3", **sizes), torch.tensor([1, 3, 2, 1, 3, 4, 1])
    prompts = prompt.expand(DRAWS, -1), torch.ones(DRAWS, len(prompt), dtype=torch.int64)
    settings: dict[str, Any] = {"repetition_penalty": 2.5, "min_p": 0.05}
    result = speculate(
        model, method, prompts, max_new_tokens=LENGTH, temperature=1.5, generator=torch.Generator().manual_seed(0),
        draft_length=2, **settings,
    )  # fmt: skip

    def expected(penalty: float) -> Tensor:
        chain = [RepetitionPenaltyLogitsProcessor(penalty), Temperature(1.5), MinPLogitsWarper(0.05)]
        return true_distribution(model, prompt, LogitsProcessorList(chain))

    tokens = result.sequences[:, len(prompt) :]
    assert result.trace.mean_accepted_length > 0.05
    assert chi_square_p_value(tokens, expected(2.5), SMALL) > 1e-3
    assert chi_square_p_value(tokens, expected(1.0), SMALL) < 1e-6, "the test would notice"


def test_sampling_is_as_the_configuration_says(monkeypatch):
    model, prompts, seen = language_models.make("llama"), ragged_prompts(2), []
    decode = specdecode.generate.__globals__["_continue"]

    def noted(*given: Any) -> Any:
        seen.append((given[3].sampling, given[3].processors is not None))
        return decode(*given)

    monkeypatch.setitem(specdecode.generate.__globals__, "_continue", noted)
    own = {"generation_config": GenerationConfig(do_sample=True, temperature=0.9, top_k=7)}
    for options, wanted, processed_too in (
        ({}, SamplingConfig(0), False),
        ({"temperature": 0.5}, SamplingConfig(0.5), False),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.8}, SamplingConfig(0.5, 3, 0.8), False),
        ({"do_sample": True}, SamplingConfig(1.0, min(50, VOCAB_SIZE + 2)), False),  # transformers' own default
        (own, SamplingConfig(0.9, 7), False),
        ({"temperature": 0.5, **own}, SamplingConfig(0.5, 7), False),
        ({"temperature": 0, **own}, SamplingConfig(0), False),
        ({"temperature": 0.5, "top_k": 3, "min_p": 0.1}, SamplingConfig(), True),
    ):
        specdecode.generate(model, prompts[0], max_new_tokens=2, **options)
        assert seen.pop() == (wanted, processed_too)


# ---------------------------------------------------------------------------------------------------------------------
# The end of a row


class Sums(StoppingCriteria):
    """Ends a row where its newest tokens add up to a multiple; remembers every text that it was shown."""

    def __init__(self, multiple: int = 6) -> None:
        self.multiple = multiple
        self.texts: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Tensor:
        self.texts += input_ids.tolist()
        return input_ids[:, -2:].sum(1) % self.multiple == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_criterion_ends_a_row_in_the_middle_of_a_draft(method):
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    ended = set()
    for multiple in (3, 6, 11, 1):
        for row in range(3):
            one = prompts[0][row : row + 1], prompts[1][row : row + 1]
            mine, their = Sums(multiple), Sums(multiple)
            wanted = theirs(model, one, stopping_criteria=StoppingCriteriaList([their]))
            result = speculate(model, method, one, max_new_tokens=16, stopping_criteria=[mine])
            assert torch.equal(result.sequences, wanted) and mine.texts == their.texts
            assert result.trace.tokens == result.lengths[0]
            ended.add(int(result.lengths[0]))
        alike(model, prompts, [method], stopping_criteria=StoppingCriteriaList([Sums(multiple)]), eos_token_id=END)
    assert len(ended) > 3 and 1 in ended


@pytest.mark.parametrize("method", METHODS)
def test_a_criterion_is_shown_nothing_behind_a_stop_token(method):
    model, (ids, mask) = language_models.make("llama"), ragged_prompts(2)
    for row in range(3):
        one, mine, their = (ids[row : row + 1], mask[row : row + 1]), Sums(999), Sums(999)
        stop = int(theirs(model, one)[0, 9 + 3])
        theirs(model, one, stopping_criteria=StoppingCriteriaList([their]), eos_token_id=stop)
        speculate(model, method, one, max_new_tokens=16, stopping_criteria=[mine], eos_token_id=stop)
        assert mine.texts == their.texts


def test_a_criterion_may_read_scores_and_answer_for_all_rows():
    model, prompts = language_models.make("llama"), ragged_prompts(2)

    class Sure(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Any:
            assert len(scores) == input_ids.shape[1] - 9
            return torch.tensor(bool(scores[-1].softmax(-1).max() > 0.9999) or len(scores) == 6)

    options: dict[str, Any] = {"output_scores": True, "stopping_criteria": StoppingCriteriaList([Sure()])}
    one = prompts[0][:1], prompts[1][:1]
    wanted = theirs(model, one, **options, return_dict_in_generate=True)
    result = speculate(model, "prompt-lookup", one, max_new_tokens=16, **options)
    assert torch.equal(result.sequences, wanted.sequences) and len(result.scores) == len(wanted.scores)

    class Long(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **others: Any) -> Any:
            return torch.tensor(input_ids.shape[1] >= 14)

    alike(model, prompts, ["prompt-lookup"], stopping_criteria=StoppingCriteriaList([Long()]))


WORDS = [chr(97 + number % 26) * (1 + number // 26) for number in range(VOCAB_SIZE)]


def letters() -> PreTrainedTokenizerFast:
    """A tokenizer of one letter or two for each token."""
    model = tokenizers.models.BPE(vocab={word: number for number, word in enumerate(WORDS)}, merges=[])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_stop_strings_end_rows():
    model, prompts, tokenizer = language_models.make("llama"), ragged_prompts(2), letters()
    text = theirs(model, prompts)[:, 9:].tolist()
    strings = [
        "".join(WORDS[token] for token in row[place : place + 2]) for row, place in zip(text, (2, 6, 9), strict=True)
    ]
    wanted, _ = alike(model, prompts, stop_strings=strings, tokenizer=tokenizer, eos_token_id=END)
    assert wanted.shape[1] < 9 + 16
    model.generation_config.stop_strings = strings
    value_error("stop_strings need the model's tokenizer", specdecode.generate, model, prompts[0])
    own = speculate(model, "prompt-lookup", prompts, max_new_tokens=16, tokenizer=tokenizer, eos_token_id=END)
    assert torch.equal(own.sequences, wanted)


@pytest.mark.parametrize("method", METHODS)
def test_a_streamer_is_given_what_plain_decoding_gives_it(method):
    model, prompts = language_models.make("llama"), ragged_prompts(1)
    ends = [int(theirs(model, prompts, 14)[0, 9 + 3]), END]
    for batch in (prompts, tuple(part[:1] for part in prompts)):
        mine, their = Puts(), Puts()
        theirs(model, batch, 14, streamer=their, eos_token_id=ends)
        speculate(model, method, batch, max_new_tokens=14, streamer=mine, eos_token_id=ends)
        assert mine.given == their.given and mine.ended == 1


# ---------------------------------------------------------------------------------------------------------------------
# Scores


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_transformers(method, sampled):
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    settings: dict[str, Any] = {"repetition_penalty": 1.3, "output_scores": True, "output_logits": True}
    drawn = {"temperature": 0.8, "top_k": 9, "top_p": 0.9} if sampled else {}
    generator = torch.Generator().manual_seed(0)
    result = speculate(
        model, method, prompts, max_new_tokens=12, generator=generator, eos_token_id=END, **settings, **drawn
    )
    # What transformers says of the very same texts, plainly decoded.
    forced = result.sequences

    class Forced(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return torch.full_like(scores, -torch.inf).scatter(1, forced[:, input_ids.shape[1], None], 0.0)

    kept: list[Tensor] = []

    class Kept(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            kept.append(scores.clone())
            return scores

    from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers = [TemperatureLogitsWarper(0.8), TopKLogitsWarper(9), TopPLogitsWarper(0.9)] if sampled else []
    count = forced.shape[1] - 9
    output = theirs(
        model, prompts, count, logits_processor=LogitsProcessorList([*warpers, Kept(), Forced()]),
        return_dict_in_generate=True, output_logits=True, repetition_penalty=1.3,
    )  # fmt: skip
    assert torch.equal(output.sequences, forced) and len(result.scores) == len(result.logits) == count
    for place in range(count):
        for row in range(3):
            if place < result.lengths[row]:
                torch.testing.assert_close(result.scores[place][row], kept[place][row], rtol=1e-4, atol=1e-4)
                torch.testing.assert_close(result.logits[place][row], output.logits[place][row], rtol=1e-4, atol=1e-4)
            else:
                assert result.scores[place][row].softmax(0)[PAD] == 1, "a row that ended says the pad token"


def test_without_a_wish_there_are_no_scores():
    result = specdecode.generate(language_models.make("llama"), ragged_prompts()[0], max_new_tokens=2)
    assert result.scores is None and result.logits is None


# ---------------------------------------------------------------------------------------------------------------------
# `custom_generate`


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"repetition_penalty": 1.7},
        {"eos_token_id": [END, 20, 21], "min_new_tokens": 3},
        {"no_repeat_ngram_size": 2, "stopping_criteria": StoppingCriteriaList([Sums(11)]), "eos_token_id": END},
        {"cache_implementation": "static"},
        {"num_return_sequences": 1, "max_length": 30},
        {"use_cache": False},
    ],
    ids=lambda settings: ",".join(settings) or "none",
)
def test_a_user_of_transformers_changes_one_argument(settings):
    model, prompts = language_models.make("qwen3"), ragged_prompts(2)
    wanted = theirs(model, prompts, **settings)
    for players in ({}, {"method": "jacobi"}, {"draft_model": language_models.disturbed(model, 0.02)}):
        mine = theirs(model, prompts, **settings, custom_generate=specdecode.custom_generate, **players)
        assert torch.equal(mine, wanted)


def test_custom_generate_returns_what_generate_returns():
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    options: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    wanted = theirs(model, prompts, **options)
    mine = theirs(model, prompts, **options, custom_generate=specdecode.custom_generate)
    assert type(mine) is type(wanted) and torch.equal(mine.sequences, wanted.sequences)
    for name in ("scores", "logits"):
        for ours, other in zip(mine[name], wanted[name], strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-4)
    scores = [model.compute_transition_scores(each.sequences, each.scores) for each in (mine, wanted)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)
    puts = Puts()
    theirs(model, prompts, custom_generate=specdecode.custom_generate, stream_to=puts)
    assert puts.given[0] == prompts[0].tolist() and len(puts.given) == 17 and puts.ended == 1
    seeds = lambda: torch.Generator().manual_seed(3)  # noqa: E731
    sampled: dict[str, Any] = {"custom_generate": specdecode.custom_generate, "do_sample": True, "temperature": 1.5}
    several = [
        theirs(model, prompts, **sampled, num_return_sequences=2, generator=seeds(), method=method)
        for method in ("ar", "prompt-lookup")
    ]
    assert several[0].shape[0] == 6 and torch.equal(*several)
    lookup = theirs(model, prompts, custom_generate=specdecode.custom_generate, prompt_lookup_num_tokens=3)
    assert torch.equal(lookup, theirs(model, prompts))


def refused(message: str, model: PreTrainedModel, prompts: tuple[Tensor, Tensor], **settings: Any) -> None:
    """By a call of this project, and by transformers' own where it is told to call this project."""
    ids, mask = prompts
    value_error(message, specdecode.generate, model, ids, attention_mask=mask, max_new_tokens=3, **settings)
    value_error(message, theirs, model, prompts, 3, custom_generate=specdecode.custom_generate, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "num_beams is 2, which specdecode cannot honour"),
        ({"output_attentions": True}, "output_attentions is True"),
        ({"output_hidden_states": True}, "output_hidden_states is True"),
        ({"inputs_embeds": torch.zeros(3, 9, 32)}, "inputs_embeds"),
        ({"position_ids": torch.ones(3, 9, dtype=torch.int64)}, "position_ids cannot be given"),
        ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidanceLogitsProcessor keeps a state"),
        ({"speculation_type": "dflash"}, "speculation_type is 'dflash'"),
        ({"past_key_values": DynamicCache()}, "cache (past_key_values) cannot be given"),
        ({"frobnicate": 3}, "frobnicate"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings, message):
    refused(re.escape(message), language_models.make("llama"), ragged_prompts(), **settings)


FOLDER = Path(specdecode.__file__).parent / "hub"


@pytest.fixture
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies remote code to a folder and imports it from there."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))


def from_folder(model: PreTrainedModel, prompts: tuple[Tensor, Tensor], count: int = 16, **options: Any) -> Any:
    return theirs(model, prompts, count, custom_generate=str(FOLDER), trust_remote_code=True, **options)


OF_DRAFTS: dict[str, Any] = {
    "num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.5,
    "assistant_lookbehind": 3, "target_lookbehind": 3, "max_matching_ngram_size": 3, "assistant_tokenizer": object(),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_DRAFTS)
def test_how_transformers_drafts_is_refused_by_name(name, modules_cache):
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    given: dict[str, Any] = {name: OF_DRAFTS[name]}
    calls: list[dict[str, Any]] = [given]
    if name != "assistant_tokenizer":
        calls.append({"generation_config": GenerationConfig(**given)})
    for call in calls:
        with pytest.raises(ValueError, match=f"{name} cannot be honoured"):
            specdecode.generate(model, input_ids, attention_mask=mask, max_new_tokens=3, **call)
    value_error(f"{name} cannot be honoured", from_folder, model, (input_ids, mask), 3, **given)


def test_machines_that_must_step_together_are_refused(modules_cache, monkeypatch):
    """Shards are faked: what counts is that transformers' own rule is asked where the call says nothing."""
    from transformers.integrations import deepspeed

    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()

    def refuse(**given: Any) -> None:
        with pytest.raises(ValueError, match="synced_gpus cannot be honoured"):
            specdecode.generate(model, input_ids, attention_mask=mask, max_new_tokens=3, **given)
        value_error("synced_gpus cannot be honoured", from_folder, model, (input_ids, mask), 3, **given)

    refuse(synced_gpus=True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *group: 2)
    specdecode.generate(model, input_ids, attention_mask=mask, max_new_tokens=3)
    monkeypatch.setattr(deepspeed, "is_deepspeed_zero3_enabled", lambda: True)
    refuse()
    with pytest.raises(ValueError, match="synced_gpus cannot be honoured"):
        theirs(model, (input_ids, mask), 3, custom_generate=specdecode.custom_generate)
    specdecode.generate(model, input_ids, attention_mask=mask, max_new_tokens=3, synced_gpus=False)


def test_no_cache_of_transformers_is_made():
    """One kind of it would decode by itself and return another type."""
    model, prompts = language_models.make("llama"), ragged_prompts()
    wanted = speculate(model, "prompt-lookup", prompts, max_new_tokens=4).sequences
    for given in ("paged", "static"):
        call = {"cache_implementation": given}, {"generation_config": GenerationConfig(cache_implementation=given)}
        for options in call:
            found = speculate(model, "prompt-lookup", prompts, max_new_tokens=4, **options)
            assert torch.equal(found.sequences, wanted)


def test_prompt_lookup_is_asked_for_wherever_it_stands():
    model, lookup = language_models.make("llama"), "prompt_lookup_num_tokens"
    prompts = torch.tensor([[5, 6, 7, 8] * 4]), torch.ones(1, 16, dtype=torch.int64)
    goes_on = LogitsProcessorList([lambda texts, logits: logits.scatter(1, (texts[:, -1:] - 4) % 4 + 5, 1e4)])

    def accepted(**options: Any) -> Any:
        options = {"max_new_tokens": 20, "logits_processor": goes_on, **options}
        return specdecode.generate(model, prompts[0], attention_mask=prompts[1], **options).trace.accepted_lengths

    wanted = accepted(draft_length=2)
    assert wanted != accepted(draft_length=3)
    assert accepted(prompt_lookup_num_tokens=2) == wanted
    assert accepted(generation_config=GenerationConfig(prompt_lookup_num_tokens=2)) == wanted
    assert accepted(prompt_lookup_num_tokens=2, method="prompt-lookup") == wanted
    for other in ({"method": "jacobi"}, {"draft_model": model}):
        message = f"{lookup} goes with prompt lookup; leave out {lookup} or "
        refused(message, model, prompts, prompt_lookup_num_tokens=2, **other)
    value_error(f"{lookup} must be at least 1, got 0", accepted, prompt_lookup_num_tokens=0)
    model.generation_config.prompt_lookup_num_tokens = 2
    assert accepted() == wanted
    assert accepted(draft_model=model) == accepted(draft_model=model, draft_length=4), (
        "a call's own drafter comes first"
    )


def test_a_call_that_says_do_sample_means_what_transformers_means():
    """Its own `top_k` of 50 counts then, and a temperature beside `do_sample=False` does not."""
    model, prompts = language_models.make("llama", vocab_size=96), ragged_prompts()

    def left(scores: tuple[Tensor, ...]) -> list[int]:
        return scores[0].isfinite().sum(1).tolist()

    options: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "output_scores": True}
    wanted = theirs(model, prompts, 1, **options, return_dict_in_generate=True)
    assert left(wanted.scores) == [50] * 3
    for call in (options, {**options, "do_sample": None, "generation_config": GenerationConfig(do_sample=True)}):
        given = {name: value for name, value in call.items() if value is not None}
        assert left(speculate(model, "ar", prompts, max_new_tokens=1, **given).scores) == [50] * 3
    alone = speculate(model, "ar", prompts, max_new_tokens=1, temperature=0.7, output_scores=True)
    assert left(alone.scores) == [96] * 3
    greedy = theirs(model, prompts)
    for call in ({"do_sample": False}, {"generation_config": GenerationConfig(do_sample=False)}):
        found = speculate(model, "jacobi", prompts, max_new_tokens=16, temperature=1.5, **call)
        assert torch.equal(found.sequences, greedy)


def test_a_model_that_also_reads_pictures_continues_text():
    """Gemma 3 as transformers' own mapping of causal language models loads it."""
    from transformers import AutoModelForCausalLM, Gemma3Config

    text = language_models.make("gemma3").config.to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config=text,
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        **{"image_token_index": VOCAB_SIZE - 1, "boi_token_index": VOCAB_SIZE - 2, "eoi_token_index": VOCAB_SIZE - 3},
    )
    torch.manual_seed(0)
    model, prompts = AutoModelForCausalLM.from_config(config).double().eval(), ragged_prompts(vocab_size=VOCAB_SIZE - 3)
    assert type(model).__name__ == "Gemma3ForConditionalGeneration"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim > 1 else 1)
    alike(model, prompts, eos_token_id=[-1])


def test_other_arguments_that_mean_nothing_here_are_named():
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    with pytest.raises(ValueError, match=r"input_ids must be given.*inputs_embeds cannot be"):
        specdecode.generate(model, inputs_embeds=model.get_input_embeddings()(input_ids))
    with pytest.raises(ValueError, match="generation_config must be a GenerationConfig of transformers, got a dict"):
        specdecode.generate(model, input_ids, generation_config={"do_sample": True})
    value_error("streamer must have put and end", specdecode.generate, model, input_ids, streamer=print)
    with pytest.raises(ValueError, match="streamer must have put and end"):
        theirs(model, (input_ids, mask), custom_generate=specdecode.custom_generate, stream_to=print)
    with pytest.raises(ValueError, match="ProcessedVerifier judges chains only"):
        from specdecode.tree import TokenTree

        tree = TokenTree.from_parents(
            torch.ones(1, 3, dtype=torch.int64), torch.tensor([[-1, 0, 0]]), torch.ones(1, 3).bool(), 1, 2
        )
        draft = specdecode.Draft(tree)
        ProcessedVerifier(lambda texts, logits: logits, Texts(input_ids, 0)).accept(draft, None, None)  # type: ignore[arg-type]


def _forbids_from(length: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda texts, scores: torch.full_like(scores, -torch.inf) if texts.shape[1] >= length else scores


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", [0, 2])
def test_settings_that_forbid_every_token_are_named(method, place):
    """Not the weights, whose logits are sound; transformers draws token 0."""
    model, prompts = language_models.make("llama"), ragged_prompts()
    ways: list[dict[str, Any]] = [{"logits_processor": [_forbids_from(prompts[0].shape[1] + place)]}]
    ways += [] if place else [{"suppress_tokens": list(range(VOCAB_SIZE))}]
    for way in ways:
        with pytest.raises(ValueError, match=rf"forbid every token behind token {place} of row \d; leave one"):
            speculate(model, method, prompts, max_new_tokens=4, **way)


def test_guidance_works_for_one_row():
    model, prompts = language_models.make("llama"), tuple(part[:1] for part in ragged_prompts(2))
    wanted, _ = alike(model, prompts, ["prompt-lookup"], guidance_scale=1.5)
    assert not torch.equal(wanted, theirs(model, prompts))


def test_texts_of_rows_of_several_lengths():
    texts = Texts(torch.tensor([[1], [2], [3]]), PAD)
    tokens = torch.tensor([[4, 5, 6], [7, 8, 9], [10, 11, 12]])
    given = [(found.tolist(), rows) for found, rows in texts.of(tokens, [2, 1, 2], [0, 1, 2])]
    assert given == [([[1, 4], [2, 7], [3, 10]], [1]), ([[1, 4, 5], [2, 7, PAD], [3, 10, 11]], [0, 2])]
    assert processed.Scores(PAD, SamplingConfig(0)).scores == []


def test_a_processor_may_write_in_place():
    """Rows of two lengths are two calls; neither sees what the other wrote, and the model's logits stay."""
    verifier = ProcessedVerifier(lambda _texts, logits: logits.add_(1), Texts(torch.tensor([[1], [2]]), PAD))
    logits = torch.zeros(2, VOCAB_SIZE)
    found = verifier._processed(logits, torch.full((2, 3), 4), [1, 2], [0, 1])
    assert found.eq(1).all() and not logits.any()


# ---------------------------------------------------------------------------------------------------------------------
# The folder for the hub


def test_a_folder_does_the_same(modules_cache):
    model, prompts, tokenizer = language_models.make("llama"), ragged_prompts(2), letters()
    assert torch.equal(from_folder(model, prompts), theirs(model, prompts))
    small = language_models.disturbed(model, 0.02)
    settings: dict[str, Any] = {"repetition_penalty": 1.7, "eos_token_id": END}
    wanted = theirs(model, prompts, **settings)
    puts, their = Puts(), Puts()
    mine = from_folder(model, prompts, **settings, assistant_model=small, streamer=puts)
    theirs(model, prompts, **settings, streamer=their)
    assert torch.equal(mine, wanted) and puts.given == their.given
    text = wanted[0, 9:].tolist()
    stop = "".join(WORDS[token] for token in text[3:5])
    ended = theirs(model, prompts, **settings, stop_strings=stop, tokenizer=tokenizer)
    mine = from_folder(model, prompts, **settings, stop_strings=stop, tokenizer=tokenizer)
    assert torch.equal(mine, ended) and ended.shape[1] <= wanted.shape[1]
    configured = GenerationConfig(repetition_penalty=1.7, max_new_tokens=16, pad_token_id=PAD, eos_token_id=END)
    remote: dict[str, Any] = {"custom_generate": str(FOLDER), "trust_remote_code": True}
    mine = model.generate(prompts[0], attention_mask=prompts[1], generation_config=configured, **remote)
    assert torch.equal(mine, wanted)


def test_a_folder_runs_only_where_it_is_trusted(modules_cache, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    with pytest.raises(ValueError, match="trust_remote_code"):
        theirs(language_models.make("llama"), ragged_prompts(), custom_generate=str(FOLDER))
