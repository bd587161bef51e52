"""Training of the judge (`scenes.judge.network`): what its maps should say, its loss, and pictures made harder.

The judge reads pictures that a tokenizer decoded, so it is trained on more than clean renders: some are blurred, scaled
down and up, noisy or changed in colour, and some are reconstructions of a trained tokenizer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scenes.judge.claim_checks import KINDS, Tally, claims_from_scene, judge_claims
from scenes.judge.network import STRIDE, SceneJudge, SceneJudgeOutput, read_images
from scenes.judge.picture_reading import describe_reading
from scenes.rendering import camera
from scenes.rendering.scene import ATTRIBUTE_VALUES, SETTING_VALUES, Scene
from scenes.seeds import HELDOUT_SEED, RECONSTRUCTION_SEED
from scenes.training.coded import load_vqvae
from scenes.training.data import RenderedSceneSource, SceneSource
from vargen.base.bounds import MAX_PIXELS
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.drawing.sheet import contact_sheet, to_pil
from vargen.models.llamagen.vq import decode_codes, encode_images
from vargen.runs.files import save_image_atomic
from vargen.training.config import RunConfig, check
from vargen.training.run import RunResult, Task, prepare, train

_CENTRE_SPREAD = 1.0  # cells; standard deviation of the bump that marks a centre
_COLOUR_SHIFT = 0.05  # largest change of a colour channel, as a share of the range and of its own scale
_NOISE = 0.05  # largest standard deviation of the noise on a picture; many have none
_RECONSTRUCTIONS = 1024  # pictures that are reconstructed, once, before training
_RECONSTRUCTION_SHARE = 0.3  # of each batch
_SHEET_IMAGES = 16
_SPLIT = "all"  # a judge must know the combinations that are held out from the generator
_CHUNK = 32


@dataclass
class JudgeTrainingConfig(RunConfig):
    """Settings of the judge's training, beside those of every run."""

    image_size: int = option(128, least=32, most=MAX_PIXELS)
    """Side of the training pictures, pixels."""
    block_out_channels: tuple[int, ...] = option((24, 48, 80, 88), least=1)
    """As in `SceneJudge`."""
    degraded_share: float = option(0.5, least=0.0, most=1.0)
    """Share of each batch that is blurred or scaled down and up."""
    vqvae: str | None = option(None, path=READ_FOLDER)
    """Folder of a trained tokenizer (a `diffusers.VQModel`); null trains without reconstructions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.image_size % 16 == 0, "image_size", self.image_size, "must be a multiple of 16")
        channels = self.block_out_channels
        check(len(channels) == 4, "block_out_channels", channels, "must be four numbers")

    def architecture(self) -> dict[str, Any]:
        return {"image_size": self.image_size, "block_out_channels": self.block_out_channels}


@dataclass(frozen=True)
class JudgeTargets:
    """The truth about B pictures with N objects altogether, on maps of side G.

    Attributes:
        heat: `[B, G, G]` in [0, 1], a bump around each centre that is 1 in the cell holding it.
        picture, row, column: `[N]` int64, the picture of each object, and the cell with its centre.
        attributes: by name, `[N]` int64 indices into `ATTRIBUTE_VALUES`.
        screen_x, depth: `[N]` float, as in `JudgedObject`.
        settings: by name, `[B]` int64 indices into `SETTING_VALUES`.
    """

    heat: Tensor
    picture: Tensor
    row: Tensor
    column: Tensor
    attributes: dict[str, Tensor]
    screen_x: Tensor
    depth: Tensor
    settings: dict[str, Tensor]


def build_targets(scenes: Sequence[Scene], grid: int, device: torch.device | str = "cpu") -> JudgeTargets:
    """What a faultless judge's maps of side `grid` say of pictures of `scenes`."""
    entries = [(picture, item) for picture, scene in enumerate(scenes) for item in scene.objects]
    points = torch.tensor([(item.x, item.height / 2, item.depth) for _, item in entries])
    column, row = camera.project(points, grid).floor().long().clamp(0, grid - 1).unbind(-1)
    picture = torch.tensor([index for index, _ in entries])

    cells = torch.arange(grid)
    bumps = [torch.exp(-(cells - place[:, None]).square() / (2 * _CENTRE_SPREAD**2)) for place in (row, column)]
    heat = torch.zeros(len(scenes), grid, grid)
    for index, bump in zip(picture.tolist(), bumps[0][:, :, None] * bumps[1][:, None, :], strict=True):
        torch.maximum(heat[index], bump, out=heat[index])

    def indices(values: Sequence[str], words: Iterable[str]) -> Tensor:
        return torch.tensor([values.index(word) for word in words], device=device)

    return JudgeTargets(
        heat=heat.to(device),
        picture=picture.to(device),
        row=row.to(device),
        column=column.to(device),
        attributes={
            name: indices(values, (getattr(item, name) for _, item in entries))
            for name, values in ATTRIBUTE_VALUES.items()
        },
        screen_x=torch.tensor([camera.screen_position(item.x, item.depth) for _, item in entries], device=device),
        depth=torch.tensor([item.depth for _, item in entries], device=device),
        settings={
            name: indices(values, (getattr(scene, name) for scene in scenes)) for name, values in SETTING_VALUES.items()
        },
    )


