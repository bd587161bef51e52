"""Model folders that are damaged, cut down, mixed up or not what they say: refused in one line that names the file."""

import importlib.util
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile import (
    Case,
    Damage,
    Harm,
    arguments_of,
    called,
    change,
    change_json,
    check_refused,
    cut,
    each,
    source_calls,
    write,
)
from PIL import Image
from refusals import refused

from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import check_stored

GENERATE = "generate 'a red cube' --model {work}/model --output {work}/out --quiet"
TRANSFORMER, WEIGHTS = "transformer/config.json", "transformer/diffusion_pytorch_model.safetensors"
T5 = "text_encoder/config.json"
TENSOR = '{"dtype":"F32","shape":[16],"data_offsets":[0,64]}'
DEEP = "[" * 100_000
PARTS = {TRANSFORMER: TRANSFORMER, WEIGHTS: WEIGHTS, "tokenizer/tokenizer.json": "model cannot be read"}


def remove(name: str) -> Damage:
    return lambda model: os.remove(model / name)


def header(text: str) -> Damage:
    """A safetensors file of this header and a few bytes."""
    data = text.encode()
    return write(WEIGHTS, struct.pack("<Q", len(data)) + data + b"\0" * 64)


def instead(name: str, make: Damage) -> Damage:
    def damage(model: Path) -> None:
        (model / name).unlink()
        make(model / name)

    return damage


def spoil(name: str, value: float) -> Damage:
    def damage(model: Path) -> None:
        from safetensors.torch import load_file, save_file

        weights = load_file(model / name)
        weights[sorted(weights)[-1]].view(-1)[0] = value
        save_file(weights, model / name, metadata={"format": "pt"})

    return damage


def other_weights(model: Path) -> None:
    shutil.copyfile(model / "vqvae/diffusion_pytorch_model.safetensors", model / WEIGHTS)


def shards(name: object) -> Damage:
    """An index of shards that names one."""
    return write(f"{WEIGHTS}.index.json", json.dumps({"weight_map": {"a": name}}))


def only(config: str) -> Damage:
    """A folder in the layout of transformers, of which only config.json is new."""

    def damage(model: Path) -> None:
        (model / "model_index.json").unlink()
        (model / "config.json").write_text(config)

    return damage


def more_words(model: Path) -> None:
    path = model / "tokenizer" / "tokenizer.json"
    vocab = json.loads(path.read_text())["model"]["vocab"]
    change_json(path, model={"type": "WordLevel", "vocab": {**vocab, "zebra": len(vocab)}, "unk_token": "<unk>"})


def of(name: str, damage: Damage, expected: str) -> Case:
    return Case(name, GENERATE, expected, lambda work: damage(work / "model"))


