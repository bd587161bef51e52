"""What the parts of a speculative step cost on this machine, measured once and remembered.

Belongs here: a target in the middle of a picture, and the file that keeps its times. Does not belong here: the clock
(`specdecode.step_costs`), and what is made of the times (`specdecode.draft_size`).

Costs depend on the machine, torch, the model's geometry and precision and the rows of a batch, never on weights or
prompts; these make the key. A file that is damaged or cannot be written only means that costs are measured again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from metrics.provenance import describe_hardware
from specdecode.draft_size import StepCosts
from specdecode.step_costs import measure_step_costs
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.runs.files import write_atomic
from vargen.runs.identity import digest

_measured: dict[str, StepCosts] = {}


def cache_folder() -> Path:
    """`$VARGEN_CACHE`, else `vargen` in the user's cache directory."""
    if folder := os.environ.get("VARGEN_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vargen"


def step_costs(
    target: LlamaGenTarget, most_nodes: int, draft_step: Callable[[], object] | None, drafter_key: str
) -> StepCosts:
    """The costs for a target of this kind, from memory, from the file, or measured now (a second or two).

    Args:
        target: gives model, rows, guidance and prompt length; it is not touched.
        most_nodes: the largest tree that will be asked about.
        draft_step: makes one drafting step; None where drafting costs nothing.
        drafter_key: tells drafters apart.
    """
    key = _key(target, most_nodes, drafter_key)
    if key not in _measured:
        path = cache_folder() / "step_costs" / f"{key}.json"
        costs = _read(path)
        if costs is None:
            costs = measure(target, most_nodes, draft_step)
            _write(path, costs)
        _measured[key] = costs
    return _measured[key]


@torch.no_grad()
def measure(target: LlamaGenTarget, most_nodes: int, draft_step: Callable[[], object] | None) -> StepCosts:
    """Time target passes over up to `most_nodes` tokens in the middle of a picture, and one drafting step."""
    half = target.transformer.num_image_tokens // 2
    probe = _like(target, most_nodes)
    probe.prefill()
    probe.kv_cache.advance(half)  # what the slots hold does not matter to the clock
    probe._most_committed = probe.condition_length + half
    return measure_step_costs(probe, most_nodes, draft_step)


def _like(target: LlamaGenTarget, most_nodes: int) -> LlamaGenTarget:
    """A target of the same shape with a cache of its own."""
    transformer: LlamaGenTransformer = target.transformer
    embeds = torch.zeros(
        target.batch_size,
        target.condition_length,
        transformer.config.dim,
        device=target.device,
        dtype=transformer.dtype,
    )
    return LlamaGenTarget(transformer, embeds, guidance_scale=target.guidance_scale, max_draft_nodes=most_nodes)


def _key(target: LlamaGenTarget, most_nodes: int, drafter_key: str) -> str:
    hardware = describe_hardware()
    config = {name: value for name, value in target.transformer.config.items() if not name.startswith("_")}
    parts: dict[str, Any] = {
        "processor": hardware["processor"],
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(target.device) if target.device.type == "cuda" else target.device.type,
        "torch": torch.__version__,
        "model": config,
        "dtype": str(target.transformer.dtype),
        "rows": target.kv_cache.batch_size,
        "most_nodes": most_nodes,
        "drafter": drafter_key,
    }
    return digest(parts, 24)


def _read(path: Path) -> StepCosts | None:
    try:
        values = json.loads(path.read_bytes())
        return StepCosts(
            tuple(int(count) for count in values["nodes"]),
            tuple(float(seconds) for seconds in values["target_seconds"]),
            float(values["drafting_step_seconds"]),
            float(values["overhead_seconds"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, costs: StepCosts) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(vars(costs)) + "\n")
    except OSError:
        pass  # an unwritable place costs a second at every start, nothing more
