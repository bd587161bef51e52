from dataclasses import fields
from typing import Any

from refusals import refused

from scenes.training.code_store import CodeStoreConfig
from scenes.training.tokenizer import TokenizerTrainingConfig, VQModelConfig
from scenes.training.transformer import TransformerConfig, TransformerTrainingConfig
from vargen.commands.arguments import build_parser
from vargen.training.config import RunConfig


def read_flags(config_type: type[Any], arguments: list[str]) -> Any:
    """Settings as `vargen train` reads them."""
    parser = build_parser("train", "", config_type)
    values = parser.instantiate_classes(parser.parse_args(arguments))
    return config_type(**{field.name: getattr(values, field.name) for field in fields(config_type)})


def test_a_run_needs_a_folder():
    refused(r"^output: '' must name a folder", RunConfig, "")


def test_nested_fields_are_named_with_their_path():
    refused(r"^shape\.norm_num_groups: ", VQModelConfig, norm_num_groups=5)
    refused(r"^shape\.num_attention_heads: ", TransformerConfig, dim=192, num_attention_heads=5)
    refused(r"^image_size: ", TokenizerTrainingConfig, output="runs/x", image_size=100)
    refused(r"^vqvae: ", TransformerTrainingConfig, output="runs/x", vqvae="")


def test_a_dotted_flag_reaches_a_nested_field():
    flags = ["--output", "x", "--shape.norm_num_groups", "8", "--shape.block_out_channels", "[8,16]"]
    wanted = VQModelConfig(block_out_channels=(8, 16), norm_num_groups=8)
    assert read_flags(TokenizerTrainingConfig, flags).shape == wanted


def test_bfloat16_is_computed_in_where_it_pays(monkeypatch):
    """A processor without instructions for it takes several times as long as in float32."""
    for found, pays in (({"avx512_bf16": True}, True), ({"avx512_f": True, "amx_bf16": False}, False)):
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda found=found: found)
        assert RunConfig("runs/x").autocast is pays and RunConfig("runs/x", device="cuda").autocast
        assert RunConfig("runs/x", autocast=True).autocast and not RunConfig("runs/x", autocast=False).autocast
        assert CodeStoreConfig(vqvae="somewhere").autocast is pays
