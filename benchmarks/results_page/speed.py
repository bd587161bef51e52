"""What methods and passes cost: benches, kernels, compiled and continuous decoding, other families, memory.

Belongs here: tables of seconds, passes and bytes of picture models. Does not belong here: what is drawn
(`pictures.py`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from metrics.tables import format_never_verified
from results_page.records import (
    DRAFTER_RUN,
    TRANSFORMER_RUN,
    Columns,
    Record,
    bench_title,
    of_method,
    source_line,
    table,
    table_of,
)


def decoding_section(records: Sequence[Record]) -> str:
    columns: Columns = {
        "model": "{model}",
        "device": "{device} {dtype}",
        "batch": "{batch_size}",
        "ms per step": "{milliseconds_per_step:.2f}",
        "GB/s of weights": "{achieved_gb_per_second:.1f}",
        "ms to stream them once": "{streaming_milliseconds:.2f}",
        "ratio": "{ratio_to_streaming:.1f}",
    }
    return "\n\n".join(
        [
            "## Plain decoding",
            "One step makes one token per picture, with guidance (two rows per picture).",
            table_of(records, columns),
            source_line(records[-1], TRANSFORMER_RUN),
        ]
    )


def bench_table(rows: Sequence[Record]) -> str:
    """Methods side by side, as `vargen bench` measured them."""
    columns: Columns = {
        "method": "{method}",
        "exact": lambda row: "yes" if row["exact"] else "no",
        "target passes a call": lambda row: f"{row['target_passes'] * row['batch_size'] / row['images']:.0f}",
        "fewer passes": "{pass_reduction:.2f}x",
        "tokens a pass": "{tokens_per_pass:.2f}",
        "accepted": "{mean_accepted_length:.2f}",
        "skipped steps": lambda row: f"{row['skipped_steps'] / row['images']:.1f}",
        "never verified": format_never_verified,
        "s a picture, p50 (p90)": "{seconds_per_image[p50]:.2f} ({seconds_per_image[p90]:.2f})",
        "speed-up": "{speedup:.2f}x",
        "judge, % of claims": _judged,
    }
    return table_of(rows, columns)


def _judged(row: Record) -> str:
    """What the judge said of a bench's pictures, where it was asked: percent of claims, and their interval."""
    if row["judge_accuracy"] is None:
        return "-"
    low, high = row["judge_accuracy_interval"]
    return f"{100 * row['judge_accuracy']:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def bench_caption(rows: Sequence[Record]) -> str:
    """What a bench was measured on."""
    row = rows[0]
    heavy = ""
    if "weighted_by" in row:
        heavy = (
            f"Every pass, those of heads too, also goes through a network as large as {row['weighted_by']}; the tokens "
            "are the shipped model's own. "
        )
    return (
        f"{heavy}{row['images']} held-out prompts, {row['dtype']}, batch {row['batch_size']}, the model's default "
        "sampling; all methods draw the same prompts with the same seeds, in turns. "
        f"{source_line(row, TRANSFORMER_RUN, DRAFTER_RUN)}"
    )


def speculation_section(records: dict[str, list[Record]], overhead: Record | None, equality: Record | None) -> str:
    parts = [
        "## Decoding methods",
        "What the figures mean is in [methods.md](methods.md). Speed-up is wall clock of whole calls against plain "
        "decoding on the same code path.",
    ]
    for name, rows in records.items():
        parts += [bench_title(name), bench_table(rows), bench_caption(rows)]
    if overhead:
        header = ["method", "steps", "outside forwards", *overhead["rows"][0]["milliseconds_per_step"]]
        cells = [
            [
                row["method"],
                f"{row['steps']:,}",
                f"{100 * row['outside_share']:.1f} %",
                *(f"{value:.2f}" for value in row["milliseconds_per_step"].values()),
            ]
            for row in overhead["rows"]
        ]
        parts += [
            "### Where a step's time goes",
            "Milliseconds per step, one picture at a time, and the share that is neither the target's nor the "
            "drafter's forward.",
            table([name.replace("_", " ") for name in header], cells),
            source_line(overhead, TRANSFORMER_RUN, DRAFTER_RUN),
        ]
    if equality:
        columns: Columns = {
            "method": "{method}",
            "batch": "{batch_size}",
            "pictures": "{prompts}",
            "equal": "{equal}",
            "near ties": "{near_ties}",
            "other": "{faults}",
        }
        parts += [
            "### Greedy decoding, token for token",
            "Pictures whose 256 tokens all equal plain decoding's, fp32; *near ties* differ first where the two best "
            f"logits lie within {equality['near_tie']:g} of each other, where another batch shape may round either "
            "way.",
            table_of(equality["rows"], columns),
            source_line(equality, TRANSFORMER_RUN, DRAFTER_RUN),
        ]
    return "\n\n".join(parts)


