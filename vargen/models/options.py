"""Options of every command that loads a model, and of every one that draws; and checks of them that need no model.

Nothing here imports torch or opens a file. `vargen.models.source` finds the model, `vargen.pipelines.loading` loads it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vargen.base.bounds import (
    MAX_COMPILE_BUCKET,
    MAX_COUNT,
    MAX_SEED,
    check_choice,
    check_number,
    check_numbers,
    check_sampling,
)
from vargen.base.errors import UserError
from vargen.base.places import MODEL, READ

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


@dataclass(frozen=True)
class LoadingOptions:
    """Which model, for pictures or videos, and how it is loaded.

    Args:
        model: model folder, in the layout of diffusers or of transformers; or a name on the hub, such as
            deepseek-community/Janus-Pro-1B; or the name of a shipped one; null for the shipped default.
        revision: branch, tag or commit of a model on the hub; null for its main one.
        device: "cpu", "cuda", "cuda:1", "mps"; "auto" takes a GPU if there is one, a different one for each process.
        dtype: precision of the transformer: float32, bfloat16 or float16; "auto" is bfloat16 on a GPU and float32 on a
            CPU.
        device_map: where transformers puts the parts of a model, such as "auto" or "cuda:0", instead of `device`.
        quantization: int8, int4 (weights) or int8-dynamic (inputs of layers too), by our own kernels, for every family
            on a CPU; or bitsandbytes-8bit, bitsandbytes-4bit, torchao-int8 or torchao-int4; or a mapping of
            "quant_method" (bitsandbytes or torchao) and the fields of transformers' BitsAndBytesConfig or
            TorchAoConfig, where "quant_type" names a configuration of torchao and further fields are its own.
        draft_quantization: int8, int8-dynamic or int4, of the drafter; exact methods make the same
            pictures or answers with it.
        attn_implementation: "sdpa" or "eager"; null for transformers' choice.
    """

    model: str | None = field(default=None, metadata=MODEL)
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    device_map: str | None = None
    quantization: str | dict[str, Any] | None = None
    draft_quantization: str | None = None
    attn_implementation: str | None = None

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES)
        if self.device_map is not None and self.device != "auto":
            raise UserError("device cannot be given beside device_map, which says where the model goes; leave one out")
        check_attention(self.attn_implementation)
        if self.library_quantization is not None:
            quantization_fields(self.library_quantization)
        if self.draft_quantization is not None:
            check_choice("draft_quantization", self.draft_quantization, OWN_QUANTIZATION)

    @property
    def library_quantization(self) -> str | dict[str, Any] | None:
        """Quantization by a library while it loads."""
        return None if self.quantization in OWN_QUANTIZATION else self.quantization

    @property
    def special(self) -> dict[str, Any]:
        """Given options that some families do not support, by name."""
        asked = {
            "device_map": self.device_map,
            "quantization": self.library_quantization,
            "attn_implementation": self.attn_implementation,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """Given options that change a model's numbers, beside its weights and its precision."""
        names = ("quantization", "draft_quantization", "attn_implementation")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class ModelOptions(LoadingOptions):
    """Which model of pictures, and how it is loaded.

    Args:
        compile: make every decoding step one compiled graph. Each method takes seconds to minutes once, kept in a cache
            for later runs. Needs a C++ compiler, or Triton on a GPU. Pictures can differ where two tokens are about
            equally likely.
        compile_bucket: attention of compiled steps reads keys in multiples of this many tokens.
        family: family of a model whose config.json fits several, such as anole; null where it says which.
        tokenizer: folder of the text tokenizer, or its name on the hub, where it does not lie beside the model.
        vqvae: folder or file of what makes pictures of codes, where it does not lie in "vqvae" beside the model.
    """

    compile: bool = False
    compile_bucket: int = COMPILE_BUCKET
    family: str | None = None
    tokenizer: str | None = field(default=None, metadata=READ)
    vqvae: str | None = field(default=None, metadata=READ)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("compile_bucket", self.compile_bucket, 2, MAX_COMPILE_BUCKET)

    @property
    def beside_model(self) -> dict[str, str]:
        """What else is named to load a model of a family that draws token by token."""
        asked = {"family": self.family, "tokenizer": self.tokenizer, "vqvae": self.vqvae}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def special(self) -> dict[str, Any]:
        return self.beside_model | super().special

    @property
    def identity(self) -> dict[str, Any]:
        asked = super().identity | self.beside_model
        return asked | ({"compile_bucket": self.compile_bucket} if self.compile else {})


@dataclass(frozen=True)
class SamplingOptions(ModelOptions):
    """Options of every job that draws pictures.

    Args:
        seed: seed of the first picture. Picture i has `seed + i`, with every method.
        guidance_scale: how closely to follow the prompt, at the cost of variety; 1 is off; null for the model's own.
        guided_tokens: guide so many first tokens of a picture alone; the others cost one row instead of two. Half of
            them cost the shipped model 0.6 points of claims, a quarter 3.8. null for all.
        temperature: below 1 for more likely, above 1 for more varied pictures; 0 always takes the likeliest token; null
            for the model's own.
        top_k: choose among this number of likeliest tokens only; 0 for all; null for the model's own.
        top_p: choose among the likeliest tokens that together have this probability; 1 for all; null for the model's
            own.
    """

    seed: int = 0
    guidance_scale: float | None = None
    guided_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("seed", self.seed, 0, MAX_SEED)
        check_sampling(self.temperature, self.top_k, self.top_p, self.guidance_scale)
        check_numbers(self, {"guided_tokens": (1, MAX_COUNT)})

    @property
    def special(self) -> dict[str, Any]:
        return super().special | ({} if self.guided_tokens is None else {"guided_tokens": self.guided_tokens})

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling arguments by the names of a pipeline's call; None stands for the model's own."""
        own = {name: getattr(self, name) for name in ("guidance_scale", "temperature", "top_k", "top_p")}
        return own if self.guided_tokens is None else own | {"guided_tokens": self.guided_tokens}


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
