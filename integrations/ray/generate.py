"""Pictures of many prompts by Ray Data, on as many machines as the cluster has. The same command goes on after a kill.

    python integrations/ray/generate.py prompts.txt pictures --workers 4 --method scd

Picture `000007.png` is of prompt 7 with seed `--seed` + 7, as `vargen generate` draws it. It is complete or absent, so
what is there is not drawn again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.prompts import read_prompts
from vargen.base.reading import read_json
from vargen.runs.files import save_image_atomic, write_json_atomic


class Drawer:
    """One worker, which loads the model once.

    Args:
        folder: of pictures, on a file system that all machines share.
        model, method, seed: as for `vargen generate`.
    """

    def __init__(self, folder: str, model: str | None, method: str, seed: int) -> None:
        from vargen.checkpoints.options import ModelOptions
        from vargen.models.description import open_model
        from vargen.pipelines.loading import load_pipeline

        options = ModelOptions(model=model)
        self.pipeline = load_pipeline(open_model(options), options, quiet=True)[0]
        self.folder, self.method, self.seed = Path(folder), method, seed

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Draw a batch: `number` and `prompt` of each."""
        import torch

        numbers = [int(each) for each in rows["number"]]
        stream: Any = self.pipeline.stream(
            [str(each) for each in rows["prompt"]],
            generator=[torch.Generator().manual_seed(self.seed + number) for number in numbers],
            method=self.method,
        )
        for picture in stream:
            save_image_atomic(picture.image, self.folder / f"{numbers[picture.index]:06}.png")
        return {"number": rows["number"]}


def main() -> int:
    """Draw what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", help="a file that `vargen generate --prompts_file` reads")
    parser.add_argument("output", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--method", default="jacobi")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gpus", type=float, default=0, help="of each worker")
    asked = parser.parse_args()
    prompts = [str(each) for each in read_prompts(asked.prompts)]
    asked.output.mkdir(parents=True, exist_ok=True)
    settings = {"prompts": prompts, "model": asked.model, "method": asked.method, "seed": asked.seed}
    kept = asked.output / "settings.json"
    if kept.is_file() and read_json(kept) != settings:
        raise UserError(f"{kept} is of other prompts or settings; choose another folder")
    write_json_atomic(kept, settings)
    there = {int(path.stem) for path in asked.output.glob("??????.png")}
    left = [{"number": number, "prompt": prompt} for number, prompt in enumerate(prompts) if number not in there]
    print(f"{len(there)} of {len(prompts)} pictures are there", flush=True)
    if not left:
        return 0
    import ray

    work = {"folder": str(asked.output.resolve()), "model": asked.model, "method": asked.method, "seed": asked.seed}
    drawn = ray.data.from_items(left, override_num_blocks=-(-len(left) // asked.batch_size)).map_batches(
        Drawer, fn_constructor_kwargs=work, batch_size=asked.batch_size, concurrency=asked.workers, num_gpus=asked.gpus
    )
    print(f"{drawn.count()} pictures drawn", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
