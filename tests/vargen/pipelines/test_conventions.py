"""Conventions of diffusers that every pipeline keeps: loading, negative prompts, callbacks, absent components."""

import subprocess
from typing import Any
from unittest.mock import Mock

import diffusers
import glm_image_models
import huggingface_hub
import janus_models
import pytest
import torch
from diffusers import DiffusionPipeline
from refusals import raised, refused
from seeds import seeded
from taped_graphs import TapingCompiler
from torch import Tensor
from torch.nn import functional
from warm import FRESH, python

from specdecode.checks import LogitsError
from vargen import AutoPicturePipeline, JanusPipeline, LlamaGenPipeline
from vargen.base.errors import NotFiniteError, UserError
from vargen.pipelines.arguments import finite_logits, random_streams
from vargen.pipelines.glm_image import GlmImagePriorPipeline

PROMPT, AWAY = "a red cube left of a small blue sphere", "a green cone"


def drawn(pipeline: Any, prompt: Any = PROMPT, seeds: tuple[int, ...] = (0,), **arguments: Any) -> Tensor:
    return pipeline(prompt, generator=seeded(*seeds), output_type="latent", **arguments).tokens


@pytest.mark.parametrize("load", [AutoPicturePipeline, DiffusionPipeline])
def test_a_folder_loads_by_every_name(load, tiny_model_folder):
    pipeline = load.from_pretrained(str(tiny_model_folder))
    assert type(pipeline) is LlamaGenPipeline is diffusers.LlamaGenPipeline  # type: ignore[attr-defined]


def test_diffusers_auto_classes_load_a_folder_where_they_are_imported_first(tiny_model_folder):
    names = "AutoPipelineForText2Image", "AutoPipelineForImage2Image", "AutoPipelineForInpainting"
    script = f"""
from diffusers import {", ".join(names)}
from vargen import LlamaGenPipeline
for load in {", ".join(names)}:
    assert type(load.from_pretrained({str(tiny_model_folder)!r})) is LlamaGenPipeline
"""
    subprocess.run(python(FRESH, "-c", script), check=True)


def test_a_folder_of_transformers_loads_by_its_family(tmp_path):
    janus_models.save(tmp_path)
    pipeline = AutoPicturePipeline.from_pretrained(tmp_path, dtype=torch.float32)
    assert type(pipeline) is JanusPipeline and pipeline.dtype == torch.float32
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    refused("holds a 'bert', which cannot be drawn with", AutoPicturePipeline.from_pretrained, tmp_path)
    refused("AutoPicturePipeline makes no objects", AutoPicturePipeline)


def test_arguments_for_the_hub_reach_every_fetch(tiny_model_folder, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download := Mock(return_value=str(tiny_model_folder)))
    given: dict[str, Any] = {"revision": "v2", "token": "hf_mine", "cache_dir": "mine", "local_files_only": True}
    AutoPicturePipeline.from_pretrained("someone/model", **given)
    assert len(download.mock_calls) == 2, "of its settings, then of all its files"
    assert all(given.items() <= call.kwargs.items() for call in download.mock_calls)


def test_a_model_may_lie_in_a_subfolder(tmp_path):
    janus_models.save(tmp_path / "inner")
    pipeline = JanusPipeline.from_pretrained(tmp_path, subfolder="inner")
    assert pipeline.processor is not None
    refused(r"other/config\.json is missing; name a fo", JanusPipeline.from_pretrained, tmp_path, subfolder="other")


@pytest.mark.parametrize("given", ["bfloat16", {"default": "bfloat16"}, torch.bfloat16])
def test_a_precision_may_be_named(given, tiny_model_folder):
    for name in ("dtype", "torch_dtype"):
        pipeline: Any = AutoPicturePipeline.from_pretrained(tiny_model_folder, **{name: given})
        assert pipeline.transformer.dtype == torch.bfloat16
        assert pipeline.vqvae.dtype == (torch.bfloat16 if isinstance(given, dict) else torch.float32)


