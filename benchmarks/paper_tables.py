"""Tables of ParallelVLM's, Sparrow's and FLASH's papers with a pair of this project's, the papers' figures beside.

The studies, their rows and what the papers print are in `paper_tables.yaml`. Those of seconds, prompts and windows are
timed: keep both cores to them. Studies of heads trained for them run by name alone:

    python benchmarks/paper_tables.py --commands --drafters HEADS > train.sh && sh train.sh
    python benchmarks/paper_tables.py --only flash_parts --drafters HEADS

    python benchmarks/paper_tables.py --only parallel --videos 40 --model M --draft_model D --drafters HEADS

`HEADS` holds a folder of each kind of draft head, or its training run with an export/. A longer video is the same one
with each frame shown several times, as many times as often a second. So figures are paired: the story stays, and so do
the positions. Every answer is kept in runs/paper_tables as soon as it is there, so the same command goes on after a
kill. Writes benchmarks/results/paper_tables.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from baselines import resolve_with_baselines
from pair_options import add_pair_options, pair_folders, shown_figures
from torch import Tensor

from metrics.bootstrap import student_interval
from metrics.provenance import provenance, write_result
from scenes.captions.story_captions import MAX_CAPTION_TOKENS, written_accuracy
from scenes.cases import scene_video_cases
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.runs.parallel.draft_length import measure_draft_length
from specdecode.sampling import SamplingConfig
from specdecode.trace import DecodeTrace
from specdecode.verifiers.exact import ExactVerifier
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import append_jsonl, read_jsonl
from vargen.runs.progress import progress
from vargen.video.drafters.video_head import VideoHead, VideoHeadConfig
from vargen.video.jobs.cases import VideoCase
from vargen.video.methods.base import VideoComponents
from vargen.video.methods.trained import SparrowConfig
from vargen.video.models.frames import CAPTION_PROMPTS, FRAMES_PER_SECOND, VideoFrames
from vargen.video.models.pruning import keep_uniform, token_budget
from vargen.video.models.request import VideoRequest
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.pipelines.components import VideoLLMComponents
from vargen.video.pipelines.decoding import Generation, decode

RESULTS = Path(__file__).resolve().parent / "results"
KEPT = RESULTS.parent.parent / "runs" / "paper_tables" / "answers.jsonl"
LENGTHS = (1, 4, 16)
"""How often each frame is shown: 1,024 visual tokens, 4,096 and 16,384."""
CONTEXT = 32 * 1024
"""Tokens that the target lets through; their positions are those of a short video."""
PLACES = 4
"""Draft tokens of a round whose operations are counted."""


@dataclass(frozen=True)
class Study:
    """One table.

    Args:
        rows: by label: "method", its "options", and what the "paper" prints, one figure or one for each of `LENGTHS`;
            "share" for `SeenSparrow`; "drafter", the folder of a head among `heads`.
        of: "answers", whose videos the target reads once for all rows; "words", the same along the answer about the
            shortest video; "seconds" of answers, one by one; "prompts"; "windows"; "operations".
        times: lengths.
        over: the row whose cost is divided by the others'.
        max_new_tokens: of an answer.
        temperature: of drawing.
    """

    rows: Mapping[str, Mapping[str, Any]]
    of: str = "answers"
    times: tuple[int, ...] = LENGTHS
    over: str | None = None
    max_new_tokens: int = MAX_CAPTION_TOKENS
    temperature: float = 0.0

    def settings(self, label: str, head: Path | None = None) -> Any:
        """The method of a row, whose head lies here; of operations, its draft head's kind and what differs from it."""
        row = self.rows[label]
        changes = {**row.get("options", {}), **({"drafter": str(head)} if "drafter" in row else {})}
        if self.of == "operations":
            return row["method"], changes
        return SeenSparrow(share=row["share"]) if "share" in row else resolve_with_baselines(row["method"], changes)


def read_studies() -> tuple[dict[str, Study], dict[str, str]]:
    """Those of the file beside this one, by name; and how the heads of some are trained, by folder."""
    told = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    heads = told.pop("heads")
    return {name: Study(**values) for name, values in told.items()}, heads


def commands(model: str | None, folder: Path) -> list[str]:
    """That train the heads, one after the other."""
    shared = f"--num_videos 1024 --steps 600 --answers {folder}/answers --states {folder}/states"
    shared += f" --model {model}" if model else ""
    return [
        f"vargen train video-drafter {options} --output {folder}/{name} {shared}"
        for name, options in read_studies()[1].items()
    ]


