"""The recorded token hashes are those of the cases that the script names, and the script finds what differs.

What the tokens are is not checked here: `python benchmarks/token_hashes.py --check` takes minutes.
"""

import copy
import hashlib
import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from vargen.cli import main

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = runpy.run_path(str(ROOT / "benchmarks" / "token_hashes.py"))
COUNTS = ("passes", "accepted", "relaxed", "skipped")


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "token_hashes.json").read_text())


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_the_record_holds_every_case(record, kind):
    cases = SCRIPT["image_cases" if kind == "images" else "video_cases"]()
    assert record["prompts"] == list(SCRIPT["PROMPTS"]) and len(record["video_files"]) == len(SCRIPT["VIDEOS"])
    asked = {name: {key: case[key] for key in cases[name]} for name, case in record[kind].items()}
    assert asked == cases
    for case in record[kind].values():
        assert len(case["tokens"]) == len(case["rows"])
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in case["tokens"])
        assert all(isinstance(case[count], int) and case[count] >= 0 for count in COUNTS)


def test_every_method_and_preset_is_among_the_cases(capsys):
    for task, cases in (("image", SCRIPT["image_cases"]()), ("video", SCRIPT["video_cases"]())):
        assert main(["methods", "--task", task, "--json"]) == 0
        listed = {row["name"] for row in json.loads(capsys.readouterr().out)}
        assert listed - {case["method"] for case in cases.values()} == SCRIPT["WITHOUT_DRAFTER"][task]


def test_every_difference_is_named(record):
    differences = SCRIPT["differences"]
    then, now = record["images"], copy.deepcopy(record["images"])
    assert differences(then, now) == []
    now["sjd, 8"]["tokens"][3] = "0" * 64
    now["vvs, uniform"]["skipped"] += 1
    now["ar"]["error"] = "UserError: no such method"
    assert differences(then, now) == [
        "ar: cannot be run: UserError: no such method",
        "vvs, uniform: skipped {}, recorded {}".format(*(each["vvs, uniform"]["skipped"] for each in (now, then))),
        "sjd, 8: row 3: other tokens",
    ]


def test_a_hash_is_that_of_the_tokens_as_int64():
    tokens = [3, 255, 70_000]
    data = torch.tensor(tokens, dtype=torch.int64).numpy().astype("<i8").tobytes()
    assert SCRIPT["token_hash"](tokens) == hashlib.sha256(data).hexdigest() != SCRIPT["token_hash"]([255, 3, 70_000])
