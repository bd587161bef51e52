"""Objects that captions misname: which, how, and what stays as it was."""

from __future__ import annotations

from dataclasses import replace

from vargen.world.scenes.scene import is_heldout_combination, sample_scene
from vargen.world.training.misnaming import MISNAMED, misname

SCENES = [sample_scene(seed, "train") for seed in range(600)]
SEEDS = range(1000, 1600)


def test_a_misnamed_object_differs_in_one_thing_and_the_others_in_none() -> None:
    described, misnamed = misname(SCENES, SEEDS, 0.4)
    seen = set()
    for scene, said, marks in zip(SCENES, described, misnamed.tolist(), strict=True):
        assert replace(said, objects=scene.objects) == scene and len(said.objects) == len(scene.objects)
        assert not marks[0] and not any(marks[1 + len(scene.objects) :])
        for item, other, changed in zip(scene.objects, said.objects, marks[1:], strict=False):
            names = [name for name in MISNAMED if getattr(item, name) != getattr(other, name)]
            assert len(names) == changed
            assert replace(other, **{name: getattr(item, name) for name in names}) == item
            seen.update((name, getattr(item, name), getattr(other, name)) for name in names)
    assert len(seen) == 4 * 3 + 4 * 3 + 2  # everything is taken for everything


def test_nothing_is_said_that_training_never_shows() -> None:
    described, _ = misname(SCENES, SEEDS, 1.0)
    assert not any(is_heldout_combination(scene) for scene in described)


def test_the_share_is_that_of_the_objects() -> None:
    objects = sum(len(scene.objects) for scene in SCENES)
    for share, least in ((0.0, 0.0), (0.4, 0.28), (1.0, 0.7)):
        described, misnamed = misname(SCENES, SEEDS, share)
        assert least <= misnamed.sum() / objects <= share
        assert (described == SCENES) == (share == 0)


def test_the_same_scene_and_seed_are_misnamed_alike() -> None:
    described, misnamed = misname(SCENES, SEEDS, 0.4)
    part, marks = misname(SCENES[100:110], SEEDS[100:110], 0.4)
    assert part == described[100:110] and marks.equal(misnamed[100:110])
    assert misname(SCENES, [seed + 1 for seed in SEEDS], 0.4)[0] != described
