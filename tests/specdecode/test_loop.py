"""The loop's bookkeeping: what is fed, kept, counted and reported, in plain and speculative decoding."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from random_chains import state_for
from refusals import value_error
from synthetic import GREEDY, MarkovDrafter, MarkovTarget, decoded, random_table
from torch import Tensor

import specdecode.loop
from specdecode.loop import DecodeResult, clip
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import RandomStreams, SamplingConfig, logits_to_probabilities, sample
from specdecode.trace import DecodeTrace
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier

TREE = [-1, 0, 0, 0, 1, 1, 2, 4]
CHAIN = [-1, 0, 1, 2]


@dataclass
class CheckedTarget(MarkovTarget):
    """A Markov target that refuses what the protocol forbids and counts its passes."""

    table: Tensor
    prompts: Tensor
    capacity: int
    passes: int = 0
    fed: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.table, self.prompts, self.capacity)

    def prefill(self) -> TargetOutput:
        self.passes += 1
        return super().prefill()

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        self.passes += 1
        self.fed.append(tokens)
        batch_size, count = tokens.shape
        assert tokens.dtype == depths.dtype == torch.int64 and mask.dtype == torch.bool
        assert mask.shape == (batch_size, count, count) and depths.shape == (batch_size, count)
        assert mask.diagonal(dim1=1, dim2=2).all(), "every token sees itself"
        assert ((tokens >= 0) & (tokens < self.vocab_size)).all()
        # Of N tokens only N - 1 are fed: the last position that exists is that of token N - 1, for padding alone.
        positions = self.lengths[:, None] + depths
        assert (positions <= self.capacity).all()
        sees_others = mask.sum(2) > 1
        assert (positions[sees_others] <= self.capacity - 1).all()
        return super().forward(tokens, mask, depths)

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        width = self.fed[-1].shape[1] if node_indices is None else node_indices.shape[1]
        assert (counts <= width).all() and (counts >= 0).all()
        assert (self.lengths + counts <= self.capacity).all()
        super().commit(node_indices, counts)


def make_target(batch_size: int, max_new_tokens: int, vocab_size: int = 13, seed: int = 0) -> CheckedTarget:
    prompts = torch.randint(0, vocab_size, (batch_size, 2), generator=torch.Generator().manual_seed(seed + 1))
    return CheckedTarget(random_table(vocab_size, seed), prompts, max_new_tokens - 1)


def make_drafter(target: CheckedTarget, parents: list[int], noise: float = 0.7) -> MarkovDrafter:
    """Knows the target's table up to noise, so that it is right often but not always."""
    table = target.table + noise * random_table(target.vocab_size, 99)
    return MarkovDrafter(table, target.prompts, parents)


def slow_decode(
    target: CheckedTarget, max_new_tokens: int, sampling: SamplingConfig, seeds: list[int]
) -> list[list[int]]:
    """Row by row, token by token, from the table."""
    result = []
    for row, seed in enumerate(seeds):
        streams, tokens = RandomStreams.from_seeds([seed]), target.prompts[row].tolist()
        for position in range(max_new_tokens):
            logits = target.table[tokens[-2], tokens[-1]]
            if sampling.is_greedy:
                tokens.append(int(logits.argmax()))
            else:
                noise = streams.exponential(1, torch.tensor([position]), target.vocab_size)[0]
                tokens.append(int(sample(logits_to_probabilities(logits, sampling), noise)))
        result.append(tokens[2:])
    return result


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig(), SamplingConfig(0.8, 6, 0.9)], ids=str)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_plain_decoding(sampling, batch_size):
    target, seeds = make_target(batch_size, 20), list(range(batch_size))
    result = decoded(target, 20, sampling)
    assert result.tokens.tolist() == slow_decode(target, 20, sampling, seeds)
    assert result.tokens.shape == (batch_size, 20) and result.lengths.tolist() == [20] * batch_size
    # The prefill and one pass per token but the last, which is drawn and never fed.
    assert target.passes == result.trace.target_passes == 20
    assert torch.equal(target.committed[:, 2:-1], result.tokens[:, :-1])
    assert target.lengths.tolist() == [19] * batch_size
    assert result.trace.tokens_per_pass == 1 and result.trace.mean_accepted_length == 0
    assert result.trace.mean_accepted_length_with_bonus == 1 and result.trace.drafted == 0


