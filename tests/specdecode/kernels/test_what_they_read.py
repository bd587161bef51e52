"""Kernels see addresses: what is of another shape, type or range than they take it for is refused, or left to torch."""

import ctypes
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from placed_pictures import GREEDY
from random_chains import random_chain, state_for
from refusals import raised, value_error
from synthetic import MarkovDrafter, MarkovTarget, chain_of, decoded, random_table
from torch import Tensor

from specdecode.drafters.draft_size import DraftSize
from specdecode.drafters.forced_tokens import ForcedTokensDrafter
from specdecode.drafters.jacobi import JacobiDrafter
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput, dynamic_tree
from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindows
from specdecode.kernels import build, fused_ops
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import DecodeState, Draft, Drafter, Positions, Schedule, Selection, TargetOutput, Verdict
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, largest
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier, judge_chain

pytestmark = pytest.mark.usefixtures("own_kernels")
SAMPLED, PROMPTS = SamplingConfig(0.9), torch.tensor([[1, 2], [3, 0], [5, 5]])
TREE, WINDOW = [-1, 0, 0, 1, 2], JacobiDrafter(6, chain_of(3))
NO_TOKENS = torch.zeros(3, dtype=torch.int64)


def at_the_end_of_a_page(numbers: Tensor) -> Tensor:
    """The same numbers, followed by memory whose first byte ends the process that reads it."""
    page, count = mmap.PAGESIZE, numbers.numel() * numbers.itemsize
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
    made = torch.frombuffer(memory, dtype=numbers.dtype, count=numbers.numel(), offset=page - count)
    return made.view(numbers.shape).copy_(numbers)


def ends_well(function: Callable[[], object]) -> bool:
    """Whether a function returns, in a process of its own."""
    child = os.fork()
    if not child:
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def drawn(**players: Any) -> Tensor:
    return decoded(MarkovTarget(random_table(6, 3), PROMPTS, 40), 17, SAMPLED, **players).tokens


class Proposed(Drafter):
    """Drafts what a function makes of the tokens [B, 4] of a chain."""

    def __init__(self, make: Callable[[Tensor], Draft]) -> None:
        self.make = make

    def propose(self, state: DecodeState) -> Draft:
        return self.make(F.pad(state.last_tokens()[:, None], (0, 3)))


def test_the_path_of_a_tree_may_be_accepted_to_its_end():
    """The token behind it has no node."""
    path = torch.tensor([[0, 1], [0, 1], [0, 2]])
    tokens, active = torch.arange(9).view(3, 3), torch.ones(3, dtype=torch.bool)
    buffer, lengths, ones = torch.zeros(3, 9, dtype=torch.int64), NO_TOKENS + 1, NO_TOKENS + 1
    given = ones, 7 * ones, NO_TOKENS, None, active, lengths
    assert fused_ops.serves(path)
    (_, _, emitted, *_), _, _ = fused_ops.keep(tokens, tokens >= 0, path, *given, buffer, None)
    assert emitted.tolist() == [2, 2, 2] and buffer[:, 1:3].tolist() == [[1, 7], [4, 7], [8, 7]]
    guarded = at_the_end_of_a_page(path)
    assert ends_well(lambda: fused_ops.keep(tokens, tokens >= 0, guarded, *given, buffer, None))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("parents", lambda each: each.int(), "propose parents int64 of shape [3, 4], got int32 of shape [3, 4]"),
        ("parents", lambda each: each[:, :2], "propose parents int64 of shape [3, 4], got int64 of shape [3, 2]"),
        ("depth", lambda each: each.int(), "propose depth int64 of shape [3, 4], got int32"),
        ("depth", lambda each: each[:2], "propose depth int64 of shape [3, 4], got int64 of shape [2, 4]"),
        ("valid", lambda each: each.long(), "propose valid bool of shape [3, 4], got int64"),
    ],
)
def test_trees_of_other_types_are_refused(name, change, message):
    def make(tokens: Tensor) -> Draft:
        tree = TokenTree.chain(tokens)
        return Draft(replace(tree, **{name: change(getattr(tree, name))}))

    value_error(re.escape(f"Proposed must {message}"), drawn, drafter=Proposed(make))


@pytest.mark.parametrize("kind", [torch.int64, torch.bool])
def test_drafts_of_one_hot_integers_are_refused(kind):
    make = lambda tokens: Draft(TokenTree.chain(tokens), F.one_hot(tokens, 6).to(kind))  # noqa: E731
    with pytest.raises(ValueError, match=r"must give probabilities float32 of shape \[3, 4, 6\], got (int64|bool) of"):
        drawn(drafter=Proposed(make))


