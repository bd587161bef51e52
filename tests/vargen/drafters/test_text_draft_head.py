"""A head for text changes no token of any model, drawn ones keep their distribution, and another model is refused."""

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import language_models
import pytest
import torch
from language_models import PAD, ragged_prompts, true_distribution
from refusals import raised, refused
from seeds import seeded
from synthetic import chi_square_p_value
from transformers import PreTrainedModel

import specdecode
from specdecode.drafters.copy_or_guess import CopyOrGuessDrafter
from specdecode.drafters.draft_size import NO_DRAFT, DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.kernels.quantized import quantization_of
from specdecode.sampling import SamplingConfig
from specdecode.targets.transformers import TransformersTarget
from vargen.drafters.target_states import are_alike
from vargen.drafters.text_draft_head import TextDrafter, TextDraftHead, describe_states, load_text_drafter
from vargen.drafters.text_head import TextHead, TextRotary


def head_of(
    model: PreTrainedModel, layers: list[int] | None = None, tokens: int | None = 40, seed: int = 0
) -> TextHead:
    """A head with random weights, which guesses well enough to be accepted now and then."""
    torch.manual_seed(seed)
    config = model.config.get_text_config()
    head = TextHead(
        dim=config.hidden_size, num_attention_heads=4, intermediate_size=48, vocab_size=config.vocab_size,
        draft_vocab_size=tokens, feature_layers=layers,
    )  # fmt: skip
    head.start_from_features(1.0)
    return torch.nn.Module.to(head, model.dtype).eval().requires_grad_(False)


def said(model: PreTrainedModel, prompts: tuple[torch.Tensor, torch.Tensor], count: int, **options: Any) -> Any:
    """What `generate` gives, so many new tokens."""
    usual = {"attention_mask": prompts[1], "max_new_tokens": count, "pad_token_id": PAD}
    return specdecode.generate(model, prompts[0], **usual, **options)


@pytest.mark.parametrize("architecture", language_models.ARCHITECTURES)
def test_greedy_tokens_are_those_of_transformers(architecture):
    model, prompts = language_models.make(architecture), ragged_prompts(2)
    wanted = language_models.by_generate(model, prompts, 24)
    accepted = 0
    for layers, tokens, length in (([1, 2, 3], 40, None), ([1, 3], None, 1), (None, 40, 7)):
        drafter = TextDrafter(head_of(model, layers, tokens), model)
        result = said(model, prompts, 24, drafter=drafter, draft_length=length)
        assert torch.equal(result.sequences, wanted)
        accepted += sum(map(sum, result.trace.accepted_lengths))
    assert accepted > 5, "drafting must have been of use here"


def test_the_kernels_and_the_modules_draft_alike(own_kernels):
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(3)
    drafter = TextDrafter(head_of(model, [1, 2, 3]), model)
    run, served, passes = drafter.network.fast_pass.run, [], []
    drafter.network.fast_pass.run = lambda *given, **named: served.append(run(*given, **named)) or served[-1]
    for kernels in ("auto", "plain"):
        if kernels == "plain":
            assert served and all(each is not None for each in served), "or nothing is compared"
            drafter.network.fast_pass.run = lambda *given, **named: None  # type: ignore[method-assign]
        result = said(model, prompts, 20, drafter=drafter, kernels=kernels, draft_length=4)
        passes.append((result.sequences.tolist(), result.trace.accepted_lengths))
    assert passes[0] == passes[1]


