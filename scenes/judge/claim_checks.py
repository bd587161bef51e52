"""Does a picture show what its sentence says: claims against a reading, and tallies of many verdicts.

A reading is data (`picture_reading.py`), and so are claims (`picture_captions.py`). Does not belong here: pictures and
networks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

from metrics.proportion import Proportion
from metrics.tables import markdown_table
from scenes.captions.picture_captions import Claims, ObjectClaim, RelationClaim
from scenes.judge.picture_reading import JudgedObject, Reading
from scenes.rendering.scene import CLEAR_DEPTH_GAP, CLEAR_SCREEN_GAP, Scene, relation_between

ATTRIBUTES = ("shape", "colour", "material", "size")
KINDS = ("object_count", "count", *ATTRIBUTES, "relation", "ground", "sky", "prompt")
"""What is judged. "count" is a number that the sentence says; "object_count" one that it leaves open but the scene
behind it has (see `judge_claims`); "prompt" is right where everything that the sentence says is."""

SCREEN_GAP = 0.5 * CLEAR_SCREEN_GAP
DEPTH_GAP = 0.5 * CLEAR_DEPTH_GAP
"""How far apart two read objects must be to stand in a relation: half of what makes it clear in a true scene, so that
an error of reading up to half the gap does not turn a true claim into a false one."""

Counterparts = tuple[JudgedObject | None, ...]


@dataclass(frozen=True)
class Check:
    """One claim judged: its kind (one of `KINDS`), and whether it holds in the picture."""

    kind: str
    right: bool


@dataclass(frozen=True)
class Judgement:
    """Everything that one sentence claims about one picture, judged.

    Attributes:
        checks: one per claim; "prompt" is not among them.
        match: for each claimed object the index of its counterpart in the reading's objects, or None.
    """

    checks: tuple[Check, ...]
    match: tuple[int | None, ...]

    @property
    def right(self) -> bool:
        """Whether every claim holds; "object_count" is not said, so it does not count."""
        return all(check.right for check in self.checks if check.kind != "object_count")


def judge_claims(reading: Reading, claims: Claims, object_count: int | None = None) -> Judgement:
    """Judge every claim of a sentence against what was read off the picture.

    Claimed objects are matched with different read ones so that the most attributes come out right and, among such
    matches, the most relations. A claimed object without a counterpart has all that is claimed of it wrong, and every
    relation it takes part in.

    Args:
        reading: what was read.
        claims: what the sentence says.
        object_count: how many objects the picture ought to show though the sentence does not say so; judged as its
            own kind, which "prompt" ignores. Left out where None, or where the sentence gives a count.
    """
    best = max(_matches(reading, claims), key=lambda match: _match_score(reading, claims, match))
    counterparts = _counterparts(reading, best)
    checks: list[Check] = []
    if claims.count is not None:
        checks.append(Check("count", len(reading.objects) == claims.count))
    elif object_count is not None:
        checks.append(Check("object_count", len(reading.objects) == object_count))
    for claim, item in zip(claims.objects, counterparts, strict=True):
        checks += _object_checks(claim, item)
    checks += [Check("relation", relation_holds(relation, counterparts)) for relation in claims.relations]
    if claims.ground is not None:
        checks.append(Check("ground", reading.ground == claims.ground))
    if claims.sky is not None:
        checks.append(Check("sky", reading.sky == claims.sky))
    return Judgement(tuple(checks), best)


def claims_from_scene(scene: Scene) -> Claims:
    """Everything there is to say about a scene; for judging a reader rather than a picture."""
    objects = tuple(ObjectClaim(item.shape, item.colour, item.material, item.size) for item in scene.objects)
    relations = tuple(
        RelationClaim(i, relation, j)
        for (i, subject), (j, other) in combinations(enumerate(scene.objects), 2)
        for relation in relation_between(subject, other)
    )
    return Claims(objects, relations, len(objects), scene.ground, scene.sky)


def relation_holds(claim: RelationClaim, counterparts: Counterparts) -> bool:
    """Whether the read counterparts of the claimed objects stand in the claimed relation."""
    subject, other = counterparts[claim.subject], counterparts[claim.object]
    if subject is None or other is None:
        return False
    across, away = subject.screen_x - other.screen_x, subject.depth - other.depth
    return {
        "left of": across <= -SCREEN_GAP,
        "right of": across >= SCREEN_GAP,
        "in front of": away <= -DEPTH_GAP,
        "behind": away >= DEPTH_GAP,
    }[claim.relation]


def _object_checks(claim: ObjectClaim, item: JudgedObject | None) -> list[Check]:
    said = [(name, getattr(claim, name)) for name in ATTRIBUTES if getattr(claim, name) is not None]
    return [Check(name, item is not None and getattr(item, name) == value) for name, value in said]


def _matches(reading: Reading, claims: Claims) -> Iterator[tuple[int | None, ...]]:
    """Every way to give the claimed objects different counterparts; none goes without while there are enough."""
    missing = max(0, len(claims.objects) - len(reading.objects))
    return permutations([*range(len(reading.objects)), *[None] * missing], len(claims.objects))


def _match_score(reading: Reading, claims: Claims, match: tuple[int | None, ...]) -> tuple[int, int]:
    counterparts = _counterparts(reading, match)
    attributes = sum(
        check.right
        for claim, item in zip(claims.objects, counterparts, strict=True)
        for check in _object_checks(claim, item)
    )
    return attributes, sum(relation_holds(relation, counterparts) for relation in claims.relations)


def _counterparts(reading: Reading, match: tuple[int | None, ...]) -> Counterparts:
    return tuple(None if index is None else reading.objects[index] for index in match)


@dataclass
class Tally:
    """Verdicts counted by kind and by the number of objects that the sentence names."""

    shares: dict[tuple[str, int], Proportion] = field(default_factory=dict)

    @classmethod
    def of(cls, verdicts: Iterable[Judgement]) -> Tally:
        """A tally of these verdicts."""
        tally = cls()
        for verdict in verdicts:
            tally.add(verdict)
        return tally

    def add(self, verdict: Judgement) -> None:
        """Count one verdict: each of its checks, and the prompt as a whole."""
        named = len(verdict.match)
        for check in (*verdict.checks, Check("prompt", verdict.right)):
            share = self.shares.setdefault((check.kind, named), Proportion())
            share.right += check.right
            share.total += 1

    def share(self, kind: str, named_objects: int | None = None) -> Proportion:
        """The share of one kind, over all sentences or over those that name so many objects.

        Raises:
            ValueError: for an unknown kind.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: {kind!r} is not one of {', '.join(KINDS)}")
        chosen = [
            share for (name, named), share in self.shares.items() if name == kind and named_objects in (None, named)
        ]
        return Proportion(sum(share.right for share in chosen), sum(share.total for share in chosen))

    def named_objects(self) -> list[int]:
        """The numbers of objects that counted sentences named, ascending."""
        return sorted({named for _, named in self.shares})

    def to_dict(self) -> dict[str, Any]:
        """`{"all": {kind: ...}, "1": {kind: ...}, ...}`; kinds that never occurred are left out."""
        groups: dict[str, int | None] = {"all": None, **{str(named): named for named in self.named_objects()}}
        return {
            label: {kind: share.to_dict() for kind in KINDS if (share := self.share(kind, named)).total}
            for label, named in groups.items()
        }


def verdict_table(tallies: Mapping[str, Tally], named_objects: int | None = None) -> str:
    """Several tallies side by side, one row a kind: accuracy in percent, its interval, and the number of cases."""
    rows = []
    for kind in KINDS:
        shares = [tally.share(kind, named_objects) for tally in tallies.values()]
        if any(share.total for share in shares):
            rows.append((kind.replace("_", " "), *map(_cell, shares)))
    return markdown_table(("kind", *tallies), rows)


def _cell(share: Proportion) -> str:
    if not share.total:
        return "-"
    low, high = share.interval()
    return f"{100 * share.accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f}, n={share.total})"