@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 5, 24])
def test_speculative_decoding_keeps_the_books(parents, max_new_tokens):
    target = make_target(5, max_new_tokens)
    states: list[tuple[Tensor, Tensor]] = []

    def on_step(step: int, state: DecodeState) -> None:
        assert step == len(states)
        states.append((state.lengths.clone(), state.tokens.clone()))

    drafter = make_drafter(target, parents)
    result = decoded(target, max_new_tokens, SamplingConfig(), range(1, 6), drafter=drafter, on_step=on_step)
    trace = result.trace
    assert torch.equal(target.committed[:, 2:-1], result.tokens[:, :-1])
    assert target.lengths.tolist() == [max_new_tokens - 1] * 5
    assert trace.target_passes == target.passes == len(states) == max(trace.row_passes)
    assert trace.row_tokens == [max_new_tokens] * 5
    lengths = torch.stack([lengths for lengths, _ in states])  # [passes, B]
    for row in range(5):
        gains = lengths[:, row].diff()
        assert [accepted + 1 for accepted in trace.accepted_lengths[row]] == gains[gains > 0].tolist()
        assert len(trace.accepted_lengths[row]) + 1 == trace.row_passes[row]
        for at, (length, tokens) in enumerate(states):
            assert torch.equal(tokens[row, : length[row]], result.tokens[row, : length[row]]), at
    if max_new_tokens == 24:
        assert len(set(trace.row_passes)) > 1, "rows should have diverged"
        assert trace.mean_accepted_length > 0.3
        assert trace.drafted > trace.tokens - sum(trace.row_passes)


@pytest.mark.parametrize("parents", [None, CHAIN, TREE], ids=["plain", "chain", "tree"])
def test_rows_may_have_their_own_numbers_of_tokens(parents):
    """The same tokens and counts as alone; nothing is kept behind the end of a row, and none waits for it."""
    target, ends = make_target(5, 30), [30, 7, 1, 2, 19]

    def run(rows: list[int], longest: int, row_tokens: Tensor | None) -> tuple[DecodeResult, CheckedTarget]:
        part = CheckedTarget(target.table, target.prompts[rows], 29)
        drafter = None if parents is None else make_drafter(part, parents)
        seeds = [11 + row for row in rows]
        return decoded(part, longest, SamplingConfig(0.9, 8), seeds, drafter=drafter, row_tokens=row_tokens), part

    whole = run([0, 1, 2, 3, 4], 30, None)[0].tokens
    assert torch.equal(whole[[3, 1]], run([3, 1], 30, None)[0].tokens), "in any order"
    together, part = run([0, 1, 2, 3, 4], 30, torch.tensor(ends))
    assert together.lengths.tolist() == together.trace.row_tokens == ends
    assert part.lengths.tolist() == [end - 1 for end in ends]
    for row, end in enumerate(ends):
        alone, _ = run([row], end, None)
        assert torch.equal(together.tokens[row, :end], alone.tokens[0]) and not together.tokens[row, end:].any()
        assert together.trace.row_passes[row] == alone.trace.target_passes
        assert together.trace.accepted_lengths[row] == alone.trace.accepted_lengths[0]
    short, part = run([1, 3], 30, torch.tensor([7, 2]))
    assert part.passes == max(short.trace.row_passes) <= 7, "no pass is made when every row has ended"
    for wrong in (torch.tensor([7]), torch.tensor([7.0, 2.0]), [7, 2]):
        value_error(r"row_tokens must be int64 of shape \[2\], got ", run, [1, 3], 30, wrong)
    for wrong in (torch.tensor([0, 2]), torch.tensor([31, 2])):
        value_error(r"row_tokens must be from 1 to max_new_tokens \(30\), got ", run, [1, 3], 30, wrong)


