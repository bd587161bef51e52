"""LlamaGen by the project's own kernels: the modules' numbers, and the same bits however tokens are fed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from llamagen_models import CONDITION_LENGTH, LENGTHS, make_model, ragged_target
from refusals import raised
from torch import Tensor, nn

from specdecode.roles import TargetOutput
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer

NUM_STEPS, STEP = 3, 3


def tokens_of(model: LlamaGenTransformer) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(model.config.vocab_size, (len(LENGTHS), NUM_STEPS * STEP), generator=generator)


def chain(target: LlamaGenTarget, tokens: Tensor) -> TargetOutput:
    count = tokens.shape[1]
    mask = torch.ones(count, count, dtype=torch.bool).tril().expand(len(tokens), -1, -1)
    return target.forward(tokens, mask, torch.arange(count).expand(len(tokens), -1))


@torch.no_grad()
def logits_by(target: LlamaGenTarget, tokens: Tensor, step: int) -> Tensor:
    """[B, 1 + N, V] of the first token and behind every given one, `step` tokens a pass."""
    logits = [target.prefill().logits]
    for piece in tokens.split(step, dim=1):
        logits.append(chain(target, piece).logits)
        target.commit(None, torch.full((len(tokens),), piece.shape[1]))
    return torch.cat(logits, 1)


@pytest.fixture
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_TILES", request.param)


WIDE = {"dim": 288, "num_attention_heads": 2}  # heads of nine tiles of channels, more than are summed at once
MODELS = [{}, {"num_key_value_heads": 2}, {"dim": 80}, {"condition_rotary": "identity"}, WIDE]
BY_TILES = pytest.mark.parametrize(
    ("dtype", "tiles"), [(torch.float32, "off"), (torch.bfloat16, "off"), (torch.bfloat16, "plain")], indirect=["tiles"]
)


@pytest.mark.parametrize("changes", MODELS)
@BY_TILES
def test_the_numbers_are_nearer_to_exact_ones_than_the_modules(served, monkeypatch, tiles, changes, dtype):
    model = nn.Module.to(make_model(**changes), dtype)
    fast = logits_by(ragged_target(model), tokens_of(model), STEP)
    assert sum(served) == 1 + NUM_STEPS
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    plain = logits_by(ragged_target(model), tokens_of(model), STEP)
    assert sum(served) == 1 + NUM_STEPS
    exact = logits_by(ragged_target(nn.Module.to(model, torch.float64)), tokens_of(model), STEP)
    error, usual = (fast - exact).abs().max(), (plain - exact).abs().max()
    assert error < (2e-5 if dtype == torch.float32 else 1.25 * usual)


@pytest.mark.parametrize("changes", MODELS)
@BY_TILES
def test_logits_have_the_same_bits_however_tokens_are_fed(served, tiles, changes, dtype):
    model = nn.Module.to(make_model(**changes), dtype)
    tokens = tokens_of(model)
    one_by_one = logits_by(ragged_target(model), tokens, 1)
    assert torch.equal(logits_by(ragged_target(model), tokens, STEP), one_by_one)
    for row in range(len(LENGTHS)):
        rows = slice(row, row + 1)
        assert torch.equal(logits_by(ragged_target(model, rows), tokens[rows], 2 * STEP), one_by_one[rows])
    unguided = logits_by(ragged_target(model, guidance_scale=1.0), tokens, STEP)
    assert torch.equal(logits_by(ragged_target(model, slice(0, 1), 1.0), tokens[:1], 1), unguided[:1])
    assert sum(served) == (1 + 9) + (1 + 3) + 3 * (1 + 2) + (1 + 3) + (1 + 9)


@pytest.mark.parametrize("tiles", ["off", "plain"], indirect=True)
def test_many_keys_are_added_up_in_one_order(served, tiles):
    """More than tiles take at once, in whole tiles and not."""
    model = nn.Module.to(make_model(**WIDE, grid_size=9), torch.bfloat16)
    tokens = torch.randint(29, (1, 78), generator=torch.Generator().manual_seed(3))
    fed = [logits_by(ragged_target(model, slice(0, 1), nodes=40), tokens, step) for step in (1, 7, 39)]
    assert torch.equal(fed[1], fed[0]) and torch.equal(fed[2], fed[0]) and all(served)
    exact = logits_by(ragged_target(nn.Module.to(model, torch.float64), slice(0, 1), nodes=40), tokens, 39)
    assert (fed[0] - exact).abs().max() < 0.03 * exact.abs().max()


@pytest.mark.parametrize("threads", [2, 5])
def test_logits_have_the_same_bits_with_any_number_of_threads(own_kernels, threads):
    model = make_model(num_layers=5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone, *targets = (ragged_target(model) for _ in range(10))  # captions are torch's
        expected = logits_by(alone, tokens_of(model), STEP)
        torch.set_num_threads(threads)  # more than there are cores, perhaps: whoever comes late finds the work done
        assert all(torch.equal(logits_by(target, tokens_of(model), STEP), expected) for target in targets)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
@pytest.mark.parametrize("tiles", ["off", "plain"], indirect=True)
def test_a_branch_of_a_tree_has_the_bits_of_a_chain(own_kernels, tiles):
    model = nn.Module.to(make_model(), torch.bfloat16)
    tokens = tokens_of(model)
    target = ragged_target(model)
    target.prefill()
    # Two branches below a root, their nodes in turns: 0 - 1 - 3 and 0 - 2 - 4.
    tree = torch.stack((tokens[:, 0], tokens[:, 5], tokens[:, 1], tokens[:, 6], tokens[:, 2]), 1)
    sees = torch.eye(5, dtype=torch.bool)
    for node, parent in ((1, 0), (2, 0), (3, 1), (4, 2)):
        sees[node] |= sees[parent]
    depths = torch.tensor([0, 1, 1, 2, 2]).expand(len(tokens), -1)
    branch = target.forward(tree, sees.expand(len(tokens), -1, -1), depths).logits[:, [0, 2, 4]]
    alone = logits_by(ragged_target(model), tokens[:, :3], 1)[:, 1:]
    assert torch.equal(branch, alone)
    sees[4, 3] = True  # a planted fault: a token sees the other branch
    other = target.forward(tree, sees.expand(len(tokens), -1, -1), depths).logits[:, [0, 2, 4]]
    assert torch.equal(other[:, :2], alone[:, :2]) and not torch.equal(other[:, 2], alone[:, 2])


def test_whatever_stands_in_a_modules_place_is_obeyed_as_long_as_it_stands_there(served):
    model = make_model()
    tokens, linear = tokens_of(model), model.transformer_blocks[0].ff.down_proj
    fast = logits_by(ragged_target(model), tokens, STEP)
    passes = sum(served)
    with linear.register_forward_hook(lambda module, inputs, output: output * 0):
        hooked = logits_by(ragged_target(model), tokens, STEP)
    assert sum(served) == passes and not torch.allclose(hooked, fast)
    assert torch.equal(logits_by(ragged_target(model), tokens, STEP), fast)
    linear.weight.data.zero_()  # weights are read where they lie, whatever became of them
    torch.testing.assert_close(logits_by(ragged_target(model), tokens, STEP), hooked)


class Halved(nn.Module):
    """Somebody else's layer in the place of one."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: object) -> Tensor:
        return self.layer(*given) / 2


