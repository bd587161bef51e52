"""What the world gives to jobs is the same every time, and nothing that training showed."""

from dataclasses import replace

from scenes.captions.picture_captions import compose_caption
from scenes.cases import PromptCase, RenderedReference, scene_video_cases
from scenes.rendering.scene import sample_scene
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
