"""Captions that are nearly true, and telling them from the true ones."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from vargen.errors import UserError
from vargen.training.transformer_pass import training_forward
from vargen.world.captions.captions import compose_caption
from vargen.world.judge.reading import reading_from_scene
from vargen.world.judge.verdict import judge_claims
from vargen.world.scenes.scene import is_heldout_object, is_heldout_relation, sample_scene
from vargen.world.training import contrast
from vargen.world.training.contrast import contrast_loss, nearly_true_caption
from vargen.world.training.grounding import GROUNDING
from vargen.world.training.transformer import TransformerTask

CPU = torch.device("cpu")
SEEDS = range(300)


def test_a_nearly_true_caption_is_wrong_and_the_true_one_right() -> None:
    found = 0
    for seed in SEEDS:
        scene = sample_scene(seed)
        true, other = compose_caption(scene, seed), nearly_true_caption(scene, seed, compose_caption)
        if other is None:
            continue
        found += 1
        assert other == nearly_true_caption(scene, seed, compose_caption) and other.text != true.text
        truth = reading_from_scene(scene)
        assert judge_claims(truth, true.claims).right
        wrong = sum(not check.right for check in judge_claims(truth, other.claims).checks)
        assert wrong or len(other.claims.objects) < len(true.claims.objects)
    assert found > 0.9 * len(SEEDS)


def test_it_is_wrong_in_one_thing() -> None:
    """An attribute or an exchange of one leaves at most two objects wrong in one attribute each."""
    for seed in SEEDS:
        scene = sample_scene(seed)
        rng = random.Random(seed)
        for change in (contrast._another_attribute, contrast._exchanged_attribute):
            altered = change(scene, rng)
            if altered is None:
                continue
            pairs = [
                (name, getattr(old, name), getattr(new, name))
                for old, new in zip(scene.objects, altered.objects, strict=True)
                for name in GROUNDING
                if getattr(old, name) != getattr(new, name)
            ]
            assert len({name for name, _, _ in pairs}) == 1
            assert len(pairs) == (1 if change is contrast._another_attribute else 2)
            if len(pairs) == 2:
                (_, *first), (_, *second) = pairs
                assert first == second[::-1]


def test_every_change_changes_what_it_says() -> None:
    seen = set()
    for seed in SEEDS:
        scene = sample_scene(seed)
        for change, weight in contrast._CHANGES:
            altered = change(scene, random.Random(seed))
            if altered is None:
                continue
            seen.add(change)
            assert weight > 0 and altered != scene
            more = {contrast._one_less: -1, contrast._one_more: 1}.get(change, 0)
            assert len(altered.objects) == len(scene.objects) + more
    assert seen == {change for change, _ in contrast._CHANGES}


def test_training_never_reads_of_what_is_held_out() -> None:
    for seed in SEEDS:
        caption = nearly_true_caption(sample_scene(seed), seed, compose_caption)
        if caption is None:
            continue
        claims = caption.claims
        for item in claims.objects:
            assert not (item.colour and item.material and is_heldout_object(item.shape, item.colour, item.material))
        for relation in claims.relations:
            subject = claims.objects[relation.subject]
            assert not (subject.colour and is_heldout_relation(subject.shape, subject.colour, relation.relation))


def test_the_loss_is_the_choice_between_two() -> None:
    true, other = torch.randn(2, 7) * 3
    counts = torch.tensor([True, True, False, True, False, True, True])
    loss, right = contrast_loss(true, other, counts)
    expected = F.cross_entropy(torch.stack([true, other], dim=1)[counts], torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(loss, expected)
    assert float(right) == pytest.approx(float((true > other)[counts].float().mean()))
    assert contrast_loss(true, other, torch.zeros(7, dtype=torch.bool))[0] == 0


def test_the_true_distribution_is_its_optimum() -> None:
    """Two captions, four pictures: at the true likelihoods the expected loss has no slope, elsewhere it has."""
    logits = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = logits.softmax(1)

    def slope(at: torch.Tensor) -> float:
        at = at.clone().requires_grad_()
        likelihoods = at.log_softmax(1)
        everyone = torch.ones(1, dtype=torch.bool)
        expected = sum(
            truth[caption, picture]
            * contrast_loss(likelihoods[caption, picture][None], likelihoods[1 - caption, picture][None], everyone)[0]
            for caption, picture in itertools.product(range(2), range(4))
        )
        return float(torch.autograd.grad(expected, at)[0].abs().max())

    assert slope(logits) < 1e-12
    assert slope(logits * 0.5) > 1e-2 and slope(logits * 2) > 1e-2


def test_both_captions_are_judged_as_alone(transformer_config, cheap_scenes, monkeypatch) -> None:
    config = replace(transformer_config, contrast_weight=1.0, batch_size=6)
    monkeypatch.setattr(TransformerTask, "_compose", lambda self, scene, seed: compose_caption(scene, seed))
    task = TransformerTask(config, cheap_scenes, CPU)
    torch.nn.init.normal_(task.transformer.lm_head.weight, std=0.1)  # it starts at zero
    batch = task.codes(0, config.batch_size)
    drop = torch.zeros(config.batch_size, dtype=torch.bool)
    drop[1] = True
    monkeypatch.setattr(task, "_null_rows", lambda step: drop)
    with torch.no_grad():
        _, parts = task.loss(0, 0.5)
        codes = batch.codes
        plain = F.cross_entropy(task._logits(batch, drop).mT, codes, reduction="none")
        torch.testing.assert_close(parts["tokens"], plain.mean())
        differences = []
        for row, (scene, seed) in enumerate(zip(batch.scenes, batch.caption_seeds, strict=True)):
            other = nearly_true_caption(scene, seed, compose_caption)
            if drop[row] or other is None:
                continue
            embeds, other_mask = task._embed_texts([other.text], None)
            logits = training_forward(task.transformer, embeds, other_mask, codes[row : row + 1])
            other_loss = F.cross_entropy(logits.mT, codes[row : row + 1], reduction="none").sum()
            differences.append(other_loss - plain[row].sum())
    expected = F.softplus(-torch.stack(differences))
    torch.testing.assert_close(parts["contrast"], expected.mean(), rtol=1e-4, atol=1e-4)
    assert float(parts["told_apart"]) == pytest.approx(float((torch.stack(differences) > 0).float().mean()))


def test_it_is_learned_and_counts_as_asked(transformer_config, repeated_scenes) -> None:
    config = replace(transformer_config, contrast_weight=0.5, null_caption_probability=0.0)
    task = TransformerTask(config, repeated_scenes, CPU)
    optimizer = torch.optim.Adam(task.module.parameters(), lr=3e-3)
    first = None
    for step in range(40):
        loss, parts = task.loss(step, 0.5)
        torch.testing.assert_close(loss.detach(), parts["tokens"] + 0.5 * parts["contrast"])
        first = parts["contrast"] if first is None else first
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert first is not None and float(parts["contrast"]) < 0.5 * float(first)
    assert float(parts["told_apart"]) > 0.9


def test_a_negative_weight_is_refused(transformer_config) -> None:
    with pytest.raises(UserError, match="contrast_weight"):
        replace(transformer_config, contrast_weight=-1.0)