def test_wrong_arguments_send_nobody_to_download_again(tmp_path, tiny_model_folder):
    folders = {JanusPipeline: janus_models.save(tmp_path / "janus"), LlamaGenPipeline: tiny_model_folder}
    folders[GlmImagePriorPipeline] = glm_image_models.save(tmp_path / "glm")
    precision = r"^dtype must be torch.float32, torch.bfloat16, torch.float16 or the name of one, got "
    attention = "^attn_implementation must be one of sdpa, eager, which read masks of drafted tokens, got 'flash"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        *((each, {"dtype": "float7"}, f"{precision}'float7'$") for each in folders),
        *((each, {"torch_dtype": torch.int8}, rf"{precision}torch\.int8$") for each in folders),
        (LlamaGenPipeline, {"dtype": {"transformer": torch.float8_e4m3fn}}, precision),
        (LlamaGenPipeline, {"dtype": "auto"}, precision),
        (JanusPipeline, {"attn_implementation": "flash_attention_2"}, attention),
        (GlmImagePriorPipeline, {"attn_implementation": "flash_attention_2"}, attention),
        (JanusPipeline, {"foo": 1, "dtype": "auto"}, "again, or leave out foo$"),
        (LlamaGenPipeline, {"text_encoder": "x", "dtype": "float32"}, "again, or leave out text_encoder$"),
        (LlamaGenPipeline, {"quantization_config": 1}, "again, or leave out quantization_config$"),
        (GlmImagePriorPipeline, {"vae": "x"}, "again, or leave out vae$"),
    ]
    for load, arguments, message in cases:
        refused(message, load.from_pretrained, folders[load], **arguments)
    made = GlmImagePriorPipeline.from_pretrained(folders[GlmImagePriorPipeline], dtype="bfloat16")
    assert made.vision_language_encoder.dtype == torch.bfloat16


@pytest.mark.parametrize("load", [AutoPicturePipeline, LlamaGenPipeline, GlmImagePriorPipeline])
def test_no_code_of_a_folder_is_run(load, tmp_path, tiny_model_folder):
    folder = glm_image_models.save(tmp_path / "model") if load is GlmImagePriorPipeline else tiny_model_folder
    ran = tmp_path / "ran"
    (tmp_path / "pipeline.py").write_text(
        f"open({str(ran)!r}, 'w').close()\nfrom diffusers import DiffusionPipeline\nclass Own(DiffusionPipeline): pass"
    )
    own = {"custom_pipeline": str(tmp_path)}
    for arguments in (own, own | {"trust_remote_code": True}, {"trust_remote_code": True}, {"custom_revision": "main"}):
        refused(r"(custom_\w+|trust_remote_code) cannot be used: no code of", load.from_pretrained, folder, **arguments)
    assert not ran.exists()


def test_weights_of_torch_load_without_code(tiny_pipeline, tmp_path):
    tiny_pipeline.save_pretrained(tmp_path, safe_serialization=False)
    assert len([*tmp_path.rglob("*.bin")]) == 2, "of diffusers; transformers saves safetensors"
    assert torch.equal(drawn(LlamaGenPipeline.from_pretrained(tmp_path)), drawn(tiny_pipeline))
    weights = tmp_path / "transformer" / "diffusion_pytorch_model.bin"
    state = torch.load(weights, weights_only=True)
    torch.save({name: tensor for name, tensor in state.items() if "lm_head" not in name}, weights)
    refused("weights of transformer lack 1 tensors, such as lm_head.we", LlamaGenPipeline.from_pretrained, tmp_path)


@pytest.fixture(scope="module")
def janus() -> JanusPipeline:
    """In float64; tests must leave it as it is."""
    return JanusPipeline(janus_models.make(), janus_models.processor())


@torch.no_grad()
def guided_by_hand(pipeline: Any, prompt: str, away: str, scale: float, first: float | None = None) -> Tensor:
    """Greedy tokens [1, N], each by fresh passes over two prompts, without a cache or padding; `first`: the scale for
    the first token."""
    encoded = [pipeline.encode_prompt(text)[0] for text in (prompt, away)]
    assert encoded[0].shape[1] != encoded[1].shape[1]

    def logits(prompt: Tensor, tokens: Tensor) -> Tensor:
        if isinstance(pipeline, JanusPipeline):
            return janus_models.fresh_logits(pipeline.model, prompt[0].tolist(), tokens)
        model, condition = pipeline.transformer, pipeline.transformer.embed_condition(caption_embeds=prompt)
        places = torch.cat((torch.full((condition.shape[1],), -1), torch.arange(tokens.shape[1])))[None]
        embeds = torch.cat((condition, model.token_embedding(tokens)), 1)
        return model(inputs_embeds=embeds, positions=places).logits[:, -1]

    tokens = torch.zeros(1, 0, dtype=torch.long)
    for place in range(pipeline._usual_num_tokens):
        asked, avoided = (logits(each, tokens) for each in encoded)
        used = scale if place or first is None else first
        tokens = torch.cat((tokens, (avoided + used * (asked - avoided)).argmax(-1)[None]), 1)
    return tokens


