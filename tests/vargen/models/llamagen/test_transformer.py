"""The LlamaGen transformer: geometry, rotary table, conditioning, and one pass against many."""

import copy
import inspect
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llamagen_models import CONDITION_LENGTH, make_model, valid_mask
from refusals import raised
from torch import Tensor

from scenes.training.transformer_pass import training_forward
from specdecode.kv_cache import StaticKVCache
from vargen.drafters.transformer_layers import (
    CONDITION_POSITION,
    apply_rotary,
    build_rotary_table,
    condition_attention_mask,
)
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer


def make_cache(model: LlamaGenTransformer, batch_size: int, max_length: int) -> StaticKVCache:
    config = model.config
    return StaticKVCache(config.num_layers, batch_size, config.num_key_value_heads, max_length, model.head_dim)


# Geometry -------------------------------------------------------------------------------------------------------------


MILLIONS = {"B": 110.888448, "L": 342.910976, "XL": 774.699520, "XXL": 1410.972672, "3B": 3096.659200}
MILLIONS |= {"1B": 1199.616000, "XXXL": 3893.027840, "7B": 6614.589440}
MILLIONS_FOR_TEXT = {"B": 112.282368, "L": 345.031680, "XL": 777.678080, "XXL": 1414.940160, "3B": 3110.249600}
PUBLISHED = [
    *((size, "class", each) for size, each in MILLIONS.items()),
    *((size, "text", each) for size, each in MILLIONS_FOR_TEXT.items()),
]


@pytest.mark.parametrize(("size", "condition_type", "millions"), PUBLISHED)
def test_published_sizes(size, condition_type, millions):
    with torch.device("meta"):
        model = LlamaGenTransformer(**LLAMAGEN_SIZES[size], condition_type=condition_type, grid_size=24)
    assert sum(parameter.numel() for parameter in model.parameters()) == round(millions * 1e6)
    assert model.head_dim == {"3B": 100, "7B": 128}.get(size, 64)
    assert model.config.condition_length == (1 if condition_type == "class" else 120)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"condition_type": "image"}, "condition_type"),
        ({"dim": 30}, "dim"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_layers": 0}, "num_layers"),
        ({"grid_size": -1}, "grid_size"),
    ],
)
def test_impossible_geometry_is_refused(arguments, named):
    raised(ValueError, named, make_model, **arguments)


# Saving ---------------------------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path):
    model = make_model(num_key_value_heads=2)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    constructor = inspect.signature(LlamaGenTransformer.__init__).parameters.keys() - {"self"}
    assert constructor <= config.keys()
    assert config["condition_length"] == CONDITION_LENGTH
    defaults = make_model(intermediate_size=None, multiple_of=16).config
    assert (defaults.num_key_value_heads, defaults.intermediate_size) == (4, 96), "written as they were resolved"
    loaded = LlamaGenTransformer.from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
    assert torch.equal(loaded.null_caption_embeds, model.null_caption_embeds)
    assert "null_caption_embeds" not in dict(loaded.named_parameters())


def test_rotary_table_stays_exact_in_bf16(tmp_path):
    """Also under a default of bfloat16, in which weights are loaded."""
    make_model().save_pretrained(tmp_path)
    names = ("torch_dtype", "dtype")
    loaded = [LlamaGenTransformer.from_pretrained(tmp_path, **{name: torch.bfloat16}) for name in names]
    exact = build_rotary_table(4, 8)
    for model in (*loaded, make_model().to(torch.bfloat16), make_model().bfloat16()):
        assert model.lm_head.weight.dtype == torch.bfloat16
        rows = model.rotary_rows(torch.arange(-1, 16)[None])
        assert rows.dtype == torch.float32
        assert torch.equal(rows[0, 1:, 0], exact[:-1])
        model(input_ids=torch.zeros(1, 2, dtype=torch.long), positions=torch.tensor([[0, 1]])).logits.sum()
        assert torch.equal(model.rotary_rows(torch.arange(16)[None])[0, :, 0], exact[:-1])


def test_rotary_table_follows_the_device_and_serves_training_after_inference():
    model, place = make_model(), torch.tensor([[3]])
    with torch.inference_mode():
        model.rotary_rows(place)
    assert not model.rotary_rows(place).is_inference()
    assert model.rotary_rows(place.to("meta")).is_meta and not model.rotary_rows(place).is_meta
    assert torch.equal(copy.deepcopy(model).rotary_rows(place), model.rotary_rows(place))