def replace(path: str, value: Callable[[Any], Any]) -> Callable[[LlamaGenTransformer], object]:
    """Put something in the place of a part of a model, or of an attribute of one."""
    place, _, name = path.rpartition(".")

    def change(model: LlamaGenTransformer) -> None:
        owner = model.get_submodule(place)
        setattr(owner, name, value(getattr(owner, name)))

    return change


def with_weight(path: str, value: Callable[[Tensor], Tensor]) -> Callable[[LlamaGenTransformer], object]:
    return replace(f"{path}.weight", lambda weight: nn.Parameter(value(weight.data)))


def transposed(weight: Tensor) -> Tensor:
    """The same numbers, one column behind the other."""
    return weight.t().contiguous().t() if weight.ndim == 2 else weight.repeat_interleave(2)[::2]


BLOCK = "transformer_blocks.1"
PARTS = [
    *("token_embedding", "norm_out", "lm_head", f"{BLOCK}.norm1", f"{BLOCK}.norm2", f"{BLOCK}.attn.to_qkv"),
    *(f"{BLOCK}.attn.to_out", f"{BLOCK}.ff.gate_up_proj", f"{BLOCK}.ff.down_proj"),
]
CHANGES: dict[str, Callable[[LlamaGenTransformer], object]] = {
    "a function": replace(f"{BLOCK}.ff.down_proj.forward", lambda run: lambda *given: run(*given) / 2),
    "attention": replace(f"{BLOCK}.attn.attend", lambda run: lambda *given: run(*given) / 2),
    **{f"another {part}": replace(f"{BLOCK}.{part}", Halved) for part in ("ff", "ff.down_proj", "norm1", "attn")},
    "fewer layers": replace("transformer_blocks", lambda blocks: blocks[:1]),
    "no norm": replace("norm_out", lambda _: nn.Identity()),
    "another kind of norm": replace("norm_out", lambda _: nn.LayerNorm(32)),
    **{f"{part}, shorter": with_weight(part, lambda weight: weight[..., :-4].clone()) for part in PARTS},
    **{f"{part}, transposed": with_weight(part, transposed) for part in PARTS},
    **{
        f"{part} in {dtype}": replace(part, lambda module, dtype=dtype: module.to(dtype))
        for part in ("norm_out", "lm_head", f"{BLOCK}.norm1", f"{BLOCK}.attn.to_out")
        for dtype in (torch.bfloat16, torch.float64)
    },
}
"""Kernels would read some of them as others, and past the end of shorter ones."""