def test_copies_take_turns_with_guesses_and_the_head_reads_them(monkeypatch):
    """A head guesses behind copied tokens what it guesses behind its own, and every way is taken."""
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(2)
    drafter = TextDrafter(head_of(model, [1, 2, 3]), model)
    wanted = said(model, prompts, 40, method="ar").sequences
    guesses: dict[str, dict[tuple[int, int], torch.Tensor]] = {"alone": {}, "in turns": {}}
    feed, run, ways = EagleDrafter._feed_waiting, "alone", Counter[str]()

    def fed(self: EagleDrafter, state: Any) -> Any:
        logits, feature = feed(self, state)
        for row in state.active.nonzero()[:, 0].tolist():
            guesses[run][row, int(state.lengths[row])] = feature[row]
        return logits, feature

    monkeypatch.setattr(EagleDrafter, "_feed_waiting", fed)
    for length in (1, 2):
        said(model, prompts, 40, drafter=drafter, draft_length=length)
    run, turns = "in turns", iter("cccpccgcgpgg" * 9)

    class InTurns(CopyOrGuessDrafter):
        def propose(self, state: Any) -> Any:
            turn = next(turns)
            ways[turn] += 1
            matched = turn == "c" and bool(self.lookup.last_occurrence(state)[1].max())
            size = DraftSize(3, 2) if turn == "g" else NO_DRAFT
            monkeypatch.setattr(self._guesses, "choose", lambda: size)
            monkeypatch.setattr(self.sizer, "best", lambda counts: (16, 99.0) if matched else (0, 0.5))
            return super().propose(state)

    monkeypatch.setitem(specdecode.generate.__globals__, "CopyOrGuessDrafter", InTurns)
    result = said(model, prompts, 40, drafter=drafter)
    assert torch.equal(result.sequences, wanted)
    both = guesses["alone"].keys() & guesses["in turns"].keys()
    assert len(both) > 8 and ways.keys() >= set("cpg")
    for key in both:
        torch.testing.assert_close(guesses["alone"][key], guesses["in turns"][key], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("draft_length", [None, 3])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_drawn_tokens_are_plain_decodings_whatever_the_clock_says(temperature, draft_length):
    """Whether copied or guessed, a draft token decides no token."""
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(2)
    drafter, lengths, wanted = TextDrafter(head_of(model, [1, 2, 3]), model), [], torch.empty(0)
    for row, drafting in ((0, {"method": "ar"}), (0, {"drafter": drafter}), (2, {"drafter": drafter})):
        length = draft_length if drafting.get("drafter") else None
        drawn = {"temperature": temperature, "top_k": 9, "generator": seeded(*range(row, 3)), "draft_length": length}
        result = said(model, (prompts[0][row:], prompts[1][row:]), 24, **drawn, **drafting)
        tokens = result.sequences[:, prompts[0].shape[1] :]
        wanted = tokens if "method" in drafting else wanted
        assert torch.equal(tokens, wanted[row:])
        lengths.append(result.trace.mean_accepted_length)
    assert not lengths[0] and lengths[1]


def test_processors_and_ends_count_with_a_head_as_without():
    model, prompts = language_models.make("qwen3"), ragged_prompts(1)
    drafter = TextDrafter(head_of(model, [1, 2, 3]), model)
    end = int(language_models.by_generate(model, prompts, 14)[1, 9 + 4])
    options: dict[str, Any] = {
        "attention_mask": prompts[1], "max_new_tokens": 14, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2,
        "eos_token_id": [end], "pad_token_id": PAD, "do_sample": False,
    }  # fmt: skip
    theirs = model.generate(prompts[0], **options)
    ours = model.generate(prompts[0], **options, custom_generate=specdecode.custom_generate, drafter=drafter)
    assert torch.equal(theirs, ours)


VOCAB, LENGTH, DRAWS = 5, 4, 8_000


@pytest.mark.parametrize("tokens", [None, 3])
def test_sampled_tokens_are_distributed_as_the_model_says(tokens):
    """Also where only some tokens are drafted, so that others always come from the model."""
    sizes: dict[str, Any] = {"vocab_size": VOCAB, "num_hidden_layers": 1, "dtype": torch.float32}
    model, prompt = language_models.make("gemma3", **sizes), torch.tensor([1, 3, 2, 1, 3, 4, 1])
    drafter = TextDrafter(head_of(model, None, tokens), model)
    result = specdecode.generate(
        model, prompt.expand(DRAWS, -1), drafter=drafter, max_new_tokens=LENGTH, temperature=1.5, top_k=0, top_p=1.0,
        generator=torch.Generator().manual_seed(0), draft_length=3,
    )  # fmt: skip
    assert result.trace.mean_accepted_length > 0.05
    expected = true_distribution(model, prompt, SamplingConfig(1.5), LENGTH)
    assert chi_square_p_value(result.sequences[:, len(prompt) :], expected, VOCAB) > 1e-3
    other = true_distribution(language_models.disturbed(model, 0.1), prompt, SamplingConfig(1.5), LENGTH)
    assert chi_square_p_value(result.sequences[:, len(prompt) :], other, VOCAB) < 1e-6


def test_a_folder_keeps_a_head_and_its_model_is_recognised(tmp_path, torch_lines):
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(4)
    head = head_of(model, [1, 2, 3], 30)
    head.choose_tokens(torch.arange(17, 47).flip(0))
    states = torch.randn(2, model.config.hidden_size)
    torch.testing.assert_close(
        TextDrafter(head, model).network.draft_logits(states), model.lm_head(states)[:, 17:47].detach()
    )
    head.register_to_config(target_states=describe_states(model, (1, 2, 3)))
    head.save_pretrained(tmp_path)
    before = said(model, prompts, 16, drafter=TextDrafter(head, model), draft_length=4)
    loaded = load_text_drafter(tmp_path, model)
    assert loaded.network.draft_ids.tolist() == list(range(17, 47))
    assert not any("embed" in name for name in loaded.network.state_dict()), "what is lent is not kept"
    after = said(model, prompts, 16, drafter=loaded, draft_length=4)
    assert torch.equal(before.sequences, after.sequences)
    assert before.trace.accepted_lengths == after.trace.accepted_lengths

    other = language_models.make("llama", seed=1, dtype=torch.float32)
    smaller = language_models.make("llama", vocab_size=40)
    refused("another model: the hidden states of this one are not", load_text_drafter, tmp_path, other)
    raised(ValueError, "loaded for another model; load it with this", said, other, prompts, 1, drafter=loaded)
    refused("was trained for another model: 48 .*tokens, this model has 40", load_text_drafter, tmp_path, smaller)
    refused("is not a folder", load_text_drafter, tmp_path / "nowhere", model)


def test_a_loaded_head_of_bfloat16_has_eight_bits_too(tmp_path, own_kernels):
    """Its cache is of the model's type, whatever its matrices are rounded to."""
    model, prompts = language_models.make("llama", dtype=torch.bfloat16), ragged_prompts(1)
    head_of(model, [1, 2, 3]).save_pretrained(tmp_path)
    drafter = load_text_drafter(tmp_path, model)
    assert drafter.network.rounded and drafter.network.dtype == torch.bfloat16
    wanted = said(model, prompts, 12, method="ar").sequences
    result = said(model, prompts, 12, drafter=drafter, draft_length=3)
    assert torch.equal(result.sequences, wanted) and result.trace.mean_accepted_length > 0


def test_a_loaded_head_has_eight_bits_and_guesses_nearly_the_same(tmp_path, own_kernels):
    """Its matrices are rounded where kernels read them, and no token depends on it."""
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(4)
    head = head_of(model, [1, 2, 3], 30)
    head.choose_tokens(torch.arange(17, 47))
    head.register_to_config(target_states=describe_states(model, (1, 2, 3)))
    head.save_pretrained(tmp_path)
    exact, loaded = TextDrafter(head, model), load_text_drafter(tmp_path, model)
    assert loaded.network.rounded and not head.rounded
    for part in (loaded.network.attn, loaded.network.ff, loaded.network.fuse):
        assert quantization_of(part) == "int8-dynamic" and quantization_of(head) is None
    states = torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = loaded.network.draft_logits(states) - head.draft_logits(states)
        assert 0 < error.norm() < 0.03 * head.draft_logits(states).norm()
        wide = torch.randn(5, 3 * model.config.hidden_size, generator=torch.Generator().manual_seed(1))
        error = loaded.network.fused(wide) - head.fused(wide)
        assert 0 < error.norm() < 0.03 * head.fused(wide).norm()
    wanted = said(model, prompts, 16, method="ar").sequences
    for drafter in (exact, loaded):
        result = said(model, prompts, 16, drafter=drafter, draft_length=3)
        assert torch.equal(result.sequences, wanted) and result.trace.mean_accepted_length > 0.05
    raised(ValueError, "a model in int8 cannot be saved", loaded.network.save_pretrained, tmp_path / "rounded")


@torch.no_grad()
def test_a_head_reads_a_prompt_when_it_first_guesses(torch_lines):
    """Where only copies are drafted it reads nothing; then it reads the prompt and all that waits, each pair once."""
    model, prompts = language_models.make("llama", dtype=torch.float32), ragged_prompts(1)
    network = head_of(model, [1, 2, 3])
    target = TransformersTarget(model, prompts[0][:1], max_new_tokens=24, max_draft_nodes=8)
    drafter = TextDrafter(network, model)(target, FixedDraftSize(DraftSize(3, 2)))
    head, tokens = drafter.head, torch.arange(5, 12)[None]
    assert isinstance(head, TextDraftHead) and drafter.most_waiting == 24
    read, fed = head.drafter.forward, []
    network.forward = lambda ids, *given, **named: fed.append(ids.shape[1]) or read(ids, *given, **named)
    feature, mask = head.start(target.prefill()), torch.ones(1, 7, 7, dtype=torch.bool).tril()
    states = head.features(target.forward(tokens, mask, torch.arange(7)[None]))
    assert not fed and states.shape[-1] == feature.shape[-1] == 3 * model.config.hidden_size
    pairs = torch.cat((feature, states[:, :-1]), 1)
    several = head.forward(tokens, pairs, mask, torch.arange(7)[None])
    assert fed == [prompts[0].shape[1] - 1, 7]
    head.start(target.prefill())
    for place in range(7):
        one = head.forward(tokens[:, place, None], pairs[:, place, None], mask[:, :1, :1], torch.zeros(1, 1).long())
        head.advance(torch.ones(1, dtype=torch.long))
    torch.testing.assert_close(several.hidden_states[:, -1:], one.hidden_states)
    torch.testing.assert_close(several.logits[:, -1:], one.logits)
    raised(ValueError, "a head for text cannot take other prompts in", head.replace_rows, torch.tensor([0]), head)


def test_states_in_another_precision_are_alike_and_those_of_other_layers_are_not():
    model = language_models.make("llama", dtype=torch.float32)
    own, low = describe_states(model, (1, 2, 3)), describe_states(model.bfloat16(), (1, 2, 3))
    assert own != low and are_alike(own, low, model)
    assert not are_alike(own, describe_states(model, (2, 3)), model)


def test_rotary_angles_are_those_of_their_definition():
    rotary = TextRotary(8, 100.0)
    positions = torch.tensor([[-3, 0, 5]])
    for place, position in enumerate((-3, 0, 5)):
        for pair in range(4):
            angle = position / 100.0 ** (2 * pair / 8)
            found = rotary(positions)[0, place, 0, pair].tolist()
            assert found == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-6)
    rotary.reserve(3, 6)
    table = rotary.table(torch.device("cpu"))
    assert len(table) == 9 and torch.equal(table[positions[0]], rotary(positions)[0, :, 0])


