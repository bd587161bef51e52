"""The whole suite in other surroundings: on this machine, but as processors with other products would round.

    python benchmarks/surroundings.py [--only ATEN_CPU_CAPABILITY=avx2] [-- PYTEST ARGUMENTS]

Writes `results/surroundings.json` after each of them. A test that fails once counts as failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from metrics.provenance import provenance

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "surroundings.json"
SURROUNDINGS = ("as it is", "MKL_CBWR=COMPATIBLE", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2")
"""Settings of the libraries that torch computes with; the first leaves all as they are."""


def run_suite(surroundings: str, arguments: list[str]) -> dict[str, Any]:
    """Run pytest. Returns its counts, the names of tests that failed, seconds, and the load at the end."""
    setting = dict([surroundings.split("=")]) if "=" in surroundings else {}
    with tempfile.TemporaryDirectory() as folder:
        report, began = Path(folder, "report.xml"), time.monotonic()
        # Inductor keeps what it compiled by the code alone: under another setting it would be taken, and be wrong.
        setting["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **setting}).returncode
        seconds = time.monotonic() - began
        tests = [*ElementTree.parse(report).getroot().iter("testcase")]
    outcomes = [
        next((part.tag for part in test if part.tag in ("failure", "error", "skipped")), "passed") for test in tests
    ]
    pairs = [*zip(tests, outcomes, strict=True)]
    return {
        "surroundings": surroundings,
        "exit_code": code,
        **{name: outcomes.count(name) for name in ("passed", "skipped", "failure", "error")},
        "failed": [
            f"{test.get('classname')}::{test.get('name')}" for test, how in pairs if how in ("failure", "error")
        ],
        "seconds": round(seconds),
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SURROUNDINGS, default=SURROUNDINGS)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    options = parser.parse_args()
    told, rows = provenance(), []  # now: the tree is not clean once the record is written
    for surroundings in options.only:
        rows.append(run_suite(surroundings, options.pytest))
        print({name: value for name, value in rows[-1].items() if name != "load"}, flush=True)
        RESULT.write_text(json.dumps({"provenance": told, "rows": rows}, indent=1) + "\n")
    return int(any(row["exit_code"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
