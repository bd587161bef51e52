"""Rebuild the lab book's results, the tables of README and docs/text.md, and the model card's figures from JSON.

    python benchmarks/build_results.py            # rewrite them
    python benchmarks/build_results.py --check    # exit 1 if they are not what the records say

No figure there is typed by hand. Text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` is replaced: "methods" in
the README, "results" in the model card and in docs/text.md. Plots are drawn from the same records (with matplotlib);
`--check` does not look at them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from results_page.pictures import (
    STUDIES_PLOT,
    groups_section,
    judge_section,
    main_table_section,
    more_studies_section,
    picks_table,
    quality_section,
    studies_plot,
    studies_section,
)
from results_page.plain import TABLES, plain_section, training_section
from results_page.records import MODEL, RESULTS, ROOT, load, load_all
from results_page.rows import published_section
from results_page.speed import BENCHES, benches_section, fronts_section
from results_page.text import text_section

LAB = ROOT / "benchmarks" / "lab"
MODEL_CARD = ROOT / "scenes" / "weights" / MODEL / "README.md"
TEXT = ROOT / "docs" / "text.md"
SHOWN = (
    "real_text",
    "judge_",
    "vvs_",
    "front_",
    "evaluation_",
    "prompts_",
    "training_",
    *BENCHES,
    *TABLES,
)
"""Records with a table on the page, by the beginning of their names."""
MORE_STUDIES = {
    "vvs_choices": "Own choices beside those of VVS's paper",
    "vvs_studies_256": "Studies of VVS's paper on 32 by 32 tokens",
    "vvs_staleness_256": "Staleness on 32 by 32 tokens, more prompts",
}
"""Titles of further studies of VVS, by record."""


def between_markers(text: str, content: str, name: str, region: str = "results") -> str:
    """A document with what stands between two markers replaced."""
    begin, end = f"<!-- {region}:begin -->", f"<!-- {region}:end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"build_results: error: {name} has no {begin} ... {end}")
    before, rest = text.split(begin, 1)
    return f"{before}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def not_shown() -> list[str]:
    """Records without a table on the page."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if not path.stem.startswith(SHOWN))


def build() -> dict[Path, str]:
    """Every file that is made of records, and what it should hold."""
    every = load_all("evaluation_*")
    evaluations, larger = (
        {name: rows for name, rows in every.items() if rows[0]["resolution"] == side} for side in (128, 256)
    )
    judged, trained = load(f"judge_{MODEL}"), load_all("training_*")
    studies = load("vvs_studies")
    plain = {name: plain_section(name, record) for name in TABLES if (record := load(name)) is not None}
    sections = [
        "# Results",
        "Rebuilt by `python benchmarks/build_results.py` from the JSON in `benchmarks/results/`. Figures are of the "
        "shipped model on the project's own scenes, unless a line says otherwise.",
        judge_section(judged),
        benches_section({name: record for name in BENCHES if (record := load(name)) is not None}),
        fronts_section(load_all("front_*").values()),
        quality_section(evaluations),
        quality_section(larger, "Quality of the model of 256 pixels"),
        groups_section(load_all("prompts_*")),
        main_table_section(load("vvs_main_table"), load("vvs_main_table_256")),
        studies_section(studies),
        *(more_studies_section(title, load(name)) for name, title in MORE_STUDIES.items() if load(name) is not None),
        *plain.values(),
        published_section(load("rows_side_by_side")),
        training_section([record for name, record in trained.items() if not name.endswith("-run")]),
        "## Records without a table",
        ", ".join(f"`{name}`" for name in not_shown()),
    ]
    shipped = [record for name, record in trained.items() if MODEL in name and not name.endswith("-run")]
    card = [judge_section(judged), training_section(shipped)]
    readme, weighted = ROOT / "README.md", [load("bench_weighted"), load("bench_weighted_24gb")]
    text = load("real_text")
    of_text = "Not recorded yet." if text is None else text_section(text, load("training_text-head"))
    return {
        LAB / "results.md": "\n\n".join(sections) + "\n",
        readme: between_markers(readme.read_text(), picks_table(weighted, evaluations), "README.md", "methods"),
        TEXT: between_markers(TEXT.read_text(), of_text, "docs/text.md"),
        MODEL_CARD: between_markers(MODEL_CARD.read_text(), "\n\n".join(card), "the model card"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    stale = [path for path, text in build().items() if not path.is_file() or path.read_text() != text]
    if check and stale:
        sys.exit("build_results: out of date: " + ", ".join(str(path.relative_to(ROOT)) for path in stale))
    if not check:
        (LAB / "images").mkdir(parents=True, exist_ok=True)
        (LAB / "images" / STUDIES_PLOT).write_bytes(studies_plot(load("vvs_studies")))
        for path, text in build().items():
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
