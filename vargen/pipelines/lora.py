"""LoRA adapters as PEFT makes them, by the names that diffusers' pipelines have.

Belongs here: adapters of the network that draws tokens, for every family. Does not belong here: training one (PEFT does
that with `get_peft_model`), and adapters of other networks, such as GLM-Image's denoising transformer.

PEFT puts an adapter's layers in the places of the network's linear layers. The project's kernels notice that and leave
such layers to torch. An exact method draws what plain decoding draws, because target and verification are the same
network; what drafts was trained without the adapter, so that fewer of its tokens may be accepted.

Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv 2106.09685.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.models.model_folder import check_stored
from vargen.models.source import fetch, is_hub_name
from vargen.pipelines.reuse import Reuse

_FILES = ("adapter_config.json", "adapter_model.safetensors")
_PREFIX = "base_model.model."
"""How the names in an adapter's file begin."""


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
            UserError: peft is not installed, there is no such adapter, it was made for another network, or its numbers
                are not finite.
        """
        _check_peft()
        if self.reuse.compiler is not None:
            raise UserError("load_lora_weights must come before compile(), which compiles the layers as they are")
        if adapter_name in self.get_list_adapters():
            raise UserError(f"adapter_name {adapter_name!r} is in use; delete that adapter first, or choose another")
        source = os.fspath(pretrained_model_name_or_path)
        folder = fetch(source, None, _FILES, "adapter") if is_hub_name(source) else Path(source)
        if missing := [name for name in _FILES if not (folder / name).is_file()]:
            raise UserError(f"{folder / missing[0]} is missing; name a folder that PEFT saved, with both of its files")
        check_stored(folder, "adapter")
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
        from safetensors.torch import load_file

        with reading(folder, "copy it again", "adapter"):
            config, state = PeftConfig.from_pretrained(str(folder)), load_file(folder / _FILES[1])
        state = {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}
        if wrong := [name for name, tensor in state.items() if not bool(tensor.isfinite().all())]:
            raise UserError(f"{folder / _FILES[1]}: the weights {wrong[0]} are not finite; copy the file again")
        try:
            inject_adapter_in_model(config, self._adapted, adapter_name)
            report: Any = set_peft_model_state_dict(self._adapted, state, adapter_name)
            self._check_complete(state, adapter_name, [*report.unexpected_keys])
        except Exception as error:  # of another shape, another layer, another method
            if adapter_name in self.get_list_adapters():
                self.delete_adapters(adapter_name)
            if isinstance(error, UserError):
                raise UserError(f"adapter {folder} {error}") from error
            said = " ".join(str(error).split())[:200]
            raise UserError(
                f"adapter {folder} does not fit this model ({said}); use the one it was made for"
            ) from error
        self.set_adapters(adapter_name)
        self._adapted.eval()

    def _check_complete(self, state: dict[str, Any], adapter_name: str, unexpected: list[str]) -> None:
        from peft import get_peft_model_state_dict

        wanted = {*get_peft_model_state_dict(self._adapted, adapter_name=adapter_name)}
        if different := sorted(wanted ^ {*state}) or unexpected:
            raise UserError(f"was made for another network: {different[0]} is in one of the two only")

    def set_adapters(self, adapter_names: str | Sequence[str], adapter_weights: float | Sequence[float] = 1.0) -> None:
        """Make adapters active, each with a factor on what it adds.

        Args:
            adapter_names: of loaded adapters; all others are off.
            adapter_weights: one for all, or one for each.

        Raises:
            UserError: an unknown name, or another number of weights.
        """
        from diffusers.utils.peft_utils import set_weights_and_activate_adapters

        names = [adapter_names] if isinstance(adapter_names, str) else [*adapter_names]
        self._check_names(names)
        weights = [adapter_weights] * len(names) if isinstance(adapter_weights, int | float) else [*adapter_weights]
        if len(weights) != len(names):
            raise UserError(f"adapter_weights must be one for all or one for each of {len(names)}, got {len(weights)}")
        set_weights_and_activate_adapters(self._adapted, names, weights)

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in (known := self.get_list_adapters()):
                raise UserError(f"adapter {name!r} is not loaded; loaded are {', '.join(known) or 'none'}")

    def get_list_adapters(self) -> list[str]:
        """Names of the loaded adapters."""
        return list(dict.fromkeys(name for _, layer in self._adapters() for name in layer.scaling))

    def get_active_adapters(self) -> list[str]:
        """Names of those that are active."""
        active = (name for _, layer in self._adapters() if not layer.disable_adapters for name in layer.active_adapters)
        return list(dict.fromkeys(active))

    def fuse_lora(self, lora_scale: float = 1.0, adapter_names: Sequence[str] | None = None) -> None:
        """Add adapters to the weights, so that passes cost what they cost without. The kernels serve the layers again
        after `unload_lora_weights`, which leaves fused weights as they are.

        Args:
            lora_scale: a factor on all of them.
            adapter_names: None: the active ones.

        Raises:
            UserError: an unknown name, or there is no adapter.
        """
        self._check_names(adapter_names or [])
        if not self.get_list_adapters():
            raise UserError("fuse_lora needs an adapter; call load_lora_weights first")
        for _, layer in self._adapters():
            if lora_scale != 1.0:
                layer.scale_layer(lora_scale)
            layer.merge(safe_merge=True, adapter_names=None if adapter_names is None else [*adapter_names])

    def unfuse_lora(self) -> None:
        """Take fused adapters out of the weights again, up to rounding."""
        for _, layer in self._adapters():
            layer.unmerge()

    def disable_lora(self) -> None:
        """Draw without adapters until `enable_lora`."""
        for _, layer in self._adapters():
            layer.enable_adapters(False)

    def enable_lora(self) -> None:
        """Draw with the active adapters again."""
        for _, layer in self._adapters():
            layer.enable_adapters(True)

    def delete_adapters(self, adapter_names: str | Sequence[str]) -> None:
        """Forget adapters. Raises UserError for an unknown name."""
        names = [adapter_names] if isinstance(adapter_names, str) else [*adapter_names]
        self._check_names(names)
        for name in names:
            if self.get_list_adapters() == [name]:
                self.unload_lora_weights()
                continue
            for _, layer in self._adapters():
                layer.delete_adapter(name)
            del self._configs()[name]

    def unload_lora_weights(self) -> None:
        """Forget all adapters: the network has its own layers again. What was fused stays in the weights."""
        for name, layer in [*self._adapters()]:
            parent, _, child = name.rpartition(".")
            setattr(self._adapted.get_submodule(parent), child, layer.get_base_layer())
        self._configs().clear()

    def save_lora_weights(self, save_directory: str | os.PathLike[str], adapter_name: str = "default") -> None:
        """Save an adapter as PEFT does; `load_lora_weights` and PEFT read it. Raises UserError for an unknown name."""
        self._check_names([adapter_name])
        from peft import get_peft_model_state_dict
        from safetensors.torch import save_file

        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        state = get_peft_model_state_dict(self._adapted, adapter_name=adapter_name)
        save_file(
            {f"{_PREFIX}{name}": tensor.detach().cpu().contiguous() for name, tensor in state.items()},
            folder / _FILES[1],
            metadata={"format": "pt"},
        )
        self._configs()[adapter_name].save_pretrained(folder)

    def _configs(self) -> dict[str, Any]:
        """PEFT's configuration of each adapter, which it keeps with the network."""
        configs: dict[str, Any] = getattr(self._adapted, "peft_config", {})
        return configs

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


def _check_peft() -> None:
    """Raises UserError where peft is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UserError('load_lora_weights needs peft, which is not installed; run pip install "vargen[lora]"')