CASES = [
    of("no index", remove("model_index.json"), "has no model_index.json"),
    of("an empty index", write("model_index.json", ""), "model_index.json cannot be read"),
    of("an index that is no JSON", write("model_index.json", "{"), "model_index.json cannot be read"),
    of("an index of a list", write("model_index.json", "[]"), "model_index.json must hold a JSON object"),
    of("an index of bytes", write("model_index.json", b"\xff\xfe\x00"), "model_index.json cannot be read"),
    of("a deep index", write("model_index.json", DEEP), "model_index.json cannot be read (it is nested too deeply)"),
    of("an index that is a folder", instead("model_index.json", Path.mkdir), "model"),
    of("an index of another pipeline", change("model_index.json", _class_name="FluxPipeline"), "'FluxPipeline'"),
    of("an index without a class", change("model_index.json", _class_name=None), "cannot be drawn with"),
    of("a class that is a number", change("model_index.json", _class_name=7), "cannot be drawn with"),
    of("a class that is a list", change("model_index.json", _class_name=[1]), "cannot be drawn with"),
    of("a component that is a string", change("model_index.json", vqvae="diffusers"), "and a class for 'vqvae'"),
    of("a component that is missing", change("model_index.json", vqvae=None), "and a class for 'vqvae'"),
    of("a component of three words", change("model_index.json", vqvae=["a", "b", "c"]), "a library and a class for"),
    of("a component of numbers", change("model_index.json", vqvae=[1, 2]), "a library and a class for 'vqvae'"),
    of("a module of Python", change("model_index.json", extra=["antigravity", "X"]), "is missing"),
    of("a module of Python in place", change("model_index.json", vqvae=["os", "PathLike"]), "os.PathLike, which is no"),
    of("a class that there is not", change("model_index.json", vqvae=["diffusers", "Nothing"]), "diffusers.Nothing"),
    of("a pipeline as a component", change("model_index.json", vqvae=["diffusers", "DiffusionPipeline"]), "is not a"),
    of("a component of another kind", change("model_index.json", vqvae=["transformers", "T5EncoderModel"]), "vqvae"),
    of("a name that leads out", change("model_index.json", **{"../vqvae": ["diffusers", "VQModel"]}), "'../vqvae'"),
    of("another image size", change("model_index.json", image_size=99), "model_index.json says 99"),
    of("an image size in words", change("model_index.json", image_size="large"), "model_index.json says large"),
    of("guidance in words", change("model_index.json", default_guidance_scale="much"), "guidance_scale"),
    of("guidance beyond bounds", change("model_index.json", default_guidance_scale=1e300), "guidance_scale must be"),
    of("temperature in words", change("model_index.json", default_temperature="warm"), "temperature"),
    of("top_k in words", change("model_index.json", default_top_k="many"), "top_k"),
    of("settings of no method", change("model_index.json", methods={"nothing": {}}), "'nothing' is no method"),
    of("settings that are none", change("model_index.json", methods={"eagle": {"dept": 1}}), "no option 'dept'"),
    of("settings that are a list", change("model_index.json", methods=[1]), "methods"),
    of("settings of a string", change("model_index.json", methods={"eagle": "x"}), "must hold settings by name"),
    of("no configuration", remove(TRANSFORMER), "transformer/config.json is missing"),
    of("a garbled configuration", write(TRANSFORMER, b"\x80\x81{"), "config.json cannot be read"),
    of("a configuration of numbers", write(TRANSFORMER, "3"), "must hold a JSON object"),
    of("a deep configuration", write(TRANSFORMER, '{"a":' * 99_999), "config.json cannot be read"),
    of("an epsilon below zero", change(TRANSFORMER, norm_eps=-1), "norm_eps must be at least 0"),
    of("no rotary base", change(TRANSFORMER, rope_base=0), "rope_base must be at least 1"),
    of("an epsilon of nothing", change(T5, layer_norm_epsilon=float("nan")), "layer_norm_epsilon must be a number"),
    of("an epsilon in a list", change(TRANSFORMER, norm_eps=[]), "norm_eps must be a number, not []"),
    of("sizes that are none", change("vqvae/config.json", block_out_channels=["x"]), "block_out_channels must be"),
    of("a number of groups below 1", change("vqvae/config.json", norm_num_groups=-1), "norm_num_groups must be at"),
    of(
        "distances of a text encoder that are none",
        change("text_encoder/config.json", relative_attention_max_distance=0),
        "relative_attention_max_distance must be at least 4",
    ),
    of(
        "a length of texts in words",
        change("tokenizer/tokenizer_config.json", model_max_length="long"),
        "model cannot be read",
    ),
    of("a width in words", change(TRANSFORMER, dim="wide"), "transformer/config.json does not describe"),
    of("a width of zero", change(TRANSFORMER, dim=0), "transformer"),
    of("a width below zero", change(TRANSFORMER, dim=-16), "transformer"),
    of("another width", change(TRANSFORMER, dim=32), "weights of transformer have another size"),
    of("heads that do not divide", change(TRANSFORMER, num_attention_heads=3), "config.json does not describe"),
    of("another number of layers", change(TRANSFORMER, num_layers=5), "weights of transformer lack"),
    of("fewer layers", change(TRANSFORMER, num_layers=1), "tensors too many"),
    of("a billion layers", change(TRANSFORMER, num_layers=10**9), "transformer"),
    of("another grid", change(TRANSFORMER, grid_size=9), "another image grid"),
    of("a grid in words", change(TRANSFORMER, grid_size="four"), "grid_size"),
    of("a grid below zero", change(TRANSFORMER, grid_size=-4), "grid_size"),
    of("another vocabulary", change("vqvae/config.json", num_vq_embeddings=99), "weights of vqvae have another size"),
    of("no lookup", change("vqvae/config.json", lookup_from_codebook=False), "lookup_from_codebook"),
    of("another decoder", change("vqvae/config.json", block_out_channels=[4, 8, 16]), "vqvae"),
    of("no weights", remove(WEIGHTS), "diffusion_pytorch_model.safetensors is missing"),
    of("empty weights", write(WEIGHTS, ""), "truncated or no safetensors file"),
    of("half of the weights", cut(WEIGHTS, 0.5), "truncated or no safetensors file"),
    of("weights but for a byte", cut(WEIGHTS, 0.9999), "truncated or no safetensors file"),
    of("weights that are text", write(WEIGHTS, "weights" * 100), "truncated or no safetensors file"),
    of("weights with a huge header", write(WEIGHTS, b"\xff" * 64), "truncated or no safetensors file"),
    of("a header without offsets", header('{"a":{"dtype":"F32","shape":[2]}}'), "truncated or no safetensors file"),
    of("a header of numbers", header('{"a":7}'), "truncated or no safetensors file"),
    of("a header of a list", header("[1,2]"), "truncated or no safetensors file"),
    of("offsets beyond 63 bits", header(f'{{"a":{TENSOR.replace("64]", f"{2**63}]")}}}'), "safetensors"),
    of("a header that is deep", header('{"a":' * 9_999), "truncated or no safetensors file"),
    of("overlapping tensors", header(f'{{"a":{TENSOR},"b":{TENSOR}}}'), "safetensors"),
    of("a tensor twice", header(f'{{"a":{TENSOR},"a":{TENSOR}}}'), "lack 18 tensors"),
    of("60 MB on itself", header(f'{{"__metadata__":{{"a":"{"x" * 60_000_000}"}},"a":{TENSOR}}}'), "lack 18 tensors"),
    of("a pipe as the index", instead("model_index.json", os.mkfifo), "has no model_index.json"),
    *(of(f"a pipe as {each}", instead(each, os.mkfifo), "is a device or a pipe") for each in PARTS),
    *(of(f"a loop as {each}", instead(each, lambda path: path.symlink_to(path)), told) for each, told in PARTS.items()),
    of("weights of another component", other_weights, "weights of"),
    of("weights that are a folder", instead(WEIGHTS, Path.mkdir), "safetensors"),
    of("weights of nothing", spoil(WEIGHTS, float("nan")), "are not finite in float32"),
    of("an infinite text encoder", spoil("text_encoder/model.safetensors", float("inf")), "are not finite in float32"),
    of("a decoder of nothing", spoil("vqvae/diffusion_pytorch_model.safetensors", float("nan")), "are not finite"),
    of("a shard that leads out", shards("../../x.safetensors"), "must name files beside it"),
    of("a shard that is missing", shards("x.safetensors"), "x.safetensors is missing"),
    of("a shard that is a device", shards("/dev/zero"), "must name files beside it"),
    of("a shard of 5,000 letters", shards("x" * 5000), "is not the name of something in it"),
    of("a shard without a name", shards(""), "is not the name of something in it"),
    of("a shard of a zero character", shards("a\0b"), "is not the name of something in it"),
    of("an index of shards of numbers", shards(7), "must name files beside it"),
    of("a garbled tokenizer", write("tokenizer/tokenizer.json", "{]"), "model cannot be read"),
    of("an empty tokenizer", write("tokenizer/tokenizer.json", ""), "model cannot be read"),
    of("a tokenizer of another shape", write("tokenizer/tokenizer.json", '{"model": 7}'), "model cannot be read"),
    of("a tokenizer that is deep", write("tokenizer/tokenizer.json", DEEP), "model cannot be read"),
    of("a garbled tokenizer_config", write("tokenizer/tokenizer_config.json", "\0"), "model cannot be read"),
    of("a tokenizer that cannot pad", write("tokenizer/tokenizer_config.json", "{}"), "a padding token"),
    of(
        "a key twice in the tokenizer's settings",
        write("tokenizer/tokenizer_config.json", '{"model_max_length": 9, "model_max_length": 8}'),
        "model_max_length is there twice",
    ),
    of("a tokenizer of more words", more_words, "text encoder knows"),
    of("a text encoder of another width", change("text_encoder/config.json", d_model=24), "text_encoder"),
    of("a text encoder of no class", change("text_encoder/config.json", d_ff="x"), "text_encoder"),
    of("a transformers folder of nothing", only('{"model_type": "gpt2"}'), "holds a 'gpt2'"),
    of("a Janus without files", only('{"model_type": "janus"}'), "model"),
    of("a Janus of words", only('{"model_type": "janus", "vision_config": "x"}'), "config.json"),
]  # fmt: skip


