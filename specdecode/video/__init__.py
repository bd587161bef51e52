"""Video-LLMs on the speculative core: the same loop, with a model that has watched a video as the target.

`request.py` turns a processor's output into what a language model reads, `target.py` plays Target and draft model over
transformers' own classes, `pruning.py` chooses which visual tokens a drafter may see, `loose_verifier.py` is LVSpec's
acceptance. Reading video files is not the core's business.
"""