class Changed(CheckedTarget):
    """Gives other logits after a prompt, or after other passes."""

    of_prompt: Callable[[Tensor], Tensor]
    of_pass: Callable[[Tensor], Tensor]

    def prefill(self) -> TargetOutput:
        return TargetOutput(self.of_prompt(super().prefill().logits))

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        return TargetOutput(self.of_pass(super().forward(tokens, mask, depths).logits))


def as_they_are(numbers: Tensor) -> Tensor:
    return numbers


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "no nodes": lambda numbers: numbers[:, 0],
    "a node less": lambda numbers: numbers[:, :-1],
    "a token less": lambda numbers: numbers[..., :-1],
    "a row less": lambda numbers: numbers[:-1],
    "bfloat16": lambda numbers: numbers.bfloat16(),
    "integers": lambda numbers: numbers.long(),
}


@pytest.mark.parametrize("sampling", [GREEDY, SamplingConfig()], ids=["greedy", "drawn"])
@pytest.mark.parametrize("parents", [None, CHAIN, TREE], ids=["plain", "chain", "tree"])
@pytest.mark.parametrize("wrong", WRONG)
def test_logits_of_another_shape_or_type_are_refused(wrong, parents, sampling):
    """Kernels take addresses: they would read what lies behind."""
    for function in ("prefill", "forward"):
        if (function, wrong) == ("prefill", "a node less"):
            continue  # which leaves none at all
        known = make_target(3, 12)
        target = Changed(known.table, known.prompts, known.capacity)
        target.of_prompt = WRONG[wrong] if function == "prefill" else as_they_are
        target.of_pass = WRONG[wrong] if function == "forward" else as_they_are
        drafter = None if parents is None else make_drafter(target, parents)
        message = rf"Changed\.{function} must give logits float32 of shape \[3, (n|\d+), 13\], got "
        value_error(message, decoded, target, 12, sampling, drafter=drafter)


def with_probabilities(wrong: str) -> Callable[[Draft], Draft]:
    return lambda draft: replace(draft, probabilities=WRONG[wrong](torch.zeros(*draft.tree.tokens.shape, 13)))


@pytest.mark.parametrize("parents", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (with_probabilities(wrong), r"must give probabilities float32 of shape \[3, \d, 13\], got ")
            for wrong in ("no nodes", "a node less", "a token less", "a row less", "integers")
        ),
        (
            lambda draft: replace(draft, tree=replace(draft.tree, tokens=draft.tree.tokens.int())),
            r"must propose tokens int64 of shape \[3, n\], got int32 of shape \[3, \d\]",
        ),
    ],
)
def test_drafts_of_another_shape_or_type_are_refused(parents, change, message):
    class Other(MarkovDrafter):
        def propose(self, state: DecodeState) -> Draft:
            return change(super().propose(state))

    target = make_target(3, 12)
    drafter = Other(target.table, target.prompts, parents)
    value_error(f"Other {message}", decoded, target, 12, SamplingConfig(), drafter=drafter)


def test_a_run_asks_for_no_more_tokens_than_its_target_has_room_for():
    target = make_target(2, 12)
    target.max_new_tokens = 11  # type: ignore[attr-defined]
    value_error("max_new_tokens must be at most the target's 11, got 12", decoded, target, 12)


@pytest.mark.parametrize("parents", [None, CHAIN, TREE], ids=["plain", "chain", "tree"])
def test_stop_token(parents):
    """Each row ends where plain decoding without a stop token first shows the token; nothing later is counted."""
    stop_token = 3
    full = decoded(make_target(12, 40), 40, SamplingConfig()).tokens
    target = make_target(12, 40)
    drafter = None if parents is None else make_drafter(target, parents)
    result = decoded(target, 40, SamplingConfig(), drafter=drafter, stop_token=stop_token)
    expected = [tokens.index(stop_token) + 1 if stop_token in tokens else 40 for tokens in full.tolist()]
    assert len(set(expected)) > 3 and min(expected) < 10
    assert result.lengths.tolist() == expected == result.trace.row_tokens
    for row, length in enumerate(expected):
        assert torch.equal(result.tokens[row, :length], full[row, :length])
        assert (result.tokens[row, length:] == stop_token).all()
        assert sum(result.trace.accepted_lengths[row]) <= length - 1
    assert result.trace.target_passes == target.passes == max(result.trace.row_passes)


