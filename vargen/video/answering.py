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
from specdecode.parallel.loop import chain_layout
from specdecode.roles import DecodeState
from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace, TokenOrigin
from specdecode.verifiers.loose import relevance_to
from vargen.errors import UserError
from vargen.methods.base import MethodConfig
from vargen.resources import find_trained_drafters, find_video_model
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
        model: transformers' `Qwen2_5_VLForConditionalGeneration` or `LlavaOnevisionForConditionalGeneration`.
        processor: its processor.
        draft_model: a smaller model of the same words, or None.
        drafters: folders of trained drafters for this model, by kind, for methods that name none.

    Raises:
        UserError: the two models have different words.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        draft_model: Any | None = None,
        drafters: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
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

        Raises:
            UserError: a value out of range, or a method that needs what is not there.
        """
        config = resolve_video_method(method)
        began = time.perf_counter()
        inputs = processor_inputs(self.processor, frames, question)
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        processed = time.perf_counter() - began
        answer = self.answer_inputs(
            inputs,
            config,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            on_text=on_text,
        )
        answer.seconds = time.perf_counter() - began
        answer.trace.phase_seconds["encode"] = answer.trace.phase_seconds.get("encode", 0.0) + processed
        return answer

    def answer_inputs(
        self,
        inputs: Mapping[str, Tensor],
        config: VideoMethodConfig,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        on_text: Callable[[str], None] | None = None,
    ) -> Answer:
        """As `answer`, for what the processor has made already."""
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        try:
            sampling = SamplingConfig(temperature=temperature, top_p=top_p)
        except ValueError as error:
            raise UserError(str(error)) from error
        began = time.perf_counter()
        prompt, trace = self.prompt(inputs), DecodeTrace(1, self.model.device)
        show = _Streamer(self.processor.tokenizer, self.stop_tokens, on_text)
        try:
            with trace.phase("encode"):
                players = config.build(prompt)
        except ValueError as error:
            raise UserError(f"{config.name}: {error}") from error
        decoded = players.decode(Generation(max_new_tokens, sampling, seed, self.stop_tokens, trace, show.step))
        show.end(decoded.token_ids)
        tokenizer = self.processor.tokenizer
        return Answer(
            text=tokenizer.decode(decoded.token_ids, skip_special_tokens=True),
            token_ids=decoded.token_ids,
            tokens=[tokenizer.decode([token]) for token in decoded.token_ids],
            trace=trace,
            seconds=time.perf_counter() - began,
            prompt_tokens=int(inputs["input_ids"].shape[1]),
            visual_tokens=prompt.request.num_visual,
            method=config,
            run_lengths=decoded.run_lengths,
            draft_passes=decoded.draft_passes,
            draft_flops=decoded.draft_flops,
        )

    def prompt(self, inputs: Mapping[str, Tensor]) -> Prompt:
        """What the processor has made, as methods take it."""
        special = tuple(self.processor.tokenizer.all_special_ids)
        return Prompt(self.model, inputs, self.draft_model, special, self.trained_drafter, self._lasting)

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
            inputs = processor_inputs(self.processor, frames, question)
        target = self.prompt({name: value.to(self.model.device) for name, value in inputs.items()}).target()
        target.prefill()
        tokens = torch.tensor([answer.token_ids], device=self.model.device)
        places, mask = chain_layout(tokens)
        output = target.forward(tokens, mask, places)
        assert output.hidden_states is not None and target.visual_hidden_states is not None
        return relevance_to(output.hidden_states, target.visual_hidden_states, num_nearest)[0].tolist()

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
    """Gives out text as soon as it is decided."""

    def __init__(self, tokenizer: Any, stop_tokens: Sequence[int], on_text: Callable[[str], None] | None) -> None:
        self.tokenizer, self.stop_tokens, self.on_text = tokenizer, stop_tokens, on_text
        self.shown = ""

    def step(self, number: int, state: DecodeState) -> None:
        if self.on_text is not None:
            self.end(state.tokens[0, : int(state.lengths[0])].tolist())

    def end(self, token_ids: list[int]) -> None:
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
    except (OSError, ValueError) as error:
        raise UserError(f"model: {folder} has no processor that loads ({str(error).splitlines()[0]})") from error


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
    transformers_logging.disable_progress_bar()
    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, dtype), use_safetensors=True
        )
        return model.to(device)
    except (OSError, ValueError) as error:
        raise UserError(f"model: {folder} cannot be loaded ({str(error).splitlines()[0]})") from error
    except RuntimeError as error:
        raise UserError(f"device {device!r} cannot be used ({error}); use --device cpu") from error
