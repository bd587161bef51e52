"""Whole passes in the kernels are those of transformers' modules, and the modules are called where these differ."""

from typing import Any

import language_models
import pytest
import torch
import transformers
from language_models import PARENTS, ragged_prompts, ragged_tree
from torch import Tensor, nn
from transformers import PreTrainedModel

import specdecode
from specdecode.kernels.linears import FewRowLinear, served_linears
from specdecode.targets.llama_pass import llama_pass
from specdecode.targets.transformers import TransformersTarget

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True},
    "Mistral": {"sliding_window": 64},
    "Qwen2": {},
    "Qwen3": {"head_dim": 12},  # heads that together are wider than the model, and no whole number of lanes
}


def make(family: str, dtype: torch.dtype = torch.float32, **sizes: Any) -> PreTrainedModel:
    """A model whose norms and biases say something, too."""
    config = getattr(transformers, f"{family}Config")(**{**language_models._SIZES, **FAMILIES[family], **sizes})
    model: PreTrainedModel = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + (parameter.ndim == 1))
    return model.to(dtype)


def compare(model: PreTrainedModel) -> float:
    """The greatest difference of logits over trees behind ragged rows, between the kernels and the modules."""
    input_ids, mask = ragged_prompts()
    target = TransformersTarget(model, input_ids, mask, max_new_tokens=12, max_draft_nodes=len(PARENTS))
    target.prefill()
    fast = llama_pass(model, 40)
    assert fast is not None
    worst = 0.0
    for step in range(2):
        drafted = ragged_tree(step)
        logits = []
        for target.fast in (None, fast):
            logits.append(target.forward(drafted.tokens, drafted.ancestor_mask(), drafted.depth).logits)
        worst = max(worst, float((logits[0] - logits[1])[drafted.valid].abs().max()))
        kept = torch.tensor([[0, 1, 4, 7], [0, 0, 0, 0], [0, 2, 5, 0]])
        target.commit(kept, torch.tensor([4, 1, 3]))  # of keys and values that the kernels wrote
    return worst


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_are_judged_as_by_the_modules(own_kernels, family):
    assert compare(make(family)) < 1e-4
    assert compare(make(family, torch.bfloat16)) < 1.0  # logits of up to 20 in eight bits


class Doubled(nn.Linear):
    """Somebody else's layer."""


def _replaced(model: Any) -> None:
    model.model.layers[1].mlp.up_proj = Doubled(32, 32, bias=False)


def _patched(model: Any) -> None:
    layer = model.model.layers[0].mlp
    layer.forward = lambda x: 2 * type(layer).forward(layer, x)


def _hooked(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda module, inputs, output: output * 2)


def _prepared(model: Any) -> None:
    model.model.layers[0].mlp.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))


def _quantized(model: Any) -> None:
    from specdecode.kernels.quantized import quantize_linears

    quantize_linears(model.model.layers[0], "int8")


def _mixed(model: Any) -> None:
    model.model.layers[0].mlp.down_proj.bfloat16()


def _pruned(model: Any) -> None:
    """One layer is narrower than the others, as after structured pruning."""
    mlp = model.model.layers[1].mlp
    for name in ("gate_proj", "up_proj"):
        setattr(mlp, name, nn.Linear(mlp.hidden_size, 16, bias=False))
    mlp.down_proj = nn.Linear(16, mlp.hidden_size, bias=False)


@pytest.mark.parametrize("change", [_replaced, _patched, _hooked, _prepared, _quantized, _mixed, _pruned])
def test_modules_that_are_not_transformers_own_are_called(own_kernels, change):
    model = make("Llama")
    assert llama_pass(model, 40) is not None
    change(model)
    assert llama_pass(model, 40) is None