def judge_loss(output: SceneJudgeOutput, targets: JudgeTargets) -> tuple[Tensor, dict[str, Tensor]]:
    """Scalar loss and its parts.

    Centres by the penalty-reduced focal loss of Law and Deng (arXiv 1808.01244, section 3.2); attributes by cross
    entropy, places by absolute error in cells and world units, both over the 3 x 3 cells around each centre (those the
    reading is taken from), near ones weighted more.
    """
    parts = {"centre": centre_loss(output.centre, targets.heat)}

    grid = output.centre.shape[-1]
    offset = torch.arange(-1, 2, device=targets.row.device)
    rows = (targets.row[:, None, None] + offset[:, None]).expand(-1, 3, 3)
    columns = (targets.column[:, None, None] + offset).expand(-1, 3, 3)
    weight = torch.exp(-(offset[:, None].square() + offset.square()) / (2 * _CENTRE_SPREAD**2)).expand(rows.shape)
    inside = (rows >= 0) & (rows < grid) & (columns >= 0) & (columns < grid)
    weight = (weight * inside).flatten()
    weight = weight / weight.sum()
    rows, columns = rows.clamp(0, grid - 1).flatten(), columns.clamp(0, grid - 1).flatten()  # [N * 9]
    picture = targets.picture.repeat_interleave(9)

    for name, truth in targets.attributes.items():
        logits = getattr(output, name)[picture, :, rows, columns]  # [N * 9, values]
        error = F.cross_entropy(logits, truth.repeat_interleave(9), reduction="none")
        parts[name] = (error * weight).sum()
    for name, truth, scale in (("screen_x", targets.screen_x, grid / 2), ("depth", targets.depth, 1.0)):
        error = (getattr(output, name)[picture, rows, columns] - truth.repeat_interleave(9)).abs() * scale
        parts[name] = (error * weight).sum()
    for name, truth in targets.settings.items():
        parts[name] = 0.5 * F.cross_entropy(getattr(output, name), truth)
    return torch.stack(list(parts.values())).sum(), parts


def centre_loss(logits: Tensor, heat: Tensor) -> Tensor:
    """Focal loss of centre logits `[B, G, G]` against `heat` in [0, 1], per centre; a centre is where heat is 1."""
    probability = logits.sigmoid()
    missed = -(1 - probability).square() * F.logsigmoid(logits)
    imagined = -(1 - heat).pow(4) * probability.square() * F.logsigmoid(-logits)
    is_centre = heat == 1
    return torch.where(is_centre, missed, imagined).sum() / is_centre.sum().clamp_min(1)


