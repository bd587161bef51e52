"""The judge: from maps to readings, from folder to network, and what the shipped one can read."""

import pytest
import torch
from refusals import raised, refused
from scene_truth import reading_from_scene

from scenes.judge.claim_checks import Tally, claims_from_scene, judge_claims
from scenes.judge.network import SceneJudge, SceneJudgeOutput, decode_readings, load_judge, read_images
from scenes.judge.picture_reading import JudgedObject
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import ATTRIBUTE_VALUES, SETTING_VALUES, sample_scene
from scenes.training.judge import build_targets

SMALL = (4, 6, 6, 8)
GRID = 32


def blank_output(pictures: int) -> SceneJudgeOutput:
    maps = {name: torch.zeros(pictures, len(v), GRID, GRID) for name, v in ATTRIBUTE_VALUES.items()}
    settings = {name: torch.zeros(pictures, len(v)) for name, v in SETTING_VALUES.items()}
    plane = torch.zeros(pictures, GRID, GRID)
    return SceneJudgeOutput(centre=plane - 9, screen_x=plane.clone(), depth=plane.clone(), **maps, **settings)


def put(output: SceneJudgeOutput, picture: int, row: int, column: int, logit: float, item: JudgedObject) -> None:
    """Make a cell say there is `item`, and its neighbours agree about what it is like."""
    output.centre[picture, row, column] = logit
    around = (slice(max(0, row - 1), row + 2), slice(max(0, column - 1), column + 2))
    for name, values in ATTRIBUTE_VALUES.items():
        getattr(output, name)[picture, values.index(getattr(item, name)), *around] = 5.0
    output.screen_x[picture, *around] = item.screen_x
    output.depth[picture, *around] = item.depth


CUBE = JudgedObject("cube", "red", "striped", "large", -0.25, 0.5)
CONE = JudgedObject("cone", "white", "shiny", "small", 0.5, 2.5)


def test_peaks_become_objects_from_left_to_right():
    output = blank_output(2)
    put(output, 0, 10, 24, 3.0, CONE)
    put(output, 0, 20, 12, 1.0, CUBE)
    output.ground[0, 2], output.sky[0, 1] = 1.0, 1.0
    first, second = decode_readings(output, 0.4, 6)
    wanted = [("cube", "red", "striped", "large"), ("cone", "white", "shiny", "small")]
    assert [(o.shape, o.colour, o.material, o.size) for o in first.objects] == wanted
    assert first.objects[0].screen_x == pytest.approx(-0.25) and first.objects[1].depth == pytest.approx(2.5)
    assert first.objects[1].confidence == pytest.approx(torch.tensor(3.0).sigmoid().item())
    assert (first.ground, first.sky) == ("wood", "cloudy")
    assert second.objects == () and (second.ground, second.sky) == ("grass", "clear")


def test_a_weaker_peak_beside_a_stronger_one_is_the_same_object():
    output = blank_output(1)
    put(output, 0, 10, 10, 3.0, CUBE)
    output.centre[0, 12, 12] = 2.0
    assert len(decode_readings(output, 0.4, 6)[0].objects) == 1
    output.centre[0, 10, 13] = 2.0
    assert len(decode_readings(output, 0.4, 6)[0].objects) == 2


def test_threshold_and_the_most_objects():
    output = blank_output(1)
    for index in range(7):
        put(output, 0, 4 * index, 16, float(index - 3), CUBE)
    assert len(decode_readings(output, 0.4, 8)[0].objects) == 4  # logits 0, 1, 2, 3
    confidences = [item.confidence for item in decode_readings(output, 0.4, 2)[0].objects]
    assert sorted(confidences) == pytest.approx([torch.tensor(v).sigmoid().item() for v in (2.0, 3.0)])


