"""Continuous batches: what a request gives and what it took are what they are alone, whoever had its row before."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import value_error
from synthetic import MarkovDrafter, MarkovTarget, chain_of, random_table
from torch import Tensor

from specdecode.checks import LogitsError
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.jacobi_front import BranchingJacobiDrafter, branch_nodes
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.loop import DecodeResult, DecodeRun, decode
from specdecode.roles import DecodeState, Drafter
from specdecode.runs.continuous import FinishedRow, decode_queue
from specdecode.sampling import RandomStreams, SamplingConfig

VOCAB, LENGTH, STOP = 11, 14, 4
TABLE = random_table(VOCAB, seed=5, scale=1.6)
DRAFT_TABLE = 0.6 * TABLE + random_table(VOCAB, seed=6, scale=0.6)
GREEDY, DRAWN = SamplingConfig(temperature=0), SamplingConfig(temperature=0.9, top_k=8)
WINDOW = chain_of(4)
WITH_BRANCHES = FixedDraftSize(DraftSize(5 + branch_nodes(4, 3, 2), 4))
MakeDrafter = Callable[[Tensor], Drafter | None]


def smaller(prompts: Tensor) -> MarkovTarget:
    return MarkovTarget(DRAFT_TABLE, prompts, LENGTH + 8)


DRAFTERS: dict[str, MakeDrafter] = {
    "none": lambda prompts: None,
    "tree": lambda prompts: MarkovDrafter(DRAFT_TABLE, prompts, [-1, 0, 0, 1, 2, 2], "without replacement"),
    "chain": lambda prompts: MarkovDrafter(DRAFT_TABLE, prompts, [-1, 0, 1, 2]),
    "jacobi": lambda prompts: JacobiDrafter(VOCAB, WINDOW),
    "gumbel": lambda prompts: JacobiDrafter(VOCAB, WINDOW, "repeat", "gumbel", confident=True),
    "maximal": lambda prompts: JacobiDrafter(VOCAB, WINDOW, "repeat", "maximal", keep_overlap=0.6),
    "target": lambda prompts: JacobiDrafter(VOCAB, WINDOW, "repeat", "target"),
    "branches": lambda prompts: BranchingJacobiDrafter(VOCAB, WITH_BRANCHES, 3, 2),
    "smaller": lambda prompts: DraftModelDrafter(smaller(prompts), WINDOW),
    "smaller, tree": lambda prompts: DraftModelTreeDrafter(smaller(prompts), StaticTree.from_child_counts("2 / 2 1")),
    "lookup": lambda prompts: PromptLookupDrafter(prompts, WINDOW),
    "known": lambda prompts: ForcedTokensDrafter(
        JacobiDrafter(VOCAB, WINDOW), torch.full((LENGTH,), -1).index_fill(0, torch.tensor([3, 7]), 2), VOCAB
    ),
}


class Queue:
    """Requests that are told apart by their prompts and their seeds."""

    def __init__(self, seeds: list[int], make: MakeDrafter, sampling: SamplingConfig, stop: int | None = None) -> None:
        self.seeds, self.make, self.sampling, self.stop = seeds, make, sampling, stop
        self.asked: list[tuple[range, bool]] = []
        self.run: DecodeRun | None = None
        self.rows = 0  # of the first run; more than requests in an open queue

    def arguments(self, requests: list[int]) -> tuple[MarkovTarget, dict[str, Any]]:
        seeds = [self.seeds[request] for request in requests]
        prompts = torch.tensor([[seed % VOCAB, (seed * 7 + 3) % VOCAB] for seed in seeds])
        return MarkovTarget(TABLE, prompts, LENGTH - 1), {
            "max_new_tokens": LENGTH,
            "sampling": self.sampling,
            "streams": RandomStreams.from_seeds(seeds),
            "drafter": self.make(prompts),
            "stop_token": self.stop,
        }

    def __call__(self, requests: range, joins: bool) -> DecodeRun:
        self.asked.append((requests, joins))
        idle = 0 if joins else self.rows - len(requests)
        target, others = self.arguments([*requests, *[requests[0]] * idle])
        run = DecodeRun(target, **others)
        self.run = self.run if joins else run
        return run

    def alone(self, request: int) -> DecodeResult:
        target, others = self.arguments([request])
        return decode(target, **others)

    def check(self, finished: list[FinishedRow]) -> None:
        assert sorted(row.request for row in finished) == list(range(len(self.seeds)))
        for row in finished:
            alone = self.alone(row.request)
            assert row.tokens.tolist() == alone.tokens[0].tolist() and row.length == int(alone.lengths[0])
            for figure in ("accepted_lengths", "token_origins", "row_passes", "row_tokens", "drafted", "target_passes"):
                assert getattr(row.trace, figure) == getattr(alone.trace, figure), figure


@pytest.mark.parametrize("name", DRAFTERS)
@settings(max_examples=4, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 1000), min_size=1, max_size=7),
    batch_size=st.integers(1, 5),
    sampling=st.sampled_from([GREEDY, DRAWN]),
    stop=st.sampled_from([None, STOP]),
    arrivals=st.none() | st.lists(st.integers(0, 2), min_size=1, max_size=9),
)
def test_a_request_gets_what_it_gets_alone(name, seeds, batch_size, sampling, stop, arrivals):
    """From a list, or into an open queue, in which some arrive after any pass."""
    queue = Queue(seeds, DRAFTERS[name], sampling, stop)
    if arrivals is None:
        queue.check(list(decode_queue(queue, len(seeds), batch_size)))
        return
    left, queue.rows = len(seeds) - 1, batch_size

    def arriving(free: int) -> int:
        nonlocal left
        wanted = max(arrivals.pop() if arrivals else left, free == batch_size)  # the queue ends where none arrives
        taken = min(wanted, free, left)
        left -= taken
        return taken

    queue.check(list(decode_queue(queue, 1, batch_size, arriving=arriving)))


def test_who_arrives_takes_a_free_place_after_the_running_pass():
    queue, seen = Queue([0, 1, 2], DRAFTERS["none"], DRAWN), list[list[int | None]]()
    queue.rows, coming = 3, iter([0, 0, 2, 0])
    rows = decode_queue(queue, 1, 3, lambda state, who: seen.append(list(who)), lambda free: next(coming, 0))
    queue.check(list(rows))
    assert seen[:5] == [[0, None, None]] * 4 + [[0, 1, 2]], "the prefill, and three passes until two have arrived"
    assert [requests for requests, _ in queue.asked] == [range(1), range(1, 3)]


def test_places_are_refilled_at_once_and_the_shape_stays():
    queue = Queue(list(range(20)), DRAFTERS["jacobi"], DRAWN)
    lengths: list[list[int | None]] = []
    ended: list[list[int | None]] = []

    def on_step(state: DecodeState, requests: Any) -> None:
        lengths.append(list(requests))
        ended.append([None if active else each for each, active in zip(requests, state.active.tolist(), strict=True)])
        assert len(state.lengths) == len(requests) == 4

    rows = list(decode_queue(queue, 20, 4, on_step))
    queue.check(rows)
    assert queue.asked[0] == (range(4), False) and all(joins for _, joins in queue.asked[1:])
    assert [request for requests, _ in queue.asked for request in requests] == list(range(20))
    assert queue.run is not None
    assert queue.run.trace.target_passes == len(lengths) + len(queue.asked) - 1, "prefills of who joins are passes too"
    # As long as requests wait, no pass is made with an idle row; and all passes are spent on somebody.
    last = next(step for step, requests in enumerate(lengths) if 19 in requests)
    assert not any(None in requests for requests in lengths[: last + 1])
    for before, after in zip(ended, lengths[1:], strict=False):
        assert not set(before) & set(after) - {None}, "who has ended takes part in no further pass"
    passes = sum(row.trace.target_passes - 1 for row in rows)
    assert passes <= sum(request is not None for requests in lengths[1:] for request in requests)
    assert len(lengths) < sum(max(rows[i].trace.target_passes for i in range(k, k + 4)) for k in range(0, 20, 4))


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(("wrong", "well"), [(1, [0, 2]), (7, [0, 1, 2, 3, 4, 5, 6, 8])])
def test_a_request_whose_logits_are_no_numbers_is_named_after_others(wrong, well, step):
    """Its prompt ends with a token that nobody else has. Behind it, or one token later, nothing can be said."""
    last = VOCAB - 1
    table = TABLE.index_fill(-1, torch.tensor([last]), -torch.inf)
    table[(0, last) if step == 0 else last] = torch.nan

    class Broken(Queue):
        def arguments(self, requests: list[int]) -> tuple[MarkovTarget, dict[str, Any]]:
            target, others = super().arguments(requests)
            prompts = target.prompts.clamp(max=last - 1)
            prompts[torch.tensor(requests) == wrong] = torch.tensor([0, last])
            return MarkovTarget(table, prompts, LENGTH - 1), others

    queue, given = Broken(list(range(12)), DRAFTERS["none"], DRAWN), []
    with pytest.raises(LogitsError) as raised:
        for row in decode_queue(queue, 12, 3):
            given.append(row.request)
            assert row.tokens.tolist() == queue.alone(row.request).tokens[0].tolist()
    assert (raised.value.row, raised.value.step) == (wrong, step) and given == well
    with pytest.raises(LogitsError) as alone:
        queue.alone(wrong)
    assert alone.value.step == step


def test_a_request_has_its_share_of_the_seconds(monkeypatch):
    """Two rows, a second a pass: half of what passes from its prefill to its end."""
    now = [0.0]
    monkeypatch.setattr("specdecode.runs.continuous.time", SimpleNamespace(perf_counter=lambda: now[0]))

    def on_step(state: DecodeState, requests: Any) -> None:
        now[0] += 1

    rows = list(decode_queue(Queue([0, 1, 2, 3], DRAFTERS["none"], DRAWN), 4, 2, on_step))
    first, later = LENGTH / 2, (LENGTH - 1) / 2  # nobody is told of a prefill of those who join
    assert [row.seconds for row in rows] == [first, first, later, later]
    assert [row.trace.phase_seconds for row in rows] == [{"decode": row.seconds} for row in rows]

    seconds = []
    for row in decode_queue(Queue([0, 1, 2, 3], DRAFTERS["none"], DRAWN), 4, 2, on_step):
        now[0] += 100  # whoever is given a row may take his time
        seconds.append(row.seconds)
    assert seconds == [row.seconds for row in rows]


@pytest.mark.parametrize("stop", [None, STOP])
@pytest.mark.parametrize("name", DRAFTERS)
def test_requests_of_one_token_need_no_pass_but_their_prompts(name, stop):
    class Short(Queue):
        def arguments(self, requests: list[int]) -> tuple[MarkovTarget, dict[str, Any]]:
            target, others = super().arguments(requests)
            return target, {**others, "max_new_tokens": 1}

    queue = Short(list(range(7)), DRAFTERS[name], DRAWN, stop)
    queue.check(list(decode_queue(queue, 7, 2)))
    assert queue.run is not None and queue.run.trace.target_passes == 4


def test_a_player_that_cannot_is_refused_by_name_before_anything_is_decoded():
    class Rigid(JacobiDrafter):
        replace_rows = property()  # type: ignore[assignment]  # there is no such attribute

    queue = Queue([1, 2, 3], lambda prompts: Rigid(VOCAB, WINDOW), DRAWN)
    value_error("Rigid cannot give a finished row to another request", next, decode_queue(queue, 3, 2))
    assert len(list(decode_queue(queue, 3, 3))) == 3, "where no place is taken, nobody need give one"
    value_error("must be at least 1, got 0", next, decode_queue(queue, 0, 2))
