"""Captions as people write them: whatever the wording, what is read back is what is true."""

import itertools
import re
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st
from video_order import backwards, order_answers

from scenes.captions import story_captions
from scenes.captions.story_caption_parser import read_claims
from scenes.captions.story_wordings import EMPTY, NUMBERS, WORDINGS
from scenes.rendering.story import sample_story

STORIES = [sample_story(seed, 32, "all") for seed in range(60)]


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    frames=st.integers(8, 48),
    split=st.sampled_from(("train", "heldout", "all")),
    wording=st.integers(0, 10**9),
)
def test_every_wording_of_every_story_is_read_back(seed, frames, split, wording):
    story = sample_story(seed, frames, split)
    caption = story_captions.compose_written_caption(story, wording)
    assert read_claims(caption.text) == story_captions.true_claims(story) == caption.claims


def test_wordings_and_orders_differ_and_mean_the_same():
    story = STORIES[0]
    captions = [story_captions.compose_written_caption(story, seed).text for seed in range(40)]
    assert len(set(captions)) == 40 and story_captions.compose_written_caption(story, 3).text == captions[3]
    assert len({read_claims(text) for text in captions}) == 1
    text = " ".join(captions)
    for words in ("then", "after", "before", "that", "it", "seems", "nothing"):
        assert words in text.split() or f"{words}," in text.split()


def test_no_phrase_stands_for_two_things():
    phrases = [phrase for values in WORDINGS.values() for each in values.values() for phrase in each]
    assert len(set(phrases)) == len(phrases) and not set(phrases) & set(EMPTY)


def test_connectives_tell_what_comes_first():
    for text, first in (
        ("the red cube vanishes. then the blue ball moves to the left.", "red"),
        ("the red cube vanishes before the blue ball moves to the left.", "red"),
        ("before the red cube vanishes, the blue ball moves to the left.", "blue"),
        ("after the red cube vanishes, the blue ball moves to the left.", "red"),
        ("the red cube vanishes, but only after the blue ball moves to the left.", "blue"),
        ("the red cube vanishes. but before that the blue ball moves to the left.", "blue"),
    ):
        claims = read_claims(text)
        a, b = ("red", "cube", "leaves"), ("blue", "sphere", "goes left")
        expected = ("order", *a, "then", *b) if first == "red" else ("order", *b, "then", *a)
        assert claims == {("event", *a), ("event", *b), expected}


def test_it_is_who_was_named_last_in_the_colour_it_has_become():
    claims = read_claims("the red cube turns blue. then it moves away.")
    assert ("event", "blue", "cube", "goes away") in claims and ("event", "red", "cube", "turns", "blue") in claims


def test_bad_grammar_is_read_for_what_it_says():
    text = "Small , red striped cube cube on left side the on the left far away sky . it turns turns . the the blue"
    assert read_claims(text) == {
        ("object", "red", "cube"),
        *((slot, "red", "cube", value) for slot, value in (("size", "small"), ("material", "striped"))),
        *((slot, "red", "cube", value) for slot, value in (("place", "left"), ("distance", "far"))),
    }
    assert read_claims("") == read_claims("nothing of this world") == frozenset()


def test_wrong_captions_are_less_right_and_a_lie_costs_what_it_claims():
    scores = []
    for story, other in itertools.pairwise(STORIES):
        text = story_captions.compose_written_caption(story, 0).text
        assert story_captions.written_accuracy(story, text) == 1.0
        assert 0 < story_captions.written_accuracy(story, text[: len(text) // 2]) < 1
        scores.append(story_captions.written_accuracy(story, story_captions.compose_written_caption(other, 0).text))
        for ground, lie in (("grass", "sand"), ("sand", "wood"), ("wood", "grass")):
            if ground == story.frames[0].ground:
                assert len(read_claims(text.replace(ground, lie)) ^ story_captions.true_claims(story)) == 2
    assert statistics.mean(scores) < 0.2


def test_who_tells_the_story_backwards_is_wrong_in_what_order_decides():
    right = wrong = 0
    for story in STORIES:
        forwards, back = (story_captions.compose_written_caption(each, 1).text for each in (story, backwards(story)))
        answers = order_answers(story, forwards)
        assert answers[1] == 0 and answers[0] >= len(story.events) - 1
        found = order_answers(story, back)
        right, wrong = right + found[0], wrong + found[1]
    assert wrong > 10 * right  # who comes and goes again looks the same backwards


def test_the_vocabulary_covers_everything_said_and_questions_have_answers():
    known = set(story_captions.written_vocabulary())
    for seed, story in enumerate(STORIES):
        questions = story_captions.compose_written_questions(story)
        answers = dict(questions)
        setting = read_claims(f"{answers['how is it lit?']} . {answers['what is the ground?']} .")
        assert ("light", story.light) in setting and ("ground", story.frames[0].ground) in setting
        places = [(each, answers[each]) for each in answers if each.endswith("at the start?")]
        told = " ".join(f"{each[9:-14]} is {answer}." for each, answer in places)
        assert places and read_claims(told) <= story_captions.true_claims(story)
        counts = [1 + NUMBERS.index(answers[each]) for each in answers if re.search("are (small|large)", each)]
        assert sum(counts) == len(story.objects)
        assert len(questions) >= 7 and len({question for question, _ in questions}) == len(questions)
        said = story_captions.compose_written_caption(story, seed).text + " ".join(" ".join(each) for each in questions)
        assert set(re.findall(r"\w+", said)) <= known
