"""Which head, and which loss: drafters trained side by side on the same pictures, by the same steps, and compared.

    python benchmarks/drafter_heads.py --output runs/drafter_heads --codes runs/codes
    python benchmarks/drafter_heads.py --output runs/drafter_heads --codes runs/codes --start shipped

One pass of the target serves all heads at every step, so that comparing four costs little more than one. Written
to benchmarks/results/drafter_heads_<start>.json: overlap by level and accepted length on pictures kept apart, of every
head and of the shipped one. Steps are few: heads are ranked here, `vargen train drafter` trains them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.provenance import write_result
from scenes.cases import scene_prompts
from scenes.seeds import DRAFTER_SEED
from scenes.training.code_store import stored_pictures
from vargen.models.description import open_model
from vargen.models.model_folder import weights_fingerprint
from vargen.models.options import ModelOptions
from vargen.pipelines.loading import load_pipeline
from vargen.training.config import from_mapping
from vargen.training.drafter import DrafterTask, DrafterTrainingConfig
from vargen.training.generated import generate_codes
from vargen.training.optimizer import AveragedWeights, OptimizerGroup, learning_rate_factor, schedule_progress
from vargen.training.run import autocast
from vargen.training.teachers import LlamaGenTeacher

RESULTS = Path(__file__).resolve().parent / "results"
ONE, THREE = [16], None
HEADS: dict[str, dict[str, Any]] = {
    "one depth": {"feature_layers": ONE, "overlap_loss_weight": 0.0, "levels": 1},
    "three depths": {"feature_layers": THREE, "overlap_loss_weight": 0.0, "levels": 1},
    "three depths, overlap": {"feature_layers": THREE, "overlap_loss_weight": 1.0, "levels": 1},
    "three depths, overlap, 3 levels": {"feature_layers": THREE, "overlap_loss_weight": 1.0, "levels": 3},
}
"""Settings of `vargen train drafter`, by what they are called."""


class SharedTeacher(LlamaGenTeacher):
    """Answers the same question only once; states of all depths are worked out together."""

    _asked: tuple[Any, tuple[Tensor, Tensor, int]] | None = None
    every: tuple[int, ...] = ()

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Any) -> tuple[Tensor, Tensor, int]:
        """See `Teacher.features`."""
        question = (prompts, codes.tolist())
        if self._asked is None or self._asked[0] != question:
            self._asked = (question, super().features(prompts, codes, self.every))
        states, mask, length = self._asked[1]
        layers = feature_layers or (self.every[-1],)
        by_layer = dict(zip(self.every, states.chunk(len(self.every), -1), strict=True))
        return torch.cat([by_layer[layer] for layer in layers], -1), mask, length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/drafter_heads"), help="where made pictures are kept")
    parser.add_argument("--codes", default="", help="a store of `vargen train data`, to learn from beside them")
    parser.add_argument("--images", type=int, default=192, help="pictures the target makes, those kept apart included")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--evaluation_size", type=int, default=32)
    parser.add_argument("--max_seconds", type=float, default=None, help="end earlier, all heads at the same step")
    parser.add_argument("--start", choices=("new", "shipped"), default="new", help="the weights that heads begin with")
    parser.add_argument("--rate", type=float, default=1.0, help="learning rates, as a share of the trainer's own")
    parser.add_argument("--remark", default="")
    arguments = parser.parse_args()

    options = ModelOptions(None, None, "cpu", "float32")
    model = open_model(options)
    pipeline, _, _ = load_pipeline(model, options)
    fingerprint = weights_fingerprint(model.folder / "transformer")
    prompts = scene_prompts(DRAFTER_SEED, arguments.images)
    settings = {"weights": fingerprint}
    codes = generate_codes(pipeline, prompts, arguments.output / "generated", settings=settings, batch_size=32)
    stored = stored_pictures(arguments.codes, 20_000, pipeline.vqvae) if arguments.codes else ((), None)

    teacher = SharedTeacher(pipeline)
    base = from_mapping(
        DrafterTrainingConfig,
        {
            "output": str(arguments.output),
            "images": arguments.images,
            "batch_size": arguments.batch_size,
            "steps": arguments.steps,
            "evaluation_size": arguments.evaluation_size,
            "warmup_steps": 20,
            "optimizer": "muon",
            "ema_decay": 0.99,
        },
    )
    tasks, optimizers, averages = {}, {}, {}
    for name, head in HEADS.items():
        torch.manual_seed(base.seed)
        config = replace(base, **head)
        task = tasks[name] = DrafterTask(config, teacher, prompts, codes, *stored)
        if arguments.start == "shipped":  # of which what fuses the depths is no part: it begins with the last alone
            task.drafter.load_state_dict(pipeline.drafter.state_dict(), strict=False)
        teacher.every = tuple(sorted({*teacher.every, teacher.num_layers, *task.drafter.feature_layers}))
        optimizers[name] = OptimizerGroup(config, task.module.parameters(), task.muon_parameters())
        averages[name] = AveragedWeights(task.module, config.ema_decay)

    shipped = DrafterTask(replace(base, feature_layers=ONE), teacher, prompts, codes)
    shipped.drafter = pipeline.drafter.eval()
    figures: dict[str, dict[str, float]] = {"shipped": shipped.evaluate()}
    print("shipped", figures["shipped"], flush=True)
    torch.manual_seed(base.seed)
    seconds = dict.fromkeys(HEADS, 0.0)
    step, begun, progress = 0, time.monotonic(), 0.0
    while progress < 1:
        factor = arguments.rate * learning_rate_factor(step, base.warmup_steps, progress, 0.0)
        for name, task in tasks.items():
            started = time.process_time()
            optimizers[name].set_factor(factor)
            with autocast(base):
                loss, _ = task.loss(step, 0.0)
            loss.backward()
            optimizers[name].clip(base.gradient_clip)
            optimizers[name].step()
            optimizers[name].zero_grad()
            averages[name].update(task.module)
            seconds[name] += time.process_time() - started
        step += 1
        progress = schedule_progress(step, arguments.steps, time.monotonic() - begun, arguments.max_seconds)
        if step % 20 == 0:
            print(step, {name: round(value, 1) for name, value in seconds.items()}, flush=True)
    for name, task in tasks.items():
        averages[name].swap(task.module)
        task.module.eval()
        figures[name] = task.evaluate()
        print(name, figures[name], flush=True)
    record = {
        "benchmark": "drafter_heads",
        "remark": arguments.remark,
        "weights": fingerprint,
        "settings": {key: getattr(base, key) for key in ("batch_size", "images", "evaluation_size")}
        | {"rate": arguments.rate, "steps": step, "stored_images": len(stored[0])},
        "heads": {
            name: {"settings": HEADS.get(name, {}), "seconds": round(seconds.get(name, 0.0), 1), **measured}
            for name, measured in figures.items()
        },
    }
    path = RESULTS / f"drafter_heads_{arguments.start}.json"
    write_result(path, record)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
