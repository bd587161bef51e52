"""The cost and the gain of a decoding method: figures of many calls, and the comparison with plain decoding.

Belongs here: definitions. Does not belong here: running anything, tables, and quality.

A *call* makes a batch of pictures together; in continuous batches, where pictures take each other's places, it is
pictures that are kept together, and has the mean of their passes and the sum of their shares of the seconds.

A *target pass* is one forward of the target over the batch, prefill included. *Tokens per pass* are per row: tokens
over the passes in which the row took part. *Accepted length* counts drafted tokens that stayed in a verified step,
bonus token excluded; with it, as most papers print it, it is one more.
*Peak memory* is the device's on a GPU, else the whole process's so far.
*Seconds per image* are wall-clock seconds of the whole call, prompt encoder and image decoder included, over its
pictures. *Pass reduction* and *speed-up* divide plain decoding's figure by the method's, on the same prompts, seeds and
batches; of seconds the medians are divided, so that one disturbed call does not decide.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

MEASURED = ("seconds_per_image", "speedup", "phase_seconds", "peak_memory_gib", "achieved")
"""Figures of `summarise` and `achieved` that differ between any two runs: they are measured. Others are counted."""


_COUNTED = ("drafted", "skipped_steps", "skipped_tokens")
"""Counts of a call that are called alike in its trace and in every sum."""


@dataclass
class CallRecord:
    """One call in plain numbers.

    Args:
        seconds: wall clock of the whole call.
        images: pictures it made.
        tokens: of all rows.
        target_passes: forwards of the target over the batch.
        row_passes: passes that rows took part in, summed over rows.
        drafted: drafted tokens the target was asked about, over all rows.
        accepted_histogram: how many verified steps (per row) had 0, 1, 2, ... drafted tokens stay.
        skipped_steps: steps, per row, that took tokens unverified.
        skipped_tokens: tokens taken unverified.
        phase_seconds: seconds by phase of the call.
        rows_fed: tokens that went through the target after the prompt, over all rows, padding included; guidance counts
            once.
        peak_memory: bytes, see above; None where nobody measured it.
    """

    seconds: float
    images: int
    tokens: int
    target_passes: int
    row_passes: int
    drafted: int
    accepted_histogram: list[int]
    skipped_steps: int = 0
    skipped_tokens: int = 0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    rows_fed: int = 0
    peak_memory: int | None = None

    @classmethod
    def from_trace(cls, trace: Mapping[str, Any], seconds: float, peak_memory: int | None = None) -> CallRecord:
        """A record of what `specdecode.trace.DecodeTrace.to_dict` gives, the wall clock and the memory."""
        lengths = [length for row in trace["accepted_lengths"] for length in row]
        histogram = [0] * (max(lengths, default=0) + 1)
        for length in lengths:
            histogram[length] += 1
        return cls(
            seconds=seconds,
            images=trace["batch_size"],
            row_passes=sum(trace["row_passes"]),
            accepted_histogram=histogram,
            **{name: trace[name] for name in ("tokens", "target_passes", *_COUNTED)},
            phase_seconds=dict(trace["phase_seconds"]),
            rows_fed=sum(trace["rows_fed"]) + trace["padding_fed"],
            peak_memory=peak_memory,
        )

    @classmethod
    def of_pictures(cls, pictures: Sequence[CallRecord], waiting: bool = False) -> CallRecord:
        """A batch of pictures from records of each. Its seconds are the sum of theirs, each a picture's share.

        Args:
            pictures: at least one.
            waiting: the batch waits for its slowest picture, and takes its passes. False: they were drawn one in the
                place of another (continuous batches), and nobody waits. The mean of their passes is what a batch takes
                whose pictures end together.
        """
        passes = [each.target_passes for each in pictures]
        return cls(
            **_sums(pictures, "seconds", "images", "tokens", "row_passes", "rows_fed", *_COUNTED),
            target_passes=max(passes) if waiting else round(statistics.fmean(passes)),
            accepted_histogram=_histogram(pictures),
            phase_seconds=_phase_seconds(pictures),
            peak_memory=max((each.peak_memory for each in pictures if each.peak_memory), default=None),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; `CallRecord(**...)` reads them back."""
        return asdict(self)


