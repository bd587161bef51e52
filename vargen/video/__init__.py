"""Video-LLMs on the speculative core: the same loop, with a model that has watched a video as the target.

`request.py` turns a processor's output into what a language model reads, `target.py` plays Target and draft model over
transformers' own classes. `attention.py` says how much attention the question pays to each visual token, `pruning.py`
chooses by it and otherwise which of them a drafter may see: `pruned_draft.py` (SpecVLM, LVSpec) leaves the others out
of its prompt, `sparse_draft.py` (STD) out of the target's own cache. `loose_verifier.py` is LVSpec's acceptance.
`lossy_targets.py` has FastV and SparseVLM, which make the target itself forget. `feature_drafter.py` is the network of
the trained drafters (EAGLE, MSD, ViSpec, Sparrow, FLASH), `visual_compressor.py` a part of it, `feature_head.py` its
cache and its place in the loop, `drafter_folder.py` its files. Reading video files is not the core's business.
"""
