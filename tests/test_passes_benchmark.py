"""`benchmarks/passes.py` on models of a moment, and `benchmarks/gpu.sh` where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_rows_say_what_a_pass_took_and_are_kept(
    own_kernels: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import passes

    path = tmp_path / "passes.json"
    threads = str(torch.get_num_threads())
    monkeypatch.setattr(sys, "argv", ["passes.py", "--smoke", "--output", str(path), "--num_threads", threads])
    passes.main()
    rows = json.loads(path.read_text())["rows"]
    cases = {("shipped", dtype, tokens) for dtype in ("float32", "bfloat16") for tokens in (1, 8)}
    assert {(row["model"], row["dtype"], row["tokens"]) for row in rows} == cases
    for row in rows:
        assert row["streaming_ms"] == pytest.approx(row["bytes_read"] / row["read_gb_per_second"] / 1e6)
        for kernels, share in row["bandwidth_share"].items():
            floor = share * row["median_ms"][kernels] / row["streaming_ms"]
            least = {"int8": 0.2, "int8-dynamic": 0.2, "int4": 0.1}.get(kernels)  # the head is not quantized
            assert floor == pytest.approx(1) if least is None else least < floor < 0.9
        assert set(row["median_ms"]) == {"auto", "plain", "int8", "int8-dynamic", "int4"}
        arithmetic, peaks = row["arithmetic_ms"], row["gflops_per_second"]
        weights = row["bytes_read"] / (4 if row["dtype"] == "float32" else 2)
        assert arithmetic["auto"] == pytest.approx(2 * 2 * row["tokens"] * weights / peaks[row["dtype"]] / 1e6)
        # Some products are of bytes and some are not; which is faster is the machine's moment, never asserted.
        as_bytes, slowest = (peaks[row["dtype"]] / speed(peaks.values()) for speed in (max, min))
        assert as_bytes < arithmetic["int8-dynamic"] / arithmetic["auto"] < slowest
        for kernels, share in row["roof_share"].items():
            bound = max(row["bandwidth_share"][kernels] * row["median_ms"][kernels], arithmetic[kernels])
            assert share == pytest.approx(bound / row["median_ms"][kernels])
    said = capsys.readouterr().out
    assert "shipped float32 tokens 8 batch 1 length 128: auto " in said

    monkeypatch.setattr(passes, "milliseconds", lambda *_: pytest.fail("it is there"))
    passes.main()
    assert json.loads(path.read_text())["rows"] == rows


def test_no_record_by_accident_and_no_checkout_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import passes

    for arguments, reason in ((["--smoke"], "--output of its own"), (["--reference", str(tmp_path)], "no checkout")):
        monkeypatch.setattr(sys, "argv", ["passes.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            passes.main()
        assert ended.value.code == 2 and reason in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and recording takes minutes")
def test_without_a_gpu_its_script_says_so(tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = subprocess.run(
        ["bash", str(BENCHMARKS / "gpu.sh")],
        env={**os.environ, "PYTHON": sys.executable, "RESULTS": str(results)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and done.stdout.startswith("skipped: torch finds no GPU here")
    assert not results.exists()
