"""How much sooner pictures are drawn when guidance ends before they do, in turns with plain decoding guided to the end.

    python benchmarks/guided_seconds.py --batch_size 8 --processes 10

The shipped model, one thread for each core. What the pictures lose is `rows_side_by_side.py`'s to say, by
labels such as `zipar 4, 12 in rows 4 to 9, 128 guided`. Writes results.json to the folder of --output.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from metrics.tables import format_table
from scenes.cases import scene_cases
from specdecode.kernels.build import kind
from vargen.base.errors import UserError
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import ModelOptions
from vargen.jobs.benchmark import build_rows
from vargen.jobs.calls import call_pipeline
from vargen.jobs.cases import told_cases
from vargen.jobs.comparison import compare, describe_run
from vargen.jobs.stopwatch import in_processes
from vargen.methods.catalogue import resolve_method
from vargen.models.description import open_model
from vargen.pipelines.loading import load_pipeline
from vargen.runs.files import write_atomic
from vargen.runs.records import Records, own_calls

GUIDED = {
    **dict.fromkeys(("ar", "rows-batch"), (None, 128, 96)),
    **dict.fromkeys(("rows-quality", "rows-fast"), (None, 128)),
}
"""By method, how many tokens of 256 have guidance, None for all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_prompts", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--processes", type=int, default=1, help="fresh processes, one after the other")
    parser.add_argument("--output", help="folder for results.json")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of a table")
    arguments = parser.parse_args()
    try:
        if arguments.processes > 1:
            rows = in_processes([__file__], sys.argv[1:], arguments.processes, arguments.output)
        else:
            rows = measure(arguments)
    except UserError as error:
        parser.error(str(error))
    print(json.dumps(rows, indent=1) if arguments.json else format_table(rows))


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One process's rows, by `METHOD` and `METHOD, N guided`."""
    settings = {
        method if guided is None else f"{method}, {guided} guided": (resolve_method(method), guided)
        for method, counts in GUIDED.items()
        for guided in counts
    }
    options = ModelOptions(dtype=arguments.dtype, device="cpu")
    model = open_model(options)
    pipeline, _, dtype = load_pipeline(model, options)
    cases, size = scene_cases(arguments.num_prompts), arguments.batch_size
    sampling = model.sampling(guidance_scale=None, temperature=None, top_k=None, top_p=None)
    firsts = range(0, len(cases), size)
    methods = {label: method for label, (method, _) in settings.items()}
    identity = describe_run(
        methods,
        weights_fingerprint(model.folder),
        guided={label: guided for label, (_, guided) in settings.items()},
        cases=told_cases(cases),
        batch_size=size,
        dtype=dtype,
    )

    def call(setting: tuple[Any, int | None], number: int) -> Any:
        first = firsts[number]
        part = cases[first : first + size]
        return call_pipeline(pipeline, setting[0], part, first, guided_tokens=setting[1], **sampling)[1]

    def keep(label: str, number: int, record: Any) -> dict[str, Any]:
        return {"call": record.to_dict(), "claims": {}}

    with own_calls(arguments.output) as calls:
        records = Records(calls, identity)
        compare(settings, len(firsts), call, keep, warm_up=1, records=records, shown=None)
        told = {"batch_size": size, "dtype": dtype, "model": model.name, "kernels": kind()}
        rows = [
            {**row, "guided_tokens": settings[row["method"]][1], **told}
            for row in build_rows(methods, records, len(firsts))
        ]
        if arguments.output is not None:
            write_atomic(Path(arguments.output) / "results.json", json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
