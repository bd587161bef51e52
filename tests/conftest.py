"""What holds for all tests, and the plugins in tests/shared that have their fixtures."""

from __future__ import annotations

import gc
import os
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import warm

# A worker a core (pyproject.toml), each with one thread, as are the processes that tests start. Before torch is there.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # where a test asks for more threads than cores, waiting ones take no core
os.environ["HF_HUB_OFFLINE"] = "1"  # what asks a hub all the same fails at once, and not after five tries with pauses
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # whoever asks for a GPU leaves it to the processes that are forked

gc.set_threshold(10_000)  # what is imported and collected stays, and looking through it again and again takes seconds

PLUGINS = ("cheap_training", "official_layout", "own_kernels", "tiny_clip", "tiny_video_llms", "video_pairs")


def pytest_configure() -> None:
    """Half of the methods, recipes and commands are found by what `pip install` noted of pyproject.toml."""
    told = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, points in told.items():
        if not points.items() <= {point.name: point.value for point in entry_points(group=group)}.items():
            pytest.exit("pyproject.toml has entry points that are not installed: pip install -e . --no-deps", 4)


def pytest_collection(session: pytest.Session) -> None:
    """Import them where tests are collected. The process that only hands tests to workers starts without torch."""
    for name in PLUGINS:
        session.config.pluginmanager.import_plugin(name)


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before a test has started a thread: processes are forked from here."""
    if session.items:
        warm.start()


def pytest_unconfigure() -> None:
    warm.stop()
