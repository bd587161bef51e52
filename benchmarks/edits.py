"""What filling a half of a picture is worth on the shipped model: claims, likelihood and pixels, beside drawing it all.

    python benchmarks/edits.py --prompts 300
    python benchmarks/edits.py --prompts 8 --sheet edits.png --dry_run

Scenes of captions that training never showed are rendered, and a half of each is drawn anew under its caption. The
judge reads every picture. `from nothing` draws all of it, `tokenizer` is the render as codes have it. Candidates are
compared by known tokens behind the first drawn one, so only upper halves have several. Figures are means with 95 %
intervals over captions: `claims` of the whole caption, `rest` about what is drawn and `stays` about what is not. `gain`
is the difference to drawing from nothing, paired, and `of_candidates` that of eight candidates to one. Writes
benchmarks/results/edits.json after each batch. Does not belong here: seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import mean_interval
from metrics.provenance import provenance, write_result
from scenes.cases import scene_cases
from scenes.world import SCENES
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.jobs.edits import Edits, cases_about
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
BATCH = 20
FILLED = {"lower half": ("lower", 1), "upper half": ("upper", 1), "upper half, 8 candidates": ("upper", 8)}
ALONE, EIGHT = "upper half", "upper half, 8 candidates"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--sheet", help="PNG of the first batch: render, from nothing, and each filling")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    pipeline: Any = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    side, judge, all_cases = pipeline.image_size, SCENES.judge(), scene_cases(options.prompts)
    masks = {name: torch.zeros(side, side).bool() for name in ("lower", "upper")}
    masks["lower"][side // 2 :], masks["upper"][: side // 2] = True, True
    counted = [place for place, kind in enumerate(judge.kinds) if kind not in ("prompt", "object_count")]
    source = provenance()  # before the record, which this writes, differs from the commit
    found: dict[str, dict[str, list[Tensor]]] = {}
    shown: list[Tensor] = []

    def share(counts: Tensor) -> Tensor:
        claims = counts.view(len(counts), -1, 2)[:, counted].sum(1).float()
        return claims[:, 0] / claims[:, 1]  # NaN where nothing is claimed

    for first in range(0, options.prompts, BATCH):
        cases = all_cases[first : first + BATCH]
        prompts = [case.prompt for case in cases]
        before = SCENES.renders(cases, side)
        edits = {
            half: Edits(lambda _: before, mask, cases_about(SCENES, cases, mask), True, {})  # noqa: B023
            for half, mask in masks.items()
        }
        elsewhere = {half: cases_about(SCENES, cases, ~mask) for half, mask in masks.items()}

        def note(label: str, images: Tensor, tokens: Tensor) -> None:
            levels = [*(images * 255).round().to(torch.uint8)]
            likelihood = torch.tensor(pipeline.log_likelihoods(tokens, prompt=prompts))  # noqa: B023
            figures = {"claims": share(judge(images, cases)), "log_likelihood": likelihood}  # noqa: B023
            for half in masks if label == "from nothing" else [FILLED[label][0]] if label in FILLED else []:
                made = edits[half].measure(range(len(levels)), levels, judge)  # noqa: B023
                figures |= {f"rest_{half}": share(torch.from_numpy(made["rest_verdicts"]))}
                if label in FILLED:
                    figures |= {name: torch.from_numpy(made[name]) for name in ("kept", "drawn_error")}
                    figures["stays"] = share(judge(images, elsewhere[half] or ()))  # noqa: B023
            for name, values in figures.items():
                found.setdefault(label, {}).setdefault(name, []).append(values)
            if first == 0:  # noqa: B023
                shown.append(images)

        def draw(**settings: Any) -> tuple[Tensor, Tensor]:
            seeds = [torch.Generator().manual_seed(first + row) for row in range(len(prompts))]  # noqa: B023
            made = pipeline(prompts, generator=seeds, output_type="pt", **settings)  # noqa: B023
            return made.images.float(), made.tokens

        rendered = torch.stack(before).float() / 255
        codes = pipeline.tokens_of(list(rendered), prompts)
        shown.extend([rendered] if first == 0 else [])
        note("tokenizer", pipeline.decode_tokens(codes, "pt"), codes)
        note("from nothing", *draw())
        for label, (half, candidates) in FILLED.items():
            note(label, *draw(**edits[half].arguments(range(len(cases))), num_candidates=candidates))
        whole = {label: {name: torch.cat(parts) for name, parts in each.items()} for label, each in found.items()}
        rows = [{"label": label, **summary(label, whole)} for label in whole]
        print(f"{first + len(cases)} of {options.prompts}", *rows, sep="\n", flush=True)
        if first == 0 and options.sheet:
            pictures = [*zip(*map(to_pil, shown), strict=True)][:8]
            flat = [picture for row in pictures for picture in row]
            contact_sheet(flat, ["render", *found] * len(pictures), len(shown)).save(options.sheet)
        if not options.dry_run:
            told = {"provenance": source, "model": Path(find_model()).name, "prompts": first + len(cases)}
            write_result(RESULTS / "edits.json", {**told, "rows": rows})


def summary(label: str, whole: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Means over captions, each with its interval, and paired differences."""
    numbers = dict(whole[label])
    if label in FILLED:
        rest = f"rest_{FILLED[label][0]}"
        numbers["gain"] = numbers["claims"] - whole["from nothing"]["claims"]
        numbers["gain_of_rest"] = numbers[rest] - whole["from nothing"][rest]
    if label == EIGHT:
        for name, figure in (("", "claims"), ("_for_rest", rest), ("_in_likelihood", "log_likelihood")):
            numbers[f"of_candidates{name}"] = numbers[figure] - whole[ALONE][figure]
        numbers["error_of_candidates"] = numbers["drawn_error"] - whole[ALONE]["drawn_error"]
    return {name: [float(each.float().nanmean()), mean_interval(each.float())] for name, each in numbers.items()}


if __name__ == "__main__":
    main()
