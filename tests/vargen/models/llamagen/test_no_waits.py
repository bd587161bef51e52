"""A step of the loop on a GPU never waits for it: shown without one (`fake_device`)."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_device import forget_driver, take_steps
from llamagen_models import make_model
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree
from specdecode.roles import Drafter
from specdecode.verifiers.exact import ExactVerifier
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

TOKENS = 16


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_driver(monkeypatch)


def target_of(max_draft_nodes: int) -> LlamaGenTarget:
    model = make_model()
    embeds = torch.empty(2, model.config.condition_length, model.config.dim)
    return LlamaGenTarget(model, embeds, guidance_scale=3.0, max_draft_nodes=max_draft_nodes)


def play(name: str, **options: Any) -> None:
    method = resolve_method(name, options).resolved(TOKENS)
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        target = target_of(method.max_draft_nodes(TOKENS))
        codebook = torch.empty(target.vocab_size, 4)
        components: Any = SimpleNamespace(target=target, num_tokens=TOKENS, codebook=lambda: codebook)
        players = method.build(components)
        take_steps(target, TOKENS, drafter=players.drafter, verifier=players.verifier, schedule=players.schedule)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ar", {}),
        *((name, {"window": 4}) for name in ("jacobi", "sjd", "scd", "gsd")),
        ("sjd", {"window": 4, "branches": 2}),
    ],
)
def test_nothing_waits(name, options):
    play(name, **options)


def test_nothing_waits_for_a_tree_that_a_head_draws():
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        target = target_of(8)
        config = target.transformer.config
        drafter = EagleHead(
            config.dim, config.num_attention_heads, config.intermediate_size, config.vocab_size, config.grid_size
        ).eval()
        head = LlamaGenDraftHead(drafter, target, 16)
        eagle: Drafter = EagleDrafter(head, DynamicTree(), FixedDraftSize(DraftSize(7, 3)))
        take_steps(target, TOKENS, drafter=eagle, verifier=ExactVerifier())


def test_a_schedule_that_asks_the_device_is_seen_to_wait():
    with pytest.raises(DataDependentOutputException):
        play("vvs-jacobi", window=4)
