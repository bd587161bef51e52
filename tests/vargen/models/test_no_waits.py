"""A step of the loop on a GPU never waits for it: shown without one (`fake_device`), with a model of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import emu3_models
import glm_image_models
import janus_models
import llamagen_models
import pytest
import token_image_models
import torch
from fake_device import forget_driver, take_steps, there, written
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.transformers_draft_head import TransformersDraftHead
from vargen.methods.catalogue import resolve_method
from vargen.models.glm_image.glm_image_target import GlmImageTarget
from vargen.models.glm_image.prior_request import read_request
from vargen.models.janus.janus_target import JanusTarget
from vargen.models.llamagen.llamagen_draft_head import LlamaGenDraftHead
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.token_images.grammar import vocabulary_of
from vargen.models.token_images.token_image_target import TokenImageTarget

TOKENS = 16


def _llamagen(nodes: int) -> LlamaGenTarget:
    model = llamagen_models.make_model()
    embeds = torch.empty(2, model.config.condition_length, model.config.dim)
    return LlamaGenTarget(model, embeds, guidance_scale=3.0, max_draft_nodes=nodes)


def _janus(nodes: int) -> JanusTarget:
    return JanusTarget(janus_models.make(), *janus_models.prompts(), guidance_scale=3.0, max_draft_nodes=nodes)


def _lumina_mgpt_2(nodes: int) -> TokenImageTarget:
    """With a scale that decays."""
    family = token_image_models.tiny_family("lumina_mgpt_2")
    model, prompts = token_image_models.tiny_model(family), [(torch.full((3, length), 40), None) for length in (9, 3)]
    grid, guidance = {"grids": [(4, 4), (4, 2), (2, 4)]}, {"guidance": family.guidance, "guidance_scale": 8.0}
    return TokenImageTarget(model, vocabulary_of(family, model), prompts, **grid, **guidance, max_draft_nodes=nodes)


def _glm_image(nodes: int) -> GlmImageTarget:
    model = glm_image_models.make().vision_language_encoder
    return GlmImageTarget(model, read_request(model, glm_image_models.inputs(False)), max_draft_nodes=nodes)


FAMILIES: dict[str, Callable[[int], Any]] = {
    "llamagen": _llamagen,
    "janus": _janus,
    "emu3": lambda nodes: emu3_models.target(emu3_models.make(), nodes=nodes),
    "lumina_mgpt_2": _lumina_mgpt_2,
    "glm_image": _glm_image,
}


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_driver(monkeypatch)


@contextmanager
def on_device(family: str, nodes: int) -> Iterator[Any]:
    """A target there. One of transformers is made before, since it reads its prompts: these have several lengths."""
    file = None if family == "llamagen" else written(FAMILIES[family](nodes))
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        yield FAMILIES[family](nodes) if file is None else there(file)


def play(family: str, name: str, **options: Any) -> None:
    method = resolve_method(name, options).resolved(TOKENS)
    with on_device(family, method.max_draft_nodes(TOKENS)) as target:
        tokens, codebook = getattr(target, "max_new_tokens", TOKENS), torch.empty(target.vocab_size, 4)
        components: Any = SimpleNamespace(target=target, num_tokens=tokens, codebook=lambda: codebook)
        players = method.build(components)
        take_steps(target, tokens, drafter=players.drafter, verifier=players.verifier, schedule=players.schedule)


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("llamagen", "ar", {}),
        *(("llamagen", name, {"window": 4}) for name in ("sjd", "scd", "gsd")),
        ("llamagen", "sjd", {"window": 4, "branches": 2}),
        ("janus", "ar", {}),
        ("janus", "scd", {"window": 4}),
        *((family, "jacobi", {"window": 4}) for family in FAMILIES),
    ],
)
def test_nothing_waits(family, name, options):
    play(family, name, **options)


@pytest.mark.parametrize(("family", "kind"), [("llamagen", LlamaGenDraftHead), ("janus", TransformersDraftHead)])
def test_nothing_waits_for_a_tree_that_a_head_draws(family, kind):
    with on_device(family, 8) as target:
        sizes = {"dim": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": target.vocab_size}
        head = kind(EagleHead(**sizes, grid_size=4).eval(), target, 16)
        take_steps(target, TOKENS, drafter=EagleDrafter(head, DynamicTree(), FixedDraftSize(DraftSize(7, 3))))


def test_a_schedule_that_asks_the_device_is_seen_to_wait():
    with pytest.raises(DataDependentOutputException):
        play("llamagen", "vvs-jacobi", window=4)