def outcome(model: LlamaGenTransformer) -> Tensor | type[Exception]:
    """Logits, or the error that came instead."""
    try:
        return logits_by(ragged_target(model), tokens_of(model), STEP)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_left_to_the_modules(served, monkeypatch, change):
    """And with them whatever torch says."""
    model = make_model()
    CHANGES[change](model)
    found = outcome(model)
    assert sum(served) == 0
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    expected = outcome(model)
    if isinstance(found, Tensor):
        assert isinstance(expected, Tensor)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert found is expected


@torch.no_grad()
def test_a_part_that_is_converted_between_two_passes_is_left_to_the_modules(served):
    model = make_model()
    target = ragged_target(model)
    target.prefill()
    assert sum(served) == 1
    model.transformer_blocks[1].attn.to_out.double()
    raised(RuntimeError, "same dtype", chain, target, tokens_of(model)[:, :1])
    assert sum(served) == 1


CONDITION_PLACES = torch.full((1, CONDITION_LENGTH), -1)


@torch.no_grad()
def condition_pass(model: LlamaGenTransformer, positions: Tensor = CONDITION_PLACES, **asked: Any) -> Any:
    target, square = ragged_target(model), torch.ones(1, 1, CONDITION_LENGTH, CONDITION_LENGTH, dtype=torch.bool)
    cached = {"kv_cache": target.kv_cache, "kv_length": CONDITION_LENGTH, "attention_mask": square.tril()}
    return model(inputs_embeds=target._condition_embeds, positions=positions, **cached, **asked)


def test_tokens_and_places_of_another_type_are_what_the_modules_make_of_them(served):
    model = make_model()
    expected = condition_pass(model).logits
    assert sum(served) == 1
    torch.testing.assert_close(condition_pass(model, CONDITION_PLACES.int()).logits, expected)
    assert sum(served) == 1
    wide = condition_pass(model, logits_to_keep=CONDITION_LENGTH + 9).logits  # as a slice of too many takes all
    assert torch.equal(wide, expected) and sum(served) == 2


def test_states_of_several_layers_are_those_of_the_modules(served, monkeypatch):
    model = make_model()
    fast = condition_pass(model, feature_layers=(1, 2)).features
    assert sum(served) == 1 and fast.shape[-1] == 64
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    torch.testing.assert_close(fast, condition_pass(model, feature_layers=(1, 2)).features, rtol=1e-4, atol=1e-5)


def test_a_slot_that_does_not_exist_is_an_error(own_kernels):
    model = make_model()
    target = ragged_target(model)
    with torch.no_grad():
        target.prefill()
        target.kv_cache.advance(1000)
        raised(IndexError, "outside", chain, target, tokens_of(model)[:, :1])
