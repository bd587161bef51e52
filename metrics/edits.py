"""What an edit of a picture kept and changed, by pixels.

Belongs here: a picture before and after, and the mask between them. Does not belong here: whether what was drawn is
right (`metrics.composition`, or a world's judge), and how likely a model finds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from metrics.errors import DataError


@dataclass(frozen=True)
class EditFigures:
    """Figures of B edited pictures.

    Args:
        kept: bool [B], whether every pixel outside the mask is the user's own.
        known_error, drawn_error: float32 [B], root mean square difference to the picture before, in levels of 255,
            outside and inside the mask; NaN where there is none.
    """

    kept: Tensor
    known_error: Tensor
    drawn_error: Tensor


def edit_figures(before: Tensor, after: Tensor, drawn: Tensor) -> EditFigures:
    """Compare pictures with what an edit made of them.

    Args:
        before, after: uint8 [B, 3, H, W].
        drawn: bool [B, H, W], where the edit was to draw.

    Raises:
        DataError: the shapes do not belong together.
    """
    if before.shape != after.shape or drawn.shape != (len(before), *before.shape[2:]):
        raise DataError(
            f"pictures and mask of an edit must have one size, got {list(before.shape)}, {list(after.shape)} and "
            f"{list(drawn.shape)}"
        )
    squares = (before.float() - after.float()).square().mean(1)

    def error(where: Tensor) -> Tensor:
        return ((squares * where).sum((1, 2)) / where.sum((1, 2))).sqrt()

    return EditFigures((squares * ~drawn).sum((1, 2)) == 0, error(~drawn), error(drawn))
