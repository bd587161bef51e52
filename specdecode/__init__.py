"""The speculative core: tokens, trees, caches, and one decode loop with four roles.

Nothing here knows what a token stands for. `generate` is one call for a plain language model. For other models, choose
the four players yourself; `README.md` says what each must promise. Six files explain the rest; read them first:

1. `roles.py`: the four roles, and the data that they exchange. `tree.py`: draft tokens.
2. `sampling.py`: from logits to tokens, with random numbers by position.
3. `loop.py`: propose, judge, keep.
4. `kv_cache.py`: keys and values in slots that never move. `trace.py`: the account of a run.

Then the rooms: `runs/` (`new_run` is the door to every run), `drafters/`, `verifiers/`, `targets/`, `grid/`, `text/`,
`graphs/` and `kernels/`. `ragged.py` and `checks.py` help.
"""

from typing import TYPE_CHECKING, Any

from specdecode.checks import LogitsError
from specdecode.drafters.draft_model import DraftModel, DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import (
    AdaptiveDraftSize,
    DraftSize,
    DraftSizer,
    FixedDraftSize,
    StepCosts,
    measure_step_costs,
)
from specdecode.drafters.eagle import DraftHead, EagleDrafter, FeatureReuse
from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter, SemiAutoregressiveHead
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.kv_cache import StaticKVCache
from specdecode.loop import DecodeResult, DecodeRun, decode
from specdecode.roles import (
    DecodeState,
    Draft,
    Drafter,
    Schedule,
    Selection,
    SkippingDrafter,
    Target,
    TargetOutput,
    Verdict,
    Verifier,
)
from specdecode.runs.continuous import FinishedRow, decode_queue
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, apply_guidance, logits_to_probabilities
from specdecode.text.generate import GenerateResult, custom_generate, generate
from specdecode.trace import DecodeTrace, StepRecord
from specdecode.tree import TokenTree
from specdecode.verifiers.annealed import AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.loose import LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier

if TYPE_CHECKING:
    from specdecode.targets.transformers import TransformersTarget

__all__ = [
    "AdaptiveDraftSize",
    "AnnealedVerifier",
    "BranchingJacobiDrafter",
    "DecodeResult",
    "DecodeRun",
    "DecodeState",
    "DecodeTrace",
    "Draft",
    "DraftHead",
    "DraftHeadOutput",
    "DraftModel",
    "DraftModelDrafter",
    "DraftModelTreeDrafter",
    "DraftSize",
    "DraftSizer",
    "Drafter",
    "DynamicTree",
    "EagleDrafter",
    "ExactVerifier",
    "FeatureReuse",
    "FinishedRow",
    "FixedDraftSize",
    "ForcedTokensDrafter",
    "GenerateResult",
    "GroupedVerifier",
    "JacobiDrafter",
    "LanternVerifier",
    "LogitsError",
    "LookupDraftLength",
    "LooseVerifier",
    "PromptLookupDrafter",
    "RandomStreams",
    "SamplingConfig",
    "Schedule",
    "Selection",
    "SemiAutoregressiveDrafter",
    "SemiAutoregressiveHead",
    "SkippingDrafter",
    "StaticKVCache",
    "StaticTree",
    "StepCosts",
    "StepRecord",
    "Tag",
    "Target",
    "TargetOutput",
    "TokenTree",
    "TransformersTarget",
    "Verdict",
    "Verifier",
    "WindowedVerifier",
    "apply_guidance",
    "custom_generate",
    "decode",
    "decode_queue",
    "generate",
    "logits_to_probabilities",
    "measure_step_costs",
]


def __getattr__(name: str) -> Any:
    """`TransformersTarget`, once it is used: transformers takes seconds to import."""
    if name == "TransformersTarget":
        from specdecode.targets.transformers import TransformersTarget

        return TransformersTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
