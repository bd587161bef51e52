"""Logits that are no numbers end a run, whichever step, row and loop they come from; a forbidden token ends none."""

import pytest
import torch
from synthetic import MarkovTarget, chain_of, decoded, random_table
from torch import Tensor

from specdecode import JacobiDrafter, LogitsError, SamplingConfig, TargetOutput


class _Faulty(MarkovTarget):
    """Says `value` for the tokens `places` of row 1 from pass `first` on."""

    def __init__(self, first: int, value: float, places: slice = slice(None)) -> None:
        super().__init__(random_table(5, seed=0), torch.tensor([[0, 1], [2, 3], [4, 0]]), capacity=16)
        self.first, self.value, self.places, self.passes = first, value, places, 0

    def prefill(self) -> TargetOutput:
        return self._spoil(super().prefill())

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        return self._spoil(super().forward(tokens, mask, depths))

    def _spoil(self, output: TargetOutput) -> TargetOutput:
        logits = output.logits.clone()
        if self.passes >= self.first:
            logits[1, :, self.places] = self.value
        self.passes += 1
        return TargetOutput(logits, output.hidden_states)


def _run(target: MarkovTarget, temperature: float, drafted: bool) -> Tensor:
    drafter = JacobiDrafter(5, chain_of(2)) if drafted else None
    return decoded(target, 8, SamplingConfig(temperature), drafter=drafter).tokens


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("value", "places"),
    [(torch.nan, slice(None)), (torch.nan, slice(3, 4)), (torch.inf, slice(2, 3)), (-torch.inf, slice(None))],
)
@pytest.mark.parametrize("first", [0, 2])
def test_the_row_and_the_step_are_named(first, value, places, temperature, drafted):
    with pytest.raises(LogitsError, match=f"row 1 are not finite at step {first}") as raised:
        _run(_Faulty(first, value, places), temperature, drafted)
    assert (raised.value.row, raised.value.step) == (1, first)


def test_a_forbidden_token_is_no_fault():
    assert not bool((_run(_Faulty(0, -torch.inf, slice(2, 3)), 1.0, False)[1] == 2).any())