def test_scaled_positions_lie_between_those_of_a_smaller_grid():
    plain, scaled = make_model(grid_size=4), make_model(grid_size=8, position_scale=0.5)
    rows = scaled.rotary_rows.table(torch.device("cpu"))
    places = torch.arange(64).view(8, 8)[::2, ::2].flatten()
    assert torch.equal(rows[places], plain.rotary_rows.table(torch.device("cpu"))[:-1])
    assert not rows[-1].any()
    raised(ValueError, "position_scale must be positive", make_model, position_scale=0.0)


# Rotary positions -----------------------------------------------------------------------------------------------------


def rotate_slowly(states: Tensor, row: int, column: int, base: float = 10000.0) -> Tensor:
    """One head's channels `[D]` at one place, pair by pair."""
    turned = torch.empty_like(states)
    pairs = states.shape[0] // 2
    for pair in range(pairs):
        place, index = (row, pair) if pair < pairs // 2 else (column, pair - pairs // 2)
        angle = torch.tensor(place * base ** (-2 * index / pairs), dtype=torch.float64)
        first, second = states[2 * pair], states[2 * pair + 1]
        turned[2 * pair] = first * angle.cos() - second * angle.sin()
        turned[2 * pair + 1] = second * angle.cos() + first * angle.sin()
    return turned


