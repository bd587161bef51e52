"""The compiled kernels: built once a machine, by installing vargen or at their first use, where there is a compiler.

Belongs here: finding a compiler, what decides whether a built library may be used again, and loading it. Does not
belong here: what the kernels compute (`few_rows.cpp`) and tensors (`native.py`).

A library lies in `$VARGEN_CACHE/kernels`, under a name made of the source, the compiler and the processor, so that a
cache shared by two machines serves both. Building takes about five seconds. Where there is no compiler, or the result
cannot be loaded, everything runs as torch alone would run it. Installing (`hatch_build.py`) imports this where there is
nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

KERNELS = ("auto", "plain")
_SOURCE = Path(__file__).with_name("few_rows.cpp")
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-w")
_DECISIVE = ("VARGEN_KERNELS", "VARGEN_CACHE", "XDG_CACHE_HOME", "HOME", "CXX")
"""Variables of the environment that decide about the library."""
_NO_COMPILER = "there is no C++ compiler; install g++ or clang++, or name one in CXX"
_PATIENCE = 300
"""Seconds, after which a compiler is given up."""


def wanted() -> bool:
    """Whether `$VARGEN_KERNELS` leaves kernels of our own on.

    Raises:
        ValueError: it is neither "auto" nor "plain".
    """
    choice = os.environ.get("VARGEN_KERNELS") or "auto"
    if choice not in KERNELS:
        raise ValueError(f"VARGEN_KERNELS must be one of {', '.join(KERNELS)}, got {choice!r}")
    return choice == "auto"


def cache_folder() -> Path:
    """Where libraries lie: `$VARGEN_CACHE`, else `vargen` in the user's cache directory."""
    if folder := os.environ.get("VARGEN_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vargen"


def library() -> ctypes.CDLL | None:
    """The kernels, built if they are not there yet; None where they are turned off or cannot be had (`why_not`)."""
    return _decided(*map(os.environ.get, _DECISIVE))[0]


def why_not() -> str | None:
    """Why `library` is None, in words; None where it is not."""
    return _decided(*map(os.environ.get, _DECISIVE))[1]


@functools.cache
def _decided(*values: str | None) -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none, under these values of `_DECISIVE`; asked before every product."""
    return _loaded(str(cache_folder())) if wanted() else (None, "VARGEN_KERNELS is plain")


@functools.cache
def _loaded(folder: str) -> tuple[ctypes.CDLL | None, str | None]:
    path, reason = _built(Path(folder))
    if path is None:
        return None, reason
    try:
        return ctypes.CDLL(os.fspath(path)), None
    except OSError as error:
        return None, f"{path} cannot be loaded: {error}"


def build_ahead() -> str | None:
    """Build the library if it is not there yet, without loading it, which only a process with torch can.

    Returns:
        Why it could not be built, in words; None where it lies in its place, or is turned off.
    """
    return _built(cache_folder())[1] if wanted() else None


def _built(folder: Path) -> tuple[Path | None, str | None]:
    """Where the library lies in a cache, built if need be, or why there is none."""
    compiler = _compiler()
    if compiler is None:
        return None, _NO_COMPILER
    try:
        path = folder / "kernels" / f"few_rows-{_identity(compiler)}.so"
        if not path.is_file():
            _build(compiler, _SOURCE, path)
        return path, None
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return None, f"{compiler} could not build them: {' '.join(said.split())[:300]}"


def _compiler() -> str | None:
    """Of `$CXX`, else the system's."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _COMPILERS)), None)


def _identity(compiler: str) -> str:
    """Of the source, of what compiles it, and of what it is compiled for."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    processor = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        processor += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    parts = (_SOURCE.read_text(), compiler, version, " ".join(_FLAGS), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def compile_library(source: Path, path: Path) -> None:
    """Compile C++ for this machine, as the kernels are.

    Args:
        source: to be compiled.
        path: where the library is to lie; it is there whole or not at all.

    Raises:
        FileNotFoundError: there is no compiler.
        OSError, subprocess.SubprocessError: it failed.
    """
    compiler = _compiler()
    if compiler is None:
        raise FileNotFoundError(_NO_COMPILER)
    _build(compiler, source, path)


def _build(compiler: str, source: Path, path: Path) -> None:
    """Compile to `path`, which is there whole or not at all. Raises what subprocess and the file system raise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = os.path.join(folder, "few_rows.o"), os.path.join(folder, "few_rows.so")
        # Linked without a threading library of its own: torch has loaded one, and two would fight for the cores.
        for command in (
            [compiler, *_FLAGS, "-c", os.fspath(source), "-o", compiled],
            [compiler, "-shared", compiled, "-o", linked],
        ):
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_PATIENCE)
        os.replace(linked, path)
