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

from specdecode.checks import LogitsError as LogitsError
from specdecode.drafters.draft_model import DraftModel as DraftModel
from specdecode.drafters.draft_model import DraftModelDrafter as DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter as DraftModelTreeDrafter
from specdecode.drafters.draft_size import AdaptiveDraftSize as AdaptiveDraftSize
from specdecode.drafters.draft_size import DraftSize as DraftSize
from specdecode.drafters.draft_size import DraftSizer as DraftSizer
from specdecode.drafters.draft_size import FixedDraftSize as FixedDraftSize
from specdecode.drafters.draft_size import StepCosts as StepCosts
from specdecode.drafters.draft_size import measure_step_costs as measure_step_costs
from specdecode.drafters.eagle import DraftHead as DraftHead
from specdecode.drafters.eagle import EagleDrafter as EagleDrafter
from specdecode.drafters.eagle import FeatureReuse as FeatureReuse
from specdecode.drafters.forced_tokens import ForcedTokensDrafter as ForcedTokensDrafter
from specdecode.drafters.jacobi import JacobiDrafter as JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter as BranchingJacobiDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength as LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter as PromptLookupDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter as SemiAutoregressiveDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveHead as SemiAutoregressiveHead
from specdecode.drafters.tree_growth import DraftHeadOutput as DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree as DynamicTree
from specdecode.drafters.tree_shapes import StaticTree as StaticTree
from specdecode.kv_cache import StaticKVCache as StaticKVCache
from specdecode.loop import DecodeResult as DecodeResult
from specdecode.loop import DecodeRun as DecodeRun
from specdecode.loop import decode as decode
from specdecode.roles import DecodeState as DecodeState
from specdecode.roles import Draft as Draft
from specdecode.roles import Drafter as Drafter
from specdecode.roles import Schedule as Schedule
from specdecode.roles import Selection as Selection
from specdecode.roles import SkippingDrafter as SkippingDrafter
from specdecode.roles import Target as Target
from specdecode.roles import TargetOutput as TargetOutput
from specdecode.roles import Verdict as Verdict
from specdecode.roles import Verifier as Verifier
from specdecode.runs.continuous import FinishedRow as FinishedRow
from specdecode.runs.continuous import decode_queue as decode_queue
from specdecode.sampling import RandomStreams as RandomStreams
from specdecode.sampling import SamplingConfig as SamplingConfig
from specdecode.sampling import Tag as Tag
from specdecode.sampling import apply_guidance as apply_guidance
from specdecode.sampling import logits_to_probabilities as logits_to_probabilities
from specdecode.text.generate import GenerateResult as GenerateResult
from specdecode.text.generate import custom_generate as custom_generate
from specdecode.text.generate import generate as generate
from specdecode.trace import DecodeTrace as DecodeTrace
from specdecode.trace import StepRecord as StepRecord
from specdecode.tree import TokenTree as TokenTree
from specdecode.verifiers.annealed import AnnealedVerifier as AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier as ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier as GroupedVerifier
from specdecode.verifiers.lantern import LanternVerifier as LanternVerifier
from specdecode.verifiers.loose import LooseVerifier as LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier as WindowedVerifier

if TYPE_CHECKING:
    from specdecode.targets.transformers import TransformersTarget as TransformersTarget


def __getattr__(name: str) -> Any:
    """`TransformersTarget`, once it is used: transformers takes seconds to import."""
    if name == "TransformersTarget":
        from specdecode.targets.transformers import TransformersTarget

        return TransformersTarget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
