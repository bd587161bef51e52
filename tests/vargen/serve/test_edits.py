"""`/v1/images/edits` with the official client, and every picture that it refuses, each in one line."""

import base64
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from called_app import client_of, openai
from family_pipelines import build
from PIL import Image
from refusals import raised, refused
from tiny_pipelines import build_tiny_pipeline

from vargen.serve import app as application
from vargen.serve import engine as waits
from vargen.serve import forms
from vargen.serve.app import build_app
from vargen.serve.engine import Engine, Job
from vargen.serve.forms import read_form

SIDE, PROMPT = 8, "a red cube"
NOISE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
SHOWN = Image.fromarray(NOISE)


def content(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def mask(rows: int = 4, side: int = SIDE) -> bytes:
    """Transparent below its first rows."""
    alpha = np.full((side, side), 255, np.uint8)
    alpha[rows:] = 0
    return content(Image.merge("RGBA", (*SHOWN.resize((side, side)).split(), Image.fromarray(alpha))))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine(build_tiny_pipeline(), {"method": "ar"}, batch_size=2, queue=8)
    yield made
    made.close()


def edit(engine: Engine, **fields: Any) -> Any:
    return client_of(build_app(engine, "tiny")).images.edit(prompt=PROMPT, **fields)


def picture(made: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(made.b64_json))))


@pytest.mark.parametrize(
    "given",
    [{"mask": mask()}, {"extra_body": {"start_rows": 2}}, {"image": mask()}],
    ids=["mask", "rows", "transparent"],
)
def test_the_official_client_edits_a_picture(engine, given):
    """As a call does, with the user's own pixels outside."""
    fields: dict[str, Any] = {"image": content(SHOWN), "n": 2, "size": "8x8", **given}
    fields["extra_body"] = {"seed": 5, **fields.get("extra_body", {})}
    made = edit(engine, **fields)
    pipeline = build_tiny_pipeline()
    for number, each in enumerate(made.data):
        generator = torch.Generator().manual_seed(5 + number)
        call = pipeline(PROMPT, generator=generator, method="ar", image=SHOWN, start_rows=2, paste_back=True)
        assert np.array_equal(picture(each), np.asarray(call.images[0]))
        assert np.array_equal(picture(each)[:4], NOISE[:4])
    assert not np.array_equal(picture(made.data[0]), picture(made.data[1]))


def test_an_edit_is_streamed(engine):
    stream = edit(engine, image=content(SHOWN), mask=mask(), stream=True)
    assert [event.type for event in stream] == ["image_edit.completed"]


LARGE = content(Image.new("RGB", (20_000, 2)))
MOVING = content(SHOWN, "WEBP", save_all=True, append_images=[Image.new("RGB", (SIDE, SIDE))])


def test_what_cannot_be_edited_is_refused_in_one_line(engine):
    for given, status, said in (
        ({"mask": mask(side=4)}, 400, "mask must have the size of image, 8 x 8, got 4 x 4"),
        ({"image": LARGE, "mask": mask()}, 400, "image must have sides of 1 to 4,096 pixels, got 20000 x 2"),
        ({"image": content(SHOWN)[:-20], "mask": mask()}, 400, "image cannot be read as PNG, JPEG, WEBP"),
        ({"image": b"no picture", "mask": mask()}, 400, "image cannot be read as PNG, JPEG, WEBP (it is none)"),
        ({"image": content(SHOWN, "GIF"), "mask": mask()}, 400, "image cannot be read as PNG, JPEG, WEBP (it is none)"),
        ({"image": MOVING, "mask": mask()}, 400, "image must be a single picture, got an animation of 2 frames"),
        ({"mask": mask(rows=SIDE)}, 400, "mask leaves nothing to draw"),
        ({}, 400, "image must be transparent where to draw"),
        ({"image": content(SHOWN.resize((16, 8))), "extra_body": {"start_rows": 1}}, 400, "image must have the shape"),
        ({"extra_body": {"start_rows": 4}}, 400, "start_rows must be at most 3, got 4"),
        ({"extra_body": {"start_rows": "two"}}, 400, "start_rows must be an integer from 1 to 4,096 or null"),
        ({"mask": mask(), "extra_body": {"start_rows": 1}}, 400, "mask cannot be sent beside start_rows"),
        ({"mask": mask(), "n": 11}, 400, "n must be at most 10, got 11"),
        ({"image": [content(SHOWN)] * 2, "mask": mask()}, 400, "'image' must be sent once"),
        ({"mask": mask(), "extra_body": {"steps": 3}}, 400, "'steps' is no field of this server"),
    ):
        with pytest.raises(openai.APIStatusError) as error:
            edit(engine, **{"image": content(SHOWN), **given})
        message = error.value.response.json()["error"]["message"]
        assert error.value.status_code == status and message.startswith(said) and "\n" not in message


