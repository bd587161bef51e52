"""`pipeline.compile()`: decoding steps as graphs, for every family.

Belongs here: whether there is a compiler, where its code is kept between runs, and how long it worked. Does not belong
here: steps, buckets and graphs (`specdecode.graphs`), and where a family's own kernels are faster (its target).
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from specdecode.trace import DecodeTrace
from vargen.base.bounds import check_choice
from vargen.base.errors import UserError
from vargen.base.resources import cache_folder
from vargen.checkpoints.options import COMPILE_BUCKET
from vargen.models.reuse import Reuse

if TYPE_CHECKING:
    from specdecode.graphs.static_step import StepCompiler

COMPILED = "compile"
"""The phase of a trace for compiling; its seconds are not in "decode" or another phase."""


class CompilablePipeline:
    """A pipeline whose decoding steps can be graphs."""

    reuse: Reuse

    def compile(
        self,
        backend: str | Callable[..., Any] | None = "inductor",
        bucket: int = COMPILE_BUCKET,
        on_compiled: Callable[[int, float], None] | None = None,
    ) -> Self:
        """Make every decoding step one graph, from the next call on: drafting, the target's pass, verdict, bookkeeping.

        Each kind of step is compiled when it first comes up, which takes from some seconds to minutes. Kinds differ by
        the method, the pictures of a batch, and how many keys attention reads. The trace has compiling as a phase of
        its own. Code is kept for the next run under `$VARGEN_CACHE`, or where `TORCHINDUCTOR_CACHE_DIR` says. On CUDA a
        step is captured and replayed, so the host does next to nothing.

        Compiled code adds numbers in another order. So a token may differ where two are about as likely, as it may
        between two machines.

        Args:
            backend: of `torch.compile`; None: eager steps again.
            bucket: attention reads a batch's keys in multiples of so many tokens.
            on_compiled: called as `on_compiled(most_tokens, seconds)` after each step that was compiled: how many
                tokens a picture gains by it at most, and how long compiling took.

        Returns:
            The pipeline.

        Raises:
            UserError: there is no compiler, no such backend, or a bucket of less than two tokens.
        """
        if backend is None:
            self.reuse.compiler = None
            return self
        check_compiler(getattr(self, "_execution_device", torch.device("cpu")), backend)
        from specdecode.graphs.static_step import StepCompiler  # torch's compiler takes a second to import

        try:
            self.reuse.compiler = StepCompiler(backend, bucket, on_compiled)
        except ValueError as error:
            raise UserError(f"compile_{error}") from error
        return self


@contextmanager
def compile_time_apart(compiler: StepCompiler | None, trace: DecodeTrace, phase: str) -> Iterator[None]:
    """Move the seconds that a block of one phase spends on compiling to a phase of their own."""
    before = 0.0 if compiler is None else compiler.seconds
    yield
    if compiler is not None and (seconds := compiler.seconds - before):
        trace.phase_seconds[phase] -= seconds
        trace.phase_seconds[COMPILED] = trace.phase_seconds.get(COMPILED, 0.0) + seconds


def check_compiler(device: torch.device, backend: str | Callable[..., Any] = "inductor") -> None:
    """Refuse to compile where that cannot work, and keep compiled code between runs. Raises UserError where torch's
    compiler lacks what it needs on this device, or there is no such backend."""
    if backend == "inductor":
        if device.type == "cuda":
            _check_triton()
        else:
            _check_cpp_compiler()
        _keep_compiled_code()
    elif isinstance(backend, str):
        check_choice("compile: backend", backend, torch._dynamo.list_backends(exclude_tags=()))


def can_capture(device: str) -> bool:
    """Whether steps on a device can be compiled and captured."""
    from torch.utils._triton import has_triton

    return device.startswith("cuda") and has_triton()


def _check_triton() -> None:
    if not can_capture("cuda"):
        raise UserError("compile needs Triton on a GPU; it is not installed or does not support this one; leave it out")


def _check_cpp_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except RuntimeError:
        raise UserError(
            "compile needs a C++ compiler, and there is none; install g++ or clang++, name one in the environment "
            "variable CXX, or leave compile out"
        ) from None
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        raise UserError("compile needs the headers of Python, such as the package python3-dev; leave compile out")


def _keep_compiled_code() -> None:
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        try:
            folder = cache_folder() / "compiled"
            folder.mkdir(parents=True, exist_ok=True)
        except (UserError, OSError):
            return  # where nothing can be written, every start compiles anew
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
