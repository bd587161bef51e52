"""One call for a plain language model: text goes on as in transformers' `generate`, in fewer passes.

Belongs here: which players a word stands for, checks of a user's arguments, and padding the result. Does not belong
here: any of the players.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from specdecode.checks import check_counts, is_integer
from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.draft_model import MOST_WAITING, DraftModelDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.kernels.build import KERNELS
from specdecode.kernels.linears import served_linears
from specdecode.loop import decode
from specdecode.roles import Drafter
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace

Method = Literal["ar", "jacobi", "prompt-lookup"]

_DRAFT_LENGTHS = {"jacobi": 8, "prompt-lookup": 8, "draft-model": 4}


@dataclass
class GenerateResult:
    """The result of `generate`.

    Args:
        sequences: [B, T + N] int64, the prompts and the tokens after them; N is that of the longest row, and shorter
            ones are filled up with the pad token.
        lengths: [B] int64, new tokens of each row, its end of sequence included.
        trace: passes, accepted tokens and seconds.
    """

    sequences: Tensor
    lengths: Tensor
    trace: DecodeTrace


def generate(
    model: Any,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    method: Method | None = None,
    draft_model: Any = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    draft_length: int | None = None,
    kernels: Literal["auto", "plain"] = "auto",
) -> GenerateResult:
    """Continue a batch of prompts. Every method is exact: greedy tokens equal those of plain decoding, and sampled
    tokens
    have the same distribution.

    Of the model's `generation_config` only the tokens that end and pad a row are read, no penalties or processors.

    Args:
        model: a causal language model of transformers, in evaluation mode; see `TransformersTarget` for which.
        input_ids: [B, T] int64, padded on the left.
        attention_mask: [B, T] bool or int64, 0 at padding; None: nothing is padded.
        method: "prompt-lookup" copies what followed the newest tokens before; "jacobi" redraws a window of guesses
            until the model agrees with them; "ar" decodes plainly. None: the draft model if there is one, else
            "prompt-lookup".
        draft_model: a smaller model with the same tokenizer. Its vocabulary may be a few tokens larger or smaller.
        max_new_tokens: of a row, at most.
        temperature, top_k, top_p: see `SamplingConfig`; temperature 0 is greedy.
        generator: one for all rows, or one per row, which makes a row's tokens independent of its batch; None: torch's
            default generator.
        eos_token_id: a row ends after this token, or any of these; None: the model's own; an empty list: none does.
        pad_token_id: fills up rows that ended; None: the model's own, else the first that ends a row, else 0.
        draft_length: tokens drafted in a step (Jacobi: the window); None: 8 without a draft model, 4 with one.
        kernels: "auto": on a CPU, linear layers of few rows, and whole passes of models with Llama's layers, run in
            this package's kernels, where calling the modules would compute the same. The model is as before
            afterwards. "plain": the model's own modules alone.

    Raises:
        ValueError: an argument that cannot be served, by name.
    """
    # Imported here: `specdecode` must not wait for transformers.
    from specdecode.targets.llama_pass import llama_pass
    from specdecode.targets.transformers import TransformersTarget

    name = _method(method, draft_model)
    if kernels not in KERNELS:
        raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, got {kernels!r}")
    _check_ids(input_ids)
    check_counts(max_new_tokens=max_new_tokens)
    if draft_length is not None:
        check_counts(draft_length=draft_length)
        if name == "ar":
            raise ValueError(f"draft_length goes with a method that drafts, got {draft_length} with method 'ar'")
    length = _DRAFT_LENGTHS.get(name, 0) if draft_length is None else draft_length
    streams = _streams(generator, input_ids)
    sampling = SamplingConfig(temperature, top_k, top_p)
    target = TransformersTarget(
        model, input_ids, attention_mask, max_new_tokens=max_new_tokens, max_draft_nodes=length + 1
    )
    size = target.vocab_size
    if int(input_ids.min()) < 0 or int(input_ids.max()) >= size:
        raise ValueError(f"input_ids must lie in [0, {size}), the model's vocabulary")
    own = getattr(model, "generation_config", None)
    ends = _tokens("eos_token_id", getattr(own, "eos_token_id", None) if eos_token_id is None else eos_token_id, size)
    pads = _tokens("pad_token_id", getattr(own, "pad_token_id", None) if pad_token_id is None else pad_token_id, size)
    sizer = FixedDraftSize(DraftSize(length + 1, length))
    drafter: Drafter | None = None
    smaller: TransformersTarget | None = None
    if name == "jacobi":
        drafter = JacobiDrafter(target.vocab_size, sizer)
    elif name == "prompt-lookup":
        drafter = PromptLookupDrafter(input_ids, sizer, attention_mask)
    elif name == "draft-model":
        try:
            smaller = TransformersTarget(
                draft_model,
                input_ids,
                attention_mask,
                max_new_tokens=max_new_tokens,
                max_draft_nodes=MOST_WAITING + 2,
                vocab_size=size,
            )
        except ValueError as error:
            raise ValueError(f"draft_model: {error}") from error
        drafter = DraftModelDrafter(smaller, sizer)

    try:
        with ExitStack() as serving:
            for each in [target, smaller] if kernels == "auto" else ():
                if each is not None:
                    serving.enter_context(served_linears(each.model))
                    each.fast = llama_pass(each.model, input_ids.shape[1] + max_new_tokens + each.max_draft_nodes)
            result = decode(
                target,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                streams=streams,
                drafter=drafter,
                stop_token=ends,
            )
    except MemoryError as error:
        raise ValueError(f"max_new_tokens must leave room in memory, got {max_new_tokens}: {error}") from error
    pad = [*pads, *ends, 0][0]
    new = result.tokens[:, : int(result.lengths.max())]
    is_over = torch.arange(new.shape[1], device=new.device) >= result.lengths[:, None]
    return GenerateResult(torch.cat([input_ids, new.masked_fill(is_over, pad)], 1), result.lengths, result.trace)


def _method(method: str | None, draft_model: Any) -> str:
    """The method that is meant. Raises ValueError for an unknown one, or two."""
    if method is not None and method not in get_args(Method):
        raise ValueError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if method is not None and draft_model is not None:
        raise ValueError(f"draft_model is a method of its own; leave out method={method!r}, or draft_model")
    return method or ("prompt-lookup" if draft_model is None else "draft-model")


def _check_ids(input_ids: object) -> None:
    """Raises ValueError for prompts that are no tokens."""
    if not isinstance(input_ids, Tensor):
        kind = type(input_ids).__name__
        raise ValueError(f"input_ids must be a tensor, int64 of shape [batch, length], got a {kind}")
    if input_ids.ndim != 2 or 0 in input_ids.shape or input_ids.dtype != torch.int64:
        raise ValueError(
            f"input_ids must be int64 of shape [batch, length], got {input_ids.dtype} of {list(input_ids.shape)}"
        )


def _streams(generator: torch.Generator | Sequence[torch.Generator] | None, input_ids: Tensor) -> RandomStreams:
    """One random stream per row. Raises ValueError for another number of generators, or none at all."""
    batch_size = len(input_ids)
    several = isinstance(generator, Sequence)
    generators = list(generator) if isinstance(generator, Sequence) else [generator] * batch_size
    if several and len(generators) != batch_size:
        raise ValueError(f"generator must be one, or one for each of {batch_size} rows, got {len(generators)}")
    for each in generators:
        if each is not None and not isinstance(each, torch.Generator):
            raise ValueError(f"generator must be a torch.Generator, or one for each row, got {each!r}")
    return RandomStreams.from_generators(generators, input_ids.device)


def _tokens(name: str, tokens: int | Sequence[int] | Tensor | None, vocab_size: int) -> list[int]:
    """Tokens as a list. Raises ValueError, with the argument's name, for one outside the vocabulary."""
    given = tokens.tolist() if isinstance(tokens, Tensor) else tokens
    listed = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for token in listed:
        if not is_integer(token) or not 0 <= token < vocab_size:
            raise ValueError(f"{name} must lie in [0, {vocab_size}), the model's vocabulary, got {token!r}")
    return listed