@torch.no_grad()
def test_logits_of_chosen_tokens_are_the_models_own():
    head, output = TextHead(dim=16, num_attention_heads=2, vocab_size=10, draft_vocab_size=3), torch.nn.Linear(16, 10)
    head.borrow(SimpleNamespace(get_input_embeddings=lambda: output, get_output_embeddings=lambda: output))
    head.choose_tokens(torch.tensor([7, 2, 5]))
    assert head.draft_ids.tolist() == [2, 5, 7]
    states = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    logits, wanted = head.draft_logits(states), output(states)
    torch.testing.assert_close(logits, wanted[:, [2, 5, 7]])
    spread = head.spread(logits)
    assert torch.equal(spread[:, [2, 5, 7]], logits)
    assert bool((spread[:, [0, 1, 3, 4, 6, 8, 9]] == -torch.inf).all())


def test_sizes_that_do_not_fit_are_named():
    raised(ValueError, "dim must be num_attention_heads times an even number", TextHead, dim=10, num_attention_heads=2)
    sizes: dict[str, Any] = {"dim": 8, "num_attention_heads": 2}
    wide = {**sizes, "vocab_size": 9, "draft_vocab_size": 10}
    raised(ValueError, r"draft_vocab_size must lie between 1 and vocab_size \(9\), got 10", TextHead, **wide)
    raised(ValueError, "feature_layers must be two layers or more", TextHead, **sizes, feature_layers=[3])
