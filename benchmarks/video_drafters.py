"""Trained drafters for a Video-LLM, part by part: what each part is worth, and what a longer video costs.

Of Sparrow (arXiv 2602.15318): accepted length against the length of the video for all 2^3 of its parts (bridged visual
states, multi-token prediction, text-only drafting), each trained as it drafts, on videos of a quarter of the length or
on stills; what drafting costs as the video grows, beside a drafter that keeps the video. Of FLASH (arXiv 2505.12728):
its two parts with and without the other, beside text alone; tokens accepted per forward of the drafter against the
number of places guessed at once; the compression of the video; how saturated the compressor's softmax is, with and
without a scale.

    python benchmarks/video_drafters.py --captions written --model runs/video-story/export --commands > train.sh
    python benchmarks/video_drafters.py --captions written --model runs/video-story/export --drafters runs/drafters

`--drafters` holds one folder a drafter, with an export/ in it, made by the commands that `--commands` prints. Writes
benchmarks/results/video_drafters.json, or video_drafters_written.json for stories; studies that are not asked for stay
as they were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metrics.provenance import provenance, write_result
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.jobs.cases import VideoCase
from vargen.runs.progress import Progress, progress
from vargen.video.answering import VideoAnswerer
from vargen.video.drafters.drafter_folder import load_drafter, new_drafter
from vargen.video.drafters.feature_head import FeatureHead
from vargen.video.frames import CAPTION_PROMPTS, processor_inputs
from vargen.video.methods.trained import FlashConfig, MSDConfig, SparrowConfig, TrainedDrafterConfig
from vargen.video.request import prepare_request
from vargen.video.target import VideoTarget
from vargen.world.captions.languages import LANGUAGES, language_of
from vargen.world.cases import scene_video_cases

RESULTS = Path(__file__).resolve().parent / "results"
PLACES = (1, 2, 3, 4, 5, 6)
IMAGE_SIZE, DEPTH = 96, 5


@dataclass(frozen=True)
class Setting:
    """What the studies are over.

    Args:
        record: name of the file of results.
        config: by which drafters are trained, but for the options of each.
        short: options of those that are trained on short videos.
        num_frames: of a usual video. lengths: of the studies of length.
        queries: learned queries of FLASH's compressor by its ratio; `usual_queries` is what it has by itself.
    """

    record: str
    config: str
    short: str
    num_frames: int
    lengths: tuple[int, ...]
    queries: Mapping[str, int]
    usual_queries: str


SETTINGS = {
    "plain": Setting(
        "video_drafters",
        "",
        "--training_frames 2 --steps 1000",
        8,
        (4, 8, 16, 32, 64),
        {"1x": 144, "4x": 36, "9x": 16, "16x": 9},
        "9x",
    ),
    "written": Setting(
        "video_drafters_written",
        "--config train/video-story-drafter.yaml",
        "--num_frames 8 --answers runs/video-story-answers-8 --steps 1000",
        32,
        (8, 16, 32, 64, 128),
        {"4x": 256, "16x": 64, "64x": 16, "256x": 4},
        "64x",
    ),
}
PARTS = {"both": "", "compression": "--draft_length 1", "places": "--kind eagle --draft_length 4"}
PARTS |= {"neither": "--kind eagle", "text_only": "--kind eagle --text_only true --blind_share 1"}
"""FLASH with what is left of it, by what is left; its paper's FLASH, VisComp, SemiAR, Multimodal and Text-only."""


def trained(setting: Setting) -> dict[str, str]:
    """By folder, how each drafter is trained, by the setting's configuration but for these options."""
    short, flash = f"--kind sparrow {setting.short}", "--kind flash --videos 1024 --steps 600"
    visuals = {"states": "", "embeddings": " --visual embeddings"}
    passes = {"mtp": "", "none": " --own_passes 0"}
    rows = {"text": "", "video": " --text_only false --blind_share 0"}
    return {
        **{kind: f"--kind {kind}" for kind in ("eagle", "msd", "vispec", "sparrow", "flash")},
        **{
            f"still_{visual}_{own}_{row}": f"{short}{visuals[visual]}{passes[own]}{rows[row]}"
            for visual, own, row in itertools.product(visuals, passes, rows)
        },
        **{f"flash_k{places}": f"{flash} --draft_length {places}" for places in PLACES},
        **{
            f"flash_{name}": f"{flash} --num_queries {count}"
            for name, count in setting.queries.items()
            if name != setting.usual_queries
        },
        "flash_scaled": f"{flash} --scale true",
        **{f"part_{name}": f"{flash} {options}".strip() for name, options in PARTS.items()},
    }


