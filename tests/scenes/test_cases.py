"""What the world gives to jobs is the same every time, and nothing that training showed."""

from dataclasses import replace

import torch

from scenes.captions.picture_captions import compose_caption
from scenes.cases import PromptCase, RenderedReference, claims_within, renders, scene_cases, scene_video_cases
from scenes.rendering.scene import object_boxes, sample_scene
from scenes.seeds import VIDEO_SEED


def test_as_many_objects_are_expected_as_are_named_unless_there_are_others():
    scene = next(scene for scene in map(sample_scene, range(50)) if len(scene.objects) == 2)
    caption = next(each for each in (compose_caption(scene, n) for n in range(50)) if len(each.claims.objects) == 2)
    assert PromptCase(scene, caption).object_count == 2
    assert PromptCase(replace(scene, objects=(*scene.objects, scene.objects[0])), caption).object_count is None


def test_videos_are_new_and_the_same_every_time():
    cases, again = scene_video_cases(3, "heldout", 8, 32), scene_video_cases(3, "heldout", 8, 32)
    for number, (case, other) in enumerate(zip(cases, again, strict=True)):
        assert case.truth is not None and case.truth.seed == VIDEO_SEED + number
        assert case.frames.frames.equal(other.frames.frames)


def test_a_rendered_reference_is_read_by_number_and_known_by_what_it_is():
    reference = RenderedReference(3, 32)
    whole, last = reference.read(range(3)), reference.read([2])
    assert len(reference) == 3 and last[0].equal(whole[2]) and not whole[0].equal(whole[1])
    assert reference.digest() == RenderedReference(3, 32).digest() != RenderedReference(3, 64).digest()


def test_claims_are_told_apart_by_where_their_objects_are():
    """A half and the other half have every object once; a relation goes with both its objects, sky with the upper."""
    side, split = 128, 0
    lower = torch.zeros(side, side).bool()
    lower[side // 2 :] = True
    left = torch.zeros(side, side).bool()
    left[:, : side // 2] = True
    for case in scene_cases(40):
        whole = claims_within(case, torch.ones(side, side).bool())
        assert whole == replace(case.claims, count=None)
        for mask in (lower, left):
            parts = [claims_within(case, each) for each in (mask, ~mask)]
            objects = [claim for part in parts for claim in part.objects]
            assert sorted(map(repr, objects)) == sorted(map(repr, case.claims.objects))
            assert sum(len(part.relations) for part in parts) <= len(case.claims.relations)
            split += all(part.objects for part in parts)
        assert parts[0].ground == parts[1].ground is None, "half of it each"
        above = claims_within(case, ~lower)
        assert above.sky == case.claims.sky and claims_within(case, lower).ground == case.claims.ground
        middles = {one: box for one, box in zip(case.scene.objects, object_boxes(case.scene, side), strict=True)}
        seen = [one for one, (_, top, _, bottom) in middles.items() if (top + bottom) / 2 < side / 2]
        assert all(any(claim.matches(one) for one in seen) for claim in above.objects)
    assert split > 5
    pictures = renders(scene_cases(2), 32)
    assert pictures[0].dtype == torch.uint8 and pictures[0].shape == (3, 32, 32) and not pictures[0].equal(pictures[1])
