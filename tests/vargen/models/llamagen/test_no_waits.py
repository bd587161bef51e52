"""A step of the loop on a GPU never waits for it: shown without one, on tensors that have no numbers.

`FakeTensorMode` computes shapes and devices alone. Whatever asks such a tensor for a number (`int`, `bool`, `tolist`,
`nonzero`, a shape that depends on one) fails, and on a GPU it is what the host would wait for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llamagen_models import make_model
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree
from specdecode.loop import DecodeRun
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.verifiers.exact import ExactVerifier
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.draft_head import LlamaGenDraftHead
from vargen.models.llamagen.drafter import LlamaGenDrafter
from vargen.models.llamagen.target import LlamaGenTarget

STEPS = 4


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks the driver, once a picture and not once a step."""
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("specdecode.kv_cache._check_room", lambda *sizes: None)


def target_of(max_draft_nodes: int) -> LlamaGenTarget:
    model = make_model()
    embeds = torch.empty(2, model.config.condition_length, model.config.dim)
    return LlamaGenTarget(model, embeds, guidance_scale=3.0, max_draft_nodes=max_draft_nodes)


def take_steps(target: LlamaGenTarget, **players: Any) -> None:
    run = DecodeRun(
        target,
        max_new_tokens=16,
        sampling=SamplingConfig(0.9, top_k=5, top_p=0.9),
        streams=RandomStreams(torch.empty(2, dtype=torch.int64)),
        **players,
    )
    run.start()
    for _ in range(STEPS):
        run.step()


def play(name: str, **options: Any) -> None:
    method = resolve_method(name, options).resolved(16)
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        target = target_of(method.max_draft_nodes(16))
        codebook = torch.empty(target.vocab_size, 4)
        components: Any = SimpleNamespace(target=target, num_tokens=16, codebook=lambda: codebook)
        players = method.build(components)
        take_steps(target, drafter=players.drafter, verifier=players.verifier, schedule=players.schedule)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ar", {}),
        *((name, {"window": 4}) for name in ("jacobi", "sjd", "scd", "gsd")),
        ("sjd", {"window": 4, "branches": 2}),
    ],
)
def test_nothing_waits(name: str, options: dict[str, Any]) -> None:
    play(name, **options)


def test_nothing_waits_for_a_tree_that_a_head_draws() -> None:
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        target = target_of(8)
        config = target.transformer.config
        drafter = LlamaGenDrafter(
            config.dim, config.num_attention_heads, config.intermediate_size, config.vocab_size, config.grid_size
        ).eval()
        head = LlamaGenDraftHead(drafter, target, 16)
        eagle: Drafter = EagleDrafter(head, DynamicTree(), FixedDraftSize(DraftSize(7, 3)))
        take_steps(target, drafter=eagle, verifier=ExactVerifier())


def test_a_schedule_that_asks_the_device_is_seen_to_wait() -> None:
    with pytest.raises(DataDependentOutputException):
        play("vvs-jacobi", window=4)
