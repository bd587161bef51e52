"""A sheet has room for every picture and its caption."""

from PIL import Image, ImageFont
from refusals import raised

from vargen.drawing.sheet import contact_sheet, wrap_text


def test_sheets_have_a_caption_for_every_picture():
    image = Image.new("RGB", (32, 32), "red")
    sheet = contact_sheet([image] * 3, ["a red square", "", "one\ntwo"], columns=2)
    assert sheet.getpixel((8 + 80, 8 + 16)) == (255, 0, 0)
    assert any(sheet.getpixel((x, 8 + 32 + 12)) != (255, 255, 255) for x in range(8, 100))
    raised(ValueError, "2 given for 1 images", contact_sheet, [image], ["a", "b"])
    raised(ValueError, "at least one", contact_sheet, [], [])


def test_what_is_transparent_stays_white():
    image = Image.new("RGBA", (32, 32), (255, 0, 0, 255))
    image.paste((0, 0, 255, 0), (0, 16, 32, 32))
    sheet = contact_sheet([image], [""])
    assert [sheet.getpixel((8 + 16, 8 + y)) for y in (4, 28)] == [(255, 0, 0), (255, 255, 255)]


def test_rows_are_as_high_as_their_highest_and_a_sheet_is_about_square():
    low, high = Image.new("RGB", (160, 10), "red"), Image.new("RGB", (160, 50), "blue")
    sheet = contact_sheet([low, low, high], [""] * 3, columns=2)
    assert sheet.size == (2 * (160 + 8) + 8, 10 + 50 + 3 * 8 + 2 * 4)
    assert sheet.getpixel((8, 8 + 10 + 12 + 49)) == (0, 0, 255)
    assert [contact_sheet([low] * count, [""] * count).width // 168 for count in (1, 3, 5, 90)] == [1, 2, 3, 8]


def test_lines_are_as_long_as_they_may_be():
    font = ImageFont.load_default(12)
    words = "one two three four five six"
    lines = wrap_text(words, font, 60)
    assert " ".join(lines) == words and all(font.getlength(line) <= 60 for line in lines)
    firsts = [line.split()[0] for line in lines[1:]]
    assert all(font.getlength(f"{line} {word}") > 60 for line, word in zip(lines, firsts, strict=False))
    assert wrap_text("a\n\nbb extraordinarily", font, 30) == ["a", "", "bb", "extraordinarily"]
