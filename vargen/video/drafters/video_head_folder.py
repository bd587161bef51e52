"""Draft heads for Video-LLMs on disk, and the check that a head fits its target.

Belongs here: writing and reading a folder of `config.json` and `model.safetensors`. Does not belong here: the network
(`video_head.py`), and where shipped folders lie.

A head's settings keep, beside the target's sizes, a few of its hidden states (`target_states.py`): after the final
layer, and after the layer that stands for the video. The code that feeds the head computes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specdecode.kernels.linears import serve_linears
from vargen.base.reading import parse_json, read_bytes
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_stored
from vargen.drafters.target_states import are_alike, fixed_tokens, sample_states
from vargen.video.drafters.video_head import VideoHead, VideoHeadConfig
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.request import VideoRequest
from vargen.video.models.target import VideoTarget

WEIGHTS_NAME = "model.safetensors"


@torch.no_grad()
def describe_target(model: Any, layers: Sequence[int] = ()) -> dict[str, Any]:
    """Plain values by which a head recognises its target.

    Args:
        model: transformers' Video-LLM.
        layers: numbers of the layers whose hidden states the head reads, beside the final ones, as in `VideoTarget`.
    """
    text = model.config.get_text_config()
    device = model.get_input_embeddings().weight.device
    tokens = fixed_tokens(int(text.vocab_size), device)
    axes = architecture_of(model).num_axes
    request = VideoRequest(
        input_ids=tokens,
        inputs_embeds=model.get_input_embeddings()(tokens),
        position_ids=torch.arange(tokens.shape[1], device=device).expand(axes, 1, -1),
        is_visual=torch.zeros(tokens.shape[1], dtype=torch.bool, device=device),
        next_position=tokens.shape[1],
    )
    target = VideoTarget(model, request, capture_layers=layers)
    target.prefill()
    (seen,) = target.prompts
    return {
        "architecture": model.config.model_type,
        "hidden_size": int(text.hidden_size),
        "num_hidden_layers": int(text.num_hidden_layers),
        "vocab_size": int(text.vocab_size),
        "features": {
            "final": sample_states(seen.hidden_states),
            **{str(each): sample_states(seen.captured[each]) for each in layers},
        },
    }


def check_target(config: VideoHeadConfig, model: Any) -> None:
    """Refuse a head that was trained for another target or on other features. Raises ValueError, naming them."""
    layers = () if config.visual_layer is None else (config.visual_layer,)
    remedy = "give a drafter that was trained for this target"
    known = config.target
    if config.visual_layer is not None and config.visual_layer > int(known.get("num_hidden_layers", 0)):
        raise ValueError(f"drafter: visual_layer {config.visual_layer} is more layers than its target had; {remedy}")
    for name in ("architecture", "hidden_size", "num_hidden_layers", "vocab_size"):
        own = model.config.model_type if name == "architecture" else getattr(model.config.get_text_config(), name)
        if known.get(name) != own:
            raise ValueError(
                f"drafter was trained for another target: {name} {known.get(name)!r}, this one has {own!r}; {remedy}"
            )
    for name, wanted in describe_target(model, layers)["features"].items():
        if not are_alike(known["features"].get(name, []), wanted, model):
            which = "final hidden states" if name == "final" else f"hidden states after {name} layers"
            raise ValueError(f"drafter was trained on other features: the target's {which} are not those; {remedy}")


def new_video_head(kind: str, model: Any, **changes: Any) -> VideoHead:
    """An untrained head for a target, whose layer has the weights of the target's last one.

    Args:
        kind, changes: see `VideoHeadConfig.of_kind`.
        model: transformers' Video-LLM.

    Raises:
        ValueError: see `VideoHeadConfig.of_kind`.
    """
    config = VideoHeadConfig.of_kind(kind, model, **changes)
    layers = () if config.visual_layer is None else (config.visual_layer,)
    network = VideoHead(replace(config, target=describe_target(model, layers)))
    network.layer.load_state_dict(architecture_of(model).decoder(model).layers[-1].state_dict())
    return network


def save_video_head(network: VideoHead, folder: str | os.PathLike[str]) -> None:
    """Write `config.json` and the weights, in their dtype, into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().contiguous().cpu() for name, value in network.state_dict().items()}
    save_file(weights, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(network.config.to_dict(), indent=2) + "\n")


def load_video_head(folder: str | os.PathLike[str], model: Any) -> VideoHead:
    """A trained head, in eval mode, of its target's dtype and on its device.

    Args:
        folder: written by `save_video_head`.
        model: the target.

    Raises:
        ValueError: no such folder, damaged or foreign files, weights that do not fit the settings, another target or
            layer count.
    """
    folder = Path(folder)
    check_stored(folder, "drafter")
    try:
        config = VideoHeadConfig.from_dict(parse_json(read_bytes(folder / "config.json")))
        stored = load_file(folder / WEIGHTS_NAME)
    except OSError as error:
        raise ValueError(f"drafter: {folder} holds no {Path(error.filename or WEIGHTS_NAME).name}") from error
    except (ValueError, TypeError, SafetensorError) as error:
        raise ValueError(f"drafter: {folder} cannot be read ({str(error).splitlines()[0]})") from error
    check_target(config, model)
    network = VideoHead(config)
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    for name in sorted(shapes.keys() | stored.keys()):
        if name not in stored or name not in shapes or stored[name].shape != shapes[name]:
            raise ValueError(f"drafter: weights in {folder} do not fit its config.json, see {name}; copy both again")
    weight = model.get_input_embeddings().weight
    network.load_state_dict({name: value.to(weight.dtype) for name, value in stored.items()}, assign=True)
    check_weights(network, folder)
    serve_linears(network)
    return network.to(weight.device).eval().requires_grad_(False)