def test_bodies_that_are_no_form(engine, monkeypatch):
    monkeypatch.setattr(application, "MAX_FORM", 1_000)
    http = client_of(build_app(engine, "tiny"))._client
    for headers, body, status in (
        ({"content-type": "application/json"}, b"{}", 415),
        ({"content-type": "multipart/form-data"}, b"--x\r\n", 400),
        ({"content-type": "multipart/form-data; boundary*=idna''x%ff"}, b"--x\r\n", 400),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n\r\n\r\n--x--", 400),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n" * 100 + b"--x--", 400),
        ({"content-type": "multipart/form-data; boundary=x"}, bytes(2_000), 413),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\nA: b\r\n\r\nc\r\n--x--", 400),
    ):
        answer = http.post("/v1/images/edits", headers=headers, content=body)
        assert answer.status_code == status and "\n" not in answer.json()["error"]["message"]


def test_pictures_that_are_read_at_once_have_a_bound(engine, monkeypatch):
    """And what was read is given back, whatever became of it."""
    fields: dict[str, Any] = {"image": content(SHOWN), "mask": mask()}
    monkeypatch.setattr(application, "MAX_READ", 100)
    for _ in range(20):
        raised(openai.RateLimitError, "too many clients send pictures at once", edit, engine, **fields)
    monkeypatch.setattr(application, "MAX_READ", 8_000)
    assert all(edit(engine, **fields).data for _ in range(20))


def test_pictures_of_one_request_have_a_bound_before_they_are_decoded(monkeypatch):
    """A few bytes of each may be 4,096 pixels a side."""
    opened: list[bytes] = []
    monkeypatch.setattr(forms, "open_picture", lambda sent, name: opened.append(sent) or SHOWN)  # type: ignore[func-returns-value]
    refused("'image' must be sent once", forms.open_edited, {"image": [b""] * 60}, True, True)
    assert len(opened) == 1
    monkeypatch.setattr(forms, "MAX_SIDE", 2 * SIDE)
    assert len(forms.open_edited({"image": [b""] * 4}, False, True)["reference_images"]) == 4
    told = "image must have at most 256 pixels, of all pictures together"
    refused(told, forms.open_edited, {"image": [b""] * 60}, False, True)
    assert len(opened) == 1 + 4 + 5


def test_a_part_without_content_is_none():
    body = b'--x\r\nContent-Disposition: form-data; name="n"\r\n--x--'
    refused("body must name every part", read_form, "multipart/form-data; boundary=x", body)


def test_pictures_without_a_mask_are_read_as_part_of_the_prompt():
    """By a family of which a prompt may hold some; as a call does, in the size of the server."""
    pipeline = build("emu3_5")
    sizes = replace(pipeline.family.sizes, usual=(4, 4))
    pipeline.family = replace(pipeline.family, sizes=sizes)
    engine = Engine(pipeline, {"method": "ar"}, batch_size=2, queue=8)
    try:
        made = edit(engine, image=[content(SHOWN), mask(rows=SIDE)], n=2, size="64x64", extra_body={"seed": 5})
        plain = build("emu3_5")
        plain.family = pipeline.family
        for number, each in enumerate(made.data):
            given = {"reference_images": [SHOWN, SHOWN], "height": 64, "width": 64, "method": "ar"}
            call = plain(PROMPT, generator=torch.Generator().manual_seed(5 + number), **given)
            assert np.array_equal(picture(each), np.asarray(call.images[0]))
        told = "reference_images must be at most 3 of a prompt, got 4"
        raised(openai.APIStatusError, told, edit, engine, image=[content(SHOWN)] * 4)
    finally:
        engine.close()


def test_what_waits_to_be_edited_holds_no_more_pixels_than_may(monkeypatch, engine):
    """A picture counts once, though several are drawn of it, and a prompt alone counts nothing."""
    monkeypatch.setattr(waits, "_MOST_PIXELS", 2 * SIDE**2)
    about = {"image": SHOWN, "start_rows": 2}
    with engine._changed:  # nothing is taken meanwhile
        jobs = [Job(PROMPT, seed, arguments=about) for seed in range(3)]
        engine.submit(jobs)
        for more in (
            {"image": SHOWN.copy(), "mask_image": SHOWN.convert("L")},
            {"reference_images": [SHOWN.copy(), SHOWN.copy()]},
        ):
            told = "many large pictures wait to be edited"
            raised(waits.QueueFull, told, engine.submit, [Job(PROMPT, 9, arguments=more)])
        jobs += [Job(PROMPT, 3, arguments={**about, "image": SHOWN.copy()}), Job(PROMPT, 4)]
        engine.submit(jobs[3:])
    assert all(job.finished.result(60).size == (SIDE, SIDE) for job in jobs)
