"""The run behind `vargen check`: two pictures, each drawn plainly and by default, and whether their tokens agree.

Belongs here: what somebody else must know of a model on a machine. Does not belong here: speed, which takes many calls
(`vargen.jobs.benchmark`), and printing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.base.options import OUTPUT, option
from vargen.base.path_roles import READ, WRITTEN_FILE
from vargen.base.reading import expanded, read_json, reading
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import SizedOptions
from vargen.jobs.cases import BenchmarkCase
from vargen.jobs.generation import GenerateConfig
from vargen.models.description import open_model
from vargen.runs.files import check_file_place, write_json_atomic
from vargen.runs.identity import check_identity, digest

PROMPTS = ("a shiny red sphere left of a small blue cube", "two green cones on sand")
_WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class CheckConfig(SizedOptions):
    """What to check."""

    output: str | None = option("check.json", path=WRITTEN_FILE, group=OUTPUT)
    """File for the report, which can be attached to an issue; null writes none."""
    against: str | None = option(None, path=READ, group=OUTPUT)
    """Report to compare with, of the same model elsewhere or earlier: which files of weights and which tokens are
    others."""


def check(config: CheckConfig, quiet: bool = False) -> dict[str, Any]:
    """Draw two pictures, one a call, each plainly and by the default of `vargen generate`.

    Args:
        config: the model, and where the report goes.
        quiet: print nothing about compiled passes.

    Returns:
        The report. `calls` has a row for each picture and method: passes, seconds of the whole call, its peak memory in
        GiB, and a digest of the tokens. The first picture's seconds hold what a first call alone does. `differs` has
        for each picture the first place where tokens differ, with both tokens, or None. `files` has SHA-256 of every
        file of weights, as the hub shows it. `against` names files of weights, and counts calls, that are others in the
        report to compare with; None: there is none.

    Raises:
        UserError: the model cannot be loaded, or draws what is no picture, or `against` is no report, or one of other
            pictures.
    """
    if config.output is not None:
        check_file_place(config.output, "output")
    earlier = None if config.against is None else _read_report(config.against)
    model = open_model(config).sized(config.height, config.width, config.ratio)
    from metrics.provenance import provenance
    from specdecode.kernels.build import kind, why_not
    from vargen.jobs.calls import call_pipeline
    from vargen.pipelines.loading import load_pipeline

    methods = {name: model.resolve_method(name) for name in ("ar", GenerateConfig.method)}
    classes = range(model.num_classes or 0)[: len(PROMPTS)]
    cases = [BenchmarkCase(class_label=label) for label in classes] or [*map(BenchmarkCase, PROMPTS)]
    drawn: dict[str, Any] = {"asked": {"seed": config.seed, **config.sampling, **model.size}}
    drawn["cases"] = [case.prompt or case.class_label for case in cases]
    if earlier is not None:
        told, place = {name: earlier.get(name) for name in drawn}, Path(str(config.against))
        check_identity(place, told, drawn, holds="calls", argument="against", remedy="ask for the same pictures")
    pipeline, device, dtype = load_pipeline(model, config, quiet)
    calls, differs = [], []
    for picture, case in enumerate(cases):
        tokens = []
        for name, method in methods.items():
            asked = {**model.sampling(**config.sampling), **model.size}
            output, cost = call_pipeline(pipeline, method, [case], config.seed + picture, **asked)
            tokens.append(output.tokens[0].tolist())
            calls.append({"picture": picture, "method": name, "passes": cost.target_passes, "seconds": cost.seconds})
            calls[-1] |= {"peak_memory_gib": (cost.peak_memory or 0) / 2**30 or None, "tokens": digest(tokens[-1])}
        places = enumerate(zip(*tokens, strict=True))
        differs.append(next(({"place": n, "tokens": two} for n, two in places if len(set(two)) > 1), None))
    folder = Path(model.folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix in _WEIGHTS and path.is_file())
    report = {
        "model": model.name,
        "family": model.family,
        "device": device,
        "dtype": dtype,
        "kernels": (why_not() or f"vargen's own, {kind()}") if pipeline.device.type == "cpu" else "torch's",
        "compiled": config.compile,
        "options": config.identity,
        "settings": {name: method.to_dict() for name, method in methods.items()},
        **drawn,
        "calls": calls,
        "differs": differs,
        "weights": weights_fingerprint(folder),
        "files": {path.relative_to(folder).as_posix(): _sha256(path) for path in files},
        "provenance": provenance(),
    }
    report["against"] = None if earlier is None else _others(earlier, report)
    if config.output is not None:
        write_json_atomic(config.output, report)
    return report


def _read_report(path: str) -> dict[str, Any]:
    about = "give a report of vargen check", "against"
    with reading(path, *about):
        report = read_json(expanded(path), *about)
        return {**report, "files": {**report["files"]}, "calls": _tokens(report)}


def _tokens(report: dict[str, Any]) -> dict[tuple[int, str], str]:
    """The digest of each call's tokens, by picture and method."""
    return {(call["picture"], call["method"]): call["tokens"] for call in report["calls"]}


def _others(earlier: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    names = sorted({*earlier["files"], *report["files"]})
    files = [name for name in names if earlier["files"].get(name) != report["files"].get(name)]
    calls = sum(earlier["calls"].get(call) != tokens for call, tokens in _tokens(report).items())
    return {"files": files, "calls": calls}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
