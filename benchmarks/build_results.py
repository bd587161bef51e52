"""Rebuild docs/results.md, the README's table and the model card's figures from recorded JSON.

    python benchmarks/build_results.py            # rewrite them
    python benchmarks/build_results.py --check    # exit 1 if they are not what the records say

No figure there is typed by hand. Text between `<!-- results:begin -->` and `<!-- results:end -->` is replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODEL = "scenes-128"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
SOURCES = {"generated": "generated", "renders": "real renders", "reconstructions": "tokenizer's reconstructions"}

Record = dict[str, Any]


def load(name: str) -> Record | None:
    """A record by file name without `.json`; None if nobody recorded it."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def source_line(record: Record) -> str:
    """Hardware, commit and date of a record, for the reader to judge it by."""
    origin = record["provenance"]
    hardware, libraries = origin["hardware"], origin["libraries"]
    where = hardware["device"] if hardware["device"] != "cpu" else hardware["processor"]
    return (
        f"<sub>{where}, {hardware['cores']} cores, torch {libraries['torch']}; commit {origin['commit']}, "
        f"{origin['date'][:10]}.</sub>"
    )


def share(cell: Record | None) -> str:
    """An accuracy in percent with its 95 % interval and count."""
    if not cell or not cell["n"]:
        return "-"
    low, high = cell["interval"]
    return f"{100 * cell['accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f}, n {cell['n']})"


def verdict_table(verdicts: Record, group: str = "all") -> str:
    kinds = [kind for kind in verdicts["renders"].get(group, {})]
    columns = [source for source in SOURCES if source in verdicts]
    rows = [[kind, *(share(verdicts[source].get(group, {}).get(kind)) for source in columns)] for kind in kinds]
    return table(["right, %", *(SOURCES[source] for source in columns)], rows)


def judge_section(record: Record) -> str:
    parts = [
        "## What the pictures show",
        "The judge (a recogniser trained on renders) reads each picture and is asked whether every claim of the prompt "
        "holds: accuracy in percent, 95 % interval, claims judged. *Held out*: the prompt's scene has a combination of "
        "colour, shape, material or relation that training never showed.",
    ]
    for name, verdicts in record["verdicts"].items():
        parts += [f"### {name.replace('_', ' ')}: {record['prompts'][name]} prompts", verdict_table(verdicts)]
        if name == "heldout":
            for group in ("1", "2", "3"):
                if group in verdicts["generated"]:
                    parts += [f"Held-out prompts that name {group} object(s):", verdict_table(verdicts, group)]
    parts += ["### The judge alone, on everything true of held-out scenes", verdict_table(record["judge_alone"])]
    settings = ", ".join(f"{key} {value}" for key, value in record["settings"].items())
    return "\n\n".join([*parts, f"Settings: {settings}.", source_line(record)])


def decoding_section(records: Sequence[Record]) -> str:
    rows = [
        [
            record["model"],
            f"{record['device']} {record['dtype']}",
            f"{record['batch_size']}",
            f"{record['milliseconds_per_step']:.2f}",
            f"{record['achieved_gb_per_second']:.1f}",
            f"{record['streaming_milliseconds']:.2f}",
            f"{record['ratio_to_streaming']:.1f}",
        ]
        for record in records
    ]
    header = ["model", "device", "batch", "ms per step", "GB/s of weights", "ms to stream them once", "ratio"]
    return "\n\n".join(
        [
            "## Plain decoding",
            "One step makes one token per picture, with guidance (two rows per picture).",
            table(header, rows),
            source_line(records[-1]),
        ]
    )


def training_section(records: Sequence[Record]) -> str:
    rows = [
        [
            record["name"],
            f"{record['steps']:,}",
            f"{record['samples']:,}",
            f"{record['seconds'] / 60:.0f}",
            ", ".join(f"{key} {value:.4g}" for key, value in list(record["evaluations"][-1].items())[1:7]),
        ]
        for record in records
        if record["evaluations"]
    ]
    parts = ["## Training", table(["run", "steps", "pictures", "minutes", "held out, at the end"], rows)]
    parts += [f"{record['name']}: {record['remark']}" for record in records if record["remark"]]
    return "\n\n".join([*parts, source_line(records[-1])])


def entropy_section(record: Record) -> str:
    """How flat the shipped model's next-token distributions are, by place in the picture."""
    last = record["evaluations"][-1]
    places = [key.removeprefix("entropy_") for key in last if key.startswith("entropy_")]
    rows = [[place, f"{last[f'entropy_{place}']:.2f}", f"{last[f'loss_{place}']:.2f}"] for place in places]
    rows.append(["all tokens", f"{last['entropy']:.2f}", f"{last['loss']:.2f}"])
    return "\n\n".join(
        [
            "## How flat the distributions are",
            "Mean entropy of the next-token distribution on held-out scenes (teacher-forced, no guidance, no filter), "
            "and the loss, in nats. Without its caption the loss is "
            f"{last['loss_without_caption']:.2f}.",
            table(["place", "entropy", "loss"], rows),
            source_line(record),
        ]
    )


def headline(judged: Record | None, decoding: Record | None) -> str:
    """The README's one table."""
    rows = []
    if judged:
        for name, label in (("one_object", "one-object prompts"), ("heldout", "held-out prompts, 1-3 objects")):
            verdicts = judged["verdicts"].get(name)
            if verdicts:
                for kind, text in (
                    ("colour", "colour right"),
                    ("shape", "shape right"),
                    ("prompt", "whole prompt right"),
                ):
                    cells = [share(verdicts[source]["all"].get(kind)) for source in SOURCES]
                    rows.append([f"{label}: {text}, %", *cells])
    parts = [table(["", *SOURCES.values()], rows)] if rows else []
    if judged:
        parts.append(source_line(judged))
    if decoding:
        parts.append(
            f"Plain decoding of the shipped model ({decoding['parameters'] / 1e6:.1f}M parameters, "
            f"{decoding['dtype']}), one picture with guidance: {decoding['milliseconds_per_step']:.2f} ms per token, "
            f"{decoding['ratio_to_streaming']:.1f} times what streaming its weights once would take."
        )
        parts.append(source_line(decoding))
    return "\n\n".join(parts)


def between_markers(text: str, content: str, name: str) -> str:
    if BEGIN not in text or END not in text:
        raise SystemExit(f"build_results: error: {name} has no {BEGIN} ... {END}")
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.split(END, 1)[1]}"


def build() -> dict[Path, str]:
    """Every file that is made of records, and what it should hold."""
    judged = load(f"judge_{MODEL}")
    decoding = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("plain_decoding_*.json"))]
    trained = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"training_{MODEL}-*.json"))]
    transformer = load(f"training_{MODEL}-transformer")
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
    if trained:
        sections.append(training_section(trained))
        card.append(training_section(trained))
    readme, model_card = ROOT / "README.md", ROOT / "vargen" / "weights" / MODEL / "README.md"
    own = load(f"plain_decoding_{MODEL}_cpu_batch1")
    files = {
        ROOT / "docs" / "results.md": "\n\n".join(sections) + "\n",
        readme: between_markers(readme.read_text(), headline(judged, own), "README.md"),
    }
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
        for path, text in build().items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