@dataclass(frozen=True)
class SeenSparrow(SparrowConfig):
    """Sparrow's draft head, shown an even share of the video when it drafts.

    Args:
        share: of the visual tokens.
    """

    depth: int | None = None
    share: float = 1.0

    def _network(self, components: VideoComponents) -> Any:
        network = super()._network(components)
        shown = VideoHead(replace(network.config, text_only=self.share == 0)).eval()
        shown.load_state_dict(network.state_dict())
        whole = shown._visual_rows

        def part(states: Any, visual: Tensor) -> tuple[Tensor, Tensor]:
            rows, places = whole(states, visual)
            kept = keep_uniform(len(places), token_budget(len(places), self.share))
            return rows[:, kept], places[kept]

        shown._visual_rows = part  # type: ignore[method-assign]
        return shown


class KnownAnswer(ExactVerifier):
    """Judges chains by an answer that is known, whatever the target says; the first word is the target's own."""

    def __init__(self, answer: Sequence[int]) -> None:
        self.answer = torch.tensor(answer)

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        if not int(state.lengths[0]):
            return super().accept(draft, output, state)
        places = int(state.lengths[0]) + torch.arange(draft.tree.num_nodes)
        said = self.answer[places.clamp(max=len(self.answer) - 1)]
        return super().accept(
            draft, replace(output, logits=F.one_hot(said, output.logits.shape[2])[None].float()), state
        )


def look(answerer: VideoAnswerer, study: Study, settings: Any, case: VideoCase, shared: dict, seed: int) -> dict:
    """What one row of a study is about one video, in figures. Answers share the target's reading of it in `shared`."""
    question, room = CAPTION_PROMPTS[0], study.max_new_tokens
    if study.of in ("seconds", "prompts"):
        asked = {"max_new_tokens": room, "temperature": study.temperature, "seed": seed}
        made: Any = answerer.answer(case.frames, question, settings, **asked)
        tokens, trace, visual = made.token_ids, made.trace, made.visual_tokens
    else:
        components = answerer.components([answerer.inputs(case.frames, question)], room)
        if study.of == "operations":
            return operations(answerer.model, components.requests[0], *settings)
        if study.of == "windows":
            loop = settings.build(components)
            told = measure_draft_length(loop._target(), loop.pair.channel, prompt=loop._draft_prompt)
            seconds = {"target_seconds": told.target_seconds, "draft_seconds": told.draft_seconds}
            return {"visual_tokens": components.requests[0].num_visual, "window": told.tokens, **seconds}
        if not shared:
            shared["components"] = LastingComponents(**{**vars(components), "lasting": {}})
        visual, players = shared["components"].requests[0].num_visual, settings.build(shared["components"])
        if study.of == "words":
            if "words" not in shared:
                short = VideoFrames.from_frames(case.frames.frames[:: round(case.frames.fps / FRAMES_PER_SECOND)])
                shared["words"] = answerer.answer(short, question, "ar", max_new_tokens=room).token_ids
            players = replace(players, verifier=KnownAnswer(shared["words"]))
        trace, greedy = DecodeTrace(1, answerer.model.device), SamplingConfig(temperature=0.0)
        made = decode(players, Generation(room, greedy, [seed], answerer.stop_tokens, trace))
        (tokens,) = made.token_ids
    accepted, phases = trace.accepted_lengths[0], trace.phase_seconds
    text = answerer.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    return {
        "visual_tokens": visual,
        "tokens": len(tokens),
        "steps": len(accepted),
        "accepted": sum(accepted),
        "passes": (made.draft_passes or 0) - made.draft_prompt_passes,
        "runs": len(made.run_lengths),
        "run_tokens": sum(made.run_lengths),
        "accuracy": written_accuracy(case.truth, text),
        **{name: phases.get(name, 0.0) for name in ("prefill", "decode")},
        "whole": sum(phases.get(name, 0.0) for name in ("encode", "prefill", "decode")),
    }


