"""The kernels against sums in double precision, and the promise that a row depends on no other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import value_error
from torch import Tensor

from specdecode.kernels import build
from specdecode.kernels.native import linear, linear_now

SHAPES = [(1, 768, 70), (2, 192, 5), (7, 100, 33), (13, 37, 64), (33, 64, 128)]
"""Rows, columns, outputs: whole lanes and not, whole tiles and not."""
DTYPES = (torch.float32, torch.bfloat16)
REPOSITORY = Path(__file__).parents[3]
CPUINFO = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").is_file() else ""


def example(rows: int, columns: int, outputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    draw = [torch.randn(size, generator=generator) for size in ((rows, columns), (outputs, columns), (outputs,))]
    x, weight, bias = (tensor.to(dtype) for tensor in draw)
    return x, weight, bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_the_product(own_kernels, shape, dtype):
    x, weight, bias = example(*shape, dtype)
    exact = x.double() @ weight.double().T + bias.double()
    largest = x.double().abs() @ weight.double().abs().T + bias.double().abs()  # what rounding is measured by
    bound = largest * 2e-6 + exact.abs() * (2**-8 if dtype == torch.bfloat16 else 0)
    assert ((linear_now(x, weight, None, bias) - exact).abs() <= bound).all()
    assert not ((linear_now(x, weight.roll(1, 0), None, bias) - exact).abs() <= bound).all()  # the bound is tight


@pytest.mark.skipif(not any(flag in CPUINFO for flag in (" fma ", " asimd ")), reason="no fused multiply-add")
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_has_the_same_bits_on_every_processor(own_kernels: None, shape: tuple[int, int, int]) -> None:
    x, weight, _ = example(*shape, torch.float32)
    lanes = torch.zeros(shape[0], shape[2], 16)
    for begin in range(0, shape[1], 16):  # products of float32 are exact in float64
        own, weights = (tensor[:, begin : begin + 16].double() for tensor in (x, weight))
        width = own.shape[1]
        lanes[..., :width] = (lanes[..., :width].double() + own[:, None] * weights).float()
    for apart in (2, 1):  # in each quarter, then quarters
        lanes = lanes.unflatten(-1, (-1, 2, apart)).sum(-2).flatten(-2)
    lanes = lanes.unflatten(-1, (2, 2)).sum(-2)
    assert torch.equal(linear_now(x, weight), lanes[..., 0] + lanes[..., 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_blocks_but_the_last_come_on_one_scale(own_kernels, dtype):
    x, weight, _ = example(7, 3 * 37, 33, dtype)
    blocks = (x * 1e-3).double().view(7, 3, 37)
    blocks[:, :2] = (blocks[:, :2] / (blocks[:, :2].square().mean(-1, keepdim=True) + 1e-6).sqrt()).to(dtype).double()
    scaled = linear_now(x * 1e-3, weight, normed=(37, 1e-6))
    torch.testing.assert_close(scaled.double(), blocks.view(7, -1) @ weight.double().T, rtol=2**-7, atol=1e-1)
    assert torch.equal(linear_now(x[3:4] * 1e-3, weight, normed=(37, 1e-6)), scaled[3:4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_with_a_scale_are_weights(own_kernels, shape, dtype):
    x, weight, bias = example(*shape, dtype)
    scale = weight.float().abs().amax(1) / 127
    quantized = (weight / scale[:, None]).round().to(torch.int8)
    exact = x.double() @ (quantized.double() * scale[:, None].double()).T + bias.double()
    bound = 1e-5 + exact.abs() * (2**-8 if dtype == torch.bfloat16 else 1e-5)
    assert ((linear_now(x, quantized, scale, bias) - exact).abs() <= bound).all()


@pytest.mark.parametrize(("in_bytes", "dynamic"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_alone(own_kernels, shape, dtype, in_bytes, dynamic):
    x, weight, _ = example(*shape, dtype)
    scale = None
    if in_bytes:
        scale, weight = torch.ones(len(weight)), (weight * 20).to(torch.int8)
    together = linear_now(x, weight, scale, None, dynamic)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for row, alone in zip(together, x, strict=True):
            assert torch.equal(linear_now(alone[None], weight, scale, None, dynamic)[0], row)
    finally:
        torch.set_num_threads(threads)


def test_compiled_graphs_hold_the_product(own_kernels):
    x, weight, bias = example(2, 192, 5, torch.float32)
    torch.library.opcheck(linear, (x, weight, None, bias), test_utils=("test_schema", "test_faketensor"))
    assert torch.equal(torch.ops.specdecode.few_row_linear(x, weight, None, bias), linear_now(x, weight, None, bias))


def test_a_processor_without_wide_vectors_gets_the_same_sums(own_kernels, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_FLAGS", ("-O0", "-std=c++17", "-fPIC", "-fopenmp", "-w"))
    x, weight, bias = example(7, 100, 33, torch.float32)
    small, small_weight, _ = example(2, 192, 5, torch.bfloat16)
    fast = linear_now(x, weight, None, bias), linear_now(small, small_weight)
    scale, steps = torch.rand(33), (weight * 40).to(torch.int8)
    in_bytes = linear_now(x, steps, scale, bias, True)
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    assert build.library() is not None and list(tmp_path.glob("kernels/*.so"))
    torch.testing.assert_close(linear_now(x, weight, None, bias), fast[0])
    torch.testing.assert_close(linear_now(small, small_weight), fast[1], rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(linear_now(x, steps, scale, bias, True), in_bytes)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no owners")
@pytest.mark.parametrize(
    "whose", ["mine", "group", "others", "a folder of others", "somebody's", "a folder of somebody"]
)
def test_a_library_that_others_may_write_is_not_loaded(own_kernels, whose, tmp_path, monkeypatch):
    """Its name can be computed by anybody."""
    built, _ = build._built()
    folder = tmp_path / "kernels"
    folder.mkdir()
    shutil.copy(built, folder)
    for path, mode in (folder / built.name, 0o755), (folder, 0o755):
        path.chmod(mode)
    changed = folder if "folder" in whose else folder / built.name
    if "group" in whose or "others" in whose:
        changed.chmod(0o775 if "group" in whose else 0o757)
    status = os.stat

    def by_somebody(path: Any, **named: Any) -> Any:
        found = status(path, **named)
        return os.stat_result((*found[:4], 4711, *found[5:])) if Path(path) == changed else found

    if "somebody" in whose:
        monkeypatch.setattr(build.os, "stat", by_somebody)
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    if whose == "mine":
        assert build.library() is not None
    else:
        with pytest.warns(RuntimeWarning, match=f"{changed} must belong to you or root"):
            assert build.library() is None


def test_without_a_compiler_torch_computes(tmp_path, monkeypatch):
    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    x, weight, _ = example(2, 192, 5, torch.float32)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="no C.* compiler; .*PyTorch's own operations do"):
        assert linear_now(x, weight) is None
    assert "no C++ compiler" in (build.why_not() or "")


@pytest.mark.parametrize("ends", ["exit 1", "exec sleep 60", "printf '\\377\\376' >&2; exit 1"])  # and no UTF-8
def test_a_compiler_that_fails_or_takes_too_long_is_quoted(ends, tmp_path, monkeypatch):
    compiler = tmp_path / "compiler"
    version = '[ "$1" = --version ] && printf "\\377" && exit 0'
    compiler.write_text(f'#!/bin/sh\n{version}\necho "out of luck" >&2\n{ends}\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "_PATIENCE", 1 if "sleep" in ends else 60)
    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.warns(RuntimeWarning, match="out of luck.*PyTorch's own operations do the work"):
        assert build.library() is None
    assert "out of luck" in (build.why_not() or "")
    assert not list((tmp_path / "cache" / "kernels").iterdir())


def test_installing_builds_them_with_the_standard_library_alone(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\nwhile [ "$1" != -o ]; do shift; done\necho done > "$2"\n'
    )
    compiler.chmod(0o755)
    folder = REPOSITORY / "specdecode" / "kernels"  # by its path: the package around it imports torch
    program = (
        f"import sys; sys.path.insert(0, {os.fspath(folder)!r})\nfrom build import build_ahead\nprint(build_ahead())"
    )
    environment = {"VARGEN_CACHE": os.fspath(tmp_path / "cache"), "CXX": os.fspath(compiler)}
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert said.stdout == "None\n"
    assert [path.read_text() for path in tmp_path.glob("cache/kernels/*.so")] == ["done\n"]


def test_a_choice_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("VARGEN_KERNELS", "fastest")
    value_error("VARGEN_KERNELS must be one of auto, plain, got 'fastest'", build.library)