def degrade(images: Tensor, degraded_share: float, generator: torch.Generator) -> Tensor:
    """Renders that look a little as if a tokenizer had been at them: soft, blocky, noisy, off in colour.

    The first pictures of the batch are blurred, the next scaled, and the last stay sharp. Scenes are random, so their
    order does not matter.

    Args:
        images: `[B, 3, H, W]` in [0, 1].
        degraded_share: as in `JudgeTrainingConfig`.
        generator: of every random number, on the CPU.
    """
    images = images.clone()
    batch, side = len(images), images.shape[-1]
    blurred = round(batch * degraded_share / 2)
    scaled = round(batch * degraded_share)
    draws = torch.rand(2, generator=generator).tolist()
    if blurred:
        images[:blurred] = gaussian_blur(images[:blurred], (0.4 + 1.0 * draws[0]) * side / 128)
    if scaled > blurred:
        small = round(side * (0.4 + 0.4 * draws[1]))
        shrunk = F.interpolate(images[blurred:scaled], size=(small, small), mode="bilinear", antialias=True)
        images[blurred:scaled] = F.interpolate(shrunk, size=(side, side), mode="bilinear")

    def uniform(*shape: int) -> Tensor:
        """In [-1, 1]."""
        return (torch.rand(shape, generator=generator) * 2 - 1).to(images.device)

    gain, shift = 1 + _COLOUR_SHIFT * uniform(batch, 3, 1, 1), _COLOUR_SHIFT * uniform(batch, 3, 1, 1)
    images = images * gain + shift
    # Fine noise in brightness, coarse noise in colour, at the places of the tokens; half of the pictures have it.
    fine = torch.randn(batch, 1, side, side, generator=generator).to(images.device)
    images += fine * _NOISE * uniform(batch, 1, 1, 1).clamp_min(0)
    coarse = torch.randn(batch, 3, side // 8, side // 8, generator=generator).to(images.device)
    coarse = coarse * 0.6 * _NOISE * uniform(batch, 1, 1, 1).clamp_min(0)
    return (images + F.interpolate(coarse, scale_factor=8.0)).clamp_(0, 1)


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur `[B, C, H, W]` with a standard deviation of `sigma` pixels; the border is repeated outwards."""
    reach = max(1, round(2.5 * sigma))
    offsets = torch.arange(-reach, reach + 1, device=images.device)
    kernel = torch.exp(-offsets.square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).to(images.dtype)
    flat = F.pad(images, (reach,) * 4, mode="replicate").flatten(0, 1)[:, None]
    return F.conv2d(F.conv2d(flat, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1)).view_as(images)


@torch.no_grad()
def reconstruct(vqvae: Any, images: Tensor, batch_size: int = 32) -> Tensor:
    """Pictures `[B, 3, H, W]` in [0, 1] through the tokenizer's codes and back, fp32, on the device they came from."""
    pieces = []
    for chunk in images.split(batch_size):
        codes = encode_images(vqvae, (chunk * 2 - 1).to(vqvae.device))
        pieces.append((decode_codes(vqvae, codes) * 0.5 + 0.5).clamp(0, 1).to(images.device))
    return torch.cat(pieces)


class ReconstructionBank:
    """Renders as a trained tokenizer gives them back, kept in memory as bytes.

    Args:
        folder: the tokenizer's folder.
        count: how many pictures.
        image_size: their side in pixels; must be a multiple of the tokenizer's downsampling factor.

    Raises:
        UserError: if the folder holds no tokenizer.
    """

    def __init__(self, folder: str, count: int, image_size: int, source: SceneSource, device: torch.device) -> None:
        self.vqvae, _ = load_vqvae(folder, image_size, device)
        images: list[Tensor] = []
        self.scenes: list[Scene] = []
        for start in range(0, count, _CHUNK):
            batch = source(RECONSTRUCTION_SEED + start, min(_CHUNK, count - start), _SPLIT)
            images.append((reconstruct(self.vqvae, batch.images * 0.5 + 0.5) * 255).round().byte())
            self.scenes += batch.scenes
        self.images = torch.cat(images)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, list[Scene]]:
        """Random pictures `[count, 3, H, W]` in [0, 1] and their scenes."""
        chosen = torch.randint(len(self.scenes), (count,), generator=generator)
        return self.images[chosen.to(self.images.device)].float() / 255, [self.scenes[i] for i in chosen.tolist()]