def commands(setting: Setting, model: str | None, folder: str) -> list[str]:
    """That train all of them, one after the other."""
    of_model = [] if model is None else [f"--model {model}"]
    return [
        " ".join(
            [
                "vargen train video-drafter",
                *filter(None, [setting.config]),
                *of_model,
                options,
                f"--output_dir {folder}/{name}",
            ]
        )
        for name, options in trained(setting).items()
    ]


def answer(answerer: VideoAnswerer, case: VideoCase, config: TrainedDrafterConfig, max_new_tokens: int) -> dict:
    """One greedy answer, in figures."""
    inputs = processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0])
    players = config.build(answerer.prompt([inputs], max_new_tokens))
    head = players.network
    assert isinstance(head, FeatureHead)
    prompt: dict[str, int] = {}

    def keep_prompt(step: int, _: Any) -> None:
        if step == 0:
            prompt.update(flops=head.flops, passes=head.forward_passes)

    result = decode(
        players.target,
        drafter=players.drafter,
        verifier=players.verifier,
        max_new_tokens=max_new_tokens,
        sampling=SamplingConfig(temperature=0.0),
        streams=RandomStreams.from_seeds([0]),
        stop_token=answerer.stop_tokens,
        on_step=keep_prompt,
        profile=True,
    )
    trace, tokens = result.trace, result.tokens[0, : int(result.lengths[0])]
    accepted = trace.accepted_lengths[0]
    text = answerer.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    assert case.truth is not None
    return {
        "visual_tokens": players.target.requests[0].num_visual,
        "accepted": sum(accepted),
        "steps": len(accepted),
        "drafting_passes": head.forward_passes - prompt["passes"],
        "drafting_flops": head.flops - prompt["flops"],
        "prompt_flops": prompt["flops"],
        "draft_seconds": trace.phase_seconds["draft"],
        "caption_accuracy": language_of(case.truth).accuracy(case.truth, text, "all"),
    }


def figures(answers: Sequence[dict]) -> dict[str, float]:
    """Of several answers."""
    steps = sum(each["steps"] for each in answers)
    passes = max(sum(each["drafting_passes"] for each in answers), 1)
    accepted = sum(each["accepted"] for each in answers)
    return {
        "visual_tokens": answers[0]["visual_tokens"],
        "accepted_length": accepted / max(steps, 1),
        "accepted_per_drafting_pass": accepted / passes,
        "drafting_passes_per_step": passes / max(steps, 1),
        "flops_per_drafting_pass": sum(each["drafting_flops"] for each in answers) / passes,
        "prompt_flops": statistics.fmean(each["prompt_flops"] for each in answers),
        "caption_accuracy": statistics.fmean(each["caption_accuracy"] for each in answers),
        "draft_milliseconds_per_pass": 1e3
        * statistics.median(each["draft_seconds"] / max(each["drafting_passes"], 1) for each in answers),
    }


