"""Answers about videos: a target, perhaps a smaller model, a processor, and any method of `vargen.video.methods`.

Belongs here: loading, one call, and the account of it. Does not belong here: reading video files (`frames.py`), what a
method is built from (`prompt.py`), several methods side by side (`vargen.jobs.video_benchmark`).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.utils import logging as transformers_logging

from metrics.speculation import CallRecord
from specdecode.finite import NotFiniteError as LogitsError
from specdecode.parallel.loop import chain_layout
from specdecode.roles import DecodeState
from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace, TokenOrigin
from specdecode.verifiers.loose import relevance_to
from vargen.bounds import MAX_NEW_TOKENS, check_number, check_sampling
from vargen.errors import NotFiniteError, UserError
from vargen.methods.base import MethodConfig
from vargen.models.finite import check_weights
from vargen.models.model_folder import read_json
from vargen.reading import reason_of
from vargen.resources import find_trained_drafters, find_video_model
from vargen.video.architectures.catalogue import architecture_of, find_architecture
from vargen.video.drafters.drafter_folder import load_drafter
from vargen.video.drafters.feature_drafter import FeatureDrafter
from vargen.video.frames import QuestionWarning, VideoFrames, processor_inputs
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.methods.catalogue import resolve_video_method
from vargen.video.players import Generation
from vargen.video.prompt import Prompt


@dataclass
class Answer:
    """An answer and what it cost.

    Args:
        text: without special tokens.
        token_ids: the stop token included, where there is one.
        tokens: the text of each token.
        trace: what happened; its phases are "encode" (processor and vision towers), "prefill" and "decode".
        seconds: wall clock of everything.
        prompt_tokens: of the prompt, visual ones included.
        visual_tokens: of the video.
        method: its settings.
        run_lengths: of parallel decoding: drafted tokens accepted between two rejections; else empty.
        draft_passes: forwards of the drafter, its prompt's included; None where it has no network of its own beside
            the target, in this process.
        draft_flops: floating-point operations of a trained drafter's forwards, output head included; else None.
    """

    text: str
    token_ids: list[int]
    tokens: list[str]
    trace: DecodeTrace
    seconds: float
    prompt_tokens: int
    visual_tokens: int
    method: VideoMethodConfig
    run_lengths: tuple[int, ...] = ()
    draft_passes: int | None = None
    draft_flops: int | None = None

    @property
    def origins(self) -> list[TokenOrigin]:
        """How each token came about."""
        return self.trace.token_origins[0][: len(self.token_ids)]

    @property
    def record(self) -> CallRecord:
        """The account, for `metrics.speculation.summarise`."""
        return CallRecord.from_trace(self.trace.to_dict(), self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values, ready for JSON."""
        return {
            "text": self.text,
            "method": self.method.to_dict(),
            "exact": self.method.exact,
            "prompt_tokens": self.prompt_tokens,
            "visual_tokens": self.visual_tokens,
            "token_ids": self.token_ids,
            "origins": [origin.name.lower() for origin in self.origins],
            "relaxed_positions": [place for place, origin in enumerate(self.origins) if origin is TokenOrigin.RELAXED],
            "seconds": self.seconds,
            "run_lengths": list(self.run_lengths),
            "draft_passes": self.draft_passes,
            "draft_flops": self.draft_flops,
            **self.trace.to_dict(),
        }


