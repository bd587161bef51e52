"""One call for a plain language model: text goes on as in transformers' `generate`, in fewer passes.

Belongs here: the two calls, which players a word stands for, and checks of a user's arguments. Does not belong here:
any of the players, and the meaning of transformers' arguments (`generate_arguments.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from specdecode.checks import check_counts, is_integer, shown
from specdecode.drafters.copy_or_guess import CopyOrGuessDrafter, guess_sizes
from specdecode.drafters.draft_model import MOST_WAITING, DraftModelDrafter
from specdecode.drafters.draft_size import DraftSize, DraftSizer, FixedDraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.kernels.build import KERNELS
from specdecode.kernels.default_torch_mode import default_torch_mode
from specdecode.kernels.linears import served_linears
from specdecode.loop import DecodeResult, DecodeRun
from specdecode.roles import DecodeState, Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.text.criteria import CriteriaRun
from specdecode.text.generate_arguments import (
    GenerateArguments,
    parse,
    refuse,
    refuse_synced_gpus,
    step_together,
    through_transformers,
)
from specdecode.text.processed import ProcessedVerifier, Scores, Texts
from specdecode.trace import DecodeTrace

if TYPE_CHECKING:
    from specdecode.targets.transformers import TransformersTarget

Method = Literal["ar", "jacobi", "prompt-lookup"]

_DRAFT_LENGTHS = {"jacobi": 8, "prompt-lookup": 16, "draft-model": 4}
"""Where the call does not say; prompt lookup drafts at most so many."""
_MAX_NEW_TOKENS = 128
"""Where neither the call nor the model says how many."""
_LOOKUP = "prompt_lookup_num_tokens"


@dataclass
class GenerateResult:
    """The result of `generate`.

    Args:
        sequences: [B, T + N] int64, the prompts and the tokens after them; N is that of the longest row, and shorter
            ones are filled up with the pad token.
        lengths: [B] int64, new tokens of each row, its end of sequence included.
        trace: passes, accepted tokens and seconds.
        scores: where `output_scores` is asked for, for each of the N tokens its processed logits [B, V] float32, as
            transformers has them; a row that has ended says the pad token for certain. Else None.
        logits: where `output_logits` is asked for, the same before processors. Else None.
    """

    sequences: Tensor
    lengths: Tensor
    trace: DecodeTrace
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None


class DrafterMaker(Protocol):
    """A trained network that drafts for one model. It makes the drafter of every call.

    Attributes:
        draft_length: tokens drafted in a step where the call does not say.
    """

    @property
    def draft_length(self) -> int: ...

    def __call__(self, target: TransformersTarget, sizer: DraftSizer) -> Drafter:
        """A drafter of chains for the prompts of a target, which has not been prefilled.

        It may set the target's `feature_layers`. Raises ValueError if it drafts for another model.
        """


def _rounds_by_pass(layer: torch.nn.Module) -> bool:
    """Whether torch's dynamic quantization scales what enters a layer by the greatest value of all rows."""
    packed = getattr(layer, "_packed_params", None)
    of_torch = type(layer).__module__.startswith("torch.ao.nn.quantized.dynamic")
    return of_torch and getattr(packed, "dtype", None) == torch.qint8