class Studies:
    """All of them, over one target.

    Args:
        options: of the command line.
        shown: counts answers.
    """

    def __init__(self, options: argparse.Namespace, shown: Progress) -> None:
        self.options, self.shown = options, shown
        self.setting = SETTINGS[options.captions]
        self.room = LANGUAGES[options.captions].max_caption_tokens
        self.answerer = VideoAnswerer.from_pretrained(options.model)

    def folder(self, name: str) -> str:
        """Of a trained drafter."""
        return str(Path(self.options.drafters) / name / "export")

    def ask(self, config: TrainedDrafterConfig, cases: Sequence[VideoCase], max_new_tokens: int | None = None) -> dict:
        """Figures of a method over some videos."""
        answers = []
        for case in cases:
            answers.append(answer(self.answerer, case, config, max_new_tokens or self.room))
            self.shown.update()
        return figures(answers)

    def cases(self, num_frames: int | None = None) -> list[VideoCase]:
        """Held-out videos."""
        frames, captions = num_frames or self.setting.num_frames, self.options.captions
        return scene_video_cases(self.options.videos, "heldout", frames, IMAGE_SIZE, captions=captions)

    def length(self) -> list[dict]:
        """Sparrow's parts against the length of the video."""
        rows = []
        for num_frames in self.setting.lengths:
            cases = self.cases(num_frames)
            for visual in ("states", "embeddings"):
                for passes in ("mtp", "none"):
                    for text_only in (True, False):
                        drafter = self.folder(f"still_{visual}_{passes}_{'text' if text_only else 'video'}")
                        config = SparrowConfig(drafter=drafter, text_only=text_only, tree="chain", depth=DEPTH)
                        parts = {"bridged": visual == "states", "multi_token": passes == "mtp", "text_only": text_only}
                        rows.append({"frames": num_frames, **parts, **self.ask(config, cases)})
        return rows

    def cost(self) -> list[dict]:
        """A forward of the drafter against the length of the video; one answer after the other, of few videos."""
        rows = []
        for num_frames in self.setting.lengths:
            cases = self.cases(num_frames)[:4]
            for config in (
                SparrowConfig(drafter=self.folder("sparrow"), tree="chain", depth=DEPTH),
                MSDConfig(drafter=self.folder("msd"), tree="chain", depth=DEPTH),
            ):
                rows.append({"frames": num_frames, "method": config.name, **self.ask(config, cases, 100)})
        return rows

    def places(self) -> list[dict]:
        """FLASH's tokens accepted per forward against the places guessed at once."""
        cases = self.cases()
        return [
            {
                "places": places,
                **self.ask(FlashConfig(drafter=self.folder(f"flash_k{places}"), tree="chain", depth=places), cases),
            }
            for places in PLACES
        ]

    def compression(self) -> list[dict]:
        """FLASH against the number of learned queries."""
        cases, queries = self.cases(), self.setting.queries
        names = {ratio: "flash_k4" if ratio == self.setting.usual_queries else f"flash_{ratio}" for ratio in queries}
        return [
            {"compression": ratio, "queries": queries[ratio], **self.ask(FlashConfig(drafter=self.folder(name)), cases)}
            for ratio, name in names.items()
        ]

    def parts(self) -> list[dict]:
        """FLASH's two parts, each without the other; all draft chains of as many tokens."""
        cases = self.cases()
        return [
            {
                "compression": name in ("both", "compression"),
                "places": name in ("both", "places"),
                "text_only": name == "text_only",
                **self.ask(FlashConfig(drafter=self.folder(f"part_{name}"), tree="chain", depth=4), cases),
            }
            for name in PARTS
        ]

    @torch.no_grad()
    def saturation(self) -> list[dict]:
        """The compressor's largest weight, untrained and trained, with and without a scale; and what was accepted."""
        cases, model = self.cases(), self.answerer.model
        features = []
        for case in cases:
            request = prepare_request(model, processor_inputs(self.answerer.processor, case.frames, CAPTION_PROMPTS[0]))
            target = VideoTarget(model, request)
            target.prefill()
            features.append(target.prompts[0].visual_hidden_states[None])
        rows = []
        for scale, name in ((False, "flash_k4"), (True, "flash_scaled")):
            torch.manual_seed(0)
            networks = {
                "untrained": new_drafter("flash", model, scale=scale),
                "trained": load_drafter(self.folder(name), model),
            }
            row: dict[str, Any] = {"scaled": scale, "queries": networks["trained"].config.num_queries}
            for label, network in networks.items():
                assert network.compressor is not None
                row[label] = statistics.fmean(network.compressor.saturation(each) for each in features)
            row["even"] = 1 / features[0].shape[1]
            rows.append({**row, **self.ask(FlashConfig(drafter=self.folder(name), tree="chain"), cases)})
        return rows


STUDIES = ("length", "cost", "parts", "places", "compression", "saturation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", default="runs/video-drafters", help="folder of trained drafters, see above")
    parser.add_argument("--commands", action="store_true", help="print how to train them, and nothing else")
    parser.add_argument("--model", default=None, help="folder of the target, or the name of a shipped one")
    parser.add_argument("--captions", default="plain", choices=sorted(SETTINGS), help="which videos")
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--videos", type=int, default=20)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()
    setting, chosen = SETTINGS[options.captions], options.studies.split(",")
    if options.commands:
        print("\n".join(commands(setting, options.model, options.drafters)))
        return
    if unknown := set(chosen) - set(STUDIES):
        parser.error(f"--studies: {unknown.pop()!r} is not one of {', '.join(STUDIES)}")
    path = RESULTS / f"{setting.record}.json"
    found = json.loads(path.read_text())["studies"] if path.exists() else {}
    lengths, counts = len(setting.lengths), (len(PARTS), len(PLACES), len(setting.queries), 2)
    per_study = dict(zip(STUDIES, (8 * lengths, 2 * lengths, *counts), strict=True))
    total = sum(per_study[name] * (min(options.videos, 4) if name == "cost" else options.videos) for name in chosen)
    with progress(total, "answers", options.quiet) as shown:
        studies = Studies(options, shown)
        for name in chosen:
            rows = getattr(studies, name)()
            told = {"videos": options.videos, "captions": options.captions, "trained": trained(setting)}
            found[name] = {**told, "provenance": provenance(), "rows": rows}
            for row in rows:
                print(name, {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
            if not options.dry_run:
                write_result(path, {"studies": found})


if __name__ == "__main__":
    main()
