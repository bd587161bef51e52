"""Published LANTERN drafters for LlamaGen: names and layout against an independent forward in the published form."""

from pathlib import Path

import pytest
import torch
from published_drafters import DIM, HEADS, WIDTH, published_forward, published_weights, write_published
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor

from vargen.cli import main
from vargen.drafters.convert_draft_head import convert_lantern_drafter, infer_drafter_config
from vargen.drafters.eagle_head import EagleHead

VOCAB, PREFIX = 11, 5
CONFIG: dict[str, object] = {
    "hidden_size": DIM, "num_attention_heads": HEADS, "intermediate_size": WIDTH, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "num_hidden_layers": 1, "input_type": "t2i",
}  # fmt: skip


def turned(vector: Tensor, name: str, head: int, pair: int) -> Tensor:
    """Pairs 0 .. PREFIX - 1 belong to the prompt and have a rotary table of zeros; image token j stands behind them at
    row j // 16, column j % 16.
    """
    if pair < PREFIX:
        return torch.zeros_like(vector)
    row, column = divmod(pair - PREFIX, 16)
    result = vector.clone()
    half = len(vector) // 2
    for index in range(half):  # channel pairs: the first half of them turns with the row, the other with the column
        place = index % (half // 2)
        angle = torch.tensor((row if index < half // 2 else column) / 10000.0 ** (2 * place / half))
        a, b = vector[2 * index], vector[2 * index + 1]
        result[2 * index] = a * angle.cos() - b * angle.sin()
        result[2 * index + 1] = b * angle.cos() + a * angle.sin()
    return result


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@torch.no_grad()
def test_a_converted_drafter_computes_what_the_published_one_does(tmp_path, file):
    weights = published_weights(VOCAB, 0.3)
    source = write_published(tmp_path / "published", weights, CONFIG)
    if file.endswith(".safetensors"):
        (source / "pytorch_model.bin").unlink()
        save_file(weights, source / file)
    assert main(["convert", "lantern-drafter", "--drafter", str(source), "--output", str(tmp_path / "out")]) == 0
    drafter = EagleHead.from_pretrained(tmp_path / "out").eval()
    assert drafter.config.attend_to_padding and drafter.config.grid_size == 16
    tokens = [0] * PREFIX + torch.randint(VOCAB, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    features = torch.randn(len(tokens), DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([-1] * PREFIX + list(range(20)))
    causal = torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool).tril()
    ours = drafter(torch.tensor([tokens]), features[None], positions[None], causal)[0]
    torch.testing.assert_close(ours, published_forward(weights, tokens, features, turned, 1e-6), rtol=1e-4, atol=1e-5)


def test_every_name_must_be_known_and_there(tmp_path):
    for index, (name, tensor, message) in enumerate(
        [
            ("fc.bias", None, "lacks 1 weights .* such as fc.bias"),
            ("layers.0.self_attn.k_proj.weight", None, "lacks 1 weights|has 2 weights"),
            ("norm.weight", torch.ones(DIM), "such as norm.weight"),
            ("layers.0.input_layernorm.weight", torch.ones(DIM), "input_layernorm"),
            ("fc.bias", torch.ones(DIM + 1), "another size, such as fc.bias"),
        ]
    ):
        weights = published_weights(VOCAB, 0.3) | {name: tensor}
        kept = {name: each for name, each in weights.items() if each is not None}
        source = write_published(tmp_path / f"{index}", kept, CONFIG)
        refused(message, convert_lantern_drafter, source, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_type": "c2i"}, "input_type 'c2i'"),
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
    ],
)
def test_configs_of_other_drafters_are_refused(change, message):
    config = {name: value for name, value in {**CONFIG, **change}.items() if value is not None}
    refused(message, infer_drafter_config, config, Path("config.json"))
