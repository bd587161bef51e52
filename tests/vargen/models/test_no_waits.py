"""A step of the loop on a GPU never waits for it, with models of transformers: shown without one (`fake_device`).

LlamaGen's is `llamagen/test_no_waits.py`, which also shows that a wait is seen.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import emu3_models
import glm_image_models
import janus_models
import pytest
import token_image_models
import torch
from fake_device import forget_driver, take_steps, there, written
from random_heads import save_random_head
from torch._subclasses.fake_tensor import FakeTensorMode

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree
from specdecode.targets.transformers import TransformersTarget
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.transformers_draft_head import TransformersDraftHead
from vargen.methods.catalogue import resolve_method
from vargen.models.glm_image.glm_image_target import GlmImageTarget
from vargen.models.glm_image.prior_request import read_request
from vargen.models.janus.janus_target import JanusTarget
from vargen.models.token_images.grammar import vocabulary_of
from vargen.models.token_images.token_image_target import TokenImageTarget


def _janus(nodes: int) -> JanusTarget:
    return JanusTarget(janus_models.make(), *janus_models.prompts(), guidance_scale=3.0, max_draft_nodes=nodes)


def _emu3(nodes: int) -> emu3_models.Emu3Target:
    away, mask = emu3_models.tokens([emu3_models.AWAY] * len(emu3_models.PROMPTS))
    return emu3_models.Emu3Target(
        emu3_models.make(), *emu3_models.tokens(emu3_models.PROMPTS), negative_input_ids=away,
        negative_attention_mask=mask, guidance_scale=3.0, max_draft_nodes=nodes,
        grids=[(emu3_models.ROWS, emu3_models.COLUMNS)],
    )  # fmt: skip


def _lumina_mgpt_2(nodes: int) -> TokenImageTarget:
    """With a scale that decays."""
    family = token_image_models.tiny_family("lumina_mgpt_2")
    model, prompts = token_image_models.tiny_model(family), [(torch.full((3, length), 40), None) for length in (9, 3)]
    grid, guidance = {"grids": [(4, 4), (4, 2), (2, 4)]}, {"guidance": family.guidance, "guidance_scale": 8.0}
    return TokenImageTarget(model, vocabulary_of(family, model), prompts, **grid, **guidance, max_draft_nodes=nodes)


def _glm_image(nodes: int) -> GlmImageTarget:
    model = glm_image_models.make().vision_language_encoder
    return GlmImageTarget(model, read_request(model, glm_image_models.inputs(False)), max_draft_nodes=nodes)


FAMILIES: dict[str, Callable[[int], TransformersTarget]] = {
    "janus": _janus,
    "emu3": _emu3,
    "lumina_mgpt_2": _lumina_mgpt_2,
    "glm_image": _glm_image,
}


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_driver(monkeypatch)


@pytest.mark.parametrize(
    ("family", "name"), [("janus", "ar"), ("janus", "scd"), *((family, "jacobi") for family in FAMILIES)]
)
def test_nothing_waits(family, name):
    """Prompts of several lengths."""
    method = resolve_method(name, {} if name == "ar" else {"window": 4}).resolved(16)
    file = written(FAMILIES[family](method.max_draft_nodes(16)))
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        target = there(file)
        components: Any = SimpleNamespace(target=target, num_tokens=target.max_new_tokens)
        players = method.build(components)
        take_steps(target, target.max_new_tokens, drafter=players.drafter, verifier=players.verifier)


def test_nothing_waits_for_a_head_beside_a_model_of_transformers(tmp_path):
    target = _janus(8)
    dim = target.model.config.get_text_config().hidden_size
    folder = save_random_head(tmp_path, target.vocab_size, grid_size=4, dim=dim)
    files = written(target), written(EagleHead.from_pretrained(folder).eval())
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        on_device, drafter = there(files[0]), torch.load(files[1], map_location="cuda", weights_only=False)
        head = TransformersDraftHead(drafter, on_device, 16)
        eagle = EagleDrafter(head, DynamicTree(), FixedDraftSize(DraftSize(7, 3)))
        take_steps(on_device, on_device.max_new_tokens, drafter=eagle)
