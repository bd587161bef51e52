"""Kernels compute in place of modules only where calling these would run what their files say."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import language_models
import pytest
import torch
from language_models import ragged_prompts
from torch import Tensor, nn
from torch.nn.modules import module as all_modules
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import specdecode
from specdecode.kernels import as_written as module_under_test
from specdecode.kernels.as_written import as_written, untouched
from specdecode.targets.llama_pass import llama_pass
from vargen.drafters.transformer_layers import Attention, project, scaled_dot_product_attention
from vargen.models.llamagen.transformer import LlamaGenTransformer

OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
EVERY: dict[str, Any] = {
    **{
        family: lambda family=family: _classes(language_models.make(family)) for family in ("llama", "mistral", "qwen3")
    },
    "llamagen": lambda: _classes(LlamaGenTransformer(dim=32, num_layers=1, num_attention_heads=2, vocab_size=8)),
    "functions": lambda: [sdpa_attention_forward, project, scaled_dot_product_attention],
}


def _classes(model: nn.Module) -> list[type]:
    return sorted({type(each) for each in model.modules()} - {nn.ModuleList}, key=lambda kind: kind.__name__)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """As `setattr`, also where a class has the name from another one, and as before at the end."""
    own = {**vars(owner), **vars(owner).get("_modules", {})}
    had, before = name in own, own.get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@pytest.mark.parametrize("kinds", EVERY)
def test_nothing_that_would_run_can_be_replaced_unseen(kinds):
    """Each method and each function that the code of a class names, in the class, its file and torch."""
    for kind in EVERY[kinds]():
        assert as_written(kind), kind
        facts = list(module_under_test._known[kind])
        assert any(isinstance(value, FunctionType) for _, _, value, _ in facts)
        for owner, name, value, _ in facts:
            with replaced(owner, name, lambda *given, **named: None):
                assert not as_written(kind), (kind, owner, name)
            if isinstance(value, FunctionType):
                code = value.__code__
                value.__code__ = (lambda *given, **named: None).__code__.replace(co_freevars=code.co_freevars)
                try:
                    assert not as_written(kind), (kind, owner, name)
                finally:
                    value.__code__ = code
            assert as_written(kind)


def test_what_was_replaced_before_anybody_asked_is_seen(monkeypatch):
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral

    for owner, name, other in (
        (llama.LlamaMLP, "forward", mistral.MistralAttention.forward),  # another of the same package
        (llama, "apply_rotary_pos_emb", mistral.apply_rotary_pos_emb),
        (nn.functional, "linear", lambda *given: None),
        (nn.functional, "scaled_dot_product_attention", print),
    ):
        module_under_test._known.clear()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            kinds = [llama.LlamaMLP, llama.LlamaAttention, nn.Linear, sdpa_attention_forward]
            found = [as_written(kind) for kind in kinds]
            assert found.count(False) == (0 if other is print else 1), name  # it is torch's word for its own function
        assert all(map(as_written, kinds))


class _Doubling(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 1.5 if function is nn.functional.linear else result


def _louder(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose result is larger wherever that is a tensor."""

    def louder(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        return result * 1.5 if isinstance(result, Tensor) else result

    return louder


def _hook(register: str) -> Callable[[Any], AbstractContextManager[Any]]:
    def registered(model: Any) -> AbstractContextManager[Any]:
        def hook(module: nn.Module, given: Any, *output: Any) -> Any:
            if isinstance(module, nn.Linear):
                return output[0] * 1.5 if output else (given[0] * 1.5,)
            return None

        return getattr(all_modules, register)(hook)

    return registered


@contextmanager
def _attending(model: Any) -> Iterator[None]:
    def attend(*given: Any, **named: Any) -> Any:
        output, weights = sdpa_attention_forward(*given, **named)
        return output * 1.5, weights

    AttentionInterface.register("sdpa", attend)
    try:
        yield
    finally:
        AttentionInterface._global_mapping["sdpa"] = sdpa_attention_forward


class _Bent(nn.Embedding):
    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).flip(-1)


