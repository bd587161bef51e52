"""Teaching the text encoder what captions say: the targets are the truth, and only right captions can be read."""

from __future__ import annotations

import torch

from vargen.scenes.scene import COLOURS, GROUNDS, MAX_OBJECTS, SHAPES, SKIES, sample_scene
from vargen.training.caption_reading import CaptionReader, caption_reading_loss, scene_classes

DIM = 32
SCENES = [sample_scene(seed) for seed in range(24)]


def test_classes_are_the_truth_in_both_orders() -> None:
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


def test_every_class_has_its_logit() -> None:
    reader = CaptionReader(DIM)
    groups = reader(torch.randn(2, 5, DIM), torch.ones(2, 5, dtype=torch.bool))
    assert [logits.shape[1] for logits in groups] == list(reader.group_sizes)
    for scene in SCENES:
        assert all(index < size for index, size in zip(scene_classes(scene), reader.group_sizes, strict=True))


def test_padding_is_not_read() -> None:
    reader = CaptionReader(DIM)
    tokens, mask = torch.randn(1, 5, DIM), torch.tensor([[False, False, True, True, True]])
    noisy = tokens.clone()
    noisy[:, :2] = 99.0
    for one, other in zip(reader(tokens, mask), reader(noisy, mask), strict=True):
        torch.testing.assert_close(one, other)


def train_on(order: list[int]) -> float:
    """The loss after learning to read one condition token per scene, whose truths come in the given order."""
    torch.manual_seed(0)
    condition = torch.randn(len(SCENES), 3, DIM, requires_grad=True)
    reader, mask = CaptionReader(DIM), torch.ones(len(SCENES), 3, dtype=torch.bool)
    told = torch.ones(len(SCENES), dtype=torch.bool)
    optimizer = torch.optim.Adam([condition, *reader.parameters()], 0.05)
    for _ in range(60):
        loss, _ = caption_reading_loss(reader(condition, mask), SCENES, told)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert condition.grad is not None and bool(condition.grad.abs().sum(-1).gt(0).all())
    with torch.no_grad():
        return caption_reading_loss(reader(condition, mask), [SCENES[index] for index in order], told)[0].item()


def test_captions_of_other_scenes_are_read_worse() -> None:
    same = list(range(len(SCENES)))
    assert train_on(same) < 0.3 < 1.0 < train_on(same[1:] + same[:1])


def test_rows_that_saw_no_caption_do_not_count() -> None:
    reader, tokens = CaptionReader(DIM), torch.randn(4, 3, DIM)
    groups = reader(tokens, torch.ones(4, 3, dtype=torch.bool))
    told = torch.tensor([True, False, True, False])
    loss, right = caption_reading_loss(groups, SCENES[:4], told)
    kept = [logits[told] for logits in groups]
    wanted, wanted_right = caption_reading_loss(kept, [SCENES[0], SCENES[2]], torch.tensor([True, True]))
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(right, wanted_right)
    assert caption_reading_loss(groups, SCENES[:4], torch.zeros(4, dtype=torch.bool))[0] == 0
