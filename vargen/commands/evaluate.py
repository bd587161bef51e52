"""`vargen evaluate`: quality by a named protocol, of pictures made now or given, in one resumable command.

The order of work: refuse what can be refused; make the pictures of every method; measure them and the reference; score.
Every step is cut into batches that one process makes whole (`vargen.runs.batches`), so that the command can be
killed at any moment and given again, under any number of processes, and ends in the same scores.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vargen.commands.options import build_parser, fill, parse
from vargen.errors import UserError
from vargen.jobs.options import check_sampling
from vargen.methods.lists import read_method_list
from vargen.resources import find_config
from vargen.runs.files import exclusive, write_atomic, write_json_atomic

if TYPE_CHECKING:
    from metrics.protocol import Protocol
    from vargen.methods.catalogue import MethodConfig


@dataclass(frozen=True)
class EvaluateConfig:
    """What to evaluate, and how.

    Args:
        output: folder for the pictures, what is read off them, scores.json, table.md, table.tex and plot.png. The same
            command goes on where it was stopped.
        preset: protocol, by the name of a shipped one (scenes, coco2014-30k, coco2017-5k-longest, imagenet-50k) or a
            YAML file of the same fields.
        method: decoding method or preset; several, separated by commas, are evaluated one after the other.
        method_options: settings that differ from the defaults, by method, such as `--method_options.eagle.depth 3`.
        count: how many pictures; null for the protocol's, or 2000 where it leaves that open.
        images: evaluate these pictures, a folder or an .npz of them, instead of making any.
        captions_file: captions, one a picture: .txt, .csv, .tsv or .jsonl. With `images`, in the order of the pictures.
        reference: folder of pictures, .npz of pictures (arr_0) or of statistics (mu, sigma), where the protocol does
            not render its own.
        clip: folder of a CLIP model; null for the one that came with vargen (scenes only).
        inception_weights: file of torch-fidelity's Inception weights; null lets torch-fidelity download them.
        vgg_weights: file of torchvision's VGG16 weights, where the protocol uses it.
        model: model folder, or the name of a shipped one; null for the shipped default.
        seed: of the first picture; picture i is made with `seed + i`.
        batch_size: pictures per call. It belongs to the identity of a run, since costs are recorded by call.
        guidance_scale: null for the model's own.
        temperature: of sampling.
        top_k: null for the model's own; 0 for all tokens.
        top_p: of sampling.
        bootstrap: draws for the 95 % intervals; 0 for none.
        device: "cpu", "cuda"; "auto" takes each process's own GPU if there is one.
        dtype: float32, bfloat16, float16; "auto" is bfloat16 on a GPU and float32 on a CPU.
    """

    output: str = "evaluation"
    preset: str = "scenes"
    method: str = "ar"
    method_options: dict[str, Any] = field(default_factory=dict)
    count: int | None = None
    images: str | None = None
    captions_file: str | None = None
    reference: str | None = None
    clip: str | None = None
    inception_weights: str | None = None
    vgg_weights: str | None = None
    model: str | None = None
    seed: int = 0
    batch_size: int = 32
    guidance_scale: float | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    bootstrap: int = 200
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name, lowest in (("batch_size", 1), ("seed", 0), ("bootstrap", 0)):
            if getattr(self, name) < lowest:
                raise UserError(f"{name} must be at least {lowest}, got {getattr(self, name)}")
        if self.count is not None and self.count < 2:
            raise UserError(f"count must be at least 2, got {self.count}")
        check_sampling(self)
        if Path(self.output).is_file():
            raise UserError(f"output: {self.output} is a file; name a folder")

    def methods(self) -> dict[str, MethodConfig]:
        """By label. Raises UserError for an unknown method or options of one that is not evaluated."""
        return read_method_list(self.method, self.method_options, "method")


def run(arguments: Sequence[str]) -> int:
    """Make what is missing, measure it, write the scores."""
    parser = build_parser(
        "evaluate",
        "Make pictures by one or several methods, or take those of a folder, and score them by a named protocol. "
        "Under `accelerate launch` or `torchrun` all processes share the work.",
        EvaluateConfig,
        epilog="What each figure means is in docs/evaluation.md. A stopped run is continued by the same command, with "
        "any number of processes.",
    )
    parser.add_argument("--json", action="store_true", help="print the scores to standard output, nothing else")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    values = parse(parser, arguments)
    config = fill(EvaluateConfig, values)
    protocol = load_protocol(config.preset)
    methods = {} if config.images is not None else config.methods()

    from vargen.jobs.cases import World
    from vargen.jobs.evaluation import evaluate_quality
    from vargen.runs.processes import Processes
    from vargen.world.cases import RenderedReference, file_cases, scene_cases
    from vargen.world.judge.judging import ClaimJudge

    world = World(scene_cases, file_cases, RenderedReference, ClaimJudge)
    processes = Processes.start(config.device)
    quiet = values.quiet or not processes.is_main
    try:
        with exclusive(Path(config.output)) if processes.is_main else nullcontext():
            rows = evaluate_quality(config, protocol, methods, world, processes, quiet)
            processes.wait()
        if processes.is_main:
            _report(config, rows, values.json)
    finally:
        processes.leave()
    return 0


def load_protocol(preset: str) -> Protocol:
    """A shipped protocol by name, or one of a YAML file.

    Raises:
        UserError: there is none, or a field is unknown or wrong.
    """
    from metrics.errors import DataError
    from metrics.protocol import Protocol

    given = preset.endswith((".yaml", ".yml"))
    path = Path(preset) if given else find_config(f"evaluate/{preset}")
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"preset: {path} does not exist") from None
    except yaml.YAMLError as error:
        raise UserError(f"preset: {path} is not YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise UserError(f"preset: {path} must hold the fields of a protocol")
    try:
        return Protocol.from_dict({"name": path.stem, **content})
    except (DataError, TypeError) as error:
        raise UserError(f"preset: {path}: {error}") from error


def _report(config: EvaluateConfig, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Write scores.json, the tables and the plot; print what was asked for."""
    from metrics.plots import plot_quality
    from metrics.tables import latex_quality, markdown_quality

    folder = Path(config.output)
    write_json_atomic(folder / "scores.json", rows)
    extractor = rows[0]["protocol"]["extractor"]
    table = markdown_quality(rows, extractor)
    write_atomic(folder / "table.md", table + "\n")
    write_atomic(folder / "table.tex", latex_quality(rows, extractor) + "\n")
    try:
        write_atomic(folder / "plot.png", plot_quality(rows))
    except ModuleNotFoundError:
        print('vargen: warning: no plot, since matplotlib is missing; pip install "vargen[eval]"', file=sys.stderr)
    print(json.dumps(rows) if as_json else f"{table}\n\nwritten to {folder / 'scores.json'}")
