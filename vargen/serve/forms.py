"""What a client sends to `/v1/images/edits`: a form of several parts, with a picture and its mask.

Belongs here: taking such a body apart, and masks by OpenAI's rule. Does not belong here: reading a body within bounds,
and answering (`app.py`).
"""

from __future__ import annotations

from email.message import Message
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.picture_files import MAX_SIDE, open_picture
from vargen.base.reading import parse_json

if TYPE_CHECKING:
    from PIL.Image import Image

_MOST_PARTS = 64
_TEXTS = ("prompt", "size", "response_format", "output_format", "background", "method", "negative_prompt")
_PICTURES = ("image", "mask")


def read_form(content_type: str, body: bytes) -> tuple[dict[str, Any], dict[str, list[bytes]]]:
    """The fields of a body, and its pictures; of "image" there may be several. Clients send numbers and truth values
    as text.

    Args:
        content_type: the header, with the boundary of the parts.
        body: of "multipart/form-data".

    Raises:
        UserError: it is no such form, or has a field twice.
    """
    head = Message()
    head["content-type"] = content_type
    named = head.get_param("boundary")
    boundary = named.encode(errors="replace") if isinstance(named, str) else b""  # a tuple names its encoding
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, _MOST_PARTS) if boundary else []
    if len(parts) < 3 or not parts[-1].startswith(b"--") or len(parts) > _MOST_PARTS:
        raise UserError(f"body must be a form of 1 to {_MOST_PARTS - 2} parts that ends with its boundary")
    fields: dict[str, Any] = {}
    pictures: dict[str, list[bytes]] = {}
    for part in parts[1:-1]:
        header, found, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        named = BytesHeaderParser().parsebytes(header).get_param("name", header="content-disposition")
        if not found or not isinstance(named, str):
            raise UserError("body must name every part of its form")
        name = named.removesuffix("[]")
        if name in fields or (name in pictures and name != "image"):
            raise UserError(f"{name!r:.40} must be sent once")
        if name in _PICTURES:
            pictures.setdefault(name, []).append(content)
        else:
            fields[name] = _value(name, content)
    return fields, pictures


def _value(name: str, content: bytes) -> Any:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{name!r:.40} must be text in UTF-8") from None
    if name in _TEXTS:
        return text
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text  # of no number or truth value: the check of the field says so


def open_edited(pictures: dict[str, list[bytes]], has_start_rows: bool, reads_references: bool) -> dict[str, Any]:
    """`image` and `mask_image` of a pipeline's call. The mask is transparent where to draw, or the picture itself is.

    A pipeline that reads pictures in its prompt has them as `reference_images` where nothing says where to draw.

    Raises:
        UserError: a picture is missing, cannot be read, or says nowhere where to draw.
    """
    from PIL import ImageChops

    if "image" not in pictures:
        raise UserError("image must be sent: the picture to start from")
    is_read = reads_references and not has_start_rows and "mask" not in pictures
    images: list[Image] = []
    for content in pictures["image"] if is_read else pictures["image"][:1]:  # a few bytes may be many pixels
        images.append(open_picture(content, "image"))
        if sum(each.width * each.height for each in images) > MAX_SIDE**2:
            raise UserError(f"image must have at most {MAX_SIDE**2:,} pixels, of all pictures together")
    image = images[0]
    if is_read and not image.has_transparency_data:
        return {"reference_images": images}
    if len(pictures["image"]) > 1:
        raise UserError("'image' must be sent once")
    if has_start_rows:
        if "mask" in pictures:
            raise UserError("mask cannot be sent beside start_rows, which says where to draw; leave one out")
        return {"image": _opaque(image), "mask_image": None}
    name = "mask" if "mask" in pictures else "image"
    shown = open_picture(pictures["mask"][0], "mask") if "mask" in pictures else image
    if not shown.has_transparency_data:
        raise UserError(f"{name} must be transparent where to draw, or start_rows must say how many rows stay")
    if shown.size != image.size:
        raise UserError(
            f"mask must have the size of image, {image.width} x {image.height}, got {shown.width} x {shown.height}"
        )
    drawn = ImageChops.invert(shown.convert("RGBA").getchannel("A")).point(lambda level: 255 * (level > 127))
    if drawn.getbbox() is None:
        raise UserError(f"{name} leaves nothing to draw: it must be transparent somewhere")
    return {"image": _opaque(image), "mask_image": drawn.convert("L")}


def _opaque(image: Image) -> Image:
    """Whatever is transparent shows its hidden colour, which nobody sees: it is drawn anew."""
    return image.convert("RGBA").convert("RGB") if image.has_transparency_data else image
