"""`vargen bench`: decoding methods side by side on the same prompts and seeds."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any

from metrics.tables import format_table
from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_WARM_UP, check_numbers
from vargen.base.errors import UserError
from vargen.base.world import find_world
from vargen.commands.arguments import COMPARED_SPLITS, build_parser, check_place, fill, parse
from vargen.jobs.cases import BenchmarkCase, World, fitting_judge, prompt_cases
from vargen.jobs.options import SamplingOptions
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import UNTRAINED, options_by_method, read_method_list, resolve_method
from vargen.methods.vvs.ablations import ABLATIONS, SHARED
from vargen.models.description import ModelDescription, open_model
from vargen.models.options import DTYPES
from vargen.runs.files import own_folder, write_atomic
from vargen.runs.records import own_calls

TASKS = ("image", "video")
_PASSED_ON = ("batch_size", "continuous_batches", "seed", "warm_up", "weighted_by", "weight_dtype")
WEIGHTS = ("B", "L", "XL")
"""Sizes of `weighted_by`; `weighted` has them."""


@dataclass(frozen=True)
class BenchConfig(SamplingOptions):
    """What to compare, and on what.

    Args:
        methods: names of methods or presets, or YAML files of settings, separated by commas. Plain decoding, "ar", is
            added where it is missing: every ratio divides by it. null: ar,jacobi,scd,vvs-jacobi, and for a model with a
            trained drafter eagle-chain,likeness-quality too.
        ablate: "vvs" compares the settings of the paper's ablations instead of methods; `--method_options.vvs.FIELD`
            then sets what all of them share, such as total_tokens (8) and depth (3) of the drafted trees.
        method_options: settings that differ from the defaults, by method, such as `--method_options.eagle.depth 3`.
        prompts: how many prompts; captions of scenes that training never showed.
        prompts_file: these prompts instead: a .txt (one a line), .csv, .tsv (with a column "prompt") or .jsonl file.
            Needed for models that do not draw the project's own scenes.
        split: of the sampled prompts: "heldout" for combinations that training never showed, "all" for any.
        class_labels: for a class-conditional model, instead of prompts.
        batch_size: pictures drawn at once.
        continuous_batches: give a finished picture's place in the batch to the next at once, as `vargen generate` does,
            where the family of models can: a picture's passes are then its own, and its seconds those of decoding it.
            false: a batch waits for its slowest.
        weighted_by: LlamaGen-B, LlamaGen-L or LlamaGen-XL: every pass of the model also goes through a network of that
            size with random weights, and every pass of a drafter through one of the size that drafts for it. The model
            decides every token; seconds are what they are where a pass costs that much. Tables and records say so.
        weight_dtype: precision of those networks: float32, bfloat16 or float16; "auto" is bfloat16 where the machine
            multiplies in it.
        warm_up: calls of each method that do not count, before the first that does.
        judge: have a recogniser of scenes check the pictures against their prompts, where the model draws scenes.
        clip: folder of a CLIP model of transformers that scores pictures against their prompts; null leaves it out.
        images: folder for the pictures, METHOD/000000.png; null keeps none.
        json: file for the rows; "-" prints them to standard output, and nothing else. What has been measured is kept
            beside it in FILE.calls.jsonl until the end, and the same command goes on from there.
        plot: PNG file for a plot of judge accuracy against speed-up (needs the `eval` extra).
    """

    methods: str | None = None
    ablate: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    prompts: int = 64
    prompts_file: str | None = None
    split: str = "heldout"
    class_labels: list[int] = field(default_factory=list)
    batch_size: int = 1
    continuous_batches: bool = False
    weighted_by: str | None = None
    weight_dtype: str = "auto"
    warm_up: int = 1
    judge: bool = True
    clip: str | None = None
    images: str | None = None
    json: str | None = None
    plot: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(
            self, {"prompts": (1, MAX_PICTURES), "batch_size": (1, MAX_BATCH_SIZE), "warm_up": (0, MAX_WARM_UP)}
        )
        if self.weight_dtype not in DTYPES:
            raise UserError(f"weight_dtype must be one of {', '.join(DTYPES)}, got {self.weight_dtype!r}")
        if self.weighted_by is not None and self.weighted_by.removeprefix("LlamaGen-") not in WEIGHTS:
            sizes = ", ".join(f"LlamaGen-{size}" for size in WEIGHTS)
            raise UserError(f"weighted_by must be one of {sizes}, got {self.weighted_by!r}")
        if self.ablate not in (None, *ABLATIONS):
            raise UserError(f"ablate must be one of {', '.join(ABLATIONS)}, got {self.ablate!r}")
        if self.split not in COMPARED_SPLITS:
            raise UserError(f"split must be one of {', '.join(COMPARED_SPLITS)}, got {self.split!r}")
        for name in ("json", "plot"):
            check_place(name, getattr(self, name))
        if self.plot is not None and importlib.util.find_spec("matplotlib") is None:
            raise UserError('plot: matplotlib is not installed; run pip install "vargen[eval]"')

    def contenders(
        self,
        resolve: Callable[[str, Mapping[str, Any] | None], MethodConfig] = resolve_method,
        usual: str = UNTRAINED,
    ) -> dict[str, MethodConfig]:
        """The methods by label, plain decoding first.

        Args:
            resolve: what knows the names, such as a model's `method_resolver`. What is ablated starts from the method's
                own defaults, whatever the model prefers.
            usual: what is compared where no methods are named.

        Raises:
            UserError: an unknown method, or options for one that is not compared.
        """
        if self.ablate is not None:
            return {"ar": resolve_method("ar"), **self._ablations(self.ablate)}
        names = usual if self.methods is None else self.methods
        return {"ar": resolve_method("ar"), **read_method_list(names, self.method_options, "methods", resolve)}

    def studies(self) -> dict[str, list[str]]:
        """Which methods stand in one table, by its title; plain decoding stands in each. Empty: there is one table."""
        if self.ablate is None:
            return {}
        return {title: ["ar", *variants] for title, variants in ABLATIONS[self.ablate].items()}

    def _ablations(self, name: str) -> dict[str, MethodConfig]:
        shared = options_by_method(self.method_options)
        if unknown := set(shared) - {name}:
            raise UserError(f"method_options: {unknown.pop()!r} is not what is ablated ({name})")
        return {
            label: resolve_method(name, {**SHARED[name], **shared.get(name, {}), **options})
            for variants in ABLATIONS[name].values()
            for label, options in variants.items()
        }


def run(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the rows. `--task video` compares answers about videos instead."""
    arguments, task = _take_task(arguments)
    if task == "video":
        from vargen.commands.bench_video import run as run_video

        return run_video(arguments)
    parser = build_parser(
        "bench",
        "Run several decoding methods on the same prompts and seeds, interleaved, after warm-up. Figures are of this "
        "machine; keep others off it meanwhile.",
        BenchConfig,
        epilog="`vargen bench --task video --help` explains the comparison of answers about videos. Target passes "
        "count the prefill; seconds are of whole calls, prompt encoder and image decoder included; docs/methods.md "
        "says what each figure means.",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    values = parse(parser, arguments)
    config = fill(BenchConfig, values)
    model = open_model(config)
    methods = config.contenders(model.resolve_method, model.usual_methods)

    from vargen.jobs.benchmark import benchmark_model

    world = find_world()
    cases = _cases(config, model, world)
    judge = None
    if config.judge and any(case.claims is not None for case in cases):
        judge = fitting_judge(model, world.judge)
    images = None if config.images is None else Path(config.images)
    with (
        own_calls(config.json) as calls,
        own_folder(images, map(escape, methods), "images") if images else nullcontext(),
    ):
        rows = benchmark_model(
            model,
            methods,
            cases,
            config,
            judge=judge,
            clip=None if config.clip is None else Path(config.clip),
            calls=calls,
            images=images,
            quiet=values.quiet,
            **{name: getattr(config, name) for name in _PASSED_ON},
            **model.sampling(**config.sampling),
        )
        _report(config, rows)
        if not model.draws_scenes:
            _say_what_is_missing(config)
    return 0


def _take_task(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The other arguments, and which options they are of."""
    rest, task = list(arguments), "image"
    for place, argument in enumerate(rest):
        if argument == "--task" and place + 1 < len(rest):
            task = rest[place + 1]
            del rest[place : place + 2]
            break
        if argument.startswith("--task="):
            task = argument.removeprefix("--task=")
            del rest[place]
            break
    if task not in TASKS:
        raise UserError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    return rest, task


def _report(config: BenchConfig, rows: list[dict[str, Any]]) -> None:
    text = json.dumps(rows, indent=1) + "\n"
    if config.json == "-":
        print(text, end="")
    else:
        if config.weighted_by is not None:
            print(f"Every pass is weighted by {rows[0]['weighted_by']}; the tokens are the model's own.\n")
        for title, labels in (config.studies() or {"": [row["method"] for row in rows]}).items():
            print(f"\n{title}\n" if title else "", end="")
            print(format_table([row for row in rows if row["method"] in labels]))
        if config.json is not None:
            write_atomic(config.json, text)
    if config.plot is not None:
        from metrics.plots import plot_tradeoff

        title = f"{rows[0]['model']}, batch {rows[0]['batch_size']}, {rows[0]['images']} prompts"
        try:
            write_atomic(config.plot, plot_tradeoff(rows, title=title))
        except ValueError:
            print("vargen: warning: plot: nothing was judged, so there is no quality to plot", file=sys.stderr)


def _say_what_is_missing(config: BenchConfig) -> None:
    """To a user whose model draws what the judge does not know."""
    if config.judge:
        clip = "CLIP score stands for quality" if config.clip else "name a CLIP model with --clip for a score"
        print(f"vargen: the judge knows vargen's own scenes alone, so nothing was judged; {clip}", file=sys.stderr)


def _cases(config: BenchConfig, model: ModelDescription, world: World | None) -> list[BenchmarkCase]:
    if model.num_classes is not None:
        if not config.class_labels:
            raise UserError("class_labels must be given: the model is class-conditional")
        return [BenchmarkCase(class_label=label) for label in config.class_labels]
    if config.class_labels:
        raise UserError("class_labels cannot be used: the model is text-conditional; give prompts")
    return prompt_cases(model, world, config.prompts_file, config.prompts, config.seed, config.split)
