"""Whether code runs as part of a graph: traced by torch's compiler, or captured on a GPU.

Belongs here: the question, and saying so for a while. Does not belong here: graphs (`static_step.py`), and the rules
that code then obeys: shapes and operations depend on no number of a tensor, and the host keeps no count.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Thread(threading.local):
    in_graph = False


_thread = _Thread()


def in_graph() -> bool:
    """Whether this thread's operations become, or stand for, those of a graph."""
    return torch.compiler.is_compiling() or _thread.in_graph


@contextmanager
def as_in_graph() -> Iterator[None]:
    """Within this context, code of this thread runs as it does in a graph, one operation after another."""
    before, _thread.in_graph = _thread.in_graph, True
    try:
        yield
    finally:
        _thread.in_graph = before