def test_a_model_whose_hidden_states_were_asked_for_is_served(own_kernels):
    """transformers leaves hooks on it, which look at outputs alone; a draft head asks for them."""
    model = make("Llama")
    model(torch.ones(1, 3, dtype=torch.int64), output_hidden_states=True)
    assert any(module._forward_hooks for module in model.modules())
    assert llama_pass(model, 40) is not None
    _hooked(model)
    assert llama_pass(model, 40) is None


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("Llama", {"hidden_act": "gelu"}),
        ("Llama", {"mlp_bias": True}),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}),
        ("Mistral", {"sliding_window": 39}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 39, "max_window_layers": 1}),
    ],
)
def test_what_the_kernels_cannot_do_is_left_to_the_modules(own_kernels, family, sizes):
    assert llama_pass(make(family, **sizes), 40) is None
    assert llama_pass(language_models.make("gemma3"), 40) is None
    assert llama_pass(make("Llama").train(), 40) is None


class Watched:
    """Counts what runs in the kernels."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from specdecode.kernels import linears
        from specdecode.targets import llama_pass as passes

        self.products = self.passes = 0
        product, run = linears.linear_now, passes.decoder_pass

        def counted(*given: Any) -> Tensor | None:
            self.products += 1
            return product(*given)

        def counted_pass(*given: Any, **named: Any) -> Any:
            self.passes += 1
            return run(*given, **named)

        monkeypatch.setattr(linears, "linear_now", counted)
        monkeypatch.setattr(passes, "decoder_pass", counted_pass)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_generate_uses_them_and_leaves_the_model_as_it_was(own_kernels, monkeypatch, architecture):
    model, prompts = language_models.make(architecture, dtype=torch.float32), ragged_prompts(2)
    classes = [type(module) for module in model.modules()]
    wanted = language_models.by_generate(model, prompts, 12)
    for method in ("ar", "prompt-lookup"):
        watched = Watched(monkeypatch)
        options: dict[str, Any] = {"attention_mask": prompts[1], "max_new_tokens": 12, "method": method}
        result = specdecode.generate(model, prompts[0], **options)
        assert torch.equal(result.sequences, wanted)
        assert watched.products > 0 and watched.passes == (
            result.trace.target_passes - 1 if architecture == "llama" else 0
        )
        assert [type(module) for module in model.modules()] == classes
        products = watched.products
        plain = specdecode.generate(model, prompts[0], kernels="plain", **options)
        assert torch.equal(plain.sequences, wanted) and watched.products == products


def test_a_model_is_as_before_after_an_error_too(own_kernels):
    model = make("Llama")
    with pytest.raises(RuntimeError), served_linears(model):
        assert type(model.lm_head) is FewRowLinear
        with served_linears(model):  # another thread, say
            pass
        assert type(model.lm_head) is FewRowLinear
        raise RuntimeError
    assert type(model.lm_head) is nn.Linear and not hasattr(model.lm_head, "in_kernels")


def test_a_layer_that_was_served_for_good_stays_so(own_kernels):
    from specdecode.kernels.linears import serve_linears

    model = make("Llama")
    serve_linears(model)
    with served_linears(model):
        pass
    assert type(model.lm_head) is FewRowLinear and model.lm_head.in_kernels


class Elsewhere(torch.Tensor):
    """A weight of a class of its own, as those that torchao quantizes."""


def test_weights_of_another_class_training_and_compiled_models_are_left_alone(own_kernels):
    model = make("Llama")
    weight = model.lm_head.weight.detach().as_subclass(Elsewhere)
    model.lm_head.weight = nn.Parameter(weight)
    assert type(model.lm_head.weight) is Elsewhere
    with served_linears(model):
        assert type(model.lm_head) is nn.Linear
        assert type(model.model.layers[0].mlp.up_proj) is FewRowLinear
    with served_linears(make("Llama").train()) as _:
        assert type(model.model.layers[0].mlp.up_proj) is nn.Linear
    compiled = make("Llama")
    compiled.compile(backend="eager")
    with served_linears(compiled):
        assert type(compiled.lm_head) is nn.Linear
    assert llama_pass(compiled, 40) is None


def test_the_argument_is_checked():
    with pytest.raises(ValueError, match="kernels must be one of auto, plain, got 'fast'"):
        specdecode.generate(make("Llama"), ragged_prompts()[0], kernels="fast")  # type: ignore[arg-type]
