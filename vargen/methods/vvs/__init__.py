"""VVS: partial verification skipping (arXiv 2511.13587). What is skipped, when, and what drafting reads meanwhile."""

from vargen.methods.vvs.feature_cache import FeatureCache
from vargen.methods.vvs.schedule import DynamicSchedule, LikenessSchedule, UniformSchedule
from vargen.methods.vvs.selector import PathSelector

__all__ = ["DynamicSchedule", "FeatureCache", "LikenessSchedule", "PathSelector", "UniformSchedule"]
