"""What this machine can multiply: the roof over products of many rows, as its bandwidth is over those of few.

Belongs here: that figure. Does not belong here: what a pass takes (`passes.py`).

A pass over n rows multiplies every weight n times, so it takes at least `2 n weights / flops_per_second`, and at least
what reading the weights takes. Where the two are equal is the number of rows from which on a pass is bound by
arithmetic: more tokens a pass are then more seconds, in the same proportion.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path

import torch

from specdecode.kernels.build import compile_library

_SOURCE = Path(__file__).with_name("arithmetic.cpp")
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
_ROUNDS = 2**19
"""Some tens of milliseconds."""


def flops_per_second(dtype: torch.dtype, num_threads: int, repeats: int = 3) -> float:
    """Products and sums on registers alone, the best of several: float32, bfloat16 summed in float32, or int8.

    Raises:
        FileNotFoundError: there is no C++ compiler.
        subprocess.SubprocessError: it could not build this.
    """
    run = _library().flops_on_registers
    return max(
        run(ctypes.c_int64(_KINDS[dtype]), ctypes.c_int64(_ROUNDS), ctypes.c_int64(num_threads)) for _ in range(repeats)
    )


@functools.cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arithmetic.so"
        compile_library(_SOURCE, path)
        library = ctypes.CDLL(str(path))
    library.flops_on_registers.restype = ctypes.c_double
    return library