@pytest.mark.parametrize("method", ["ar", "jacobi"])
def test_janus_is_led_away_from_words(janus, method):
    prompt, away = janus_models.PROMPTS[:2]
    codes = guided_by_hand(janus, prompt, away, 4.0)
    settings: dict[str, Any] = {"temperature": 0, "guidance_scale": 4.0, "method": method}
    assert torch.equal(drawn(janus, prompt, negative_prompt=away, **settings), codes)
    ids, mask = janus.encode_prompt(away)
    given = {"negative_input_ids": ids, "negative_attention_mask": mask}
    assert torch.equal(drawn(janus, prompt, **given, **settings), codes)
    assert not torch.equal(drawn(janus, prompt, **settings), codes)


@pytest.mark.parametrize(("family", "given"), [("llamagen", 9.0), ("janus", 9.0), ("janus", 0.5)])
def test_a_callback_changes_guidance(tiny_pipeline, janus, family, given):
    """A scale up to 1 is 1, as in a call."""
    pipeline = tiny_pipeline if family == "llamagen" else janus
    prompt, away = (PROMPT, AWAY) if family == "llamagen" else janus_models.PROMPTS[:2]

    def set_to(scale: float) -> Any:
        return lambda pipeline, *_: setattr(pipeline, "_guidance_scale", scale)

    plain: dict[str, Any] = {"method": "ar", "temperature": 0, "negative_prompt": away}
    tokens = drawn(pipeline, prompt, guidance_scale=2.0, callback_on_step_end=set_to(given), **plain)
    assert pipeline.guidance_scale == given and pipeline.do_classifier_free_guidance is (given > 1)
    wanted = guided_by_hand(pipeline, prompt, away, max(given, 1.0), first=2.0)
    assert torch.equal(tokens, wanted) and not torch.equal(wanted, guided_by_hand(pipeline, prompt, away, 2.0))
    with pytest.raises(UserError, match="began without guidance"):
        drawn(pipeline, prompt, guidance_scale=1.0, callback_on_step_end=set_to(3.0), **plain)


@pytest.mark.parametrize("method", ["ar", "jacobi", "eagle", "draft-model", "zipar"])
def test_guidance_leads_away_from_a_negative_prompt(drafting_pipeline, method):
    """Of another length than the prompt, alone and in a batch."""
    wanted = guided_by_hand(drafting_pipeline, PROMPT, AWAY, 3.0)
    settings: dict[str, Any] = {"negative_prompt": AWAY, "temperature": 0, "guidance_scale": 3.0}
    if method != "zipar":  # inexact
        assert torch.equal(drawn(drafting_pipeline, method=method, **settings), wanted)
    batch = drawn(drafting_pipeline, [PROMPT, "a cone"], (0, 1), method=method, **settings)
    alone = drawn(drafting_pipeline, "a cone", (1,), method=method, **settings)
    assert method == "zipar" or torch.equal(batch, torch.cat((wanted, alone)))
    assert not torch.equal(wanted, drawn(drafting_pipeline, temperature=0, guidance_scale=3.0, method="ar"))


def test_negative_prompts_as_features_as_words_and_as_nothing(tiny_pipeline, tiny_class_model_folder):
    embeds, mask = tiny_pipeline.encode_prompt(AWAY)
    features = {"negative_prompt_embeds": embeds, "negative_prompt_attention_mask": mask}
    assert torch.equal(drawn(tiny_pipeline, **features), drawn(tiny_pipeline, negative_prompt=[AWAY]))
    assert torch.equal(drawn(tiny_pipeline), drawn(tiny_pipeline, negative_prompt=""))
    off = drawn(tiny_pipeline, guidance_scale=1.0)
    assert torch.equal(drawn(tiny_pipeline, guidance_scale=1.0, negative_prompt=AWAY), off), "nothing is guided"
    many = drawn(tiny_pipeline, [PROMPT, "a cone"], (0, 1), negative_prompt=[AWAY, "a sphere"])
    assert torch.equal(many[:1], drawn(tiny_pipeline, negative_prompt=AWAY))
    asked = {"generator": seeded(0, 1, 2), "batch_size": 1, "negative_prompt": AWAY}
    *_, third = tiny_pipeline.stream(["a cone", "a cube", PROMPT], **asked)
    assert torch.equal(third.tokens[None], drawn(tiny_pipeline, seeds=(2,), negative_prompt=AWAY))
    by_class = AutoPicturePipeline.from_pretrained(tiny_class_model_folder)
    refused("negative_prompt cannot be used: .* class-conditional", by_class, class_labels=1, negative_prompt=AWAY)
    for arguments, message in (
        ({"negative_prompt": ["a", "b"]}, "one for all prompts or one for each, 1 here; got 2"),
        ({"negative_prompt": AWAY, **features}, "and not both"),
        ({"negative_prompt": 3}, "negative_prompt must be"),
        ({"negative_prompt_embeds": embeds[..., :3]}, "negative_prompt_embeds must be"),
        ({"prompt": [PROMPT, PROMPT], "negative_prompt": ["a cube", ""]}, "empty for all prompts or for none"),
    ):
        refused(message, tiny_pipeline, **{"prompt": PROMPT, **arguments})


