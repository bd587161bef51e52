"""What a pair of Video-LLMs is like, beside what papers say of theirs, on held-out videos of the scene world.

    layers    F1 of captions when all visual tokens are taken away after a layer; papers' targets lose nothing late
    views     F1 of target and drafter, each alone, by the share of visual tokens that it is shown, evenly spread
    pruning   ParallelVLM: of the tokens that each way of pruning keeps, the share that shows an object; token-wise
              agreement A of the drafter so shown with the target's answer, M, the tokens between two rejections, and
              F1 of the drafter's own caption; "objects", "no object" and "untouched" (cells that no object touches in
              either frame of a step) know the truth
    language  FLASH: agreement of a drafter that sees neither the video nor the target's hidden states, of one that sees
              a part of the video, and of trained draft heads, which read hidden states
    self_drafting  the same of a target that drafts for itself: unlike the draft model it never learned from videos
              whose tokens were pruned at random, so no way of pruning is what it knows
    lossy     FastV and SparseVLM: token-wise agreement of what is left of the target with its own answer
    length    F1, and the drafter's agreement at a tenth, against the number of frames

    python benchmarks/video_pair.py --videos 200

Writes benchmarks/results/video_pair.json; studies that are not asked for stay as they were, if they are of the same
models.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from baselines.lossy import FastVTarget, SparseVLMTarget, sparsevlm_stages
from pair_measures import (
    EarlyTarget,
    add_pair_options,
    agreements,
    answer_tokens,
    drafted_agreements,
    drafter_of,
    pair_folders,
    pruning_scores,
    run_lengths,
    shown_figures,
    shows_object,
    touches_object,
)
from torch import Tensor

from metrics.bootstrap import mean_interval, percentile_interval
from metrics.provenance import provenance, write_result
from scenes.captions.story_captions import MAX_CAPTION_TOKENS, visual_words, written_accuracy
from scenes.cases import scene_video_cases
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.methods.catalogue import resolve_method
from vargen.runs.progress import Progress, progress
from vargen.video.jobs.cases import VideoCase
from vargen.video.methods.base import VideoMethod
from vargen.video.models.frames import CAPTION_PROMPTS, processor_inputs
from vargen.video.models.pruning import fill_evenly, keep_highest, keep_uniform, token_budget
from vargen.video.models.request import VideoRequest, prepare_request
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import VideoAnswerer

RESULTS = Path(__file__).resolve().parent / "results"
SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
KEPT = 0.1  # of most papers
PRUNED = (0.25, KEPT)
"""Shares that every way of pruning is tried at, beside all tokens."""
HEADS = ("flash", "sparrow")


def figure(values: Sequence[float]) -> dict[str, Any]:
    """A mean over videos and its interval."""
    numbers = torch.tensor(values, dtype=torch.float64)
    return {"value": float(numbers.mean()), "interval": mean_interval(numbers)}


def mean_length(runs: Sequence[Sequence[int]], beside: Sequence[Sequence[int]] | None = None) -> dict[str, Any]:
    """The mean length of runs that are listed by video, or by how much it is above others' of the same videos.

    Its interval is over videos, whose runs come together: a hard one has many short ones.
    """

    def totals(lists: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[sum(each), len(each)] for each in lists], dtype=torch.float64)

    def mean_of(numbers: Tensor, chosen: Tensor) -> float:
        length, count = numbers[chosen].sum(0).tolist()
        return length / count

    own, other = totals(runs), None if beside is None else totals(beside)

    def value_of(chosen: Tensor) -> float:
        return mean_of(own, chosen) - (0.0 if other is None else mean_of(other, chosen))

    return {"value": value_of(torch.arange(len(own))), "interval": percentile_interval(len(own), value_of)}


def _paired(values: Sequence[float], beside: Sequence[float]) -> dict[str, Any]:
    """The mean difference of two figures of the same videos, and its interval."""
    return figure([own - other for own, other in zip(values, beside, strict=True)])


def _accepted_of(matches: Sequence[bool], length: int) -> float:
    """Tokens of a chain of `length` that stay, by its agreement at each place: a run ends where one is wrong."""
    chains, at = [], 0
    while at < len(matches):
        accepted = next((place for place, match in enumerate(matches[at : at + length]) if not match), length)
        chains.append(accepted)
        at += accepted + 1
    return statistics.fmean(chains)


class Studies:
    """All of them, over one pair.

    Args:
        options: of the command line.
        shown: counts videos.
    """

    def __init__(self, options: argparse.Namespace, shown: Progress) -> None:
        self.options, self.shown = options, shown
        self.answerer = VideoAnswerer.from_pretrained(options.model, options.draft_model)
        assert self.answerer.draft_model is not None  # a folder was given
        self.model, self.drafter = self.answerer.model, self.answerer.draft_model.load()
        self.room = MAX_CAPTION_TOKENS + 1
        self.num_layers = len(self.model.model.language_model.layers)
        self._answers: dict[tuple[int, int], list[int]] = {}

    def cases(self, num_frames: int | None = None) -> Iterator[tuple[int, VideoCase]]:
        """Held-out videos, each with its number; one at a time, since long ones are large."""
        options = self.options
        for number in range(options.videos):
            frames = num_frames or options.num_frames
            (case,) = scene_video_cases(1, "heldout", frames, options.image_size, number)
            yield number, case
            self.shown.update()

    def request(self, case: VideoCase, model: Any = None) -> VideoRequest:
        """A request for a caption, of the target or of another model."""
        inputs = processor_inputs(self.answerer.processor, case.frames, CAPTION_PROMPTS[0])
        return prepare_request(model or self.model, inputs)

    def tell(self, target: Any) -> list[int]:
        """A target's caption."""
        return answer_tokens(target, self.room - 1, self.answerer.stop_tokens)

    def plain(self, number: int, case: VideoCase) -> list[int]:
        """The target's own caption of a whole video, made once."""
        key = (number, len(case.frames.frames))
        if key not in self._answers:
            self._answers[key] = self.tell(VideoTarget(self.model, self.request(case), max_new_tokens=self.room))
        return self._answers[key]

    def accuracy(self, case: VideoCase, tokens: Sequence[int]) -> float:
        """F1 of a caption's claims."""
        text = self.answerer.processor.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return written_accuracy(case.truth, text)

    def agreed(self, make: Callable[..., Any], tokens: Sequence[int]) -> list[bool]:
        """Agreement of what `make` makes of sizes with an answer."""
        return agreements(make(max_new_tokens=len(tokens) + 1, max_draft_nodes=len(tokens)), tokens)

    def drafted(self, model: Any, request: VideoRequest, kept: Tensor, tokens: Sequence[int]) -> list[bool]:
        """Agreement of a model that drafts, so shown, with the target's answer."""
        return agreements(drafter_of(model, request, kept, len(tokens) + 1), tokens)

    def layers(self) -> list[dict]:
        """A row for each layer after which no visual token is left; the whole model is the last."""
        chosen = sorted({max(1, round(self.num_layers * share)) for share in (0.17, 0.33, 0.5, 0.67, 0.75, 0.84)})
        found: dict[int, list[float]] = {layer: [] for layer in (*chosen, self.num_layers)}
        for number, case in self.cases():
            for layer in chosen:
                target = EarlyTarget(self.model, self.request(case), layer, max_new_tokens=self.room)
                found[layer].append(self.accuracy(case, self.tell(target)))
            found[self.num_layers].append(self.accuracy(case, self.plain(number, case)))
        return [
            {"layer": layer, "layers": self.num_layers, "accuracy": figure(values)} for layer, values in found.items()
        ]

    def views(self) -> list[dict]:
        """A row for each model and each share of visual tokens that it is shown."""
        found: dict[tuple[str, float], list[float]] = {}
        for _, case in self.cases():
            for name, model in (("target", self.model), ("drafter", self.drafter)):
                request = self.request(case, model)
                for share in SHARES:
                    kept = keep_uniform(request.num_visual, token_budget(request.num_visual, share))
                    tokens = self.tell(drafter_of(model, request, kept, self.room))
                    found.setdefault((name, share), []).append(self.accuracy(case, tokens))
        whole = statistics.fmean(found["target", 1.0])
        return [
            {
                "model": name,
                "share": share,
                "accuracy": figure(values),
                "retention": statistics.fmean(values) / max(whole, 1e-9),
            }
            for (name, share), values in found.items()
        ]

    def _choices(self, number: int, case: VideoCase) -> tuple[Tensor, dict[str, Callable[[int], Tensor]]]:
        """Which visual tokens show an object, and ways to prune: the papers', spreads, and by the truth."""
        request, layer = self.request(case), max(1, self.num_layers // 4)
        target = VideoTarget(self.model, request, (0, layer), capture_attention=True, max_new_tokens=2)
        target.prefill()
        grid_size = round((request.num_visual * 2 / len(case.frames.frames)) ** 0.5)
        objects = shows_object(case.truth, grid_size)
        chance = torch.rand(len(objects), generator=torch.Generator().manual_seed(number))
        untouched = chance - 1.0 * touches_object(case.truth, grid_size)
        truths = {"objects": objects + chance, "no object": chance - 1.0 * objects, "untouched": untouched}
        by_truth = {name: partial(keep_highest, scores) for name, scores in truths.items()}
        ways = pruning_scores(target, layer, number)

        def half(budget: int) -> Tensor:
            return fill_evenly(ways["visual_gain"](budget // 2), len(objects), budget)

        return objects, {**ways, "visual_gain, half": half, **by_truth}

    def pruning(self) -> list[dict]:
        """A row for each way and share of pruning; "nothing" keeps all."""
        return self._pruned(self.drafter)

    def self_drafting(self) -> list[dict]:
        """The same of a target that drafts for itself, and never learned to see a part of a video."""
        return self._pruned(self.model)

    def _pruned(self, model: Any) -> list[dict]:
        rows: dict[tuple[str, float], dict[str, list[Any]]] = {}
        for number, case in self.cases():
            tokens, request = self.plain(number, case), self.request(case, model)
            objects, ways = self._choices(number, case)
            for share in (1.0, *PRUNED):
                budget = token_budget(len(objects), share)
                for name, choose in ways.items() if share < 1 else (("nothing", ways["random"]),):
                    kept = choose(budget)
                    matches = self.drafted(model, request, kept, tokens)
                    row = rows.setdefault((name, share), {"object_share": [], "agreement": [], "runs": [], "told": []})
                    told = self.tell(drafter_of(model, request, kept, self.room))
                    row["told"].append(self.accuracy(case, told))
                    row["object_share"].append(float(objects[kept].float().mean()))
                    row["agreement"].append(sum(matches) / len(matches))
                    row["runs"].append(run_lengths(matches))
        return [
            {
                "pruning": name,
                "share": share,
                "object_share": figure(row["object_share"]),
                "agreement": figure(row["agreement"]),
                "mean_run_length": mean_length(row["runs"]),
                "over_random": mean_length(row["runs"], rows["random", share]["runs"]) if share < 1 else None,
                "accuracy": figure(row["told"]),
                "accuracy_over_random": _paired(row["told"], rows["random", share]["told"]) if share < 1 else None,
            }
            for (name, share), row in rows.items()
        ]

    def language(self) -> list[dict]:
        """A row for each drafter and each share of the video that it is shown."""
        visual = visual_words()
        found: dict[tuple[str, float | None], list[list[tuple[bool, bool]]]] = {}
        places: dict[str, list[list[bool]]] = {name: [] for name in HEADS}
        for number, case in self.cases():
            tokens, request = self.plain(number, case), self.request(case, self.drafter)
            is_visual = [
                word in visual for word in self.answerer.processor.tokenizer.batch_decode([[one] for one in tokens])
            ]
            for share in (0.0, 0.02, KEPT, 1.0):
                budget = token_budget(request.num_visual, share) if share else 0
                kept = keep_uniform(request.num_visual, budget) if budget else torch.empty(0, dtype=torch.int64)
                matches = self.drafted(self.drafter, request, kept, tokens)
                found.setdefault(("draft model", share), []).append(list(zip(is_visual, matches, strict=True)))
            for name in HEADS:
                inputs = [processor_inputs(self.answerer.processor, case.frames, CAPTION_PROMPTS[0])]
                players = resolve_method(name, {"tree": "chain", "depth": 4}, task="video").build(
                    self.answerer.components(inputs, self.room)
                )
                assert isinstance(players, VideoMethod)
                places[name] += drafted_agreements(
                    players,
                    max_new_tokens=self.room - 1,
                    sampling=SamplingConfig(temperature=0.0),
                    streams=RandomStreams.from_seeds([0]),
                    stop_token=self.answerer.stop_tokens,
                )
        rows = []
        for (name, share), videos in found.items():
            told = torch.tensor([pair for video in videos for pair in video])
            seen, right = told.unbind(1)
            runs = [[match for _, match in video] for video in videos]
            rows.append(
                {
                    "drafts": name,
                    "sees": share,
                    "agreement": figure([sum(matches) / len(matches) for matches in runs]),
                    "accepted_of_four": _accepted_of([match for matches in runs for match in matches], 4),
                    "agreement_on_words_seen": float(right[seen].double().mean()),
                    "agreement_on_others": float(right[~seen].double().mean()),
                    "mismatches_at_words_seen": float((seen & ~right).sum() / (~right).sum()),
                }
            )
        for name, steps in places.items():
            every = [match for step in steps for match in step]
            rows.append(
                {
                    "drafts": f"{name}, four places",
                    "sees": None,
                    "agreement": {"value": sum(every) / len(every), "interval": None},
                    "agreement_at_first_place": statistics.fmean(step[0] for step in steps if step),
                    "accepted_of_four": statistics.fmean(
                        next((place for place, match in enumerate(step) if not match), len(step)) for step in steps
                    ),
                }
            )
        return rows

    def lossy(self) -> list[dict]:
        """A row for each method and share kept: how the pruned target agrees with the whole one, and its caption's
        F1."""
        found: dict[tuple[str, float], tuple[list[float], list[float]]] = {}
        for number, case in self.cases():
            tokens = self.plain(number, case)
            for share in (0.5, 0.25, KEPT):
                stages = sparsevlm_stages(self.num_layers, share)
                request = self.request(case)
                ways: dict[str, Callable[..., Any]] = {
                    "fastv": partial(FastVTarget, self.model, request, share),
                    "sparsevlm": partial(SparseVLMTarget, self.model, request, stages),
                }
                for name, make in ways.items():
                    agreed, accuracies = found.setdefault((name, share), ([], []))
                    matches = self.agreed(make, tokens)
                    agreed.append(sum(matches) / len(matches))
                    accuracies.append(self.accuracy(case, self.tell(make(max_new_tokens=self.room))))
        return [
            {"method": name, "share": share, "agreement": figure(agreed), "accuracy": figure(accuracies)}
            for (name, share), (agreed, accuracies) in found.items()
        ]

    def length(self) -> list[dict]:
        """A row for each number of frames."""
        rows = []
        for num_frames in self.options.lengths:
            accuracies, agreed, runs, visual = [], [], [], 0
            for number, case in self.cases(num_frames):
                tokens, request = self.plain(number, case), self.request(case, self.drafter)
                visual = request.num_visual
                matches = self.drafted(self.drafter, request, keep_uniform(visual, token_budget(visual, KEPT)), tokens)
                accuracies.append(self.accuracy(case, tokens))
                agreed.append(sum(matches) / len(matches))
                runs += run_lengths(matches)
            rows.append(
                {
                    "frames": num_frames,
                    "visual_tokens": visual,
                    "accuracy": figure(accuracies),
                    "agreement": figure(agreed),
                    "mean_run_length": statistics.fmean(runs),
                }
            )
        return rows


STUDIES = ("layers", "views", "pruning", "language", "self_drafting", "lossy", "length")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="frames, of `length`")
    add_pair_options(parser)
    options = parser.parse_args()
    chosen = options.studies.split(",")
    if unknown := set(chosen) - set(STUDIES):
        parser.error(f"--studies: {unknown.pop()!r} is not one of {', '.join(STUDIES)}")
    path = RESULTS / "video_pair.json"
    folders = pair_folders(options)
    described = {"models": [weights_fingerprint(folder) for folder in folders]}
    earlier = json.loads(path.read_text()) if path.exists() else {}
    found = earlier.get("studies", {}) if all(earlier.get(name) == value for name, value in described.items()) else {}
    total = sum(options.videos * (len(options.lengths) if name == "length" else 1) for name in chosen)
    with progress(total, "videos", options.quiet) as shown:
        studies = Studies(options, shown)
        for name in chosen:
            rows = getattr(studies, name)()
            frames = None if name == "length" else options.num_frames
            found[name] = {"videos": options.videos, "frames": frames, "provenance": provenance(), "rows": rows}
            for row in rows:
                print(name, shown_figures(row), flush=True)
            if not options.dry_run:
                write_result(path, {**described, "studies": found})


if __name__ == "__main__":
    main()