class JudgeTask(Task):
    """The judge as the common loop sees it."""

    def __init__(self, config: JudgeTrainingConfig, source: SceneSource, device: torch.device):
        self.config, self.source, self.device = config, source, device
        self.judge = SceneJudge(config.image_size, config.block_out_channels)
        self.judge.to(device, memory_format=torch.channels_last)
        self.module = self.judge
        self.run_judge = torch.compile(self.judge) if config.compile else self.judge
        heldout = source(HELDOUT_SEED, config.evaluation_size, "heldout")
        self.heldout_scenes = heldout.scenes
        images = heldout.images * 0.5 + 0.5
        self.heldout = {"": images, "degraded_": degrade(images, 1.0, _generator(0))}
        self.bank: ReconstructionBank | None = None
        if config.vqvae is not None:
            self.bank = ReconstructionBank(config.vqvae, _RECONSTRUCTIONS, config.image_size, source, device)
            self.heldout["reconstructed_"] = reconstruct(self.bank.vqvae, images)

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        images, scenes = self._batch(step)
        output = self.run_judge(images.contiguous(memory_format=torch.channels_last))
        with torch.autocast(self.config.device, enabled=False):
            grid = self.config.image_size // STRIDE
            loss, parts = judge_loss(output, build_targets(scenes, grid, self.device))
        return loss, {name: value.detach() for name, value in parts.items()}

    def _batch(self, step: int) -> tuple[Tensor, list[Scene]]:
        """The pictures `[B, 3, H, W]` in [0, 1] of a step, and their scenes; a function of the step alone."""
        config = self.config
        generator = _generator(config.seed + step)
        drawn = round(config.batch_size * _RECONSTRUCTION_SHARE) if self.bank else 0
        batch = self.source(config.seed + step * config.batch_size, config.batch_size - drawn, _SPLIT)
        pictures = degrade(batch.images * 0.5 + 0.5, config.degraded_share, generator)
        if self.bank is None:
            return pictures, list(batch.scenes)
        reconstructions, their_scenes = self.bank.draw(drawn, generator)
        return torch.cat((pictures, reconstructions)), [*batch.scenes, *their_scenes]

    def evaluate(self) -> dict[str, float]:
        """Accuracy by kind against everything that is true of the held-out scenes, on clean and on harder pictures."""
        figures: dict[str, float] = {}
        for prefix, images in self.heldout.items():
            readings = zip(read_images(self.judge, images), self.heldout_scenes, strict=True)
            tally = Tally.of(judge_claims(reading, claims_from_scene(scene)) for reading, scene in readings)
            shares = {kind: tally.share(kind) for kind in KINDS}
            figures |= {f"{prefix}{kind}": share.accuracy for kind, share in shares.items() if share.total}
        return figures

    def draw_samples(self, path: Path) -> None:
        images = self.heldout["reconstructed_" if "reconstructed_" in self.heldout else "degraded_"][:_SHEET_IMAGES]
        labels = [describe_reading(reading) for reading in read_images(self.judge, images)]
        save_image_atomic(contact_sheet(to_pil(images), labels), path)

    def export(self, folder: Path) -> None:
        exported = copy.deepcopy(self.judge)
        for parameter in exported.parameters():  # diffusers' own cast warns needlessly
            parameter.data = parameter.data.to(torch.bfloat16, memory_format=torch.contiguous_format)
        exported.save_pretrained(folder, safe_serialization=True)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def train_judge(config: JudgeTrainingConfig, source: SceneSource | None = None) -> RunResult:
    """Train the judge that reads pictures of scenes.

    Args:
        source: where scenes come from; the renderer if not given.

    Raises:
        UserError: for a field or checkpoint that does not fit, or a tokenizer folder that holds none.
    """
    device = prepare(config)
    task = JudgeTask(config, source or RenderedSceneSource(config.image_size, device), device)
    return train(config, task)
