"""Edits in an evaluation: the pictures that are drawn on, where they are drawn, and figures of what came of it.

Belongs here: pictures before an edit, their mask, and figures of pictures after it. Does not belong here: drawing
(`vargen.jobs.evaluated_pictures`), and how pixels are compared (`metrics.edits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from torch import Tensor

from metrics.edits import edit_figures
from metrics.quality import mean_figure
from vargen.base.errors import UserError, warn
from vargen.base.picture_files import open_picture
from vargen.base.reading import expanded, read_bytes
from vargen.jobs.cases import BenchmarkCase, Judge, World
from vargen.jobs.figures import judge_scores
from vargen.models.description import ModelDescription


@dataclass(frozen=True)
class Edits:
    """The edits of an evaluation, one for each case.

    Args:
        before: gives the users' pictures by number, uint8 `[3, H, W]`.
        drawn: bool `[H, W]`, where each is drawn anew.
        rest: the cases with what they claim about that part alone; None where no world can tell.
        paste_back: whether pixels elsewhere are the users' own.
        identity: what decides the pictures, beside prompts and seeds.
    """

    before: Callable[[Sequence[int]], Sequence[Tensor]]
    drawn: Tensor
    rest: Sequence[BenchmarkCase] | None
    paste_back: bool
    identity: Mapping[str, Any]

    def arguments(self, indices: Sequence[int]) -> dict[str, Any]:
        """Of a pipeline's call for the cases of these numbers."""
        pictures = [PIL.Image.fromarray(each.permute(1, 2, 0).numpy()) for each in self.before(indices)]
        mask = PIL.Image.fromarray(self.drawn.numpy().astype(np.uint8) * 255)
        return {"image": pictures, "mask_image": mask, "paste_back": self.paste_back}

    def measure(self, indices: Sequence[int], pictures: Sequence[Tensor], judge: Judge | None) -> dict[str, np.ndarray]:
        """`kept`, `known_error` and `drawn_error` `[B]` of pictures uint8 `[3, H, W]` after the edit, and
        `rest_verdicts` `[B, 2 * kinds]` where claims about the drawn part are known."""
        after = torch.stack(list(pictures))
        found = edit_figures(torch.stack(list(self.before(indices))), after, self.drawn.expand(len(after), -1, -1))
        arrays = {name: getattr(found, name).numpy() for name in ("kept", "known_error", "drawn_error")}
        if judge is not None and self.rest is not None:
            counts = judge(after.float() / 255, [self.rest[index] for index in indices])
            arrays["rest_verdicts"] = counts.flatten(1).numpy().astype(np.int16)
        return arrays


def edit_scores(measured: Mapping[str, Tensor], kinds: Sequence[str], draws: int) -> dict[str, Any]:
    """Figures of edited pictures, each with its interval.

    `kept` is the share of pictures whose known pixels are the users' own, `known_error` and `drawn_error` the root mean
    square difference to them in levels of 255, `log_likelihood` that of whole pictures, `rest_accuracy` the share of
    claims about the drawn part that hold.
    """
    scores = {name: mean_figure(measured[name], draws) for name in ("known_error", "drawn_error", "log_likelihood")}
    scores["kept"] = mean_figure(measured["kept"].bool(), draws)
    if "rest_verdicts" in measured:
        scores["rest_accuracy"] = judge_scores(measured["rest_verdicts"], kinds, draws)["judge_accuracy"]
    return scores


def mask_of(mask_image: str | None, start_rows: int | None, model: ModelDescription) -> Tensor:
    """bool `[H, W]`, where pictures of a model are drawn. Raises UserError for a mask that cannot be used."""
    (rows, columns), side = model.rows_and_columns, model.image_size // model.grid_size
    if mask_image is None:
        assert start_rows is not None
        if start_rows >= rows:
            raise UserError(f"start_rows must be at most {rows - 1}, got {start_rows}")
        return (torch.arange(rows * side)[:, None] >= start_rows * side).expand(-1, columns * side)
    mask = open_picture(read_bytes(expanded(mask_image), "mask_image"), "mask_image").convert("L")
    if mask.size != (columns * side, rows * side):
        wanted = f"{columns * side} x {rows * side}"
        raise UserError(
            f"mask_image must have the size of the model's pictures, {wanted}, got {mask.width} x {mask.height}"
        )
    drawn = torch.from_numpy(np.array(mask)) > 127
    if not bool(drawn.any()):
        raise UserError("mask_image leaves nothing to draw: it must be white somewhere")
    return drawn


def scaled_to(pictures: Sequence[Tensor], size: tuple[int, int]) -> list[Tensor]:
    """The middles of pictures uint8 `[3, h, w]` in another height and width."""
    if any(each.shape[1] * size[1] != each.shape[2] * size[0] for each in pictures):
        warn("image: of pictures in another shape than the model's the middle alone is edited")
    images = [PIL.Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pictures]
    fitted = [np.array(PIL.ImageOps.fit(image, size[::-1])) for image in images]
    return [torch.from_numpy(each).permute(2, 0, 1) for each in fitted]


def cases_about(world: World | None, cases: Sequence[BenchmarkCase], drawn: Tensor) -> list[BenchmarkCase] | None:
    """The cases with what they claim about the drawn part of their scenes; None where a scene is not known."""
    if world is None or any(case.scene is None for case in cases):
        return None
    return [replace(case, claims=world.claims_within(case, drawn), object_count=None) for case in cases]
