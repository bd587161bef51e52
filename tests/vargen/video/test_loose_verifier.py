"""LVSpec's rule against a loop over its definition, its limits, and on a Video-LLM."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity

from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.loop import DecodeResult, decode
from specdecode.roles import DecodeState, Draft, TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree
from specdecode.verifiers import ExactVerifier
from specdecode.verifiers.loose import LooseVerifier, visual_relevance
from vargen.video.pruning import keep_uniform
from vargen.video.request import keep_visual, prepare_request
from vargen.video.target import VideoTarget

VOCAB, DIM, END = 6, 5, 0


def state_of(batch: int = 1) -> DecodeState:
    return DecodeState(
        torch.zeros(batch, 40, dtype=torch.long),
        torch.full((batch,), 3),
        torch.ones(batch, dtype=torch.bool),
        40,
        SamplingConfig(temperature=0.0),
        RandomStreams.from_seeds(list(range(batch))),
    )


@st.composite
def windows(draw: st.DrawFn) -> tuple[Draft, TargetOutput, Tensor]:
    """A drafted chain, what the target says of it, and visual states."""
    length = draw(st.integers(1, 8))
    tokens = [draw(st.integers(0, VOCAB - 1)) for _ in range(length + 1)]
    wanted = [draw(st.integers(0, VOCAB - 1)) for _ in range(length + 1)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    states = torch.randn(1, length + 1, DIM, generator=generator)
    visual = torch.randn(draw(st.integers(1, 6)), DIM, generator=generator)
    logits = torch.nn.functional.one_hot(torch.tensor([wanted]), VOCAB).float() * 9
    return Draft(TokenTree.chain(torch.tensor([tokens]))), TargetOutput(logits, states), visual


def slow_rule(
    draft: Draft, output: TargetOutput, visual: Tensor, ratio: float, nearest: int, shift: bool, first: int
) -> tuple[list[int], int]:
    """Accepted tokens and the one after them, one token at a time."""
    tokens = draft.tree.tokens[0].tolist()
    assert output.hidden_states is not None
    wanted = output.logits[0].argmax(-1).tolist()
    drafted = tokens[1:]
    relevance = []
    for number in range(len(drafted)):
        state = output.hidden_states[0, number + first]
        cosines = sorted((float(cosine_similarity(state, each, dim=0)) for each in visual), reverse=True)
        relevance.append(sum(cosines[:nearest]) / min(nearest, len(cosines)))
    order = sorted(range(len(drafted)), key=lambda i: relevance[i])
    loose = set(order[: math.floor(ratio * len(drafted) + 1e-6)])
    accepted: list[int] = []
    for number, token in enumerate(drafted):
        target = wanted[number]
        passes = token == target
        if ratio > 0 and END not in (token, target):
            passes = passes or number in loose or (shift and target in drafted)
        if not passes:
            break
        accepted.append(token)
    return accepted, wanted[len(accepted)]


@settings(max_examples=150, deadline=None)
@given(
    windows(),
    st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["token", "prediction"]),
)
def test_the_rule_against_its_definition(
    window: tuple[Draft, TargetOutput, Tensor], ratio: float, nearest: int, shift: bool, source: str
) -> None:
    draft, output, visual = window
    verifier = LooseVerifier(lambda: visual, ratio, nearest, shift, [END], source)
    verdict = verifier.accept(draft, output, state_of())
    accepted, following = slow_rule(draft, output, visual, ratio, nearest, shift, 1 if source == "token" else 0)
    count = int(verdict.accepted[0])
    assert draft.tree.tokens[0, 1 : count + 1].tolist() == accepted
    assert int(verdict.next_tokens[0]) == following
    wanted = output.logits[0].argmax(-1)
    assert verdict.relaxed is not None
    relaxed = verdict.relaxed[0, :count]
    assert torch.equal(relaxed, draft.tree.tokens[0, 1 : count + 1] != wanted[:count])


@settings(max_examples=60, deadline=None)
@given(windows())
def test_lambda_zero_is_the_exact_walk(window: tuple[Draft, TargetOutput, Tensor]) -> None:
    draft, output, visual = window
    verifier = LooseVerifier(lambda: visual, 0.0, position_shift=True)
    assert verifier.exact
    ours, exact = (each.accept(draft, output, state_of()) for each in (verifier, ExactVerifier()))
    assert torch.equal(ours.accepted, exact.accepted) and torch.equal(ours.next_tokens, exact.next_tokens)


@settings(max_examples=60, deadline=None)
@given(windows())
def test_lambda_one_accepts_all_but_protected_tokens_and_more_lambda_never_accepts_less(
    window: tuple[Draft, TargetOutput, Tensor],
) -> None:
    draft, output, visual = window
    counts = [
        int(LooseVerifier(lambda: visual, ratio, 3, False).accept(draft, output, state_of()).accepted[0])
        for ratio in (0.0, 0.2, 0.5, 0.8, 1.0)
    ]
    assert counts == sorted(counts) and counts[-1] == draft.tree.num_nodes - 1
    protected = LooseVerifier(lambda: visual, 1.0, 3, True, protected_tokens=range(VOCAB))
    exact = ExactVerifier().accept(draft, output, state_of())
    assert torch.equal(protected.accept(draft, output, state_of()).accepted, exact.accepted)


def test_relevance_tells_visual_words_from_fillers() -> None:
    generator = torch.Generator().manual_seed(0)
    visual = torch.randn(50, 32, generator=generator)
    words = visual[torch.randint(50, (30,), generator=generator)] + 0.8 * torch.randn(30, 32, generator=generator)
    fillers = torch.randn(30, 32, generator=generator)
    scores = [visual_relevance(each[None], visual, 3)[0] for each in (words, fillers)]
    area = float((scores[0][:, None] > scores[1][None]).double().mean())
    assert area > 0.95


def test_drafts_it_cannot_judge_are_refused() -> None:
    visual = torch.randn(3, DIM)
    chain = TokenTree.chain(torch.tensor([[1, 2]]))
    output = TargetOutput(torch.zeros(1, 2, VOCAB), torch.zeros(1, 2, DIM))
    verifier = LooseVerifier(lambda: visual)
    with pytest.raises(ValueError, match="were drawn"):
        verifier.accept(Draft(chain, torch.zeros(1, 2, VOCAB)), output, state_of())
    with pytest.raises(ValueError, match="hidden states"):
        verifier.accept(Draft(chain), TargetOutput(output.logits), state_of())
    tree = TokenTree(
        torch.tensor([[1, 2, 3]]),
        torch.tensor([[-1, 0, 0]]),
        torch.tensor([[0, 1, 1]]),
        torch.ones(1, 3, dtype=torch.bool),
        1,
        2,
    )
    with pytest.raises(ValueError, match="chains only"):
        verifier.accept(Draft(tree), output, state_of())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loose_ratio": 1.1}, "loose_ratio"),
        ({"loose_ratio": -0.1}, "loose_ratio"),
        ({"num_nearest": 0}, "num_nearest"),
        ({"relevance_from": "both"}, "relevance_from"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LooseVerifier(lambda: torch.zeros(1, 1), **options)


def loose_answer(model: Any, inputs: dict[str, Tensor], ratio: float, **options: Any) -> DecodeResult:
    request = prepare_request(model, inputs)
    target = VideoTarget(model, request)
    pruned = VideoTarget(model, keep_visual(request, keep_uniform(request.num_visual, 3)))

    def visual() -> Tensor:
        assert target.visual_hidden_states is not None
        return target.visual_hidden_states

    return decode(
        target,
        max_new_tokens=30,
        sampling=SamplingConfig(temperature=0.0),
        streams=RandomStreams.from_seeds([0]),
        drafter=DraftModelDrafter(pruned, FixedDraftSize(DraftSize(7, 6)), children="top"),
        verifier=LooseVerifier(visual, ratio, **options),
    )


def test_on_a_video_model_looseness_saves_passes_and_none_is_strict(
    architecture: str, models: Callable[..., Any], inputs_of: Callable[..., dict[str, Tensor]]
) -> None:
    model, inputs = models(architecture), inputs_of(architecture, 3)
    results = [loose_answer(model, inputs, ratio) for ratio in (0.0, 0.7, 1.0)]
    plain = model.generate(**inputs, max_new_tokens=30, do_sample=False, eos_token_id=[-1])
    assert results[0].tokens[0].tolist() == plain[0, inputs["input_ids"].shape[1] :].tolist()
    passes = [result.trace.target_passes for result in results]
    assert passes == sorted(passes, reverse=True) and passes[-1] == 1 + -(-29 // 7)
