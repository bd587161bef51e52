"""What an edit kept and changed, on pictures whose differences are known."""

import torch
from refusals import raised

from metrics.edits import edit_figures
from metrics.errors import DataError


def test_errors_are_apart_and_one_level_outside_is_seen():
    before = torch.full((3, 3, 4, 4), 100, dtype=torch.uint8)
    drawn = torch.zeros(3, 4, 4, dtype=torch.bool)
    drawn[:2, 2:] = True
    after = before.clone()
    after[:2, :, 2:] += 10
    after[1, 0, 0, 0] -= 1
    figures = edit_figures(before, after, drawn)
    assert figures.kept.tolist() == [True, False, True]
    assert figures.drawn_error[:2].tolist() == [10, 10] and figures.drawn_error[2].isnan()
    torch.testing.assert_close(figures.known_error, torch.tensor([0, (1 / 24) ** 0.5, 0]))
    raised(DataError, "one size", edit_figures, before, after, drawn[:, :2])