def fronts_section(records: Iterable[Record]) -> str:
    """What `vargen tune` measured.

    Args:
        records: what `vargen tune` wrote to pareto.json.
    """
    parts = [
        "## What settings cost",
        "`vargen tune` on held-out prompts: of all settings that were measured those that no other one beats in "
        "seconds without losing in what the judge finds right, and the method as it comes. An exact method's pictures "
        "are plain decoding's, so of it all windows are shown. Each table is one process's, and seconds of so small a "
        "model differ from one process to the next ([passes](passes.md)); of 64 prompts' claims three points are "
        "chance.",
    ]
    for record in records:
        usual = record["measured"][0]  # where every search begins
        default, kept = usual["settings"], [point["settings"] for point in record["front"]]
        alike = len({point["quality"] for point in record["measured"]}) == 1
        shown = [point for point in record["measured"] if alike or point["settings"] in kept or point is usual]
        columns: Columns = {
            "speed-up": "{speedup:.2f}x",
            "fewer passes": "{pass_reduction:.2f}x",
            "never verified": lambda point: f"{100 * point['never_verified']:.0f} %",
            "judge, % of claims": lambda point: f"{100 * point['quality']:.1f}",
            "settings": lambda point, default=default: _differences(point["settings"], default),
        }
        parts += [
            f"### `{default['method']}`, batch {record['batch_size']}",
            table_of(sorted(shown, key=lambda point: -point["speed"]), columns),
        ]
        if not alike:
            parts += ["Of the same settings those that no other one beats in passes:"]
            parts += [table_of(_front_of_passes(record["measured"]), columns)]
        parts.append(
            f"{record['trials']} settings, {record['prompts']} prompts; plain decoding: "
            f"{100 * record['plain_quality']:.1f} % of claims. {source_line(record, *of_method(default))}"
        )
    return "\n\n".join(parts)


def _front_of_passes(measured: Iterable[Record]) -> list[Record]:
    """Settings that nothing with as few passes beats in quality, fewest passes first."""
    front: list[Record] = []
    for point in sorted(measured, key=lambda point: (-point["pass_reduction"], -point["quality"])):
        if not front or point["quality"] > front[-1]["quality"]:
            front.append(point)
    return front


def _differences(settings: Record, default: Record) -> str:
    """What differs from the method as it comes."""
    told = {name: value for name, value in settings.items() if value != default.get(name)}
    words = [f"{name} {value:.2f}" if isinstance(value, float) else f"{name} {value}" for name, value in told.items()]
    return ", ".join(words) or "**as it comes**"


def compiled_section(record: Record) -> str:
    """Compiled passes beside eager ones."""
    columns: Columns = {
        "model": "{model}",
        "precision": "{dtype}",
        "batch": "{batch_size}",
        "eager in": lambda row: "own kernels" if row["kernels"] == "own" else "torch",
        "method": "{method}",
        "eager, ms a pass": "{eager_milliseconds_per_pass:.2f}",
        "compiled": "{compiled_milliseconds_per_pass:.2f}",
        "gain": "{gain:.2f}x",
        "pictures that differ": "{different_pictures} of {pictures}",
    }
    window = record["rows"][0]["window"]
    return "\n\n".join(
        [
            "## Compiled passes",
            "Compiled passes beside eager ones, in turns, the same seeds, compiling left out; `jacobi` feeds a window "
            f"of {window} guesses. With random weights milliseconds are those of a model of that size, its pictures "
            "are noise. A picture differs where two tokens were about as likely and rounding chose.",
            table_of(record["rows"], columns),
            source_line(record, TRANSFORMER_RUN),
        ]
    )


