"""Tiny random Video-LLMs of every architecture, and requests about random videos."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

VOCAB, IMAGE, VIDEO, VISION_START, VISION_END, END = 300, 290, 291, 292, 293, 2
ARCHITECTURES = ("qwen2_5_vl", "llava_onevision")
"""One of each kind of positions, for what does not depend on the rest; `architectures/` tests all of them."""
FRAMES = 4


def sharpen(model: Any, factor: float = 4.0) -> Any:
    """Fresh weights are so small that greedy decoding repeats one token whatever it is shown."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(factor)
    return model.eval().requires_grad_(False)


def build_model(architecture: str, seed: int = 0, num_layers: int = 3) -> Any:
    torch.manual_seed(seed)
    text: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": num_layers,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096, "bos_token_id": 1,
        "eos_token_id": END, "pad_token_id": 0, "tie_word_embeddings": False,
    }  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    tokens = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": VISION_START,
        "vision_end_token_id": VISION_END,
    }
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    patches = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
    encoder = {**patches, "hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64}
    if architecture == "qwen2_vl":
        config: Any = transformers.Qwen2VLConfig(
            text_config={**text, "rope_parameters": rope, "use_sliding_window": False},
            vision_config={**patches, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
            **tokens,
        )
        return sharpen(transformers.Qwen2VLForConditionalGeneration(config))
    if architecture == "qwen3_vl":
        config = transformers.Qwen3VLConfig(
            text_config={**text, "head_dim": 16, "rope_parameters": {**rope, "mrope_interleaved": True}},
            vision_config={**encoder, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
            **tokens,
        )
        return sharpen(transformers.Qwen3VLForConditionalGeneration(config))
    if architecture == "llava_next_video":
        config = transformers.LlavaNextVideoConfig(
            text_config={**text, "model_type": "llama"},
            vision_config={**tower, "model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 32},
            image_token_index=IMAGE,
            video_token_index=VIDEO,
        )
        return sharpen(transformers.LlavaNextVideoForConditionalGeneration(config))
    if architecture == "qwen2_5_vl":
        config = transformers.Qwen2_5_VLConfig(
            text_config={**text, "rope_parameters": rope, "use_sliding_window": False},
            vision_config={**encoder, "window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 2},
            **tokens,
        )
        return sharpen(transformers.Qwen2_5_VLForConditionalGeneration(config))
    config = transformers.LlavaOnevisionConfig(
        text_config={**text, "model_type": "qwen2"},
        vision_config={**tower, "model_type": "siglip_vision_model", "num_hidden_layers": 2, "vision_use_head": False},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    return sharpen(transformers.LlavaOnevisionForConditionalGeneration(config))


def build_inputs(architecture: str, seed: int = 0, question_length: int = 6, frames: int = FRAMES) -> dict[str, Tensor]:
    """What the processor of a model would give for a random video and question."""
    generator = torch.Generator().manual_seed(seed)
    question = torch.randint(3, 280, (question_length,), generator=generator).tolist()
    is_qwen = architecture.startswith("qwen")
    if is_qwen:
        time, height, width = frames, 8, 4
        of_a_step = height * width // 4
        video: dict[str, Tensor] = {
            "pixel_values_videos": torch.randn(time * height * width, 3 * 2 * 4 * 4, generator=generator),
            "video_grid_thw": torch.tensor([[time, height, width]]),
        }
        if architecture == "qwen2_5_vl":
            video["second_per_grid_ts"] = torch.tensor([1.0])
        span = [VISION_START, *[VIDEO] * time * of_a_step, VISION_END]
        if architecture == "qwen3_vl":  # a timestamp before every step
            span = [t for step in range(time) for t in (10 + step, VISION_START, *[VIDEO] * of_a_step, VISION_END)]
    else:
        count = frames * 4 + (architecture == "llava_onevision")
        video = {"pixel_values_videos": torch.randn(1, frames, 3, 32, 32, generator=generator)}
        span = [VISION_START, *[VIDEO] * count, VISION_END]
    ids = torch.tensor([[5, 6, *span, *question]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **video}
    if is_qwen:
        inputs["mm_token_type_ids"] = 2 * (ids == VIDEO).int()
    return inputs


@pytest.fixture(scope="session", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def models() -> Callable[..., Any]:
    """`models(architecture, seed, num_layers)`, each built once; they must stay as they are."""
    built: dict[tuple[Any, ...], Any] = {}

    def get(architecture: str, seed: int = 0, num_layers: int = 3) -> Any:
        key = (architecture, seed, num_layers)
        if key not in built:
            built[key] = build_model(architecture, seed, num_layers)
        return built[key]

    return get


@pytest.fixture(scope="session")
def inputs_of() -> Callable[..., dict[str, Tensor]]:
    """`inputs_of(architecture, seed, question_length, frames)`."""
    return build_inputs


@pytest.fixture(scope="session")
def prepared(models: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """`prepared(architecture, seed, question_length, frames)`: a model, and a request to it."""
    from vargen.video.models.request import prepare_request

    def get(architecture: str, *more: int) -> tuple[Any, Any]:
        model = models(architecture)
        return model, prepare_request(model, build_inputs(architecture, *more))

    return get


def by_generate(model: Any, inputs: dict[str, Tensor], count: int, **options: Any) -> list[int]:
    """Greedy tokens of transformers' own `generate`, so many whatever they are."""
    model = deepcopy(model)  # it keeps positions on itself
    model.generation_config.eos_token_id = None
    tokens = model.generate(**inputs, max_new_tokens=count, pad_token_id=0, do_sample=False, **options)
    return tokens[0, inputs["input_ids"].shape[1] :].tolist()


@torch.no_grad()
def states_behind(model: Any, request: Any, tokens: list[int]) -> Tensor:
    """[T + n, dim] final hidden states of a request and tokens behind it, by one pass of the decoder without a cache.

    Without a mask, gaps in the positions would be taken for the borders of packed sequences.
    """
    embeds = torch.cat((request.inputs_embeds, model.get_input_embeddings()(torch.tensor([tokens]))), 1)
    behind = (request.next_position + torch.arange(len(tokens))).expand(len(request.position_ids), 1, -1)
    places, length = torch.cat((request.position_ids, behind), 2), embeds.shape[1]
    seen = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
    given = {"position_ids": places if len(places) > 1 else places[0], "attention_mask": seen, "use_cache": False}
    return model.model.language_model(inputs_embeds=embeds, **given).last_hidden_state[0]


def slow_states(
    language_model: Any,
    embeds: Tensor,
    positions: Tensor,
    sees: Callable[[int, int], Tensor],
    between: Callable[[int, Tensor, Tensor], Tensor] = lambda layer, states, attention: states,
) -> Tensor:
    """[T, dim] final hidden states, by a loop over layers and heads without cache or hooks.

    Args:
        language_model: of a Video-LLM. embeds: [1, T, dim]. positions: [A, 1, T].
        sees: `sees(layer, key_head)` gives [T, T] bool, which tokens each token sees.
        between: `between(layer, states [T, dim], attention [heads, T, T])` gives the states that go on.
    """
    states = embeds[0]
    cosines, sines = language_model.rotary_emb(embeds, positions if len(positions) > 1 else positions[0])
    if cosines.ndim == 4:  # older releases leave it to each layer to pick the axis of a channel
        picks = [(axis, channel) for channel, axis in enumerate([0, 0, 1, 1, 1, 2, 2, 2] * 2)]
        cosines, sines = (torch.stack([e[a, ..., c] for a, c in picks], dim=-1) for e in (cosines, sines))
    size = cosines.shape[-1]
    half = size // 2

    def turned(values: Tensor) -> Tensor:
        left, right = values[:, :half], values[:, half:]
        cosine, sine = cosines[0][:, :half], sines[0][:, :half]
        return torch.cat((left * cosine - right * sine, right * cosine + left * sine), 1)

    for number, layer in enumerate(language_model.layers):
        module, inputs = layer.self_attn, layer.input_layernorm(states)
        queries, keys, values = module.q_proj(inputs), module.k_proj(inputs), module.v_proj(inputs)
        num_heads, num_key_heads = queries.shape[1] // size, keys.shape[1] // size
        maps, outputs = [], []
        for head in range(num_heads):
            key_head = head * num_key_heads // num_heads
            of_head, of_key = slice(head * size, (head + 1) * size), slice(key_head * size, (key_head + 1) * size)
            scores = turned(queries[:, of_head]) @ turned(keys[:, of_key]).T / size**0.5
            maps.append(scores.masked_fill(~sees(number, key_head), -torch.inf).softmax(-1))
            outputs.append(maps[-1] @ values[:, of_key])
        states = states + module.o_proj(torch.cat(outputs, 1))
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        states = between(number, states, torch.stack(maps))
    return language_model.norm(states)


@pytest.fixture(scope="session")
def slowly() -> Callable[..., Tensor]:
    """`slow_states`."""
    return slow_states
