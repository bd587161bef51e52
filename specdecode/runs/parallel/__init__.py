"""Parallel decoding: the drafter drafts on while the target judges what was drafted before.

It has the roles of `specdecode.loop` in another order, for one row. Read `rounds.py` (the bookkeeping), `channel.py`
(the messages), `loop.py` (the target's side), `drafter.py` (the drafter's side), `two_processes.py` (how messages
travel), then `draft_length.py` (the best length of a window).

Source: ParallelVLM (arXiv 2603.19610), whose decoding is PEARL's (arXiv 2408.11850).
"""

from specdecode.runs.parallel.channel import DraftChannel, DraftRequest, DraftSource, Window
from specdecode.runs.parallel.draft_length import DraftLength, draft_length_of, measure_draft_length
from specdecode.runs.parallel.drafter import InTurnChannel, WindowDrafter
from specdecode.runs.parallel.loop import ParallelResult, decode_parallel
from specdecode.runs.parallel.rounds import DraftOrder, Round, Rounds
from specdecode.runs.parallel.two_processes import DrafterError, DraftProcess, RemoteDrafter, serve_drafts

__all__ = [
    "DraftChannel",
    "DraftLength",
    "DraftOrder",
    "DraftProcess",
    "DraftRequest",
    "DraftSource",
    "DrafterError",
    "InTurnChannel",
    "ParallelResult",
    "RemoteDrafter",
    "Round",
    "Rounds",
    "Window",
    "WindowDrafter",
    "decode_parallel",
    "draft_length_of",
    "measure_draft_length",
    "serve_drafts",
]
