"""The trace image: colours where tokens came from what it says, one bar per pass, and `--trace-image`."""

import pytest
import torch
from PIL import Image
from refusals import raised

from specdecode.trace import DecodeTrace, TokenOrigin
from vargen.cli import main
from vargen.drawing.trace_image import ORIGIN_COLOURS, _bars, draw_trace


def build_trace() -> DecodeTrace:
    trace = DecodeTrace(1)
    trace.record_prefill()
    for accepted, skipped, relaxed in ((2, 0, [False, True]), (0, 3, [False]), (1, 0, [False])):
        numbers = (torch.tensor([value]) for value in (True, 4, accepted, accepted + 1, skipped))
        trace.record_step(*numbers, relaxed=torch.tensor([relaxed]))
    # 1 + (2 + 1) + (3 + 1) + (1 + 1) = 10 tokens; the rest of a 4 x 4 grid one by one
    for _ in range(6):
        trace.record_step(*(torch.tensor([value]) for value in (True, 0, 0, 1, 0)))
    return trace


@pytest.mark.parametrize(
    ("rows", "columns", "side", "beside"), [(4, 4, 96, ()), (2, 8, 48, ()), (3, 3, 128, range(1, 8))]
)
def test_every_cell_has_the_colour_of_its_origin(rows, columns, side, beside):
    """Tokens beside the grid, seven of 16, stand in the timeline alone."""
    trace, white = build_trace(), Image.new("RGB", (2 * columns, 2 * rows), (255, 255, 255))
    sheet = draw_trace(white, trace, 0, (rows, columns), beside_grid=beside)
    kept = [origin for place, origin in enumerate(trace.token_origins[0]) if place not in beside]
    for position, origin in enumerate(kept):
        row, column = divmod(position, columns)
        pixel = sheet.getpixel((24 + 384 + column * side + side // 2, 12 + row * side + side // 2))
        blended = [round(255 * 0.38 + value * 0.62) for value in ORIGIN_COLOURS[origin]]
        assert all(abs(a - b) <= 2 for a, b in zip(pixel, blended, strict=True)), (position, origin)
    assert len({*ORIGIN_COLOURS.values()}) == len(TokenOrigin)


def test_a_pass_of_more_tokens_than_its_bar_has_pixels_is_drawn():
    trace = DecodeTrace(1, torch.device("cpu"))
    trace.record_prefill()
    trace.record_step(*(torch.tensor([value]) for value in (True, 143, 142, 143, 0)))
    draw_trace(Image.new("RGB", (12, 12)), trace, 0, (12, 12))


def test_one_bar_per_pass_holds_the_tokens_it_added():
    trace = build_trace()
    bars = _bars(trace.token_passes[0], trace.token_origins[0])
    assert [len(bar) for bar in bars] == [1, 3, 4, 2, *[1] * 6]
    assert bars[2] == [TokenOrigin.UNVERIFIED] * 3 + [TokenOrigin.TARGET]
    assert len(bars) == trace.target_passes


def test_rows_in_flight_have_lines_of_their_own():
    """Of a grid of two rows of three, the second begins when the first has one token."""
    trace = DecodeTrace(1)
    trace.record_prefill()
    for places in ((1, 3), (2, 4), (5,)):
        added = torch.full((1, 6), -1, dtype=torch.int8)
        added[0, list(places)] = TokenOrigin.TARGET
        counts = (torch.tensor([value]) for value in (True, 0, 0, len(places), 0))
        trace.record_step(*counts, by_place=added)
    assert trace.token_passes == [[0, 1, 2, 1, 2, 3]] and trace.row_tokens == [6]
    assert trace.token_origins == [[TokenOrigin.TARGET] * 6]
    sheet = draw_trace(Image.new("RGB", (9, 6)), trace, 0, (2, 3))
    colour = ORIGIN_COLOURS[TokenOrigin.TARGET]
    pitch, top = 780 / 4, sheet.height - 12 - 18 - 2 * 6 + 1
    for row, passes in enumerate(((0, 1, 2), (1, 2, 3))):
        shown = [sheet.getpixel((12 + round((number + 0.5) * pitch), top + 6 * row)) == colour for number in range(4)]
        assert shown == [number in passes for number in range(4)]


def test_a_grid_of_another_size_is_refused():
    given = Image.new("RGB", (8, 8)), build_trace(), 0, (3, 3)
    raised(ValueError, "one of 3 x 3 has 9 tokens, but row 0 has 16", draw_trace, *given)


def test_the_command_writes_one_beside_each_picture(tiny_model_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    output = tmp_path / "out"
    arguments = ["generate", "a red cube", "two cones", "--model", str(tiny_model_folder), "--quiet"]
    arguments += ["--method", "sjd", "--trace-image", "true", "--output", str(output)]
    assert main(arguments) == 0
    assert sorted(path.name for path in (output / "traces").iterdir()) == ["000000.png", "000001.png"]
    assert Image.open(output / "traces" / "000000.png").size[0] > 700
