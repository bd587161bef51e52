"""The arguments of transformers' `generate`, as the core decodes by them.

Belongs here: reading what `generate` has prepared (its configuration, processors and criteria), and refusing by name
those that cannot be decoded this way. Does not belong here: decoding (`generate.py`), and transformers' own merging of
a call's arguments with the model's `generation_config`, which is done by `model.generate` itself.

transformers is imported within functions: the core must not wait for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from specdecode.checks import is_integer, shown
from specdecode.sampling import SamplingConfig
from specdecode.text.criteria import Criteria
from specdecode.text.processed import Processors

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,), "num_beam_groups": (1,), "penalty_alpha": (0,), "dola_layers": (), "constraints": (),
    "force_words_ids": (), "assistant_early_exit": (), "assistant_ensemble_weight": (1,), "speculation_type": (),
    "use_mtp": (False,), "output_attentions": (False,), "output_hidden_states": (False,), "token_healing": (False,),
}  # fmt: skip
"""Settings of `generate` that this core cannot honour, and the values at which they do nothing, beside None."""

_INTEGERS = (
    *("max_length", "min_length", "min_new_tokens", "num_return_sequences", "forced_bos_token_id"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_beams"),
)
_NUMBERS = (
    *("max_time", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "guidance_scale"),
    *("repetition_penalty", "encoder_repetition_penalty"),
)
_TOKENS = ("suppress_tokens", "begin_suppress_tokens", "forced_eos_token_id")
"""Settings by their kind, which transformers takes for granted."""

_HARMLESS = ("use_cache", "logits_to_keep", "return_dict")
"""What `generate` hands on to the model's forward and what decoding here decides by itself."""

_STATEFUL = ("UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor")
"""Processors that count on rows of one length, since they remember the last text."""

_OF_DRAFTS = (
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "target_lookbehind"),
    *("assistant_lookbehind", "assistant_tokenizer", "max_matching_ngram_size"),
)
"""How transformers drafts, which a call that drafts by this core cannot ask for."""


@dataclass(frozen=True)
class GenerateArguments:
    """How a call wants its rows decoded.

    Args:
        max_new_tokens: of a row, at most.
        sampling: temperature and filters, applied behind `processors`.
        processors: change logits by the text so far; None: nothing does.
        stop_tokens: end a row.
        criteria: end rows, too; None: nothing else does.
        pad_token: fills up rows that ended.
        keep_scores, keep_logits: whether the logits of every token are wanted, processed or as they were.
    """

    max_new_tokens: int
    sampling: SamplingConfig
    processors: Processors | None
    stop_tokens: list[int]
    criteria: Criteria | None
    pad_token: int
    keep_scores: bool
    keep_logits: bool


def parse(
    input_ids: Tensor, logits_processor: Sequence[Any], stopping_criteria: Sequence[Any], generation_config: Any
) -> GenerateArguments:
    """What transformers' `generate` has prepared for its decoding method.

    Args:
        input_ids: [B, T] int64.
        logits_processor: a `LogitsProcessorList`, temperature and filters included.
        stopping_criteria: a `StoppingCriteriaList` with the greatest length and the tokens that end a row.
        generation_config: of the call, merged with the model's.

    Raises:
        ValueError: no length, or a processor that cannot serve a batch, by name.
    """
    from transformers import LogitsProcessorList, StoppingCriteriaList
    from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

    keeps = bool(generation_config.return_dict_in_generate)
    for processor in logits_processor:
        if type(processor).__name__ in _STATEFUL and len(input_ids) > 1:
            raise ValueError(
                f"{type(processor).__name__} keeps a state for rows of one length; decode its rows one by one"
            )
    sampling, processors = _peel(logits_processor)
    if not generation_config.do_sample:
        sampling = SamplingConfig(temperature=0)
    stops: list[int] = []
    others, lengths = StoppingCriteriaList(), []
    for criterion in stopping_criteria:
        if type(criterion) is MaxLengthCriteria:
            lengths.append(int(criterion.max_length) - input_ids.shape[1])
        elif type(criterion) is EosTokenCriteria:
            stops += criterion.eos_token_id.flatten().tolist()
        else:
            others.append(criterion)
    if not lengths or min(lengths) < 1:
        raise ValueError("max_new_tokens must be at least 1, or max_length greater than the prompts are long")
    pads = [generation_config.pad_token_id, *stops, 0]
    return GenerateArguments(
        max_new_tokens=min(lengths),
        sampling=sampling,
        processors=LogitsProcessorList(processors) if processors else None,
        stop_tokens=[token for token in dict.fromkeys(stops) if token >= 0],  # -1 stands for none
        criteria=others or None,
        pad_token=next(int(token) for token in pads if token is not None and int(token) >= 0),
        keep_scores=keeps and bool(generation_config.output_scores),
        keep_logits=keeps and bool(generation_config.output_logits),
    )


