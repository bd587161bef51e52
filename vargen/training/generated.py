"""Pictures that a pipeline made, kept on disk as codes, which an EAGLE head learns from.

Belongs here: making them in resumable shards. Does not belong here: hidden states, which are computed again when they
are needed (for two thousand pictures they would fill half a gigabyte).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from vargen.runs.files import atomic_path, own_folder, write_json_atomic
from vargen.runs.identity import check_identity_file


def generate_codes(
    pipeline: Any,
    prompts: Sequence[str],
    folder: Path,
    *,
    settings: dict[str, Any],
    seed: int = 0,
    batch_size: int = 32,
    show_progress: bool = True,
) -> Tensor:
    """Codes of one picture per prompt; those that `folder` holds already are not made again.

    Args:
        pipeline: a `LlamaGenPipeline`; its default settings are used.
        prompts: what to draw. Picture i is made with the seed `seed + i`.
        folder: holds one file per batch and `settings.json`.
        settings: values that decide the pictures beside the prompts, such as the weights' fingerprint; a folder with
            other settings is refused.
        seed: of the first picture.
        batch_size: pictures made at once, and kept in one file.
        show_progress: a bar on a terminal.

    Returns:
        int64 [len(prompts), N].

    Raises:
        UserError: the folder was made with other settings.
    """
    described = {**settings, "seed": seed, "batch_size": batch_size}
    check_identity_file(folder / "settings.json", described, holds="pictures", argument="output")
    shards = []
    bar = tqdm(total=len(prompts), unit="image", desc="pictures to learn from", disable=not show_progress or None)
    with own_folder(folder, argument="output"), bar:
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            path = folder / f"{start:07d}.safetensors"
            codes = load_file(path)["codes"] if path.exists() else None
            if codes is None or len(codes) < len(batch):
                output = pipeline(
                    list(batch),
                    generator=[torch.Generator().manual_seed(seed + start + row) for row in range(len(batch))],
                    output_type="latent",
                )
                codes = output.tokens.to(torch.int32).cpu()
                if not (folder / "settings.json").exists():  # a failed start must leave nothing
                    write_json_atomic(folder / "settings.json", described)
                with atomic_path(path) as temporary:
                    save_file({"codes": codes}, temporary)
            shards.append(codes[: len(batch)].long())
            bar.update(len(batch))
    return torch.cat(shards)
