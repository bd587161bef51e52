"""Answers about videos: a target, perhaps a draft model, a processor, and any method of `vargen.video.methods`.

Belongs here: loading, a call, and its account. Does not belong here: reading video files
(`vargen.video.models.frames`), the parts that a method is built from (`components.py`), the decode loops
(`decoding.py`), several methods side by side (`vargen.video.jobs.video_benchmark`).
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from metrics.speculation import CallRecord
from specdecode.checks import LogitsError
from specdecode.kernels.default_torch_mode import default_torch_mode
from specdecode.roles import DecodeState
from specdecode.trace import DecodeTrace, TokenOrigin
from specdecode.tree import chain_layout
from specdecode.verifiers.loose import relevance_to
from vargen.base.bounds import MAX_NEW_TOKENS, check_number
from vargen.base.errors import NotFiniteError, UserError
from vargen.base.resources import find_trained_drafters
from vargen.checkpoints.quantization import quantize_layers
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.models.draft_sizes import MeasuredDraftSizes
from vargen.pipelines.call_types import check_arguments, check_module
from vargen.video.drafters.video_head import VideoHead
from vargen.video.drafters.video_head_folder import load_video_head
from vargen.video.methods.base import VideoMethodConfig
from vargen.video.methods.catalogue import default_method
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.models.architectures.base import Architecture
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.context import ContextUse
from vargen.video.models.frames import QuestionWarning, VideoFrames, processor_inputs
from vargen.video.models.generation_settings import generation_settings, stop_tokens
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import FirstUse, Generation, decode
from vargen.video.pipelines.loading import LazyModel, VideoModelFolder, load_processor, open_video_model
from vargen.video.pipelines.options import VideoOptions


@dataclass
class Answer:
    """An answer and what it cost.

    Args:
        text: the answer, special tokens left out.
        token_ids: with the stop token, if one came.
        tokens: the text of each token.
        trace: what happened; its phases are "encode" (processor and vision towers), "prefill" and "decode".
        seconds: wall clock of everything.
        prompt_tokens: tokens of the prompt, visual ones included.
        visual_tokens: tokens of the video.
        method: its settings.
        run_lengths, draft_passes, draft_prompt_passes, draft_flops: see `vargen.video.pipelines.decoding.Decoded`.
        first_use: what this method did once, beside the answer.
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
    draft_prompt_passes: int = 0
    draft_flops: int | None = None
    first_use: FirstUse = field(default_factory=FirstUse)

    @property
    def origins(self) -> list[TokenOrigin]:
        """How each token came about."""
        return self.trace.token_origins[0]

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
            "draft_prompt_passes": self.draft_prompt_passes,
            "draft_flops": self.draft_flops,
            "first_use": asdict(self.first_use),
            **self.trace.to_dict(),
        }


