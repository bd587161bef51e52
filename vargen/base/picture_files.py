"""A picture that somebody sends or names: read whole, within bounds, before anything is made of it.

Belongs here: the formats and sizes that are read, and errors for all others. Does not belong here: what a picture is
for (`vargen.models.known_pictures`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vargen.base.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_SIDE = 4096
"""The longest side, in pixels, of a picture that is read."""


def check_edit(image: object, mask_image: object, start_rows: object, paste_back: bool) -> None:
    """Refuse what says where to draw without a picture, and a picture of which nothing or two things say it. Raises
    UserError."""
    about = {"mask_image": mask_image, "start_rows": start_rows, "paste_back": paste_back or None}
    if image is None:
        for name, value in about.items():
            if value is not None:
                raise UserError(f"{name} needs image, the picture to start from")
    elif (mask_image is None) == (start_rows is None):
        raise UserError("image needs mask_image, white where to draw, or start_rows, and not both")


def open_picture(content: bytes, name: str) -> Image:
    """The picture in a file's content, turned as its camera was held.

    Args:
        content: of PNG, JPEG or WebP.
        name: of the argument, with which errors begin.

    Raises:
        UserError: it is none of these, is damaged, too large, or moves.
    """
    from PIL import ImageOps, UnidentifiedImageError

    from metrics.images import eight_bits, open_whole

    def check(image: Image) -> None:
        if not 0 < min(image.size) <= max(image.size) <= MAX_SIDE:
            raise UserError(f"{name} must have sides of 1 to {MAX_SIDE:,} pixels, got {image.width} x {image.height}")
        if (frames := getattr(image, "n_frames", 1)) > 1:
            raise UserError(f"{name} must be a single picture, got an animation of {frames} frames")

    try:
        with open_whole(content, FORMATS, check) as image:
            return eight_bits(ImageOps.exif_transpose(image))
    except UserError:
        raise
    except Exception as error:  # PIL raises half a dozen kinds
        reason = "it is none" if isinstance(error, UnidentifiedImageError) else str(error)
        raise UserError(f"{name} cannot be read as {', '.join(FORMATS)} ({reason}); send another") from error