def _peel(processors: Sequence[Any]) -> tuple[SamplingConfig, list[Any]]:
    """Temperature, top-k and top-p where they are the last in this order, as a `SamplingConfig`, and the others."""
    from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    left, found = list(processors), {}
    for kind, name in (
        (TopPLogitsWarper, "top_p"),
        (TopKLogitsWarper, "top_k"),
        (TemperatureLogitsWarper, "temperature"),
    ):
        if left and type(left[-1]) is kind and getattr(left[-1], "min_tokens_to_keep", 1) == 1:
            found[name] = getattr(left.pop(), name)
    return SamplingConfig(**found), left


def refuse(generation_config: Any, model_kwargs: Mapping[str, Any]) -> Tensor | None:
    """Refuse, by name, arguments that cannot be obeyed. Returns the attention mask, if there is one.

    Args:
        generation_config: of the call, merged with the model's.
        model_kwargs: everything that is meant for the model's forward.

    Raises:
        ValueError: what cannot be decoded here, by name.
    """
    for name, neutral in _NEUTRAL.items():
        value = getattr(generation_config, name, None)
        if value is not None and value not in neutral:
            raise ValueError(f"{name} is {value!r}, which specdecode cannot honour; use model.generate without it")
    left = {name: value for name, value in model_kwargs.items() if value is not None and name not in _HARMLESS}
    if not left.get("mm_encoder_outputs", True):  # set by transformers for models that can read more than text
        del left["mm_encoder_outputs"]
    mask, positions = left.pop("attention_mask", None), left.pop("position_ids", None)
    for name in ("cache", "past_key_values"):
        given = left.pop(name, None)
        if given is not None and (getattr(given, "_is_user_defined", False) or int(given.get_seq_length()) > 0):
            raise ValueError("cache (past_key_values) cannot be given: specdecode has a cache of its own; leave it out")
    if positions is not None and not _is_counted(positions, mask):
        raise ValueError("position_ids cannot be given: positions are counted from the first token of each prompt")
    if left:
        raise ValueError(f"{', '.join(left)} cannot be given: specdecode.generate continues text alone")
    return mask


def refuse_synced_gpus() -> None:
    """Raises ValueError."""
    raise ValueError("synced_gpus cannot be honoured: rows of several machines do not step together here")


def step_together(model: Any) -> bool:
    """Whether a model's weights lie in shards, so that transformers lets all machines take as many passes."""
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    several = several and torch.distributed.get_world_size() > 1
    return several and (bool(is_deepspeed_zero3_enabled()) or bool(is_fsdp_managed_module(model)))


def _is_counted(positions: Tensor, mask: Tensor | None) -> bool:
    """Whether positions [B or 1, T] are those that every token of a left-padded prompt has by itself."""
    if mask is None:
        return torch.equal(positions, torch.arange(positions.shape[-1], device=positions.device).expand_as(positions))
    return positions.shape == mask.shape and bool((positions == mask.long().cumsum(1) - 1)[mask.bool()].all())