@pytest.mark.parametrize("head_dim", [8, 64, 100])
@pytest.mark.parametrize("compiling", [False, True])
def test_rotary_against_the_definition(monkeypatch, head_dim, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    grid = 3
    states = torch.randn(1, grid**2, 2, head_dim, generator=torch.Generator().manual_seed(1))
    rotary = build_rotary_table(grid, head_dim)[torch.arange(grid**2)[None]].unsqueeze(2)
    turned = apply_rotary(states, rotary)
    for place in range(grid**2):
        for head in range(2):
            expected = rotate_slowly(states[0, place, head].double(), *divmod(place, grid))
            torch.testing.assert_close(turned[0, place, head].double(), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_identity_rows_let_image_tokens_choose_among_condition_tokens():
    """With zero rows the weights of condition tokens are equal, whatever they say; with identity rows they are not."""
    for condition_rotary, vanish in (("zero", True), ("identity", False)):
        model = make_model(condition_rotary=condition_rotary, num_layers=1)
        rows = model.rotary_rows(torch.tensor([[CONDITION_POSITION]]))
        states = torch.randn(1, 1, 4, model.head_dim)
        assert torch.equal(apply_rotary(states, rows), torch.zeros_like(states) if vanish else states)
        # The other order of the condition's tokens is the same to whoever comes after them: they have no position.
        condition, tokens = torch.randn(1, CONDITION_LENGTH, 32), torch.randint(0, 29, (1, 16))
        logits = training_forward(model, condition, None, tokens)[:, 1:]
        turned = training_forward(model, condition.flip(1), None, tokens)[:, 1:]
        torch.testing.assert_close(turned, logits, atol=1e-4, rtol=0)
        cache, places = make_cache(model, 1, CONDITION_LENGTH), torch.full((1, CONDITION_LENGTH), CONDITION_POSITION)
        mask = condition_attention_mask(valid_mask([CONDITION_LENGTH]))
        model(inputs_embeds=condition, positions=places, attention_mask=mask, kv_cache=cache)
        assert bool(cache.keys[0].any()) is not vanish
    raised(ValueError, "condition_rotary must be one of zero, identity", make_model, condition_rotary="none")


# Conditioning ---------------------------------------------------------------------------------------------------------


def test_class_condition():
    model = make_model(condition_type="class")
    labels = torch.tensor([3, 0])
    embeds = model.embed_condition(class_labels=labels)
    assert embeds.shape == (2, 1, 32)
    assert torch.equal(embeds[:, 0], model.class_embedding.weight[labels])
    assert torch.equal(model.null_condition(2)[:, 0], model.class_embedding.weight[[7, 7]])
    dropped = model.embed_condition(class_labels=labels, drop=torch.tensor([False, True]))
    assert torch.equal(dropped[0], embeds[0]) and torch.equal(dropped[1], model.null_condition(1)[0])
    raised(ValueError, "class_labels", model.embed_condition, caption_embeds=torch.zeros(1, 1, 12))
    without_null = make_model(condition_type="class", class_dropout_prob=0.0)
    assert without_null.class_embedding.num_embeddings == 7
    raised(ValueError, "class_dropout_prob", without_null.null_condition, 1)


def test_null_caption_is_the_end_of_the_buffer_through_the_projection():
    model = make_model()
    null = model.null_condition(3, 2)
    assert null.shape == (3, 2, 32)
    assert torch.equal(null[1], model.caption_projection(model.null_caption_embeds)[-2:])
    assert torch.equal(model.null_condition(1)[0], model.caption_projection(model.null_caption_embeds))

    captions = torch.randn(2, 3, 12)
    mixed = model.embed_condition(caption_embeds=captions, drop=torch.tensor([True, False]))
    torch.testing.assert_close(mixed[0], model.null_condition(1, 3)[0])
    torch.testing.assert_close(mixed[1], model.embed_condition(caption_embeds=captions)[1])


@pytest.mark.parametrize("length", [0, CONDITION_LENGTH + 1])
def test_captions_of_impossible_length(length):
    model = make_model()
    with pytest.raises(ValueError, match="caption_embeds must have 1 to 5 tokens"):
        model.embed_condition(caption_embeds=torch.zeros(1, length, 12))
    raised(ValueError, "1 to 5", model.null_condition, 1, length)


def test_condition_mask_by_definition():
    valid = valid_mask([2, 0, 5])
    mask = condition_attention_mask(valid, 3)
    assert mask.shape == (3, 1, 8, 8)
    for row in range(3):
        for query in range(8):
            for key in range(8):
                seen = key == query or (key < query and (key >= CONDITION_LENGTH or bool(valid[row, key])))
                assert bool(mask[row, 0, query, key]) == seen


@pytest.mark.parametrize("condition_rotary", ["zero", "identity"])
@torch.no_grad()
def test_padding_of_the_text_is_neither_seen_nor_needed(condition_rotary):
    model = make_model(condition_rotary=condition_rotary)
    captions, mask = torch.randn(2, CONDITION_LENGTH, 12), valid_mask([2, 3])
    tokens = torch.randint(0, 29, (2, 16))
    logits = training_forward(model, model.embed_condition(caption_embeds=captions), mask, tokens)
    other = torch.where(mask[..., None], captions, torch.randn_like(captions) * 9)
    again = training_forward(model, model.embed_condition(caption_embeds=other), mask, tokens)
    torch.testing.assert_close(again, logits)
    trimmed = training_forward(model, model.embed_condition(caption_embeds=captions[:, 2:]), mask[:, 2:], tokens)
    torch.testing.assert_close(trimmed, logits, atol=1e-5, rtol=0)
    changed = torch.where(mask[..., None], torch.randn_like(captions), captions)
    other_words = training_forward(model, model.embed_condition(caption_embeds=changed), mask, tokens)
    assert not torch.allclose(other_words, logits, atol=1e-2)


# One pass and many ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def decode_naively(model: LlamaGenTransformer, condition: Tensor, path: list[int]) -> Tensor:
    """Logits `[V]` after a condition `[T, dim]` without padding and a path of image tokens, without any cache."""
    embeds = torch.cat((condition, model.token_embedding.weight[path]))[None]
    positions = torch.tensor([[CONDITION_POSITION] * len(condition) + list(range(len(path)))])
    return model(inputs_embeds=embeds, positions=positions).logits[0, -1]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**31), kv_heads=st.sampled_from([4, 2, 1]), bounded=st.booleans(), identity=st.booleans())
