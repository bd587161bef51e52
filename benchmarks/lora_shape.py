"""A shape that the shipped model never saw, taught by `vargen train lora`: drawn before and after, and what is lost.

    python benchmarks/lora_shape.py --output runs/lora_shape

The fifth shape of the scenes is a diamond, two cones base to base, in pictures of one to three objects. The word is not
in the model's vocabulary. Who reads the shape is a small classifier that learns the five shapes from renders here, and
says how often it is right on others, decoded from codes. All other claims are the shipped judge's. The old world is 300
captions that training never showed, paired before and after. Writes benchmarks/results/lora_shape.json. Does not
belong here: seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metrics.bootstrap import mean_interval
from metrics.provenance import provenance, write_result
from scenes.captions import picture_captions
from scenes.cases import PromptCase, sample_prompts
from scenes.judge.claim_judge import ClaimJudge
from scenes.judge.network import read_images
from scenes.rendering import renderer, scene, solids
from vargen.base.resources import find_model
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.jobs.cases import BenchmarkCase
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.lora import LoraTrainingConfig, train_lora

RESULTS = Path(__file__).resolve().parent / "results"
NEW, KNOWN = "diamond", scene.SHAPES
BATCH = 20
SEEDS = {"train": 0, "drawn": 100_000, "reader": 200_000, "reader_test": 300_000}
"""First scenes of each part; no two parts share one."""


def add_shape() -> None:
    """Teach this process's renderer and captions the fifth shape."""
    scene.EXTENTS[NEW] = (0.9, 2.1)
    renderer.SHAPES = scene.SHAPES = (*KNOWN, NEW)  # type: ignore[assignment]
    picture_captions.NOUNS = {**picture_captions.NOUNS, NEW: ((NEW, f"{NEW}s"),)}
    solids._INTERSECTIONS[NEW] = diamond


def diamond(origin: solids.Vector, direction: solids.Vector) -> tuple[Tensor, solids.Vector]:
    """See `solids.intersect`: two cones, base to base; each is the world's cone in a stretched frame."""
    (wide, high), (radius, height) = scene.EXTENTS["cone"], scene.EXTENTS[NEW]
    best: Any = None
    for up in (1.0, -1.0):
        stretch = (wide / radius, up * 2 * high / height, wide / radius)
        lifted = (origin[0], origin[1] - height / 2, origin[2])
        place, step = (tuple(p * s for p, s in zip(v, stretch, strict=True)) for v in (lifted, direction))
        distance, normal = solids._cone((place[0], place[1], place[2]), (step[0], step[1], step[2]))
        outward = torch.stack(torch.broadcast_tensors(*(n * s for n, s in zip(normal, stretch, strict=True))))
        found = (distance, *F.normalize(outward, dim=0))
        if best is not None:
            nearer = distance < best[0]
            found = tuple(torch.where(nearer, *pair) for pair in zip(found, best, strict=True))
        best = found
    return best[0], tuple(best[1:])


def scenes_with(shape: str | None, first: int, count: int, num_objects: int | None = None) -> list[PromptCase]:
    """Scenes and captions from a seed on, each with a shape where one is named, and so many objects."""
    made: list[PromptCase] = []
    while len(made) < count:
        shown = scene.sample_scene(first, "all")
        if num_objects in (None, len(shown.objects)) and (
            shape is None or shape in [one.shape for one in shown.objects]
        ):
            made.append(PromptCase(shown, picture_captions.compose_training_caption(shown, first, 0.5)))
        first += 1
    return made


class ShapeReader(nn.Sequential):
    """Logits [B, 5] of the shape of the one object in pictures [B, 3, 128, 128]."""

    def __init__(self) -> None:
        widths = (3, 24, 48, 64, 96)
        layers: list[nn.Module] = []
        for into, out in itertools.pairwise(widths):
            layers += [nn.Conv2d(into, out, 3, stride=2, padding=1), nn.GroupNorm(8, out), nn.SiLU()]
        super().__init__(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(widths[-1], len(scene.SHAPES)))


