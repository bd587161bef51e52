"""Unmodified models of transformers judge trees in ragged batches as they judge plain sequences without a cache."""

from typing import Any

import language_models
import pytest
import torch
from language_models import ARCHITECTURES, PARENTS, VOCAB_SIZE, WINDOW, fresh_logits, ragged_prompts, ragged_tree
from random_chains import way_to
from refusals import value_error
from synthetic import chain_of, decoded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specdecode import ragged
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.roles import TargetOutput
from specdecode.sampling import apply_guidance
from specdecode.targets.transformers import TransformersTarget
from specdecode.tree import TokenTree

aten = torch.ops.aten
PATHS = [[0, 1, 4, 7], [0], [0, 2, 5]]  # what each row keeps of the first tree: 4, 1 and 3 tokens


def check_trees(model: Any) -> None:
    """Two trees behind ragged prompts, the second behind what rows keep of the first: every node's logits are those of
    a run without a cache over the tokens on the way to it."""
    input_ids, mask = ragged_prompts()
    target = TransformersTarget(model, input_ids, mask, max_new_tokens=12, max_draft_nodes=len(PARENTS))
    rows = [input_ids[row][mask[row] > 0].tolist() for row in range(3)]
    first = target.prefill().logits
    for row in range(3):
        torch.testing.assert_close(first[row, 0], fresh_logits(model, rows[row]), rtol=1e-4, atol=1e-4)
    for step in range(2):
        tree = ragged_tree(step)
        logits = target.forward(tree.tokens, tree.ancestor_mask(), tree.depth).logits
        for row in range(3):
            for node in range(tree.num_nodes):
                if tree.valid[row, node]:
                    wanted = fresh_logits(model, rows[row] + tree.tokens[row, way_to(PARENTS, node)].tolist())
                    torch.testing.assert_close(logits[row, node], wanted, rtol=1e-4, atol=1e-4)
        if step == 0:
            kept = torch.tensor([path + [0] * (4 - len(path)) for path in PATHS])
            target.commit(kept, torch.tensor([len(path) for path in PATHS]))
            for row, path in enumerate(PATHS):
                rows[row] += tree.tokens[row, path].tolist()


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_node_is_judged_as_without_a_cache(architecture, kernel):
    # In float64 transformers' eager attention makes NaN of prompts with padding: it masks by the least float64, which
    # its float32 softmax takes for minus infinity.
    model = language_models.make(architecture, dtype=torch.float64 if kernel == "sdpa" else torch.float32)
    model.set_attn_implementation(kernel)
    check_trees(model)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3"])
def test_a_tree_with_wrong_siblings_changes_no_token(architecture):
    model, prompts = language_models.make(architecture), ragged_prompts(3)
    small = language_models.disturbed(model, 0.02)
    shape = StaticTree.from_child_counts("3 / 2 1 / 2")
    target = TransformersTarget(model, *prompts, max_new_tokens=20, max_draft_nodes=shape.num_nodes)
    drafting = TransformersTarget(small, *prompts, max_new_tokens=20, max_draft_nodes=shape.num_nodes)
    result = decoded(target, 20, drafter=DraftModelTreeDrafter(drafting, shape))
    assert torch.equal(result.tokens, language_models.by_generate(model, prompts, 20)[:, 9:])
    assert result.trace.target_passes < 20 and result.trace.mean_accepted_length > 0


def test_rewinding_forgets():
    model, (input_ids, mask) = language_models.make("qwen3"), ragged_prompts()
    target = TransformersTarget(model, input_ids, mask, max_new_tokens=8, max_draft_nodes=4)
    target.prefill()
    chain = TokenTree.chain(torch.tensor([[10, 11, 12, 13]] * 3))
    target.forward(chain.tokens, chain.ancestor_mask(), chain.depth)
    target.commit(None, torch.tensor([4, 3, 2]))
    target.rewind(torch.tensor([3, 1, 2]))
    one = TokenTree.chain(torch.tensor([[20]] * 3))
    logits = target.forward(one.tokens, one.ancestor_mask(), one.depth).logits
    for row, kept in enumerate(([10], [10, 11], [])):
        tokens = input_ids[row][mask[row] > 0].tolist() + kept + [20]
        torch.testing.assert_close(logits[row, 0], fresh_logits(model, tokens), rtol=1e-4, atol=1e-4)


