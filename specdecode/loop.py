"""The decode loop: propose, judge, keep. Plain decoding is this loop with no drafter.

Belongs here: the order in which the roles are asked, the ends of rows, and the bookkeeping of tokens.
Does not belong here: how any role answers, which requests take the places of finished rows (`continuous.py`), and
anything that knows what a token stands for.

Rows are independent: each has its own length, accepts its own number of tokens and ends on its own. Shapes depend on
the draft's static shape alone, and the host waits for the device only when every row might be finished, which for
plain decoding to a fixed length is once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.finite import FiniteWatch
from specdecode.pending import PendingChain
from specdecode.roles import (
    DecodeState,
    Draft,
    Drafter,
    Schedule,
    SkippingDrafter,
    Target,
    Verdict,
    Verifier,
    replace_rows,
)
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens
from specdecode.trace import DecodeTrace, StepRecord
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier


@dataclass
class DecodeResult:
    """What decoding gives back.

    Args:
        tokens: [B, max_new_tokens] int64; after an early end, filled up with the (first) stop token.
        lengths: [B] int64 decoded tokens, a stop token included.
        trace: What happened.
    """

    tokens: Tensor
    lengths: Tensor
    trace: DecodeTrace


@torch.no_grad()
def decode(
    target: Target,
    *,
    max_new_tokens: int,
    sampling: SamplingConfig,
    streams: RandomStreams,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    schedule: Schedule | None = None,
    stop_token: int | Sequence[int] | None = None,
    on_step: Callable[[int, DecodeState], None] | None = None,
    trace: DecodeTrace | None = None,
    profile: bool = False,
) -> DecodeResult:
    """Decode every row of a target to `max_new_tokens` tokens, or to its stop token.

    The last token of a row is drawn and never fed: of N tokens the target is fed N - 1.

    Args:
        target: The model, before its prefill. It needs room for max_new_tokens - 1 tokens per row and for the nodes
            of one draft.
        max_new_tokens: Tokens per row, >= 1.
        sampling: How tokens are drawn.
        streams: One random stream per row.
        drafter: Proposes tokens; None: plain decoding.
        verifier: Judges them; None: `ExactVerifier`.
        schedule: Says which drafted tokens are taken without asking the target; None: none ever. Needs a drafter
            whose `skipping` is not None; the target then needs room for the longest skip beside the nodes of one draft.
        stop_token: A row ends after this token, or any of these. Costs a wait for the device at every step.
        on_step: Called as `on_step(step, state)` after every target pass; step 0 is the prefill. It must not change
            `state`; reading a tensor's value there waits for the device.
        trace: Where to record (a caller may have phases of its own in it); None: a new one. Phases "prefill" and
            "decode" are timed.
        profile: Also time "draft", "target", "verify" and "commit", which are parts of "decode". Waits for the device
            four times a step, so a profiled run is no measurement of speed.

    Raises:
        ValueError: `max_new_tokens` < 1, `stop_token` outside the vocabulary, `streams` or `trace` of another batch
            size, or a schedule without a drafter that can skip.
        NotFiniteError: logits of a row were no numbers; found when all is decoded.
    """
    run = DecodeRun(
        target,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        streams=streams,
        drafter=drafter,
        verifier=verifier,
        schedule=schedule,
        stop_token=stop_token,
        trace=trace,
        profile=profile,
    )
    run.start()
    if on_step is not None:
        on_step(0, run.state)
    with run.trace.phase("decode"):
        # The slowest row gains at most `step`'s number a step, so for some time nobody need look whether it is
        # finished. Only a stop token can end rows earlier.
        may_stop = run.stops is not None
        slowest_needs = _slowest_needs(run.state) if may_stop else max_new_tokens - 1
        while slowest_needs > 0:
            slowest_needs -= run.step()
            if run.ended:
                break
            if on_step is not None:
                on_step(run.steps, run.state)
            if slowest_needs <= 0 or may_stop:
                slowest_needs = _slowest_needs(run.state)
    run.watch.check()
    return DecodeResult(run.state.tokens, run.state.lengths, run.trace)


class DecodeRun:
    """A batch on its way: `start`, then `step` until its rows are finished.

    For who decides between steps what becomes of the rows; `decode` is all there is to it otherwise.

    Args:
        as for `decode`.

    Attributes:
        state: where every row stands.
        steps: passes since the prefill.
        ended: every row was ended by a stop token before a pass was made; nothing is left to do.
        stops: [s] int64, tokens that end a row; None for none.
        watch: of logits that are no numbers.

    Raises:
        ValueError: as `decode`.
    """

    def __init__(
        self,
        target: Target,
        *,
        max_new_tokens: int,
        sampling: SamplingConfig,
        streams: RandomStreams,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        schedule: Schedule | None = None,
        stop_token: int | Sequence[int] | None = None,
        trace: DecodeTrace | None = None,
        profile: bool = False,
    ) -> None:
        batch_size, device = target.batch_size, target.device
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be >= 1, got {max_new_tokens}")
        if streams.batch_size != batch_size:
            raise ValueError(f"streams must hold one stream per row: {streams.batch_size} streams, {batch_size} rows")
        self.stops = stop_tokens(stop_token, target.vocab_size, device)
        self._skipping = None if drafter is None or schedule is None else drafter.skipping
        if schedule is not None and self._skipping is None:
            raise ValueError(
                f"schedule needs a drafter that can go on unverified, but `skipping` of {type(drafter).__name__} is "
                f"None"
            )
        self.trace = DecodeTrace(batch_size, device) if trace is None else trace
        if self.trace.batch_size != batch_size:
            raise ValueError(
                f"trace must be of the target's batch size {batch_size}, got one of {self.trace.batch_size}"
            )
        self.target, self.drafter, self.schedule = target, drafter, schedule
        self.verifier = ExactVerifier() if verifier is None else verifier
        self._part = self.trace.phase if profile else _untimed

        # One column more than the result has: tokens that must not be kept are written there.
        filler = 0 if self.stops is None else int(self.stops[0])
        self._buffer = torch.full((batch_size, max_new_tokens + 1), filler, dtype=torch.int64, device=device)
        self._no_tokens = torch.zeros(batch_size, dtype=torch.int64, device=device)
        every_row = torch.ones(batch_size, dtype=torch.bool, device=device)
        self.state = DecodeState(
            self._buffer[:, :max_new_tokens], self._no_tokens, every_row, max_new_tokens, sampling, streams
        )
        # Without a drafter only the root's token changes from step to step.
        self._root_only = TokenTree.chain(self._no_tokens[:, None])
        self._root_mask = self._root_only.ancestor_mask()
        self.watch = FiniteWatch(batch_size, device)
        self.steps = 0
        self.ended = False

    @property
    def _needs_no_draft(self) -> bool:
        """Whether the prompt gives every token there is to be, so that no drafter begins."""
        return self.state.max_new_tokens == 1

    @torch.no_grad()
    def start(self) -> None:
        """Feed the prompts, draw the first tokens, and start the other players."""
        state, every_row = self.state, self.state.active
        with self.trace.phase("prefill"):
            prompt = self.target.prefill()
            first = draw_tokens(
                prompt.logits[:, -1:], state.sampling, state.streams, self._no_tokens[:, None], Tag.TARGET
            )
            _append(state, self._buffer, first, self._no_tokens + 1, self.stops)
            self.trace.record_prefill()
            if self.drafter is not None and not self._needs_no_draft:
                self.drafter.start(prompt, state)
            if self.schedule is not None:
                self.schedule.start(state)
        self.watch.look(0, prompt.logits[:, -1:], every_row[:, None])

    @torch.no_grad()
    def step(self) -> int:
        """One target pass, and what comes before and after it. Returns the most tokens that any row can have gained."""
        state, drafter, schedule, skipping, part = self.state, self.drafter, self.schedule, self._skipping, self._part
        buffer, no_tokens, stops = self._buffer, self._no_tokens, self.stops
        self.steps += 1
        with part("draft"):
            if drafter is None:
                draft = Draft(replace(self._root_only, tokens=state.last_tokens()[:, None]))
            else:
                draft = _clip(drafter.propose(state), state)
            pending, skipped = None, no_tokens
            if schedule is not None and skipping is not None:
                draft, pending, skipped = _skip(draft, schedule, skipping, state, buffer, stops)
                if stops is not None and not bool(state.active.any()):
                    self.trace.record_unverified(skipped)
                    self.ended = True
                    return 0
            tree = draft.tree
            if pending is not None:
                tokens, mask, depths = pending.join(tree)
            else:
                tokens, depths = tree.tokens, tree.depth
                mask = self._root_mask if tree.num_nodes == 1 else tree.ancestor_mask()
        with part("target"):
            output = self.target.forward(tokens, mask, depths)
        with part("verify"):
            tree_output = output if pending is None else output.after(pending.max_length)
            self.watch.look(self.steps, tree_output.logits, tree.valid & state.active[:, None])
            verdict = self.verifier.accept(draft, tree_output, state)
        with part("commit"):
            going_on, accepted = state.active, verdict.accepted * state.active
            verdict, kept = replace(verdict, accepted=accepted), accepted + going_on
            if pending is None:
                self.target.commit(None if tree.is_chain else verdict.path, kept)
            else:
                nodes, before = pending.kept(verdict)
                self.target.commit(nodes, before + kept)
            emitted = _append(state, buffer, _new_tokens(tree, verdict), kept, stops)
        self.trace.record_step(
            StepRecord(
                active=going_on,
                drafted=tree.valid[:, 1:].sum(1),
                accepted=accepted if stops is None else torch.minimum(accepted, emitted),
                emitted=emitted,
                skipped=skipped,
                relaxed=verdict.relaxed,
            )
        )
        if drafter is not None:
            with part("draft"):
                if pending is not None and skipping is not None:
                    skipping.observe_pending(output, pending.counts, state)
                drafter.observe(draft, tree_output, verdict, state)
        return tree.max_depth + 1 + (0 if pending is None else pending.max_length)

    @torch.no_grad()
    def replace_rows(self, rows: Tensor, other: DecodeRun) -> None:
        """Give rows to other requests, while the rest goes on as if nothing had happened.

        Args:
            rows: [k] int64, distinct; whatever they held is forgotten.
            other: a run of k rows and the same settings that has just started. It is used up.

        Raises:
            ValueError: a player that cannot, by name; see `specdecode.roles.RowReplacing`.
        """
        for player, theirs in (
            (self.target, other.target),
            (None if self._needs_no_draft else self.drafter, other.drafter),
            (self.schedule, other.schedule),
        ):
            if player is not None:
                replace_rows(player, rows, theirs)
        state = self.state
        self._buffer[rows] = other._buffer
        state.lengths = state.lengths.index_copy(0, rows, other.state.lengths)
        state.active = state.active.index_copy(0, rows, other.state.active)
        state.streams = state.streams.with_rows(rows, other.state.streams)
        self.watch.replace_rows(rows, other.watch)
        self.trace.add_passes(other.trace)
        self.ended = False


def stop_tokens(stop_token: int | Sequence[int] | None, vocab_size: int, device: torch.device) -> Tensor | None:
    """[s] int64, the tokens that end a row; None for none.

    Raises:
        ValueError: a token outside the vocabulary.
    """
    listed = [] if stop_token is None else [stop_token] if isinstance(stop_token, int) else list(stop_token)
    for token in listed:
        if not 0 <= token < vocab_size:
            raise ValueError(f"stop_token must lie in [0, {vocab_size}), got {token}")
    return torch.tensor(listed, device=device) if listed else None


def _untimed(name: str) -> AbstractContextManager[None]:
    """In place of `DecodeTrace.phase` where nobody asked for times."""
    return nullcontext()


def _clip(draft: Draft, state: DecodeState) -> Draft:
    """Without the nodes that are of no use: the deepest useful one is a row's last but one token, its logits give the
    last. Finished rows become padding."""
    room = torch.where(state.active, state.max_new_tokens - 1 - state.lengths, -1)
    if ragged.at_least(room, -1) >= draft.tree.max_depth:
        return draft  # as nearly always
    return replace(draft, tree=draft.tree.clip(room))


def _skip(
    draft: Draft,
    schedule: Schedule,
    drafter: SkippingDrafter,
    state: DecodeState,
    buffer: Tensor,
    stops: Tensor | None,
) -> tuple[Draft, PendingChain | None, Tensor]:
    """Take tokens of a draft unverified where the schedule says so, and draft on behind them.

    Returns:
        The draft to be judged; the tokens to be fed before it, None if no row has any; and how many tokens each row
        took, [B] int64. A row that a stop token ended took tokens and has none to be fed.
    """
    selection = schedule.select(draft, state) if draft.tree.max_depth > 0 else None
    if selection is None:
        return draft, None, torch.zeros_like(state.lengths)
    taken = draft.tree.tokens.gather(1, selection.path[:, 1:])  # [B, depth]
    chain = torch.cat([state.last_tokens()[:, None], taken[:, :-1]], dim=1)
    skipped = _append(state, buffer, taken, selection.counts * state.active, stops)
    counts = skipped * state.active  # a row that a stop token ended has nothing left to verify
    if ragged.surely_none(counts):
        return draft if stops is None else _clip(draft, state), None, skipped
    drafter.observe_skipped(draft, replace(selection, counts=counts), state)
    behind = _clip(drafter.propose(state), state)
    return _choose(counts > 0, behind, draft, state), PendingChain(chain, counts), skipped


def _choose(rows: Tensor, behind: Draft, draft: Draft, state: DecodeState) -> Draft:
    """The draft behind the taken tokens in `rows` [B], the first draft elsewhere; finished rows are padding."""
    tree = TokenTree.where(rows, behind.tree, draft.tree)
    probabilities = None
    if behind.probabilities is not None and draft.probabilities is not None:
        either = [
            torch.nn.functional.pad(each, (0, 0, 0, tree.num_nodes - each.shape[1]))
            for each in (behind.probabilities, draft.probabilities)
        ]
        probabilities = torch.where(rows[:, None, None], either[0], either[1])
    return _clip(Draft(tree, probabilities), state)


def _new_tokens(tree: TokenTree, verdict: Verdict) -> Tensor:
    """[B, max_depth + 1]: the accepted drafted tokens, then the target's own; what follows means nothing."""
    next_tokens = verdict.next_tokens[:, None]
    if tree.max_depth == 0:
        return next_tokens
    drafted = tree.tokens[:, 1:] if tree.is_chain else tree.tokens.gather(1, verdict.path[:, 1:])
    return torch.cat([drafted, next_tokens], dim=1).scatter(1, verdict.accepted[:, None], next_tokens)


