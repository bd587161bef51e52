"""Trained drafters for a Video-LLM, part by part: what each part is worth, each trained as it drafts.

Of Sparrow (arXiv 2602.15318): what a head accepts that saw videos in all, half or none of its training steps (table 1);
how much of it is left at four and eight times the length, with the video's rows and without, beside one that learned
from longer videos. Of FLASH (arXiv 2505.12728): its two parts with and without the other, beside text alone; tokens
accepted per forward of the drafter against the number of places guessed at once; the compression of the video. What
needs no training of its own is in `paper_tables.py`.

    python benchmarks/video_drafters.py --commands > train.sh && sh train.sh
    python benchmarks/video_drafters.py

`--drafters` holds one folder a drafter, with an export/ in it, made by the commands that `--commands` prints. Writes
benchmarks/results/video_drafters.json; studies that are not asked for stay as they were.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import percentile_interval
from metrics.provenance import provenance, write_result
from scenes.captions.story_captions import MAX_CAPTION_TOKENS, written_accuracy
from scenes.cases import scene_video_cases
from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.drafters.video_draft_head import VideoDraftHead
from vargen.jobs.cases import VideoCase
from vargen.methods.video.trained import FlashConfig, SparrowConfig, TrainedDrafterConfig
from vargen.models.video_llms.frames import CAPTION_PROMPTS, processor_inputs
from vargen.pipelines.video.answering import VideoAnswerer
from vargen.runs.progress import Progress, progress

RESULTS = Path(__file__).resolve().parent / "results"
PLACES = (1, 2, 3, 4, 5, 6)
DEPTH = 5


OPENING = 60
"""Tokens of an answer that are its first words: about as many as whole answers have of the shortest videos."""
LONGER = (8, 32, 64)
"""Frames that the drafters of the studies of length learned from, and four and eight times as many."""
SEEN = {"all": (" --blind_share 0", 3.25), "half": ("", 3.21), "none": (" --blind_share 1", 3.23)}
"""Training steps of Sparrow in which the video has rows, and what its table 1 accepts without the bonus token. There
half the tokens are left out, of pictures, and drafting sees what training saw; here drafting sees no video."""
VIDEO = "still_video"
"""Folder of the drafter that is Sparrow's but for the rows of the video, which it keeps."""
LONG = "long_states_mtp_text"
"""Folder of Sparrow's that learned from videos of four times as many frames, fewer of them."""
QUERIES = {"4x": 256, "16x": 64, "64x": 16, "256x": 4}
"""Learned queries of FLASH's compressor by its ratio; it has `USUAL_QUERIES` by itself."""
USUAL_QUERIES = "64x"
SHORT = "--kind sparrow --num_frames 8 --steps 1000"
"""How those learn that are asked about longer videos than they saw."""
LEFT = {"places": "--kind eagle --draft_length 4", "neither": "--kind eagle"}
LEFT |= {"text_only": "--kind eagle --text_only true --blind_share 1"}
"""What is left of FLASH without its compressor, by what that is; its paper's SemiAR, Multimodal and Text-only."""
PARTS = {"both": "flash_k4", "compression": "flash_k1", **{name: f"part_{name}" for name in LEFT}}
"""Folders of FLASH and of what is left of it."""
PAPER = {"both": 3.21, "compression": 0.83, "places": 3.28, "neither": 0.83, "text_only": 0.70}
"""Tokens accepted a drafting pass, for Qwen2.5-VL; text alone is a model of its own there."""


def trained() -> dict[str, str]:
    """How each drafter is trained, by folder: the shipped configuration but for these options."""
    flash = "--kind flash --num_videos 1024 --steps 600"
    return {
        **{f"still_{steps}": f"{SHORT}{share}" for steps, (share, _) in SEEN.items()},
        VIDEO: f"{SHORT} --text_only false --blind_share 0",
        LONG: "--kind sparrow --num_videos 1024 --steps 600",
        **{f"flash_k{places}": f"{flash} --draft_length {places}" for places in PLACES},
        **{f"flash_{name}": f"{flash} --num_queries {many}" for name, many in QUERIES.items() if name != USUAL_QUERIES},
        **{f"part_{name}": f"{flash} {options}" for name, options in LEFT.items()},
    }


def commands(model: str | None, folder: str) -> list[str]:
    """That train all of them, one after the other."""
    of_model = "" if model is None else f"--model {model} "
    result = []
    for name, options in trained().items():
        length = "-short" if options.startswith(SHORT) else ""
        shared = f"--answers {folder}/answers{length} --states {folder}/states{length}"
        result.append(f"vargen train video-drafter {of_model}{options} --output {folder}/{name} {shared}")
    return result


def answer(answerer: VideoAnswerer, case: VideoCase, config: TrainedDrafterConfig, max_new_tokens: int) -> dict:
    """One greedy answer, in figures."""
    inputs = processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0])
    players = config.build(answerer.components([inputs], max_new_tokens))
    head = players.network
    assert isinstance(head, VideoDraftHead)
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
        "caption_accuracy": written_accuracy(case.truth, text),
    }