def test_a_cache_serves_again_and_must_fit():
    model = language_models.make("llama")
    first = TransformersTarget(model, *ragged_prompts(1), max_new_tokens=20)
    decoded(first, 20)
    cache = first.kv_cache
    assert cache is not None
    again = TransformersTarget(model, *ragged_prompts(2), max_new_tokens=20, kv_cache=cache)
    other = TransformersTarget(model, *ragged_prompts(2), max_new_tokens=20)
    wanted = decoded(other, 20).tokens
    assert torch.equal(decoded(again, 20).tokens, wanted) and again.kv_cache is cache
    assert torch.equal(decoded(again, 20).tokens, wanted), "a second prefill starts anew"
    with pytest.raises(ValueError, match="kv_cache must fit 3 layers and 3 rows of 30 slots"):
        TransformersTarget(model, *ragged_prompts(2), max_new_tokens=21, max_draft_nodes=1, kv_cache=cache).prefill()
    with pytest.raises(ValueError, match="kv_cache must fit"):
        TransformersTarget(model.float(), *ragged_prompts(2), max_new_tokens=20, kv_cache=cache).prefill()


# ---------------------------------------------------------------------------------------------------------------------
# Parts of a model, several axes of positions, several rows a sequence


def in_parts(model: Any, input_ids: Tensor, mask: Tensor, **options: Any) -> TransformersTarget:
    embed = model.get_input_embeddings()
    with torch.no_grad():
        embeds = embed(input_ids)
    parts = {"decoder": model.model, "output_head": model.lm_head, "embed": embed}
    return TransformersTarget(model, attention_mask=mask, inputs_embeds=embeds, max_new_tokens=16, **parts, **options)


def test_a_decoder_and_a_head_say_what_the_model_says_and_give_hidden_states():
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    parts = in_parts(model, input_ids, mask)
    wanted = language_models.by_generate(model, (input_ids, mask), 16)[:, 9:]
    assert torch.equal(decoded(parts, 16).tokens, wanted)
    hidden_states = parts.prefill().hidden_states
    assert hidden_states is not None and hidden_states.shape == (3, 9, 32)
    torch.testing.assert_close(hidden_states[0, -1], model.model(input_ids[:1]).last_hidden_state[0, -1])
    one = TokenTree.chain(torch.tensor([[7]] * 3))
    output = parts.forward(one.tokens, one.ancestor_mask(), one.depth)
    assert output.hidden_states is not None
    torch.testing.assert_close(model.lm_head(output.hidden_states).float(), output.logits)


def test_states_of_given_tokens_are_those_of_decoding():
    """In two passes as one by one; and the clock gets a target that stands where costs are typical."""
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    parts = in_parts(model, input_ids, mask, max_draft_nodes=3)
    tokens = torch.tensor([[3, 5, 7], [4, 6, 8], [9, 3, 5]])
    states = parts.hidden_states_of(tokens)
    outputs = [parts.prefill()]
    for token in tokens.T:
        one = TokenTree.chain(token[:, None])
        outputs.append(parts.forward(one.tokens, one.ancestor_mask(), one.depth))
        parts.commit(None, torch.ones_like(token))
    stepwise = torch.cat([output.hidden_states for output in outputs if output.hidden_states is not None], 1)
    seen = torch.cat((mask.bool(), torch.ones(3, 3, dtype=torch.bool)), 1)
    torch.testing.assert_close(states[seen], stepwise[seen])
    chain = TokenTree.chain(torch.tensor([[7, 8, 9, 3]] * 3))
    clock = parts.half_way(4)
    assert clock.forward(chain.tokens, chain.ancestor_mask(), chain.depth).logits.shape == (3, 4, VOCAB_SIZE)
    assert clock.kv_cache is not None and parts.kv_cache is not None
    assert (clock.kv_cache.lengths - parts.kv_cache.lengths).tolist() == [4] * 3  # 7 of 15, and 3 were fed


