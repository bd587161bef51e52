"""LANTERN's drafters for Chameleons: published names against a forward in the published form, and trees of the loop."""

from typing import Any

import pytest
import torch
from published_drafters import DIM, HEAD_DIM, HEADS, WIDTH, published_forward, published_weights, write_published
from refusals import raised, refused
from synthetic import decoded
from token_image_models import tiny_family, tiny_model
from torch import Tensor
from watching_eagle import Watching

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import DynamicTree
from vargen.cli import main
from vargen.drafters.chameleon_head import ChameleonHead
from vargen.drafters.convert_draft_head import convert_lantern_drafter
from vargen.drafters.transformers_draft_head import ChameleonDraftHead
from vargen.models.token_images.grammar import vocabulary_of
from vargen.models.token_images.token_image_target import TokenImageTarget

FAMILY, VOCAB, TOKENS = tiny_family("anole"), 9_216, 12
CONFIG = {
    "model_type": "chameleon", "hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "intermediate_size": WIDTH, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
    "rope_theta": 10000.0, "rope_scaling": None, "swin_norm": False,
}  # fmt: skip


def chameleon_weights(shards: int = 1) -> dict[str, Tensor]:
    norms: dict[str, tuple[int, ...]] = {
        f"self_attn.{name}_norm.{kind}": (shards, HEAD_DIM) for name in "qk" for kind in ("weight", "bias")
    }
    return published_weights(VOCAB, 0.5, norms | {"input_layernorm.weight": (DIM,)})


def chameleon_forward(weights: dict[str, Tensor], tokens: list[int], features: Tensor) -> Tensor:
    """Queries and keys have norms a shard; pair k has position k: [n, DIM]."""

    def turned(vector: Tensor, name: str, head: int, position: int) -> Tensor:
        norm, bias = (weights[f"layers.0.self_attn.{name}_norm.{kind}"] for kind in ("weight", "bias"))
        shard = head * len(norm) // HEADS
        vector = (vector - vector.mean()) / (vector.var(unbiased=False) + 1e-5).sqrt() * norm[shard] + bias[shard]
        result, half = vector.clone(), HEAD_DIM // 2
        for channel in range(half):
            angle = torch.tensor(position / 10000.0 ** (2 * channel / HEAD_DIM))
            a, b = vector[channel], vector[channel + half]
            result[channel] = a * angle.cos() - b * angle.sin()
            result[channel + half] = b * angle.cos() + a * angle.sin()
        return result

    return published_forward(weights, tokens, features, turned, 1e-5)


@pytest.mark.parametrize("shards", [1, 2])
@torch.no_grad()
def test_published_names(tmp_path, capsys, shards):
    weights = chameleon_weights(shards)
    source, output = write_published(tmp_path / "published", weights, CONFIG), tmp_path / "out"
    assert main(["convert", "lantern-drafter", "--drafter", str(source), "--output", str(output)]) == 0
    assert "pictures of any size" in capsys.readouterr().out
    drafter = ChameleonHead.from_pretrained(output).eval()
    tokens, features = [3, 14, 15, 9, 2], torch.randn(5, DIM)
    expected = chameleon_forward(weights, tokens, features)
    for origin in (0, -3, 900):  # only differences of positions matter
        positions = torch.arange(5)[None] + origin
        found = drafter(torch.tensor([tokens]), features[None], positions, None)[0]
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"swin_norm": True}, {}, "grouped heads, swin_norm or rope_scaling"),
        ({"num_key_value_heads": 1}, {}, "grouped heads"),
        ({"num_hidden_layers": 2}, {}, "has 2 layers"),
        ({"model_type": "llama"}, {}, "lacks 'input_type'; it is not the config of a LANTERN drafter for LlamaGen"),
        ({}, {"layers.0.self_attn.q_norm.weight": torch.zeros(3, HEAD_DIM)}, "attn.norm.weight"),
        ({}, {"layers.1.mlp.up_proj.weight": torch.zeros(1)}, "does not have, such as layers.1"),
    ],
)
def test_other_drafters_are_refused(tmp_path, config, change, message):
    source = write_published(tmp_path / "published", chameleon_weights() | change, CONFIG | config)
    refused(message, convert_lantern_drafter, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Beside a target ------------------------------------------------------------------------------------------------------


def target_of(model: Any, guidance_scale: float, max_draft_nodes: int = 1) -> TokenImageTarget:
    """Pictures of a tiny Anole after prompts of unlike lengths."""
    ids = torch.tensor([[0, 1, 35, 36, 34], [0, 0, 1, 37, 34], [1, 38, 39, 40, 34]])
    prompts = [(ids, (ids > 0).long()), (torch.tensor([[34]] * 3), None)]
    return TokenImageTarget(
        model, vocabulary_of(FAMILY, model), prompts, grids=[(3, 4)], guidance_scale=guidance_scale,
        max_draft_nodes=max_draft_nodes,
    )  # fmt: skip


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@torch.no_grad()
def test_first_children_are_those_of_the_published_form(tmp_path, guidance_scale):
    weights = chameleon_weights()
    drafter = convert_lantern_drafter(write_published(tmp_path / "published", weights, CONFIG), tmp_path / "out")
    model, size = tiny_model(FAMILY), DraftSize(7, 3)
    target = target_of(model, guidance_scale, size.total_tokens)
    shape = DynamicTree(3)
    head = ChameleonDraftHead(drafter, target, EagleDrafter.most_new_pairs(shape, size))
    eagle = Watching(head, shape, FixedDraftSize(size))
    fast, plain = decoded(target, TOKENS, drafter=eagle), decoded(target_of(model, guidance_scale), TOKENS)
    assert torch.equal(fast.tokens, plain.tokens)

    halves, prompt, checked = target.rows_per_sequence, head.features(eagle.prompt), 0
    for draft, lengths in eagle.trees:
        for row, length in enumerate(lengths.tolist()):
            if length >= TOKENS - 3:
                continue
            logits = []
            for half in range(halves):
                seen = target.prompt_mask[row + 3 * half].bool()
                ids = [*target.prompt_ids[row + 3 * half][seen].tolist(), *(fast.tokens[row, :length] + 4).tolist()]
                features = [*prompt[row][seen], *eagle.known[row][: length - 1]]
                own = torch.stack([feature.chunk(halves)[half] for feature in features])
                state = chameleon_forward(weights, ids[1:], own)[-1]
                logits.append(model.lm_head(state)[target.ids])
            guided = logits[0] if halves == 1 else logits[1] + guidance_scale * (logits[0] - logits[1])
            tree = draft.tree
            children = [int(tree.tokens[row, n]) for n in range(tree.num_nodes) if int(tree.parents[row, n]) == 0]
            assert sorted(children) == sorted(guided.topk(len(children)).indices.tolist())
            checked += 1
    assert checked > 5


def test_a_drafter_of_another_model_is_refused():
    target = target_of(tiny_model(FAMILY), 1.0)
    sizes: dict[str, Any] = {"dim": DIM, "num_attention_heads": HEADS, "intermediate_size": WIDTH, "vocab_size": VOCAB}
    for name, size, message in (
        ("vocab_size", 32, "vocabulary of 32 tokens, this model has 9,216"),
        ("dim", 32, "32 channels"),
    ):
        refused(message, ChameleonDraftHead, ChameleonHead(**sizes | {name: size}).eval(), target, 4)
    sizes["num_attention_heads"] = 16
    raised(ValueError, "dim must be num_attention_heads times an even number", ChameleonHead, **sizes)
