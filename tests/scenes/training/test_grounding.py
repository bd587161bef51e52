"""Being told which object stands at each place of a picture, and how many are to come."""

from dataclasses import replace

import pytest
import torch

from scenes.captions.picture_captions import compose_caption
from scenes.rendering.scene import sample_scene
from scenes.training.coded import CodedBatch, token_places
from scenes.training.data import RenderedSceneSource
from scenes.training.grounding import GROUNDING, cell_attributes, cell_owners, grounding_loss, objects_to_come
from scenes.training.transformer import TransformerTask
from scenes.training.transformer_pass import training_inputs, training_run

CPU = torch.device("cpu")


def truth_of(seeds: range, grid_size: int = 8) -> dict[str, torch.Tensor]:
    cells = cell_attributes([sample_scene(seed, "all") for seed in seeds], grid_size)
    return {name: target.flatten(1) for name, target in cells.items()}


def certain(truth: dict[str, torch.Tensor], shift: int = 0) -> dict[str, torch.Tensor]:
    """Logits of somebody who knows, or knows the neighbouring cell's."""
    return {
        name: 40.0 * torch.nn.functional.one_hot(target.roll(shift, 1), 1 + len(GROUNDING[name])).float()
        for name, target in truth.items()
    }


def test_every_object_in_sight_has_cells_of_its_attributes():
    for seed in range(20):
        scene = sample_scene(seed, "all")
        cells = cell_attributes([scene], 16)
        nearest = min(scene.objects, key=lambda item: item.depth)
        there = torch.ones(16, 16, dtype=torch.bool)
        for name, values in GROUNDING.items():
            there &= cells[name][0] == 1 + values.index(getattr(nearest, name))
        assert there.any()
        covered = {name: cell[0] > 0 for name, cell in cells.items()}
        assert all(torch.equal(each, covered["shape"]) for each in covered.values()) and not covered["shape"].all()
    assert not any(cell.any() for cell in cell_attributes([replace(sample_scene(0), objects=())], 4).values())


def test_knowing_has_no_loss_and_the_neighbouring_cell_has():
    truth, told = truth_of(range(6)), torch.ones(6, dtype=torch.bool)
    loss, right = grounding_loss(certain(truth), truth, told)
    assert float(loss) < 1e-6 and float(right) == 1
    shifted, seen = grounding_loss(certain(truth, 1), truth, told)
    assert float(shifted) > 0.5 and float(seen) < 1


def test_rows_without_a_caption_do_not_count():
    truth, told = truth_of(range(4)), torch.tensor([True, False, True, False])
    read = certain(truth)
    wrong = {name: torch.where(told[:, None, None], logits, -logits) for name, logits in read.items()}
    assert float(grounding_loss(wrong, truth, told)[0]) < 1e-6
    assert float(grounding_loss(wrong, truth, ~told)[0]) > 10


def test_an_object_is_to_come_until_its_first_token_is_drawn():
    scenes = [sample_scene(seed, "all") for seed in range(40)]
    owners = cell_owners(scenes, 8).flatten(1)
    owners[0] = torch.where(owners[0] == 1, 2, owners[0])  # one whom nothing is seen of
    counts = objects_to_come(owners)
    for cells, count in zip(owners.tolist(), counts.tolist(), strict=True):
        assert count == [len(set(cells) - {0} - set(cells[:place])) for place in range(64)]
    assert {int(count) for count in counts[:, 0]} == {1, 2, 3}
    assert not objects_to_come(torch.zeros(2, 16, dtype=torch.int64)).any()


def test_an_object_begins_with_the_first_token_that_shows_an_edge_of_it(transformer_config, cheap_scenes):
    task = TransformerTask(transformer_config, cheap_scenes, CPU)
    task.grid_size = 16
    rendered = RenderedSceneSource(128, CPU)(0, 12, "train")
    places = token_places(rendered.object_mask, rendered.ground_mask, 16)
    batch = CodedBatch(rendered.scenes, rendered.seeds, torch.zeros_like(places), places)
    owners, shows_one = task._owners(batch), places < 2  # "object" and "edge"
    by_centre = cell_owners(batch.scenes, 16).flatten(1)
    known, known_by_centre = (each[shows_one].gt(0).float().mean() for each in (owners, by_centre))
    assert not owners[~shows_one].any() and known > 0.92 and known_by_centre < known - 0.1
    for scene, told in zip(batch.scenes, objects_to_come(owners), strict=True):
        assert told[0] == len(scene.objects) and told[-1] == 0


@pytest.mark.parametrize("progress", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("names", [("grounding",), ("counting",), ("grounding", "counting")])
def test_they_fade_and_reach_the_transformer(transformer_config, cheap_scenes, progress, names):
    weights = {"grounding": 2.0, "counting": 3.0}
    chosen = {f"{name}_weight": weights[name] for name in names}
    task = TransformerTask(replace(transformer_config, grounding_until=0.8, **chosen), cheap_scenes, CPU)
    loss, parts = task.loss(0, progress)
    left = max(0.0, 1 - progress / 0.8)
    assert {"grounding", "counting"} & set(parts) == (set(names) if left else set())
    expected = parts["tokens"] + sum(weights[name] * left * parts[name] for name in names if left)
    torch.testing.assert_close(loss.detach(), expected)
    if left:
        loss.backward()
        assert task.transformer.token_embedding.weight.grad.abs().sum() > 0
        assert all(parameter.grad is not None for parameter in task.extra_modules.parameters())


def test_a_place_is_asked_before_its_token_is_seen(transformer_config, cheap_scenes):
    task = TransformerTask(transformer_config, cheap_scenes, CPU)
    captions = [compose_caption(scene, seed).text for seed, scene in enumerate(task.heldout.scenes)]
    condition, mask = task._embed_texts(captions, None)
    codes = task.heldout.codes
    changed = codes.clone()
    changed[:, 5] = (changed[:, 5] + 1) % task.transformer.config.vocab_size
    with torch.no_grad():
        before, after = (
            training_run(task.transformer, *training_inputs(task.transformer, condition, mask, each))[1]
            for each in (codes, changed)
        )
    assert torch.equal(before[:, :6], after[:, :6]) and not torch.equal(before[:, 6:], after[:, 6:])