@dataclass(frozen=True)
class _Players:
    """Who drafts, how passes are computed, and who is told: the arguments that transformers does not know."""

    method: str | None
    draft_model: Any
    drafter: Any
    draft_length: int | None
    generator: torch.Generator | Sequence[torch.Generator] | None
    kernels: str
    streamer: Any

    def __post_init__(self) -> None:
        if len(self.others) > 1:
            raise ValueError("draft_model and drafter both draft; leave out one of them")
        if self.drafter is not None and not (callable(self.drafter) and hasattr(self.drafter, "draft_length")):
            raise ValueError(
                f"drafter must be a trained head for this model, as vargen's load_text_drafter gives it, got "
                f"{shown(self.drafter)}"
            )
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, got {self.kernels!r}")
        if self.streamer is not None and not (hasattr(self.streamer, "put") and hasattr(self.streamer, "end")):
            raise ValueError(
                f"streamer must have put and end, as transformers' BaseStreamer, got {shown(self.streamer)}"
            )
        if self.draft_length is not None:
            check_counts(draft_length=self.draft_length)
        if self.method is not None and self.method not in get_args(Method):
            raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        if self.method is not None and self.others:
            other = self.others[0]
            raise ValueError(f"{other} is a method of its own; leave out method={self.method!r}, or {other}")
        if self.method == "ar" and self.draft_length is not None:
            raise ValueError(f"draft_length goes with a method that drafts, got {self.draft_length} with 'ar'")

    @property
    def name(self) -> str:
        """Who drafts: a method, "draft-model" or "drafter"."""
        return self.method or (self.others[0].replace("_", "-") if self.others else "prompt-lookup")

    @property
    def others(self) -> list[str]:
        """The arguments that draft by themselves."""
        return [name for name in ("draft_model", "drafter") if getattr(self, name) is not None]

    def check(self, model: Any, input_ids: Any, mask: Tensor | None) -> None:
        """Raises ValueError for prompts that are no tokens, and for what does not lie where they do."""
        from specdecode.targets.transformers import check_model

        check_model(model)
        if not isinstance(input_ids, Tensor):
            remedy = "give it as **inputs" if isinstance(input_ids, Mapping) else "int64 of shape [batch, length]"
            raise ValueError(f"input_ids must be a tensor, got a {type(input_ids).__name__}; {remedy}")
        if input_ids.is_nested or input_ids.layout != torch.strided:
            raise ValueError("input_ids must be a dense tensor, int64 of shape [batch, length]; call its to_dense()")
        if input_ids.ndim != 2 or 0 in input_ids.shape or input_ids.dtype != torch.int64:
            raise ValueError(
                f"input_ids must be int64 of shape [batch, length], got {input_ids.dtype} of {list(input_ids.shape)}"
            )
        for name, each in (("model", model), ("draft_model", self.draft_model), ("attention_mask", mask)):
            place = getattr(each, "device", input_ids.device)
            if place != input_ids.device and not hasattr(each, "_hf_hook"):  # which moves what it is given
                raise ValueError(
                    f"{name} must lie where input_ids do, on {input_ids.device}, got {place}; move one of them"
                )

        if self.name != "ar" and any(_rounds_by_pass(layer) for layer in model.modules()):
            warnings.warn(
                "layers of quantize_dynamic in qint8 round by all tokens of a pass: only method='ar' gives the tokens "
                "of plain decoding",
                stacklevel=4,
            )

    def looked_up(self, asked: int | None, own: int | None) -> _Players:
        """The same, or prompt lookup with the draft length of `prompt_lookup_num_tokens`, transformers' name for it.

        Args:
            asked, own: its value by the call and by the model, which counts where the call names nothing that drafts.

        Raises:
            ValueError: it is no number of tokens, or the call names something else that drafts.
        """
        is_free = self.method is None and not self.others
        lookup = own if asked in (None, own) and is_free else None if asked == own else asked
        if lookup is None:
            return self
        check_counts(prompt_lookup_num_tokens=lookup)
        if not is_free and self.method != "prompt-lookup":
            other = self.others[0] if self.others else f"method={self.method!r}"
            raise ValueError(f"{_LOOKUP} goes with prompt lookup; leave out {_LOOKUP} or {other}")
        length = lookup if self.draft_length is None else self.draft_length
        return replace(self, method="prompt-lookup", draft_length=length)


