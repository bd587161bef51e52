"""A sheet has room for every picture and its caption."""

from __future__ import annotations

import pytest
from PIL import Image

from vargen.drawing.sheet import contact_sheet


def test_sheets_have_a_caption_for_every_picture() -> None:
    image = Image.new("RGB", (32, 32), "red")
    sheet = contact_sheet([image] * 3, ["a red square", "", "one\ntwo"], columns=2)
    assert sheet.getpixel((8 + 80, 8 + 16)) == (255, 0, 0)
    assert any(sheet.getpixel((x, 8 + 32 + 12)) != (255, 255, 255) for x in range(8, 100))
    with pytest.raises(ValueError, match="2 given for 1 images"):
        contact_sheet([image], ["a", "b"])
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([], [])


def test_what_is_transparent_stays_white() -> None:
    image = Image.new("RGBA", (32, 32), (255, 0, 0, 255))
    image.paste((0, 0, 255, 0), (0, 16, 32, 32))
    sheet = contact_sheet([image], [""])
    assert [sheet.getpixel((8 + 16, 8 + y)) for y in (4, 28)] == [(255, 0, 0), (255, 255, 255)]
