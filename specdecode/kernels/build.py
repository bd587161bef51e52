"""The compiled kernels: built once per machine, when the package is installed or when they are first used.

Belongs here: finding a compiler, deciding whether a built library can be used again, and loading it. Does not belong
here: what the kernels compute (`few_rows.cpp`, `judging.cpp`, `lines.cpp`) and tensors (`native.py`, `fused_ops.py`).

A library lies in `$VARGEN_CACHE/kernels`. Its name is a hash of the sources, the compiler and the processor, so two
machines can share a cache. Building takes up to half a minute. Where there is no compiler, or it takes too long, or the
result cannot be loaded, torch's own operations run instead, and a warning says so. `hatch_build.py` imports this file
by its path during installation, so it may use the standard library alone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

KERNELS = ("auto", "plain")
TILES = ("auto", "plain", "off")
_SOURCES = tuple(Path(__file__).with_name(f"{name}.cpp") for name in ("few_rows", "judging", "lines"))
_HEADERS = (Path(__file__).with_name("tiles.h"),)
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-w")
_OWN_FLAGS = {"judging": ("-ffp-contract=off",)}
"""Further flags of one file: torch rounds after every operation, and so must what gives its bits."""
_DECISIVE = ("VARGEN_KERNELS", "VARGEN_TILES", "VARGEN_CACHE", "XDG_CACHE_HOME", "HOME", "CXX")
"""Environment variables that decide which library is loaded."""
_NO_COMPILER = "there is no C++ compiler; install g++ or clang++, or name one in CXX"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_BUILDING = "building-"
_PATIENCE = 300
"""Seconds after which a compiler is stopped."""


def wanted() -> bool:
    """Whether `$VARGEN_KERNELS` leaves the project's kernels on.

    Raises:
        ValueError: it is neither "auto" nor "plain", or `$VARGEN_TILES` is none of `TILES`.
    """
    for variable, choices in (("VARGEN_KERNELS", KERNELS), ("VARGEN_TILES", TILES)):
        choice = os.environ.get(variable) or "auto"
        if choice not in choices:
            raise ValueError(f"{variable} must be one of {', '.join(choices)}, got {choice!r}")
    return (os.environ.get("VARGEN_KERNELS") or "auto") == "auto"


def cache_folder() -> Path:
    """The folder of built libraries: `$VARGEN_CACHE`, else `vargen` in the user's cache directory. Raises OSError for
    a user without a home directory."""
    if folder := os.environ.get("VARGEN_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vargen"
    except RuntimeError:
        raise FileNotFoundError("there is no home directory; set VARGEN_CACHE to a folder") from None


def library() -> ctypes.CDLL | None:
    """The kernels, built if need be; None where they are turned off or cannot be built (`why_not` says why).

    Raises:
        ValueError: as `wanted`.
    """
    return _decided(*map(os.environ.get, _DECISIVE))[0]


def why_not() -> str | None:
    """The reason why `library` is None; None where it is not. Raises ValueError as `library`."""
    return _decided(*map(os.environ.get, _DECISIVE))[1]


def kind() -> str:
    """What multiplies: the kernels' vectors and tiles, such as "avx512_bf16+amx"; "torch" where there are no kernels.

    In float32 all kinds with fused multiply-add give the same bits; in other precisions each kind has its own.
    Raises ValueError as `library`.
    """
    kernels = library()
    if kernels is None:
        return "torch"
    kernels.few_rows_vectors.restype = ctypes.c_char_p
    return kernels.few_rows_vectors().decode() + ("", "+plain tiles", "+amx")[kernels.few_rows_tiles()]


def build_name() -> str:
    """The kind and the very build, on which measured seconds depend. Raises ValueError as `library`."""
    kernels = library()
    return kind() if kernels is None else f"{kind()} {Path(kernels._name).stem}"


@functools.cache
def _decided(*values: str | None) -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none, for these values of `_DECISIVE`. Every product asks, hence the cache."""
    if not wanted():
        return None, "VARGEN_KERNELS is plain"
    path, reason = _built()
    if path is not None:
        try:
            _check_owner(path)
            return ctypes.CDLL(os.fspath(path)), None
        except OSError as error:
            reason = f"{path} cannot be loaded: {error}"
    warnings.warn(f"kernels: {reason}. PyTorch's own operations do the work, more slowly", RuntimeWarning, stacklevel=1)
    return None, reason


