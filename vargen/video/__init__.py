"""Video-LLMs on the speculative core: the same loop, with a model that has watched a video as the target.

`architectures/` has a file for each architecture that can be served; all others are refused by name.
`request.py` turns a processor's output into what a language model reads, `target.py` plays Target and draft model over
transformers' own classes. `attention.py` sees how much attention the question pays to each visual token, `pruning.py`
chooses by it and otherwise which of them a drafter may see: `pruned_draft.py` (SpecVLM, LVSpec) leaves the others out
of its prompt, `sparse_cache.py` (STD) out of the target's own cache; with `lossy_targets.py` (FastV, SparseVLM) the
target itself forgets. `methods/` has a file for each way to decode, which asks a `prompt.py` for its `players.py`;
`parallel_pair.py` is ParallelVLM's other side. `drafters/` has trained drafters. `answering.py` is the one call.
"""
