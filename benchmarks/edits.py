"""What filling a half of a picture is worth on the shipped model: claims, likelihood and pixels, beside drawing it all.

    python benchmarks/edits.py --prompts 300
    python benchmarks/edits.py --prompts 8 --sheet edits.png --dry_run

Scenes of captions that training never showed are rendered, and a half of each is drawn anew under its caption. The
judge reads every picture. `from nothing` draws all of it, `tokenizer` is the render as codes have it. Candidates are
compared by known tokens behind the first drawn one, so only upper halves have several. Figures are means with 95 %
intervals over captions; `gain` is the difference of claims to drawing from nothing, paired, and `of_candidates` that of
eight candidates to one. Writes benchmarks/results/edits.json after each batch. Does not belong here: seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import mean_interval
from metrics.edits import edit_figures
from metrics.provenance import provenance, write_result
from scenes.cases import sample_prompts
from scenes.judge.claim_judge import ClaimJudge
from scenes.rendering.renderer import SceneRenderer
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.jobs.cases import BenchmarkCase
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
BATCH = 20
FILLED = {"lower half": ("lower", 1), "upper half": ("upper", 1), "upper half, 8 candidates": ("upper", 8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--sheet", help="PNG of the first batch: render, from nothing, and each filling")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    pipeline: Any = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    side, judge = pipeline.image_size, ClaimJudge()
    render, asked = SceneRenderer(side), sample_prompts(options.prompts)
    masks = {name: torch.zeros(side, side) for name in ("lower", "upper")}
    masks["lower"][side // 2 :], masks["upper"][: side // 2] = 1, 1
    counted = [place for place, kind in enumerate(judge.kinds) if kind not in ("prompt", "object_count")]
    found: dict[str, dict[str, list[Tensor]]] = {}
    shown: list[Tensor] = []
    for first in range(0, options.prompts, BATCH):
        part = asked[first : first + BATCH]
        prompts = [case.caption.text for case in part]
        cases = [
            BenchmarkCase(case.caption.text, claims=case.caption.claims, object_count=case.object_count)
            for case in part
        ]
        before = render([case.scene for case in part]).images.clamp(0, 1)

        def note(label: str, images: Tensor, tokens: Tensor, half: str | None = None) -> None:
            claims = judge(images, cases)[:, counted].sum(1).float()  # noqa: B023
            likelihood = torch.tensor(pipeline.log_likelihoods(tokens, prompt=prompts))  # noqa: B023
            figures = {"claims": claims[:, 0] / claims[:, 1], "log_likelihood": likelihood}
            if half is not None:
                levels = [(each * 255).round().to(torch.uint8) for each in (before, images)]  # noqa: B023
                edit = edit_figures(*levels, masks[half].bool().expand(len(levels[0]), -1, -1))
                figures |= {"kept": edit.kept, "drawn_error": edit.drawn_error}
            for name, values in figures.items():
                found.setdefault(label, {}).setdefault(name, []).append(values)
            if first == 0:  # noqa: B023
                shown.append(images)

        def draw(**settings: Any) -> tuple[Tensor, Tensor]:
            seeds = [torch.Generator().manual_seed(first + row) for row in range(len(prompts))]  # noqa: B023
            made = pipeline(prompts, generator=seeds, output_type="pt", **settings)  # noqa: B023
            return made.images.float(), made.tokens

        codes = pipeline.tokens_of(list(before), prompts)
        shown.extend([before] if first == 0 else [])
        note("tokenizer", pipeline.decode_tokens(codes, "pt"), codes)
        note("from nothing", *draw())
        for label, (half, candidates) in FILLED.items():
            mask = {"mask_image": masks[half], "num_candidates": candidates, "paste_back": True}
            note(label, *draw(image=list(before), **mask), half)
        whole = {label: {name: torch.cat(parts) for name, parts in each.items()} for label, each in found.items()}
        rows = [{"label": label, **summary(label, whole)} for label in whole]
        print(f"{first + len(part)} of {options.prompts}", *rows, sep="\n", flush=True)
        if first == 0 and options.sheet:
            pictures = [*zip(*map(to_pil, shown), strict=True)][:8]
            flat = [picture for row in pictures for picture in row]
            contact_sheet(flat, ["render", *found] * len(pictures), len(shown)).save(options.sheet)
        if not options.dry_run:
            told = {"provenance": provenance(), "model": Path(find_model()).name, "prompts": first + len(part)}
            write_result(RESULTS / "edits.json", {**told, "rows": rows})


def summary(label: str, whole: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Means over captions, each with its interval, and paired differences of claims."""
    numbers = dict(whole[label])
    claims = numbers["claims"]
    if label in FILLED:
        numbers["gain"] = claims - whole["from nothing"]["claims"]
    if label == "upper half, 8 candidates":
        numbers["of_candidates"] = claims - whole["upper half"]["claims"]
        numbers["error_of_candidates"] = numbers["drawn_error"] - whole["upper half"]["drawn_error"]
    return {name: [float(each.float().mean()), mean_interval(each.float())] for name, each in numbers.items()}


if __name__ == "__main__":
    main()
