"""Copies from earlier in the text where that pays, guesses of a head elsewhere: each step takes the greatest gain.

Belongs here: the choice between both. Does not belong here: matches and lengths of copies (`prompt_lookup.py`,
`lookup_draft_length.py`), how many tokens a head guesses (`draft_size.py`), and heads (`eagle.py`).

A copy costs nothing and may be long, but only where the text repeats itself. A guess costs a pass of the head for each
token. So every step compares the expected tokens a second of both, and of plain decoding. All rows of a batch draft in
one way. The target draws the same tokens behind either draft, so none depends on what the clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from specdecode.drafters.draft_size import NO_DRAFT, AdaptiveDraftSize, DraftSize, StepCosts
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.lookup_draft_length import LookupDraftLength
from specdecode.drafters.prompt_lookup import PromptLookupDrafter
from specdecode.roles import DecodeState, Draft, Drafter, TargetOutput, Verdict
from specdecode.tree import TokenTree

_RATE = 0.5
"""The acceptance rate of a guess before anything is known."""
_GUESS_COST, _GUESS_COST_WEIGHT = 0.06, 8.0
"""The assumed cost of a guess as a share of a pass of the target over one token, and how many guesses it counts as."""
_COST_DECAY = 0.95
_FORGETTING = 0.99
"""What a step without guesses leaves of what is known of their acceptance."""


def guess_sizes(longest: int) -> AdaptiveDraftSize:
    """Chooses how many tokens a head guesses, `longest` at most; `CopyOrGuessDrafter` sets its costs."""
    sizes = [NO_DRAFT, *(DraftSize(length + 1, length) for length in range(1, longest + 1))]
    return AdaptiveDraftSize(sizes, StepCosts((1,), (1.0,), _GUESS_COST), prior_rate=_RATE, interval=1)


class CopyOrGuessDrafter(Drafter):
    """The Drafter role over prompt lookup and a head, on a CPU.

    Args:
        lookup: with a `LookupDraftLength`.
        head: of chains, not of children "sampled", with `guess_sizes` for its sizer, and room for a longest copy to
            wait.
        clock: seconds.
    """

    def __init__(
        self, lookup: PromptLookupDrafter, head: EagleDrafter, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        assert isinstance(lookup.sizer, LookupDraftLength) and isinstance(head.sizer, AdaptiveDraftSize)
        self.lookup, self.head, self.sizer, self._guesses, self._clock = lookup, head, lookup.sizer, head.sizer, clock
        self._copies = self._guessed = self._has_guessed = False
        self._seconds = self._levels = 0.0  # decayed sums over guesses

    def start(self, prompt: TargetOutput, state: DecodeState) -> None:
        """See `Drafter`."""
        self.lookup.start(prompt, state)
        self.head.start(prompt, state)

    def observe_given(self, output: TargetOutput, counts: Tensor, state: DecodeState) -> None:
        """See `Drafter`."""
        self.head.observe_given(output, counts, state)

    def costs(self) -> StepCosts:
        """What steps with guesses cost, in passes of the target over one token."""
        longest, one = self._guesses.largest.total_tokens, self.sizer.pass_seconds()
        guess, columns = _GUESS_COST, 1 + self.sizer.row_cost() * (longest - 1)
        if one is not None:
            guess = (self._seconds / one + _GUESS_COST_WEIGHT * guess) / (self._levels + _GUESS_COST_WEIGHT)
        return StepCosts((1, longest), (1.0, columns), guess)

    def propose(self, state: DecodeState) -> Draft:
        """A chain behind each row's newest token."""
        occurrence, matched = self.lookup.last_occurrence(state)
        counts = matched[state.active].tolist()
        copied, gain = self.sizer.best(counts)
        self._guesses.costs = self.costs()
        size = self._guesses.choose()
        self._guessed = False
        self._copies = copied > 0 and gain > len(counts) * self._guesses.tokens_per_second(size)
        if self._copies:
            self.head.stand_aside(state)
            return self.lookup.propose_behind(state, occurrence, matched)
        if size == NO_DRAFT:
            self.head.stand_aside(state)
            self.sizer.begin(0)
            return Draft(TokenTree.chain(state.last_tokens()[:, None]))
        started = self._clock()
        draft = self.head.propose(state)
        seconds = self._clock() - started
        self.sizer.leave_out(seconds)
        if self._has_guessed:  # the first time a head may read the prompt, too
            self._seconds = _COST_DECAY * self._seconds + seconds
            self._levels = _COST_DECAY * self._levels + size.depth
        self._guessed = self._has_guessed = True
        self.sizer.begin(size.depth)
        return draft

    def observe(self, draft: Draft, output: TargetOutput, verdict: Verdict, state: DecodeState) -> None:
        """Who drafted learns; the head reads what was accepted."""
        if self._copies:
            self.lookup.observe(draft, output, verdict, state)
        if not self._guessed:
            self._guesses.forget(_FORGETTING)
        self.head.observe(draft, output, verdict, state)
