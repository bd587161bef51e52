"""GenEval's rule on boxes that are laid out by hand."""

import pytest

from metrics.composition import Composition, CompositionRule, Found, Wanted

RULE = CompositionRule()


def found(name: str, left: float = 0, score: float = 0.95, colour: str = "") -> Found:
    return Found(name, score, (left, 0, left + 10, 10), colour=colour or None)


def holds(wanted: Composition, *objects: Found) -> bool:
    return RULE.holds(wanted, objects, lambda item: item.colour)


def test_directions():
    for box, told in (
        ((30, 0, 40, 10), {"right of"}),
        ((0, 30, 10, 40), {"below"}),
        ((30, 30, 40, 40), {"right of", "below"}),
        ((-30, -1, -20, 9), {"left of"}),
        ((0, -30, 10, -20), {"above"}),
        ((1.9, 0, 11.9, 10), set()),  # nearer than a tenth of both widths
        ((0, 0, 10, 10), set()),
        ((4, 0, 14, 10), set()),  # 2 of 4 pixels lie beyond the margin, and more than half of the way is asked
        ((5, 0, 15, 10), {"right of"}),
    ):
        assert RULE.directions(box, (0, 0, 10, 10)) == told


def test_counting_asks_for_surer_objects_and_no_more_than_asked():
    two = Composition((Wanted("dog", 2),), (Wanted("dog", 3),), "counting")
    assert holds(two, found("dog"), found("dog", 20))
    assert not holds(two, found("dog"), found("dog", 20, score=0.9))
    assert not holds(two, *(found("dog", 20 * number) for number in range(3)))
    assert holds(two, found("dog"), found("dog", 20), found("dog", 40, score=0.8), found("cat"))
    assert holds(Composition((Wanted("dog", 2),)), found("dog", score=0.31), found("dog", 20, score=0.31))
    assert not holds(Composition((Wanted("dog"),)), found("dog", score=0.3))


def test_colours_are_those_of_the_surest_objects():
    red = Composition((Wanted("car", 1, "red"),))
    sure, unsure = found("car", score=0.9, colour="blue"), found("car", 30, score=0.5, colour="red")
    assert not holds(red, unsure, sure)
    assert holds(red, found("car", score=0.6, colour="red"), unsure)
    never = Composition((Wanted("car", 1),))
    assert RULE.holds(never, [sure], lambda item: pytest.fail("no colour is asked"))


def test_positions_are_to_the_entry_that_they_name():
    left = Composition((Wanted("dog"), Wanted("cat", 1, None, ("left of", 0))))
    assert holds(left, found("dog", 50), found("cat", 0))
    assert not holds(left, found("dog", 0), found("cat", 50))
    assert not holds(left, found("cat", 0))
    second = Composition((Wanted("dog"), Wanted("cow"), Wanted("cat", 1, None, ("left of", 1))))
    assert holds(second, found("dog", 0), found("cow", 80), found("cat", 40))
    assert not holds(second, found("dog", 80), found("cow", 0), found("cat", 40))


def test_no_more_objects_of_a_class_than_the_rule_looks_at():
    many = [found("dog", 20 * number) for number in range(4)]
    rule = CompositionRule(most_objects=2)
    assert rule.holds(Composition((Wanted("dog", 2),), (Wanted("dog", 3),)), many, lambda item: None)
    assert [item.score for item in RULE.chosen([found("a", score=0.4), found("a", score=0.8)], "")["a"]] == [0.8, 0.4]
