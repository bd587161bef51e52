"""Verdicts: hand-made cases, a slow matching that must agree, truth that must be found right, and the tallies."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raised
from scene_truth import reading_from_scene

from scenes.captions.picture_captions import Claims, ObjectClaim, RelationClaim, compose_caption
from scenes.judge.claim_checks import ATTRIBUTES, Check, Judgement, Tally, judge_claims, verdict_table
from scenes.judge.picture_reading import JudgedObject, Reading, describe_reading
from scenes.rendering.scene import COLOURS, MATERIALS, RELATIONS, SHAPES, SIZES, sample_scene


def seen(words: str, screen_x: float = 0.0, depth: float = 1.0) -> JudgedObject:
    """ "large matte red cube" as a read object."""
    size, material, colour, shape = words.split()
    return JudgedObject(shape, colour, material, size, screen_x, depth)


def reading(*objects: JudgedObject) -> Reading:
    return Reading(objects, "grass", "clear")


def outcome(verdict: Judgement) -> list[tuple[str, bool]]:
    return [(check.kind, check.right) for check in verdict.checks]


RED_CUBE = seen("large matte red cube", -0.5, 2.0)
BLUE_BALL = seen("small shiny blue sphere", 0.4, 0.5)


def test_a_true_sentence_is_right():
    objects = ObjectClaim("sphere", "blue"), ObjectClaim("cube", "red", "matte", "large")
    relations = RelationClaim(0, "right of", 1), RelationClaim(0, "in front of", 1)
    claims = Claims(objects, relations, count=2, ground="grass")
    verdict = judge_claims(reading(RED_CUBE, BLUE_BALL), claims)
    assert verdict.right and verdict.match == (1, 0)
    kinds = [kind for kind, _ in outcome(verdict)]
    assert kinds == ["count", "shape", "colour", *ATTRIBUTES, "relation", "relation", "ground"]


def test_each_kind_can_be_wrong_alone():
    picture = reading(RED_CUBE, BLUE_BALL)
    cube, ball = ObjectClaim("cube", "red", "matte", "large"), ObjectClaim("sphere", "blue", "shiny", "small")
    cases = {
        "shape": Claims((ObjectClaim("cone", "red", "matte", "large"), ball)),
        "colour": Claims((ObjectClaim("cube", "green", "matte", "large"), ball)),
        "material": Claims((ObjectClaim("cube", "red", "striped", "large"), ball)),
        "size": Claims((ObjectClaim("cube", "red", "matte", "small"), ball)),
        "relation": Claims((cube, ball), (RelationClaim(0, "right of", 1), RelationClaim(0, "behind", 1))),
        "count": Claims((cube, ball), count=3),
        "ground": Claims((cube,), ground="sand", sky="clear"),
        "sky": Claims((cube,), ground="grass", sky="sunset"),
    }
    for kind, claims in cases.items():
        verdict = judge_claims(picture, claims)
        assert [name for name, right in outcome(verdict) if not right] == [kind]
        assert not verdict.right


def test_an_object_that_is_missing_has_everything_wrong():
    claims = Claims((ObjectClaim("sphere", "blue"), ObjectClaim("cube")), (RelationClaim(0, "right of", 1),))
    verdict = judge_claims(reading(RED_CUBE), claims)
    assert verdict.match == (None, 0)
    assert outcome(verdict) == [("shape", False), ("colour", False), ("shape", True), ("relation", False)]
    assert not judge_claims(reading(), claims).right


def test_two_alike_need_two_counterparts():
    claims = Claims((ObjectClaim("cube", "red"), ObjectClaim("cube", "red")))
    assert not judge_claims(reading(RED_CUBE), claims).right
    assert not judge_claims(reading(RED_CUBE, BLUE_BALL), claims).right
    assert judge_claims(reading(RED_CUBE, BLUE_BALL, seen("small matte red cube", 0.8)), claims).right


def test_relations_choose_among_equal_attributes():
    near, far = seen("large matte red cube", -0.5, 0.0), seen("large matte red cube", 0.5, 2.0)
    claims = Claims((ObjectClaim("cube"), ObjectClaim("cube")), (RelationClaim(0, "behind", 1),))
    assert judge_claims(reading(near, far), claims).match == (1, 0)


def test_half_of_a_clear_gap_is_enough_and_less_is_not():
    claims = Claims((ObjectClaim("cube"), ObjectClaim("sphere")), (RelationClaim(0, "left of", 1),))

    def right(gap: float) -> bool:
        objects = seen("large matte red cube", 0.0), seen("large matte red sphere", gap)
        return judge_claims(reading(*objects), claims).right

    assert right(0.12) and not right(0.1) and not right(-0.5)


def test_the_number_of_objects_is_judged_apart_where_it_is_not_said():
    claims = Claims((ObjectClaim("cube", "red"),))
    verdict = judge_claims(reading(RED_CUBE, BLUE_BALL), claims, object_count=1)
    assert outcome(verdict)[0] == ("object_count", False)
    assert verdict.right
    said = judge_claims(reading(RED_CUBE, BLUE_BALL), Claims(claims.objects, count=2), object_count=1)
    assert outcome(said)[0] == ("count", True) and "object_count" not in dict(outcome(said))


def test_a_scene_described_wrongly_is_found_out():
    """A caption of one scene is hardly ever true of another: a reading is not judged kindly."""
    right = sum(
        judge_claims(reading_from_scene(sample_scene(seed + 1)), compose_caption(sample_scene(seed), seed).claims).right
        for seed in range(200)
    )
    assert right < 10


shapes, colours, materials, sizes = (st.sampled_from(values[:2]) for values in (SHAPES, COLOURS, MATERIALS, SIZES))
places = st.integers(-3, 3).map(lambda step: step * 0.3)
read_objects = st.builds(JudgedObject, shapes, colours, materials, sizes, places, places)
object_claims = st.builds(ObjectClaim, shapes, st.none() | colours, st.none() | materials, st.none() | sizes)


@st.composite
def claims_with_relations(draw: st.DrawFn) -> Claims:
    objects = tuple(draw(st.lists(object_claims, max_size=3)))
    pairs = [(i, j) for i in range(len(objects)) for j in range(len(objects)) if i != j]
    pair = st.sampled_from(pairs or [(0, 0)])
    relation = st.builds(lambda p, r: RelationClaim(p[0], r, p[1]), pair, st.sampled_from(RELATIONS))
    return Claims(objects, tuple(draw(st.lists(relation, max_size=2 if pairs else 0))))


@settings(max_examples=150, deadline=None)
@given(st.lists(read_objects, max_size=4), claims_with_relations())
def test_no_matching_does_better(objects, claims):
    """Every partial matching is tried; none has more right by the rule, attributes first."""
    picture = Reading(tuple(objects), "grass", "clear")
    verdict = judge_claims(picture, claims)
    best = (-1, -1)
    for match in itertools.product([None, *range(len(objects))], repeat=len(claims.objects)):
        taken = [index for index in match if index is not None]
        if len(set(taken)) < len(taken):
            continue
        attributes = sum(
            index is not None and getattr(objects[index], name) == getattr(claim, name)
            for claim, index in zip(claims.objects, match, strict=True)
            for name in ATTRIBUTES
        )
        relations = 0
        for claim in claims.relations:
            i, j = match[claim.subject], match[claim.object]
            if i is None or j is None:
                continue
            across = objects[j].screen_x - objects[i].screen_x
            away = objects[i].depth - objects[j].depth
            holds = {"left of": across >= 0.11, "right of": across <= -0.11, "behind": away >= 0.4}
            relations += (holds | {"in front of": away <= -0.4})[claim.relation]
        best = max(best, (attributes, relations))
    right = [check.kind for check in verdict.checks if check.right]
    assert (sum(kind in ATTRIBUTES for kind in right), right.count("relation")) == best


def test_tally_counts_by_kind_and_by_objects_named():
    one = Judgement((Check("shape", True), Check("colour", False)), (0,))
    two = Judgement((Check("shape", True), Check("shape", True), Check("object_count", False)), (0, 1))
    tally = Tally.of([one, one, two])
    assert (tally.share("shape").right, tally.share("shape").total) == (4, 4)
    assert (tally.share("colour", 1).right, tally.share("colour", 1).total) == (0, 2)
    assert (tally.share("prompt").right, tally.share("prompt").total) == (1, 3)
    assert tally.named_objects() == [1, 2]
    values = tally.to_dict()
    assert set(values) == {"all", "1", "2"}
    assert values["2"]["object_count"] == {"accuracy": 0.0, "n": 1, "interval": [0.0, pytest.approx(0.7935, abs=1e-3)]}
    assert "sky" not in values["all"]
    raised(ValueError, "kind", tally.share, "colours")


def test_verdict_table_sets_sources_side_by_side():
    good, bad = Tally.of([Judgement((Check("sky", True),), ())]), Tally.of([Judgement((Check("shape", False),), (0,))])
    lines = verdict_table({"renders": good, "generated": bad}).splitlines()
    under = "-" * len(lines[1].split("|")[1])
    assert [line.split("|")[1].strip() for line in lines] == ["kind", under, "shape", "sky", "prompt"]
    assert len({len(line) for line in lines}) == 1
    assert "100.0 (20.7 to 100.0, n=1)" in lines[3] and lines[3].split("|")[3].strip() == "-"


def test_a_reading_in_words():
    assert describe_reading(reading(RED_CUBE)) == "large matte red cube\ngrass, clear sky"
