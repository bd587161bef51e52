"""What the target of every family over a model of transformers does: a family's test file subclasses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from synthetic import GREEDY, chi_square_p_value, decoded
from torch import Tensor

from specdecode import DecodeResult, Drafter, DraftModelTreeDrafter, ForcedTokensDrafter, SamplingConfig, StaticTree
from vargen.methods.catalogue import resolve_method


def run(target: Any, drafter: Drafter | None = None, sampling: SamplingConfig = GREEDY, **more: Any) -> DecodeResult:
    return decoded(target, target.max_new_tokens, sampling, drafter=drafter, **more)


def p_value(components: Any, method: str, options: Any, sampling: SamplingConfig, probabilities: Tensor) -> float:
    """Of the pictures that a method draws, one for each row, where each picture [V ** N] has a known probability."""
    target, players = components.target, resolve_method(method, options).build(components)
    drafter = players.drafter
    if drafter is not None and hasattr(target, "forced_tokens"):
        drafter = ForcedTokensDrafter(drafter, target.forced_tokens, target.vocab_size)
    tokens = run(target, drafter, sampling, verifier=players.verifier).tokens
    return chi_square_p_value(tokens, probabilities, target.vocab_size)


def picture_probabilities(of_next: Callable[[Tensor], Tensor], codes: int, places: int) -> Tensor:
    """[V ** N] float64 of every picture, where `of_next` tells the probabilities [R, V] behind tokens [R, n]."""
    joint = torch.ones(1, dtype=torch.float64)
    for length in range(places):
        before = torch.tensor([*itertools.product(range(codes), repeat=length)]).long()
        joint = (joint[:, None] * of_next(before)).flatten()
    return joint


class TargetContract:
    """Tests of the fixture `drawn` of a file: a setting, and the greedy tokens [3, N] that transformers draws
    with it, of prompts of different lengths."""

    def build(self, setting: Any, nodes: int = 1, disturbed: bool = False) -> Any:
        """The target for a setting, with room for so many nodes; `disturbed`: of a model much like the family's."""
        raise NotImplementedError

    def test_prompts_of_different_lengths_in_one_batch(self, drawn: tuple[Any, Tensor]) -> None:
        setting, wanted = drawn
        assert len(set(wanted.flatten().tolist())) > 6, "or the comparison says little"
        target = self.build(setting)
        assert torch.equal(run(target).tokens, wanted)
        assert target.kv_cache is not None and target.kv_cache.batch_size == 3 * target.rows_per_sequence
        assert target.prefill().hidden_states.shape[-1] == 32 * target.rows_per_sequence

    @pytest.mark.parametrize("shape", ["3 / 2 1 / 1", "1 / 1 / 1"])
    def test_a_tree_with_wrong_siblings_changes_no_token(self, drawn: tuple[Any, Tensor], shape: str) -> None:
        (setting, wanted), tree = drawn, StaticTree.from_child_counts(shape)
        target, smaller = (self.build(setting, tree.num_nodes, disturbed) for disturbed in (False, True))
        result = run(target, DraftModelTreeDrafter(smaller, tree))
        assert torch.equal(result.tokens, wanted)
        assert result.trace.mean_accepted_length > 0 and result.trace.target_passes < target.max_new_tokens