class VideoAnswerer:
    """Answers questions about videos.

    Args:
        model: of transformers, of an architecture in `vargen.video.architectures.catalogue`.
        processor: its processor.
        draft_model: a smaller model of the same words, or None.
        drafters: folders of trained drafters for this model, by kind, for methods that name none.

    Raises:
        UserError: an architecture that cannot be served.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        draft_model: Any | None = None,
        drafters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        for each in (model, draft_model):
            if each is not None:
                architecture_of(each)
        self.model = model.eval().requires_grad_(False)
        self.processor = processor
        self.draft_model = None if draft_model is None else draft_model.eval().requires_grad_(False)
        self.drafters = dict(drafters or {})
        self._trained: dict[tuple[str, bool | None], FeatureDrafter] = {}
        self._lasting: dict[Hashable, Any] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str] | None = None,
        draft_model: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        processor: Any | None = None,
    ) -> VideoAnswerer:
        """Load a pair.

        Args:
            model: folder of a model with its processor, or the name of a shipped one; None: the shipped target.
            draft_model: likewise; None: the one shipped for the shipped target, and none for others.
            device: of both.
            dtype: of both, such as "bfloat16".
            processor: of `load_processor(model)`, where that has been called already.

        Raises:
            UserError: no such model, or the two have different words.
        """
        folder = find_video_model(model)
        processor = load_processor(model) if processor is None else processor
        if draft_model is None and model is None:
            draft_model = f"{folder.name}-draft"
        draft_folder = None if draft_model is None else find_video_model(draft_model)
        models = [None if each is None else _load(each, device, dtype) for each in (folder, draft_folder)]
        if draft_folder is not None:
            check_same_words(processor.tokenizer, load_processor(draft_folder).tokenizer)
        return cls(models[0], processor, models[1], find_trained_drafters(folder))

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """What ends an answer."""
        listed = self.model.generation_config.eos_token_id
        if listed is None:
            listed = self.processor.tokenizer.eos_token_id
        return tuple(listed) if isinstance(listed, Sequence) else (int(listed),)

    def answer(
        self,
        frames: VideoFrames,
        question: str,
        method: str | MethodConfig = "ar",
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        on_text: Callable[[str], None] | None = None,
        on_tokens: Callable[[list[str], list[TokenOrigin]], None] | None = None,
    ) -> Answer:
        """Answer a question about a video.

        Args:
            frames: of `vargen.video.frames.read_video`.
            question: any words the processor knows.
            method: a name or settings.
            max_new_tokens: at most so many.
            temperature: 0 always takes the likeliest token.
            top_p: of sampling.
            seed: of the request; the same seed and video give the same answer, by an exact method the same as by plain
                decoding.
            on_text: called with every new piece of text.
            on_tokens: called after every pass with the texts of all tokens so far, special ones left out, and how each
                came about. What either raises ends the answer.

        Raises:
            UserError: a value out of range, or a method that needs what is not there.
        """
        told = (on_text, on_tokens)
        (result,) = self._answer([(frames, question)], method, [seed], told, max_new_tokens, temperature, top_p)
        return result

    def answer_batch(
        self,
        questions: Sequence[tuple[VideoFrames, str]],
        method: str | MethodConfig = "ar",
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seeds: Sequence[int] | None = None,
    ) -> list[Answer]:
        """Answer several questions at once, each about a video of its own.

        Args:
            questions: videos, and what is asked about each.
            seeds: of the requests; None: all 0.
            method, max_new_tokens, temperature, top_p: as of `answer`.

        Returns:
            What `answer` gives for each. Seconds, and the drafter's passes and operations, are those of all together.

        Raises:
            UserError: as `answer`; or no question, another number of seeds, or a method that takes one at a time.
        """
        seeds = [0] * len(questions) if seeds is None else seeds
        if not questions or len(seeds) != len(questions):
            raise UserError(f"questions and seeds must be as many, at least one: {len(questions)} and {len(seeds)}")
        return self._answer(questions, method, seeds, (None, None), max_new_tokens, temperature, top_p)

    def _answer(
        self,
        questions: Sequence[tuple[VideoFrames, str]],
        method: str | MethodConfig,
        seeds: Sequence[int],
        told: tuple[Callable[[str], None] | None, Callable[[list[str], list[TokenOrigin]], None] | None],
        max_new_tokens: int,
        temperature: float,
        top_p: float,
    ) -> list[Answer]:
        config = resolve_video_method(method)
        check_number("max_new_tokens", max_new_tokens, 1, MAX_NEW_TOKENS)
        check_sampling(temperature, None, top_p)
        sampling = SamplingConfig(temperature=temperature, top_p=top_p)
        began = time.perf_counter()
        trace = DecodeTrace(len(questions), self.model.device)
        show = _Streamer(self.processor.tokenizer, trace, *told)
        with trace.phase("encode"):
            prompt = self.prompt([self._inputs(*each) for each in questions], max_new_tokens)
            try:
                players = config.build(prompt)
            except ValueError as error:
                raise UserError(f"{config.name}: {error}") from error
        try:
            decoded = players.decode(Generation(max_new_tokens, sampling, seeds, self.stop_tokens, trace, show.step))
        except LogitsError as error:
            raise NotFiniteError(
                error.row,
                f"answer {error.row + 1}: the model's logits are not finite at step {error.step}: numbers too large "
                "for its precision; give dtype float32",
            ) from error
        show.end(decoded.token_ids[0])
        seconds, tokenizer = time.perf_counter() - began, self.processor.tokenizer
        return [
            Answer(
                text=tokenizer.decode(token_ids, skip_special_tokens=True),
                token_ids=token_ids,
                tokens=[tokenizer.decode([token]) for token in token_ids],
                trace=trace.of_row(row),
                seconds=seconds,
                prompt_tokens=prompt.requests[row].length,
                visual_tokens=prompt.requests[row].num_visual,
                method=config,
                run_lengths=decoded.run_lengths,
                draft_passes=decoded.draft_passes,
                draft_flops=decoded.draft_flops,
            )
            for row, token_ids in enumerate(decoded.token_ids)
        ]

    def _inputs(self, frames: VideoFrames, question: str) -> dict[str, Tensor]:
        """What the model is fed, on its device."""
        inputs = processor_inputs(self.processor, frames, question)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def prompt(self, inputs: Sequence[Mapping[str, Tensor]], max_new_tokens: int = 256) -> Prompt:
        """What the processor has made, as methods take it."""
        special = tuple(self.processor.tokenizer.all_special_ids)
        drafters = self.trained_drafter
        return Prompt(self.model, inputs, max_new_tokens, self.draft_model, special, drafters, self._lasting)

    def trained_drafter(self, kind: str, folder: str | None = None, text_only: bool | None = None) -> FeatureDrafter:
        """A network that drafts for the target, read once for all answers.

        Args:
            kind: which one of those that came with the model.
            folder: another one.
            text_only: whether the video has no rows when drafting; None: as it was trained to.

        Raises:
            UserError: there is none, or it was trained for something else.
        """
        found = folder or self.drafters.get(kind)
        if found is None:
            raise UserError(
                f"drafter must be given: none came with this model; make one by "
                f"`vargen train video-drafter --kind {kind}`"
            )
        key = (os.fspath(found), text_only)
        if key not in self._trained:
            try:
                self._trained[key] = load_drafter(found, self.model, text_only=text_only)
            except ValueError as error:
                raise UserError(str(error)) from error
        return self._trained[key]

    @torch.no_grad()
    def relevance(self, frames: VideoFrames, question: str, answer: Answer, num_nearest: int = 10) -> list[float]:
        """How much each token of an answer has to do with what is seen: LVSpec's visual relevance, for pictures."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuestionWarning)  # has been said when the question was answered
            inputs = self._inputs(frames, question)
        tokens = torch.tensor([answer.token_ids], device=self.model.device)
        count = tokens.shape[1]
        target = self.prompt([inputs], count + 1).target(count)
        target.prefill()
        places, mask = chain_layout(tokens)
        output = target.forward(tokens, mask, places)
        assert output.hidden_states is not None
        reference = target.prompts[0].visual_hidden_states
        return relevance_to(output.hidden_states[0], reference, num_nearest).tolist()

    def close(self) -> None:
        """End what methods have started for several answers, such as the workers of parallel decoding."""
        for lasting in self._lasting.values():
            lasting.close()
        self._lasting.clear()

    def __enter__(self) -> VideoAnswerer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Streamer:
    """Gives out text, and tokens with their origins, as soon as they are decided."""

    def __init__(
        self,
        tokenizer: Any,
        trace: DecodeTrace,
        on_text: Callable[[str], None] | None,
        on_tokens: Callable[[list[str], list[TokenOrigin]], None] | None,
    ) -> None:
        self.tokenizer, self.trace = tokenizer, trace
        self.on_text, self.on_tokens = on_text, on_tokens
        self.special = set(tokenizer.all_special_ids)
        self.shown = ""

    def step(self, number: int, state: DecodeState) -> None:
        if self.on_text is not None or self.on_tokens is not None:
            self.end(state.tokens[0, : int(state.lengths[0])].tolist())

    def end(self, token_ids: list[int]) -> None:
        if self.on_tokens is not None:
            origins = zip(token_ids, self.trace.token_origins[0], strict=False)
            told = [(self.tokenizer.decode([token]), origin) for token, origin in origins if token not in self.special]
            self.on_tokens([text for text, _ in told], [origin for _, origin in told])
        if self.on_text is None:
            return
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        # A word may be made of several tokens, of which the first alone is no text yet.
        if text.startswith(self.shown) and not text.endswith("\ufffd"):
            self.on_text(text[len(self.shown) :])
            self.shown = text


def load_processor(model: str | os.PathLike[str] | None) -> Any:
    """The processor that lies beside a model's weights; see `vargen.resources.find_video_model`.

    Raises:
        UserError: no such model, or no processor there.
    """
    folder = find_video_model(model)
    try:
        return AutoProcessor.from_pretrained(folder)
    except Exception as error:  # tokenizers raise no more special kind
        raise UserError(f"model: {folder} has no processor that loads ({reason_of(error)}); copy it again") from error


def check_same_words(tokenizer: Any, draft_tokenizer: Any) -> None:
    """Refuse a drafter whose token numbers mean other words.

    Raises:
        UserError: they do.
    """
    own, other = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if own != other:
        different = next(iter(sorted(set(own.items()) ^ set(other.items()))))
        raise UserError(
            f"draft_model has another tokenizer than model (see {different[0]!r}); give one of the same family"
        )


def _load(folder: Path, device: str, dtype: str) -> Any:
    find_architecture(read_json(folder / "config.json").get("model_type"), f"model: {folder}")
    transformers_logging.disable_progress_bar()
    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True
        )
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise UserError(f"model: {folder} cannot be loaded ({reason_of(error)}); copy it again") from error
    check_weights(model, folder)
    return model.to(device)
