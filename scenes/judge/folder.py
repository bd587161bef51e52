"""The pictures of a `vargen generate` folder, judged by their prompts.

Belongs here: reading the folder and counting. Does not belong here: reading a picture (`network.py`), judging claims
(`claim_checks.py`), the command (`scenes.commands.judge`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from metrics.errors import DataError
from metrics.images import read_image
from scenes.captions.picture_caption_parser import CaptionError, parse_caption
from scenes.judge.claim_checks import Tally, judge_claims
from scenes.judge.network import SceneJudge, read_images
from vargen.base.errors import UserError, warn
from vargen.runs.files import inside, read_jsonl


def judge_folder(judge: SceneJudge, folder: Path, batch_size: int = 32) -> tuple[dict[str, Any], Tally]:
    """Judge the pictures of a `vargen generate` folder on what their prompts say.

    Where a prompt gives no number, "object_count" asks whether there are as many objects as it names.

    Args:
        judge: the reader; on its own device.
        folder: with result.jsonl.
        batch_size: pictures at a time.

    Returns:
        The number of images, the prompts outside the grammar, the accuracy and the verdicts, ready for JSON; and the
        tally of the verdicts.

    Raises:
        UserError: a picture is missing, damaged or of another size, or a record is none.
    """
    cases, unreadable = [], []
    records = read_jsonl(folder / "result.jsonl", once=("index",))
    if not records:
        raise UserError(f"folder: {folder / 'result.jsonl'} holds no record; name a folder with pictures")
    for record in records:
        text, index = record.get("text") or "", record.get("index")
        if not isinstance(text, str) or not isinstance(index, int) or isinstance(index, bool):
            raise UserError(f"folder: {folder / 'result.jsonl'} has a record without an index or text; repair it")
        try:
            cases.append((record, parse_caption(text)))
        except CaptionError as error:
            unreadable.append({"index": index, "text": record.get("text"), "reason": str(error)})

    tally, verdicts, is_small, size = Tally(), [], False, judge.config.image_size
    for start in range(0, len(cases), batch_size):
        batch = cases[start : start + batch_size]
        try:
            pictures = [read_image(inside(folder, record.get("image_path"))) for record, _ in batch]
        except DataError as error:
            raise UserError(f"folder: {error}") from error
        if len({picture.shape for picture in pictures}) > 1:
            raise UserError(f"folder: {folder} holds pictures of several sizes; judge them one by one: --batch_size 1")
        is_small |= min(pictures[0].shape[1:]) < size
        readings = read_images(judge, torch.stack(pictures).float() / 255)
        for reading, (record, claims) in zip(readings, batch, strict=True):
            # "a red sphere" asks for one object but does not say so, hence "prompt" leaves the number out.
            verdict = judge_claims(reading, claims, object_count=len(claims.objects))
            tally.add(verdict)
            wrong = [check.kind for check in verdict.checks if not check.right]
            verdicts.append({"index": record["index"], "text": record["text"], "right": verdict.right, "wrong": wrong})
    if is_small:
        warn(f"{folder} holds pictures below the {size} pixels that the judge reads, so its answers mean little")
    accuracy = tally.to_dict()
    result = {"images": len(cases), "unreadable_prompts": unreadable, "accuracy": accuracy, "verdicts": verdicts}
    return result, tally