class VideoAnswerer:
    """Answers questions about videos.

    Args:
        model: of transformers, of an architecture in `vargen.video.models.architectures.catalogue`.
        processor: its processor.
        draft_model: a smaller model of the same vocabulary, loaded or not; or None.
        drafters: folders of trained draft heads for this model, by kind, for methods that name none.
        source: where the model came from, for methods that load it again in another process; None: its folder.
        max_pixels: of a frame; None: the processor's own limit.

    Raises:
        UserError: an architecture that cannot be served, or a model that another module wraps.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        draft_model: Any | None = None,
        drafters: Mapping[str, str | os.PathLike[str]] | None = None,
        source: LazyModel | None = None,
        max_pixels: int | None = None,
    ) -> None:
        for name, each in (("model", model), ("draft_model", draft_model)):
            check_module(name, each)
        self.architecture = architecture_of(model)
        self.model = model.eval().requires_grad_(False)
        self.processor = processor
        if draft_model is not None and not isinstance(draft_model, LazyModel):
            architecture_of(draft_model)
            draft_model = draft_model.eval().requires_grad_(False)
        self.draft_model = draft_model
        self.source, self.max_pixels = source, max_pixels
        self.drafters = dict(drafters or {})
        self._draft_heads: dict[str, VideoHead] = {}
        self._lasting: dict[Hashable, Any] = {}
        self._draft_sizes = MeasuredDraftSizes()

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
            model: folder of a model with its processor, a name on the hub, or the name of a shipped one; None: the
                shipped target.
            draft_model: likewise; None: the one shipped for the shipped target, and none for others.
            device: of both.
            dtype: of both, such as "bfloat16".
            processor: of `load_processor(model)`, where that has been called already.

        Raises:
            UserError: no such model, or the two have different vocabularies.
        """
        names = [None if each is None else os.fspath(each) for each in (model, draft_model)]
        options = VideoOptions(model=names[0], draft_model=names[1], device=device, dtype=dtype)
        return cls.from_options(options, processor=processor)

    @classmethod
    def from_options(
        cls,
        options: VideoOptions,
        found: VideoModelFolder | None = None,
        processor: Any | None = None,
        methods: Iterable[VideoMethodConfig] = (),
    ) -> VideoAnswerer:
        """Load a pair. Its draft model is loaded when a method asks for it.

        Args:
            options: which, and how.
            found: the target, where `open_video_model` has been called already.
            processor: its processor, where that has been loaded already.
            methods: that will be used; what they lack is reported before weights are fetched and loaded.

        Raises:
            UserError: no such model, an architecture that cannot be served, the two have different vocabularies, or a
                method's drafter is missing.
        """
        found = open_video_model(options.model, options.revision) if found is None else found
        processor = load_processor(found) if processor is None else processor
        drafters = find_trained_drafters(found.folder)
        for method in methods:
            method.check_drafter(drafters, options.paired)
        draft: LazyModel | None = None
        if options.paired:
            draft_name = f"{found.name}-draft" if options.draft_model is None else options.draft_model
            draft = LazyModel(
                open_video_model(draft_name, options.draft_revision, "draft_model"), options.of_draft_model
            )
            check_same_words(processor.tokenizer, load_processor(draft.found).tokenizer)
            draft.found.fetch_weights()
        found.fetch_weights()
        source = LazyModel(found, options.of_target)
        return cls(source.load(), processor, draft, drafters, source.elsewhere(), options.max_pixels)

    @property
    def default_method(self) -> str:
        """The fastest exact method whose drafter is there, as `vargen caption` takes it."""
        return default_method(self.drafters, self.draft_model is not None)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """What ends an answer. Raises UserError for what is no token."""
        listed = stop_tokens(self.model) or (self.processor.tokenizer.eos_token_id,)
        last = int(self.model.config.get_text_config().vocab_size) - 1
        for token in listed:
            check_number("generation_config.json: eos_token_id", token, 0, last)
        return listed

    @default_torch_mode()
    def answer(
        self,
        frames: VideoFrames,
        question: str,
        method: str | MethodConfig | None = None,
        *,
        max_new_tokens: int = 256,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        inputs: Mapping[str, Tensor] | None = None,
        on_text: Callable[[str], None] | None = None,
        on_tokens: Callable[[list[str], list[TokenOrigin]], None] | None = None,
    ) -> Answer:
        """Answer a question about a video.

        Args:
            frames: as `vargen.video.models.frames.read_video` gives them.
            question: any words the processor knows.
            method: a name or settings; None: `self.default_method`, which gives the words of plain decoding ("ar").
            max_new_tokens: tokens of the answer, at most.
            temperature: 0 always takes the likeliest token; None: as the model's own generation config, which may not
                draw.
            top_k, top_p, repetition_penalty: None: the model's own, else those of transformers' `generate`.
            seed: the same seed and video give the same answer; an exact method gives that of plain decoding.
            inputs: what `self.inputs(frames, question)` returned, where that has been called and its context checked.
            on_text: called with every new piece of text. What it raises ends the answer.
            on_tokens: called after every forward pass of the target with the texts of all tokens so far, special ones
                left out, and how each came about.

        Raises:
            UserError: a value out of range, or a method that needs what is not there.
        """
        check_arguments(VideoAnswerer.answer, locals())
        config = resolve_method(self.default_method if method is None else method, task="video")
        config.check_drafter(self.drafters, self.draft_model is not None)
        check_number("max_new_tokens", max_new_tokens, 1, MAX_NEW_TOKENS)
        settings = generation_settings(self.model.generation_config, temperature, top_k, top_p, repetition_penalty)
        began, tokenizer = time.perf_counter(), self.processor.tokenizer
        trace = DecodeTrace(1, self.model.device)
        show = _Streamer(tokenizer, trace, on_text, on_tokens)
        with trace.phase("encode"):
            if inputs is None:
                inputs = self.inputs(frames, question)
                self.context_use(frames, inputs).check(max_new_tokens)
            components = self.components([self._placed(inputs)], max_new_tokens, settings.repetition_penalty)
            known = len(self._draft_heads)
            players = config.build(components)
            checks = len(self._draft_heads) - known  # of a draft head: one forward pass of the target each
        generation = Generation(max_new_tokens, settings.sampling, [seed], self.stop_tokens, trace, show.step)
        try:
            decoded = decode(players, generation)
        except LogitsError as error:
            raise NotFiniteError(
                error.row,
                f"answer: the model's logits are not finite at step {error.step}: numbers too large for its precision; "
                "give dtype float32",
            ) from error
        (token_ids,), (request,) = decoded.token_ids, components.requests
        show.end(token_ids)
        return Answer(
            text=tokenizer.decode(token_ids, skip_special_tokens=True),
            token_ids=token_ids,
            tokens=[tokenizer.decode([token]) for token in token_ids],
            trace=trace,
            seconds=time.perf_counter() - began,
            prompt_tokens=request.length,
            visual_tokens=request.num_visual,
            method=config,
            run_lengths=decoded.run_lengths,
            draft_passes=decoded.draft_passes,
            draft_prompt_passes=decoded.draft_prompt_passes,
            draft_flops=decoded.draft_flops,
            first_use=replace(decoded.first_use, target_passes=decoded.first_use.target_passes + checks),
        )

    def inputs(self, frames: VideoFrames, question: str) -> dict[str, Tensor]:
        """What the model is fed. Raises UserError as `processor_inputs` does."""
        return sized_inputs(self.processor, self.architecture, frames, question, self.max_pixels)

    def _placed(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same on the model's device."""
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def context_use(self, frames: VideoFrames, inputs: Mapping[str, Tensor]) -> ContextUse:
        """How much of the model's context a prompt takes."""
        return ContextUse.of(self.model.config, inputs, len(frames.frames), self.model.dtype.itemsize)

    def components(
        self, inputs: Sequence[Mapping[str, Tensor]], max_new_tokens: int = 256, repetition_penalty: float = 1.0
    ) -> VideoLLMComponents:
        """The models with prompts of the processor on the model's device, as methods take them."""
        return VideoLLMComponents(
            self.model,
            inputs,
            max_new_tokens,
            self.draft_model,
            tuple(self.processor.tokenizer.all_special_ids),
            self.load_draft_head,
            self._lasting,
            repetition_penalty,
            self.source,
            self._draft_sizes,
        )

    def load_draft_head(self, kind: str, folder: str | None = None) -> VideoHead:
        """The network of a trained draft head, read once for all answers.

        Args:
            kind: which one of those that came with the model.
            folder: another one.

        Raises:
            UserError: it was trained for another model.
            KeyError: none of this kind came with the model, which `check_drafter` of a method refuses before.
        """
        key = os.fspath(folder or self.drafters[kind])
        if key not in self._draft_heads:
            try:
                network = load_video_head(key, self.model)
            except ValueError as error:
                raise UserError(f"{kind}: {error}") from error
            if self.source is not None and (quantization := self.source.options.draft_quantization) is not None:
                quantize_layers(network, quantization)
            self._draft_heads[key] = network
        return self._draft_heads[key]

    @default_torch_mode()
    def relevance(
        self, frames: VideoFrames, question: str, answer: Answer, rule: LVSpecConfig | None = None
    ) -> list[float]:
        """How much each token of an answer has to do with the video: LVSpec's visual relevance.

        Args:
            frames, question, answer: what was asked, and what was answered.
            rule: how it is read; None: as `lvspec` does by default.
        """
        rule = LVSpecConfig() if rule is None else rule
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuestionWarning)  # the answer has already warned
            inputs = self._placed(self.inputs(frames, question))
        tokens = torch.tensor([answer.token_ids], device=self.model.device)
        count = tokens.shape[1]
        components = self.components([inputs], count + 1)
        target = components.target(count, **rule.target_options(components.num_layers))
        prompt = target.prefill()
        layout = chain_layout(*tokens.shape, tokens.device)
        output = target.forward(tokens, layout.mask, layout.depth)
        assert prompt.hidden_states is not None and output.hidden_states is not None
        states = output.hidden_states[0]
        if rule.relevance_from == "prediction":
            states = torch.cat((prompt.hidden_states[0, -1:], states[:-1]))
        reference = target.prompts[0].visual_hidden_states
        return relevance_to(states, reference, rule.num_nearest, rule.relevance_centred).tolist()

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
        on_text: Callable[[str], None] | None = None,
        on_tokens: Callable[[list[str], list[TokenOrigin]], None] | None = None,
    ) -> None:
        self.tokenizer, self.trace = tokenizer, trace
        self.on_text, self.on_tokens = on_text, on_tokens
        self.special = set(tokenizer.all_special_ids)
        self.shown = ""

    def step(self, number: int, state: DecodeState) -> None:
        if self.on_text is not None or self.on_tokens is not None:
            self._show(state.tokens[0, : int(state.lengths[0])].tolist(), is_last=False)

    def end(self, token_ids: list[int]) -> None:
        self._show(token_ids, is_last=True)

    def _show(self, token_ids: list[int], is_last: bool) -> None:
        if self.on_tokens is not None:
            origins = zip(token_ids, self.trace.token_origins[0], strict=False)
            shown = [(self.tokenizer.decode([token]), origin) for token, origin in origins if token not in self.special]
            self.on_tokens([text for text, _ in shown], [origin for _, origin in shown])
        if self.on_text is None:
            return
        text = self.tokenizer.decode(token_ids, skip_special_tokens=True)
        # A character may take several tokens, and the first of them is no text yet.
        text = text if is_last else text.rstrip("\ufffd")
        if text.startswith(self.shown):
            self.on_text(text[len(self.shown) :])
            self.shown = text


def check_same_words(tokenizer: Any, draft_tokenizer: Any) -> None:
    """Refuse a draft model with another vocabulary.

    Raises:
        UserError: a token that differs.
    """
    own, other = tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if own != other:
        different = next(iter(sorted(set(own.items()) ^ set(other.items()))))
        raise UserError(
            f"draft_model has another tokenizer than model (see {different[0]!r}); give one of the same family"
        )


def sized_inputs(
    processor: Any, architecture: Architecture, frames: VideoFrames, question: str, max_pixels: int | None = None
) -> dict[str, Tensor]:
    """`processor_inputs`, with frames of at most `max_pixels` pixels where that is given."""
    size = None
    if max_pixels is not None:
        size = architecture.frame_size(processor.video_processor, max_pixels, len(frames.frames))
    return processor_inputs(processor, frames, question, size)