def generate(
    model: Any,
    input_ids: Tensor | None = None,
    *,
    attention_mask: Tensor | None = None,
    method: Method | None = None,
    draft_model: Any = None,
    drafter: DrafterMaker | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    eos_token_id: int | Sequence[int] | Tensor | None = None,
    pad_token_id: int | None = None,
    draft_length: int | None = None,
    kernels: Literal["auto", "plain"] = "auto",
    streamer: Any = None,
    tokenizer: Any = None,
    **settings: Any,
) -> GenerateResult:
    """Continue a batch of prompts. Every method is exact: greedy tokens equal those of plain decoding, and sampled
    tokens have the same distribution.

    What a call leaves open is as the model's `generation_config` says, penalties and sampling included.

    Args:
        model: a causal language model of transformers, in evaluation mode; see `TransformersTarget` for which.
        input_ids: [B, T] int64, padded on the left. They must be given.
        attention_mask: [B, T] bool or int64, 0 at padding; None: nothing is padded, and a pad token
            at the start is text, which is warned of.
        method: "prompt-lookup" copies what followed the newest tokens before; "jacobi" redraws a window of guesses
            until the model agrees with them; "ar" decodes plainly. None: the drafter or draft model if there is one,
            else "prompt-lookup".
        draft_model: a smaller model with the same tokenizer. Its vocabulary may be a few tokens larger or smaller.
        drafter: a head that was trained for this model.
        max_new_tokens: of a row, at most; None: as the model's `generation_config` or `max_length`, else 128.
        temperature: 0 is greedy; None: as `do_sample` and `generation_config` say, which usually is greedy. Above 0 it
            samples, unless the call says `do_sample=False`.
        top_k, top_p: filters at a `temperature`, see `SamplingConfig`; None: the model's own, else none. Beside
            `do_sample=True` they are transformers' own, whose `top_k` is 50.
        generator: one for all rows, or one per row, which makes a row's tokens independent of its batch; None: torch's
            default generator.
        eos_token_id: a row ends after this token, or any of these; None: the model's own; an empty list: none does.
        pad_token_id: fills up rows that ended; None: the model's own, else the first that ends a row, else 0.
        draft_length: tokens drafted in a step (Jacobi: the window); None: up to 16 by prompt lookup, as many as pay by
            what was accepted and what passes take, which changes no token; else 8 by Jacobi, 4 by a draft model, and
            as many as a drafter says.
        kernels: "auto": on a CPU, linear layers of few rows, and whole passes of models with Llama's layers, run in
            this package's kernels, where calling the modules would compute the same. The model is as before
            afterwards. "plain": the model's own modules alone.
        streamer: transformers' `BaseStreamer`; is given the prompts, then every token in order, once all rows have it,
            and its end, also where decoding fails.
        tokenizer: of the model; `stop_strings` need it.
        settings: other arguments of transformers' `generate`: `generation_config`, `logits_processor`,
            `stopping_criteria`, `prefix_allowed_tokens_fn`, and any setting of a `GenerationConfig`, such as
            `repetition_penalty`, `no_repeat_ngram_size`, `stop_strings` or `output_scores`.

    Raises:
        ValueError: an argument that cannot be served, by name.
    """
    if settings.get("assistant_model") is not None:
        raise ValueError("assistant_model is called draft_model here; give it under this name")
    if input_ids is None:
        raise ValueError("input_ids must be given, int64 of shape [batch, length]; inputs_embeds cannot be")
    players = _Players(method, draft_model, drafter, draft_length, generator, kernels, streamer)
    players.check(model, input_ids, attention_mask)
    from specdecode.targets.transformers import left_padded  # `specdecode` must not wait for transformers

    left_padded(attention_mask, *input_ids.shape)
    size = int(model.config.get_text_config().vocab_size)
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= size:
        raise ValueError(f"input_ids must lie in [0, {size}), the model's vocabulary")
    asked, own = settings.get("generation_config"), getattr(model, "generation_config", None)
    if max_new_tokens is not None:
        check_counts(max_new_tokens=max_new_tokens)
        settings["max_new_tokens"] = max_new_tokens
    elif all(_said(name, settings, asked, own) is None for name in ("max_new_tokens", "max_length")):
        settings["max_new_tokens"] = _MAX_NEW_TOKENS
    settings |= _sampling(_said("do_sample", settings, asked), temperature, top_k, top_p, asked, own)
    given = {"eos_token_id": eos_token_id, "pad_token_id": pad_token_id}
    ends, pads = (_tokens(name, _said(name, given, asked, own), size) for name in given)
    if attention_mask is None and {*pads} - {*ends, getattr(own, "bos_token_id", None)} & {*input_ids[:, 0].tolist()}:
        warnings.warn("input_ids start with the pad token, read as text; attention_mask says what pads", stacklevel=2)
    settings |= {
        "eos_token_id": ends or None,
        "pad_token_id": [*pads, *ends, 0][0],
        "attention_mask": torch.ones_like(input_ids) if attention_mask is None else attention_mask,
        "return_dict_in_generate": True,  # which here says that scores may be kept
    }
    result: GenerateResult = through_transformers(model, input_ids, partial(_decode, players), settings, tokenizer)
    return result


