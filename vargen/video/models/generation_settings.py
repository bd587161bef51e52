"""How a model's own generation config wants tokens drawn, and the refusal of settings that cannot be honoured.

Belongs here: from `generation_config.json` and what a caller asks for to settings of sampling, as transformers'
`generate` merges the two. Does not belong here: drawing (`specdecode.sampling`,
`specdecode.targets.repetition`), when an answer ends, and how long it may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdecode.sampling import SamplingConfig
from vargen.base.bounds import TEMPERATURES, check_number, check_sampling_bounds
from vargen.base.errors import UserError

_USUAL = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
"""What `generate` takes where neither the model nor the caller says."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_beam_groups": (1,), "num_return_sequences": (1,), "penalty_alpha": (0,), "dola_layers": (),
    "min_p": (0,), "top_h": (1,), "typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
    "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,),
    "bad_words_ids": ([],), "sequence_bias": ({}, []), "suppress_tokens": ([],), "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (), "forced_eos_token_id": (), "min_length": (0,), "min_new_tokens": (0,),
    "exponential_decay_length_penalty": (), "guidance_scale": (1,), "watermarking_config": (), "stop_strings": ([],),
    "max_time": (), "token_healing": (False,), "remove_invalid_values": (False,), "constraints": ([],),
    "force_words_ids": ([],),
}  # fmt: skip
"""Settings of `generate` that change what is said, which is not built here, and the values at which they do nothing,
beside null."""


@dataclass(frozen=True)
class GenerationSettings:
    """How tokens are drawn.

    Args:
        sampling: temperature and filters.
        repetition_penalty: 1 does nothing.
    """

    sampling: SamplingConfig
    repetition_penalty: float = 1.0


def stop_tokens(model: Any) -> tuple[int, ...]:
    """Token ids that end an answer, as the model's generation config has them; none where it has none."""
    listed = model.generation_config.eos_token_id
    return () if listed is None else tuple(listed) if isinstance(listed, list | tuple) else (listed,)


def generation_settings(
    own: Any,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
) -> GenerationSettings:
    """The model's settings, with those asked for in their place.

    Args:
        own: transformers' `GenerationConfig` of the model.
        temperature: 0 always takes the likeliest token; None: as the model's own, which may not draw at all.
            Below 0.01, as published ones have it, the likeliest token is always taken.
        top_k, top_p, repetition_penalty: None: the model's own, else those of `generate`.

    Raises:
        UserError: a number out of range, or a setting of the model's that cannot be honoured, by name.
    """
    check_sampling_bounds(temperature, top_k, top_p)
    for name, neutral in _NEUTRAL.items():
        value = getattr(own, name, None)
        if value is not None and value not in neutral:
            raise UserError(
                f"generation_config.json asks for {name} {value!r}, which cannot be honoured here; take it out of that "
                "file if answers may differ"
            )

    def merged(name: str, asked: Any) -> Any:
        listed = getattr(own, name, None)
        return asked if asked is not None else _USUAL[name] if listed is None else listed

    penalty = float(merged("repetition_penalty", repetition_penalty))
    check_number("repetition_penalty", penalty, 0.01, 100.0)
    draws = bool(getattr(own, "do_sample", False)) if temperature is None else temperature > 0
    heat = float(merged("temperature", temperature)) if draws else 0.0
    if heat < TEMPERATURES[0]:
        return GenerationSettings(SamplingConfig(temperature=0.0), penalty)
    sampling = SamplingConfig(heat, int(merged("top_k", top_k)), float(merged("top_p", top_p)))
    return GenerationSettings(sampling, penalty)