def _append(state: DecodeState, buffer: Tensor, tokens: Tensor, counts: Tensor, stops: Tensor | None) -> Tensor:
    """Write the first `counts[b]` of `tokens[b]` behind each active row and update `state`.

    Args:
        state: Changed in place; its old tensors, except the token buffer, stay as they were.
        buffer: [B, max_new_tokens + 1], `state.tokens` and the column for what is dropped.
        tokens: [B, k] int64.
        counts: [B] int64, at most what the row has room for; 0 for finished rows.
        stops: [s] int64, tokens that end a row; nothing after them is written.

    Returns:
        [B] int64, tokens written: `counts`, or fewer where the stop token came first.
    """
    offsets, emitted = torch.arange(tokens.shape[1], device=tokens.device), counts
    going_on = state.active
    if stops is not None:
        is_stop = torch.isin(tokens, stops) & (offsets < emitted[:, None])
        has_stop, first_stop = is_stop.max(dim=1)
        emitted = torch.where(has_stop, first_stop + 1, emitted)
        going_on = going_on & ~has_stop
    columns = (state.lengths[:, None] + offsets).masked_fill_(offsets >= emitted[:, None], state.max_new_tokens)
    buffer.scatter_(1, columns, tokens)
    state.lengths = state.lengths + emitted
    state.active = going_on & (state.lengths < state.max_new_tokens)
    return emitted


def _slowest_needs(state: DecodeState) -> int:
    """Tokens the slowest unfinished row still needs; 0 when all are finished. Waits for the device."""
    return int(torch.where(state.active, state.max_new_tokens - state.lengths, 0).max())