def summarise(calls: Sequence[CallRecord], plain: Sequence[CallRecord] | None = None) -> dict[str, Any]:
    """The figures of one method over its calls.

    Args:
        calls: of the method, at least one.
        plain: the calls of plain decoding over the same batches in the same order; None leaves the ratios None.

    Raises:
        ValueError: no call, or another number of calls or images in `plain`.
    """
    if not calls:
        raise ValueError("calls must hold at least one call")
    if plain is not None and [call.images for call in plain] != [call.images for call in calls]:
        raise ValueError("plain must hold the same batches as calls: ratios compare the same pictures")
    histogram = _histogram(calls)
    accepted = sum(length * count for length, count in enumerate(histogram)) / max(sum(histogram), 1)
    per_image = seconds_per_image(calls)
    summary: dict[str, Any] = {
        **(sums := _sums(calls, "images", "tokens", "target_passes", "rows_fed", *_COUNTED)),
        "pass_reduction": None,
        "tokens_per_pass": sums["tokens"] / sum(call.row_passes for call in calls),
        "mean_accepted_length": accepted,
        "mean_accepted_length_with_bonus": accepted + 1,
        "accepted_histogram": histogram,
        "seconds_per_image": {"p50": percentile(per_image, 50), "p90": percentile(per_image, 90)},
        "speedup": None,
        "phase_seconds": {name: round(seconds, 4) for name, seconds in _phase_seconds(calls).items()},
        "peak_memory_gib": max((call.peak_memory / 2**30 for call in calls if call.peak_memory), default=None),
    }
    if plain is not None:
        summary["pass_reduction"] = _sums(plain, "target_passes")["target_passes"] / sums["target_passes"]
        summary["speedup"] = percentile(seconds_per_image(plain), 50) / summary["seconds_per_image"]["p50"]
    return summary


def achieved(row: Mapping[str, Any], weight_bytes: int, weights: int, sequences: int) -> dict[str, float] | None:
    """How fast decoding read and multiplied a model's weights; drafters, keys and values are left out.

    Args:
        row: of `summarise`.
        weight_bytes: that a pass reads.
        weights: that a row is multiplied by.
        sequences: that a row is fed as; 2 with guidance.

    Returns:
        Billions of bytes and of operations a second of the phase "decode"; None where nobody measured it.
    """
    seconds = row["phase_seconds"].get("decode")
    if not seconds:
        return None
    return {
        "gb_per_second": row["target_passes"] * weight_bytes / seconds / 1e9,
        "gflop_per_second": 2 * row["rows_fed"] * sequences * weights / seconds / 1e9,
    }


def over_processes(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of the same comparison in several processes as one: medians, and the speed-ups of every process.

    Args:
        runs: by process, one row for each method, in the same order; plain decoding's first.

    Returns:
        A row for each method, that of the process with the median seconds. `speedups` has those of whole calls from the
        worst to the best, `decode_speedups` likewise those of the phase "decode", where it was measured.
    """
    rows = []
    plain = [run[0] for run in runs]
    for same in zip(*runs, strict=True):
        seconds = [row["seconds_per_image"]["p50"] for row in same]
        middle = min(same, key=lambda row: abs(row["seconds_per_image"]["p50"] - statistics.median_low(seconds)))
        speedups = sorted(row["speedup"] for row in same)
        told = {**middle, "speedup": statistics.median(speedups), "speedups": speedups}
        if all(row.get("phase_seconds", {}).get("decode") for row in same):
            decoding = (
                two[0]["phase_seconds"]["decode"] / two[1]["phase_seconds"]["decode"]
                for two in zip(plain, same, strict=True)
            )
            told["decode_speedups"] = sorted(decoding)
        rows.append(told)
    return rows


def _sums(calls: Sequence[CallRecord], *names: str) -> dict[str, Any]:
    """Fields of records, added up over all calls, by name."""
    return {name: sum(getattr(call, name) for call in calls) for name in names}


def _histogram(calls: Sequence[CallRecord]) -> list[int]:
    """How many verified steps of all calls had 0, 1, 2, ... drafted tokens stay."""
    return [sum(steps) for steps in zip_longest(*(call.accepted_histogram for call in calls), fillvalue=0)]


def _phase_seconds(calls: Sequence[CallRecord]) -> dict[str, float]:
    """Seconds of all calls by phase."""
    phases: dict[str, float] = {}
    for call in calls:
        for name, seconds in call.phase_seconds.items():
            phases[name] = phases.get(name, 0.0) + seconds
    return phases


def survival_by_place(histogram: Sequence[int]) -> list[float]:
    """The share of verified steps in which the first drafted token stayed, the first two, and so on.

    Their sum is the mean accepted length. How far it reaches says how long a window or a chain is worth drafting.

    Args:
        histogram: how many verified steps had 0, 1, 2, ... drafted tokens stay.
    """
    steps = max(sum(histogram), 1)
    return [sum(histogram[place:]) / steps for place in range(1, len(histogram))]


def seconds_per_image(calls: Sequence[CallRecord]) -> list[float]:
    """The seconds of a picture's call over the call's pictures, for every picture."""
    return [call.seconds / call.images for call in calls for _ in range(call.images)]


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks; `values` need not be sorted. Raises ValueError for no values, or `percent`
    outside [0, 100]."""
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"percentile needs values and a percentage in [0, 100], got {len(values)} and {percent}")
    if percent == 50:
        return statistics.median(values)
    ordered = sorted(values)
    below, share = divmod((len(ordered) - 1) * percent / 100, 1)
    lower, *upper = ordered[int(below) : int(below) + 2]
    return lower + (upper[0] - lower) * share if upper else lower
