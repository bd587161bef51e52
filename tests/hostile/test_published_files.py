"""Files given to `vargen convert` that are damaged, of another kind, or programs: refused in one line, never run."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from hostile import Case, Harm, arguments_of, check_refused, each, write
from official_layout import fill_by_rule, golden, official_vq_shapes
from safetensors.torch import save_file
from torch import Tensor

VQGAN = "convert vqgan --checkpoint {work}/vqgan.ckpt --output {work}/out"
ANOLE = "convert anole --checkpoint {work}/anole --output {work}/out"
HEAD = "convert lantern-drafter --drafter {work}/head --output {work}/out"
HEAD_CONFIG = {
    "model_type": "chameleon", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 4, "vocab_size": 5,
    "rms_norm_eps": 1e-5,
}  # fmt: skip


def weights() -> dict[str, Tensor]:
    description, _ = golden("movq_tiny")
    return fill_by_rule(description["tokenizer_state_dict"])


def saved(content: Callable[[], object], name: str = "vqgan.ckpt") -> Callable[[Path], object]:
    return lambda work: torch.save(content(), place(work, name))


def harmful(name: str) -> Callable[[Path], object]:
    return lambda work: torch.save({"state_dict": Harm(work / "executed")}, place(work, name))


def place(work: Path, name: str) -> Path:
    (work / name).parent.mkdir(parents=True, exist_ok=True)
    return work / name


def without(*parts: str) -> Callable[[], dict[str, Tensor]]:
    return lambda: {key: value for key, value in weights().items() if not any(part in key for part in parts)}


def llamagen() -> dict[str, Tensor]:
    return fill_by_rule(official_vq_shapes([32, 32, 64], num_codes=40, code_dim=4, latent_channels=16))


def flat(name: str) -> Callable[[], dict[str, Tensor]]:
    return lambda: weights() | {name: torch.zeros(())}


def narrow() -> dict[str, Tensor]:
    """24 channels, which are no 32 groups."""
    return {key: value[:24] if key.startswith("encoder.down") else value for key, value in weights().items()}


one_file, params = write("anole/models/7b/consolidated.pth", ""), "anole/models/7b/params.json"


def head(config: object) -> Callable[[Path], object]:
    def make(work: Path) -> None:
        write("head/config.json", json.dumps(config))(work)
        save_file({"fc.weight": torch.zeros(8, 16)}, work / "head" / "model.safetensors")

    return make


CASES = [
    Case("no file", VQGAN, "does not exist"),
    Case("a program in a VQGAN's place", VQGAN, "must hold weights only", harmful("vqgan.ckpt")),
    Case("an empty file", VQGAN, "truncated or not a .pt file", write("vqgan.ckpt", "")),
    Case("a page", VQGAN, "truncated or not a .pt file", write("vqgan.ckpt", "<html>" * 99)),
    Case("a folder of nothing", VQGAN, "holds no .safetensors file", lambda work: (work / "vqgan.ckpt").mkdir()),
    Case("a list", VQGAN, "holds no weights by name", saved(lambda: [1])),
    Case("names that are numbers", VQGAN, "holds no 'quantize.embedding.weight'", saved(lambda: {1: torch.ones(1)})),
    Case("a container of nothing", VQGAN, "'quantize.embedding.weight'", saved(lambda: {"state_dict": {}})),
    Case("a language model", VQGAN, "'quantize.embedding.weight'", saved(lambda: {"lm_head.weight": torch.ones(2, 2)})),
    Case("no encoder", VQGAN, "holds no levels of an encoder", saved(without("encoder."))),
    Case("no decoder", VQGAN, "lacks", saved(without("decoder."))),
    Case("half a level", VQGAN, "lacks", saved(without("down.1.block"))),
    Case("the norms of another kind", VQGAN, "lacks", saved(without("conv_y", "conv_b"))),
    Case("a codebook without length", VQGAN, "quantize.embedding.weight", saved(flat("quantize.embedding.weight"))),
    Case("a convolution without size", VQGAN, "encoder.conv_out.weight", saved(flat("encoder.conv_out.weight"))),
    Case("a codebook of nothing", VQGAN, "holds quantize.embedding.weight of a VQGAN without numbers", saved(
        lambda: weights() | {"quantize.embedding.weight": torch.zeros(0, 4)}
    )),
    Case("widths without groups", VQGAN, "vqgan.ckpt cannot be read (num_channels", saved(narrow)),
    Case("a LlamaGen's tokenizer", VQGAN, "such as quantize.codebook_used", saved(llamagen)),
    Case("no folder", ANOLE, "is not a folder"),
    Case("a folder without a checkpoint", ANOLE, "holds 0", lambda work: (work / "anole").mkdir()),
    Case("a checkpoint alone", ANOLE, "params.json is missing", one_file),
    Case("a program beside Anole", ANOLE, "must hold weights only", lambda work: (
        one_file(work),
        write(params, '{"dim": 8, "n_layers": 1, "n_heads": 2}')(work),
        harmful("anole/tokenizer/vqgan.ckpt")(work),
    )),
    Case("sizes in words", ANOLE, "params.json: dim must be an integer", lambda work: (
        one_file(work), write(params, '{"dim": "wide"}')(work),
    )),
    Case("sizes in a list", ANOLE, "params.json must hold a JSON object", lambda work: (
        one_file(work), write(params, "[]")(work),
    )),
    Case("a model of words", ANOLE, "params.json", lambda work: (
        one_file(work), write(params, '{"model": "large"}')(work),
    )),
    Case("a head for Chameleons without weights", HEAD, "lacks", head(HEAD_CONFIG)),
    Case("heads that do not divide", HEAD, "num_attention_heads", head(HEAD_CONFIG | {"num_attention_heads": 3})),
    Case("no heads", HEAD, "num_attention_heads", head(HEAD_CONFIG | {"num_attention_heads": 0})),
    Case("heads in words", HEAD, "num_attention_heads", head(HEAD_CONFIG | {"num_attention_heads": "two"})),
    Case("a width in words", HEAD, "hidden_size", head(HEAD_CONFIG | {"hidden_size": [8]})),
    Case("no vocabulary", HEAD, "vocab_size must be an integer", head({**HEAD_CONFIG, "vocab_size": None})),
    Case("a rotary base in words", HEAD, "rope_theta must be a number", head({**HEAD_CONFIG, "rope_theta": "x"})),
    Case("an epsilon in words", HEAD, "rms_norm_eps must be a number", head({**HEAD_CONFIG, "rms_norm_eps": "x"})),
]  # fmt: skip


@each(CASES)
def test_it_is_refused(case, tmp_path, capsys):
    if case.damage is not None:
        case.damage(tmp_path)
    check_refused(arguments_of(case.command, {"work": tmp_path}), case.expected, capsys, tmp_path)
    assert not (tmp_path / "executed").exists()
