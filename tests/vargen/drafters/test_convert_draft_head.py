"""Published LANTERN drafters: names and layout against an independent forward in the published form."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from vargen.base.errors import UserError
from vargen.cli import main
from vargen.drafters.convert_draft_head import convert_lantern_drafter, infer_drafter_config
from vargen.drafters.eagle_head import EagleHead

DIM, HEADS, WIDTH, VOCAB, PREFIX = 16, 2, 20, 11, 5
CONFIG = {
    "hidden_size": DIM, "num_attention_heads": HEADS, "intermediate_size": WIDTH, "vocab_size": VOCAB,
    "rms_norm_eps": 1e-6, "num_hidden_layers": 1, "input_type": "t2i",
}  # fmt: skip


def published_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCAB, DIM),
        "fc.weight": (DIM, 2 * DIM),
        "fc.bias": (DIM,),
        **{f"layers.0.self_attn.{name}_proj.weight": (DIM, DIM) for name in "qkvo"},
        "layers.0.mlp.gate_proj.weight": (WIDTH, DIM),
        "layers.0.mlp.up_proj.weight": (WIDTH, DIM),
        "layers.0.mlp.down_proj.weight": (DIM, WIDTH),
        "layers.0.post_attention_layernorm.weight": (DIM,),
    }
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def write_published(folder: Path, weights: dict[str, Tensor], config: dict[str, object], file: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".bin"):
        torch.save(weights, folder / file)
    else:
        save_file(weights, folder / file)
    return folder


def published_forward(weights: dict[str, Tensor], tokens: list[int], features: Tensor) -> Tensor:
    """The drafter as the facts describe it, one pair and one head at a time: [n, DIM].

    Pairs 0 .. PREFIX - 1 belong to the prompt and have a rotary table of zeros; image token j stands behind them at
    row j // 16, column j % 16.
    """

    def turned(vector: Tensor, pair: int) -> Tensor:
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

    def linear(name: str, value: Tensor) -> Tensor:
        return weights[f"layers.0.{name}.weight"] @ value

    inputs = [
        weights["fc.weight"] @ torch.cat((weights["embed_tokens.weight"][token], feature)) + weights["fc.bias"]
        for token, feature in zip(tokens, features, strict=True)
    ]
    outputs = []
    size = DIM // HEADS
    for i, x in enumerate(inputs):
        attended = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            query = turned(linear("self_attn.q_proj", x)[part], i)
            scores = torch.stack(
                [query @ turned(linear("self_attn.k_proj", inputs[j])[part], j) / size**0.5 for j in range(i + 1)]
            ).softmax(0)
            values = torch.stack([linear("self_attn.v_proj", inputs[j])[part] for j in range(i + 1)])
            attended.append(scores @ values)
        x = x + linear("self_attn.o_proj", torch.cat(attended))
        normed = x / (x.square().mean() + 1e-6).sqrt() * weights["layers.0.post_attention_layernorm.weight"]
        gate, up = linear("mlp.gate_proj", normed), linear("mlp.up_proj", normed)
        outputs.append(x + linear("mlp.down_proj", F.silu(gate) * up))
    return torch.stack(outputs)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@torch.no_grad()
def test_a_converted_drafter_computes_what_the_published_one_does(tmp_path, file):
    weights = published_weights()
    source = write_published(tmp_path / "published", weights, CONFIG, file)
    assert main(["convert", "lantern-drafter", "--drafter", str(source), "--output", str(tmp_path / "out")]) == 0
    drafter = EagleHead.from_pretrained(tmp_path / "out").eval()
    assert drafter.config.attend_to_padding and drafter.config.grid_size == 16
    tokens = [0] * PREFIX + torch.randint(VOCAB, (20,), generator=torch.Generator().manual_seed(1)).tolist()
    features = torch.randn(len(tokens), DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([-1] * PREFIX + list(range(20)))
    causal = torch.ones(1, 1, len(tokens), len(tokens), dtype=torch.bool).tril()
    ours = drafter(torch.tensor([tokens]), features[None], positions[None], causal)[0]
    torch.testing.assert_close(ours, published_forward(weights, tokens, features), rtol=1e-4, atol=1e-5)


def test_every_name_must_be_known_and_there(tmp_path):
    for index, (change, message) in enumerate(
        [
            (lambda w: w.pop("fc.bias"), "lacks 1 weights .* such as fc.bias"),
            (lambda w: w.pop("layers.0.self_attn.k_proj.weight"), "lacks 1 weights|has 2 weights"),
            (lambda w: w.update({"norm.weight": torch.ones(DIM)}), "such as norm.weight"),
            (lambda w: w.update({"layers.0.input_layernorm.weight": torch.ones(DIM)}), "input_layernorm"),
            (lambda w: w.update({"fc.bias": torch.ones(DIM + 1)}), "another size, such as fc.bias"),
        ]
    ):
        weights = published_weights()
        change(weights)
        source = write_published(tmp_path / f"{index}", weights, CONFIG, "model.safetensors")
        with pytest.raises(UserError, match=message):
            convert_lantern_drafter(source, tmp_path / "out")
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
    with pytest.raises(UserError, match=message):
        infer_drafter_config(config, Path("config.json"))


def test_missing_and_truncated_files_are_one_line(tmp_path, capsys):
    source = write_published(tmp_path / "published", published_weights(), CONFIG, "pytorch_model.bin")
    data = (source / "pytorch_model.bin").read_bytes()
    (source / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    command = ["convert", "lantern-drafter", "--output", str(tmp_path / "out"), "--drafter"]
    for folder in (source, tmp_path / "nowhere"):
        assert main([*command, str(folder)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    (source / "pytorch_model.bin").unlink()
    assert main([*command, str(source)]) == 2
    assert "neither model.safetensors nor pytorch_model.bin" in capsys.readouterr().err
