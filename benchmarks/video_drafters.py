"""Trained drafters for a Video-LLM, part by part: what each part is worth, and what a longer video costs.

Of Sparrow (arXiv 2602.15318): accepted length against the length of the video for all 2^3 of its parts (bridged visual
states, multi-token prediction, text-only drafting), trained on stills of two frames; what drafting costs as the video
grows, beside a drafter that keeps the video. Of FLASH (arXiv 2505.12728): tokens accepted per forward of the drafter
against the number of places guessed at once; the compression of the video; how saturated the compressor's softmax is,
with and without a scale.

    python benchmarks/video_drafters.py --drafters runs/video-drafters

`--drafters` holds one folder a drafter, with an export/ in it, made by `vargen train video-drafter` with the options
that `TRAINED` lists. Writes benchmarks/results/video_drafters.json; studies that are not asked for stay as they were.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
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
from vargen.world.captions.video_captions import caption_accuracy
from vargen.world.cases import scene_video_cases

RESULTS = Path(__file__).resolve().parent / "results"
LENGTHS = (4, 8, 16, 32, 64)  # frames
PLACES = (1, 2, 3, 4, 5, 6)
QUERIES = {"1x": 144, "4x": 36, "9x": 16, "16x": 9}
IMAGE_SIZE, DEPTH = 96, 5

_STILL = "--kind sparrow --training_frames 2 --steps 1000"
_SHORT = "--kind flash --videos 1024 --steps 600"
TRAINED = {
    **{kind: f"--kind {kind}" for kind in ("eagle", "msd", "vispec", "sparrow", "flash")},
    "still_states_mtp": _STILL,
    "still_states_none": f"{_STILL} --own_passes 0",
    "still_embeddings_mtp": f"{_STILL} --visual embeddings",
    "still_embeddings_none": f"{_STILL} --visual embeddings --own_passes 0",
    **{f"flash_k{places}": f"{_SHORT} --draft_length {places}" for places in PLACES},
    **{f"flash_{name}": f"{_SHORT} --num_queries {count}" for name, count in QUERIES.items() if name != "9x"},
    "flash_scaled": f"{_SHORT} --scale true",
}
"""By folder, how each drafter is trained, by the shipped configuration but for these options."""


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
        "caption_accuracy": caption_accuracy(case.truth, text),
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
        self.answerer = VideoAnswerer.from_pretrained(options.model)

    def folder(self, name: str) -> str:
        """Of a trained drafter."""
        return str(Path(self.options.drafters) / name / "export")

    def ask(self, config: TrainedDrafterConfig, cases: Sequence[VideoCase], max_new_tokens: int = 220) -> dict:
        """Figures of a method over some videos."""
        answers = []
        for case in cases:
            answers.append(answer(self.answerer, case, config, max_new_tokens))
            self.shown.update()
        return figures(answers)

    def cases(self, num_frames: int = 8) -> list[VideoCase]:
        """Held-out videos."""
        return scene_video_cases(self.options.videos, "heldout", num_frames, IMAGE_SIZE)

    def length(self) -> list[dict]:
        """Sparrow's parts against the length of the video."""
        rows = []
        for num_frames in LENGTHS:
            cases = self.cases(num_frames)
            for visual in ("states", "embeddings"):
                for passes in ("mtp", "none"):
                    for text_only in (True, False):
                        drafter = self.folder(f"still_{visual}_{passes}")
                        config = SparrowConfig(drafter=drafter, text_only=text_only, tree="chain", depth=DEPTH)
                        parts = {"bridged": visual == "states", "multi_token": passes == "mtp", "text_only": text_only}
                        rows.append({"frames": num_frames, **parts, **self.ask(config, cases)})
        return rows

    def cost(self) -> list[dict]:
        """A forward of the drafter against the length of the video; one answer after the other, of few videos."""
        rows = []
        for num_frames in LENGTHS:
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
        cases = self.cases()
        names = {ratio: "flash_k4" if ratio == "9x" else f"flash_{ratio}" for ratio in QUERIES}
        return [
            {"compression": ratio, "queries": QUERIES[ratio], **self.ask(FlashConfig(drafter=self.folder(name)), cases)}
            for ratio, name in names.items()
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


STUDIES = ("length", "cost", "places", "compression", "saturation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", required=True, help="folder of trained drafters, see above")
    parser.add_argument("--model", default=None, help="folder of the target, or the name of a shipped one")
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--videos", type=int, default=20)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()
    if unknown := set(options.studies.split(",")) - set(STUDIES):
        parser.error(f"--studies: {unknown.pop()!r} is not one of {', '.join(STUDIES)}")
    path = RESULTS / "video_drafters.json"
    found = json.loads(path.read_text())["studies"] if path.exists() else {}
    per_study = dict(zip(STUDIES, (8 * len(LENGTHS), 2 * len(LENGTHS), len(PLACES), len(QUERIES), 2), strict=True))
    chosen = options.studies.split(",")
    total = sum(per_study[name] * (min(options.videos, 4) if name == "cost" else options.videos) for name in chosen)
    with progress(total, "answers", options.quiet) as shown:
        studies = Studies(options, shown)
        for name in chosen:
            rows = getattr(studies, name)()
            found[name] = {"videos": options.videos, "provenance": provenance(), "rows": rows}
            for row in rows:
                print(name, {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
            if not options.dry_run:
                write_result(path, {"trained": TRAINED, "studies": found})


if __name__ == "__main__":
    main()
