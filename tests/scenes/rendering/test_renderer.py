"""Pictures: reproducible, independent of their batch, where the truth says things are, lit and textured as asked."""

import dataclasses
import itertools

import pytest
import torch
from refusals import raised
from scene_truth import render

from scenes.rendering import renderer as renderer_module
from scenes.rendering.renderer import COLOUR_VALUES, SceneRenderer
from scenes.rendering.scene import (
    COLOURS,
    GROUNDS,
    MATERIALS,
    SHAPES,
    SIZES,
    Scene,
    SceneObject,
    is_heldout_object,
    object_boxes,
    sample_scene,
)
from scenes.rendering.textures import LATTICE_SIDE, NOISE_LENGTH, Octave, noise_matrix


def one_object_scene(**changes: object) -> Scene:
    values: dict = {
        "shape": "sphere", "colour": "red", "material": "matte", "size": "large", "x": 0.0, "depth": 1.0,
        "rotation": 0.3,
    }  # fmt: skip
    item = SceneObject(**(values | {k: v for k, v in changes.items() if k in values}))
    scene = Scene(5, (item,), "sand", "clear", 0.4, 0.9)
    return dataclasses.replace(scene, **{k: v for k, v in changes.items() if k not in values})


@pytest.fixture(scope="module")
def renderer() -> SceneRenderer:
    return SceneRenderer()


def test_same_seed_same_picture_and_other_seed_another():
    first, scene = render(11)
    again, _ = render(11)
    other, _ = render(12)
    assert first.shape == (3, 128, 128) and scene == sample_scene(11)
    assert torch.equal(first, again)
    assert (first - other).abs().mean() > 0.01


def test_a_picture_does_not_depend_on_its_batch(renderer):
    scenes = [sample_scene(seed) for seed in range(20)]
    together = renderer(scenes)
    alone = torch.cat([renderer([scene]).images for scene in scenes])
    assert torch.allclose(together.images, alone, atol=1e-6)
    assert all(values.isfinite().all() and values.min() >= 0 and values.max() <= 1 for values in together)


def test_every_combination_of_attributes_renders(renderer):
    combinations = itertools.product(SHAPES, COLOURS, MATERIALS)
    scenes = [one_object_scene(shape=each[0], colour=each[1], material=each[2]) for each in combinations]
    rendered = renderer(scenes)
    for scene, image, mask in zip(scenes, rendered.images, rendered.object_mask, strict=True):
        item = scene.objects[0]
        shown = image[:, mask > 0.99]
        wanted = torch.tensor(COLOUR_VALUES[item.colour])
        # Some of the surface has nearly the colour's own proportions, whatever the light and the pattern.
        hue = torch.nn.functional.cosine_similarity(shown, wanted[:, None], dim=0)
        assert (hue > 0.97).float().mean() > 0.2, item


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", SIZES)
def test_objects_stay_within_their_boxes_and_fill_them(renderer, shape, size):
    for x, depth, rotation in ((0.0, 0.0, 0.0), (-1.4, 1.3, 0.7), (1.7, 2.6, 1.3)):
        scene = one_object_scene(shape=shape, size=size, x=x, depth=depth, rotation=rotation)
        mask = renderer([scene]).object_mask[0] > 0
        rows, columns = mask.nonzero().unbind(-1)
        left, top, right, bottom = object_boxes(scene)[0].tolist()
        assert columns.min() >= left - 1 and columns.max() + 1 <= right + 1
        assert rows.min() >= top - 1 and rows.max() + 1 <= bottom + 1
        assert columns.max() + 1 - columns.min() > 0.85 * (right - left)
        assert rows.max() + 1 - rows.min() > 0.85 * (bottom - top)


def test_edges_are_anti_aliased(renderer):
    mask = renderer([one_object_scene()]).object_mask[0]
    assert ((mask > 0) & (mask < 1)).sum() > 30


