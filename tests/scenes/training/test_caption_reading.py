"""Teaching the text encoder what captions say: the targets are the truth, and only right captions can be read."""

import pytest
import torch

from scenes.captions.picture_captions import Caption, Claims, ObjectClaim, RelationClaim, compose_caption
from scenes.rendering.scene import COLOURS, GROUNDS, MATERIALS, MAX_OBJECTS, SHAPES, SIZES, SKIES, sample_scene
from scenes.training.caption_reading import (
    UNTOLD,
    CaptionReader,
    CaptionTruth,
    Readings,
    caption_reading_loss,
    caption_truth,
    scene_classes,
    shape_classes,
    word_classes,
)

DIM, WIDTH = 32, 48
SCENES = [sample_scene(seed) for seed in range(24)]
CAPTIONS = [compose_caption(scene, scene.seed) for scene in SCENES]


def test_scene_classes_are_the_truth_in_both_orders():
    for scene in SCENES:
        classes = scene_classes(scene)
        assert (GROUNDS[classes[0]], SKIES[classes[1]]) == (scene.ground, scene.sky)
        width = (len(classes) - 2) // (2 * MAX_OBJECTS)
        for start, ordered in (
            (2, scene.objects),
            (2 + width * MAX_OBJECTS, sorted(scene.objects, key=lambda item: item.depth)),
        ):
            for place in range(MAX_OBJECTS):
                group = classes[start + place * width : start + (place + 1) * width]
                if place >= len(ordered):
                    assert group == [0] * width
                    continue
                assert SHAPES[group[0] - 1] == ordered[place].shape
                assert COLOURS[group[1] - 1] == ordered[place].colour


def test_shape_classes_count_all_and_describe_the_only_one():
    scene = next(scene for scene in SCENES if len({item.shape for item in scene.objects}) == 2 < len(scene.objects))
    kinds = [item.shape for item in scene.objects]
    only = next(item for item in scene.objects if kinds.count(item.shape) == 1)
    twice = next(shape for shape in kinds if kinds.count(shape) == 2)
    claims = [ObjectClaim(item.shape, item.colour, None, item.size) for item in scene.objects]
    classes = dict(zip(SHAPES, shape_classes(scene, claims), strict=True))
    assert classes[only.shape] == [1, COLOURS.index(only.colour), UNTOLD, SIZES.index(only.size)]
    assert classes[twice] == [2, UNTOLD, UNTOLD, UNTOLD]
    assert all(classes[shape] == [0, UNTOLD, UNTOLD, UNTOLD] for shape in SHAPES if shape not in kinds)


def test_word_classes_say_whose_word_each_is():
    text = "a shiny red sphere left of a cube with stripes"
    claims = Claims(
        (ObjectClaim("sphere", "red", "shiny"), ObjectClaim("cube", None, "striped")), (RelationClaim(0, "left of", 1),)
    )
    red, shiny, striped = COLOURS.index("red"), MATERIALS.index("shiny"), MATERIALS.index("striped")
    sphere = [SHAPES.index("sphere"), red, shiny, UNTOLD, 1, UNTOLD]  # ranks 1 and 2 are the two places of two
    cube = [SHAPES.index("cube"), UNTOLD, striped, UNTOLD, 2, UNTOLD]
    nothing = [UNTOLD] * 6
    wanted = [nothing, sphere, sphere, sphere, nothing, nothing, nothing, cube, nothing, cube]
    assert word_classes(Caption(text, claims), 12) == [*wanted, nothing, nothing]
    assert word_classes(Caption("two cubes", Claims((ObjectClaim("cube"),) * 2)), 3) == [nothing] * 3


def test_every_class_has_its_logit_and_no_other_is_possible():
    readings = CaptionReader(DIM)(torch.randn(24, WIDTH, DIM), torch.ones(24, WIDTH, dtype=torch.bool))
    truth = caption_truth(SCENES, CAPTIONS, WIDTH)
    for name in ("scene", "shapes", "words"):
        logits, classes = getattr(readings, name), getattr(truth, name)
        assert logits.shape[:-1] == classes.shape
        told = classes != UNTOLD
        assert told.any()
        right = logits.log_softmax(-1).gather(-1, classes.clamp_min(0)[..., None])[..., 0]
        assert bool((right[told] > -20).all()), "a class is out of the question that occurs"
    assert bool((readings.scene.softmax(-1)[:, 0, len(GROUNDS) :] == 0).all())


def test_padding_is_not_read():
    reader = CaptionReader(DIM)
    tokens, mask = torch.randn(1, 5, DIM), torch.tensor([[True, True, True, False, False]])
    noisy = tokens.clone()
    noisy[:, 3:] = 99.0
    torch.testing.assert_close(reader(tokens, mask).scene, reader(noisy, mask).scene)
    torch.testing.assert_close(reader(tokens, mask).shapes, reader(noisy, mask).shapes)
    assert all(row == [UNTOLD] * 6 for row in word_classes(CAPTIONS[0], WIDTH)[len(CAPTIONS[0].text.split()) + 5 :])


def train_on(order: list[int]) -> dict[str, float]:
    """The losses after learning to read states, one set per scene, where the truths come in another order."""
    torch.manual_seed(0)
    states = torch.randn(len(SCENES), WIDTH, DIM, requires_grad=True)
    reader, mask = CaptionReader(DIM), torch.ones(len(SCENES), WIDTH, dtype=torch.bool)
    optimizer = torch.optim.Adam([states, *reader.parameters()], 0.05)
    truth = caption_truth(SCENES, CAPTIONS, WIDTH)
    for _ in range(100):
        loss, _ = caption_reading_loss(reader(states, mask), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    other = caption_truth([SCENES[index] for index in order], [CAPTIONS[index] for index in order], WIDTH)
    with torch.no_grad():
        return {name: value.item() for name, value in caption_reading_loss(reader(states, mask), other)[1].items()}


def test_captions_of_other_scenes_are_read_worse():
    same = list(range(len(SCENES)))
    own, others = train_on(same), train_on(same[1:] + same[:1])
    for name in ("scene", "shapes", "words"):
        assert own[name] < 0.3 < 1.0 < others[name]
    assert own["words_right"] > 0.95 > 0.7 > others["words_right"]


def test_what_is_not_told_does_not_count():
    reader, mask = CaptionReader(DIM), torch.ones(4, WIDTH, dtype=torch.bool)
    readings = reader(torch.randn(4, WIDTH, DIM), mask)
    truth = caption_truth(SCENES[:4], CAPTIONS[:4], WIDTH)
    loss, parts = caption_reading_loss(readings, truth)
    told = (truth.words != UNTOLD)[..., None]
    changed = Readings(readings.scene, readings.shapes, torch.where(told, readings.words, torch.randn(())))
    torch.testing.assert_close(caption_reading_loss(changed, truth)[0], loss)
    assert parts["scene"] + parts["shapes"] + parts["words"] == pytest.approx(loss.item(), rel=1e-5)
    silent = CaptionTruth(truth.scene, truth.shapes, torch.full_like(truth.words, UNTOLD))
    assert caption_reading_loss(readings, silent)[1]["words"] == 0