def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    method: Method | None = None,
    draft_model: Any = None,
    drafter: DrafterMaker | None = None,
    draft_length: int | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    kernels: Literal["auto", "plain"] = "auto",
    stream_to: Any = None,
    **model_kwargs: Any,
) -> Any:
    """The decoding method for transformers: `model.generate(..., custom_generate=specdecode.custom_generate)`.

    transformers calls it with everything prepared. `method`, `draft_model`, `drafter`, `draft_length`, `generator`,
    `kernels` and `stream_to` may be given to `model.generate`, which hands them on; they mean what they mean in
    `generate`.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, model_kwargs: of
            transformers.
        streamer: of transformers, which gives none to a callable (checked in 5.24).
        stream_to: a streamer, which is given the prompts, too.

    Returns:
        [B, T + N] int64; with `return_dict_in_generate` transformers' `GenerateDecoderOnlyOutput`, without a cache.

    Raises:
        ValueError: what cannot be decoded here, by name.
    """
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    if synced_gpus or step_together(model):
        refuse_synced_gpus()
    players = _Players(method, draft_model, drafter, draft_length, generator, kernels, stream_to)
    result = _decode(players, model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
    if not generation_config.return_dict_in_generate:
        return result.sequences
    return GenerateDecoderOnlyOutput(sequences=result.sequences, scores=result.scores, logits=result.logits)


def _decode(
    players: _Players,
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> GenerateResult:
    """What both calls do once transformers has prepared everything, which is handed on as it gives it."""
    # Before all else: a model with a state of its own is handed other arguments.
    players.check(model, input_ids, model_kwargs.get("attention_mask"))
    mask = refuse(generation_config, model_kwargs)
    players = players.looked_up(
        *(getattr(each, _LOOKUP, None) for each in (generation_config, model.generation_config))
    )
    arguments = parse(input_ids, logits_processor, stopping_criteria, generation_config)
    return _continue(model, input_ids, mask, arguments, players)


@default_torch_mode()
def _continue(
    model: Any, input_ids: Tensor, mask: Tensor | None, arguments: GenerateArguments, players: _Players
) -> GenerateResult:
    """Decode as the arguments say, by these players."""
    from specdecode.targets.llama_pass import llama_pass
    from specdecode.targets.transformers import TransformersTarget

    max_new_tokens, name = arguments.max_new_tokens, players.name
    usual = players.drafter.draft_length if name == "drafter" else _DRAFT_LENGTHS.get(name, 0)
    length = usual if players.draft_length is None else players.draft_length
    copies = name == "drafter" and players.draft_length is None and input_ids.device.type == "cpu"
    longest = max(length, _DRAFT_LENGTHS["prompt-lookup"]) if copies else length
    texts = Texts(input_ids, arguments.pad_token)
    sizes: dict[str, Any] = {"max_new_tokens": max_new_tokens, "max_draft_nodes": longest + 1}
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "sampling": arguments.sampling,
        "streams": _streams(players.generator, input_ids, arguments.sampling.temperature == 0),
        "stop_token": arguments.stop_tokens,
    }
    target = TransformersTarget(model, input_ids, mask, **sizes)
    keeps = arguments.keep_scores or arguments.keep_logits
    scores = Scores(arguments.pad_token, arguments.sampling) if keeps else None
    if arguments.processors is not None or keeps:
        settings["verifier"] = ProcessedVerifier(arguments.processors, texts, scores)
    room = {"max_draft_nodes": MOST_WAITING + 2, "vocab_size": target.vocab_size}
    smaller = _draft_target(players.draft_model, input_ids, mask, **sizes | room)
    sizer = FixedDraftSize(DraftSize(length + 1, length))
    drafter: Drafter | None = None
    if smaller is not None:
        drafter = DraftModelDrafter(smaller, sizer)
    elif name == "drafter" and copies:
        head = players.drafter(target, guess_sizes(length))
        lookup = PromptLookupDrafter(input_ids, LookupDraftLength(longest), mask)
        drafter = CopyOrGuessDrafter(lookup, head) if isinstance(head, EagleDrafter) else head
    elif name == "drafter":
        drafter = players.drafter(target, sizer)
    elif name == "jacobi":
        drafter = JacobiDrafter(target.vocab_size, sizer)
    elif name == "prompt-lookup":
        chosen = LookupDraftLength(length) if players.draft_length is None else sizer
        drafter = PromptLookupDrafter(input_ids, chosen, mask)
    settings["drafter"] = drafter
    stream = None if players.streamer is None else _Stream(players.streamer, arguments.pad_token, input_ids)
    try:
        with ExitStack() as serving:
            if stream is not None:  # also where decoding fails: who reads it in another thread waits for its end
                serving.callback(players.streamer.end)
            for each in (target, smaller):
                if each is not None and players.kernels == "auto" and input_ids.device.type == "cpu":
                    serving.enter_context(served_linears(each.model))
                    each.fast = llama_pass(each.model, input_ids.shape[1] + max_new_tokens + each.max_draft_nodes)
            run: DecodeRun
            if arguments.criteria is None:
                run = DecodeRun(target, **settings)
            else:
                kept = scores if arguments.keep_scores else None
                run = CriteriaRun(target, criteria=arguments.criteria, texts=texts, scores=kept, **settings)
            result = run.finish(None if stream is None else stream.step)
    except MemoryError as error:
        raise ValueError(f"max_new_tokens must leave room in memory, got {max_new_tokens}: {error}") from error
    return _padded(result, input_ids, arguments, scores)


def _padded(
    result: DecodeResult, input_ids: Tensor, arguments: GenerateArguments, scores: Scores | None
) -> GenerateResult:
    """The prompts and what was decoded, filled up with the pad token."""
    new = result.tokens[:, : int(result.lengths.max())]
    is_over = torch.arange(new.shape[1], device=new.device) >= result.lengths[:, None]
    sequences = torch.cat([input_ids, new.masked_fill(is_over, arguments.pad_token)], 1)
    if scores is None:
        return GenerateResult(sequences, result.lengths, result.trace)
    scores.cut(result.lengths.tolist())
    kept = (scores.scores, arguments.keep_scores), (scores.logits, arguments.keep_logits)
    return GenerateResult(
        sequences, result.lengths, result.trace, *(tuple(each) if is_wanted else None for each, is_wanted in kept)
    )


def _draft_target(draft_model: Any, *prompts: Tensor | None, **sizes: Any) -> TransformersTarget | None:
    """The draft model over the same prompts; None where there is none. Raises ValueError, naming it."""
    from specdecode.targets.transformers import TransformersTarget

    if draft_model is None:
        return None
    try:
        return TransformersTarget(draft_model, *prompts, **sizes)
    except ValueError as error:
        raise ValueError(f"draft_model: {error}") from error


class _Stream:
    """Gives a streamer the prompts, then the tokens that all rows have, place after place, as plain decoding does."""

    def __init__(self, streamer: Any, pad_token: int, prompts: Tensor) -> None:
        self._streamer, self._pad_token = streamer, pad_token
        self._given = 0
        streamer.put(prompts.cpu())

    def step(self, step: int, state: DecodeState) -> None:
        """See `DecodeRun.finish`."""
        lengths = state.lengths.tolist()
        until = min(compress(lengths, state.active.tolist()), default=max(lengths))  # all that go on have these
        tokens = state.tokens.cpu()
        for place in range(self._given, until):
            is_over = torch.tensor([place >= length for length in lengths])
            self._streamer.put(tokens[:, place].masked_fill(is_over, self._pad_token))
        self._given = max(self._given, until)


def _said(name: str, settings: dict[str, Any], *configs: Any) -> Any:
    """A setting, of the call or of the first configuration that has it."""
    said = [settings.get(name), *(getattr(config, name, None) for config in configs)]
    return next((value for value in said if value is not None), None)


def _sampling(
    do_sample: bool | None, temperature: float | None, top_k: int | None, top_p: float | None, *configs: Any
) -> dict[str, Any]:
    """Temperature and filters in the words of `generate`. Raises ValueError for a number out of range.

    A call that says `do_sample` means all of them as transformers does, whose own `top_k` is 50.
    """
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: value for name, value in given.items() if value is not None}
    SamplingConfig(**given)  # type: ignore[arg-type]
    if temperature == 0 or do_sample is False:
        return {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if temperature is None or do_sample:
        return given
    usual = {"top_k": 0, "top_p": 1.0}
    filters = {name: _said(name, given, *configs) for name in usual}
    return {"do_sample": True, "temperature": temperature} | {
        name: usual[name] if value is None else value for name, value in filters.items()
    }


def _streams(
    generator: torch.Generator | Sequence[torch.Generator] | None, input_ids: Tensor, is_greedy: bool
) -> RandomStreams:
    """One random stream per row; greedy decoding leaves torch's own generator as it is. Raises ValueError for another
    number of generators, or none at all."""
    if generator is None and is_greedy:
        return RandomStreams.from_seeds(range(len(input_ids)), input_ids.device)
    batch_size = len(input_ids)
    generators = list(generator) if isinstance(generator, Sequence) else [generator] * batch_size
    if len(generators) != batch_size:
        raise ValueError(f"generator must be one, or one for each of {batch_size} rows, got {len(generators)}")
    for each in generators:
        if each is not None and not isinstance(each, torch.Generator):
            raise ValueError(f"generator must be a torch.Generator, or one for each row, got {shown(each)}")
    return RandomStreams.from_generators(generators, input_ids.device)


def _tokens(name: str, tokens: Any, vocab_size: int) -> list[int]:
    """Tokens as a list, without -1, which transformers takes for no token.

    Raises ValueError, with the argument's name, for one outside the vocabulary.
    """
    given = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    listed = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for token in listed:
        if not is_integer(token) or not -1 <= token < vocab_size:
            raise ValueError(f"{name} must lie in [0, {vocab_size}), the model's vocabulary, got {token!r}")
    return [token for token in listed if token != -1]
