"""Parallel decoding: the drafter drafts on while the target judges what was drafted before.

It has the roles of `specdecode.loop` in another order, for one row. Read `rounds.py` (the bookkeeping), `channel.py`
(the messages), `loop.py` (the target's side), `drafter.py` (the drafter's side), `two_processes.py` (how messages
travel), then `draft_length.py` (the best length of a window).

Source: ParallelVLM (arXiv 2603.19610), whose decoding is PEARL's (arXiv 2408.11850).
"""