@torch.no_grad()
def test_one_pass_over_a_tree_equals_its_paths(seed, kv_heads, bounded, identity):
    """Any trees, rows of different lengths, rubbish in the cache, after keeping nodes and after rolling back."""
    model = make_model(num_key_value_heads=kv_heads, condition_rotary="identity" if identity else "zero")
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    batch_size = 2
    valid = [draw(1, CONDITION_LENGTH) for _ in range(batch_size)]
    captions = torch.randn(batch_size, CONDITION_LENGTH, 12, generator=generator)
    condition = model.embed_condition(caption_embeds=captions)
    mask = valid_mask(valid)
    cache = make_cache(model, batch_size, CONDITION_LENGTH + 22)
    cache._rows.normal_(std=30, generator=generator)
    model(
        inputs_embeds=condition, positions=torch.full((1, CONDITION_LENGTH), CONDITION_POSITION),
        attention_mask=condition_attention_mask(mask), kv_cache=cache, kv_length=CONDITION_LENGTH,
    )  # fmt: skip
    cache.starts = CONDITION_LENGTH - mask.sum(1)
    cache.advance(CONDITION_LENGTH)

    paths: list[list[int]] = [[], []]  # committed image tokens
    for _ in range(3):
        num_nodes = draw(1, 5)
        tokens = torch.randint(0, 29, (batch_size, num_nodes), generator=generator)
        tree = torch.eye(num_nodes, dtype=torch.bool).repeat(batch_size, 1, 1)
        for row in range(batch_size):
            for node in range(1, num_nodes):
                parent = draw(-1, node - 1)  # -1: another root, which does not see node 0
                if parent >= 0:
                    tree[row, node] |= tree[row, parent]
        depths = tree.sum(-1) - 1
        lengths = torch.tensor([len(path) for path in paths])
        kv_length = CONDITION_LENGTH + int(lengths.max()) + num_nodes if bounded else None
        output = model(
            input_ids=tokens, positions=lengths[:, None] + depths, attention_mask=cache.attention_mask(tree, kv_length),
            kv_cache=cache, kv_length=kv_length,
        )  # fmt: skip
        torch.testing.assert_close(model.lm_head(output.hidden_states), output.logits)
        for row in range(batch_size):
            for node in range(num_nodes):
                path = paths[row] + tokens[row][tree[row, node]].tolist()
                expected = decode_naively(model, condition[row, -valid[row] :], path)
                torch.testing.assert_close(output.logits[row, node], expected, atol=1e-4, rtol=0)

        chosen = [draw(0, num_nodes - 1) for _ in range(batch_size)]  # keep the path to one node
        kept = [tree[row, node].nonzero().flatten() for row, node in enumerate(chosen)]
        nodes = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True, padding_value=-1)
        cache.keep(nodes, torch.tensor([len(node) for node in kept]))
        for row in range(batch_size):
            paths[row] += tokens[row][kept[row]].tolist()
        if draw(0, 2) == 0:
            paths = [path[: draw(0, len(path))] for path in paths]
            cache.advance(CONDITION_LENGTH + torch.tensor([len(path) for path in paths]) - cache.lengths)


@torch.no_grad()
def test_logits_to_keep_and_types():
    model = make_model().to(torch.bfloat16)
    tokens, positions = torch.randint(0, 29, (2, 6)), torch.arange(6)[None]
    whole = model(input_ids=tokens, positions=positions)
    last = model(input_ids=tokens, positions=positions, logits_to_keep=1)
    assert whole.logits.dtype == torch.float32 and whole.hidden_states.dtype == torch.bfloat16
    assert last.logits.shape == (2, 1, 29) and last.hidden_states.shape == (2, 6, 32)
    torch.testing.assert_close(last.logits[:, 0], whole.logits[:, -1], atol=0.05, rtol=0.05)


def test_missing_arguments_are_named():
    model = make_model()
    tokens, positions = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    raised(ValueError, "input_ids", model, positions=positions)
    raised(ValueError, "positions", model, input_ids=tokens)
    raised(ValueError, "attention_mask", model, input_ids=tokens, positions=positions, kv_cache=make_cache(model, 1, 4))
    with pytest.raises(IndexError):
        model(input_ids=tokens, positions=positions + 99)


def test_dropout_is_for_training_only():
    model = make_model(token_dropout=0.5, residual_dropout=0.5, ffn_dropout=0.5)
    given = {"input_ids": torch.randint(0, 29, (1, 6)), "positions": torch.arange(6)[None]}
    with torch.no_grad():
        assert torch.equal(model(**given).logits, model(**given).logits)
        model.train()
        assert not torch.equal(model(**given).logits, model(**given).logits)
