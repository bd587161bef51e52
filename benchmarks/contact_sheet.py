"""One PNG of a folder that `vargen generate` made: every picture above its prompt.

The sheet of the documentation, each picture the judge's best of 64:

    vargen generate --prompts_file benchmarks/contact_sheet_prompts.txt --num_candidates 64 --batch_size 64 \\
        --output out/sheet
    python benchmarks/contact_sheet.py out/sheet docs/images/contact_sheet_chosen.png

The sheet without a choice, of other prompts, is `judge_report.py --contact_sheet`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from vargen.drawing.sheet import contact_sheet
from vargen.runs.files import read_jsonl, save_image_atomic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output of `vargen generate`")
    parser.add_argument("png", type=Path)
    parser.add_argument("--columns", type=int, default=4)
    arguments = parser.parse_args()
    records = read_jsonl(arguments.folder / "result.jsonl")
    if not records:
        raise SystemExit(f"contact_sheet: error: {arguments.folder} holds no result.jsonl; run `vargen generate` first")
    images = [Image.open(arguments.folder / record["image_path"]) for record in records]
    save_image_atomic(contact_sheet(images, [record["text"] for record in records], arguments.columns), arguments.png)
    scores = [max(record["scores"]) for record in records if "scores" in record]
    if scores:
        print(f"{len(records)} pictures; the judge's score of the chosen ones: {sorted(scores)}")


if __name__ == "__main__":
    main()
