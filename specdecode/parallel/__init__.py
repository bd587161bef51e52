"""Parallel decoding: the drafter goes on drafting while the target judges what it drafted before.

The same roles as in `specdecode.loop`, in another order, for one row: `rounds.py` is the bookkeeping, `channel.py`
what the two sides say to each other, `loop.py` the target's side, `drafter.py` the drafter's. A channel carries the
messages: `one_process.py` in turn or between two threads, `two_processes.py` between processes. `draft_length.py`
measures how long a window should be, `simulation.py` reckons what overlapping is worth.

Source: ParallelVLM (arXiv 2603.19610), whose decoding is PEARL's (arXiv 2408.11850).
"""

from specdecode.parallel.channel import DraftChannel, DraftRequest, DraftSource, Window
from specdecode.parallel.draft_length import DraftLength, draft_length_of, measure_draft_length
from specdecode.parallel.drafter import WindowDrafter
from specdecode.parallel.loop import ParallelResult, decode_parallel
from specdecode.parallel.one_process import InTurnChannel, ThreadChannel
from specdecode.parallel.rounds import DraftOrder, Round, Rounds, RoundSeconds, RunAccount
from specdecode.parallel.two_processes import DrafterError, DraftProcess, GroupLink, RemoteDrafter, serve_drafts

__all__ = [
    "DraftChannel",
    "DraftLength",
    "DraftOrder",
    "DraftProcess",
    "DraftRequest",
    "DraftSource",
    "DrafterError",
    "GroupLink",
    "InTurnChannel",
    "ParallelResult",
    "RemoteDrafter",
    "Round",
    "RoundSeconds",
    "Rounds",
    "RunAccount",
    "ThreadChannel",
    "Window",
    "WindowDrafter",
    "decode_parallel",
    "draft_length_of",
    "measure_draft_length",
    "serve_drafts",
]
