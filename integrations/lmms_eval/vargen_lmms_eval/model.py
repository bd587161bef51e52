"""Video-LLMs as a model of lmms-eval 0.7, by its chat interface:

    python -m lmms_eval --model vargen_video --tasks video_dc499 --batch_size 1 --log_samples --output_path out \\
        --model_args pretrained=Qwen/Qwen2.5-VL-32B-Instruct,draft_model=Qwen/Qwen2.5-VL-7B-Instruct,method=lvspec

Belongs here: translating lmms-eval's requests, settings and figures. Importing this module needs lmms-eval; importing
the package, which registers it, does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from tqdm import tqdm

from metrics.speculation import summarise
from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.loading import place_and_precision
from vargen.video.models.frames import frame_sampler, read_video
from vargen.video.pipelines.answering import Answer, VideoAnswerer
from vargen.video.pipelines.options import VideoOptions

FIGURES = ("target_passes", "mean_accepted_length", "mean_accepted_length_with_bonus", "tokens_per_pass")
"""Figures of `metrics.speculation.summarise` that are reported beside lmms-eval's own tokens and seconds."""
_OF_THE_METHOD = "method_options."


class VargenVideo(lmms):
    """Answers questions about one video each, one after the other.

    Args:
        pretrained: folder of the target, its name on the hub, or a shipped name; None: the shipped one.
        method: decoding method; None: the fastest exact one whose drafter is there.
        num_frames: frames of a video, or all of a shorter one. By default 32, or None with `fps`.
        fps: frames of each second, instead of `num_frames`.
        batch_size: 1.
        **options: settings of the method, as on the command line `method_options.loose_ratio=0.5`; and further fields
            of `vargen.video.pipelines.options.VideoOptions`, such as draft_model, revision, device, dtype, device_map,
            quantization, attn_implementation, max_pixels, max_new_tokens (if the task sets none) and seed, to which a
            request's own number is added. With "auto" each of several processes takes its own GPU. Separate two devices
            of a device_map by ";", since lmms-eval separates arguments by commas.

    Raises:
        UserError: an option that cannot be used.
        TypeError: an unknown argument.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str | None = None,
        method: str | None = None,
        num_frames: int | None = None,
        fps: float | None = None,
        batch_size: int | str = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        if str(batch_size) != "1":
            raise UserError(f"batch_size must be 1, got {batch_size}: speed is measured one request at a time")
        own = [name for name in options if name.startswith(_OF_THE_METHOD)]
        settings = {name.removeprefix(_OF_THE_METHOD): options.pop(name) for name in own}
        named = None if method is None else resolve_method(method, settings, task="video")
        if options.get("device_map") is not None:
            options["device_map"] = options["device_map"].replace(";", ",")
        taken = 32 if num_frames is None and fps is None else num_frames
        self.options = VideoOptions(model=pretrained, num_frames=taken, fps=fps, **options)
        device, _ = place_and_precision(self.options.device, self.options.dtype)
        if device == "cuda" and self.options.device_map is None:
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
            self.options = replace(self.options, device=device)
        self.device = torch.device(device)
        answerer = VideoAnswerer.from_options(self.options, methods=[] if named is None else [named])
        self.answerer: VideoAnswerer | None = answerer
        self.method = named or resolve_method(answerer.default_method, settings, task="video")

    @property
    def batch_size(self) -> int:
        """Requests at a time: 1."""
        return 1

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """A `GenerationResult` for each request; figures over all requests go to lmms-eval's log and results."""
        answers: list[Answer] = []
        results = []
        for number, request in enumerate(tqdm(requests, disable=self.rank != 0, desc="Model Responding")):
            context, doc_to_messages, settings, doc_id, task, split = request.args
            video, question = read_messages(doc_to_messages(self.task_dict[task][split][doc_id]))
            answer = self._answer(video, question, self._asked(settings), number)
            answers.append(answer)
            results.append(GenerationResult(answer.text, TokenCounts(answer.prompt_tokens, len(answer.token_ids))))
            self.cache_hook.add_partial("generate_until", (context, settings), answer.text)
        if answers:
            seconds = sum(answer.seconds for answer in answers)
            tokens = sum(len(answer.token_ids) for answer in answers)
            figures = summarise([answer.record for answer in answers])
            log_metrics(
                total_elapsed_time=seconds,
                total_gen_tokens=tokens,
                avg_speed=tokens / seconds,
                additional_metrics={"rank": self.rank, **{name: figures[name] for name in FIGURES}},
            )
        return results

    def _asked(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `VideoAnswerer.answer`: the task's settings, else the model's arguments.

        If neither sets a temperature, decoding is greedy, as with other models of lmms-eval.
        """
        asked = {**self.options.generation, **decoding_settings(settings)}
        return {**asked, "temperature": asked["temperature"] or 0.0}

    def _answer(self, video: str, question: str, settings: dict[str, Any], number: int) -> Answer:
        if self.answerer is None:
            raise UserError("lmms-eval has released this model; make a new one")
        fps = self.options.fps
        choose = frame_sampler(self.answerer.processor, self.options.num_frames, fps, at_most=True)
        frames = read_video(video, choose, fps)
        return self.answerer.answer(frames, question, self.method, seed=self.options.seed + number, **settings)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not offered: speculative decoding generates."""
        raise NotImplementedError("vargen_video generates answers; choose tasks of the kind generate_until")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[Any]:
        """Not offered: a request is one question."""
        raise NotImplementedError("vargen_video answers one question about a video; choose tasks of one round")

    def clean(self) -> None:
        """Free the memory; lmms-eval calls this before judging."""
        if self.answerer is not None:
            self.answerer.close()
        self.answerer = None
        super().clean()


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The path of the video and the question of a chat request: its texts, one a line.

    Raises:
        UserError: not exactly one video file, a part of one, other media, or a finished answer.
    """
    texts: list[str] = []
    media: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant":
            raise UserError("request: examples with answers (num_fewshot) cannot be used; ask without")
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                texts.append(part["text"].strip())
            else:
                media.append(part)
    kinds = [part["type"] for part in media]
    if kinds != ["video"] or not isinstance(media[0]["url"], str | Path):
        found = "frames of one" if kinds == ["video"] else ", ".join(kinds) or "none"
        raise UserError(f"request: one video file is needed, got {found}; choose a video task")
    if media[0].get("start_time") is not None or media[0].get("end_time") is not None:
        raise UserError("request: a part of a video cannot be taken; cut the file first")
    return str(media[0]["url"]), "\n".join(text for text in texts if text)


def decoding_settings(generation_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A task's settings as arguments of `VideoAnswerer.answer`.

    Stop strings ("until") are ignored, as by lmms-eval's other chat models: an answer ends with the end-of-text token.

    Raises:
        UserError: beam search is asked for.
    """
    if (generation_kwargs.get("num_beams") or 1) != 1:
        raise UserError("num_beams: beams cannot be decoded speculatively; give --gen_kwargs num_beams=1")
    asked: dict[str, Any] = {}
    if not generation_kwargs.get("do_sample", True):
        asked["temperature"] = 0.0
    elif generation_kwargs.get("temperature") is not None:
        asked["temperature"] = float(generation_kwargs["temperature"])
    for name in ("max_new_tokens", "top_k", "top_p", "repetition_penalty"):
        if generation_kwargs.get(name) is not None:
            asked[name] = generation_kwargs[name]
    return asked