def test_positions_may_have_several_axes_and_jump():
    from transformers import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    config = Qwen2_5_VLTextConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        rope_parameters={"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 100.0},
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = Qwen2_5_VLTextModel(config).double().eval()
    head = torch.nn.Linear(32, VOCAB_SIZE, bias=False).double()
    (input_ids, _), table = ragged_prompts(), torch.arange(3 * 40).view(3, 40).flip(0) % 31
    of_prompt = table[:, None, :9].expand(-1, 3, -1)

    def positions(places: Tensor) -> Tensor:
        return table[:, 9 + places]  # [3, B, n]

    target = TransformersTarget(
        decoder, input_ids, max_new_tokens=9, max_draft_nodes=8, position_ids=of_prompt, positions=positions,
        decoder=decoder, output_head=head,
    )  # fmt: skip
    target.prefill()
    tree = ragged_tree(5)
    for _ in range(2):
        logits = target.forward(tree.tokens, tree.ancestor_mask(), tree.depth).logits
        target.commit(torch.tensor([[0]] * 3), torch.tensor([1, 1, 0]))
    for node in range(tree.num_nodes):
        fed = tree.tokens[0, [0, *way_to(PARENTS, node)]]
        ids = torch.cat((input_ids[0], fed))[None]
        places = table[:, None, : ids.shape[1]]
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()[None, None]
        states = decoder(ids, attention_mask=causal, position_ids=places, use_cache=False).last_hidden_state
        torch.testing.assert_close(logits[0, node], head(states[0, -1]).float(), rtol=1e-4, atol=1e-4)


class _Guided(TransformersTarget):
    """Conditional rows, then null rows: what targets of guided models do."""

    rows_per_sequence = 2

    def combine(self, output: TargetOutput) -> TargetOutput:
        conditional, null = output.logits.chunk(2)
        return TargetOutput(apply_guidance(conditional, null, 3.0))


def test_a_sequence_may_be_several_rows():
    model, (input_ids, mask) = language_models.make("qwen3"), ragged_prompts()
    nulls = torch.cat([torch.full_like(input_ids[:, :-1], 5), input_ids[:, -1:]], 1).masked_fill(mask == 0, 0)
    both = torch.cat([input_ids, nulls]), torch.cat([mask, mask])
    shape = StaticTree.from_child_counts("2 / 2 1")
    drafting = TransformersTarget(model, input_ids, mask, max_new_tokens=12, max_draft_nodes=shape.num_nodes)
    target = _Guided(model, *both, max_new_tokens=12, max_draft_nodes=shape.num_nodes)
    assert target.batch_size == 3
    result = decoded(target, 12, drafter=DraftModelTreeDrafter(drafting, shape))
    for row in range(3):
        rows = [ids[row][mask[row] > 0].tolist() for ids in (input_ids, nulls)]
        tokens: list[int] = []
        for _ in range(12):
            guided = apply_guidance(*(fresh_logits(model, ids + tokens) for ids in rows), 3.0)
            tokens.append(int(guided.argmax()))
        assert result.tokens[row].tolist() == tokens
    assert result.trace.target_passes < 12
    with pytest.raises(ValueError, match="prompts must come in 2 rows a sequence, got 3 rows"):
        _Guided(model, input_ids, mask, max_new_tokens=12)


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE - 6, VOCAB_SIZE + 6])
def test_a_draft_model_may_have_a_few_tokens_more_or_fewer(vocab_size):
    model, prompts = language_models.make("llama"), ragged_prompts()
    prompts[0][0, -2] = VOCAB_SIZE - 1  # which the smaller one lacks
    small = language_models.make("llama", 0, vocab_size=vocab_size)
    drafting = TransformersTarget(
        small, *prompts, max_new_tokens=16, max_draft_nodes=10, vocab_size=model.config.vocab_size
    )
    lacking = drafting.prefill().logits[..., vocab_size:]
    assert bool((lacking == -torch.inf).all()), "as if the smaller model never said them"
    drafter = DraftModelDrafter(drafting, chain_of(3))
    result = decoded(TransformersTarget(model, *prompts, max_new_tokens=16, max_draft_nodes=4), 16, drafter=drafter)
    assert torch.equal(result.tokens, language_models.by_generate(model, prompts, 16)[:, 9:])
    assert (result.tokens >= VOCAB_SIZE - 6).any(), "tokens that the smaller vocabulary lacks"


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be served


