"""Rebuild docs/results.md, the README's table and the model card's figures from recorded JSON.

    python benchmarks/build_results.py            # rewrite them
    python benchmarks/build_results.py --check    # exit 1 if they are not what the records say

No figure there is typed by hand. Text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` is replaced, NAME being
"methods" in the README and "results" in the model card. The plots, docs/images/tradeoff.png and vvs_studies.png, are
drawn from the same records (with matplotlib); `--check` does not look at them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from results_page.pictures import (
    STUDIES_PLOT,
    entropy_section,
    heads_section,
    judge_section,
    left_out_section,
    of_shipped_model,
    picks_table,
    quality_section,
    studies_plot,
    studies_section,
    tradeoff_rows,
    training_section,
)
from results_page.records import MODEL, PICKS_RUN, ROOT, TRANSFORMER_RUN, load, load_all, load_evaluations
from results_page.speed import (
    compiled_section,
    continuous_section,
    decoding_section,
    families_section,
    fronts_section,
    generate_memory_section,
    passes_section,
    reference_section,
    speculation_section,
)
from results_page.video import VIDEO_STUDIES, video_section

from metrics.plots import plot_tradeoff

PLOTS = ROOT / "docs" / "images"


def between_markers(text: str, content: str, name: str, region: str = "results") -> str:
    begin, end = f"<!-- {region}:begin -->", f"<!-- {region}:end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"build_results: error: {name} has no {begin} ... {end}")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def build() -> dict[Path, str]:
    """Every file that is made of records, and what it should hold."""
    judged = load(f"judge_{MODEL}")
    decoding = [*load_all("plain_decoding_*").values()]
    trained = [*load_all(f"training_{MODEL}-*").values()]
    transformer = load(TRANSFORMER_RUN)
    sections = [
        "# Results",
        "Rebuilt by `python benchmarks/build_results.py` from the JSON in `benchmarks/results/`. All figures are of "
        "the shipped model on the project's own scenes, unless a row says otherwise.",
    ]
    card = []
    if judged:
        sections.append(judge_section(judged))
        card.append(judge_section(judged))
    if transformer:
        sections.append(entropy_section(transformer))
        card.append(entropy_section(transformer))
    if decoding:
        sections.append(decoding_section(decoding))
    benches = load_all("bench_*")
    videos = {name: benches.pop(name) for name in list(benches) if name.startswith("bench_video")}
    seeing = [*load_all("training_video-llm*").values()]
    if benches:
        sections.append(speculation_section(benches, load("speculation_overhead"), load("greedy_equality")))
    if fronts := load_all("front_*"):
        sections.append(fronts_section(fronts.values()))
    if compiled := load("compiled"):
        sections.append(compiled_section(compiled))
    if continuous := load("continuous"):
        sections.append(continuous_section(continuous))
    evaluations = load_evaluations()
    if evaluations:
        sections.append(quality_section(evaluations))
    if studies := load("vvs_studies"):
        sections.append(studies_section(studies))
    if heads := {start: record for start in ("new", "shipped") if (record := load(f"drafter_heads_{start}"))}:
        sections.append(heads_section(heads))
    if videos or seeing:
        sections.append(video_section(videos, seeing, {name: load(name) for name in VIDEO_STUDIES}))
    if families := load("families"):
        sections.append(families_section(families))
    if passes := load("passes"):
        sections.append(passes_section(passes))
    if reference := load("passes_reference"):
        sections.append(reference_section(reference))
    if memory := load("generate_memory"):
        sections.append(generate_memory_section(memory))
    if left_out := load("left_out"):
        sections.append(left_out_section(left_out))
    if trained:
        sections.append(training_section(trained))
        card.append(training_section(trained))
    readme, model_card = ROOT / "README.md", ROOT / "vargen" / "weights" / MODEL / "README.md"
    files = {
        ROOT / "docs" / "results.md": "\n\n".join(sections) + "\n",
    }
    if PICKS_RUN in benches:
        picks = benches[PICKS_RUN]
        content = picks_table(picks, load("bench_weighted") or [], of_shipped_model(evaluations))
        files[readme] = between_markers(readme.read_text(), content, "README.md", "methods")
    if model_card.is_file():
        files[model_card] = between_markers(model_card.read_text(), "\n\n".join(card), "the model card")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in build().items() if not path.is_file() or path.read_text() != text]
    if check and stale:
        sys.exit("build_results: out of date: " + ", ".join(str(path.relative_to(ROOT)) for path in stale))
    if not check:
        speed = load(PICKS_RUN)
        evaluated = [row for rows in of_shipped_model(load_evaluations()).values() for row in rows]
        if speed:
            title = f"{MODEL}: wall clock of one picture at a time, {speed[0]['images']} prompts"
            if evaluated:
                title += f"; judged on {min(row['count'] for row in evaluated):,} or more where evaluated"
            (PLOTS / "tradeoff.png").write_bytes(plot_tradeoff(tradeoff_rows(speed, evaluated), title=title))
        if studies := load("vvs_studies"):
            (PLOTS / STUDIES_PLOT).write_bytes(studies_plot(studies))
        for path, text in build().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
