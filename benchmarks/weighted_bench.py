"""Decoding methods side by side where a forward pass costs what a large model's costs.

Works as `vargen bench` on the shipped model, but every forward pass also goes through a network of the size of
`--weighted_by` with random weights (`weighted.py`). The shipped model decides every token. Seconds are those of a model
whose forward passes cost that much; quality is that of the shipped model.

    python benchmarks/weighted_bench.py --weighted_by LlamaGen-XL --methods ar,jacobi,eagle-chain --prompts 6 \\
        --output weighted

The folder of `--output` gets results.json. Measured calls are kept in it until the end, and the same command continues.
With `--apart` each method works by itself and is written at once. One that fails is told, and the others go on.
`--compile eager` makes steps graphs of torch's own kernels, which a GPU captures; `--compile inductor` fuses them, too.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from weighted import SIZES, WeightedPipeline, WeightNetworks

from metrics.provenance import describe_hardware
from metrics.tables import format_table
from scenes.cases import scene_cases
from scenes.judge.claim_judge import ClaimJudge
from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import COMPILE_BUCKET, DTYPES, OWN_QUANTIZATION, ModelOptions
from vargen.jobs.benchmark import run_benchmark
from vargen.jobs.cases import fitting_judge, told_cases
from vargen.jobs.comparison import describe_run
from vargen.jobs.stopwatch import in_processes
from vargen.methods.catalogue import read_method_list, resolve_method
from vargen.models.description import open_model
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.loading import load_pipeline
from vargen.runs.files import write_atomic
from vargen.runs.records import Records, own_calls


def main() -> None:
    """Measure, print a table, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weighted_by", default="LlamaGen-XL", help=f"size of the networks: {', '.join(SIZES)}")
    parser.add_argument("--weight_dtype", default="auto", choices=DTYPES, help="precision of the networks")
    parser.add_argument("--methods", help="methods or presets, separated by commas; ar is added where it is missing")
    parser.add_argument("--num_prompts", type=int, default=64, help="number of held-out prompts")
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--warm_up", type=int, default=1, help="calls of each method that do not count")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="fresh processes, one after the other")
    parser.add_argument("--output", help="folder for results.json")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    parser.add_argument("--apart", action="store_true", help="one method after the other, not in turns")
    parser.add_argument(
        "--compile", choices=("eager", "inductor"), help="backend that makes steps graphs; none: eagerly"
    )
    parser.add_argument("--model", help="folder of a LlamaGen model; the shipped one without it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=DTYPES, help="precision of the shipped model")
    parser.add_argument("--quantization", choices=OWN_QUANTIZATION, help="of the model and of the network beside it")
    parser.add_argument("--draft_quantization", choices=OWN_QUANTIZATION, help="of what drafts, likewise")
    arguments = parser.parse_args()
    try:
        if arguments.processes > 1:
            rows = in_processes([__file__], sys.argv[1:], arguments.processes, arguments.output)
            print(json.dumps(rows, indent=1) if arguments.json else format_table(rows))
        else:
            measure(arguments)
    except UserError as error:
        parser.error(str(error))


def measure(arguments: argparse.Namespace) -> None:
    """`main` with its arguments."""
    loading = ("model", "device", "dtype", "quantization", "draft_quantization")
    options = ModelOptions(**{name: getattr(arguments, name) for name in loading})
    model = open_model(options)
    names = arguments.methods or model.usual_methods
    methods = {"ar": resolve_method("ar"), **read_method_list(names, {}, "methods", model.resolve_method)}
    cases = scene_cases(arguments.num_prompts, arguments.seed)
    pipeline, _, dtype = load_pipeline(model, options)
    if not isinstance(pipeline, LlamaGenPipeline):
        raise UserError("model must be of the LlamaGen family: the networks have LlamaGen's sizes")
    if arguments.compile is not None:
        pipeline.compile(arguments.compile, bucket=2 * COMPILE_BUCKET)
    weight_dtype = getattr(
        torch, fast_dtype(pipeline.device) if arguments.weight_dtype == "auto" else arguments.weight_dtype
    )
    networks = WeightNetworks.of_size(arguments.weighted_by, pipeline.transformer, weight_dtype)
    pipeline = WeightedPipeline.of(pipeline, networks)
    shared = {"batch_size": arguments.batch_size, "seed": arguments.seed}
    sampling = model.sampling(guidance_scale=None, temperature=None, top_k=None, top_p=None)
    settings = describe_run(
        methods,
        weights_fingerprint(model.folder),
        cases=told_cases(cases),
        dtype=dtype,
        device=str(pipeline.device),
        weighted_by=networks.label,
        compiled=arguments.compile,
        **options.identity,
        **shared,
        **sampling,
    )
    told = {
        "batch_size": arguments.batch_size,
        "dtype": dtype,
        "model": f"{model.name}, weighted by {networks.label}",
        "weighted_by": networks.label,
        "compiled": arguments.compile,
        **options.identity,
    }
    judge = fitting_judge(model, ClaimJudge)
    with own_calls(arguments.output) as calls:
        records = Records(calls, settings)

        def measured(chosen: dict[str, Any]) -> list[dict[str, Any]]:
            warm_up = arguments.warm_up
            rows = run_benchmark(
                pipeline, chosen, cases, warm_up=warm_up, judge=judge, records=records, **shared, **sampling
            )
            rows = [{**row, **told} for row in rows]
            if arguments.output is not None:
                write_atomic(Path(arguments.output) / "results.json", json.dumps(rows, indent=1) + "\n")
            return rows

        done: dict[str, Any] = {}
        for label, method in methods.items() if arguments.apart else ():
            try:
                measured({**done, label: method})
                done[label] = method
            except Exception as error:  # of a method that this device cannot do, say
                print(f"{label} is left out: {type(error).__name__}: {reason_of(error)}", file=sys.stderr)
        rows = measured(done if arguments.apart else methods)
    text = json.dumps(rows, indent=1) + "\n"
    if arguments.json:
        sys.stdout.write(text)
        return
    place = describe_hardware()
    print(f"On {place['processor' if place['device'] == 'cpu' else 'device']}, every forward pass is weighted by")
    print(f"{networks.label}; the tokens are the model's own.\n")
    print(format_table(rows))


def fast_dtype(device: torch.device) -> str:
    """bfloat16 on a GPU and on a CPU that multiplies in it, else float32."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    native = torch.backends.mkldnn.is_available() and supported is not None and supported()
    return "bfloat16" if device.type == "cuda" or native else "float32"


if __name__ == "__main__":
    main()