CAPTION = "caption {work}/frames.gif --num_frames 4 --max_new_tokens 1 "
LOADERS = {  # a shipped folder, and a command that reads one of its kind
    "scenes-128/text_encoder": "generate x --model {model} --output {work}/out",
    "scenes-128/drafter": "generate x --method eagle --method_options.drafter {of} --output {work}/out",
    "judge": "judge {work} --judge_model {of}",
    "clip": "generate x --model {model} --num_candidates 2 --ranker clip --clip {of} --output {work}/out",
    "video-llm": CAPTION + "--model {of}",
    "video-llm-draft": CAPTION + "--method sd --draft_model {of}",
    "video-llm/drafters/sparrow": CAPTION + "--method sparrow --method_options.drafter {of}",
}


def place_of_loader(shipped: str, tmp_path: Path, model: Path, *left_out: str) -> tuple[Path, list[str]]:
    """A copy of a shipped folder, and the arguments of a command that reads it."""
    of = tmp_path / "of"
    if shipped == "janus":
        of.mkdir()
        (of / "config.json").write_text('{"model_type": "janus"}')
        return of, arguments_of("generate x --model {of} --output {work}/out", {"work": tmp_path, "of": of})
    shutil.copytree(find_model().parent / shipped, of, ignore=shutil.ignore_patterns("drafters", "*.md", *left_out))
    if shipped == "scenes-128/text_encoder":
        shutil.rmtree(model / "text_encoder")
        of = of.rename(model / "text_encoder")
    (tmp_path / "result.jsonl").touch()  # a run to be judged
    frames = [Image.new("RGB", (64, 64), (30 * number, 0, 0)) for number in range(8)]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    return of, arguments_of(LOADERS[shipped], {"work": tmp_path, "model": model, "of": of})


