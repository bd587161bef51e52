"""Which path is taken, how much of it, and when: against slow loops over paths."""

import itertools
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_chains import state_for
from refusals import raised
from torch import Tensor

from specdecode.roles import DecodeState, Draft, Selection
from specdecode.sampling import SamplingConfig, Tag
from specdecode.tree import TokenTree
from vargen.methods.vvs.feature_cache import FeatureCache
from vargen.methods.vvs.schedule import (
    DynamicSchedule,
    LikenessSchedule,
    UniformSchedule,
    path_likeness,
    tree_similarity,
)
from vargen.methods.vvs.selector import PathSelector, _mean_similarity

VOCAB = 9
CODEBOOK = torch.nn.functional.normalize(torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(0)), dim=1)


def state_of(lengths: list[int]) -> DecodeState:
    return state_for(torch.tensor(lengths), SamplingConfig(), most=64)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Two rows of random trees, some nodes of which are padding."""
    num_nodes = draw(st.integers(1, 9))
    rows = []
    for _ in range(2):
        parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, num_nodes)]
        kept = draw(st.integers(1, num_nodes))
        tokens = [draw(st.integers(0, VOCAB - 1)) for _ in range(num_nodes)]
        rows.append((tokens, parents, [node < kept for node in range(num_nodes)]))
    tokens, parents, valid = (torch.tensor(part) for part in zip(*rows, strict=True))
    confidence = -torch.rand(2, num_nodes, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return Draft(TokenTree.from_parents(tokens, parents, valid), confidence=confidence)


def leaf_paths(draft: Draft, row: int) -> list[list[int]]:
    """Nodes below the root on the way to each leaf, in node order."""
    tree = draft.tree
    parents, valid = tree.parents[row].tolist(), tree.valid[row].tolist()
    paths = []
    for node in range(1, tree.num_nodes):
        if valid[node] and node not in parents:
            path, above = [], node
            while above > 0:
                path.append(above)
                above = parents[above]
            paths.append(path[::-1])
    return paths


@settings(deadline=None)
@given(drafts(), st.sampled_from(["sample", "confidence", "central", "drafter"]), st.booleans())
def test_selected_tokens_are_the_start_of_a_leaf_path(draft, choice, truncate):
    selection = PathSelector(choice, truncate, CODEBOOK)(draft, state_of([7, 8]))  # type: ignore[arg-type]
    for row in range(2):
        paths = leaf_paths(draft, row)
        count = int(selection.counts[row])
        if not paths:
            assert count == 0
            continue
        chosen = selection.path[row, 1 : 1 + count].tolist()
        fitting = [path for path in paths if path[:count] == chosen]
        assert fitting and count >= 1
        mean = math.floor(sum(map(len, paths)) / len(paths))
        assert any(count == (min(len(path), mean) if truncate else len(path)) for path in fitting)
        if choice == "confidence":
            assert draft.confidence is not None
            best = max(paths, key=lambda path: float(draft.confidence[row, path[-1]]))
            assert chosen == best[:count]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [("sample", [0, 1 / 3, 0, 1 / 3, 1 / 3]), ("drafter", [0, 3 / 4, 0, 1 / 4 * 3 / 4, 1 / 4 * 1 / 4])],
)
def test_paths_are_drawn_uniformly_over_leaves_not_nodes_or_by_the_drafters_probabilities(choice, wanted):
    """Three leaves: one bare child, and two below another child. Below the root 0.6 and 0.2; below the second 0.3 and
    0.1 of it: only shares among siblings count."""
    rows = 6000
    parents = torch.tensor([[-1, 0, 0, 2, 2]]).expand(rows, -1)
    confidence = torch.tensor([[1.0, 0.6, 0.2, 0.2 * 0.3, 0.2 * 0.1]]).log().expand(rows, -1)
    draft = Draft(TokenTree.from_parents(torch.arange(5).expand(rows, -1), parents), confidence=confidence)
    selection = PathSelector(choice, truncate=False)(draft, state_of([3] * rows))
    last = selection.path.gather(1, selection.counts[:, None])[:, 0]
    for share, chance in zip((last.bincount(minlength=5) / rows).tolist(), wanted, strict=True):
        assert share == pytest.approx(chance, abs=0.03 if chance else 0)


@pytest.mark.parametrize("choice", ["sample", "drafter"])
def test_paths_are_drawn_with_numbers_of_their_own(choice):
    """The same numbers as the drafter's or the target's would tie which path is taken to what was drafted."""
    draft = simple_draft([[0, 1, 2]] * 2)
    draft.confidence = torch.tensor([[1.0, 0.5, 0.4]] * 2).log()
    state = state_of([7, 9])
    asks = [Mock(wraps=getattr(state.streams, name)) for name in ("uniform", "exponential")]
    state.streams.uniform, state.streams.exponential = asks
    PathSelector(choice)(draft, state)  # type: ignore[arg-type]
    used = [call.args for ask in asks for call in ask.call_args_list]
    assert {(tag, *counters.flatten().tolist()) for tag, counters, *_ in used} == {(Tag.SKIP, 7, 9)}


def slow_likeness(draft: Draft, row: int, path: list[int]) -> list[float]:
    assert draft.confidence is not None
    tree, confidence = draft.tree, draft.confidence[row].tolist()
    parents, valid, tokens = tree.parents[row].tolist(), tree.valid[row].tolist(), tree.tokens[row].tolist()
    likeness = []
    for node in path:
        total = 0.0
        for other in range(1, tree.num_nodes):
            if valid[other] and parents[other] == parents[node]:
                given = math.exp(confidence[other] - confidence[parents[node]])
                total += given * max(0.0, float(CODEBOOK[tokens[other]] @ CODEBOOK[tokens[node]]))
        likeness.append(total)
    return likeness


@settings(deadline=None)
@given(drafts(), st.sampled_from([0.0, 0.4, 0.8]), st.integers(1, 3))
def test_likeness_schedules_take_a_path_as_far_as_it_is_like(draft, threshold, min_count):
    selector = PathSelector("confidence", truncate=False)
    whole = selector(draft, state_of([20, 20]))
    fast = path_likeness(draft, whole.path, CODEBOOK)
    schedule = LikenessSchedule(threshold, selector, CODEBOOK, min_count=min_count)
    selection = schedule.select(draft, state_of([20, 20]))
    for row in range(2):
        path = whole.path[row, 1 : 1 + int(whole.counts[row])].tolist()
        slow = slow_likeness(draft, row, path)
        assert fast[row, : len(path)].tolist() == pytest.approx(slow, abs=1e-5)
        count = next((i for i, value in enumerate(slow) if value < threshold), len(slow))
        if all(abs(value - threshold) > 1e-5 for value in slow):
            wanted = count if count >= min_count else 0
            assert wanted == (0 if selection is None else int(selection.counts[row]))


@settings(deadline=None)
@given(drafts(), st.integers(0, 99))
def test_likeness_of_sampled_tokens_is_a_mean_under_what_they_were_drawn_from(draft, seed):
    draft.probabilities = torch.rand(2, draft.tree.num_nodes, VOCAB, generator=torch.Generator().manual_seed(seed))
    selection = PathSelector("drafter", truncate=False)(draft, state_of([20, 20]))
    fast = path_likeness(draft, selection.path, CODEBOOK)
    for row in range(2):
        path = selection.path[row, 1 : 1 + int(selection.counts[row])].tolist()
        parents = draft.tree.parents[row].tolist()
        for level, node in enumerate(path):
            valid = draft.tree.valid[row].tolist()
            siblings = [i for i in range(1, draft.tree.num_nodes) if parents[i] == parents[node] and valid[i]]
            assert node == siblings[0]  # the first draw
            own, given = CODEBOOK[draft.tree.tokens[row, node]], draft.probabilities[row, node].tolist()
            wanted = sum(chance * max(0.0, float(CODEBOOK[y] @ own)) for y, chance in enumerate(given))
            assert float(fast[row, level]) == pytest.approx(wanted, abs=1e-4)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**31), st.integers(2, 6), st.sampled_from([0.3, 0.5, 0.6]), st.integers(1, 3), st.integers(5, 8))
def test_kernels_take_what_torch_takes_of_chains_and_other_trees(
    own_kernels, monkeypatch, seed, nodes, threshold, least, early
):
    generator = torch.Generator().manual_seed(seed)
    chain = TokenTree.chain(torch.randint(0, VOCAB, (5, nodes), generator=generator))
    chain = chain.clip(torch.randint(0, nodes, (5,), generator=generator))
    probabilities = (3 * torch.randn(5, nodes, VOCAB, generator=generator)).softmax(-1)
    state = state_of([4, 6, 7, 8, 20])
    state.active = torch.rand(5, generator=generator) > 0.2
    schedule = LikenessSchedule(threshold, PathSelector(truncate=False), CODEBOOK, min_count=least)
    schedule.min_tokens = early
    found = []
    for kernels, tree in itertools.product(("plain", "auto"), (chain, replace(chain, max_children=2))):
        monkeypatch.setenv("VARGEN_KERNELS", kernels)
        selection = schedule.select(Draft(tree, probabilities), state)
        found.append(None if selection is None else selection.counts.tolist())
    assert found == [found[0]] * 4 and found[0] != [0] * 5


def test_likeness_schedules_wait_for_the_first_tokens():
    draft = simple_draft([[0, 3, 3]] * 2)
    draft.confidence = torch.tensor([[0.0, math.log(0.5), math.log(0.5)]] * 2)
    schedule = LikenessSchedule(0.9, PathSelector("drafter"), CODEBOOK, min_count=1)
    selection = schedule.select(draft, state_of([6, 5]))
    assert selection is not None and selection.counts.tolist() == [1, 0]


def slow_similarity(draft: Draft, row: int, alpha: float, stride: int) -> float:
    paths = leaf_paths(draft, row)[::stride]
    if len(paths) < 2:
        return 0.0
    longest = max(map(len, paths))
    weights = [alpha**level for level in range(1, longest + 1)]
    tokens = draft.tree.tokens[row].tolist()
    total = 0.0
    for level in range(longest):
        cosines = []
        for n, first in enumerate(paths):
            for second in paths[n + 1 :]:
                if level < len(first) and level < len(second):
                    cosines.append(float(CODEBOOK[tokens[first[level]]] @ CODEBOOK[tokens[second[level]]]))
                else:
                    cosines.append(0.0)
        total += weights[level] / sum(weights) * sum(cosines) / len(cosines)
    return total


@settings(deadline=None)
@given(drafts(), st.floats(0.3, 1.0), st.integers(1, 3))
def test_similarity_is_the_weighted_mean_cosine_over_pairs(draft, alpha, stride):
    fast = tree_similarity(draft, CODEBOOK, alpha, stride)
    for row in range(2):
        assert float(fast[row]) == pytest.approx(slow_similarity(draft, row, alpha, stride), abs=1e-5)


def simple_draft(tokens: list[list[int]]) -> Draft:
    return Draft(TokenTree.from_parents(torch.tensor(tokens), torch.tensor([[-1, 0, 0]]).expand(len(tokens), -1)))


def asked(schedule: UniformSchedule, draft: Draft, lengths: list[int]) -> Selection | None:
    """What a schedule takes at one step."""
    schedule.prepare()
    return schedule.select(draft, state_of(lengths))


def skipped_before(schedule: UniformSchedule, steps: int, length: int = 20) -> list[bool]:
    draft = simple_draft([[0, 1, 2]])
    schedule.start(state_of([length]))
    selections = [asked(schedule, draft, [length]) for _ in range(steps)]
    return [selection is not None and bool(selection.counts[0] > 0) for selection in selections]


def test_uniform_schedules_skip_one_iteration_of_i():
    selector = PathSelector()
    assert skipped_before(UniformSchedule(2, selector), 5) == [False, True, True, True, True]
    assert skipped_before(UniformSchedule(3, selector), 6) == [False, False, True, False, True, False]
    assert skipped_before(UniformSchedule(4, selector), 8) == [False] * 3 + [True, False, False, True, False]
    assert skipped_before(UniformSchedule(2, selector), 3, length=5) == [False] * 3
    schedule = UniformSchedule(3, selector)
    first = skipped_before(schedule, 3)
    assert skipped_before(schedule, 3) == first, "a new batch begins anew"


def test_rows_that_begin_later_skip_later():
    schedule, joining = UniformSchedule(3, PathSelector()), UniformSchedule(3, PathSelector())
    schedule.start(state_of([20, 20]))
    assert asked(schedule, simple_draft([[0, 1, 2]] * 2), [20, 20]) is None
    joining.start(state_of([20]))
    schedule.replace_rows(torch.tensor([1]), joining)
    skipped = []
    for _ in range(6):
        selection = asked(schedule, simple_draft([[0, 1, 2]] * 2), [20, 20])
        skipped.append([False, False] if selection is None else (selection.counts > 0).tolist())
    assert [row[0] for row in skipped[:5]] == skipped_before(UniformSchedule(3, PathSelector()), 6)[1:]
    assert [row[1] for row in skipped] == skipped_before(UniformSchedule(3, PathSelector()), 6)


def test_dynamic_schedules_skip_rows_whose_paths_are_alike(monkeypatch):
    monkeypatch.setattr("vargen.methods.vvs.schedule._PATH_STRIDE", 1)
    schedule = DynamicSchedule(0.9, PathSelector(), CODEBOOK)
    unlike = int((CODEBOOK @ CODEBOOK[3]).argmin())
    draft = simple_draft([[0, 3, 3], [0, 3, unlike], [0, 3, 3]])
    selection = schedule.select(draft, state_of([20, 20, 5]))
    assert selection is not None and selection.counts.tolist() == [1, 0, 0]
    assert schedule.select(simple_draft([[0, 3, unlike]]), state_of([20])) is None


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 4))
def test_stand_ins_are_the_newest_known_features_in_order(writes, count):
    cache = FeatureCache(20)
    cache.start(torch.full((1, 1, 1), -1.0))
    position, known = 0, [-1]
    for width in writes:
        features = torch.arange(position, position + width).view(1, width, 1).float()
        cache.write(features, torch.tensor([position]), torch.tensor([width]))
        known += range(position, position + width)
        position += width
    read = cache.read(torch.tensor([position]), torch.tensor([count]), 4)[0, :count, 0].tolist()
    newest = len(known) - 1
    wanted = [known[max(0, index)] for index in range(newest - count + 1, newest + 1)]
    assert read == wanted
    assert cache.at(torch.arange(position)[None])[0, :, 0].tolist() == known[1:]


def test_rows_write_only_what_they_have():
    cache = FeatureCache(4)
    cache.start(torch.zeros(2, 1, 1))
    cache.write(torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]]), torch.tensor([0, 0]), torch.tensor([2, 0]))
    kept: Tensor = cache.at(torch.tensor([[0, 1], [0, 1]]))
    assert kept[..., 0].tolist() == [[1, 2], [0, 0]]
    assert cache.read(torch.tensor([2, 0]), torch.tensor([1, 1]), 1)[..., 0].tolist() == [[2], [0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformSchedule(1, PathSelector()), "interval"),
        (lambda: DynamicSchedule(1.5, PathSelector(), CODEBOOK), "threshold"),
        (lambda: LikenessSchedule(1.2, PathSelector(), CODEBOOK), "threshold"),
        (lambda: LikenessSchedule(0.5, PathSelector(), CODEBOOK, min_count=0), "min_count"),
        (lambda: PathSelector("best"), "choice"),  # type: ignore[arg-type]
        (lambda: PathSelector("central"), "codebook"),
        (lambda: PathSelector("confidence")(simple_draft([[0, 1, 2]]), state_of([4])), "how sure it is"),
    ],
)
def test_what_cannot_be_used_is_named(make, message):
    raised(ValueError, message, make)


def chain_of_certainty(tokens: list[int]) -> Draft:
    """A chain whose guesses were certain, of codes that are unlike each other."""
    tree = TokenTree.chain(torch.tensor([tokens]))
    return Draft(tree, torch.nn.functional.one_hot(tree.tokens, 4).float())


def test_a_likeness_that_is_just_enough_is_taken_and_a_similarity_that_is_just_the_threshold_is_not():
    class Takes:
        def __call__(self, draft: Draft, state: DecodeState) -> Selection:
            return Selection(torch.arange(3)[None], torch.tensor([2]))

    draft, codebook = chain_of_certainty([0, 1, 2]), torch.eye(4)
    assert path_likeness(draft, torch.arange(3)[None], codebook).tolist() == [[1.0, 1.0]]
    selection = LikenessSchedule(1.0, Takes(), codebook).select(draft, state_of([9]))  # type: ignore[arg-type]
    assert selection is not None and selection.counts.tolist() == [2]

    class Same(DynamicSchedule):
        similarity = 0.0

        def _similarity(self, draft: Draft) -> Tensor:
            return torch.tensor([self.similarity])

    schedule = Same(0.5, Takes(), codebook)  # type: ignore[arg-type]
    for schedule.similarity, takes in ((0.5, False), (0.5001, True)):
        assert (schedule.select(draft, state_of([9])) is not None) is takes


def test_padding_is_no_sibling_of_the_token_that_is_taken():
    """Two children of the root, the second of which is padding; padding has the token 0, as the first child has."""
    parts = torch.tensor([[1, 0, 0]]), torch.tensor([[-1, 0, 0]]), torch.tensor([[True, True, False]])
    draft = Draft(TokenTree.from_parents(*parts), confidence=torch.tensor([[0.0, -1.0, -1.0]]))
    likeness = path_likeness(draft, torch.tensor([[0, 1]]), torch.eye(4))
    assert torch.allclose(likeness, torch.tensor([[math.exp(-1)]]))


def test_the_central_path_is_the_likest_per_token_and_not_the_longest():
    """A long path that is half like the others, and short ones that are wholly like each other."""
    codebook = torch.eye(6)
    tokens = torch.tensor([[0, 1, 1, 1, 2, 3]])  # two short paths of token 1; one of tokens 1, 2, 3
    parents = torch.tensor([[-1, 0, 0, 0, 3, 4]])
    draft = Draft(TokenTree.from_parents(tokens, parents, torch.ones(1, 6, dtype=torch.bool)))
    leaves = draft.tree.leaves()
    means = _mean_similarity(draft, leaves, codebook)[0]
    assert torch.allclose(means[leaves[0]], torch.tensor([3.0, 3.0, (3.0 + 1.0 + 1.0) / 3]))
