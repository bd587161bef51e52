"""Copies from earlier in the text where that pays, guesses of a head elsewhere: step by step, what gains the most.

Belongs here: the choice between both, and how many tokens the head guesses. Does not belong here: matches and lengths
of copies (`prompt_lookup.py`, `specdecode.drafters.lookup_draft_length`), and heads (`eagle.py`).

A copy costs nothing and may be long, but only where the text repeats itself. A guess costs a pass of the head for each
token. So every step compares the expected tokens a second of both, and of plain decoding. All rows of a batch draft in
one way. The target draws the same tokens behind either draft, so none depends on what the clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from specdecode.drafters.draft_size import AcceptanceRates, DraftSize
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.tree import TokenTree

_RATE = 0.5
"""The acceptance rate of every level before anything is known, given that the levels above were accepted."""
_RATE_WEIGHT, _RATE_DECAY, _FORGETTING = 4.0, 0.95, 0.99
_GUESS_COST, _GUESS_COST_WEIGHT = 0.06, 8.0
"""The assumed cost of a guess as a share of a pass of the target over one token, and how many guesses it counts as."""
_COST_DECAY = 0.95


class GuessDraftSize:
    """Chooses how many tokens a head guesses; plays `DraftSizer`, of which the drafter below asks for the best first.

    Args:
        longest: the most tokens.
        guess_cost: the assumed cost of a guess, as a share of a pass over one token.
    """

    def __init__(self, longest: int, guess_cost: float = _GUESS_COST) -> None:
        self.longest = longest
        self._depth, self._assumed = longest, guess_cost
        self._rates = AcceptanceRates(longest, _RATE_DECAY, _RATE_WEIGHT)
        self._seconds = self._levels = 0.0

    @property
    def largest(self) -> DraftSize:
        """Room for the longest chain."""
        return DraftSize(self.longest + 1, self.longest)

    def rate(self, level: int) -> float:
        """The acceptance rate of the guess so many levels below the first, if those above were accepted."""
        return self._rates.rate(level, _RATE)

    def guess_cost(self, pass_seconds: float | None) -> float:
        """What a guess costs, as a share of a pass over one token, which takes so long."""
        if pass_seconds is None:
            return self._assumed
        before = _GUESS_COST_WEIGHT * self._assumed
        return (self._seconds / pass_seconds + before) / (self._levels + _GUESS_COST_WEIGHT)

    def best(self, num_rows: int, row_cost: float, pass_seconds: float | None) -> tuple[int, float]:
        """How many tokens to guess for so many rows, and the expected tokens per cost of a pass over one token.

        Args:
            num_rows: rows that go on.
            row_cost: what another column costs, as a share of a pass over one.
            pass_seconds: of such a pass; None where nothing was timed.
        """
        cost = row_cost + self.guess_cost(pass_seconds)
        found, chance, expected = (0, float(num_rows)), 1.0, 1.0
        for level in range(self.longest):
            chance *= self.rate(level)
            expected += chance
            value = num_rows * expected / (1 + cost * (level + 1))
            if value > found[1]:
                found = level + 1, value
        self._depth = found[0]
        return found

    def choose(self) -> DraftSize:
        """What was found to be the best."""
        return DraftSize(self._depth + 1, self._depth)

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor, predicted: Tensor | None = None) -> None:
        """See `DraftSizer`. What is not tried is forgotten slowly, so that it is tried again."""
        if size.depth < 1:
            self._rates.forget(_FORGETTING)
            return
        for good in accepted[active].tolist():
            for level in range(min(good + 1, size.depth)):
                self._rates.learn(level, 1, level < good)

    def took(self, seconds: float, depth: int) -> None:
        """A draft of so many levels took so long."""
        self._seconds = _COST_DECAY * self._seconds + seconds
        self._levels = _COST_DECAY * self._levels + depth


class CopyOrGuessDrafter(Drafter):
    """The Drafter role over prompt lookup and a head, on a CPU.

    Args:
        lookup: with a `LookupDraftLength`.
        head: of chains, not of children "sampled", with `sizer` for its sizer, and room for a longest copy to wait.
        sizer: of the head.
        clock: seconds; None: guesses cost what is assumed.
    """

    def __init__(
        self,
        lookup: PromptLookupDrafter,
        head: EagleDrafter,
        sizer: GuessDraftSize,
        clock: Callable[[], float] | None = time.perf_counter,
    ) -> None:
        assert isinstance(lookup.sizer, LookupDraftLength)
        self.lookup, self.head, self.sizer, self._lengths, self._clock = lookup, head, sizer, lookup.sizer, clock
        self._copies = self._has_guessed = False

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """See `Drafter`."""
        self.lookup.start(prompt, state)
        self.head.start(prompt, state)

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """See `Drafter`."""
        self.head.observe_given(output, counts, state)

    def propose(self, state: DecodeState) -> Draft:
        """A chain behind each row's newest token."""
        lengths, occurrence, matched = self._lengths, *self.lookup.last_occurrence(state)
        counts = matched[state.active].tolist()
        _, copied = lengths.best(counts)
        depth, guessed = self.sizer.best(len(counts), lengths.row_cost(), lengths.pass_seconds())
        self._copies = copied > guessed
        if self._copies:
            self.head.stand_aside(state)
            return self.lookup.propose_behind(state, occurrence, matched)
        if not depth:
            self.head.stand_aside(state)
            lengths.begin(0)
            return Draft(TokenTree.chain(state.last_tokens()[:, None]))
        started = self._clock() if self._clock else 0.0
        draft = self.head.propose(state)
        if self._clock:
            seconds = self._clock() - started
            lengths.leave_out(seconds)
            if self._has_guessed:  # the first time a head may read the prompt, too
                self.sizer.took(seconds, depth)
        self._has_guessed = True
        lengths.begin(depth)
        return draft

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Who drafted learns; the head reads what was accepted."""
        if self._copies:
            self.lookup.observe(draft, output, verdict, state)
        self.head.observe(draft, output, verdict, state)