def through_transformers(
    model: Any, input_ids: Tensor, decode: Callable[..., Any], arguments: Mapping[str, Any], tokenizer: Any = None
) -> Any:
    """Let `model.generate` merge a call's arguments with the model's own, and decode by `decode`.

    Args:
        model: of transformers.
        input_ids: [B, T] int64.
        decode: in the place of transformers' decoding methods.
        arguments: of `generate`; settings in a `generation_config` among them count less than others.
        tokenizer: for `stop_strings`. A callable in transformers is not given it, so these become a criterion here.

    Raises:
        ValueError: an argument that transformers or this core refuses, by name.
    """
    from transformers import GenerationConfig, StoppingCriteriaList
    from transformers.generation.stopping_criteria import StopStringCriteria

    own = arguments.get("generation_config")
    if own is not None and not isinstance(own, GenerationConfig):
        raise ValueError(f"generation_config must be a GenerationConfig of transformers, got a {type(own).__name__}")
    for name in ("logits_processor", "stopping_criteria"):
        if arguments.get(name) is not None and not isinstance(arguments[name], list):
            raise ValueError(f"{name} must be a list, such as transformers' own, got {shown(arguments[name])}")
    settings = {} if own is None else _settings(own)
    settings |= {name: value for name, value in arguments.items() if name != "generation_config"}
    _check_kinds(settings)
    unsaid = {"past_key_values", "num_beams", "num_return_sequences"}  # of None transformers warns, or ends
    settings = {name: value for name, value in settings.items() if value is not None or name not in unsaid}
    settings.pop("cache_implementation", None)  # transformers would make that cache, or decode by itself ("paged")
    for name in _OF_DRAFTS:
        if settings.get(name) is not None:
            raise ValueError(f"{name} cannot be honoured: specdecode drafts in its own way; see draft_length")
    synced = settings.pop("synced_gpus", None)  # transformers tells a callable nothing of it
    if step_together(model) if synced is None else synced:
        refuse_synced_gpus()
    strings = settings.pop("stop_strings", getattr(model.generation_config, "stop_strings", None))
    if strings:
        if tokenizer is None:
            raise ValueError("stop_strings need the model's tokenizer; give it as tokenizer")
        if not hasattr(tokenizer, "get_vocab"):
            raise ValueError(f"tokenizer must be the model's, of transformers, got {shown(tokenizer)}")
        criteria = StoppingCriteriaList(settings.get("stopping_criteria") or [])
        settings["stopping_criteria"] = StoppingCriteriaList([*criteria, StopStringCriteria(tokenizer, strings)])
        settings["stop_strings"] = None
    return model.generate(input_ids, custom_generate=decode, **settings)


def _check_kinds(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for a setting of another kind than transformers takes for granted, by name."""
    for name, value in settings.items():
        if value is None or isinstance(value, Tensor):
            continue
        one = isinstance(value, str) or not isinstance(value, Collection)
        each = [value] if one else list(value)
        if name in _INTEGERS and not is_integer(value):
            wanted = "an integer"
        elif name in _NUMBERS and (not isinstance(value, Real) or isinstance(value, bool)):
            wanted = "a number"
        elif name.endswith("repetition_penalty") and not (isinstance(value, float) and value > 0):
            wanted = "a float above 0"
        elif name in _TOKENS and not (all(map(is_integer, each)) and (not one or name == "forced_eos_token_id")):
            wanted = "a list of tokens"
        elif name == "exponential_decay_length_penalty" and (len(each) != 2 or not is_integer(each[0])):
            wanted = "a start, which is an integer, and a factor"
        elif name == "stop_strings" and not all(isinstance(text, str) for text in each):
            wanted = "text or a list of texts"
        else:
            continue
        raise ValueError(f"{name} must be {wanted}, got {shown(value)}")


def _settings(generation_config: Any) -> dict[str, Any]:
    """What a `GenerationConfig` says."""
    said = copy.deepcopy(vars(generation_config))
    return {
        name: value
        for name, value in said.items()
        if value is not None and not name.startswith("_") and name != "transformers_version"
    }