def families_section(record: Record) -> str:
    """Families of transformers and diffusers, random models of them, against their own library."""
    rows: list[Record] = record["rows"]
    kinds = {kind: [row for row in rows if row["row"] == kind] for kind in ("speed", "planted", "memory")}

    def where(row: Record) -> list[str]:
        return [row["family"], row["dtype"], str(row["batch_size"])]

    def seconds(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.2f}"

    first = rows[0]
    parts = ["## Families of transformers and diffusers, against their own library"]
    if kinds["speed"]:
        shown = kinds["speed"]
        sizes = sorted({round(row["parameters"] / 1e6) for row in shown})
        parts += [
            f"Random models of {' to '.join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))} million "
            f"parameters, the classes of the library unmodified, {shown[0]['tokens']} tokens a picture (cut short: "
            "whole ones have 576 and more), sampled; the library's `generate` and `ar` here in turns, in one process, "
            "here with linear layers in the project's kernels, the library without, "
            f"median seconds of {first['settings']['repeats']}, prompts included, pixels not.",
            table(
                ["family", "precision", "batch", "library, s", "here, s", "times as fast"],
                [
                    [
                        *where(row),
                        seconds(row["seconds_library"]),
                        seconds(row["seconds_ours"]),
                        f"{row['speedup']:.2f}",
                    ]
                    for row in shown
                ],
            ),
        ]
    if kinds["planted"]:
        share = kinds["planted"][0]["planted_share"]
        parts += [
            f"*Planted*: {100 * share:.0f} % of the probability is given to a known picture at every place, so that "
            "guesses are right about so often. This says what windows cost on these models, not what others accept.",
            table(
                ["family", "precision", "batch", "passes, `ar`", "`scd`", "seconds, `ar`", "`scd`", "times as fast"],
                [
                    [
                        *where(row), str(row["passes_ar"]), str(row["passes_scd"]), seconds(row["seconds_ar"]),
                        seconds(row["seconds_scd"]), f"{row['speedup']:.2f}",
                    ]
                    for row in kinds["planted"]
                ],
            ),
        ]  # fmt: skip
    if kinds["memory"]:
        parts += [
            f"Memory beyond what the process held before drawing one picture of {kinds['memory'][0]['tokens']} tokens, "
            "at its peak; a process each. The window's target is planted, so that it takes few passes.",
            table(
                ["family", "precision", "way", "MiB beyond the model"],
                [
                    [
                        row["family"], row["dtype"], f"`{row['way']}`",
                        f"{(row['bytes_peak'] - row['bytes_before']) / 2**20:.0f}",
                    ]
                    for row in kinds["memory"]
                ],
            ),
        ]  # fmt: skip
    return "\n\n".join([*parts, source_line(record)])


def continuous_section(rows: Sequence[Record]) -> str:
    """Pictures an hour where rows take each other's places, over batches that wait for their slowest."""
    lines = [
        [
            row["method"],
            str(row["batch_size"]),
            str(row["pictures"]),
            *(
                f"{row[way][figure]:,}"
                for figure in ("pictures_an_hour", "passes_per_batch_of_pictures", "latency_seconds_p50")
                for way in ("fixed", "continuous")
            ),
            f"{row['speedup']:.2f}",
            str(row["pictures_that_differ"]),
        ]
        for row in rows
    ]
    header = ["method", "batch", "pictures", "an hour, fixed", "continuous", "passes a batch, fixed", "continuous"]
    header += ["latency s, fixed", "continuous", "speed-up", "other tokens"]
    return "\n\n".join(
        [
            "## Continuous batches",
            "A finished picture's place goes to the next prompt at once. Both ways draw the same prompts and seeds in "
            "turns. Latency is a picture's own time (fixed: that of its batch). At the end of so few pictures rows "
            "idle, which in thousands is of no account; prefills of rows that join count as passes.",
            table(header, lines),
            source_line(rows[0], TRANSFORMER_RUN),
        ]
    )