def test_interrupting_ends_after_the_running_pass(tiny_pipeline):
    whole = drawn(tiny_pipeline, method="ar")

    def end_at_5(pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        pipeline._interrupt = step == 5
        return tensors

    output = tiny_pipeline(PROMPT, method="ar", generator=seeded(0), callback_on_step_end=end_at_5)
    assert output.trace.target_passes == tiny_pipeline.num_timesteps == 6 and tiny_pipeline.interrupt
    assert torch.equal(output.tokens[:, :6], whole[:, :6]) and not output.tokens[:, 6:].any()
    # The next call runs on.
    assert torch.equal(drawn(tiny_pipeline, method="ar"), whole) and not tiny_pipeline.interrupt
    stream = tiny_pipeline.stream([PROMPT] * 3, generator=seeded(0, 1, 2), method="ar", callback_on_step_end=end_at_5)
    assert not [*stream]


@pytest.mark.parametrize(("method", "name"), [("ar", "tokens"), ("jacobi", "tokens"), ("eagle", "latents")])
def test_tokens_that_a_callback_returns_are_obeyed(drafting_pipeline, method, name):
    """A new newest token is what the next pass reads, so plain decoding behind it draws the same. Diffusers' name of
    what a picture is made of serves as well."""
    first, last = drafting_pipeline.transformer.config.vocab_size - 1, []

    def change(pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
        if step > 0:
            return None
        changed = tensors[name].clone()
        last.append(int(changed[0, 0]))
        changed[0, 0] = (changed[0, 0] + 1) % (first + 1)
        return {name: changed}

    settings: dict[str, Any] = {"temperature": 0, "guidance_scale": 3.0, "callback_on_step_end": change}
    settings["callback_on_step_end_tensor_inputs"] = [name]
    tokens = drawn(drafting_pipeline, method=method, **settings)
    assert int(tokens[0, 0]) == (last[0] + 1) % (first + 1)
    assert torch.equal(tokens, drawn(drafting_pipeline, method="ar", **settings))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_callback_may_keep_what_it_is_given(drafting_pipeline, monkeypatch, compiled):
    """Neither the next pass nor the next batch writes to it, though graphs write to the same memory again."""
    kept: list[tuple[Tensor, list[int]]] = []

    def keep(pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Tensor]) -> None:
        kept.extend((each.flatten(), each.flatten().tolist()) for each in (lengths, tensors["tokens"]))

    monkeypatch.setattr(drafting_pipeline.reuse, "compiler", TapingCompiler(64) if compiled else None)
    for seed in (0, 1):
        drawn(drafting_pipeline, seeds=(seed,), method="ar", callback_on_step_end=keep)
    assert len(kept) == 2 * 2 * 16 and all(tensor.tolist() == then for tensor, then in kept)


def test_what_a_callback_cannot_change_is_named(tiny_pipeline):
    for asked, returned, message in (
        ("tokens", {"logits": 1}, "'logits', which is not among callback_on_step_end_tensor_inputs"),
        ("lengths", {"lengths": torch.ones(1)}, "'lengths' as it was: only tokens, latents may change"),
        ("tokens", {"tokens": torch.ones(1, 3).long()}, r"'tokens' as int64 \[1, 16\]"),
        ("tokens", {"tokens": torch.full((1, 16), 24)}, "'tokens' between 0 and 23"),
    ):
        given = {"callback_on_step_end_tensor_inputs": [asked]}
        refused(message, tiny_pipeline, PROMPT, callback_on_step_end=lambda *_, it=returned: it, **given)


def test_what_a_pipeline_draws_with_is_its_own(tiny_pipeline):
    """Whoever shares its modules with other settings changes nothing for it, nor for the next."""
    own = tiny_pipeline.config["default_guidance_scale"]
    other = LlamaGenPipeline(**tiny_pipeline.components, default_guidance_scale=own + 1)
    again = LlamaGenPipeline(**tiny_pipeline.components)
    found = [each.config["default_guidance_scale"] for each in (tiny_pipeline, other, again)]
    assert found == [own, own + 1, own]


def test_greedy_pictures_leave_torchs_own_generator_as_it_is(tiny_pipeline):
    before = torch.get_rng_state()
    for method in ("ar", "jacobi"):
        tiny_pipeline(PROMPT, temperature=0, method=method, output_type="latent")
    assert torch.equal(torch.get_rng_state(), before)
    tiny_pipeline(PROMPT, method="ar", output_type="latent")
    assert not torch.equal(torch.get_rng_state(), before)


def test_absent_components_are_one_line(tiny_pipeline):
    own = tiny_pipeline.components
    words = LlamaGenPipeline(None, None, own["text_encoder"], own["tokenizer"])
    assert torch.equal(words.encode_prompt(PROMPT)[0], tiny_pipeline.encode_prompt(PROMPT)[0])
    refused("transformer is None: this pipeline can only encode prompts", words, PROMPT)
    embeds, mask = words.encode_prompt(PROMPT)
    codes = LlamaGenPipeline(own["transformer"], None)
    arguments: dict[str, Any] = {"prompt_embeds": embeds, "prompt_attention_mask": mask, "generator": seeded(0)}
    settings: dict[str, Any] = {"guidance_scale": 3.0, "top_k": 0, "output_type": "latent"}
    assert torch.equal(codes(**arguments, **settings).tokens, drawn(tiny_pipeline))
    padded, later = functional.pad(embeds, (0, 0, 2, 0), value=torch.nan), functional.pad(mask, (2, 0))
    for form, kept in ((padded, later), (embeds.double(), mask), (embeds.mT.contiguous().mT, mask)):
        asked = {**arguments, "prompt_embeds": form, "prompt_attention_mask": kept, "generator": seeded(0)}
        assert torch.equal(codes(**asked, **settings).tokens, drawn(tiny_pipeline))
    asked = {"prompt_embeds": padded, "prompt_attention_mask": later.flip(1), **settings}
    refused("must be padded on the left", codes, **asked)
    refused("vqvae is None", codes, **arguments)
    refused("prompt needs a pipeline with text_encoder and tokenizer", codes.encode_prompt, PROMPT)


def test_a_single_generator_gives_each_picture_a_stream_of_its_own():
    def keys(seed: int) -> list[int]:
        streams = random_streams(torch.Generator().manual_seed(seed), 2, torch.device("cpu"))
        return [int(key) for key in streams.keys]

    assert keys(0) == keys(0) and len({*keys(0), *keys(1)}) == 4


def test_logits_that_are_no_numbers_are_those_of_a_picture_by_its_number():
    with pytest.raises(NotFiniteError, match=r"^picture 6 of the batch: ") as raised, finite_logits(3, "of the batch"):
        raise LogitsError(2, 7)
    assert raised.value.row == 5


def test_a_scale_of_1_guides_nothing(tiny_pipeline):
    for scale, guides in ((1.0, False), (2.0, True)):
        drawn(tiny_pipeline, guidance_scale=scale)
        assert tiny_pipeline.do_classifier_free_guidance is guides


def test_parts_in_training_mode_are_named(tiny_pipeline):
    """In a call and in a stream."""
    tiny_pipeline.text_encoder.train()
    try:
        for draw in (lambda: drawn(tiny_pipeline), lambda: list(tiny_pipeline.stream([PROMPT]))):
            refused(r"^text_encoder must be in evaluation mode; call text_encoder.eval\(\)$", draw)
    finally:
        tiny_pipeline.text_encoder.eval()


def test_a_picture_that_a_callback_ends_is_looked_at_like_others(tiny_model_folder):
    pipeline = LlamaGenPipeline.from_pretrained(tiny_model_folder)
    pipeline.transformer.transformer_blocks[0].ff.down_proj.weight.data.fill_(float("nan"))
    ends = {"callback_on_step_end": lambda pipeline, *_: setattr(pipeline, "_interrupt", True)}
    raised(NotFiniteError, "logits are not finite", pipeline, PROMPT, method="ar", **ends)
