"""Reports of strangers that belong to the tests of no single place: models in other forms, numbers of other kinds,
files that say too much of themselves, captioned pictures."""

import copy
import gc
import itertools
import json
import subprocess
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import language_models
import numpy as np
import pytest
import torch
from hostile import check_refused, shard
from PIL import Image
from refusals import raised, refused
from tiny_pipelines import build_tiny_pipeline
from torch.nn.utils.parametrizations import weight_norm

import specdecode
from vargen.base.errors import UserError
from vargen.base.prompts import read_prompts
from vargen.checkpoints import model_folder
from vargen.models.known_pictures import Edit, known_pictures
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
from vargen.models.token_images.reference_pictures import reference_codes
from vargen.training.captioned import captioned_pictures

ROOT = Path(__file__).parents[2]
IDS, MASK = language_models.ragged_prompts()
WAYS: tuple[dict[str, Any], ...] = ({"method": "ar"}, {}, {"method": "jacobi"})


def said(model: Any, **given: Any) -> Any:
    return specdecode.generate(model, IDS, attention_mask=MASK, max_new_tokens=8, **given).sequences


def plain(model: Any) -> Any:
    return model.generate(IDS, attention_mask=MASK, max_new_tokens=8, do_sample=False, pad_token_id=0)


# ---------------------------------------------------------------------------------------------------------------------
# Text models in other forms


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_layers_that_torch_quantizes_while_they_run(own_kernels, dtype):
    """Their `weight` is a method. In qint8 scales depend on what is in a pass, so that plain decoding alone agrees."""
    by_pass = dtype == torch.qint8
    model = language_models.make("llama", dtype=torch.float32)
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, dtype=dtype)
    assert torch.equal(said(quantized, method="ar"), plain(quantized))
    for way in ({}, {"method": "jacobi"}):
        with pytest.warns(UserWarning, match="quantize_dynamic") if by_pass else nullcontext():
            found = said(quantized, **way)
        assert by_pass or torch.equal(found, plain(quantized))
    assert torch.equal(said(model, draft_model=quantized), plain(model))


LATER: dict[str, Callable[[Any], Any]] = {
    "a normed head": lambda model: torch.nn.init.ones_(weight_norm(model.lm_head).parametrizations.weight.original0),
    "a head with a bias": lambda model: setattr(model, "lm_head", torch.nn.Linear(32, language_models.VOCAB_SIZE)),
    "resized": lambda model: torch.nn.init.normal_(model.resize_token_embeddings(61).weight),
    "tied": lambda model: setattr(model.lm_head, "weight", model.model.embed_tokens.weight),
    "added to": lambda model: [each.detach().add_(0.05) for each in model.parameters()],
    "loaded anew": lambda model: model.load_state_dict(language_models.make("llama", 1).state_dict()),
    "another tensor": lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.data.flip(0)),
    "by numpy": lambda model: model.lm_head.weight.detach().numpy().__imul__(-1),
    "a view": lambda model: model.model.embed_tokens.weight.detach()[3:30].mul_(-1),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", LATER)
def test_what_becomes_of_a_model_between_two_calls_is_obeyed(own_kernels, change):
    model = language_models.make("llama", dtype=torch.float32)
    before, _ = said(model), torch.manual_seed(0)
    LATER[change](model)
    wanted = plain(model)
    assert not torch.equal(wanted, before)
    for way in (*WAYS, {"draft_model": language_models.make("llama", 3, torch.float32, vocab_size=61)}):
        assert torch.equal(said(model, **way), wanted), way


def gradients(model: Any) -> list[Any]:
    model(IDS, attention_mask=MASK, labels=IDS).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def test_threads_share_a_model_that_an_interrupt_leaves_as_it_was(own_kernels, monkeypatch):
    model, stopped = language_models.make("llama", dtype=torch.float32), language_models.Puts()
    wanted, kinds = plain(model), [type(each) for each in model.modules()]
    monkeypatch.setattr(stopped, "put", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        said(model, streamer=stopped)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(call, model) for call in (said, plain) * 3]
        assert all(torch.equal(each.result(), wanted) for each in asked)
    assert [type(each) for each in model.modules()] == kinds
    torch.testing.assert_close(gradients(model), gradients(language_models.make("llama", dtype=torch.float32)))


