"""`benchmarks/surroundings.py` counts what a run of pytest reports, and a test that fails counts wherever it stands."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import surroundings

REPORT = """<testsuites><testsuite>
<testcase classname="a" name="good"/><testcase classname="a" name="bad"><failure/></testcase>
<testcase classname="a" name="torn"><error/></testcase><testcase classname="a" name="left"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_run_is_counted_in_its_surroundings(monkeypatch):
    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        assert env["MKL_CBWR"] == "COMPATIBLE" and command[-1] == "tests/x.py"
        (path,) = (word.partition("=")[2] for word in command if word.startswith("--junitxml"))
        Path(path).write_text(REPORT)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(surroundings.subprocess, "run", run)
    row = surroundings.run_suite("MKL_CBWR=COMPATIBLE", ["tests/x.py"])
    assert [row[name] for name in ("exit_code", "passed", "skipped", "failure", "error")] == [1, 1, 1, 1, 1]
    assert row["failed"] == ["a::bad", "a::torn"]
