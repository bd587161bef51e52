"""`vargen generate` with a family that is described: SimpleAR as published, with the file that makes its pixels."""

import json

import pytest
import token_image_models
import torch
from PIL import Image
from transformers import Qwen2Config, Qwen2ForCausalLM

from vargen.cli import main
from vargen.models.token_images.simplear import SIMPLEAR

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # of writing a script


class Blocks(torch.nn.Module):
    """A picture of codes in squares of 16 pixels, in the place of Cosmos's decoder."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        grown = codes.repeat_interleave(16, 2).repeat_interleave(16, 3)
        return (grown.float() / 32_000 - 1)[:, None].expand(-1, 3, -1, -1, -1)


def test_pictures_by_the_command_line(tmp_path, capsys):
    folder, decoder = tmp_path / "model", tmp_path / "decoder.jit"
    tokenizer = token_image_models.tiny_tokenizer(SIMPLEAR)
    torch.manual_seed(0)
    size = {**token_image_models.TINY, "vocab_size": len(tokenizer) + 64_000, "max_position_embeddings": 512}
    Qwen2ForCausalLM(Qwen2Config(**size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["SimpARForCausalLM"]}))
    torch.jit.save(torch.jit.script(Blocks()), str(decoder))

    output = tmp_path / "out"
    command = ["generate", "a dog", "--model", str(folder), "--output", str(output), "--quiet"]
    size_and_pixels = ["--height", "256", "--width", "256", "--vqvae", str(decoder)]
    assert main([*command, *size_and_pixels, "--trace_image", "true"]) == 0
    picture = Image.open(output / "images" / "000000.png")
    assert picture.size == (256, 256) and len(set(picture.resize((16, 16), 0).tobytes())) > 20
    capsys.readouterr()

    assert main(["check", str(folder), *size_and_pixels, "--output", str(tmp_path / "check.json")]) == 0
    assert main([*command[:-3], "--output", str(tmp_path / "no"), "--height", "256", "--width", "256"]) == 2
    assert "vqvae must be given to make pictures of codes (from decoder.jit of nvidia/Cosmos" in capsys.readouterr().err
    assert main([*command, "--family", "liquid", *size_and_pixels]) == 2
    assert "\n" not in capsys.readouterr().err.strip()
