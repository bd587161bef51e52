"""Where a figure comes from: machine, library versions, commit, date. Every recorded result carries it.

Only facts that can be read off the running program belong here; what was measured, and by which protocol, is the
caller's to say.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("torch", "diffusers", "transformers", "numpy")


def describe_hardware() -> dict[str, Any]:
    """Processor, cores, threads torch uses, memory in GiB, and the CUDA device if this program has used one."""
    hardware: dict[str, Any] = {
        "processor": _processor_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": "cpu",
    }
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        hardware["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    if torch.cuda.is_initialized():
        hardware["device"] = torch.cuda.get_device_name()
    return hardware


def describe_commit(folder: Path | None = None) -> str | None:
    """Short hash of the checkout around `folder` (default: this file), "-dirty" appended if files differ from it.

    None outside a git checkout, for instance in an installed wheel.
    """
    folder = Path(__file__).resolve().parent if folder is None else folder
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        dirty = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if dirty else "")


def provenance() -> dict[str, Any]:
    """Hardware, library versions, commit and date (UTC), ready for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": describe_commit(),
        "hardware": describe_hardware(),
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result with its provenance as JSON; an interrupted write leaves the old file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"provenance": provenance(), **result}, indent=1) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".partial", delete=False) as temporary:
        temporary.write(text)
    os.chmod(temporary.name, 0o644)
    os.replace(temporary.name, path)


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=20
    ).stdout.strip()
