"""The speculative core: tokens, trees, caches, and one decode loop with four roles.

What a token stands for is unknown here.
"""

from specdecode.kv_cache import StaticKVCache
from specdecode.loop import DecodeResult, decode
from specdecode.roles import DecodeState, Draft, Drafter, Target, TargetOutput, Verdict, Verifier
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, apply_guidance, logits_to_probabilities
from specdecode.trace import DecodeTrace, StepRecord
from specdecode.tree import TokenTree
from specdecode.verifiers import ExactVerifier

__all__ = [
    "DecodeResult",
    "DecodeState",
    "DecodeTrace",
    "Draft",
    "Drafter",
    "ExactVerifier",
    "RandomStreams",
    "SamplingConfig",
    "StaticKVCache",
    "StepRecord",
    "Tag",
    "Target",
    "TargetOutput",
    "TokenTree",
    "Verdict",
    "Verifier",
    "apply_guidance",
    "decode",
    "logits_to_probabilities",
]