class GenerousVerifier(ExactVerifier):
    """Accepts the whole depth of a tree in rows that are finished, of which it knows nothing."""

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        verdict = super().accept(draft, output, state)
        return replace(verdict, accepted=torch.where(state.active, verdict.accepted, draft.tree.max_depth))


def test_what_a_verifier_says_of_finished_rows_reaches_nobody():
    def run(verifier: ExactVerifier) -> DecodeResult:
        target = make_target(6, 30)
        players = {"drafter": make_drafter(target, CHAIN), "verifier": verifier}
        return decoded(target, 30, SamplingConfig(), **players, stop_token=3)

    usual, generous = run(ExactVerifier()), run(GenerousVerifier())
    assert torch.equal(generous.tokens, usual.tokens) and torch.equal(generous.lengths, usual.lengths)
    assert generous.trace.steps == usual.trace.steps and len(set(usual.lengths.tolist())) > 2


def test_any_of_several_stop_tokens_ends_a_row_and_the_first_fills_it_up():
    results = [decoded(make_target(12, 40), 40, SamplingConfig(), stop_token=stop) for stop in (3, 5, (3, 5))]
    one, other, either = (each.lengths for each in results)
    assert torch.equal(either, torch.minimum(one, other))
    assert not torch.equal(either, one) and not torch.equal(either, other)
    assert results[2].tokens[torch.arange(40) >= either[:, None]].unique().tolist() == [3]


@pytest.mark.parametrize("least_room", [3, None])
def test_drafts_end_where_each_row_does(least_room):
    """The host may know the least room, and leaves a draft that fits as it is."""
    state = replace(state_for(torch.tensor([4, 5]), GREEDY, most=9), least_room=least_room)
    for depth in range(6):
        draft = Draft(TokenTree.chain(torch.zeros(2, depth + 1, dtype=torch.int64)))
        assert clip(draft, state).tree.valid.sum(1).tolist() == [min(depth, 4) + 1, min(depth, 3) + 1]


def test_a_stop_token_may_come_first():
    target = make_target(1, 10)
    first = int(target.table[target.prompts[0, 0], target.prompts[0, 1]].argmax())
    result = decoded(target, 10, stop_token=first)
    assert result.lengths.tolist() == [1] and target.passes == 1


def test_the_host_rarely_waits(monkeypatch):
    """Plain decoding reads a tensor once, at the end; a draft of depth d at most every time it might be finished."""
    waits: list[int] = []
    tokens_left = specdecode.loop.tokens_left

    def counted(state: DecodeState) -> torch.Tensor:
        waits.append(int(tokens_left(state)))
        return torch.tensor(waits[-1])

    monkeypatch.setattr(specdecode.loop, "tokens_left", counted)
    decoded(make_target(2, 50), 50)
    assert waits == [0]
    waits.clear()
    target = make_target(2, 200)
    result = decoded(target, 200, drafter=make_drafter(target, CHAIN, noise=2.0))
    assert waits[-1] == 0 and len(waits) < result.trace.target_passes / 3


def test_a_callers_trace_is_used():
    trace = DecodeTrace(1)
    with trace.phase("encode"):
        pass
    result = decoded(make_target(1, 4), 4, trace=trace)
    assert result.trace is trace and list(trace.phase_seconds) == ["encode", "prefill", "decode"]


def test_an_interrupt_leaves_the_loop():
    def on_step(step: int, state: DecodeState) -> None:
        if step == 2:
            raise KeyboardInterrupt

    target = make_target(1, 9)
    with pytest.raises(KeyboardInterrupt):
        decoded(target, 9, on_step=on_step)
    assert target.passes == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 0}, "^max_new_tokens must be at least 1"),
        ({"seeds": [1]}, "^streams must hold one stream per row"),
        ({"stop_token": 13}, r"^stop_token must lie in \[0, 13\)"),
        ({"trace": DecodeTrace(3)}, "^trace must be of the target's batch size 2"),
    ],
)
def test_bad_arguments_are_named(change, message):
    value_error(message, decoded, make_target(2, 4), **{"length": 4, **change})
