"""This project's Video-LLMs as a model of lmms-eval 0.7, by its chat interface:

    python -m lmms_eval --model vargen_video --tasks video_dc499 --batch_size 1 --log_samples --output_path out \\
        --model_args pretrained=Qwen/Qwen2.5-VL-32B-Instruct,draft_model=Qwen/Qwen2.5-VL-7B-Instruct,method=lvspec

Belongs here: lmms-eval's words for requests, settings and figures. Does not belong here: decoding (`answering.py`).
Importing this module needs lmms-eval; `lmms_eval_plugin.py`, which tells it of this module, does not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from tqdm import tqdm

from metrics.speculation import summarise
from vargen.errors import UserError
from vargen.pipelines.loading import place_and_precision
from vargen.video.answering import Answer, VideoAnswerer
from vargen.video.frames import count_frames, frame_limits, read_video
from vargen.video.methods.catalogue import resolve_video_method

FIGURES = ("target_passes", "mean_accepted_length", "mean_accepted_length_with_bonus", "tokens_per_pass")
"""Of `metrics.speculation.summarise`, beside the tokens and seconds that lmms-eval asks every model for."""


class VargenVideo(lmms):
    """Answers questions about one video each, one after the other.

    Args:
        pretrained: folder or name of the target; None: the shipped one.
        draft_model: folder or name of the drafter; None: the shipped one, for the shipped target.
        method: decoding method.
        num_frames: frames of a video; of a shorter one, all. None with `frames_per_second`; else 32.
        frames_per_second: frames of a second instead.
        device: "cpu", "cuda", ...; "auto" takes a GPU if there is one. Of several processes, each takes its own.
        dtype: "float32", "bfloat16", "float16"; "auto" is bfloat16 on a GPU and float32 on a CPU.
        max_new_tokens: where a task does not say.
        seed: of sampling; a request's own number is added.
        batch_size: 1.

    Raises:
        UserError: what cannot be used.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str | None = None,
        draft_model: str | None = None,
        method: str = "ar",
        num_frames: int | None = None,
        frames_per_second: float | None = None,
        device: str = "auto",
        dtype: str = "auto",
        max_new_tokens: int = 256,
        seed: int = 0,
        batch_size: int | str = 1,
    ) -> None:
        super().__init__()
        if str(batch_size) != "1":
            raise UserError(f"batch_size must be 1, got {batch_size}: speed is measured one request at a time")
        if num_frames is not None and frames_per_second is not None:
            raise UserError("num_frames and frames_per_second cannot both be given; leave out one of them")
        self.method = resolve_video_method(method)
        self.num_frames = 32 if num_frames is None and frames_per_second is None else num_frames
        self.frames_per_second = frames_per_second
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        device, dtype = place_and_precision(device, dtype)
        if device == "cuda":
            device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        self.device = torch.device(device)
        self.answerer: VideoAnswerer | None = VideoAnswerer.from_pretrained(pretrained, draft_model, device, dtype)

    @property
    def batch_size(self) -> int:
        """Requests at a time."""
        return 1

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """A `GenerationResult` for each request; the figures of all go to lmms-eval's log and results."""
        answers: list[Answer] = []
        results = []
        for number, request in enumerate(tqdm(requests, disable=self.rank != 0, desc="Model Responding")):
            context, doc_to_messages, settings, doc_id, task, split = request.args
            video, question = read_messages(doc_to_messages(self.task_dict[task][split][doc_id]))
            answer = self._answer(video, question, decoding_settings(settings, self.max_new_tokens), number)
            answers.append(answer)
            results.append(GenerationResult(answer.text, TokenCounts(answer.prompt_tokens, len(answer.token_ids))))
            self.cache_hook.add_partial("generate_until", (context, settings), answer.text)
        if answers:
            seconds, tokens = (
                sum(answer.seconds for answer in answers),
                sum(len(answer.token_ids) for answer in answers),
            )
            figures = summarise([answer.record for answer in answers])
            log_metrics(
                total_elapsed_time=seconds,
                total_gen_tokens=tokens,
                avg_speed=tokens / seconds,
                additional_metrics={"rank": self.rank, **{name: figures[name] for name in FIGURES}},
            )
        return results

    def _answer(self, video: str, question: str, settings: dict[str, Any], number: int) -> Answer:
        if self.answerer is None:
            raise UserError("the model has been cleaned up by lmms-eval; make a new one")
        limits = frame_limits(self.answerer.processor)
        num_frames = self.num_frames
        if num_frames is not None:
            step = limits["temporal_patch_size"]
            num_frames = min(num_frames, count_frames(video) // step * step)
        frames = read_video(video, num_frames, self.frames_per_second, **limits)
        return self.answerer.answer(frames, question, self.method, seed=self.seed + number, **settings)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not offered: speculative decoding generates."""
        raise NotImplementedError("vargen_video generates answers; choose tasks of the kind generate_until")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[Any]:
        """Not offered: a request is one question."""
        raise NotImplementedError("vargen_video answers one question about a video; choose tasks of one round")

    def clean(self) -> None:
        """Give the memory back; lmms-eval calls it before judging."""
        if self.answerer is not None:
            self.answerer.close()
        self.answerer = None
        super().clean()


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The path of the video and the question of a chat request: its texts, one a line.

    Raises:
        UserError: not exactly one video file, a part of one, something else to look at or hear, or a finished answer.
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


def decoding_settings(generation_kwargs: Mapping[str, Any], max_new_tokens: int) -> dict[str, Any]:
    """`max_new_tokens`, `temperature` and `top_p` of lmms-eval's settings of a task.

    Stop strings ("until") do not count, as with its other chat models: an answer ends with the end-of-text token.

    Raises:
        UserError: beam search or top-k sampling is asked for.
    """
    if (generation_kwargs.get("num_beams") or 1) != 1:
        raise UserError("num_beams: beams cannot be decoded speculatively; give --gen_kwargs num_beams=1")
    temperature = (
        float(generation_kwargs.get("temperature") or 0.0) if generation_kwargs.get("do_sample", True) else 0.0
    )
    if temperature and generation_kwargs.get("top_k"):
        raise UserError("top_k: answers are sampled by temperature and top_p; give --gen_kwargs top_k=0")
    return {
        "max_new_tokens": generation_kwargs.get("max_new_tokens") or max_new_tokens,
        "temperature": temperature,
        "top_p": float(generation_kwargs.get("top_p") or 1.0),
    }
