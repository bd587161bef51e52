"""The cases that assisted decoding got wrong elsewhere, and many architectures.

The cases were read in transformers' own tests of assisted decoding and prompt lookup (`tests/generation/test_utils.py`,
`test_candidate_generator.py`), as far as these need no downloads. The tests are this project's.
"""

import copy
from functools import partial
from typing import Any

import language_models
import pytest
import torch
import transformers
from language_models import PAD, VOCAB_SIZE, WINDOW, ragged_prompts
from refusals import value_error
from transformers import PreTrainedModel

import specdecode

COUNT = 16
by_custom = partial(language_models.by_generate, custom_generate=specdecode.custom_generate)


# ---------------------------------------------------------------------------------------------------------------------
# Draft models


@pytest.mark.parametrize("draft_length", [None, 1, 7])
@pytest.mark.parametrize("drafter", ["itself", "another", "of fewer layers"])
def test_any_draft_model_leaves_the_greedy_tokens(drafter, draft_length):
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    others = {
        "itself": model,
        "another": language_models.make("llama", seed=9),
        "of fewer layers": language_models.make("llama", num_hidden_layers=1),
    }
    before = copy.deepcopy(others[drafter].generation_config.to_dict())
    options: dict[str, Any] = {"draft_model": others[drafter], "draft_length": draft_length}
    wanted = language_models.by_generate(model, prompts)
    assert torch.equal(by_custom(model, prompts, **options), wanted)
    result = specdecode.generate(
        model, prompts[0], attention_mask=prompts[1], max_new_tokens=COUNT, pad_token_id=PAD, **options
    )
    assert torch.equal(result.sequences, wanted)
    assert others[drafter].generation_config.to_dict() == before, "a draft model is not written to"
    if drafter == "itself":
        length = draft_length or 4
        assert result.trace.target_passes == 1 + -(-(COUNT - 1) // (length + 1)), "everything is accepted"


def test_a_draft_model_of_another_architecture_and_vocabulary():
    """With more tokens, which are never drafted, and with fewer, whose prompts have tokens that it lacks."""
    model, prompts = language_models.make("qwen3"), ragged_prompts(2)
    prompts[0][0, 3] = VOCAB_SIZE - 1
    wanted = language_models.by_generate(model, prompts)
    for architecture, vocab_size in (("gpt2", VOCAB_SIZE + 16), ("llama", VOCAB_SIZE - 9), ("gemma3", VOCAB_SIZE)):
        small = language_models.make(architecture, vocab_size=vocab_size)
        assert torch.equal(by_custom(model, prompts, draft_model=small), wanted)
        sampled = by_custom(model, prompts, draft_model=small, do_sample=True, temperature=3.0)
        assert int(sampled.max()) < VOCAB_SIZE


def test_a_draft_models_own_end_and_settings_do_not_count():
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    small = language_models.disturbed(model, 0.02)
    wanted = language_models.by_generate(model, prompts)
    small.generation_config.eos_token_id = int(wanted[0, 9 + 2])
    small.generation_config.repetition_penalty = 3.0
    small.generation_config.max_new_tokens = 2
    assert torch.equal(by_custom(model, prompts, draft_model=small), wanted)


# ---------------------------------------------------------------------------------------------------------------------
# Ends within drafts


def test_a_stop_token_that_pads_too_ends_rows_once():
    """Many models pad by the token that ends a row."""
    model, prompts = language_models.make("llama"), ragged_prompts(1)
    end = int(language_models.by_generate(model, prompts, 14)[0, 9 + 3])
    options: dict[str, Any] = {"eos_token_id": end, "pad_token_id": end, "max_new_tokens": 14, "do_sample": False}
    wanted = model.generate(prompts[0], attention_mask=prompts[1], **options)
    for players in ({}, {"draft_model": model}):
        result = by_custom(model, prompts, 14, eos_token_id=end, pad_token_id=end, **players)
        assert torch.equal(result, wanted)


# ---------------------------------------------------------------------------------------------------------------------
# Prompts and caches


def test_prompts_of_one_token_and_of_one_row():
    model = language_models.make("llama")
    for ids in (torch.tensor([[5]]), torch.tensor([[5], [9]]), torch.tensor([[1, 1, 1, 1]])):
        prompts = ids, torch.ones_like(ids)
        wanted = language_models.by_generate(model, prompts)
        for players in ({}, {"method": "jacobi"}, {"draft_model": language_models.disturbed(model, 0.02)}):
            assert torch.equal(by_custom(model, prompts, **players), wanted)


def test_left_padding_changes_no_row():
    """transformers refuses batches here; each row is as if it were alone, however much it is padded."""
    model, prompts = language_models.make("qwen3"), ragged_prompts(2)
    wider = torch.cat([torch.full((3, 8), PAD), prompts[0]], 1), torch.cat([torch.zeros(3, 8).long(), prompts[1]], 1)
    small = language_models.disturbed(model, 0.02)
    for players in ({}, {"method": "jacobi"}, {"draft_model": small}):
        together = by_custom(model, wider, **players)[:, 17:]
        for row in range(3):
            first = int((prompts[1][row] == 0).sum())
            alone = prompts[0][row : row + 1, first:], prompts[1][row : row + 1, first:]
            assert torch.equal(by_custom(model, alone, **players)[0, 9 - first :], together[row])


def test_the_models_own_configuration_is_not_written_to():
    model, prompts = language_models.make("llama"), ragged_prompts(2)
    model.generation_config.repetition_penalty = 1.3
    before = copy.deepcopy((model.generation_config.to_dict(), model.config.to_dict()))
    config = transformers.GenerationConfig(no_repeat_ngram_size=3, max_new_tokens=5)
    given = copy.deepcopy(config.to_dict())
    specdecode.generate(model, prompts[0], generation_config=config, temperature=0.7, top_k=3)
    by_custom(model, prompts, output_scores=True, return_dict_in_generate=True)
    assert (model.generation_config.to_dict(), model.config.to_dict()) == before and config.to_dict() == given


# ---------------------------------------------------------------------------------------------------------------------
# Architectures

_SIZES = {name: size for name, size in language_models._SIZES.items() if name != "head_dim"}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": WINDOW},
    "Qwen2": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    "Qwen3": {"head_dim": 8},
    "Qwen2Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                 "shared_expert_intermediate_size": 16},
    "Gemma": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "Phi": {"partial_rotary_factor": 0.5},
    "Phi3": {},
    "GPTNeoX": {},
    "Olmo2": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "Granite": {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
    "StableLm": {"partial_rotary_factor": 0.5},
    "Starcoder2": {},
    "Cohere": {},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "GptOss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "DeepseekV3": {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
                   "topk_group": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
                   "v_head_dim": 8, "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1},
}  # fmt: skip


def make(kind: str, more: dict[str, Any]) -> PreTrainedModel:
    """With random weights of a size at which answers are neither constant nor near a tie."""
    sizes = {**_SIZES, "num_hidden_layers": 2, **more}
    model: PreTrainedModel = getattr(transformers, f"{kind}ForCausalLM")(
        getattr(transformers, f"{kind}Config")(**sizes)
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model.float().eval()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_tokens_of_many_architectures(kind):
    model, prompts = make(kind, ARCHITECTURES[kind]), ragged_prompts(2)
    wanted = language_models.by_generate(model, prompts, 16)
    assert len(set(wanted[0, 9:].tolist())) > 3
    for players in ({"method": "ar"}, {}, {"draft_model": language_models.disturbed(model, 0.02)}):
        assert torch.equal(by_custom(model, prompts, 16, **players), wanted), players


def test_rows_that_see_padding_alone_are_no_numbers_without_a_word():
    """A window of padding alone: in float64 transformers' own `generate` goes on with NaN."""
    model, (ids, mask) = make("Gemma2", ARCHITECTURES["Gemma2"]).double(), ragged_prompts(2)
    for players in ({"method": "ar"}, {}, {"method": "jacobi"}):
        with pytest.raises(specdecode.LogitsError, match="not finite"):
            specdecode.generate(model, ids, attention_mask=mask, max_new_tokens=4, **players)


def test_states_that_are_no_plain_cache_are_refused_by_name():
    """Through every door; other architectures: `tests/specdecode/targets/test_transformers_target.py`."""
    layers = {"lru_width": 32, "block_types": ["recurrent", "attention"], "head_dim": 8}
    model, (ids, mask) = make("RecurrentGemma", layers), ragged_prompts(2)
    value_error(r"^RecurrentGemmaForCausalLM cannot be served: its", specdecode.generate, model, ids, max_new_tokens=4)
    value_error(r"^RecurrentGemmaForCausalLM cannot be served: its", by_custom, model, (ids[:1], mask[:1]), 4)
    with pytest.raises(ValueError, match=r"^draft_model: RecurrentGemmaForCausalLM cannot be served: its"):
        specdecode.generate(make("Llama", {}), ids, max_new_tokens=4, draft_model=model)
