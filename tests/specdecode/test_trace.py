"""The reported numbers against their definitions, counted by hand."""

import json
from types import SimpleNamespace

import pytest
import torch

from specdecode.trace import DecodeTrace, StepRecord, TokenOrigin


def step(
    active: list[bool], drafted: list[int], accepted: list[int], emitted: list[int], skipped: list[int] | None = None
) -> StepRecord:
    skipped = [0] * len(active) if skipped is None else skipped
    return StepRecord(torch.tensor([active, drafted, accepted, emitted, skipped]).long())


def test_counts_by_hand():
    """Row 0 takes three steps, row 1 two; row 1 ends by a stop token among its accepted ones."""
    trace = DecodeTrace(2)
    trace.record_prefill()
    trace.record(step([True, True], [4, 4], [2, 0], [3, 1]))
    trace.record(step([True, True], [4, 4], [4, 3], [5, 3]))
    trace.record(step([True, False], [1, 0], [0, 0], [1, 0]))
    assert trace.target_passes == 4
    assert trace.row_passes == [4, 3]
    assert trace.row_tokens == [10, 5] and trace.tokens == 15
    assert trace.drafted == 17
    assert trace.accepted_lengths == [[2, 4, 0], [0, 3]]
    assert trace.mean_accepted_length == pytest.approx(9 / 5)
    assert trace.mean_accepted_length_with_bonus == pytest.approx(13 / 5)
    assert trace.tokens_per_pass == pytest.approx(15 / 7)


def test_padding_is_fed_and_passes_without_rows_are_none():
    """Passes of five, seven and two token rows a row, and one that steps made into graphs make too late."""
    steps = [step([True, True], [4, 4], [2, 0], [3, 1]), step([True, True], [4, 1], [4, 1], [5, 2], skipped=[0, 2])]
    steps += [step([True, False], [1, 0], [0, 0], [1, 0]), step([False, False], [0, 0], [0, 0], [0, 0])]
    eager, late = DecodeTrace(2), DecodeTrace(2)
    log = late.log_on_device(4)
    for trace in (eager, late):
        trace.record_prefill()
    for each, width in zip(steps, (5, 7, 2, 2), strict=True):
        eager.width = width
        log.record(each), log.widths.append(width)
        late.passes_made += 1
        if each.counts[0].any():
            eager.record(each)
    for trace in (eager, late, late.since(0)):
        assert trace.target_passes == 4 and trace.rows_fed == [5 + 5 + 2, 5 + 4]
        assert trace.padding_fed == 2 * (5 + 7 + 2) - sum(trace.rows_fed)
    assert late.of_row(1).padding_fed == 7 - 4, "a row that has ended feeds nothing of its own"
    late.forget_steps(before=4)
    assert late.target_passes == 4


def test_origins_by_hand():
    trace = DecodeTrace(2)
    trace.record_prefill()
    first = step([True, True], [4, 4], [2, 0], [3, 1], skipped=[0, 2])
    first.relaxed = torch.tensor([[False, True, True], [True, True, True]])  # past what was accepted: noise
    trace.record(first)
    trace.record(step([True, False], [1, 0], [1, 0], [1, 0], skipped=[1, 0]))  # ends accepted
    target, accepted, relaxed, unverified = TokenOrigin
    assert trace.token_origins == [
        [target, accepted, relaxed, target, unverified, accepted],
        [target, unverified, unverified, target],
    ]
    assert trace.relaxed_tokens == 1 and trace.skipped_tokens == 3
    assert [len(row) for row in trace.token_origins] == trace.row_tokens


def test_reading_does_not_end_the_recording():
    trace = DecodeTrace(1)
    trace.record_prefill()
    trace.record(step([True], [0], [0], [1]))
    assert trace.tokens == 2
    trace.record(step([True], [3], [3], [4]))
    assert trace.tokens == 6 and trace.accepted_lengths == [[0, 3]]


def test_an_empty_trace_has_numbers_too():
    numbers = DecodeTrace(3).to_dict()
    assert numbers["target_passes"] == 0 and numbers["row_passes"] == [0, 0, 0] and numbers["tokens"] == 0
    assert numbers["tokens_per_pass"] == 0 and numbers["mean_accepted_length"] == 0
    assert numbers["accepted_lengths"] == [[], [], []]


def test_phases_add_up_and_survive_errors(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("specdecode.trace.time", SimpleNamespace(perf_counter=lambda: now[0]))
    trace = DecodeTrace(1)
    for seconds in (2, 5):
        now[0] += 100  # between the phases
        with trace.phase("encode"):
            now[0] += seconds
    with pytest.raises(KeyboardInterrupt), trace.phase("decode"):
        raise KeyboardInterrupt
    assert trace.phase_seconds == {"encode": 7, "decode": 0}


def test_dictionary_is_json():
    trace = DecodeTrace(2)
    trace.record_prefill()
    trace.record(step([True, True], [4, 4], [2, 0], [3, 1]))
    with trace.phase("prefill"):
        pass
    numbers = trace.to_dict()
    assert json.loads(json.dumps(numbers)) == numbers
    assert numbers["row_tokens"] == [4, 2] and set(numbers["phase_seconds"]) == {"prefill"}
    numbers["phase_seconds"]["other"] = 1.0
    assert "other" not in trace.phase_seconds


def test_skipped_tokens_are_tokens_of_the_row_and_of_no_pass():
    trace = DecodeTrace(2)
    trace.record_prefill()
    trace.record(step([True, True], [4, 4], [2, 0], [3, 1], [3, 0]))
    trace.record(step([True, True], [4, 4], [1, 1], [2, 2]))
    assert trace.row_tokens == [1 + 3 + 3 + 2, 1 + 1 + 2]
    assert trace.row_passes == [3, 3]
    assert (trace.skipped_steps, trace.skipped_tokens) == (1, 3)
    assert trace.mean_accepted_length == 1.0
    assert trace.mean_accepted_length_with_bonus == 2.0
    assert trace.tokens_per_pass == 13 / 6


def test_a_row_that_a_skip_ended_took_no_part_in_a_pass_then():
    trace = DecodeTrace(1)
    trace.record_prefill()
    trace.record(step([True], [4], [1], [2]))
    trace.record_unverified(torch.tensor([2]))
    row = trace.since(0).of_row(0)
    assert trace.target_passes == row.target_passes == row.row_passes[0] == 2
    assert row.row_tokens == [1 + 2 + 2]
