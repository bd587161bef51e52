"""LoRA adapters as PEFT makes them, by the names that diffusers' pipelines have.

Belongs here: adapters of the network that draws tokens, for every family. Does not belong here: training one
(`vargen.training.lora`), and adapters of other networks, such as GLM-Image's denoising transformer.

PEFT puts an adapter's layers in the places of the network's linear layers. The project's kernels notice that and leave
such layers to torch. An exact method draws what plain decoding draws, because target and verification are the same
network; the drafter was trained without the adapter, so that fewer of its tokens may be accepted.

Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from numbers import Real
from pathlib import Path
from typing import Any

from torch import nn

from specdecode.kernels.quantized import quantization_of
from vargen.base.errors import UserError
from vargen.base.reading import reading, reason_of
from vargen.checkpoints.model_folder import check_stored
from vargen.checkpoints.source import fetch, is_hub_name
from vargen.models.reuse import Reuse

_FILES = ("adapter_config.json", "adapter_model.safetensors")
_PREFIX = "base_model.model."
"""How the names in an adapter's file begin."""
_SERVED = {
    *("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "lora_bias", "fan_in_fan_out"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "init_lora_weights"),
    *("lora_dropout", "inference_mode", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),  # of training
    *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision"),
    *("megatron_core", "qalora_group_size", "runtime_config"),  # say nothing by themselves
}
"""Settings of PEFT that an adapter may have. Others change what `unload_lora_weights` does not bring back, or are
obeyed by `PeftModel` alone, so that pictures would be drawn as if there were no adapter."""
_KEEPS_WEIGHTS = (True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the layers' own weights as they are; "pissa" and others replace them."""
_MATCHING = (
    "import json, re, sys; texts, names = json.load(sys.stdin); [re.fullmatch(a, b) for a in texts for b in names]"
)
_LONGEST_MATCHING = 2.0
"""Seconds that matching an adapter's patterns with all layers' names may take; PEFT matches them several times."""


class LoraPipeline:
    """A pipeline whose network that draws tokens takes adapters."""

    reuse: Reuse

    @property
    def _adapted(self) -> nn.Module:
        """The network that draws tokens."""
        raise NotImplementedError

    def load_lora_weights(
        self, pretrained_model_name_or_path: str | os.PathLike[str], adapter_name: str = "default"
    ) -> None:
        """Load an adapter and make it the active one.

        Args:
            pretrained_model_name_or_path: a folder that `PeftModel.save_pretrained` or `save_lora_weights` wrote, or a
                name on the hub.
            adapter_name: a new one.

        Raises:
            UserError: peft is not installed, there is no such adapter, it is no LoRA, it was made for another network,
                its numbers are not finite, or it changes more than can be taken out again; or the model is quantized,
                or holds fused adapters.
        """
        check_peft("load_lora_weights")
        self._check_not_quantized("load_lora_weights")
        self._check_not_fused("load_lora_weights")
        if self.reuse.compiler is not None:
            raise UserError("load_lora_weights must come before compile(), which compiles the layers as they are")
        if adapter_name in self.get_list_adapters():
            raise UserError(f"adapter_name {adapter_name!r} is in use; delete that adapter first, or choose another")
        try:
            nn.ModuleDict({adapter_name: nn.Identity()})  # as PEFT keeps it
        except (KeyError, TypeError) as error:
            raise UserError(f"adapter_name {adapter_name!r} cannot be used ({error}); choose another") from error
        if not isinstance(pretrained_model_name_or_path, str | os.PathLike):
            kind = type(pretrained_model_name_or_path).__name__
            raise UserError(f"pretrained_model_name_or_path must be a folder that PEFT saved, or a name, got a {kind}")
        source = os.fspath(pretrained_model_name_or_path)
        folder = fetch(source, None, _FILES, "adapter") if is_hub_name(source) else Path(source)
        if missing := [name for name in _FILES if not os.path.isfile(folder / name)]:
            raise UserError(f"{folder / missing[0]} is missing; name a folder that PEFT saved, with both of its files")
        check_stored(folder, "adapter")
        from peft import PeftConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
        from safetensors.torch import load_file

        with reading(folder, "copy it again", "adapter"):
            config, state = PeftConfig.from_pretrained(str(folder)), load_file(folder / _FILES[1])
            _check_kind(config, folder)
            if max(config.r, 0, *config.rank_pattern.values()) > max(max(each.shape) for each in state.values()):
                raise ValueError("its rank is none of its weights'")
        state = {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}
        _check_patterns(config, [name for name, _ in self._adapted.named_modules()], folder)
        if wrong := [name for name, tensor in state.items() if not bool(tensor.isfinite().all())]:
            raise UserError(f"{folder / _FILES[1]}: the weights {wrong[0]} are not finite; copy the file again")
        if not any(bool(tensor.any()) for tensor in state.values()):  # room for a file that was never written
            raise UserError(f"{folder / _FILES[1]} holds nothing but zeros; copy the file again")
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are served
                inject_adapter_in_model(config, self._adapted, adapter_name)
            report: Any = set_peft_model_state_dict(self._adapted, state, adapter_name)
            wanted = {*get_peft_model_state_dict(self._adapted, adapter_name=adapter_name, save_embedding_layers=False)}
            if different := sorted(wanted ^ {*state}) or [*report.unexpected_keys]:
                raise UserError(f"was made for another network: {different[0]} is in one of the two only")
        except Exception as error:  # of another shape, another layer, another method
            self._forget(adapter_name)
            said = f"does not fit this model ({reason_of(error)}); use the one it was made for"
            raise UserError(f"adapter {folder} {error if isinstance(error, UserError) else said}") from error
        self.set_adapters(adapter_name)
        self._adapted.eval()

    def set_adapters(
        self, adapter_names: str | Sequence[str], adapter_weights: float | Sequence[float | None] | None = None
    ) -> None:
        """Make adapters active, each with a factor on what it adds.

        Args:
            adapter_names: of loaded adapters; all others are off.
            adapter_weights: one for all, or one for each. None: 1.

        Raises:
            UserError: an unknown name, another number of weights, a weight that is no number; or adapters are fused.
        """
        from diffusers.utils.peft_utils import set_weights_and_activate_adapters

        names = self._loaded(adapter_names)
        given = [*adapter_weights] if isinstance(adapter_weights, Sequence) else [adapter_weights] * len(names)
        weights = [1.0 if each is None else each for each in given]
        _check_numbers("adapter_weights", weights)
        if len(weights) != len(names):
            raise UserError(f"adapter_weights must be one for all or one for each of {len(names)}, got {len(weights)}")
        self._check_not_fused("set_adapters")
        set_weights_and_activate_adapters(self._adapted, names, weights)

    def _loaded(self, adapter_names: str | Sequence[str]) -> list[str]:
        """The names as a list. Raises UserError for one that is not loaded."""
        names: list[Any] = [*adapter_names] if isinstance(adapter_names, list | tuple) else [adapter_names]
        for name in names:
            if name not in (known := self.get_list_adapters()):
                raise UserError(f"adapter {name!r} is not loaded; loaded are {', '.join(known) or 'none'}")
        return names

    def _check_not_fused(self, call: str) -> None:
        """PEFT takes an adapter out of the weights by the scale that it has then, and computes no other beside it."""
        if any(layer.merged for _, layer in self._adapters()):
            raise UserError(
                f"{call} cannot change a model while adapters are fused; call unfuse_lora first, or "
                f"unload_lora_weights to keep them in the weights"
            )

    def _check_not_quantized(self, call: str) -> None:
        if (quantization := quantization_of(self._adapted)) is not None:
            raise UserError(
                f"{call} cannot be used in {quantization}: load the pipeline again, then load_lora_weights, fuse_lora, "
                f"unload_lora_weights and quantize, in this order"
            )

    def get_list_adapters(self) -> list[str]:
        """Names of the loaded adapters."""
        return list(dict.fromkeys(name for _, layer in self._adapters() for name in layer.scaling))

    def get_active_adapters(self) -> list[str]:
        """Names of those that are active."""
        active = (name for _, layer in self._adapters() if not layer.disable_adapters for name in layer.active_adapters)
        return list(dict.fromkeys(active))

    def fuse_lora(self, lora_scale: float = 1.0, adapter_names: str | Sequence[str] | None = None) -> None:
        """Add adapters to the weights, so that passes cost what they cost without. The kernels serve the layers again
        after `unload_lora_weights`, which leaves fused weights as they are.

        Args:
            lora_scale: a factor on all that are fused, until `unfuse_lora`.
            adapter_names: None: the active ones. Those that are fused already stay as they are.

        Raises:
            UserError: an unknown name, no adapter is on, a scale that is no number, or the model is quantized.
        """
        names = self.get_active_adapters() if adapter_names is None else self._loaded(adapter_names)
        _check_numbers("lora_scale", [lora_scale])
        if not names or any(layer.disable_adapters for _, layer in self._adapters()):
            raise UserError(
                "fuse_lora needs an adapter that is on; call load_lora_weights, set_adapters or enable_lora"
            )
        self._check_not_quantized("fuse_lora")
        for _, layer in self._adapters():
            fused = [name for name in names if name in layer.scaling and name not in layer.merged_adapters]
            own = {name: layer.scaling[name] for name in fused}
            layer.scaling_unfused = getattr(layer, "scaling_unfused", {}) | own
            for name in fused:
                layer.scaling[name] *= lora_scale
            if not fused:
                continue
            try:
                layer.merge(safe_merge=True, adapter_names=fused)
            except (ValueError, RuntimeError) as error:  # not finite, or a bias where the layer has none
                self.unfuse_lora()
                raise UserError(f"fuse_lora cannot add {', '.join(fused)} ({error}); leave it unfused") from error

    def unfuse_lora(self) -> None:
        """Take fused adapters out of the weights again, up to rounding. Their scales are those before `fuse_lora`."""
        for _, layer in self._adapters():
            if layer.merged:
                layer.unmerge()
            scales = layer.__dict__.pop("scaling_unfused", {})
            layer.scaling.update({name: scale for name, scale in scales.items() if name in layer.scaling})

    def disable_lora(self) -> None:
        """Draw without adapters until `enable_lora`. Raises UserError while adapters are fused."""
        self._check_not_fused("disable_lora")
        for _, layer in self._adapters():
            layer.enable_adapters(False)

    def enable_lora(self) -> None:
        """Draw with the active adapters again."""
        for _, layer in self._adapters():
            layer.enable_adapters(True)

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Forget adapters. What was fused stays in the weights. Raises UserError for an unknown name."""
        for name in self._loaded(adapter_names):
            self._forget(name)

    def _forget(self, adapter_name: str) -> None:
        """Take an adapter out, or as much of it as a failed load put in; layers without any other are the own ones."""
        for place, layer in [*self._adapters()]:
            layer.delete_adapter(adapter_name)
            if not layer.scaling:
                self._restore(place, layer)
        self._configs().pop(adapter_name, None)

    def _restore(self, place: str, layer: Any) -> None:
        parent, _, child = place.rpartition(".")
        setattr(self._adapted.get_submodule(parent), child, layer.get_base_layer())

    def unload_lora_weights(self) -> None:
        """Forget all adapters: the network has its own layers again. What was fused stays in the weights."""
        for place, layer in [*self._adapters()]:
            self._restore(place, layer)
        self._configs().clear()

    def save_lora_weights(self, save_directory: str | os.PathLike[str], adapter_name: str = "default") -> None:
        """Save an adapter as PEFT does; `load_lora_weights` and PEFT read it. Raises UserError for an unknown name."""
        self._loaded(adapter_name)
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self._adapted, adapter_name=adapter_name, save_embedding_layers=False)
        stored = {f"{_PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(stored, folder / _FILES[1], metadata={"format": "pt"})
        self._configs()[adapter_name].save_pretrained(folder)

    def _configs(self) -> Any:
        """PEFT's configuration of each adapter by its name, which it keeps with the network."""
        return getattr(self._adapted, "peft_config", {})

    def _adapters(self) -> Iterator[tuple[str, Any]]:
        """The layers of adapters, with their names."""
        if importlib.util.find_spec("peft") is None:
            return
        from peft.tuners.lora import LoraLayer

        for name, module in self._adapted.named_modules():
            if isinstance(module, LoraLayer):
                yield name, module

    def _refuse_adapters(self) -> None:
        """Refuse to save the model with an adapter's layers in it. Raises UserError."""
        if self.get_list_adapters():
            raise UserError(
                "save_pretrained saves a model without adapters: save them by save_lora_weights, or fuse_lora, then "
                "unload_lora_weights"
            )


def _check_kind(config: Any, folder: Path) -> None:
    """Refuse an adapter that could not be taken out again. Raises UserError."""
    kind = getattr(config.peft_type, "value", config.peft_type)
    if kind != "LORA":
        raise UserError(f"adapter {folder} has peft_type {kind!r}, and only LORA is served; train one of that kind")
    usual = type(config)()
    for each in fields(config):
        value = getattr(config, each.name)
        if each.name not in _SERVED and value and value != getattr(usual, each.name):
            raise UserError(f"adapter {folder} has {each.name} {value!r}, which is not served; train it without")
    _check_numbers(f"adapter {folder}: lora_alpha", [config.lora_alpha, *(config.alpha_pattern or {}).values()])
    if (first := config.init_lora_weights) not in _KEEPS_WEIGHTS:
        raise UserError(
            f"adapter {folder} has init_lora_weights {first!r}, which replaces the model's own weights; save it with "
            f"PEFT's path_initial_model_for_weight_conversion"
        )


def _check_patterns(config: Any, names: list[str], folder: Path) -> None:
    """Refuse patterns that do not come to an end. Raises UserError.

    They are matched in another process, since nothing stops Python's `re` in a thread of this one. A pattern that is
    not well formed passes; PEFT says what is wrong with it.
    """
    layers = config.layers_pattern if isinstance(config.layers_pattern, list) else [config.layers_pattern]
    # As PEFT puts them together, and in its order: it stops at the first that is not well formed, as the process does.
    patterns = [each for each in (config.exclude_modules, config.target_modules) if isinstance(each, str)]
    patterns += [rf"(?:^|.*?\.){each}\.(\d+)\..*" for each in layers if each]
    patterns += [rf"(.*\.)?({each})$" for each in {**config.rank_pattern, **(config.alpha_pattern or {})}]
    if not patterns:
        return
    command = [sys.executable, "-I", "-S", "-c", _MATCHING]
    asked = json.dumps([patterns, names]).encode()
    try:
        subprocess.run(command, input=asked, stderr=subprocess.DEVNULL, timeout=_LONGEST_MATCHING, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"adapter {folder}: patterns of target_modules and others take over {_LONGEST_MATCHING:.0f} seconds to "
            f"match with the model's layers; name the layers one by one in {_FILES[0]}"
        ) from error


def _check_numbers(argument: str, given: Sequence[Any]) -> None:
    """Raises UserError for one that is no finite number."""
    for each in given:
        if not (isinstance(each, Real) and math.isfinite(each)):
            raise UserError(f"{argument} must be finite numbers, got {each!r}")


def check_peft(what: str) -> None:
    """Raises UserError where peft, which `what` needs, is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(f'{what} needs peft, which is not installed; run pip install "vargen[lora]"')
