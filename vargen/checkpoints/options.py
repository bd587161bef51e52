"""Options of every command that loads a model, and of every one that draws; and checks of them that need no model.

Nothing here imports torch or opens a file. `source.py` finds the model, `vargen.pipelines.loading` loads it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vargen.base.bounds import MAX_COMPILE_BUCKET, MAX_COUNT, MAX_PIXELS, MAX_SEED, SAMPLING_BOUNDS, check_choice
from vargen.base.errors import UserError
from vargen.base.options import LOADING, SAMPLING, Settings, option
from vargen.base.path_roles import MODEL, READ

DTYPES = ("auto", "float32", "bfloat16", "float16")
ATTENTION = ("sdpa", "eager")
"""Attention that reads the masks of draft tokens."""
NAMED_QUANTIZATION: dict[str, dict[str, Any]] = {
    "bitsandbytes-8bit": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "bitsandbytes-4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "torchao-int8": {"quant_method": "torchao", "quant_type": "Int8WeightOnlyConfig"},
    "torchao-int4": {"quant_method": "torchao", "quant_type": "Int4WeightOnlyConfig"},
}
"""Short names of common configurations."""
COMPILE_BUCKET = 128
"""Tokens. Attention over masked keys costs little in a pass, and smaller buckets need more captured graphs."""
QUANTIZERS = ("bitsandbytes", "torchao")
OWN_QUANTIZATION = ("int8", "int8-dynamic", "int4")
"""Quantization without a library, see `vargen.pipelines.quantization`."""


def check_attention(attn_implementation: object) -> None:
    """Refuse attention that cannot read masks of drafted tokens. Raises UserError."""
    if attn_implementation not in (None, *ATTENTION):
        raise UserError(
            f"attn_implementation must be one of {', '.join(ATTENTION)}, which read masks of drafted tokens, got "
            f"{attn_implementation!r}"
        )


def _given(**asked: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class LoadingOptions(Settings):
    """Which model, for pictures or videos, and how it is loaded."""

    model: str | None = option(None, path=MODEL)
    """Model folder, in the layout of diffusers or of transformers; or a name on the hub, such as
    deepseek-community/Janus-Pro-1B; or the name of a shipped one; null for the shipped default."""
    revision: str | None = option(None, group=LOADING)
    """Branch, tag or commit of a model on the hub; null for its main one."""
    device: str = option("auto", group=LOADING)
    """Name of a device, such as "cpu", "cuda", "cuda:1" or "mps"; "auto" takes a GPU if there is one, a different one
    for each process."""
    dtype: str = option("auto", choices=DTYPES, group=LOADING)
    """Precision of the transformer: float32, bfloat16 or float16; "auto" is bfloat16 on a GPU, and on a CPU that
    multiplies it for picture models published in it; else float32."""
    device_map: str | None = option(None, group=LOADING)
    """Where transformers puts the parts of a model, such as "auto" or "cuda:0", instead of `device`."""
    quantization: str | dict[str, Any] | None = option(None, group=LOADING)
    """One of int8, int4 (weights) or int8-dynamic (inputs of layers too), by our own kernels, for every family on a
    CPU; or bitsandbytes-8bit, bitsandbytes-4bit, torchao-int8 or torchao-int4; or a mapping of "quant_method"
    (bitsandbytes or torchao) and the fields of transformers' BitsAndBytesConfig or TorchAoConfig, where "quant_type"
    names a configuration of torchao and further fields are its own."""
    draft_quantization: str | None = option(None, choices=OWN_QUANTIZATION, group=LOADING)
    """Quantization of the drafter: int8, int8-dynamic or int4. Exact methods make the same pictures or answers with
    it."""
    attn_implementation: str | None = option(None, choices=ATTENTION, group=LOADING)
    """Either "sdpa" or "eager"; null for transformers' choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device_map is not None and self.device != "auto":
            raise UserError("device cannot be given beside device_map, which says where the model goes; leave one out")
        if self.library_quantization is not None:
            quantization_fields(self.library_quantization)

    @property
    def library_quantization(self) -> str | dict[str, Any] | None:
        """Quantization by a library while it loads."""
        return None if self.quantization in OWN_QUANTIZATION else self.quantization

    @property
    def special(self) -> dict[str, Any]:
        """Given options that some families do not support, by name."""
        attention = self.attn_implementation
        return _given(device_map=self.device_map, quantization=self.library_quantization, attn_implementation=attention)

    @property
    def identity(self) -> dict[str, Any]:
        """Given options that change a model's numbers, beside its weights and its precision."""
        names = ("quantization", "draft_quantization", "attn_implementation")
        return _given(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """Which model of pictures, and how it is loaded."""

    compile: bool = option(False, group=LOADING)
    """Make every decoding step one compiled graph. Each method takes seconds to minutes once, kept in a cache for later
    runs. Needs a C++ compiler, or Triton on a GPU. Pictures can differ where two tokens are about equally likely."""
    compile_bucket: int = option(COMPILE_BUCKET, least=2, most=MAX_COMPILE_BUCKET, group=LOADING)
    """Attention of compiled steps reads keys in multiples of this many tokens."""
    family: str | None = option(None, group=LOADING)
    """Family of a model whose config.json fits several, such as anole; null where it says which."""
    tokenizer: str | None = option(None, path=MODEL, group=LOADING)
    """Folder of the text tokenizer, or its name on the hub, where it does not lie beside the model."""
    vqvae: str | None = option(None, path=READ, group=LOADING)
    """Folder or file of what makes pictures of codes, where it does not lie in "vqvae" beside the model."""

    @property
    def beside_model(self) -> dict[str, str]:
        """What else is named to load a model of a family that draws token by token."""
        return _given(family=self.family, tokenizer=self.tokenizer, vqvae=self.vqvae)

    @property
    def special(self) -> dict[str, Any]:
        return self.beside_model | super().special

    @property
    def identity(self) -> dict[str, Any]:
        asked = super().identity | self.beside_model
        return asked | ({"compile_bucket": self.compile_bucket} if self.compile else {})


@dataclass(frozen=True)
class SamplingOptions(ModelOptions):
    """Options of every job that draws pictures."""

    seed: int = option(0, least=0, most=MAX_SEED, group=SAMPLING)
    """Seed of the first picture. Picture i has `seed + i`, with every method."""
    guidance_scale: float | None = option(None, **SAMPLING_BOUNDS["guidance_scale"], group=SAMPLING)
    """How closely to follow the prompt, at the cost of variety; 1 is off; null for the model's own."""
    negative_prompt: str | None = option(None, group=SAMPLING)
    """What guidance leads away from in every picture; null for the model's own null prompt."""
    guided_tokens: int | None = option(None, least=1, most=MAX_COUNT, group=SAMPLING)
    """Guide so many first tokens of a picture alone; the others cost one row instead of two, and follow the prompt
    less closely. null for all."""
    temperature: float | None = option(None, **SAMPLING_BOUNDS["temperature"], group=SAMPLING)
    """Below 1 for more likely, above 1 for more varied pictures; 0 always takes the likeliest token; null for the
    model's own."""
    top_k: int | None = option(None, **SAMPLING_BOUNDS["top_k"], group=SAMPLING)
    """Choose among this number of likeliest tokens only; 0 for all; null for the model's own."""
    top_p: float | None = option(None, **SAMPLING_BOUNDS["top_p"], group=SAMPLING)
    """Choose among the likeliest tokens that together have this probability; 1 for all; null for the model's own."""

    @property
    def special(self) -> dict[str, Any]:
        return super().special | self._of_some_families

    @property
    def _of_some_families(self) -> dict[str, Any]:
        return _given(negative_prompt=self.negative_prompt or None, guided_tokens=self.guided_tokens)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling arguments by the names of a pipeline's call; None stands for the model's own."""
        own = {name: getattr(self, name) for name in ("guidance_scale", "temperature", "top_k", "top_p")}
        return own | self._of_some_families


@dataclass(frozen=True)
class SizedOptions(SamplingOptions):
    """Options of a job that draws pictures of a size that a user may choose."""

    height: int | None = option(None, least=1, most=MAX_PIXELS)
    """Height of the pictures in pixels, together with `width`, for a family that draws several sizes (Emu3 multiples of
    8, GLM-Image of 32); null for the model's usual size."""
    width: int | None = option(None, least=1, most=MAX_PIXELS)
    """Width of the pictures in pixels, together with `height`."""
    ratio: str | None = None
    """Ratio of width to height instead of both, such as "16:9". The picture has about as many pixels as usual."""


def quantization_fields(quantization: str | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a quantization, its "quant_method" among them. Raises UserError for an unknown name or method, or a
    package that is not installed."""
    if isinstance(quantization, str):
        if quantization not in NAMED_QUANTIZATION:
            known = ", ".join((*OWN_QUANTIZATION, *NAMED_QUANTIZATION))
            raise UserError(f"quantization must be one of {known}, or a mapping, got {quantization!r}")
        quantization = NAMED_QUANTIZATION[quantization]
    method: Any = quantization.get("quant_method")
    check_choice("quantization.quant_method", method, QUANTIZERS)
    if importlib.util.find_spec(method) is None:
        raise UserError(f"quantization needs {method}, which is not installed; run pip install {method}")
    return dict(quantization)