def test_verifiers_leave_one_hot_integers_to_torch():
    draft, output, lengths = random_chain(1, 6, 5, 16)
    certain = F.one_hot(draft.tree.tokens, 16)
    one, other = (
        ExactVerifier().accept(replace(draft, probabilities=each), output, state_for(lengths, SAMPLED))
        for each in (certain.float(), certain)
    )
    assert torch.equal(one.accepted, other.accepted) and torch.equal(one.next_tokens, other.next_tokens)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("accepted", lambda each: each.int(), "give accepted int64 of shape [3], got int32 of shape [3]"),
        ("accepted", lambda each: each[:, None], "give accepted int64 of shape [3], got int64 of shape [3, 1]"),
        ("next_tokens", lambda each: each.int(), "give next_tokens int64 of shape [3], got int32"),
        ("next_tokens", lambda each: each[:1], "give next_tokens int64 of shape [3], got int64 of shape [1]"),
        ("path", lambda each: each.int(), "give path int64 of shape [3, k], got int32"),
        ("path", lambda each: each[:2], "give path int64 of shape [3, k], got int64 of shape [2, "),
    ],
)
def test_verdicts_of_other_types_are_refused(name, change, message):
    class Odd(ExactVerifier):
        def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
            verdict = super().accept(draft, output, state)
            return replace(verdict, **{name: change(getattr(verdict, name))})

    with pytest.raises(ValueError, match=re.escape(f"Odd must {message}")):
        drawn(drafter=MarkovDrafter(random_table(6, 4), PROMPTS, TREE), verifier=Odd())


def test_more_accepted_tokens_than_a_path_has_are_refused():
    class Generous(ExactVerifier):
        def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
            verdict = super().accept(draft, output, state)
            return replace(verdict, accepted=verdict.accepted.where(torch.arange(3) > 0, 3))  # as far as the next row

    with pytest.raises(IndexError, match="outside its tree or its row"):
        drawn(drafter=MarkovDrafter(random_table(6, 4), PROMPTS, TREE), verifier=Generous())


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(torch.zeros(3, 2, dtype=torch.int32), NO_TOKENS), "give path int64 of shape [3, k], got int32"),
        (Selection(torch.zeros(3, 2, dtype=torch.int64), NO_TOKENS[:1]), "give counts int64 of shape [3], got int64"),
    ],
)  # fmt: skip
def test_selections_of_other_types_are_refused(selection, message):
    class Odd(Schedule):
        def select(self, draft: Draft, state: DecodeState) -> Selection:
            return selection

    value_error(re.escape(f"Odd must {message}"), drawn, drafter=WINDOW, schedule=Odd())


def test_parents_stand_before_their_children():
    """A parent beyond the tree was read there; one behind its child led in a circle."""
    tree = TokenTree.from_parents(torch.zeros(1, 4, dtype=torch.int64), torch.tensor([[-1, 0, 1, 2]]))
    for parents in ([-1, 0, 4000000, 2], [-1, 0, 2, 2], [-1, 0, 3, 2]):
        odd = replace(tree, parents=torch.tensor([parents]), max_children=2)
        raised(IndexError, "outside its tree", odd.ancestor_mask)


def test_the_weight_behind_the_last_token_is_that_of_torch(monkeypatch):
    """Also where a chain's parents say that something was rejected there: there are as many weights as draft tokens."""
    parents = torch.tensor([-1, 0, 2]).expand(4, -1)
    tree = replace(TokenTree.chain(torch.zeros(4, 3, dtype=torch.int64)), parents=parents)
    drawn_from = torch.rand(4, 3, 5).softmax(-1).where(torch.arange(5) > 0, 1e-9)  # so that token 0 is accepted
    draft, target, weights = Draft(tree, drawn_from), torch.randn(4, 3, 5).softmax(-1), torch.tensor([0.9, 0.4])

    def judged(weights: Tensor = weights) -> Verdict:
        return judge_chain(draft, target, state_for(torch.arange(1, 5), SAMPLED), weights=weights)

    by_kernels = judged()
    assert by_kernels.accepted.tolist() == [2, 2, 2, 2]
    guarded = at_the_end_of_a_page(weights)
    assert ends_well(lambda: judged(guarded))
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    assert torch.equal(judged().next_tokens, by_kernels.next_tokens)


def test_counters_belong_to_the_rows_of_their_streams():
    streams = RandomStreams.from_seeds([1, 2])
    for wrong in (torch.zeros(2, 3, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int64), torch.tensor(3)):
        for tag in (Tag.TARGET, Tag.DRAFT):
            for draw in (
                lambda tag=tag, wrong=wrong: streams.uniform(tag, wrong),
                lambda tag=tag, wrong=wrong: streams.exponential(tag, wrong, 5),
                lambda tag=tag, wrong=wrong: streams.race(torch.rand(*wrong.shape, 5), tag, wrong),
            ):
                value_error(r"counters must be int64 of shape \[2, ...\], a row for each", draw)


def test_no_numbers_and_no_rows():
    streams, counters = RandomStreams.from_seeds([1, 2]), torch.tensor([[1, 2, 7], [3, 4, 7]])
    assert streams.uniform(Tag.DRAFT, counters, 0).shape == (2, 3, 0)
    nobody = RandomStreams(torch.empty(0, dtype=torch.int64))
    assert nobody.uniform(Tag.DRAFT, counters[:0]).shape == (0, 3)
    assert streams.race(torch.rand(2, 0, 5), Tag.DRAFT, counters[:, :0]).shape == (2, 0)
    with pytest.raises((ValueError, IndexError)):
        largest(torch.empty(2, 0))