def operations(model: Any, request: Any, kind: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Multiplications and additions of a prompt and a round, of a draft head alone and with the target."""
    text, output = model.config.get_text_config(), 2 * model.get_output_embeddings().weight.numel()
    layers = sum(each.numel() for each in model.model.language_model.layers.parameters() if each.ndim == 2)

    def of_target(tokens: int) -> int:
        return tokens * (2 * layers + 4 * request.length * text.hidden_size * text.num_hidden_layers + output)

    config = VideoHeadConfig.of_kind(kind, model, **changes)
    visual = 0 if config.text_only else config.num_queries or request.num_visual
    prompt, passes = request.length - 1 - request.num_visual + visual, 1 if config.draft_length > 1 else PLACES
    of_prompt = VideoHead(replace(config, draft_length=1)).flops(prompt, prompt)
    drafter = of_prompt + passes * VideoHead(config).flops(1, prompt) + PLACES * output
    prefill = of_target(request.length) - (request.length - 1) * output
    return {"visual_tokens": request.num_visual, "drafter": drafter, "whole": prefill + of_target(PLACES + 1) + drafter}


def quotient(upper: Sequence[float], lower: Sequence[float], *beside: Sequence[float]) -> dict[str, Any] | None:
    """One sum over videos by another, and over the same of two more; its interval is over videos. None: of nothing."""
    numbers = torch.tensor([upper, lower, *(beside or (lower, lower))], dtype=torch.float64)
    if not numbers[1:3].sum(1).all():
        return None

    def value_of(chosen: Tensor) -> float:
        own, other, of_beside, by_beside = numbers[:, chosen].sum(1).tolist()
        return own / other * by_beside / of_beside if other and of_beside else float("nan")

    count = numbers.shape[1]
    return {"value": value_of(torch.arange(count)), "interval": student_interval(count, value_of)}


def rows_of(study: Study, found: Mapping[tuple[int, str], Sequence[Mapping[str, Any]]]) -> list[dict]:
    """A row for each length and label, of what was found of every video."""
    columns = {key: {name: [one[name] for one in each] for name in each[0]} for key, each in found.items()}
    printed = dict.fromkeys(name for row in study.rows.values() for name in row.get("paper", {}))
    rows = []
    for (times, label), of in columns.items():
        row: dict[str, Any] = {"method": label, "visual_tokens": of["visual_tokens"][0]}
        if "tokens" not in of:  # windows, operations
            row |= {name: statistics.median(values) for name, values in of.items() if name != "visual_tokens"}
        elif study.of == "prompts":
            row["prefill"] = statistics.fmean(of["prefill"])
        else:
            row["accepted"] = quotient(of["accepted"], of["steps"])
            row["a_pass"] = quotient(of["accepted"], of["passes"])
            row["accuracy"] = statistics.fmean(of["accuracy"])
            if len(study.times) > 1:
                shortest = columns[study.times[0], label]
                row["kept"] = quotient(of["accepted"], of["steps"], shortest["accepted"], shortest["steps"])
        if study.of == "seconds":
            plain = columns[times, "plain decoding"]
            row["run_length"] = quotient(of["run_tokens"], of["runs"])
            row["seconds"], row["seconds_a_step"] = statistics.fmean(of["whole"]), sum(of["decode"]) / sum(of["steps"])
            row["prefill_share"] = 1 - sum(of["decode"]) / sum(of["whole"])
            for name, part in (("decoding", "decode"), ("end_to_end", "whole")):
                row[name] = quotient(plain[part], plain["tokens"], of[part], of["tokens"])
        if study.over:
            other = columns[times, study.over]
            if study.of == "operations":
                row["share"] = row["whole"] / other["whole"][0]
            else:
                cost = "decode" if study.of == "seconds" else "prefill"
                row["over"] = quotient(other[cost], of[cost])
        for name in printed:
            figure = study.rows[label].get("paper", {}).get(name)
            row[f"paper_{name}"] = figure[LENGTHS.index(times)] if isinstance(figure, list) else figure
        rows.append(row)
    return rows


def longer(case: VideoCase, times: int) -> VideoCase:
    """The same video with each frame shown so many times, as many times as often a second."""
    frames = case.frames.frames.repeat_interleave(times, 0)
    return replace(case, frames=VideoFrames.from_frames(frames, FRAMES_PER_SECOND * times))


class LastingTarget(VideoTarget):
    """Reads its prompts once, for any number of answers one after another."""

    _told: TargetOutput | None = None

    def prefill(self) -> TargetOutput:
        if self._told is None:
            self._told = super().prefill()
        else:
            self._cache.allocated().reset()
            self.finish_prompts()
        return replace(self._told)


class LastingComponents(VideoLLMComponents):
    """The same targets for every variant; the draft model's vision tower runs once, too."""

    def target(self, num_nodes: int, **options: Any) -> VideoTarget:
        key = ("target", num_nodes, *sorted(options.items()))
        if key not in self.lasting:
            self.lasting[key] = LastingTarget(self.model, self.requests, **options, **self.sizes(num_nodes))
        return self.lasting[key]

    def _draft_requests(self, model: Any) -> list[VideoRequest]:
        if "requests" not in self.lasting:
            self.lasting["requests"] = super()._draft_requests(model)
        return self.lasting["requests"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="studies, separated by commas; all if none is named")
    parser.add_argument("--videos", type=int, default=40)
    parser.add_argument("--times", type=int, nargs="+", help="only these lengths of a study")
    parser.add_argument("--drafters", type=Path, help="folder of draft heads; none: those that came with the model")
    parser.add_argument("--commands", action="store_true", help="print how heads are trained, and nothing else")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the answers that are through")
    add_pair_options(parser)
    options = parser.parse_args()
    if options.commands:
        print("\n".join(commands(options.model, options.drafters or Path("runs/paper_tables"))))
        return
    every = read_studies()[0]
    usual = [name for name, study in every.items() if not any("drafter" in row for row in study.rows.values())]
    chosen = options.only.split(",") if options.only else usual
    if unknown := set(chosen) - set(every):
        parser.error(f"--only: {unknown.pop()!r} is not one of {', '.join(every)}")
    if options.times:
        every = {name: replace(study, times=tuple(options.times)) for name, study in every.items()}
    folders = pair_folders(options)
    models = [weights_fingerprint(folder) for folder in folders]
    folder = options.drafters or folders[0] / "drafters"
    heads = {at.parent.name: at.parent for at in sorted(folder.glob("*/config.json"))}
    heads |= {at.parent.parent.name: at.parent for at in sorted(folder.glob("*/export/config.json"))}
    prints = {name: weights_fingerprint(at) for name, at in heads.items()}
    path = RESULTS / "paper_tables.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    studies = earlier["studies"] if earlier.get("models") == models else {}
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    through = {json.dumps(row["key"]): row["found"] for row in read_jsonl(options.kept)}

    def all_of(study: Study) -> dict[tuple[int, str], list[dict]]:
        """What is found of every video by length and label. Rows take turns, and warm up where they are timed."""
        labels, warm = list(study.rows), set()
        found: dict[tuple[int, str], list[dict]] = {key: [] for key in itertools.product(study.times, labels)}
        for times, number in itertools.product(study.times, range(options.videos)):
            case, shared = None, {}
            for label in labels[number % len(labels) :] + labels[: number % len(labels)]:
                row = {name: value for name, value in study.rows[label].items() if name != "paper"}
                head = row.get("drafter", row["method"].removesuffix("-paper"))
                key = [models, prints.get(head), options.num_frames, options.image_size]
                key += [study.of, study.max_new_tokens, study.temperature, row, times, number]
                if "drafter" in row and head not in heads:
                    parser.error(f"--drafters: {folder} has no {head}; --commands says how to train it")
                if (told := json.dumps(key)) not in through:
                    if case is None:
                        (case,) = scene_video_cases(1, "heldout", options.num_frames, options.image_size, number)
                        case = longer(case, times)
                    asked = answerer, study, study.settings(label, heads.get(head)), case, shared, number
                    if study.of in ("seconds", "prompts") and label not in warm:
                        look(*asked)
                    warm.add(label)
                    through[told] = look(*asked)
                    append_jsonl(options.kept, {"key": key, "found": through[told]})
                    shown.update()
                else:
                    shown.skip()
                found[times, label].append(through[told])
        return found

    total = options.videos * sum(len(every[name].rows) * len(every[name].times) for name in chosen)
    with (
        VideoAnswerer.from_pretrained(options.model, options.draft_model) as answerer,
        progress(total, "answers", options.quiet) as shown,
    ):
        answerer.model.config.get_text_config().max_position_embeddings, answerer.drafters = CONTEXT, heads
        for name in chosen:
            rows = rows_of(every[name], all_of(every[name]))
            studies[name] = {"videos": options.videos, "provenance": provenance(), "rows": rows}
            for row in rows:
                print(name, shown_figures(row), flush=True)
            if not options.dry_run:
                write_result(path, {"models": models, "studies": studies})


if __name__ == "__main__":
    main()