def _check_owner(path: Path) -> None:
    """Refuse a library that somebody else could have put there: its name says what it is of, not who made it. Raises
    PermissionError."""
    for each in (path, path.parent) if hasattr(os, "geteuid") else ():
        status = os.stat(each)
        if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & _OTHERS_WRITE:
            raise PermissionError(
                f"{each} must belong to you or root, and nobody else may write it; chmod go-w it, or set VARGEN_CACHE"
            )


def build_ahead() -> str | None:
    """Build the library if need be, without loading it: only a process with torch can.

    Returns:
        The reason why it could not be built; None where it is there or is turned off.
    """
    return _built()[1] if wanted() else None


def _built() -> tuple[Path | None, str | None]:
    """The path of the library, built if need be, or why there is none."""
    compiler = _compiler()
    if compiler is None:
        return None, _NO_COMPILER
    try:
        path = cache_folder() / "kernels" / f"few_rows-{_identity(compiler)}.so"
        if not path.is_file():
            _build(compiler, _SOURCES, path)
        return path, None
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        if isinstance(said, bytes):  # of a compiler that was stopped, whatever `text` says
            said = said.decode(errors="replace")
        return None, f"{compiler} could not build them: {' '.join(said.split())[:300]}"


def _compiler() -> str | None:
    """The path of `$CXX`, else of the system's C++ compiler; None where there is none."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _COMPILERS)), None)


def _identity(compiler: str) -> str:
    """A hash of the sources, the compiler and the processor."""
    version = _run([compiler, "--version"], 60)
    processor = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text().splitlines()
        processor += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    flags = f"{_FLAGS} {_OWN_FLAGS}"
    parts = (*(source.read_text() for source in (*_SOURCES, *_HEADERS)), compiler, version, flags, processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _run(command: Sequence[str], seconds: int) -> str:
    """What a compiler prints, whatever its encoding. Raises OSError and subprocess.SubprocessError."""
    done = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=seconds)
    return done.stdout


def compile_library(source: Path, path: Path) -> None:
    """Compile C++ for this machine with the kernels' flags.

    Args:
        source: the C++ file.
        path: of the library; after an error nothing is there.

    Raises:
        FileNotFoundError: there is no compiler.
        OSError, subprocess.SubprocessError: the compiler failed.
    """
    compiler = _compiler()
    if compiler is None:
        raise FileNotFoundError(_NO_COMPILER)
    _build(compiler, (source,), path)


def _build(compiler: str, sources: Sequence[Path], path: Path) -> None:
    """Compile to a temporary file and move it to `path`. Raises what subprocess and the file system raise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{_BUILDING}*"):  # by a process that was killed: no other takes so long
        if time.time() - left.stat().st_mtime > 2 * (len(sources) + 1) * _PATIENCE:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_BUILDING) as folder:
        compiled, linked = [os.path.join(folder, f"{source.stem}.o") for source in sources], f"{folder}/linked.so"
        # Not linked with a threading library: torch has loaded one, and two would compete for the cores.
        for command in (
            *(
                [compiler, *_FLAGS, *_OWN_FLAGS.get(source.stem, ()), "-c", os.fspath(source), "-o", to]
                for source, to in zip(sources, compiled, strict=True)
            ),
            [compiler, "-shared", *compiled, "-o", linked],
        ):
            _run(command, _PATIENCE)
        if hasattr(os, "geteuid"):  # see `_check_owner`
            for each in (linked, path.parent):
                os.chmod(each, stat.S_IMODE(os.stat(each).st_mode) & ~_OTHERS_WRITE)
        os.replace(linked, path)