def test_races_of_other_shapes_are_left_to_torch(monkeypatch):
    counters = torch.arange(24).view(2, 3, 4)
    wide, one = torch.rand(2, 3, 4, 50), torch.rand(2, 1, 50)
    drawn = []
    for choice in ("plain", "auto"):
        monkeypatch.setenv("VARGEN_KERNELS", choice)
        streams = RandomStreams.from_seeds([1, 2])
        drawn.append((streams.race(wide, Tag.DRAFT, counters), streams.race(one, Tag.DRAFT, counters[:, 0])))
    for plain, kernels in zip(*drawn, strict=True):
        assert torch.equal(plain, kernels)


def test_forced_tokens_are_of_tokens_type_and_shape():
    for wrong in (torch.full((17,), -1, dtype=torch.int32), torch.full((3, 1, 17), -1)):
        with pytest.raises(ValueError, match="forced_tokens must be int64 of shape "):
            ForcedTokensDrafter(PromptLookupDrafter(PROMPTS, chain_of(3)), wrong, 6)


def test_prompts_are_tokens():
    for wrong in (PROMPTS.float(), PROMPTS[0]):
        with pytest.raises(ValueError, match=r"prompt must be tokens int64 of shape \[batch, length\], got "):
            PromptLookupDrafter(wrong, chain_of(3))


class Short:
    """A target whose passes over places leave something out."""

    vocab_size, device, batch_size = 3, torch.device("cpu"), 2

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change

    def check_places(self, num_slots: int) -> None:
        """There is always room."""

    def prefill(self) -> TargetOutput:
        return TargetOutput(torch.zeros(2, 1, 3))

    def forward_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        return TargetOutput(self.change(torch.zeros(*tokens.shape, 3)))


@pytest.mark.parametrize(
    "change", [lambda each: each[:1], lambda each: each.repeat(1, 99, 1), lambda each: each[..., :2]]
)
def test_logits_of_places_are_of_all_that_was_fed(change):
    streams = RandomStreams.from_seeds([0, 1])
    run = new_run(Short(change), order=RowWindows(Lines(16, 4), 2), max_new_tokens=16, sampling=GREEDY, streams=streams)
    value_error(r"Short.forward_places must give logits float32 of shape \[2, \d+, 3\], got ", run.finish)


def test_the_first_rows_of_a_cache_keep_their_own_entries():
    """Where rows lie does not depend on how many there are."""
    caches = []
    for _ in range(2):
        cache = StaticKVCache(2, 4, 1, 6, 2)
        cache._rows.copy_(torch.arange(cache._rows.numel()).view(cache._rows.shape))
        caches.append(cache)
    whole, nodes, counts = caches[0], torch.tensor([[0, 2], [1, 3]]), torch.tensor([2, 2])
    caches[1].first_rows(2).keep(nodes, counts)
    whole.keep(torch.cat([nodes, nodes]), torch.tensor([2, 2, 0, 0]))
    assert torch.equal(whole._rows, caches[1]._rows) and torch.equal(whole.lengths, caches[1].lengths)


def test_what_a_cache_has_no_room_for_is_refused():
    cache = StaticKVCache(1, 2, 1, 4, 2)
    cache.lengths.fill_(3)
    raised(IndexError, "outside", cache.keep, torch.zeros(2, 3, dtype=torch.int64), torch.tensor([0, 3]))
    with pytest.raises(RuntimeError):
        cache.keep(torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
    entries, store = torch.ones(2, 3, 2), torch.zeros(2, 4, 2)
    assert fused_ops.serves(entries, store)
    for first, count in ((2, 3), (0, 4), (-2, 1)):
        with pytest.raises(IndexError, match="outside"):
            fused_ops.store(
                entries, torch.tensor([0, first]), torch.tensor([1, count]), store, 0, torch.zeros(2).long()
            )


@pytest.mark.parametrize("scale", [0, 60])
def test_grown_trees_hold_every_parent(scale):
    """Also where float32 cannot tell scores apart: only one token is possible, or logits are divided by 0.01."""
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        count = 3 + seed % 2

        def made(*shape: int, generator: torch.Generator = generator) -> Tensor:
            logits = torch.randn(*shape, 4, generator=generator)
            return scale * logits if scale else logits.index_fill(-1, torch.tensor([1, 2, 3]), -torch.inf)

        def guess(level: int, tokens: Tensor, *_: Tensor, made: Any = made) -> DraftHeadOutput:
            return DraftHeadOutput(made(*tokens.shape), torch.zeros(*tokens.shape, 2))

        state = state_for(torch.tensor([4, 5]), SamplingConfig(0.01 if scale else 1.0))
        size, feature = DraftSize(13 + seed % 12, 5), torch.zeros(2, 1, 2)
        tree = dynamic_tree(torch.tensor([1, 2]), made(2, 1), feature, state, count, size, guess).tree
        tree.check()


def test_a_library_built_with_other_flags_is_another(monkeypatch):
    compiler = build._compiler()
    assert compiler is not None
    before = build._identity(compiler)
    monkeypatch.setattr(build, "_OWN_FLAGS", {})
    assert build._identity(compiler) != before