def test_a_wrapped_adapter_is_named_with_what_helps():
    peft = pytest.importorskip("peft", reason="adapters need the extra lora")
    model = language_models.make("llama", dtype=torch.float32)
    wrapped = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    for given in ({"model": wrapped}, {"model": model, "draft_model": wrapped}):
        with pytest.raises(ValueError, match=r"give its get_base_model\(\)"):
            specdecode.generate(**{"input_ids": IDS, "max_new_tokens": 2, **given})
    inner = wrapped.get_base_model()
    assert all(torch.equal(said(inner, **way), plain(inner)) for way in WAYS)


@pytest.mark.parametrize("ids", [IDS.to_sparse(), torch.nested.nested_tensor([IDS[0]]), IDS.int(), IDS.float(), [[1]]])
@pytest.mark.filterwarnings("ignore")
def test_ids_that_are_no_plain_tensor(ids):
    raised(ValueError, "input_ids must be", specdecode.generate, language_models.make("llama"), ids, max_new_tokens=2)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_form_of_ids_and_masks_is_the_same_text(way):
    model = language_models.make("llama", dtype=torch.float32)
    forms = (lambda one: one.T.contiguous().T, lambda one: one.repeat_interleave(2, 1)[:, ::2])
    kinds = (torch.bool, torch.int32, torch.uint8, torch.float32)
    for ids, mask in (*((form(IDS), form(MASK)) for form in forms), *((IDS, MASK.to(kind)) for kind in kinds)):
        found = specdecode.generate(model, ids, attention_mask=mask, max_new_tokens=8, **way).sequences
        assert torch.equal(found, plain(model))
    last = IDS[:1, -1:].expand(3, 1)  # a prompt of one token, whose rows lie in one place
    wanted = model.generate(last, max_new_tokens=8, do_sample=False)
    assert torch.equal(specdecode.generate(model, last, max_new_tokens=8, **way).sequences, wanted)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_padding_that_no_mask_tells_is_warned_of(way):
    """transformers guesses the mask from the pad token. Here the token is text, unless it begins or ends every text."""
    model = language_models.make("llama", dtype=torch.float32)
    with pytest.warns(UserWarning, match="start with the pad token.*attention_mask"):
        found = specdecode.generate(model, IDS, max_new_tokens=8, **way).sequences
    told = model.generate(IDS, attention_mask=torch.ones_like(MASK), max_new_tokens=8, do_sample=False)
    guessed = model.generate(IDS, max_new_tokens=8, do_sample=False)
    assert torch.equal(found, told) and torch.equal(guessed, plain(model)) and not torch.equal(told, guessed)
    replaced = model.generate(IDS, max_new_tokens=8, custom_generate=specdecode.custom_generate, **way)
    assert torch.equal(replaced, guessed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said(model, **way)
        specdecode.generate(model, IDS[MASK.all(1)], max_new_tokens=2, **way)
        specdecode.generate(model, IDS, max_new_tokens=2, eos_token_id=language_models.PAD, **way)
        model.generation_config.bos_token_id = language_models.PAD
        specdecode.generate(model, IDS, max_new_tokens=2, **way)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("failing", ["logits_processor", "stopping_criteria", "model"])
def test_who_reads_a_streamer_has_its_end_though_decoding_fails(failing, way, monkeypatch):
    """In another thread, as transformers' TextIteratorStreamer is read, which else waits for ever."""
    model, streamer = language_models.make("llama", dtype=torch.float32), language_models.Puts()

    def fails(*given: Any, **named: Any) -> Any:
        if len(streamer.given) > 1 or failing == "model":
            raise RuntimeError("the processor is broken")
        return given[1] if failing == "logits_processor" else torch.zeros(3, dtype=torch.bool)

    given: dict[str, Any] = {} if failing == "model" else {failing: [fails]}
    if failing == "model":
        monkeypatch.setattr(model.lm_head, "forward", fails)
    raised(RuntimeError, "the processor is broken", said, model, streamer=streamer, **given, **way)
    assert streamer.ended == 1 and streamer.given[0] == IDS.tolist()


@pytest.mark.parametrize("name", ["repetition_penalty", "encoder_repetition_penalty"])
@pytest.mark.parametrize("penalty", [0.0, -1.0, 2, 2**31, "a"])
def test_a_penalty_that_is_none_is_named(name, penalty):
    raised(ValueError, f"^{name} must be a", said, language_models.make("llama"), **{name: penalty})


@pytest.mark.parametrize("seed", [7, 2**32 + 7, 2**62 + 7, 2**63 - 1])
def test_a_seed_counts_with_all_its_bits(seed):
    pipeline = build_tiny_pipeline()

    def drawn(number: int) -> list[int]:
        generator = torch.Generator().manual_seed(number)
        return pipeline("a cube", generator=generator, output_type="latent").tokens[0].tolist()

    assert drawn(seed) == drawn(seed) and (drawn(seed) == drawn(seed % 2**32)) is (seed == 7)


EXTREMES: tuple[dict[str, Any], ...] = (
    *({"guidance_scale": scale} for scale in (0.0, 0.5, 1.0, None)),
    *({"top_k": 10**6}, {"top_p": 1e-9}, {"temperature": 0.01}, {"negative_prompt": "a cube"}),
)


@pytest.mark.parametrize("given", EXTREMES, ids=str)
def test_settings_at_their_ends_draw_alike_and_answers_are_the_users(given):
    pipeline, drawn = build_tiny_pipeline(), []
    for asked in ({"method": "ar", **given}, {"method": "jacobi", **given}, {**given}, {}):
        generator = (torch.Generator().manual_seed(7),)
        answer = pipeline("a cube", generator=generator, output_type="latent", **asked).tokens
        drawn.append(answer.tolist())
        answer.zero_()
    assert drawn[0] == drawn[1] == drawn[2]
    assert (drawn[3] == drawn[0]) == (given in ({"guidance_scale": None}, {"top_k": 10**6}))


def test_parts_of_other_sizes_may_take_the_places_of_a_pipelines_own():
    """The cache, the kernels and the decoder follow: what is drawn is what the other pipeline draws."""
    pipeline, other = build_tiny_pipeline(), build_tiny_pipeline(1, dim=24, num_layers=1, vocab_size=24)

    def drawn(one: Any) -> Any:
        return one(["a cube", "a cone"], generator=[torch.Generator().manual_seed(7)] * 2, output_type="np").images

    before = drawn(pipeline)
    for name in ("transformer", "vqvae", "text_encoder"):
        setattr(pipeline, name, getattr(other, name))
    assert np.array_equal(drawn(pipeline), drawn(other)) and not np.array_equal(drawn(other), before)


def test_nothing_is_left_of_what_is_over():
    """Calls, streams, one left open, one whose callback fails, texts, and models that nobody has any more."""
    pipeline, words, gone = build_tiny_pipeline(), language_models.make("llama"), list[Any]()

    def work(number: int) -> int:
        made = build_tiny_pipeline(number)
        gone.append(weakref.ref(made.transformer))
        next(iter(pipeline.stream([f"a cube {number}"] * 3, batch_size=2)))
        made("a cube"), said(words), [*pipeline.stream(["a cone"])]
        with pytest.raises(ZeroDivisionError):
            pipeline("a cube", callback_on_step_end=lambda *given: 1 / 0)
        del made
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    left = [work(number) for number in range(5)]
    assert any(one >= other for one, other in itertools.pairwise(left[2:])), f"more each time: {left}"
    assert not any(each() for each in gone)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_numbers_of_numpy_are_numbers(kind):
    pipeline = build_tiny_pipeline()

    def drawn(**given: Any) -> Any:
        seeds = [torch.Generator().manual_seed(seed) for seed in (1, 2)]
        return pipeline("a cube", generator=seeds, output_type="latent", **given).tokens

    numpy = drawn(guidance_scale=kind(3), num_images_per_prompt=np.int64(2), top_k=np.int32(5))
    assert torch.equal(numpy, drawn(guidance_scale=3.0, num_images_per_prompt=2, top_k=5))


# ---------------------------------------------------------------------------------------------------------------------
# Files that say too much of themselves


def test_weights_that_memory_does_not_hold_are_named(tiny_model_folder, monkeypatch, tmp_path, capsys):
    """As a sparse file of 40 GB under `ulimit -v`."""

    def full(*given: Any, **named: Any) -> Any:
        raise MemoryError("Cannot allocate memory (os error 12)")

    monkeypatch.setattr(model_folder, "safe_open", full)
    command = ["generate", "a", "--model", str(tiny_model_folder), "--output", str(tmp_path / "out"), "--quiet"]
    check_refused(command, "safetensors is larger than memory (Cannot allocate memory", capsys, tmp_path)


def test_a_column_of_categories_holds_prompts(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra data")
    from pyarrow import parquet

    table = pyarrow.table({"caption": pyarrow.array(["a cube", "a cone"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_prompts(str(tmp_path / "a.parquet")) == ["a cube", "a cone"]


SHARDS: dict[str, list[str]] = {
    "a dot in one": ["0001.txt", "take 2.0.txt", "0003.txt"],
    "a dot in all": ["v1.5_0001.txt", "v1.5_0002.txt"],
    "none of one": ["1.txt", "2.jpg", "3.txt"],
    "none of the first": ["1.jpg", "2.txt", "3.txt"],
    "none of the first six": [*(f"{number}.jpg" for number in range(6)), "9.txt"],
    "another spelling": ["1.TXT", "2.txt"],
}


@pytest.mark.parametrize("names", SHARDS)
def test_no_sample_of_a_shard_is_left_out_without_a_word(names, tmp_path):
    pytest.importorskip("datasets", reason="shards need the extra data")
    source = str(shard(tmp_path / "a.tar", {name: f"a cube {name}".encode() for name in SHARDS[names]}))
    try:
        assert len(read_prompts(source)) == len(SHARDS[names])
    except UserError as error:
        assert "a.tar" in str(error) and "\n" not in str(error)


def test_texts_of_a_folder_that_are_left_out_are_told(tmp_path):
    (tmp_path / "below").mkdir()
    for name in ("1.txt", "2.TXT", "x.json", "below/3.txt", ".hidden.txt", "a.png"):
        (tmp_path / name).write_text(f"a cube {name}")
    with pytest.warns(UserWarning, match=r"2 are left out: below/3\.txt, x\.json; name"):
        assert read_prompts(str(tmp_path)) == ["a cube 1.txt", "a cube 2.TXT"]
    (tmp_path / "below" / "3.txt").unlink()
    (tmp_path / "x.json").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_prompts(str(tmp_path))


# ---------------------------------------------------------------------------------------------------------------------
# Captioned pictures: each caption has its own picture, of its folder, as it looks


RED, BLUE = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue"))


def row(**values: Any) -> bytes:
    return json.dumps({"text": "red", **values}).encode()


def made(folder: Path, files: dict[str, Any]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content.save(path) if isinstance(content, Image.Image) else path.write_bytes(content)
    return str(folder)


def learned(source: str) -> list[tuple[str, Any]]:
    return [(each.caption, each.square().getpixel((0, 0))) for each in captioned_pictures(source)]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"1.txt": b"red", "1.png": RED, "1.jpg": BLUE}, "1.jpg and 1.png both have the name of this caption"),
        ({"1.txt": b"red", "1.2.png": BLUE}, "there is no picture of this caption"),
        ({"metadata.jsonl": row(file_name="../1.png"), "../1.png": RED}, "is not the name of something in it"),
        ({"metadata.jsonl": row(file_name="/etc/passwd")}, "is not the name of something in it"),
        ({"metadata.jsonl": row(file_name="a\0.png")}, "is not the name of something in it"),
        ({"metadata.jsonl": row(file_name=7)}, "is not the name of something in it"),
        ({"metadata.jsonl": row(file_name=None)}, "there is no picture of this caption"),
        ({"metadata.jsonl": row(image={"bytes": "x"})}, "there is no picture of this caption"),
        *(({"metadata.jsonl": row(image=each)}, "not the name of something") for each in (7, [1], {"path": {"a": 1}})),
        ({"metadata.jsonl": row()}, "there is no picture of this caption"),
        ({"metadata.jsonl": row(file_name="s"), "s/1.png": RED}, "there is no picture of this caption"),
        ({"metadata.jsonl": row(file_name="1.png", File_Name="2.png"), "1.png": RED}, "two keys differ by their case"),
        ({"metadata.jsonl": row(file_name="1.png"), "1.png": b"%!PS-Adobe-3.0 EPSF-3.0\n"}, "cannot be read as PNG"),
    ],
)  # fmt: skip
def test_a_caption_without_a_picture_of_its_own(files, told, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail(f"{given} was started"))
    source = made(tmp_path / "f", files)
    with pytest.raises(UserError, match="pictures") as refused:
        learned(source)
    assert told in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["1.png", "../secret.png", "/etc/passwd", None])
def test_a_data_set_that_names_its_pictures(name, tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs the extra data")
    from pyarrow import parquet

    made(tmp_path / "f", {"1.png": RED, "../secret.png": BLUE})
    table = pyarrow.table({"image": [{"bytes": None, "path": name}], "text": ["red"]})
    parquet.write_table(table, tmp_path / "f" / "a.parquet")
    if name == "1.png":
        assert learned(str(tmp_path / "f" / "a.parquet")) == [("red", (255, 0, 0))]
    else:
        refused(r"is not the name of|there is no picture of this caption", learned, str(tmp_path / "f" / "a.parquet"))


def test_pictures_are_learned_as_they_look_and_those_without_a_caption_are_told(tmp_path):
    levels = Image.fromarray(np.full((4, 4), 128 * 257, np.uint16))
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    source = made(
        tmp_path / "f", {"1.png": RED, "1.2.png": BLUE, "2.png": levels, "3.png": clear, "s/4.png": RED, "5.webp": RED}
    )
    for name, text in (("1", "red"), ("1.2", "blue"), ("2", "grey"), ("3", "nothing")):
        (tmp_path / "f" / f"{name}.txt").write_text(text)
    with pytest.warns(UserWarning, match=r"2 are left out: 5\.webp, s/4\.png; give each a caption"):
        found = dict(learned(source))
    assert found == {"red": (255, 0, 0), "blue": (0, 0, 255), "grey": (128,) * 3, "nothing": (255,) * 3}
    before = [each.described for each in captioned_pictures(source)]
    content = bytearray((tmp_path / "f" / "1.png").read_bytes())
    content[-20] ^= 1  # as many bytes
    (tmp_path / "f" / "1.png").write_bytes(content)
    after = [each.described for each in captioned_pictures(source)]
    assert [one == other for one, other in zip(before, after, strict=True)].count(False) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Pictures to start from: numbers of a scale that is not theirs


LEVELS = np.random.default_rng(0).random((16, 16, 3)).astype(np.float32)
FORMS: dict[str, Callable[[], Any]] = {
    "an image": lambda: Image.fromarray((LEVELS * 255).round().astype(np.uint8)),
    "bytes": lambda: (LEVELS * 255).round().astype(np.uint8),
    "levels": lambda: LEVELS,
    "half levels": lambda: LEVELS.astype(np.float16),
    "double levels": lambda: LEVELS.astype(">f8"),
    "turned": lambda: LEVELS[::-1][::-1],
    "a tensor": lambda: torch.from_numpy(LEVELS).permute(2, 0, 1),
    "a tensor of bytes": lambda: torch.from_numpy((LEVELS * 255).round()).permute(2, 0, 1).byte(),
}
OTHER_SCALES: dict[str, Any] = {
    "0 to 255": LEVELS * 255, "whole numbers": (LEVELS * 255).astype(np.int64),
    "16 bits": (LEVELS * 65535).astype(np.uint16),
    "a tensor to 255": torch.from_numpy(LEVELS * 255).permute(2, 0, 1), "complex": LEVELS.astype(complex),
    "objects": LEVELS.astype(object), "words": LEVELS.astype(str), "not finite": LEVELS * np.float32("nan"),
}  # fmt: skip


def pixels_of(image: Any, **about: Any) -> Any:
    kept: list[Any] = []

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        kept.append(pixels)
        return torch.zeros(1, 2, 2, dtype=torch.int64)

    known_pictures(Edit(image, **{"start_rows": 1, **about}), [(2, 2)], 8, encode, "a family")
    return kept[0]


def referred(image: Any) -> Any:
    kept: list[Any] = []
    family, encode = TOKEN_IMAGE_FAMILIES["emu3_5"], lambda pixels: kept.append(pixels) or torch.zeros(1, 2, 2)
    reference_codes(image, ["a"], family.references, family.sizes, 1024, encode, "a family")
    return kept[0]


READS = {"image": pixels_of, "reference_images": referred}


@pytest.mark.parametrize(("form", "name"), itertools.product(FORMS, READS))
def test_every_form_of_a_picture_is_the_same_picture(form, name):
    torch.testing.assert_close(READS[name](FORMS[form]()), READS[name](LEVELS), atol=0.01, rtol=0)


def test_a_picture_of_16_bits_is_not_white():
    grey = pixels_of(Image.fromarray((LEVELS[..., 0] * 65535).astype(np.uint16)))
    torch.testing.assert_close(grey[0, 0], torch.from_numpy(LEVELS[..., 0] * 2 - 1), atol=0.01, rtol=0)


@pytest.mark.parametrize("scale", OTHER_SCALES)
@pytest.mark.parametrize("name", [*READS, "mask_image"])
def test_numbers_that_are_no_levels_are_refused(scale, name):
    other = OTHER_SCALES[scale]
    with pytest.raises(UserError, match=rf"^{name} must (be uint8, or of numbers from 0 to 1|hold finite)"):
        READS[name](other) if name in READS else pixels_of(LEVELS, mask_image=other, start_rows=None)
