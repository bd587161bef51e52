"""VVS on trees of drawn tokens: what a skip takes is drawn as the drafter would, and the rest is judged exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from random_chains import state_for
from seeds import seeded
from torch import Tensor

from specdecode.roles import DecodeState, Draft
from specdecode.sampling import SamplingConfig, Tag
from specdecode.tree import TokenTree
from vargen.methods.catalogue import resolve_method
from vargen.methods.vvs.schedule import LikenessSchedule
from vargen.methods.vvs.selector import PathSelector
from vargen.pipelines.llamagen import LlamaGenPipeline

ROWS = 6000
CHANCES = torch.tensor([0.5, 0.3, 0.15, 0.05])
CODES = torch.eye(4)
BUSH = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
LIKENESS = {"tree": BUSH, "depth": 3, "children": "sampled", "delta": 0.0, "schedule": "likeness", "truncate": False}


def drawn_siblings() -> tuple[Draft, DecodeState]:
    """A root with two children, drawn in order and without replacement, as `EagleDrafter` draws them."""
    state = state_for(torch.full((ROWS,), 7), SamplingConfig(), most=16)
    counters = torch.full((ROWS, 1), 7)
    order = (CHANCES / state.streams.exponential(Tag.DRAFT, counters, 4)[:, 0]).argsort(dim=1, descending=True)[:, :2]
    tokens = torch.cat((torch.zeros(ROWS, 1, dtype=torch.int64), order), 1)
    first = CHANCES.expand(ROWS, -1)
    left = first.scatter(1, order[:, :1], 0.0)
    probabilities = torch.stack((torch.zeros_like(first), first, left / left.sum(1, keepdim=True)), 1)
    tree = TokenTree.from_parents(tokens, torch.tensor([[-1, 0, 0]]).expand(ROWS, -1))
    return Draft(tree, probabilities), state


def shares_taken(choice: Any) -> Tensor:
    """[V]: how often each token is taken."""
    draft, state = drawn_siblings()
    selection = PathSelector(choice, truncate=False)(draft, state)
    return draft.tree.tokens.gather(1, selection.path[:, 1:])[:, 0].bincount(minlength=4) / ROWS


def test_the_drafters_choice_takes_what_the_drafter_would_draw():
    assert (shares_taken("drafter") - CHANCES).abs().max() < 0.02


def test_the_likeness_of_a_first_child_is_its_own_probability_where_codes_are_nothing_alike():
    draft, state = drawn_siblings()
    schedule = LikenessSchedule(0.4, PathSelector("drafter", truncate=False), CODES, min_count=1)
    selection = schedule.select(draft, state)
    assert selection is not None
    likely = draft.tree.tokens[:, 1] == 0  # of probability one half; the others have less than 0.4
    assert torch.equal(selection.counts, likely.long())


def make(pipeline: LlamaGenPipeline, method: str, options: dict[str, Any]) -> Any:
    generators = seeded(*range(3))
    prompts = ["a red cube", "two cones", "a small blue sphere"]
    return pipeline(prompts, generator=generators, method=resolve_method(method, options), output_type="latent")


def test_a_likeness_that_nothing_reaches_leaves_the_exact_method(drafting_pipeline):
    """Token for token: nothing of skipping is left in what is judged."""
    exact = make(drafting_pipeline, "eagle", {"tree": BUSH, "depth": 3, "children": "sampled"})
    never = make(drafting_pipeline, "vvs", {**LIKENESS, "choice": "drafter", "threshold": 1.0})
    always = make(drafting_pipeline, "vvs", {**LIKENESS, "choice": "drafter", "threshold": 0.0})
    assert never.trace.skipped_tokens == 0 and torch.equal(never.tokens, exact.tokens)
    assert always.trace.skipped_tokens > 0 and always.trace.target_passes < exact.trace.target_passes


@pytest.mark.parametrize("nodes", [9, 25, 57])
def test_studied_trees_are_those_of_the_exact_method(nodes):
    folder = Path(__file__).parents[4] / "benchmarks" / "methods"
    drawn, exact = (resolve_method(str(folder / f"{kind}-sampled-{nodes}.yaml")) for kind in ("likeness", "eagle"))
    assert (drawn.tree, drawn.depth, drawn.children) == (exact.tree, exact.depth, exact.children)  # type: ignore[attr-defined]
    assert drawn.max_draft_nodes(256) >= exact.max_draft_nodes(256) >= nodes + 1
    assert drawn.delta == 0 and drawn.choice == "drafter"  # type: ignore[attr-defined]
