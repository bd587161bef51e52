"""Whether captions are read off videos: what is left of their accuracy when the model is shown something else.

Frames in another order, frames from the last to the first, another video, or grey. Captions are the models' likeliest
ones, judged against the truth of the video they should be about. Beside the F1 of their claims stands what the order of
frames alone decides (`scenes.captions.languages`), whose chance is one half; and, as rows, what
chance is for whole captions. Without order: somebody who knows every frame and what can happen in this world is
left with two stories, forwards and backwards, and one of them is wrong. Without a video: somebody who knows this world
tells any story of it. Last, a choice: of the true caption and that of the same frames from the last to the first, which
one does the model find likelier? Chance is one half without order and without a video. `left` is the share of what a
model says beyond chance that is left, by kind of claim.

    python benchmarks/what_videos_show.py --models video-llm,video-llm-draft

Writes benchmarks/results/what_videos_show.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import mean_interval
from metrics.provenance import write_result
from scenes.captions.languages import LANGUAGES, language_of
from scenes.captions.video_captions import VideoCaption
from scenes.cases import scene_video_cases
from scenes.rendering.video import VideoScene
from scenes.shipped import VIDEO_CAPTIONS, VIDEO_FRAMES, VIDEO_SIDE
from vargen.base.resources import find_video_model
from vargen.models.video_llms.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs
from vargen.pipelines.video.answering import VideoAnswerer
from vargen.training.video_answers import generate_batch

RESULTS = Path(__file__).resolve().parent / "results"
COIN = {"value": 0.5, "interval": None}


NUM_SHUFFLES = 5
"""A shuffle may by chance be nearer to one story than to the other, so choices are made about several."""


def shown_instead(frames: Sequence[Tensor]) -> dict[str, list[list[Tensor]]]:
    """By what is shown, one or more times the frames [F, 3, size, size] of each video."""
    generator = torch.Generator().manual_seed(0)
    return {
        "its own": [list(frames)],
        "its own, frames shuffled": [
            [each[torch.randperm(len(each), generator=generator)] for each in frames] for _ in range(NUM_SHUFFLES)
        ],
        "its own, backwards": [[each.flip(0) for each in frames]],
        "another one": [[*frames[1:], frames[0]]],
        "a grey one": [[torch.full_like(each, 127) for each in frames]],
    }


def asked_for_captions(answerer: VideoAnswerer, frames: Sequence[Tensor]) -> list[dict[str, Tensor]]:
    """What the processor makes of each video and the request for a caption."""
    return [processor_inputs(answerer.processor, VideoFrames.from_frames(each), CAPTION_PROMPTS[0]) for each in frames]


def captions(
    answerer: VideoAnswerer, frames: Sequence[Tensor], batch_size: int, max_new_tokens: int = 220
) -> list[str]:
    """Greedy captions of videos."""
    texts: list[str] = []
    tokenizer = answerer.processor.tokenizer
    for start in range(0, len(frames), batch_size):
        inputs = asked_for_captions(answerer, frames[start : start + batch_size])
        tokens = generate_batch(answerer.model, inputs, max_new_tokens=max_new_tokens)
        texts += [tokenizer.decode(row[row >= 0], skip_special_tokens=True) for row in tokens]
    return texts


@torch.no_grad()
def likelihoods(answerer: VideoAnswerer, frames: Sequence[Tensor], texts: Sequence[str], batch_size: int) -> Tensor:
    """Log-likelihood [n] of each text as the answer about its video, its end included, in nats."""
    tokenizer, found = answerer.processor.tokenizer, []
    for start in range(0, len(frames), batch_size):
        inputs = asked_for_captions(answerer, frames[start : start + batch_size])
        answers = [
            tokenizer(f"{text}<|im_end|>", add_special_tokens=False, return_tensors="pt").input_ids[0]
            for text in texts[start : start + batch_size]
        ]
        answer = torch.nn.utils.rnn.pad_sequence(answers, batch_first=True, padding_value=tokenizer.pad_token_id)
        said = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in answers], batch_first=True)
        asked = {name: torch.cat([each[name] for each in inputs]) for name in inputs[0]}
        length = asked["input_ids"].shape[1]
        behind = {"input_ids": answer, "attention_mask": said, "mm_token_type_ids": torch.zeros_like(answer)}
        asked |= {name: torch.cat([asked[name], value], dim=1) for name, value in behind.items() if name in asked}
        logits = answerer.model(**asked, use_cache=False).logits[:, length - 1 : -1].float()
        losses = torch.nn.functional.cross_entropy(logits.mT, answer, reduction="none")
        found.append(-(losses * said).sum(1))
    return torch.cat(found)


def true_caption(video: VideoScene) -> VideoCaption:
    """One that is true of a video."""
    return language_of(video).compose(video, 0)


def told_backwards(video: VideoScene) -> VideoScene:
    """The same frames from the last to the first."""
    return language_of(video).backwards(video)


def kinds_of(videos: Sequence[VideoScene]) -> tuple[str, ...]:
    """Kinds of claims that are made about such videos, "all" last."""
    return (*language_of(videos[0]).claim_kinds, "all")


def choices(
    answerer: VideoAnswerer, videos: Sequence[VideoScene], showings: Sequence[Sequence[Tensor]], batch_size: int
) -> dict[str, Any]:
    """How often the true caption is likelier than the one of the video backwards, where the two differ."""
    stories = [(true_caption(video), true_caption(told_backwards(video))) for video in videos]
    differing = [number for number, (true, other) in enumerate(stories) if true.claims != other.claims]
    right = []
    for frames in showings:
        shown = [frames[number] for number in differing]
        true, other = (
            likelihoods(answerer, shown, [stories[number][side].text for number in differing], batch_size)
            for side in (0, 1)
        )
        right.append((true > other).double())
    by_video = torch.stack(right).mean(0)
    return {
        "value": float(by_video.mean()),
        "interval": mean_interval(by_video),
        "choices": len(differing) * len(showings),
    }


def judge(videos: Sequence[VideoScene], texts: Sequence[str]) -> dict[str, Any]:
    """F1 by kind of claim, and the answers to what order decides."""
    figures: dict[str, Any] = {}
    for kind in kinds_of(videos):
        scores = [language_of(video).accuracy(video, text, kind) for video, text in zip(videos, texts, strict=True)]
        values = torch.tensor(scores, dtype=torch.float64)
        figures[kind] = {"value": float(values.mean()), "interval": mean_interval(values)}
    answers = [language_of(video).order_answers(video, text) for video, text in zip(videos, texts, strict=True)]
    right, wrong = (sum(each[place] for each in answers) for place in (0, 1))
    return {**figures, "order": right / max(right + wrong, 1), "order_answers": right + wrong}


def without_order(videos: Sequence[VideoScene]) -> dict[str, Any]:
    """Who tells one of the two stories that the frames fit, by a coin: the mean of both."""
    stories = [
        judge(videos, [true_caption(told).text for told in each])
        for each in (videos, [told_backwards(video) for video in videos])
    ]
    figures = {
        kind: {"value": sum(story[kind]["value"] for story in stories) / 2, "interval": None}
        for kind in kinds_of(videos)
    }
    return {**figures, "order": 0.5, "order_answers": None, "choice": COIN}


def without_video(videos: Sequence[VideoScene]) -> dict[str, Any]:
    """Who tells the true story of some other video: the mean over all others."""
    texts = [true_caption(video).text for video in videos]
    tellings = [judge(videos, texts[turn:] + texts[:turn]) for turn in range(1, len(videos))]
    figures = {
        kind: {"value": mean(each[kind]["value"] for each in tellings), "interval": None} for kind in kinds_of(videos)
    }
    answers = sum(each["order_answers"] for each in tellings)
    right = sum(each["order"] * each["order_answers"] for each in tellings)
    return {**figures, "order": right / max(answers, 1), "order_answers": None, "choice": COIN}


def left_of(row: dict[str, Any], own: dict[str, Any], chance: dict[str, Any]) -> dict[str, float]:
    """Of what a model says of a video beyond chance, the share that is left when it is shown something else.

    Chance is any story of this world, and for "order" a coin. By kind of claim, and "order".
    """
    kinds = [kind for kind, value in own.items() if kind in chance and isinstance(value, dict) and kind != "choice"]
    figures = {kind: (row[kind]["value"], own[kind]["value"], chance[kind]["value"]) for kind in kinds}
    figures["order"] = (row["order"], own["order"], 0.5)
    return {
        kind: (now - least) / (most - least) if most > least else 0.0 for kind, (now, most, least) in figures.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="video-llm,video-llm-draft")
    parser.add_argument("--videos", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=25)
    parser.add_argument("--num_frames", type=int, default=VIDEO_FRAMES)
    parser.add_argument("--image_size", type=int, default=VIDEO_SIDE)
    parser.add_argument("--captions", default=VIDEO_CAPTIONS, choices=sorted(LANGUAGES), help="which videos")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    cases = scene_video_cases(options.videos, "heldout", options.num_frames, options.image_size, 0, options.captions)
    videos = [case.truth for case in cases if case.truth is not None]
    rows: list[dict[str, Any]] = [
        {"model": None, "shown": "every frame, without their order", **without_order(videos)},
        {"model": None, "shown": "nothing", **without_video(videos)},
    ]
    for name in options.models.split(","):
        with VideoAnswerer.from_pretrained(name) as answerer:
            for shown, showings in shown_instead([case.frames.frames for case in cases]).items():
                most = LANGUAGES[options.captions].max_caption_tokens
                figures = judge(videos, captions(answerer, showings[0], options.batch_size, most))
                figures["choice"] = choices(answerer, videos, showings, options.batch_size)
                rows.append({"model": find_video_model(name).name, "shown": shown, **figures})
    for row in rows[2:]:
        own = next(each for each in rows if each["model"] == row["model"] and each["shown"] == "its own")
        row["left"] = left_of(row, own, rows[1])
    for row in rows:
        parts = "  ".join(f"{kind} {100 * row[kind]['value']:5.1f}" for kind in kinds_of(videos))
        print(
            f"{row['model'] or 'chance':16} {row['shown']:34} {parts}  order {100 * row['order']:5.1f}  "
            f"choice {100 * row['choice']['value']:5.1f}  "
            + " ".join(f"{kind} {100 * share:.0f} % left" for kind, share in row.get("left", {}).items()),
            flush=True,
        )
    if not options.dry_run:
        write_result(
            RESULTS / "what_videos_show.json", {"videos": options.videos, "captions": options.captions, "rows": rows}
        )


if __name__ == "__main__":
    main()