def train_reader(pipeline: Any, render: Any, steps: int) -> tuple[ShapeReader, float]:
    """A reader of shapes, and the share of 200 other renders, decoded from codes, that it reads right."""

    def shown(first: int, count: int, coded: bool) -> tuple[Tensor, Tensor]:
        cases = scenes_with(None, first, count, num_objects=1)
        pictures = render([each.scene for each in cases]).images.clamp(0, 1)
        if coded:
            tokens = pipeline.tokens_of(list(pictures), [each.caption.text for each in cases])
            pictures = pipeline.decode_tokens(tokens, "pt").float()
        return pictures, torch.tensor([scene.SHAPES.index(each.scene.objects[0].shape) for each in cases])

    torch.manual_seed(0)
    reader = ShapeReader()
    parts = [shown(SEEDS["reader"] + 40_000 * coded, 400, bool(coded)) for coded in (0, 1)]
    pictures, shapes = (torch.cat(each) for each in zip(*parts, strict=True))
    optimizer = torch.optim.AdamW(reader.parameters(), 2e-3, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    for _ in range(steps):
        rows = torch.randint(len(pictures), (32,))
        batch = pictures[rows] + 0.02 * torch.randn(32, 1, 1, 1)
        batch = batch.flip(-1) if torch.rand(()) < 0.5 else batch
        loss = F.cross_entropy(reader(batch), shapes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
    pictures, shapes = shown(SEEDS["reader_test"], 200, True)
    with torch.no_grad():
        return reader.eval(), float((reader(pictures).argmax(1) == shapes).float().mean())


def drawn(pipeline: Any, prompts: Sequence[str], method: str = "jacobi") -> tuple[Tensor, Tensor]:
    """Pictures [B, 3, H, W] in [0, 1] and tokens [B, N]; picture i has seed i."""
    made = []
    for first in range(0, len(prompts), BATCH):
        seeds = [torch.Generator().manual_seed(first + row) for row in range(len(prompts[first : first + BATCH]))]
        made.append(pipeline(prompts[first : first + BATCH], generator=seeds, output_type="pt", method=method))
    return torch.cat([each.images.float() for each in made]), torch.cat([each.tokens for each in made])


def figures(
    pipeline: Any, reader: ShapeReader, judge: ClaimJudge, new: Sequence[PromptCase], old: Sequence[PromptCase]
) -> tuple[dict[str, Tensor], Tensor]:
    """One number a picture by name, and the pictures of the new shape."""
    pictures, _ = drawn(pipeline, [case.caption.text for case in new])
    with torch.no_grad():
        found = {"new_shape": reader(pictures).argmax(1) == scene.SHAPES.index(NEW)}
    readings = read_images(judge.reader, pictures)
    for name in ("colour", "material", "size"):
        said = [getattr(case.caption.claims.objects[0], name) for case in new]
        seen = [max(each.objects, key=lambda one: one.confidence, default=None) for each in readings]
        right = [
            torch.nan if word is None else float(getattr(one, name, "") == word)
            for word, one in zip(said, seen, strict=True)
        ]
        found[f"new_{name}"] = torch.tensor(right)
    grounds = [case.caption.claims.ground for case in new]
    right = [
        torch.nan if word is None else float(each.ground == word) for word, each in zip(grounds, readings, strict=True)
    ]
    found["new_ground"] = torch.tensor(right)
    cases = [
        BenchmarkCase(each.caption.text, claims=each.caption.claims, object_count=each.object_count) for each in old
    ]
    counted = [place for place, kind in enumerate(judge.kinds) if kind not in ("prompt", "object_count")]
    claims = judge(drawn(pipeline, [each.caption.text for each in old])[0], cases)[:, counted].sum(1).float()
    return {**found, "old_claims": claims[:, 0] / claims[:, 1]}, pictures


def share(values: Tensor, is_truth: bool) -> list[Any]:
    """The mean of what is known, and its interval; Wilson's where each value is a truth."""
    known = values.float()[~values.float().isnan()]
    return [float(known.mean()), mean_interval(known.bool() if is_truth else known)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="runs/lora_shape", help="folder of pictures and of the training")
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument(
        "--prompts", type=int, nargs=2, default=(100, 300), help="drawn of the new shape, and of the old"
    )
    parser.add_argument("--max_seconds", type=float, default=2400.0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--warmup_steps", type=int, default=10)
    parser.add_argument("--dry_run", action="store_true", help="write no record")
    options = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(options.output)
    old = sample_prompts(options.prompts[1])  # before the world has another shape
    add_shape()
    pipeline: Any = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    render, judge = renderer.SceneRenderer(pipeline.image_size), ClaimJudge()
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    rows = []
    taught = scenes_with(NEW, SEEDS["train"], options.pictures)
    shown = to_pil(render([case.scene for case in taught]).images.clamp(0, 1))
    for number, (case, picture) in enumerate(zip(taught, shown, strict=True)):
        picture.save(folder / "pictures" / f"{number:04d}.png")
        rows.append(json.dumps({"file_name": f"{number:04d}.png", "text": case.caption.text}))
    (folder / "pictures" / "metadata.jsonl").write_text("\n".join(rows))
    reader, accuracy = train_reader(pipeline, render, 400)
    print("reader of shapes", accuracy, flush=True)
    new = scenes_with(NEW, SEEDS["drawn"], options.prompts[0], num_objects=1)
    before, plain = figures(pipeline, reader, judge, new, old)
    print({name: float(values.float().nanmean()) for name, values in before.items()}, flush=True)
    limits = {
        "max_seconds": options.max_seconds,
        "steps": options.steps,
        "learning_rate": options.learning_rate,
        "warmup_steps": options.warmup_steps,
        "evaluation_size": 20,
    }
    run = train_lora(
        LoraTrainingConfig(str(folder / "run"), pictures=str(folder / "pictures"), num_threads=1, **limits)
    )
    pipeline.load_lora_weights(folder / "run" / "export")
    after, adapted = figures(pipeline, reader, judge, new, old)
    same = [drawn(pipeline, [case.caption.text for case in new[:8]], method)[1] for method in ("ar", "jacobi")]
    parts = {
        "before": before,
        "after": after,
        "change": {name: after[name].float() - before[name].float() for name in after},
    }
    told: dict[str, Any] = {
        "provenance": provenance(),
        "model": Path(find_model()).name,
        "pictures": options.pictures,
        "prompts": [*options.prompts],
        "reader_accuracy": accuracy,
        "steps": run.step,
        "batch_size": 16,
        "training_seconds": round(run.elapsed),
        "losses": run.evaluation,
        "jacobi_draws_plain_decodings_pictures": torch.equal(*same),
    }
    for part, values in parts.items():
        told[part] = {name: share(each, part != "change" and name != "old_claims") for name, each in values.items()}
    print(json.dumps(told, indent=1))
    shown = [picture for pair in zip(to_pil(plain[:8]), to_pil(adapted[:8]), strict=True) for picture in pair]
    labels = [label for case in new[:8] for label in (f"before: {case.caption.text}", "after")]
    contact_sheet(shown, labels, 4).save(folder / "sheet.png")
    if not options.dry_run:
        write_result(RESULTS / "lora_shape.json", told)


if __name__ == "__main__":
    main()