def test_nearer_objects_hide_farther_ones(renderer):
    near = SceneObject("sphere", "red", "matte", "large", 0.0, 0.0, 0.0)
    far = SceneObject("sphere", "blue", "matte", "large", 0.1, 2.6, 0.0)
    both = renderer([Scene(5, (near, far), "sand", "clear", 0.4, 0.9)]).images[0]
    alone = renderer([Scene(5, (near,), "sand", "clear", 0.4, 0.9)])
    covered = alone.object_mask[0] == 1
    assert torch.equal(both[:, covered], alone.images[0][:, covered])


def test_shadows_fall_away_from_the_light_and_are_soft(renderer):
    lit = {}
    for side in (-1.0, 1.0):
        scene = one_object_scene(light_azimuth=side, light_elevation=0.65)
        bare = renderer([dataclasses.replace(scene, objects=(dataclasses.replace(scene.objects[0], x=50.0),))])
        shaded = renderer([scene])
        clear = shaded.object_mask[0] == 0
        loss = ((bare.images[0] - shaded.images[0]).mean(0) * clear).clamp_min(0)
        centre = object_boxes(scene)[0][[0, 2]].mean()
        columns = torch.arange(128) + 0.5
        lit[side] = float((loss.sum(0) * (columns - centre)).sum() / loss.sum())
        assert len(loss[loss > 0.01].mul(50).round().unique()) > 5
    assert lit[-1.0] > 2 and lit[1.0] < -2


def test_grounds_and_noise_differ_with_the_seed(renderer):
    for ground in GROUNDS:
        pictures = renderer([one_object_scene(ground=ground), one_object_scene(ground=ground, seed=6)]).images
        assert (pictures[0] - pictures[1]).abs()[:, 96:].mean() > 0.02


def test_other_sizes_show_the_same_scene(monkeypatch):
    monkeypatch.setattr(renderer_module, "lattice_values", lambda seed: torch.zeros(NOISE_LENGTH))  # no fine detail
    scene = sample_scene(3)
    small, large = (SceneRenderer(side)([scene]).images for side in (64, 256))
    shrunk = torch.nn.functional.interpolate(large, size=64, mode="area")
    assert (small - shrunk).abs().mean() < 0.02


def test_a_size_that_has_no_whole_tiles_is_named():
    raised(ValueError, "image_size", SceneRenderer, 100)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_renders_the_same_pictures(renderer):
    scenes = [sample_scene(seed) for seed in range(8)]
    # A ray that grazes an edge may fall on either side of it, so a few pixels may differ.
    difference = (SceneRenderer(device="cuda")(scenes).images.cpu() - renderer(scenes).images).abs()
    assert (difference > 0.02).float().mean() < 1e-3


def test_what_training_never_shows_stays_what_it_is():
    """Shipped weights were trained without these: another choice would test them on what they have seen."""
    combinations = list(itertools.product(SHAPES, COLOURS, MATERIALS))
    kept = [each for each in combinations if is_heldout_object(*each)]
    assert len(kept) == len(combinations) // 16 and (SHAPES[0], COLOURS[5], MATERIALS[0]) in kept


def test_scenes_of_one_seed_differ_from_split_to_split():
    pairs = [(sample_scene(seed, "all").objects, sample_scene(seed, "train").objects) for seed in range(20)]
    assert all(one != other for one, other in pairs)


def test_noise_reads_every_point_of_a_lattice_and_wraps_around():
    last = LATTICE_SIDE - 1
    points = torch.tensor([[0.0, last], [last, 0.0], [LATTICE_SIDE, LATTICE_SIDE]])
    noise = noise_matrix(points, torch.full_like(points, 1e-3), (Octave(1, (1.0, 1.0), 0.5),)).to_dense()
    places = [(LATTICE_SIDE + v) * LATTICE_SIDE + u for u, v in ((0, last), (last, 0), (0, 0))]
    assert noise.argmax(1).tolist() == places and torch.allclose(noise.amax(1), torch.full((3,), 0.5))
