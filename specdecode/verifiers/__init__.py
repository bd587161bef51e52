"""Verifiers: which draft tokens stay? One module per rule of acceptance."""

from specdecode.verifiers.annealed import AnnealedVerifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.grouped import GroupedVerifier
from specdecode.verifiers.lantern import LanternVerifier
from specdecode.verifiers.loose import LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier

__all__ = [
    "AnnealedVerifier",
    "ExactVerifier",
    "GroupedVerifier",
    "LanternVerifier",
    "LooseVerifier",
    "WindowedVerifier",
]
