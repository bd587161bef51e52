"""Official files become a folder that the pipeline loads, and what does not belong together is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from official_layout import SMALL_CHANNELS, fill_by_rule, official_vq_shapes
from refusals import refused
from transformers import T5Config, T5EncoderModel

from scenes.captions.text_tokenizer import build_tokenizer
from vargen.jobs.conversion import ConvertConfig, convert_llamagen
from vargen.pipelines.llamagen import LlamaGenPipeline


def convert(**settings: Any) -> dict[str, Any]:
    given = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    return convert_llamagen(ConvertConfig(**given))


def test_class_conditional_folder(official_files, tmp_path, small_class_weights):
    output = tmp_path / "converted"
    parts = {"transformer": official_files["class"], "vqvae": official_files["vq"], "output": output}
    result = convert(**parts, image_size=16, num_attention_heads=4, dtype="bfloat16")
    found = (result["output"], result["size"], result["condition_type"], result["grid_size"])
    assert found == (str(output), None, "class", 4)
    config = json.loads((output / "transformer" / "config.json").read_text())
    assert config["grid_size"] == 4 and config["num_classes"] == 6
    pipeline = LlamaGenPipeline.from_pretrained(output)
    assert pipeline.text_encoder is None
    official = small_class_weights["cls_embedding.embedding_table.weight"].bfloat16().float()
    assert torch.equal(pipeline.transformer.class_embedding.weight.float(), official)
    assert pipeline.vqvae.dtype == torch.float32

    refused(r"output .* not empty", convert, **parts, image_size=16, num_attention_heads=4)
    convert(**parts, image_size=32, num_attention_heads=4, overwrite=True)
    assert json.loads((output / "transformer" / "config.json").read_text())["grid_size"] == 8


def make_text_encoder(folder: Path, d_model: int) -> Path:
    tokenizer = build_tokenizer()
    config = T5Config(vocab_size=len(tokenizer), d_model=d_model, d_kv=8, d_ff=8, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_text_conditional_folder(official_files, tmp_path):
    output = tmp_path / "converted"
    encoder = make_text_encoder(tmp_path / "t5", 16)
    parts = {"transformer": official_files["text"], "vqvae": official_files["vq"], "text_encoder": encoder}
    convert(**parts, output=output, image_size=16, num_attention_heads=4)
    pipeline = LlamaGenPipeline.from_pretrained(output)
    assert pipeline.text_encoder.config.clean_caption is True
    assert pipeline.tokenizer.model_max_length == 9
    assert pipeline.transformer.config.condition_length == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 18}, "image_size must be a positive multiple of 4"),
        ({"output": "vq.pt"}, "is a file"),
        ({"num_attention_heads": None}, "num_attention_heads must be given"),
        ({"transformer": "vq.pt"}, "swap"),
        ({"vqvae": "class.pt"}, "swap"),
        ({"vqvae": "absent.pt"}, "vqvae .* does not exist"),
        ({"transformer": "text.pt"}, "text_encoder must be given"),
        ({"text_encoder": "t5"}, "text_encoder must not be given"),
        ({"transformer": "text.pt", "text_encoder": "absent"}, "config.json is missing"),
        ({"transformer": "text.pt", "text_encoder": "t5"}, "features of size 16"),
        ({"transformer": "text.pt", "text_encoder": "broken"}, "cannot be loaded"),
        ({"vqvae": "other_vq.pt"}, "41 codes, the transformer 40"),
    ],
)
def test_refusals_leave_nothing_behind(official_files, tmp_path, changes, message):
    if changes.get("text_encoder") == "t5":
        make_text_encoder(tmp_path / "t5", 24)
    if changes.get("text_encoder") == "broken":
        make_text_encoder(tmp_path / "broken", 16)
        weights = tmp_path / "broken" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-300])
    if changes.get("vqvae") == "other_vq.pt":
        shapes = official_vq_shapes(SMALL_CHANNELS, num_codes=41, code_dim=4, latent_channels=16)
        torch.save(fill_by_rule(shapes), tmp_path / "other_vq.pt")
    parts: dict[str, Any] = {"transformer": "class.pt", "vqvae": "vq.pt", "output": "converted"}
    arguments = parts | {"image_size": 16, "num_attention_heads": 4} | changes
    for name in ("transformer", "vqvae", "text_encoder", "output"):
        if arguments.get(name) is not None:
            arguments[name] = tmp_path / arguments[name]
    before = sorted(tmp_path.iterdir())
    refused(message, convert, **arguments)
    assert sorted(tmp_path.iterdir()) == before
