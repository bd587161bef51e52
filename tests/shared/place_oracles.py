"""Slow, obvious forms of the rules by which places of a grid are drawn: full forward passes with a mask, no cache.

Each oracle is told nothing of `specdecode`'s runs. It asks `FullPasses` what the model says after the tokens that were
fed, given which of these each of them saw.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdecode.grid.positions import Window
from specdecode.grid.row_windows import RowWindows
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens


@dataclass
class Fed:
    """A token that was fed. `sees` are the numbers of the fed tokens that it saw, itself included."""

    token: int
    place: int
    line: int
    is_placeholder: bool = False
    sees: set[int] = field(default_factory=set)


class FullPasses(ABC):
    """What a model says after every fed token of one request, by one forward pass over the prompt and all of them.

    Args:
        request: whose random numbers are used.
        sampling: how tokens are drawn.
        lines: how many lines there are.
        length: tokens of each.
        row_end: the token between two lines; None: there is none.
    """

    def __init__(
        self, request: int, sampling: SamplingConfig, lines: int, length: int, row_end: int | None = None
    ) -> None:
        self.sampling, self.streams = sampling, RandomStreams.from_seeds([request])
        self.lines, self.length, self.row_end = lines, length, row_end
        self.stride = length + (row_end is not None)
        self.count = lines * self.stride - (row_end is not None)

    @torch.no_grad()
    def draw(self, fed: list[Fed], drawing: list[tuple[int, int]]) -> list[int]:
        """Tokens for pairs of a fed token's number (-1: the end of the prompt) and the place after it."""
        seen = torch.zeros(len(fed), len(fed), dtype=torch.bool)
        for number, each in enumerate(fed):
            seen[number, list(each.sees)] = True
        ids, places = ([[getattr(each, name) for each in fed]] for name in ("token", "place"))
        logits = self.logits(torch.tensor(ids).long(), torch.tensor(places).long(), seen)
        at = [logits.shape[1] - len(fed) + number for number, _ in drawing]
        counters = torch.tensor([[place for _, place in drawing]])
        return draw_tokens(logits[:, at], self.sampling, self.streams, counters, Tag.TARGET)[0].tolist()

    @abstractmethod
    def logits(self, ids: Tensor, places: Tensor, seen: Tensor) -> Tensor:
        """Guided logits [1, T + n, V] of the prompt and of tokens [1, n] at places [1, n], which all see the prompt and
        each other by `seen` [n, n]."""


def with_prompt(seen: Tensor, length: int) -> Tensor:
    """[T + n, T + n] bool: a causal prompt of `length` tokens before tokens that see it and each other by `seen`."""
    mask = torch.ones(length + len(seen), length + len(seen), dtype=torch.bool).tril()
    mask[length:, length:] = seen
    return mask


def window_of(window: Window, line: int, lines: int) -> int:
    """The window of one of so many lines."""
    return window if isinstance(window, int) else window[int(line / lines * len(window))]