def passes_section(record: Record) -> str:
    """What a pass costs, by model, precision, tokens and length, with kernels of our own and without."""

    def time_of(row: Record, way: str) -> str:
        return f"{row['median_ms'][way]:.1f}" if way in row["median_ms"] else "-"

    def share_of(row: Record, way: str, of: str = "bandwidth_share") -> str:
        return f"{100 * row[of][way]:.0f}" if way in row.get(of, {}) else "-"

    rows = sorted(
        record["rows"], key=lambda row: (row["model"], row["dtype"], row["batch"], row["length"], row["tokens"])
    )
    cells = [
        [
            row["model"], row["dtype"], str(row["batch"]), str(row["tokens"]), str(row["length"]),
            time_of(row, "plain"), time_of(row, "auto"), time_of(row, "int8"), time_of(row, "int8-dynamic"),
            time_of(row, "int4"),
            f"{row['streaming_ms']:.1f}", share_of(row, "plain"), share_of(row, "auto"),
            f"{row['arithmetic_ms']['auto']:.1f}" if "arithmetic_ms" in row else "-",
            share_of(row, "auto", "roof_share"),
            f"{row['cache_bytes'] / 2**20:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    header = [
        "model",
        "precision",
        "pictures",
        "tokens of each",
        "tokens before",
        "torch, ms",
        "own kernels, ms",
        "int8, ms",
        "int8-dynamic, ms",
        "int4, ms",
    ]
    header += ["streaming the weights, ms", "share of bandwidth, torch, %", "own kernels, %"]
    header += ["arithmetic, ms", "share of the roof, own kernels, %", "cache, MiB"]
    return "\n\n".join(
        [
            "## Passes",
            "One pass of guided pictures (two rows each), median milliseconds, the ways of a line in turns. Models "
            "with random weights have the named geometry and draw nothing. Streaming is the weights' bytes at the "
            "bandwidth that a plain sum reached in the same minute; it differs between lines because the machine's "
            "does. Arithmetic is what all products would take at the speed of products on registers alone "
            "(`benchmarks/arithmetic.cpp`), and the roof is the greater of the two. In int8 and "
            "int4 are the weights of the decoder's layers, for the own kernels (`--quantization`), with int8-dynamic "
            "also what is fed to them. "
            "[docs/passes.md](passes.md) says what the kernels are. Measured by `benchmarks/passes.py`.",
            table(header, cells),
            source_line(record),
        ]
    )


def reference_section(record: Record) -> str:
    """One token by the public LlamaGen code and by ours."""
    ways = {"reference": "public code, ms", "plain": "torch, ms", "auto": "own kernels, ms", "int4": "int4, ms"}
    cells = [
        [
            row["model"], row["dtype"], *(f"{row['median_ms'][way]:.1f}" for way in ways),
            f"{row['median_ms']['reference'] / row['median_ms']['auto']:.1f}x",
            f"{100 * row['bandwidth_share']['auto']:.0f}",
        ]
        for row in record["rows"]
    ]  # fmt: skip
    header = ["model", "precision", *ways.values(), "own kernels over public code", "share of bandwidth, own, %"]
    return "\n\n".join(
        [
            "### Beside the public LlamaGen code",
            "One guided token by a checkout of the public code (its `decode_one_token`) and by this project, in turns, "
            "random weights, by `benchmarks/passes.py --reference`. Milliseconds compare within a line only: the "
            "memory of the hour decides them.",
            table(header, cells),
            source_line(record),
        ]
    )


def generate_memory_section(record: Record) -> str:
    """Peak memory of a batch of large pictures against what there must be."""
    parts = ("weights", "cache", "step", "needed", "peak")
    cells = [
        [
            f"`{row['way'].split()[0]}`", row["way"].split()[1], row["dtype"],
            *(f"{row[f'bytes_{part}'] / 2**20:,.0f}" for part in parts), f"{row['ratio']:.2f}",
        ]
        for row in record["rows"]
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"### Memory of {record['batch_size']} pictures of {record['tokens']:,} tokens",
            f"{record['model']}, random weights, guided, at once; MiB over what the process held after its imports, a "
            "process each. Needed are weights, keys and values of every slot, and the largest step: logits, or what "
            "the tokenizer takes to make pixels of one picture. Measured by `benchmarks/generate_memory.py`.",
            table(["method", "until", "precision", *parts, "peak over needed"], cells),
            source_line(record),
        ]
    )
