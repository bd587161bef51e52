"""Drafters: which tokens may come next? One module per way of guessing."""

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter
from specdecode.drafters.known_tokens import KnownTokensDrafter
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.semi_autoregressive import SemiAutoregressiveDrafter
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree

__all__ = [
    "BranchingJacobiDrafter",
    "DraftModelDrafter",
    "DraftModelTreeDrafter",
    "DynamicTree",
    "EagleDrafter",
    "JacobiDrafter",
    "KnownTokensDrafter",
    "PromptLookupDrafter",
    "SemiAutoregressiveDrafter",
    "StaticTree",
]
