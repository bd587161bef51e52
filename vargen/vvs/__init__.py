"""VVS: partial verification skipping (arXiv 2511.13587). What is skipped, when, and what drafting reads meanwhile."""

from vargen.vvs.feature_cache import FeatureCache
from vargen.vvs.schedule import DynamicSchedule, LikenessSchedule, UniformSchedule
from vargen.vvs.selector import PathSelector

__all__ = ["DynamicSchedule", "FeatureCache", "LikenessSchedule", "PathSelector", "UniformSchedule"]