def _refusals() -> dict[str, Any]:
    import transformers as library

    sizes = {"hidden_size": 32, "num_hidden_layers": 2}
    attention = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32, **sizes}
    grows = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    long = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12}
    long |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}

    def made(kind: str, model: str = "ForCausalLM", **settings: Any) -> Any:
        config = getattr(library, f"{kind}Config")
        return lambda: getattr(library, kind + model)(config(vocab_size=VOCAB_SIZE, **settings))

    return {
        "keep a running state": made("Mamba", **sizes),
        "is an encoder-decoder": made("T5", "ForConditionalGeneration", d_model=32, d_ff=32, num_layers=1, num_heads=2),
        "takes no position_ids": made("Bloom", hidden_size=32, n_layer=1, n_head=2),
        "takes no keys and values of earlier tokens": made("OpenAIGPT", "LMHeadModel", n_embd=32, n_layer=1, n_head=2),
        "lie in a dictionary": made("XLM", "WithLMHeadModel", emb_dim=32, n_layers=1, n_heads=2, causal=True),
        "positions are biases by place": made("Falcon", **sizes, num_attention_heads=4, alibi=True),
        "hide keys by their order": made(
            "GPTNeo", hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
            max_position_embeddings=64,
        ),
        "'conv' are none of": made("Lfm2", **attention, layer_types=["conv", "full_attention"]),
        "beyond 12 tokens, got up to 18: the frequencies of its 'longrope'": made(
            "Llama", **attention, max_position_embeddings=64, rope_parameters=long
        ),
        "cannot be served beyond 16 tokens": made(
            "Llama", **attention, max_position_embeddings=16, rope_parameters=grows
        ),
    }  # fmt: skip


@pytest.mark.parametrize("reason", _refusals())
def test_architectures_that_cannot_be_served_are_refused_by_name(reason):
    model = _refusals()[reason]().eval()
    with pytest.raises(ValueError, match=reason) as error:
        TransformersTarget(model, ragged_prompts()[0], max_new_tokens=8)
    assert str(error.value).startswith(type(model).__name__)


def test_arguments_that_cannot_be_used_are_named():
    model, (input_ids, mask) = language_models.make("llama"), ragged_prompts()
    sizes: dict[str, Any] = {"max_new_tokens": 4}
    value_error("one of them", TransformersTarget, model, **sizes)
    with pytest.raises(ValueError, match="decoder and output_head belong together"):
        TransformersTarget(model, input_ids, decoder=model.model, **sizes)
    value_error("max_draft_nodes must be at least 1", TransformersTarget, model, input_ids, max_draft_nodes=0, **sizes)
    value_error(r"attention_mask must be \[3, 9\]", TransformersTarget, model, input_ids, mask[:2], **sizes)
    value_error("padding_side", TransformersTarget, model, input_ids, mask.flip(1), **sizes)
    value_error(r"model.eval\(\)", TransformersTarget, language_models.make("llama").train(), input_ids, **sizes)
    with pytest.raises(ValueError, match=r"set_attn_implementation\('sdpa'\)"):
        flash = language_models.make("llama")
        flash.config._attn_implementation = "flash_attention_2"
        TransformersTarget(flash, input_ids, **sizes)
    target = TransformersTarget(model, input_ids, mask, max_draft_nodes=2, **sizes)
    chain = TokenTree.chain(torch.tensor([[1, 2, 3, 4, 5, 6, 7]] * 3))
    value_error("prefilled", target.rewind, torch.zeros(3, dtype=torch.int64))
    target.prefill()
    with pytest.raises(ValueError, match=r"max_draft_nodes \(2\) per row, got 7"):
        target.forward(chain.tokens, chain.ancestor_mask(), chain.depth)


def test_attention_that_views_all_heads_of_all_rows_is_served():
    import transformers as library

    config = library.GPTNeoXJapaneseConfig(
        vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = library.GPTNeoXJapaneseForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.ndim > 1 else 1)
    check_trees(model)


def test_windows_are_shorter_than_prompts():
    """Else no test here would say anything about them."""
    assert int(ragged_prompts()[1].sum(1).min()) > WINDOW


class _NobodyWaits(TorchDispatchMode):
    """Fails where a tensor's value is read on the host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function not in (aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default), function
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nobody_waits_for_the_device(architecture, monkeypatch):
    """As on a GPU: a CPU may look, where looking is free."""
    target = TransformersTarget(
        language_models.make(architecture), *ragged_prompts(), max_new_tokens=12, max_draft_nodes=len(PARENTS)
    )
    target.prefill()
    tree, kept, counts = ragged_tree(0), torch.tensor([[0, 1], [0, 2], [0, 1]]), torch.tensor([2, 1, 0])
    monkeypatch.setattr(ragged, "at_most", lambda counts, bound: bound)
    with _NobodyWaits():
        for _ in range(2):
            target.forward(tree.tokens, tree.ancestor_mask(), tree.depth)
            target.commit(kept, counts)
            target.rewind(counts)
        with pytest.raises(AssertionError):
            bool(counts.any())
