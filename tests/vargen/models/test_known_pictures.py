"""What a user's picture makes known, by hand."""

import numpy as np
import torch
from PIL import Image

from vargen.models.known_pictures import KnownPicture, _known_picture, tokens_of


def test_a_picture_in_another_size_stays_between_black_and_white():
    """Bicubic weights are negative beside an edge."""
    stripes = np.kron(np.array([[0, 255] * 4]), np.ones((24, 3)))[..., None].repeat(3, 2).astype(np.uint8)
    made = _known_picture(Image.fromarray(stripes), None, 1, (2, 2), 8, lambda pixels: torch.zeros(1, 2, 2).long())
    assert made.pixels.shape == (3, 16, 16) and made.pixels.amin() == -1 and made.pixels.amax() == 1


def test_a_mark_stays_whatever_its_token():
    codes, drawn = torch.tensor([[5, 6], [7, 8]]), torch.tensor([[False, False], [True, True]])
    known = KnownPicture(torch.zeros(3, 2, 2), drawn, codes, drawn)
    given, whole = tokens_of([known], 1, [torch.tensor([-1, -1, 0, -1, -1])], 6, torch.device("cpu"))
    assert given.tolist() == [[5, 6, 0, -1, -1, -1]] and whole.tolist() == [[5, 6, 0, 7, 8, -1]]
