from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scenes.training.code_store import CodeStoreConfig
from scenes.training.tokenizer import TokenizerTrainingConfig, VQModelConfig
from scenes.training.transformer import TransformerConfig, TransformerTrainingConfig
from vargen.base.errors import UserError
from vargen.training.config import RunConfig, from_mapping, main

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output", ""),
        ("batch_size", 0),
        ("steps", -1),
        ("max_seconds", 0.0),
        ("learning_rate", 0.0),
        ("warmup_steps", -1),
        ("final_learning_rate", 1.5),
        ("decay_start", 1.0),
        ("optimizer", "sgd"),
        ("ema_decay", 1.0),
        ("device", "tpu"),
        ("adam_betas", (0.9, 1.0)),
        ("evaluation_size", 0),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{name}: "):
        from_mapping(RunConfig, {"output": "runs/x", name: value})


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(UserError, match=r"^learning_rte: "):
        from_mapping(RunConfig, {"output": "runs/x", "learning_rte": 1.0})


def test_nested_fields_are_named_with_their_path() -> None:
    with pytest.raises(UserError, match=r"^model\.norm_num_groups: "):
        VQModelConfig(norm_num_groups=5)
    with pytest.raises(UserError, match=r"^model\.num_attention_heads: "):
        TransformerConfig(dim=192, num_attention_heads=5)
    with pytest.raises(UserError, match=r"^image_size: "):
        TokenizerTrainingConfig(output="runs/x", image_size=100)
    with pytest.raises(UserError, match=r"^vqvae: "):
        TransformerTrainingConfig(output="runs/x", vqvae="")


@pytest.mark.parametrize(
    ("config_type", "name"), [(TokenizerTrainingConfig, "tokenizer"), (TransformerTrainingConfig, "transformer")]
)
def test_the_shipped_file_is_read_and_flags_override_it(config_type: type[RunConfig], name: str) -> None:
    received: list[Any] = []
    file = REPOSITORY / "configs" / "train" / f"{name}.yaml"
    main(config_type, received.append, ["--config", str(file), "--batch_size", "3", "--max_seconds", "null"])
    (config,) = received
    assert type(config) is config_type
    assert config.batch_size == 3 and config.max_seconds is None
    assert config.output == f"runs/{name}" and config.evaluation_size == 64
    assert from_mapping(config_type, asdict(config)) == config


def test_a_dotted_flag_reaches_a_nested_field() -> None:
    received: list[TokenizerTrainingConfig] = []
    flags = ["--output", "x", "--model.norm_num_groups", "8", "--model.block_out_channels", "[8,16]"]
    main(TokenizerTrainingConfig, received.append, flags)
    assert received[0].model == VQModelConfig(block_out_channels=(8, 16), norm_num_groups=8)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--batch_size", "0"], "batch_size"),
        (["--batch_size", "many"], "batch_size"),
        (["--no_such_field", "1"], "no_such_field"),
        (["--model.norm_num_groups", "5"], "norm_num_groups"),
    ],
)
def test_bad_flags_end_with_code_two_and_name_the_field(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(TokenizerTrainingConfig, lambda config: None, ["--output", "x", *arguments])
    assert stop.value.code == 2
    assert named in capsys.readouterr().err


def test_an_unknown_key_in_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("output: x\nlearning_rte: 1.0\n")
    with pytest.raises(SystemExit) as stop:
        main(TokenizerTrainingConfig, lambda config: None, ["--config", str(file)])
    assert stop.value.code == 2
    assert "learning_rte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "pays"), [({"avx512_bf16": True}, True), ({"avx512_f": True, "amx_bf16": False}, False)]
)
def test_bfloat16_is_computed_in_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, bool], pays: bool
) -> None:
    """A processor without instructions for it takes several times as long as in float32."""
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: found)
    assert RunConfig("runs/x").autocast is pays and RunConfig("runs/x", device="cuda").autocast
    assert RunConfig("runs/x", autocast=True).autocast and not RunConfig("runs/x", autocast=False).autocast
    assert CodeStoreConfig(vqvae="somewhere").autocast is pays