def test_faultless_maps_give_the_truth():
    """What the judge is trained to say is what its reading is decoded from, corners of the picture included."""
    scenes = [sample_scene(seed, "all") for seed in range(60)]
    targets = build_targets(scenes, GRID)
    output = blank_output(len(scenes))
    output.centre = torch.logit(targets.heat, eps=1e-4)
    for index, picture in enumerate(targets.picture.tolist()):
        values = {name: v[targets.attributes[name][index]] for name, v in ATTRIBUTE_VALUES.items()}
        item = JudgedObject(**values, screen_x=targets.screen_x[index].item(), depth=targets.depth[index].item())
        row, column = targets.row[index].item(), targets.column[index].item()
        put(output, picture, row, column, output.centre[picture, row, column].item(), item)
    for name in SETTING_VALUES:
        getattr(output, name).scatter_(1, targets.settings[name][:, None], 1.0)
    for reading, scene in zip(decode_readings(output, 0.7, 6), scenes, strict=True):
        truth = reading_from_scene(scene)
        assert (reading.ground, reading.sky) == (truth.ground, truth.sky)
        assert len(reading.objects) == len(truth.objects)
        for read, true in zip(reading.objects, truth.objects, strict=True):
            assert all(getattr(read, name) == getattr(true, name) for name in ATTRIBUTE_VALUES)
            assert read.screen_x == pytest.approx(true.screen_x, abs=1e-5)
            assert read.depth == pytest.approx(true.depth, abs=1e-5)


def test_a_reading_does_not_depend_on_the_batch_or_on_the_size():
    torch.manual_seed(0)
    judge = SceneJudge(block_out_channels=SMALL, centre_threshold=0.0)
    images = torch.rand(3, 3, 128, 128)
    together = read_images(judge, images)
    alone = read_images(judge, images[1:2])[0]
    assert [o.shape for o in together[1].objects] == [o.shape for o in alone.objects]
    assert together[1].objects[0].depth == pytest.approx(alone.objects[0].depth, abs=1e-5)
    # Smooth pictures look the same at twice the size.
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 4, 4), size=(128, 128), mode="bilinear")
    doubled = torch.nn.functional.interpolate(smooth, size=(256, 256), mode="bilinear")
    first, second = read_images(judge, smooth)[0], read_images(judge, doubled)[0]
    assert (first.ground, first.sky, len(first.objects)) == (second.ground, second.sky, len(second.objects))
    raised(ValueError, "images", read_images, judge, torch.rand(3, 128, 128))


def test_saved_and_loaded_it_reads_the_same(tmp_path):
    torch.manual_seed(0)
    judge = SceneJudge().to(torch.bfloat16)
    judge.save_pretrained(tmp_path / "judge")
    files = {path.name: path.stat().st_size for path in (tmp_path / "judge").iterdir()}
    assert files["diffusion_pytorch_model.safetensors"] <= 2**20
    loaded = load_judge(tmp_path / "judge")
    assert loaded.dtype == torch.float32 and not loaded.training
    images = torch.rand(1, 3, 128, 128)
    with torch.no_grad():
        assert torch.equal(loaded(images).centre, judge.float()(images).centre)
    refused(r"judge: .* holds none", load_judge, tmp_path)


@pytest.mark.parametrize("arguments", [{"image_size": 100}, {"block_out_channels": (8, 8)}])
def test_wrong_shapes_are_named(arguments):
    raised(ValueError, next(iter(arguments)), SceneJudge, **arguments)


@pytest.mark.parametrize("side", [128, 256])
def test_the_shipped_judge_reads_heldout_renders(side):
    scenes = [sample_scene(seed, "heldout") for seed in range(3_000_000_000, 3_000_000_100)]
    readings = read_images(load_judge(), SceneRenderer(side)(scenes).images)
    tally = Tally.of(judge_claims(r, claims_from_scene(s)) for r, s in zip(readings, scenes, strict=True))
    for kind in (*ATTRIBUTE_VALUES, *SETTING_VALUES, "count", "relation"):
        assert tally.share(kind).accuracy >= 0.95, kind
