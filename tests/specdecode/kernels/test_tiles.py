"""Products by tiles: the plain form on any machine; the processor's is compiled anywhere and compared where it runs."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from refusals import value_error
from torch import Tensor

from specdecode.kernels import build
from specdecode.kernels.native import linear_now

CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""
HAS_AMX = all(flag in CPUINFO for flag in ("amx_tile", "amx_bf16", "amx_int8"))
SIZES = [(256, 64), (100, 33), (37, 16), (320, 90), (64, 15)]
"""Columns and outputs: whole tiles and not; fifteen outputs go the other way."""
ROWS = (1, 2, 7, 15, 16, 17, 33, 64, 65, 131)
SOURCE = """
#include "tiles.h"
extern "C" int said() { return tiles::wanted(); }
extern "C" long sum() {
    long total = 0;
    char bytes[4096] = {};
    auto take = [&](int64_t, int64_t, int64_t, const uint32_t* sums, int) { total += sums[0]; };
    tiles::product<true>(tiles::wanted(), bytes, 16, 70, 70, bytes, 33, 0, 16, take);
    tiles::product<false>(tiles::wanted(), bytes, 16, 70, 70, bytes, 33, 0, 16, take);
    return total;
}
"""


@pytest.fixture(autouse=True, params=["plain", *(["auto"] if HAS_AMX else [])])
def by_tiles(request: pytest.FixtureRequest, own_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain C++, and where the processor has AMX by it, too."""
    monkeypatch.setenv("VARGEN_TILES", request.param)
    assert build.kind().endswith("+plain tiles" if request.param == "plain" else "+amx")


def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, in_bytes: bool = False) -> Tensor:
    y = linear_now(x, weight, scale, bias, in_bytes)
    assert y is not None
    return y


def example(columns: int, outputs: int, in_bytes: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(columns)
    x = torch.randn(ROWS[-1], columns, generator=generator).bfloat16()
    weight = torch.randn(outputs, columns, generator=generator).bfloat16()
    if not in_bytes:
        return x, weight, None
    return x, (weight * 30).clamp(-127, 127).to(torch.int8), torch.rand(outputs, generator=generator)


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_a_row_has_the_same_bits_beside_any_others(size: tuple[int, int], in_bytes: bool) -> None:
    x, weight, scale = example(*size, in_bytes)
    together = product(x, weight, scale, None, in_bytes)
    for rows in ROWS:
        assert torch.equal(product(x[:rows], weight, scale, None, in_bytes), together[:rows])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(product(x, weight, scale, None, in_bytes), together)
    finally:
        torch.set_num_threads(threads)
    with ThreadPoolExecutor(3) as pool:
        for own in pool.map(lambda _: product(x, weight, scale, None, in_bytes), range(6)):
            assert torch.equal(own, together)


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_the_sums(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = example(*size, False)
    bias = torch.randn(size[1]).bfloat16()
    exact = x.double() @ weight.double().T + bias.double()
    largest = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    bound = largest * 2e-6 + exact.abs() * 2**-8
    assert ((product(x, weight, None, bias) - exact).abs() <= bound).all()
    assert not ((product(x, weight.roll(1, 0), None, bias) - exact).abs() <= bound).all()
    x, steps, scale = example(*size, True)
    in_bytes = product(x, steps, scale, None, True)  # whole numbers: in any order the same
    monkeypatch.setenv("VARGEN_TILES", "off")
    assert "tiles" not in build.kind() and torch.equal(product(x, steps, scale, None, True), in_bytes)


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(in_bytes: bool, value: float) -> None:
    x, weight, scale = example(100, 33, in_bytes)
    clean = product(x[:20], weight, scale, None, in_bytes)
    x[3, 99] = value
    y = product(x[:20], weight, scale, None, in_bytes)
    assert not y[3].isfinite().any() or not in_bytes
    assert not y[3].isfinite().all()
    assert torch.equal(y[torch.arange(20) != 3], clean[torch.arange(20) != 3])


def test_signals_change_no_sum() -> None:
    """A handler runs in the middle of products, with tiles of its own."""
    x, weight, _ = example(320, 90, False)
    expected, in_handler = product(x, weight, None, None), []

    def handle(*_: object) -> None:
        in_handler.append(torch.equal(product(x, weight, None, None), expected))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        while len(in_handler) < 5:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            assert torch.equal(product(x, weight, None, None), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(in_handler)


def test_the_processors_form_compiles_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(build.__file__).parent
    flags = ("-O2", "-std=c++17", "-fPIC", "-mamx-tile", "-mamx-bf16", "-mamx-int8", f"-I{folder}")
    if not CPUINFO or os.uname().machine != "x86_64":
        pytest.skip("not Linux on x86-64")
    monkeypatch.setattr(build, "_FLAGS", flags)
    (tmp_path / "probe.cpp").write_text(SOURCE)
    build.compile_library(tmp_path / "probe.cpp", tmp_path / "probe.so")
    assert all(name in (tmp_path / "probe.so").read_bytes() for name in (b"said", b"sum"))
    monkeypatch.delenv("VARGEN_TILES")
    probe = ctypes.CDLL(os.fspath(tmp_path / "probe.so"))
    assert HAS_AMX or probe.said() == 0  # the system grants nothing that the processor has not
    assert probe.sum() == 0
    child = os.fork()
    if child == 0:
        os._exit(0 if (probe.said(), probe.sum()) == (probe.said(), 0) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_choice_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_TILES", "amx")
    value_error("VARGEN_TILES must be one of auto, plain, off, got 'amx'", build.library)
