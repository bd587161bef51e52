"""Steps as graphs: the tokens of eager steps, few graphs, every tensor where it was, and no number that is asked for.

Graphs run as they are, see `counted_graphs`, and are captured on tapes, see `taped_graphs`. Machine code is
tried once.
"""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import language_models
import pytest
import torch
from counted_graphs import CountedGraphs
from language_models import VOCAB_SIZE, ragged_prompts
from refusals import raised, value_error
from synthetic import MarkovTarget, chain_of, random_table
from taped_graphs import Launches, TapingCompiler

from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.draft_size import AdaptiveDraftSize, DraftSize, StepCosts
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.graphs import static_step
from specdecode.graphs.static_step import StepCompiler
from specdecode.loop import DecodeResult, DecodeRun, DelayedRead, decode
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput
from specdecode.runs.continuous import decode_queue
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.targets.transformers import TransformersTarget

SAMPLED = SamplingConfig(temperature=0.9, top_k=20, top_p=0.95)
GREEDY = SamplingConfig(temperature=0)
TREE = StaticTree.from_child_counts("3 / 2 1 / 1")
NEW = 20
TABLE = random_table(12, 1)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Graphs are kept by function, whoever has them compiled."""
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def model() -> Any:
    return language_models.make("qwen3", num_hidden_layers=1)


def target_of(model: Any, seed: int = 0, length: int = 9, rows: slice = slice(None)) -> TransformersTarget:
    prompts, mask = ragged_prompts(seed, length)
    return TransformersTarget(model, prompts[rows], mask[rows], max_new_tokens=NEW, max_draft_nodes=8, longest_prompt=9)


def chains(seed: int = 0) -> MarkovTarget:
    """A target without a cache, for what does not depend on one: its steps are traced in a fraction of the time."""
    prompts = torch.randint(len(TABLE), (3, 2), generator=torch.Generator().manual_seed(seed))
    return MarkovTarget(TABLE, prompts, NEW)


def window(coupling: str = "target", vocab_size: int = len(TABLE), **settings: Any) -> JacobiDrafter:
    return JacobiDrafter(vocab_size, chain_of(3), coupling=coupling, **settings)


def run(
    target: Any,
    compiler: StepCompiler | None,
    drafter: Drafter | None = None,
    sampling: SamplingConfig = SAMPLED,
    seed: int = 0,
    **settings: Any,
) -> DecodeResult:
    if compiler is not None and isinstance(target, TransformersTarget):  # graphs are of one cache
        target.compile(compiler, getattr(compiler, "cache", None))
        target.prefill()
        compiler.cache = target.kv_cache  # type: ignore[attr-defined]
    streams = RandomStreams.from_seeds(range(seed, seed + target.batch_size))
    settings |= {"sampling": sampling, "streams": streams, "drafter": drafter, "compiler": compiler}
    return decode(target, max_new_tokens=NEW, **settings)


def same(one: DecodeResult, other: DecodeResult) -> None:
    """Tokens, and what the trace says of them."""
    assert torch.equal(one.tokens, other.tokens) and torch.equal(one.lengths, other.lengths)
    assert one.trace.token_passes == other.trace.token_passes
    assert one.trace.token_origins == other.trace.token_origins


DRAFTERS: dict[str, Callable[[Any], Drafter | None]] = {
    "plain": lambda model: None,
    "target": lambda model: window("target", VOCAB_SIZE),
    "smaller model's trees": lambda model: DraftModelTreeDrafter(
        target_of(language_models.disturbed(model, 0.02)), TREE
    ),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_one_graph_draws_the_tokens_of_eager_steps(model, drafter):
    """It is captured once, and serves other prompts, of another length, seeds and temperatures, and rows that end. A
    smaller model has another cache each time, so there it is captured again."""
    compiler, captures = TapingCompiler(64), 4 if drafter == "smaller model's trees" else 1
    same(*(run(target_of(model), each, DRAFTERS[drafter](model)) for each in (None, compiler)))
    steps = compiler.replays
    for sampling in (SAMPLED, SamplingConfig(0.5, 20, 0.95), SamplingConfig(1.0, 20, 0.95)):
        other = [run(target_of(model, 5, 7), each, DRAFTERS[drafter](model), sampling, 9) for each in (None, compiler)]
        same(*other)
        taken, steps = compiler.replays - steps, compiler.replays
        # The prefill, and for known graphs a step that shows what is replaced, and one that asks for the graph.
        before = 3 if captures == 1 else 5
        assert taken == other[1].trace.target_passes - before
    assert compiler.counted.graphs == compiler.num_compiled == 1 and len(compiler.tapes) == captures
    assert all("lie elsewhere" in fault for fault in compiler.counted.faults[: captures - 1])
    assert len(compiler.counted.faults) == captures - 1


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [(window(), GREEDY), (window("gumbel"), SAMPLED), (window("maximal", keep_overlap=0.2), SAMPLED)],
    ids=["greedy", "gumbel", "maximal"],
)
def test_windows_of_every_coupling(drafter, sampling):
    compiler = TapingCompiler(64)
    for seed in (0, 5):  # the second batch goes on with the graphs of the first
        same(*(run(chains(seed), each, copy.copy(drafter), sampling) for each in (None, compiler)))
    assert len(compiler.tapes) == compiler.counted.graphs == 1 and not compiler.counted.faults


def test_attention_reads_whole_buckets(model):
    compiler = TapingCompiler(16)
    same(*(run(target_of(model), each) for each in (None, compiler)))
    assert len(compiler.tapes) == 2 and not compiler.counted.faults


def test_layers_with_windows_and_two_kinds_of_masks():
    model, compiler = language_models.make("gemma3", num_hidden_layers=2), TapingCompiler(64)
    same(*(run(target_of(model), each, window("target", VOCAB_SIZE)) for each in (None, compiler)))
    assert len(compiler.tapes) == 1 and not compiler.counted.faults


def test_ends_by_stop_tokens_are_seen_late_and_change_nothing():
    compiler = TapingCompiler(64)
    drawn = run(chains(), None, window()).tokens
    stops = [int(drawn[0, 8]), int(drawn[1, 5]), int(drawn[2, 6])]
    for seed in (1, 0):  # the second batch goes on with the graphs of the first
        eager, late = (run(chains(seed), each, window(), stop_token=stops) for each in (None, compiler))
        same(eager, late)
        assert eager.trace.target_passes <= late.trace.target_passes <= eager.trace.target_passes + 3
        assert eager.trace.row_passes == late.trace.row_passes
    assert int(eager.lengths.max()) < NEW and len(compiler.tapes) == 1 and not compiler.counted.faults
    asked: list[int] = []
    with Launches() as launches:
        note = lambda step, state: asked.append(launches.count + compiler.replays)  # noqa: E731
        run(chains(), compiler, window(), stop_token=stops, on_step=note)
    most = max(after - before for before, after in pairwise(asked[2:]))
    assert most == 3, "a replay, a copy of how far rows are, and a look at an earlier copy"


def test_what_the_host_reads_is_some_calls_old():
    read, number = DelayedRead(2), torch.tensor(0)
    seen = [None if (found := read(number.add_(1))) is None else int(found) for _ in range(4)]
    assert seen == [None, None, 1, 2]
    read.forget()
    assert read(number) is None


@pytest.mark.parametrize(
    ("coupling", "stop_token", "cached"), [("target", 3, False), ("maximal", None, False), ("gumbel", None, True)]
)
def test_rows_are_replaced_where_they_lie(model, coupling, stop_token, cached):
    """Seven requests through three rows."""
    vocab_size = VOCAB_SIZE if cached else len(TABLE)
    prompts = torch.randint(1, vocab_size, (7, 2), generator=torch.Generator().manual_seed(0))

    def drawn(compiler: StepCompiler | None) -> dict[int, Any]:
        def start_run(requests: range, joins: bool) -> DecodeRun:
            chosen = prompts[requests.start : requests.stop]
            return DecodeRun(
                TransformersTarget(model, chosen, max_new_tokens=NEW, max_draft_nodes=8)
                if cached
                else MarkovTarget(TABLE, chosen, NEW),
                max_new_tokens=NEW,
                sampling=SAMPLED,
                streams=RandomStreams.from_seeds(list(requests)),
                drafter=window(coupling, vocab_size),
                stop_token=stop_token,
                compiler=compiler,
            )

        return {row.request: row for row in decode_queue(start_run, 7, 3)}

    eager, compiled = drawn(None), drawn(compiler := TapingCompiler(64))
    for request, row in eager.items():
        assert torch.equal(row.tokens, compiled[request].tokens), request
        assert row.trace.accepted_lengths == compiled[request].trace.accepted_lengths
    assert compiler.counted.graphs == len(compiler.tapes) == 1 and not compiler.counted.faults


class _Walks(AdaptiveDraftSize):
    """Goes through all sizes, whatever is accepted, and notes what it is told."""

    def choose(self) -> DraftSize:
        self.chosen = [*getattr(self, "chosen", []), self.candidates[len(getattr(self, "chosen", [])) // 3 % 2]]
        return self.chosen[-1]

    def observe(self, size: DraftSize, accepted: Any, active: Any) -> None:
        self.told = [*getattr(self, "told", []), (size, accepted.tolist(), active.tolist())]


def test_the_host_chooses_widths_by_counts_that_are_one_step_old():
    """One graph a width, for both batches; a step behind another width is eager."""
    compiler, sizes = TapingCompiler(64), [DraftSize(1 + depth, depth) for depth in (2, 4)]
    for seed in (0, 5):
        sizer = _Walks(sizes, StepCosts((1,), (1.0,)), clock=None)
        drafter = JacobiDrafter(len(TABLE), sizer, coupling="target")
        compiled = run(chains(seed), compiler, drafter)
        assert torch.equal(run(chains(seed), None, window()).tokens, compiled.tokens)
        steps = compiled.trace.steps
        accepted, active = ([step[name] for step in steps] for name in ("accepted", "active"))
        told = list(zip(sizer.chosen, accepted, [[bool(each) for each in row] for row in active], strict=True))
        assert sizer.told == told[:-1], "all but the last step"
    assert len(compiler.tapes) == compiler.counted.graphs == 2 and not compiler.counted.faults


def test_graphs_of_another_form_or_cache_are_not_taken(model):
    compiler = TapingCompiler(64)
    for number, sampling in enumerate((GREEDY, SAMPLED, SAMPLED), 1):
        same(*(run(target_of(model, number), each, None, sampling) for each in (None, compiler)))
        assert len(compiler.tapes) == number
        if number == 2:
            compiler.cache = None  # type: ignore[attr-defined]


def test_graphs_are_of_tensors_of_one_shape(model):
    """The same cache, and the same numbers on the host: one more token ends a row."""
    compiler, target = StepCompiler("eager"), target_of(model)
    target.compile(compiler)
    target.prefill()

    def graphs(*stops: int) -> object:
        streams = RandomStreams.from_seeds(range(3))
        begun = DecodeRun(target, max_new_tokens=NEW, sampling=SAMPLED, streams=streams, stop_token=stops)
        compiler.give_back(taken := compiler.take(begun))
        return taken

    first = graphs(3)
    assert graphs(5) is first and graphs(3, 5) is not first


class NotingDrafter(JacobiDrafter):
    """Its code looks at what it has noted, as that of a draft head does."""

    notes: dict[int, str]

    def propose(self, state: DecodeState) -> Draft:
        assert len(self.notes) >= 0
        return super().propose(state)


def test_a_known_step_that_is_compiled_again_has_the_limit_of_a_new_one():
    compiler = StepCompiler(CountedGraphs(), 64)
    with torch._dynamo.config.patch(recompile_limit=1):
        for number in range(2):
            drafter = NotingDrafter(len(TABLE), chain_of(3), coupling="target")
            drafter.notes = dict.fromkeys(range(number), "")
            same(*(run(chains(), each, drafter) for each in (None, compiler)))
            assert compiler.num_compiled == number + 1


def test_what_is_decoded_stays_when_the_next_batch_takes_the_graphs(model):
    """Its tokens, and the trace, which is read only then."""
    compiler, expected = TapingCompiler(64), run(target_of(model), None)
    first = run(target_of(model), compiler)
    run(target_of(model, 5), compiler, seed=7)
    assert len(compiler.tapes) == 1
    same(expected, first)


class _Asks(JacobiDrafter):
    """A planted fault: it asks the device."""

    def propose(self, state: DecodeState) -> Draft:
        assert int(state.lengths.max()) >= 0
        return super().propose(state)


class _Counts(JacobiDrafter):
    """A planted fault: the host counts, and the graph depends on it."""

    count = 0

    def propose(self, state: DecodeState) -> Draft:
        self.count += 1
        return super().propose(state)


class _Forgets(JacobiDrafter):
    """A planted fault: every step replaces a tensor that the next one reads, and that is not named."""

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        super().start(prompt, state)
        self.rounds = torch.zeros_like(state.lengths)

    def propose(self, state: DecodeState) -> Draft:
        self.rounds = self.rounds + 1
        self._iteration = self._iteration + self.rounds  # by which guesses are drawn
        return super().propose(state)


class _Names(_Forgets):
    """The same without the fault."""

    graph_state = (*_Forgets.graph_state, "rounds")


def test_planted_faults_are_seen(monkeypatch):
    def decoded(drafter: type[JacobiDrafter], compiled: bool = True) -> DecodeResult:
        compiler = TapingCompiler(64) if compiled else None
        return run(chains(), compiler, drafter(len(TABLE), chain_of(3)))

    raised(Exception, r"(?i)data.dependent|_local_scalar_dense|\.item", decoded, _Asks)
    same(decoded(_Names, compiled=False), decoded(_Names))
    monkeypatch.setattr(static_step, "_MOST_KINDS", 2)
    for drafter, name in ((_Counts, "a number that a player counts"), (_Forgets, "drafter.*rounds")):
        value_error(f"compile: .*{name}.* is another at every step, so steps are no graph", decoded, drafter)


def test_what_is_no_graph_is_refused_by_name():
    compiler = StepCompiler("eager", 64)
    value_error("bucket must be at least 2 slots, got 1", StepCompiler, "eager", 1)
    drafter = PromptLookupDrafter(torch.zeros(3, 1, dtype=torch.int64), LookupDraftLength(4))
    with pytest.raises(
        ValueError, match="compile: LookupDraftLength chooses sizes by what is drafted; use a fixed size"
    ):
        run(chains(), compiler, drafter)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("drafter", ["plain", "target"])
def test_captured_steps_draw_the_tokens_of_eager_steps(model, drafter, backend):
    """Two batches, and several buckets of attention; rows of the second end by a stop token."""
    model, captured = copy.deepcopy(model).cuda(), []
    compiler = StepCompiler(backend, 16)
    capture = compiler.captured
    compiler.captured = lambda *given: captured.append(capture(*given)) or captured[-1]  # type: ignore[method-assign]
    for seed, stop_token in ((0, None), (5, 7)):
        results = []
        for each in (None, compiler):
            prompts, mask = (part.cuda() for part in ragged_prompts(seed))
            target = TransformersTarget(model, prompts, mask, max_new_tokens=NEW, max_draft_nodes=8)
            streams = RandomStreams.from_seeds([1, 2, 3], "cuda")
            players = {"drafter": DRAFTERS[drafter](model), "compiler": each, "stop_token": stop_token}
            results.append(decode(target, max_new_tokens=NEW, sampling=SAMPLED, streams=streams, **players))
        assert torch.equal(results[0].tokens, results[1].tokens)
        assert results[0].trace.token_passes == results[1].trace.token_passes
    assert len(captured) >= 2
