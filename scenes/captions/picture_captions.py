"""Sentences about a scene: the words, the phrasings, and exactly what each sentence claims.

A caption says nothing false or unclear about its scene, and carries its claims as data. Does not belong here: reading a
sentence back (`picture_caption_parser.py`), and turning it into numbers (`text_tokenizer.py`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scenes.captions.words import read_words
from scenes.rendering.scene import Scene, SceneObject, relation_between

MAX_CAPTION_TOKENS = 48
"""Longest caption in word-level tokens, punctuation and the end token included."""

PUNCTUATION = (",", ".", ":", ";")

Ways = Mapping[str, tuple[str, ...]]
"""Every way of saying each value; the first is the usual one."""

_READ = read_words("picture_words")
NOUNS: Mapping[str, tuple[tuple[str, str], ...]] = _READ["nouns"]
COLOUR_WORDS: Ways = {name: (name,) for name in ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")}
MATERIAL_WORDS: Ways = _READ["material_words"]
SIZE_WORDS: Ways = _READ["size_words"]
OBJECT_WORDS: tuple[tuple[str, str], ...] = _READ["object_words"]
NUMBER_WORDS = {1: "one", 2: "two", 3: "three"}
RELATION_PHRASES: Ways = _READ["relation_phrases"]
RELATIVE_PLACES: Ways = _READ["relative_places"]
"""Where the second object is, seen from the first: "a cube with a ball on its left"."""
PLACE_SERIES: Ways = _READ["place_series"]
"""Places in the picture, in the order of the relation that they imply between neighbours."""
GROUND_PHRASES: Ways = _READ["ground_phrases"]
SKY_PHRASES: Ways = _READ["sky_phrases"]
GROUND_SENTENCES: Ways = _READ["ground_sentences"]
SKY_SENTENCES: Ways = _READ["sky_sentences"]
PICTURE_INTRODUCTIONS: tuple[str, ...] = _READ["picture_introductions"]
_GROUND_VERBS = ("", "", "", "standing ", "resting ", "placed ")
_FRAME_WORDS = (
    "a also an and are from including is it its left one right standing stands stripes the there three to two "
    "which with"
)

_ATTRIBUTES = ("colour", "material", "size")
_WORDS: dict[str, tuple[str, ...]] = {**COLOUR_WORDS, **MATERIAL_WORDS, **SIZE_WORDS}
# Usual English first, and often; the rest so that no order is strange to a model.
_ADJECTIVE_ORDERS = (
    *[("size", "material", "colour")] * 12,
    *[("material", "size", "colour")] * 2,
    *[("size", "colour", "material")] * 4,
    ("colour", "material", "size"),
    ("colour", "size", "material"),
    ("material", "colour", "size"),
)


@dataclass(frozen=True)
class _Manner:
    """How much a caption says.

    Attributes:
        detail_levels: chances of naming (material, size); one pair is drawn for each caption.
        setting_from: the setting depends on a draw from here to 1; the higher, the more is said of it.
    """

    detail_levels: tuple[tuple[float, float], ...]
    setting_from: float


_USUAL = _Manner(((1.0, 1.0), (1.0, 0.6), (0.7, 0.7), (0.6, 0.25), (0.2, 0.5)), 0.0)
_THOROUGH = _Manner(((1.0, 1.0),), 0.86)


@dataclass(frozen=True)
class ObjectClaim:
    """What a sentence says about one object; None for what it leaves open."""

    shape: str
    colour: str | None = None
    material: str | None = None
    size: str | None = None

    def matches(self, item: SceneObject | ObjectClaim) -> bool:
        """Whether the claim is true of an object, or of whatever another claim may stand for."""
        said = all(getattr(self, name) in (None, getattr(item, name)) for name in _ATTRIBUTES)
        return said and self.shape == item.shape


@dataclass(frozen=True)
class RelationClaim:
    """`objects[subject]` stands in `relation` (one of `RELATIONS`) to `objects[object]`."""

    subject: int
    relation: str
    object: int


@dataclass(frozen=True)
class Claims:
    """Everything a sentence says about a picture, and nothing more.

    Attributes:
        objects: different objects of the picture, in the order of their first mention.
        relations: in the order of mention, except that places in the picture ("on the left") come last.
        count: how many objects the picture holds altogether, if said ("three objects").
        ground, sky: one of `GROUNDS`, `SKIES`, if said.
    """

    objects: tuple[ObjectClaim, ...] = ()
    relations: tuple[RelationClaim, ...] = ()
    count: int | None = None
    ground: str | None = None
    sky: str | None = None


@dataclass(frozen=True)
class Caption:
    """A sentence, lower case, and what it claims."""

    text: str
    claims: Claims


def compose_caption(scene: Scene, seed: int) -> Caption:
    """Write one of the many true captions of a scene.

    The phrases for objects that stand in a relation each fit exactly one object of the scene, and a number ("two
    cubes") is the number of all objects that fit, so that every claim can be judged.

    Args:
        scene: the truth.
        seed: which phrasing; the same scene and seed give the same caption.
    """
    rng = random.Random(f"caption-{scene.seed}-{seed}")
    while True:
        caption = _compose(scene, rng, _USUAL)
        if count_words(caption.text) < MAX_CAPTION_TOKENS:
            return caption


def compose_training_caption(scene: Scene, seed: int, complete_share: float) -> Caption:
    """Write a true caption for training, which names or counts every object.

    `compose_caption` sometimes leaves out an object without a hint. A model that learns from such sentences draws
    objects that the prompt does not ask for. So a caption that leaves out an object here gives the number of objects
    ("three objects, including a red ball").

    Args:
        scene: the truth.
        seed: which phrasing, as for `compose_caption`.
        complete_share: share of the captions that say everything, see `is_complete`; the others say as much as
            `compose_caption` does.
    """
    rng = random.Random(f"training-caption-{scene.seed}-{seed}")
    complete = rng.random() < complete_share
    while True:
        caption = _compose(scene, rng, _THOROUGH if complete else _USUAL)
        if count_words(caption.text) < MAX_CAPTION_TOKENS and (
            is_complete(caption.claims, scene) if complete else counts_everyone(caption.claims, scene)
        ):
            return caption


def counts_everyone(claims: Claims, scene: Scene) -> bool:
    """Whether a caption names every object or gives their number."""
    return claims.count is not None or len(claims.objects) == len(scene.objects)


def is_complete(claims: Claims, scene: Scene) -> bool:
    """Whether claims name every object with all that it is, the ground and the sky; where objects stand may be open."""
    named = len(claims.objects) == len(scene.objects) and all(
        getattr(claim, name) is not None for claim in claims.objects for name in _ATTRIBUTES
    )
    return named and claims.ground is not None and claims.sky is not None


def count_words(text: str) -> int:
    """Word-level tokens of a caption, punctuation included, the end token not."""
    return len(text.split()) + sum(text.count(mark) for mark in PUNCTUATION)


def vocabulary() -> list[str]:
    """Every word that a caption can contain, sorted, lower case; `PUNCTUATION` is not among them."""
    phrases: list[str] = [_FRAME_WORDS, *PICTURE_INTRODUCTIONS, *_GROUND_VERBS]
    tables: tuple[Mapping[str, Sequence[str]], ...] = (
        *(_WORDS, RELATION_PHRASES, RELATIVE_PLACES, PLACE_SERIES),
        *(GROUND_PHRASES, SKY_PHRASES, GROUND_SENTENCES, SKY_SENTENCES),
    )
    phrases += [phrase for table in tables for ways in table.values() for phrase in ways]
    phrases += [word for forms in (*NOUNS.values(), OBJECT_WORDS) for pair in forms for word in pair]
    return sorted({word for phrase in phrases for word in phrase.split()})


class _Draft:
    """A caption being written: hands out phrases for objects and keeps the claims that they make."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene = scene
        self.rng = rng
        self.claims: list[ObjectClaim] = []
        self.relations: list[RelationClaim] = []
        self.count: int | None = None
        self.places: dict[int, int] = {}
        draw = rng.random()
        self.article = "a" if draw < 0.88 else "" if draw < 0.96 else "one"
        draw = rng.random()
        self.introduction = "there is" if draw > 0.87 else rng.choice(PICTURE_INTRODUCTIONS) if draw > 0.72 else ""
        if not self.article:
            self.introduction = ""

    def introduce_several(self) -> None:
        """Use the plural in the introduction."""
        if self.introduction == "there is":
            self.introduction = "there are"

    def mention(self, index: int, claim: ObjectClaim) -> str:
        """A phrase for an object not mentioned before."""
        self.places[index] = len(self.claims)
        self.claims.append(claim)
        return self._with_article(_noun_phrase(claim, self.rng))

    def mention_group(self, indices: Sequence[int], claim: ObjectClaim) -> str:
        """A phrase for several objects with the same claims."""
        for index in indices:
            self.places[index] = len(self.claims)
            self.claims.append(claim)
        return f"{NUMBER_WORDS[len(indices)]} {_noun_phrase(claim, self.rng, plural=True)}"

    def refer(self, index: int) -> str:
        """A definite phrase for an object mentioned before, as short as it can be while fitting nothing else."""
        claim = self.claims[self.places[index]]
        short = ObjectClaim(claim.shape)
        if claim.colour and (self.rng.random() < 0.6 or not self._fits_one(short)):
            short = ObjectClaim(claim.shape, claim.colour)
        return f"the {_noun_phrase(short if self._fits_one(short) else claim, self.rng, plain=True)}"

    def relate(self, subject: int, relation: str, other: int) -> None:
        self.relations.append(RelationClaim(self.places[subject], relation, self.places[other]))

    def _fits_one(self, claim: ObjectClaim) -> bool:
        return sum(map(claim.matches, self.scene.objects)) == 1

    def _with_article(self, phrase: str) -> str:
        article = "an" if self.article == "a" and phrase[0] in "aeiou" else self.article
        return f"{article} {phrase}" if article else phrase


def _compose(scene: Scene, rng: random.Random, manner: _Manner) -> Caption:
    draft = _Draft(scene, rng)
    shown = _choose_claims(scene, rng, manner)
    group = _choose_group(scene, rng, forced=shown is None)
    if rng.random() < 0.02:
        clauses = [_introduce(draft, _count_phrase(draft))]
    elif shown is None or group:
        clauses = _group_clauses(draft, group, shown)
    elif len(shown) == 1:
        clauses = [_list_clause(draft, shown, [0])]
    else:
        clauses = _several_clauses(draft, shown)
    text, ground, sky = _add_setting(scene, rng, clauses, draft.introduction, manner)
    if rng.random() < 0.25:
        text += "."
    return Caption(text, Claims(tuple(draft.claims), tuple(draft.relations), draft.count, ground, sky))


def _choose_claims(scene: Scene, rng: random.Random, manner: _Manner) -> list[ObjectClaim] | None:
    """What to say of each object so that each phrase fits only its object; None where two objects are alike."""
    material_chance, size_chance = rng.choice(manner.detail_levels)
    claims = []
    for item in scene.objects:
        said = {"colour": rng.random() < 0.97, "material": rng.random() < material_chance}
        said["size"] = rng.random() < size_chance
        claim = _claim(item, said)
        for other in scene.objects:
            if other is not item and claim.matches(other):
                differing = [name for name in _ATTRIBUTES if getattr(item, name) != getattr(other, name)]
                if not differing:
                    return None
                said[rng.choice(differing)] = True
                claim = _claim(item, said)
        claims.append(claim)
    return claims


def _claim(item: SceneObject, said: Mapping[str, bool]) -> ObjectClaim:
    return ObjectClaim(item.shape, **{name: getattr(item, name) for name in _ATTRIBUTES if said[name]})


def _choose_group(scene: Scene, rng: random.Random, forced: bool) -> list[int]:
    """Objects to speak of together ("two red cubes"): all that share a shape, perhaps a colour, or everything."""
    if len(scene.objects) == 1 or (not forced and rng.random() > 0.3):
        return []
    shared = ("colour", "material", "size") if forced else ("colour",) if rng.random() < 0.6 else ()
    for first in scene.objects:
        claim = _claim(first, {name: name in shared for name in _ATTRIBUTES})
        members = [index for index, item in enumerate(scene.objects) if claim.matches(item)]
        if len(members) > 1:
            return members
    return []


def _group_clauses(draft: _Draft, group: list[int], shown: list[ObjectClaim] | None) -> list[str]:
    """ "two red cubes and a ball", "two red cubes behind a ball", "two cubes, one red and one blue"."""
    rng, objects = draft.rng, draft.scene.objects
    first = objects[group[0]]
    alike = {name: all(getattr(objects[i], name) == getattr(first, name) for i in group) for name in _ATTRIBUTES}
    if shown is not None and not alike["colour"] and len(group) == len(objects) and rng.random() < 0.7:
        return [_group_apart(draft, group, shown)]
    # Dropping a shared attribute that sets the group apart from the rest would break the number.
    said = dict(alike)
    for name in ("material", "size"):
        if alike[name] and rng.random() < 0.5:
            without = _claim(first, said | {name: False})
            said[name] = sum(map(without.matches, objects)) != len(group)
    claim = _claim(first, said)
    draft.introduce_several()
    rest = [index for index in range(len(objects)) if index not in group]
    if not rest:
        return [_introduce(draft, draft.mention_group(group, claim))]
    other = rest[0]
    other_claim = shown[other] if shown is not None else _claim(objects[other], dict.fromkeys(_ATTRIBUTES, True))
    common = [r for r in relation_between(first, objects[other]) if _all_related(draft.scene, group, r, other)]
    text = draft.mention_group(group, claim)
    if common and rng.random() < 0.7:
        relation = rng.choice(common)
        text += f" {rng.choice(RELATION_PHRASES[relation])} {draft.mention(other, other_claim)}"
        for index in group:
            draft.relate(index, relation, other)
    else:
        text += f" and {draft.mention(other, other_claim)}"
    return [_introduce(draft, text)]


def _all_related(scene: Scene, group: list[int], relation: str, other: int) -> bool:
    return all(relation in relation_between(scene.objects[index], scene.objects[other]) for index in group)


def _group_apart(draft: _Draft, group: list[int], shown: list[ObjectClaim]) -> str:
    """ "two cubes: a red one and a small blue one"."""
    rng = draft.rng
    header = f"{NUMBER_WORDS[len(group)]} {rng.choice(NOUNS[shown[group[0]].shape])[1]}"
    draft.introduce_several()
    single = rng.random() < 0.5
    # A noun is missing here, so each member needs an adjective.
    claims = [
        claim if _adjectives(claim, rng) else ObjectClaim(claim.shape, draft.scene.objects[i].colour)
        for i, claim in zip(group, (shown[i] for i in group), strict=True)
    ]
    members = []
    for index, claim in zip(group, claims, strict=True):
        draft.places[index] = len(draft.claims)
        draft.claims.append(claim)
        words = " ".join(_adjectives(claim, rng))
        article = "an" if words[0] in "aeiou" else "a"
        members.append(f"one {words}" if single else f"{article} {words} one")
    return _introduce(draft, f"{header}{rng.choice((':', ','))} {_enumerate(members, rng)}")


def _count_phrase(draft: _Draft) -> str:
    """ "three objects", a number that is claimed."""
    draft.count = len(draft.scene.objects)
    if draft.count > 1:
        draft.introduce_several()
    return f"{NUMBER_WORDS[draft.count]} {draft.rng.choice(OBJECT_WORDS)[draft.count > 1]}"


def _list_clause(draft: _Draft, shown: list[ObjectClaim], order: list[int]) -> str:
    """ "a red ball, a cube and a cone", sometimes after "three objects"."""
    rng = draft.rng
    header = _count_phrase(draft) if rng.random() < 0.1 else ""
    phrases = [draft.mention(index, shown[index]) for index in order]
    if header:
        some = len(phrases) < len(draft.scene.objects)
        header += f"{rng.choice((', ', ' '))}including " if some else f"{rng.choice((':', ','))} "
    return _introduce(draft, header + _enumerate(phrases, rng))


def _several_clauses(draft: _Draft, shown: list[ObjectClaim]) -> list[str]:
    """Clauses about two or three objects, each with a phrase of its own."""
    rng, objects = draft.rng, draft.scene.objects
    order = list(range(len(objects)))
    rng.shuffle(order)
    draw = rng.random()
    if draw < 0.06:
        return [_list_clause(draft, shown, order[: rng.randrange(1, len(order))])]
    if draw < 0.24:
        return [_list_clause(draft, shown, order)]
    if draw < 0.36:
        in_order = _ordered_clause(draft, shown)
        if in_order is not None:
            return [in_order]
    pairs = [(i, j) for i in order for j in order if i != j and relation_between(objects[i], objects[j])]
    if not pairs:
        return [_list_clause(draft, shown, order)]
    subject, other = rng.choice(pairs)
    if draw > 0.93:
        return _list_then_relation(draft, shown, order, subject, other)
    if len(order) == 2 or draw > 0.9:
        return [_pair_clause(draft, shown, subject, other)]
    third = 3 - subject - other
    return _triple_clauses(draft, shown, subject, other, third)


def _pair_clause(draft: _Draft, shown: list[ObjectClaim], subject: int, other: int) -> str:
    """ "a red ball left of a blue cube" and its kin."""
    rng, objects = draft.rng, draft.scene.objects
    relations = relation_between(objects[subject], objects[other])
    relation = rng.choice(relations)
    draw = rng.random()
    if draw < 0.12:
        text = f"{draft.mention(other, shown[other])} with {draft.mention(subject, shown[subject])}"
        draft.relate(subject, relation, other)
        return _introduce(draft, f"{text} {rng.choice(RELATIVE_PLACES[relation])}")
    if draw < 0.2 and draft.article:
        draft.introduction = ""
        text = f"{_relation_phrase(relation, rng)} {draft.mention(other, shown[other])}"
        verb = rng.choice(("is", "there is", "stands"))
        text = f"{text} {verb} {draft.mention(subject, shown[subject])}"
        draft.relate(subject, relation, other)
        return text
    text = f"{draft.mention(subject, shown[subject])}{_verb(draft)} {_relation_phrase(relation, rng)}"
    said = [relation]
    if draw < 0.32 and len(relations) == 2:
        said.append(relations[1 - relations.index(relation)])
        text += f" and {_relation_phrase(said[1], rng)}"
    text += f" {draft.mention(other, shown[other])}"
    for item in said:
        draft.relate(subject, item, other)
    return _introduce(draft, text)


def _triple_clauses(draft: _Draft, shown: list[ObjectClaim], subject: int, other: int, third: int) -> list[str]:
    """Two objects in a relation, and the third in another relation or merely named."""
    rng, objects = draft.rng, draft.scene.objects
    from_subject = relation_between(objects[subject], objects[third])
    from_other = relation_between(objects[other], objects[third])
    draw = rng.random()
    at_subject, at_other = bool(draw < 0.25 and from_subject), bool(draw < 0.4 and from_other)
    if at_subject or at_other:
        first = rng.choice(relation_between(objects[subject], objects[other]))
        second = rng.choice(from_subject if at_subject else from_other)
        text = f"{draft.mention(subject, shown[subject])}{_verb(draft)}"
        text += f" {_relation_phrase(first, rng)} {draft.mention(other, shown[other])}"
        text += " and" if at_subject else ", which is"
        text += f" {_relation_phrase(second, rng)} {draft.mention(third, shown[third])}"
        draft.relate(subject, first, other)
        draft.relate(subject if at_subject else other, second, third)
        return [_introduce(draft, text)]
    clause = _pair_clause(draft, shown, subject, other)
    anchor = rng.choice((subject, other))
    relations_of_third = relation_between(objects[third], objects[anchor])
    if draw < 0.75 and relations_of_third:
        relation = rng.choice(relations_of_third)
        phrase = f"{draft.mention(third, shown[third])}{_verb(draft)} {_relation_phrase(relation, rng)}"
        phrase += f" {draft.refer(anchor)}"
        draft.relate(third, relation, anchor)
        return [clause, phrase]
    return [clause, f"there is also {draft.mention(third, shown[third])}"]


def _list_then_relation(
    draft: _Draft, shown: list[ObjectClaim], order: list[int], subject: int, other: int
) -> list[str]:
    """ "a red ball and a cube. the ball is left of the cube"."""
    relation = draft.rng.choice(relation_between(draft.scene.objects[subject], draft.scene.objects[other]))
    clause = _list_clause(draft, shown, order)
    draft.relate(subject, relation, other)
    verb = draft.rng.choice(("is", "stands"))
    phrase = _relation_phrase(relation, draft.rng)
    return [clause, f"{draft.refer(subject)} {verb} {phrase} {draft.refer(other)}"]


def _ordered_clause(draft: _Draft, shown: list[ObjectClaim]) -> str | None:
    """All objects in their order across the picture or into its depth; None where the order is not clear."""
    rng, objects = draft.rng, draft.scene.objects
    relation = rng.choice(("left of", "left of", "in front of")) if len(objects) == 2 else "left of"
    order = list(range(len(objects)))
    if relation == "in front of":
        order.sort(key=lambda index: objects[index].depth)
    neighbours = list(itertools.pairwise(order))
    if not all(relation in relation_between(objects[i], objects[j]) for i, j in neighbours):
        return None
    if relation == "left of" and rng.random() < 0.35:
        listed = _enumerate([draft.mention(index, shown[index]) for index in order], rng)
        text = f"{listed} from left to right"
        if rng.random() < 0.5 and not draft.introduction:
            text = f"from left to right{rng.choice((':', ','))} {listed}"
    else:
        places = PLACE_SERIES[relation]
        places = (places[0], places[-1]) if len(order) == 2 else places
        phrases = dict(zip(order, places, strict=True))
        mentioned = order[::-1] if rng.random() < 0.25 else order
        text = _enumerate([f"{draft.mention(i, shown[i])} {phrases[i]}" for i in mentioned], rng)
    for i, j in neighbours:
        draft.relate(i, relation, j)
    return _introduce(draft, text)


def _add_setting(
    scene: Scene, rng: random.Random, clauses: list[str], introduction: str, manner: _Manner
) -> tuple[str, str | None, str | None]:
    """Join the clauses and say, or not, on what ground and under which sky; returns text, ground and sky."""
    draw = manner.setting_from + (1 - manner.setting_from) * rng.random()
    ground = scene.ground if draw > 0.54 else None
    sky = scene.sky if 0.54 < draw < 0.68 or draw > 0.86 else None
    ground = None if 0.54 < draw < 0.61 else ground
    joiner = rng.choice((". ", "; ", ", and "))
    parts = [rng.choice(table[value]) for table, value in ((GROUND_PHRASES, ground), (SKY_PHRASES, sky)) if value]
    if not parts:
        return joiner.join(clauses), None, None
    style = rng.random()
    if style < 0.12:
        said = [rng.choice(t[v]) for t, v in ((GROUND_SENTENCES, ground), (SKY_SENTENCES, sky)) if v]
        joiner = ". " if joiner == ", and " else joiner
        return joiner.join([*clauses, " and ".join(said)]), ground, sky
    if style < 0.28 and introduction not in PICTURE_INTRODUCTIONS:
        return f"{' '.join(parts)}{rng.choice((', ', ', ', ': '))}{joiner.join(clauses)}", ground, sky
    if ground:
        parts[0] = rng.choice(_GROUND_VERBS) + parts[0]
    elif rng.random() < 0.2:
        parts.reverse()
    comma = ", " if rng.random() < 0.2 else " "
    return joiner.join([f"{clauses[0]}{comma}{' '.join(parts)}", *clauses[1:]]), ground, sky


def _introduce(draft: _Draft, text: str) -> str:
    return f"{draft.introduction} {text}" if draft.introduction else text


def _verb(draft: _Draft) -> str:
    """What joins a subject to a relation; a full verb only where the clause has none yet."""
    draw = draft.rng.random()
    if draw < 0.7 or not draft.article:
        return ""
    if draw < 0.8 or draft.introduction:
        return " standing"
    return " is" if draw < 0.93 else " stands"


def _relation_phrase(relation: str, rng: random.Random) -> str:
    return relation if rng.random() < 0.55 else rng.choice(RELATION_PHRASES[relation])


def _enumerate(phrases: Sequence[str], rng: random.Random) -> str:
    """ "x", "x and y", "x, y and z", now and then with commas alone."""
    if len(phrases) == 1:
        return phrases[0]
    if rng.random() < 0.15:
        return ", ".join(phrases)
    last = ", and " if len(phrases) > 2 and rng.random() < 0.3 else " and "
    return f"{', '.join(phrases[:-1])}{last}{phrases[-1]}"


def _noun_phrase(claim: ObjectClaim, rng: random.Random, plural: bool = False, plain: bool = False) -> str:
    """Adjectives and noun without an article; `plain` keeps to the usual noun and to no "with stripes"."""
    forms = NOUNS[claim.shape]
    noun = (forms[0] if plain or rng.random() < 0.55 else rng.choice(forms))[plural]
    if claim.material == "striped" and not plain and rng.random() < 0.15:
        words = _adjectives(ObjectClaim(claim.shape, claim.colour, None, claim.size), rng)
        return " ".join([*words, noun, "with stripes"])
    words = _adjectives(claim, rng)
    if len(words) > 1 and rng.random() < 0.06:
        return f"{', '.join(words)} {noun}"
    return " ".join([*words, noun])


def _adjectives(claim: ObjectClaim, rng: random.Random) -> list[str]:
    words = []
    for name in rng.choice(_ADJECTIVE_ORDERS):
        value = getattr(claim, name)
        if value is not None:
            ways = _WORDS[value]
            words.append(ways[0] if rng.random() < 0.6 else rng.choice(ways))
    return words