def staggered(passes: FullPasses, window: Window) -> dict[str, Any]:
    """Tokens, passes and tokens fed of one request.

    A line opens once the line above has `window` tokens, and every open line draws one token a pass. A token that is
    fed sees the tokens before it that have been fed by then. A line begins behind a placeholder, where the token before
    it is missing, and sees this placeholder until that token is fed. With end-of-row tokens it begins behind one,
    fed in that pass.
    """
    length, stride, row_end = passes.length, passes.stride, passes.row_end
    drawn = {0: passes.draw([], [(-1, 0)])[0]}
    fed: list[Fed] = []
    made = 1
    while len(drawn) < passes.count:
        made += 1
        counts = [
            sum(place // stride == line and place % stride < length for place in drawn) for line in range(passes.lines)
        ]
        is_open = [
            counts[line] < length and (line == 0 or counts[line - 1] >= window_of(window, line, passes.lines))
            for line in range(passes.lines)
        ]
        begun = len(fed)
        there = {each.place for each in fed if not each.is_placeholder}
        fed += [Fed(drawn[place], place, place // stride) for place in sorted(set(drawn) - {passes.count - 1} - there)]
        drawing = []
        for line in range(passes.lines):
            place = line * stride + counts[line]
            if not is_open[line]:
                continue
            if row_end is not None and line > 0 and counts[line] == 0:
                drawn[place - 1] = row_end
                fed.append(Fed(row_end, place - 1, line - 1))
                drawing.append((len(fed) - 1, place))
            elif place - 1 not in drawn:
                other = max(line - 2, 0)
                fed.append(Fed(drawn[other * stride + counts[other] - 1], place - 1, line, is_placeholder=True))
                drawing.append((len(fed) - 1, place))
            else:
                at = next(i for i, each in enumerate(fed) if each.place == place - 1 and not each.is_placeholder)
                drawing.append((at, place))
        there = {each.place for each in fed if not each.is_placeholder}
        for one in fed[begun:]:
            for number, other in enumerate(fed):
                if other.is_placeholder:
                    sees = one.line == other.line and other.place not in there
                else:
                    sees = other.place <= one.place
                if sees:
                    one.sees.add(number)
        tokens = passes.draw(fed, drawing)
        drawn.update(zip([place for _, place in drawing], tokens, strict=True))
    return {"tokens": [drawn[place] for place in range(passes.count)], "passes": made, "fed": len(fed)}


def in_flight(passes: FullPasses, rule: RowWindows) -> dict[str, Any]:
    """What the rule makes of one request, by full forward passes without a cache.

    The rule in words. A line opens once the line above has `window` decided tokens. Each pass feeds decided tokens that
    were not fed, and the guesses of every line. A first token is drawn behind the one before it, or a placeholder where
    that is not decided. The next tokens of a line are right as long as each guess is what the pass draws for its
    place; these are decided, and one more. What else was drawn are guesses; a line that has fewer than it may have gets
    more from its last distribution. A token may be seen by others once it is decided and fed; guesses by their line.
    With `guessed_columns` a line's guesses are among so many first tokens of it. With `of_length` window and these are
    meant for lines of so many tokens, and others have as large a part of theirs.
    With `start_from_row_above` a line that is about to open has the tokens above as its guesses.
    """
    length, stride, lines = passes.length, passes.stride, range(passes.lines)
    part = 1.0 if rule.of_length is None else length / rule.of_length
    window = [math.ceil(part * window_of(rule.window, line, passes.lines)) for line in lines]
    decided: list[list[int]] = [[] for _ in lines]
    guesses: list[list[int]] = [[] for _ in lines]
    visits: dict[int, int] = {}
    fed: list[Fed] = []
    newest: dict[int, int] = {}  # by place, the number of what was fed there last
    placeholders: dict[int, int] = {}  # by line
    told = {"passes": 1, "drafted": 0, "accepted": 0, "unverified": 0}
    decided[0] += passes.draw([], [(-1, 0)])

    while any(len(line) < length for line in decided):
        told["passes"] += 1
        known = {line * stride + column: token for line in lines for column, token in enumerate(decided[line])}
        if passes.row_end is not None:
            known.update({line * stride + length: passes.row_end for line in lines[:-1]})
        is_open = [
            len(decided[line]) < length and (line == 0 or len(decided[line - 1]) >= window[line]) for line in lines
        ]
        new: list[Fed] = []
        for line in lines:
            first = line * stride
            for place in range(first, first + len(decided[line])):
                is_fed = place in newest and fed[newest[place]].token == known[place]
                is_fed &= not (is_open[line] and place == first + len(decided[line]) - 1)  # the line draws behind it
                opens_below = (
                    line + 1 < len(lines)
                    and is_open[line + 1]
                    and not decided[line + 1]
                    and place == first + stride - 1
                )
                if place < passes.count - 1 and (not is_fed or opens_below):
                    new.append(Fed(known[place], place, line))
            waits = len(decided[line - 1]) < length
            if is_open[line] and not decided[line] and passes.row_end is not None:
                new.append(Fed(passes.row_end, first - 1, line - 1))
            elif is_open[line] and not decided[line] and waits:
                copied = max(line - 2, 0)
                new.append(Fed(decided[copied][-1], first - 1, line, is_placeholder=True))
            new += [Fed(token, first + len(decided[line]) + i, line) for i, token in enumerate(guesses[line])]
            told["drafted"] += len(guesses[line])
        start = len(fed)
        fed += new
        for number, each in enumerate(new, start):
            if each.is_placeholder:
                placeholders[each.line] = number
            else:
                newest[each.place] = number
        for each in new:
            for place, number in newest.items():
                is_known = known.get(place) == fed[number].token
                is_own_guess = place not in known and place // stride == each.line and number >= start
                if place <= each.place and (is_known or is_own_guess):
                    each.sees.add(number)
            before = each.line * stride - 1
            is_there = before in newest and before in known and fed[newest[before]].token == known[before]
            if each.line in placeholders and not is_there:
                each.sees.add(placeholders[each.line])

        old, last_of = [len(line) for line in decided], {}
        for line in lines:
            if not is_open[line]:
                continue
            first, count = line * stride, old[line]
            waits = line > 0 and count == 0 and old[line - 1] < length
            behind = [placeholders[line] if waits and passes.row_end is None else newest[first + count - 1]]
            behind += [newest[first + count + i] for i in range(len(guesses[line]))]
            places = [first + count + i for i in range(len(behind))]
            drawn = passes.draw(fed, list(zip(behind, places, strict=True)))
            for place in places:
                visits[place] = visits.get(place, 0) + 1
            right = 0
            while right < len(guesses[line]) and guesses[line][right] == drawn[right]:
                right += 1
            told["accepted"] += right
            gained = 0 if rule.confirm_first and waits and right == 0 else right + 1
            verified = gained
            while rule.max_visits is not None and gained < len(drawn) and visits[places[gained]] >= rule.max_visits:
                gained += 1
            told["unverified"] += gained - verified
            decided[line] += drawn[:gained]
            guesses[line], last_of[line] = drawn[gained:], behind[-1]
        for line in lines:
            opens = line > 0 and not decided[line] and not is_open[line] and len(decided[line - 1]) >= window[line]
            if not is_open[line] and not (opens and rule.start_from_row_above):
                continue
            if opens:
                guesses[line] = (decided[line - 1] + guesses[line - 1])[:length]
            most = max(rule.guesses, 1) if rule.confirm_first and not decided[line] else rule.guesses
            if line > 0 and len(decided[line - 1]) < length:
                most = min(most, len(decided[line - 1]) - len(decided[line]))
            last = (
                length - 1 if rule.guessed_columns is None else min(length - 1, math.ceil(part * rule.guessed_columns))
            )
            most = max(min(most, last - len(decided[line])), 0)
            more = range(len(guesses[line]), most)
            begin = line * stride + len(decided[line])
            guesses[line] = guesses[line][:most] + [
                passes.draw(fed, [(last_of[line], begin + number)])[0] for number in more
            ]
    between = [] if passes.row_end is None else [passes.row_end]
    tokens = [token for line in decided for token in [*line, *between]][: passes.count]
    return {"tokens": tokens, "fed": len(fed), **told}