def accepted_length(answers: Sequence[dict], shorter: Sequence[dict] | None = None) -> dict[str, Any]:
    """Tokens accepted a step, or their share of what is accepted of as many shorter videos, with its interval."""

    def length(of: Sequence[dict], chosen: Tensor) -> float:
        found = [of[number] for number in chosen.tolist()]
        return sum(each["accepted"] for each in found) / max(sum(each["steps"] for each in found), 1)

    def value_of(chosen: Tensor) -> float:
        return length(answers, chosen) / (1.0 if shorter is None else length(shorter, chosen))

    return {"value": value_of(torch.arange(len(answers))), "interval": percentile_interval(len(answers), value_of)}


def figures(answers: Sequence[dict]) -> dict[str, float]:
    """The figures of several answers."""
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
        self.room = MAX_CAPTION_TOKENS
        self.answerer = VideoAnswerer.from_pretrained(options.model)

    def folder(self, name: str) -> str:
        """The folder of a trained drafter."""
        return str(Path(self.options.drafters) / name / "export")

    def answers(
        self, config: TrainedDrafterConfig, cases: Sequence[VideoCase], max_new_tokens: int | None = None
    ) -> list[dict]:
        """The answers of a method about some videos."""
        found = []
        for case in cases:
            found.append(answer(self.answerer, case, config, max_new_tokens or self.room))
            self.shown.update()
        return found

    def ask(self, config: TrainedDrafterConfig, cases: Sequence[VideoCase]) -> dict:
        """Figures of a method over some videos."""
        return figures(self.answers(config, cases))

    def cases(self, num_frames: int | None = None) -> list[VideoCase]:
        """Held-out videos."""
        return scene_video_cases(self.options.videos, "heldout", num_frames or VIDEO_FRAMES, VIDEO_SIDE)

    def seen(self) -> list[dict]:
        """Sparrow by the steps of its training that show the video."""
        cases = self.cases(LONGER[0])
        configs = {name: SparrowConfig(self.folder(f"still_{name}"), "chain", depth=DEPTH) for name in SEEN}
        return [
            {"steps_with_video": name, "paper_accepted_length": SEEN[name][1], **self.ask(config, cases)}
            for name, config in configs.items()
        ]

    def longer(self) -> list[dict]:
        """Over first words, what learned from short videos, with their rows and without, and from longer ones."""
        rows = []
        for learned, name in ((LONGER[0], "still_half"), (LONGER[0], VIDEO), (LONGER[1], LONG)):
            text_only = name != VIDEO
            config = SparrowConfig(drafter=self.folder(name), tree="chain", depth=DEPTH)
            found = [self.answers(config, self.cases(frames), OPENING) for frames in LONGER]
            rows += [
                {
                    "learned_frames": learned,
                    "text_only": text_only,
                    "visual_tokens": answers[0]["visual_tokens"],
                    "accepted": accepted_length(answers),
                    "kept": accepted_length(answers, found[0]),
                }
                for answers in found
            ]
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
        cases = self.cases()
        names = {ratio: "flash_k4" if ratio == USUAL_QUERIES else f"flash_{ratio}" for ratio in QUERIES}
        return [
            {"compression": ratio, "queries": QUERIES[ratio], **self.ask(FlashConfig(drafter=self.folder(name)), cases)}
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
                "paper_accepted_per_drafting_pass": PAPER[name],
                **self.ask(FlashConfig(drafter=self.folder(folder), tree="chain", depth=4), cases),
            }
            for name, folder in PARTS.items()
        ]


STUDIES = ("seen", "longer", "parts", "places", "compression")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", default="runs/video-drafters", help="folder of trained drafters, see above")
    parser.add_argument("--commands", action="store_true", help="print how to train them, and nothing else")
    parser.add_argument("--model", default=None, help="folder of the target, or the name of a shipped one")
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--videos", type=int, default=20)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()
    chosen = options.studies.split(",")
    if options.commands:
        print("\n".join(commands(options.model, options.drafters)))
        return
    if unknown := set(chosen) - set(STUDIES):
        parser.error(f"--studies: {unknown.pop()!r} is not one of {', '.join(STUDIES)}")
    path = RESULTS / "video_drafters.json"
    found = json.loads(path.read_text())["studies"] if path.exists() else {}
    counts = (len(SEEN), 3 * len(LONGER), len(PARTS), len(PLACES), len(QUERIES))
    per_study = dict(zip(STUDIES, counts, strict=True))
    total = sum(per_study[name] * options.videos for name in chosen)
    with progress(total, "answers", options.quiet) as shown:
        studies = Studies(options, shown)
        for name in chosen:
            rows = getattr(studies, name)()
            told = {"videos": options.videos, "trained": trained()}
            found[name] = {**told, "provenance": provenance(), "rows": rows}
            for row in rows:
                print(name, {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
            if not options.dry_run:
                write_result(path, {"studies": found})


if __name__ == "__main__":
    main()