@pytest.mark.parametrize("shipped", [*LOADERS, "janus"])
def test_pickled_weights_are_refused_by_name_wherever_weights_are_read(shipped, tmp_path, tiny_model_folder, capsys):
    """Their folder as it is shipped, but for the weights."""
    of, arguments = place_of_loader(shipped, tmp_path, tiny_model_folder, "*.safetensors")
    (of / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(tmp_path / "executed")))
    check_refused(arguments, "pytorch_model.bin holds pickled weights", capsys, tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("shipped", LOADERS)
def test_weights_that_are_integers_are_refused_wherever_weights_are_read(shipped, tmp_path, tiny_model_folder, capsys):
    import torch
    from safetensors.torch import load_file, save_file

    of, arguments = place_of_loader(shipped, tmp_path, tiny_model_folder)
    path = next(of.glob("*.safetensors"))
    name, weight = next(iter(sorted(load_file(path).items())))
    for kind in (torch.int64, torch.float8_e4m3fn):
        save_file({**load_file(path), name: weight.to(kind)}, path, metadata={"format": "pt"})
        check_refused(arguments, f"holds {name} as", capsys, tmp_path)


@pytest.mark.parametrize("shipped", LOADERS)
def test_numbers_that_spoil_every_pass_are_refused_wherever_weights_are_read(
    shipped, tmp_path, tiny_model_folder, capsys
):
    """Every epsilon and rotary base of every shipped configuration, also inside its parts."""
    of, arguments = place_of_loader(shipped, tmp_path, tiny_model_folder)
    config = json.loads((of / "config.json").read_text())

    def parts(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from parts(value)
            elif key.endswith(("eps", "epsilon", "rope_theta", "rope_base")):
                yield values, key

    for values, key in list(parts(config)):
        before = values[key]
        for wrong in (-1, float("nan")):
            values[key] = wrong
            (of / "config.json").write_text(json.dumps(config))
            refused(f"{key} must be", check_stored, of)
        if key == "layer_norm_eps" or key in config:
            check_refused(arguments, f"{key} must be", capsys, tmp_path)
        values[key] = before


@pytest.mark.parametrize("shipped", LOADERS)
def test_weights_of_a_variant_alone_are_named_wherever_weights_are_read(shipped, tmp_path, tiny_model_folder, capsys):
    of, arguments = place_of_loader(shipped, tmp_path, tiny_model_folder)
    path = next(of.glob("*.safetensors"))
    path.rename(path.with_name(path.name.replace(".", ".fp16.", 1)))
    check_refused(arguments, "holds weights of the variant 'fp16' alone; give variant='fp16' in", capsys, tmp_path)


def test_a_pipeline_saved_with_a_variant_is_loaded_with_it_alone(tmp_path):
    from tiny_pipelines import build_tiny_pipeline

    from vargen.pipelines.llamagen import LlamaGenPipeline

    pipeline = build_tiny_pipeline()
    pipeline.save_pretrained(tmp_path / "of", variant="fp16")
    pipeline.save_pretrained(tmp_path / "plain")
    assert LlamaGenPipeline.from_pretrained(tmp_path / "of", variant="fp16").transformer is not None
    for folder, variant, told in (
        ("of", None, "holds weights of the variant 'fp16' alone; give variant='fp16'"),
        ("of", "bf16", "variant: .*of holds no weights of 'bf16'; it holds 'fp16'"),
        ("plain", "fp16", "variant: .*plain holds no weights of 'fp16'; leave it out"),
    ):
        refused(told, LlamaGenPipeline.from_pretrained, tmp_path / folder, variant=variant)
    path = next((tmp_path / "of" / "transformer").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:999])
    refused(r"fp16.safetensors is truncated", LlamaGenPipeline.from_pretrained, tmp_path / "of", variant="fp16")


def test_a_model_of_transformers_saved_with_a_variant_is_loaded_with_it_alone(tmp_path):
    import janus_models

    from vargen.pipelines.janus import JanusPipeline

    janus_models.make().float().save_pretrained(tmp_path, variant="fp16")
    assert JanusPipeline.from_pretrained(tmp_path, variant="fp16").processor is None
    refused("give variant='fp16' in Python, or save the model without variant", JanusPipeline.from_pretrained, tmp_path)
    refused("holds no weights of 'bf16'; it holds 'fp16'", JanusPipeline.from_pretrained, tmp_path, variant="bf16")


@pytest.mark.parametrize("place", ["auto", "cuda:7", {"transformer": "cpu"}])
def test_a_device_map_that_no_pipeline_of_diffusers_takes(place, tiny_model_folder):
    from vargen.pipelines.llamagen import LlamaGenPipeline

    with pytest.raises(UserError, match=r"device_map of a pipeline of diffusers must be one of .*balanced"):
        LlamaGenPipeline.from_pretrained(tiny_model_folder, device_map=place)


@pytest.mark.parametrize("kind", ["int64", "int32", "bool", "uint8", "float8_e4m3fn", "float8_e5m2"])
def test_weights_of_every_kind_that_is_none(kind, tmp_path):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2).to(getattr(torch, kind))}, tmp_path / "model.safetensors")
    refused("holds a as", check_stored, tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    check_stored(tmp_path)
    save_file({"position_ids": torch.ones(2).long(), "b": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").unlink()
    check_stored(tmp_path)


CHECKED_ELSEWHERE = {
    **dict.fromkeys(("vargen/pipelines/auto.py", "vargen/pipelines/loading.py"), "by the pipeline that they choose"),
    **dict.fromkeys(("vargen/demo/models.py", "scenes/training/decoder.py"), "by the pipeline that they name"),
    **dict.fromkeys(("metrics/extractors.py", "metrics/picture_readers.py"), "by the jobs that name folders"),
    **dict.fromkeys(
        ("vargen/training/answers.py", "vargen/video/training/video_states.py"), "read back what they wrote"
    ),
    "scenes/training/code_store.py": "reads back what it wrote",
    "vargen/training/run.py": "reads back its own checkpoint",
    "vargen/models/token_images/token_image_loading.py": "reads a tokenizer",
}
"""Modules that read weights, or seem to, without a check of their own, and who checks."""


def test_weights_are_read_behind_a_check_alone():
    """So that what is no weight is refused everywhere."""
    reading = {"from_pretrained", "load_file", "safe_open", "torch.load"}
    checks = {"check_stored", "check_component_folder", "check_model_folder", "load_strictly"}
    found: dict[str, set[str]] = {}
    for path, node in source_calls("vargen", "scenes", "metrics"):
        name = called(node)
        found.setdefault(path, set()).update((name, name.rpartition(".")[2]))
    unchecked = {path for path, names in found.items() if names & reading and not names & checks}
    assert unchecked == set(CHECKED_ELSEWHERE)


def test_weights_that_only_training_conversion_and_adapters_read(tmp_path):
    import torch
    from safetensors.torch import save_file
    from tiny_pipelines import build_tiny_pipeline

    from scenes.training import coded, text_encoder, video_llm
    from vargen.models.llamagen import convert_llamagen as convert
    from vargen.training import text_drafter

    for folder in (tmp_path, tmp_path / "text_encoder"):
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "adapter_config.json"):
            (folder / name).write_text("{}")
        for name in ("model.safetensors", "adapter_model.safetensors"):
            save_file({"a": torch.ones(2).long()}, folder / name)
    readers: dict[str, Callable[[str], object]] = {
        "frozen_text_encoder": text_encoder.load_text_encoder,
        "vqvae": lambda folder: coded.load_vqvae(folder, 128, torch.device("cpu")),
        "initial_weights": lambda folder: video_llm._copy_weights(None, folder, ()),
        "model": lambda folder: text_drafter._load(Path(folder), "float32"),
        "text_encoder": lambda folder: convert.load_text_encoder(folder, {"condition_type": "text"}),
    }
    if importlib.util.find_spec("peft") is not None:
        readers["adapter"] = build_tiny_pipeline().load_lora_weights
    for argument, read in readers.items():
        refused(f"^{argument}: .* holds a as", read, str(tmp_path))


@pytest.mark.parametrize("shipped", LOADERS)
def test_pipes_and_keys_that_come_twice_are_refused_wherever_weights_are_read(
    shipped, tmp_path, tiny_model_folder, capsys
):
    of, arguments = place_of_loader(shipped, tmp_path, tiny_model_folder)
    sound = (of / "config.json").read_text().rstrip()
    (of / "config.json").write_text(sound.removesuffix("}") + ', "a": 1, "a": 1}')
    check_refused(arguments, "a is there twice", capsys, tmp_path)
    (of / "config.json").write_text(sound)
    os.mkfifo(of / "more.safetensors")
    check_refused(arguments, "more.safetensors is a device or a pipe", capsys, tmp_path)


@each(CASES)
def test_it_is_refused(case, tmp_path, tiny_model_folder, capsys):
    assert case.damage is not None
    case.damage(tmp_path)
    check_refused(arguments_of(case.command, {"work": tmp_path}), case.expected, capsys, tmp_path)