@contextmanager
def _subclass(model: Any) -> Iterator[None]:
    model.model.embed_tokens.__class__ = _Bent
    yield
    model.model.embed_tokens.__class__ = nn.Embedding


CHANGES: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    **{
        part: lambda model, part=part: replaced(
            kind := next(type(each) for each in model.modules() if type(each).__name__.endswith(part)),
            "forward",
            _louder(kind.forward),
        )
        for part in ("Linear", "Embedding", "MLP", "RMSNorm", "Attention", "DecoderLayer", "Activation")
    },
    "F.linear": lambda model: replaced(nn.functional, "linear", _louder(nn.functional.linear)),
    "F.silu": lambda model: replaced(nn.functional, "silu", _louder(nn.functional.silu)),
    "rotate_half": lambda model: replaced(
        there := sys.modules[type(model).__module__], "rotate_half", _louder(there.rotate_half)
    ),
    "a hook of all": _hook("register_module_forward_hook"),
    "a hook before all": _hook("register_module_forward_pre_hook"),
    "a mode": lambda model: _Doubling(),
    "attention": _attending,
    "a scale": lambda model: replaced(part := model.model.layers[-1].self_attn, "scaling", part.scaling * 3),
    "another order": lambda model: replaced(model.model, "layers", nn.ModuleList(reversed(model.model.layers))),
    # Whose weight is no tensor, as those that torch quantizes while they run have it.
    "a head": lambda model: replaced(model, "lm_head", nn.Sequential(model.lm_head, nn.Tanh())),
    "a subclass": _subclass,
    # As `module.compile` leaves one, by a compiler that is somebody's own.
    "what was compiled": lambda model: replaced(
        layer := model.model.layers[0].mlp, "_compiled_call_impl", _louder(layer._call_impl)
    ),
}


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("change", CHANGES)
def test_generate_draws_what_the_changed_modules_say(own_kernels, change, architecture):
    model, (ids, mask) = language_models.make(architecture, dtype=torch.float32), ragged_prompts()
    if architecture == "gemma3" and change in ("Activation", "another order"):
        return  # it has another activation, and its layers are not alike
    if architecture == "llama":
        assert llama_pass(model, 40) is not None
    with CHANGES[change](model):
        assert llama_pass(model, 40) is None
        wanted = model.generate(ids, attention_mask=mask, **OPTIONS)
        found = specdecode.generate(model, ids, attention_mask=mask, max_new_tokens=8).sequences
        assert torch.equal(found, wanted)


def test_operations_are_counted_where_somebody_counts(own_kernels):
    model, (ids, _) = language_models.make("llama", dtype=torch.float32), ragged_prompts()
    with FlopCounterMode(display=False) as counted:
        specdecode.generate(model, ids, max_new_tokens=4, method="ar")
    assert counted.get_total_flops() > 3 * 2 * model.lm_head.weight.numel()
    with FlopCounterMode(display=False):
        assert not untouched([nn.Linear(2, 2)])


def test_networks_of_the_project_are_asked_as_well(own_kernels):
    """Every class of LlamaGen's network, the order of its layers and the numbers of each."""
    model = LlamaGenTransformer(dim=32, num_layers=2, num_attention_heads=2, vocab_size=8).eval()
    check = model.fast_pass.check
    assert check()
    for kind in _classes(model):
        with replaced(kind, "forward", _louder(kind.forward)):
            assert not check(), kind
    for register in ("register_module_forward_hook", "register_module_full_backward_hook"):
        with getattr(all_modules, register)(lambda *given: None):
            assert not check()
    blocks = model.transformer_blocks
    for order in ([1, 0], [0], [0, 1, 1], [0, 0]):
        with replaced(model, "transformer_blocks", nn.ModuleList(blocks[place] for place in order)):
            assert not check(), order
    for part, name in ((blocks[1].norm2, "eps"), (model.norm_out, "eps"), (blocks[0].attn, "layer_index")):
        with replaced(part, name, getattr(part, name) + 1):
            assert not check(), name
    assert check() and type(blocks[0].attn) is Attention
    assert not model.train().fast_pass.check()
