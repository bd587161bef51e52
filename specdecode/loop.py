"""The decode loop: propose, judge, keep. Without a drafter it is plain decoding.

Belongs here: the order in which the roles are asked, the ends of rows, and the bookkeeping of tokens.
Does not belong here: how a role answers, skipped steps (`skipping.py`), which request takes the row of a finished one
(`continuous.py`), and anything that knows what a token stands for.

Rows are independent: each has its own length, accepts its own number of tokens and ends on its own. Shapes depend on
the static shape of the draft alone. The host waits for the device only when every row might be finished; where no
token ends a row, it knows a step before which no row can be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.checks import FiniteWatch, check_counts, check_room, check_tensor, is_integer
from specdecode.drafters.forced_tokens import ForcedTokensDrafter, certain_where_forced
from specdecode.kernels import fused_ops
from specdecode.roles import (
    DecodeState,
    Draft,
    Drafter,
    MakesGraphs,
    Target,
    TargetOutput,
    Verdict,
    Verifier,
    replace_rows,
)
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace, ForcedPlaces, StepLog, StepRecord
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import ExactVerifier

OnStep = Callable[[int, DecodeState], None]


@dataclass
class DecodeResult:
    """The result of decoding.

    Args:
        tokens: [B, max_new_tokens] int64; after an early end, filled up with the (first) stop token, or 0.
        lengths: [B] int64 decoded tokens, a stop token included.
        trace: What happened.
    """

    tokens: Tensor
    lengths: Tensor
    trace: DecodeTrace


def decode(target: Target, *, on_step: OnStep | None = None, **settings: Any) -> DecodeResult:
    """Decode every row of a target to its end.

    Args:
        target, settings: Arguments of `DecodeRun`.
        on_step: See `DecodeRun.finish`.

    Raises:
        ValueError, LogitsError: As `DecodeRun` and `DecodeRun.finish`.
    """
    return DecodeRun(target, **settings).finish(on_step)


class DecodeRun:
    """A batch that is being decoded: `finish` it, or `start` it and `step` until its rows are finished.

    The last token of a row is drawn and never fed: of N tokens the target is fed N - 1.

    Args:
        target: The model, before its prefill. It needs room for max_new_tokens - 1 tokens per row and for the nodes
            of one draft.
        max_new_tokens: Tokens per row, >= 1.
        sampling: How tokens are drawn.
        streams: One random stream per row.
        drafter: Proposes tokens; None: plain decoding.
        verifier: Judges them; None: `ExactVerifier`.
        stop_token: A row ends after this token, or any of these. Costs a wait for the device at every step.
        row_tokens: [B] int64, tokens of each row where they differ, 1 to `max_new_tokens`; None: that many.
        forced_tokens: [B, max_new_tokens] int64, tokens that are known, -1 where one is drawn; None: all are drawn.
            Those before a row's first -1 are *given*: one pass feeds them behind the prompt. A row's last token is not.
        trace: Where to record (the caller may have recorded phases in it); None: a new one.
        profile: Also time "draft", "target", "verify" and "commit", which are parts of the phase "decode". Waits for
            the device at every part, so a profiled run does not measure speed.

        compiler: Makes steps into graphs; None: they run eagerly. With one, ends by stop tokens are seen some steps
            late, which changes no token. A profiled run is not made into graphs.

    Attributes:
        state: Where every row stands.
        steps: Passes since the prefill.
        stops: [s] int64, tokens that end a row; None for none.
        may_stop: Whether rows may end before `max_new_tokens`.
        watch: Notes logits that are not finite.

    Raises:
        ValueError: `max_new_tokens` < 1 or above the target's own, `stop_token` outside the vocabulary, `streams`,
            `row_tokens`, `forced_tokens` or `trace` of another batch size, or `row_tokens` or `forced_tokens` out of
            range. While it decodes: the target's,
            the drafter's or the verifier's numbers are of another shape or type.
        MemoryError: The device's whole memory is too small for so many tokens.
    """

    graph_state: tuple[str, ...] = (
        *("state", "target", "drafter", "verifier", "watch", "log", "stops"),
        *("_buffer", "_no_tokens", "_skipped", "_forced_tokens"),
    )
    """Attributes that a graph owns: tensors that steps replace or that differ from run to run, and objects that name
    theirs likewise. See `specdecode.graphs.static_step`."""
    ends_with_last_drawn = True
    """Whether a row has ended where all that is left is known."""
    logged_places = 0
    """Places of a row, where steps record what they add by place."""

    def __init__(
        self,
        target: Target,
        *,
        max_new_tokens: int,
        sampling: SamplingConfig,
        streams: RandomStreams,
        drafter: Drafter | None = None,
        verifier: Verifier | None = None,
        stop_token: int | Sequence[int] | None = None,
        row_tokens: Tensor | None = None,
        forced_tokens: Tensor | None = None,
        trace: DecodeTrace | None = None,
        profile: bool = False,
        compiler: MakesGraphs | None = None,
    ) -> None:
        batch_size, device = target.batch_size, target.device
        check_counts(max_new_tokens=max_new_tokens)
        if streams.batch_size != batch_size:
            raise ValueError(f"streams must hold one stream per row: {streams.batch_size} streams, {batch_size} rows")
        if (room := getattr(target, "max_new_tokens", max_new_tokens)) < max_new_tokens:
            raise ValueError(f"max_new_tokens must be at most the target's {room}, got {max_new_tokens}")
        if row_tokens is not None:
            _check_row_tokens(row_tokens, batch_size, max_new_tokens)
        self.stops = stop_tokens(stop_token, target.vocab_size, device)
        self.may_stop = self.stops is not None
        self.trace = DecodeTrace(batch_size, device) if trace is None else trace
        if self.trace.batch_size != batch_size:
            raise ValueError(
                f"trace must be of the target's batch size {batch_size}, got one of {self.trace.batch_size}"
            )
        self.log: DecodeTrace | StepLog = self.trace
        self.target, self.drafter = target, drafter
        if forced_tokens is not None:
            _check_forced_tokens(forced_tokens, (batch_size, max_new_tokens), target.vocab_size)
            forced_tokens = forced_tokens.to(device, copy=True)
            if drafter is not None:
                self.drafter = ForcedTokensDrafter(drafter, forced_tokens, target.vocab_size, marks=())
        self._forced_tokens = forced_tokens
        self.trace.forced_places = getattr(self.drafter, "forced_places", None)
        self.verifier = ExactVerifier() if verifier is None else verifier
        self._part: Callable[[str], AbstractContextManager[Any]] = self.trace.phase if profile else nullcontext
        self.compiler = None if profile else compiler

        sizes = {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
        check_room("tokens", 8 * batch_size * (max_new_tokens + 1), sizes, device)
        # One column more than the result has: tokens that must not be kept are written there.
        filler = 0 if self.stops is None else int(self.stops[0])
        self._buffer = torch.full((batch_size, max_new_tokens + 1), filler, dtype=torch.int64, device=device)
        self._no_tokens = torch.zeros(batch_size, dtype=torch.int64, device=device)
        every_row = torch.ones(batch_size, dtype=torch.bool, device=device)
        self.state = DecodeState(
            self._buffer[:, :max_new_tokens], self._no_tokens, every_row, max_new_tokens, sampling, streams,
            row_tokens=None if row_tokens is None else row_tokens.clone(),
        )  # fmt: skip
        self._given, self._most_given = self._no_tokens, 0
        if forced_tokens is not None:
            self._buffer[:, :max_new_tokens].copy_(forced_tokens.clamp(min=0))
            is_known, ends = forced_tokens >= 0, torch.as_tensor(self.state.ends, device=device)
            self._give(torch.minimum(is_known.long().cumprod(1).sum(1), ends - 1))
            if self.ends_with_last_drawn:  # what is known behind it is fed to nobody
                places = torch.arange(1, max_new_tokens + 1, device=device)
                last = (places * (~is_known & (places <= ends.view(-1, 1)))).amax(1)
                self.state.row_tokens = torch.maximum(last, self._given + 1)
                assert self.trace.forced_places is not None
                self.trace.forced_places.left = ends - self.state.row_tokens
        self._skipped = self._no_tokens.clone()  # taken unverified before this step, which only `SkippingRun` does
        self.watch = FiniteWatch(batch_size, device)
        self.steps = 0
        self.in_place: Callable[[DecodeRun], AbstractContextManager[Any]] = nullcontext
        """Within it tensors may be replaced: where steps are graphs, they are copied back to where graphs look."""

    def _give(self, counts: Tensor) -> None:
        """The first `counts[b]` forced tokens of each row are given."""
        self._given, self._most_given = counts, int(counts.max())
        if self.trace.forced_places is None:
            self.trace.forced_places = ForcedPlaces(torch.zeros_like(self._buffer[:, :-1], dtype=torch.bool))
        self.trace.forced_places.given = counts.clone()

    def finish(self, on_step: OnStep | None = None) -> DecodeResult:
        """Start, and step until every row is finished. The trace times the phases "prefill" and "decode".

        Args:
            on_step: Called as `on_step(step, state)` after every target pass; step 0 is the prefill. It must not change
                `state`; reading a tensor's value there waits for the device.

        Raises:
            LogitsError: Logits of a row were not finite; found when all is decoded.
        """
        self.start()
        if on_step is not None:
            on_step(0, self.state)
        with self.trace.phase("decode"):
            # The slowest row gains at most the number that `step` returns, so for some time the host need not ask.
            # Only a stop token can end rows earlier.
            asks = self.may_stop or self.state.row_tokens is not None or self._forced_tokens is not None
            left = int(tokens_left(self.state)) if asks else self.state.max_new_tokens - 1
            step, read = self.steps_taken()
            while left > 0:
                gained = step()
                if not gained:
                    break
                left -= gained
                if on_step is not None:
                    on_step(self.steps, self.state)
                if self.may_stop:
                    on_host = read(tokens_left(self.state))
                    left = 1 if on_host is None else int(on_host)
                elif left <= 0:
                    left = int(tokens_left(self.state))
        return self.result()

    def result(self) -> DecodeResult:
        """What is decoded so far. Raises LogitsError as `finish`."""
        self.watch.check()
        self.trace.collect()
        tokens, lengths = self.state.tokens, self.state.lengths
        if self.compiler is not None:  # the graphs of the next run write there
            tokens, lengths = tokens.clone(), lengths.clone()
        return DecodeResult(tokens, lengths, self.trace)

    @torch.no_grad()
    def start(self) -> None:
        """Feed the prompts, draw the first tokens, and start the drafter."""
        state, every_row = self.state, self.state.active
        with self.trace.phase("prefill"):
            prompt = self.target.prefill()
            self._check_logits("prefill", prompt.logits, (len(self._buffer), "n"))
            given = self._feed_given() if self._most_given else None
            if given is not None:
                state.lengths, counts = self._given, self._given[:, None]
                last = torch.where(
                    counts[..., None] > 0, ragged.take(given.logits, (counts - 1).clamp(min=0)), prompt.logits[:, -1:]
                )
                prompt = replace(prompt, logits=last)
            # The first token follows a root alone, which stands for the prompt.
            root = TokenTree.chain(self._no_tokens[:, None])
            output = self._forced(TargetOutput(prompt.logits[:, -1:]), state.lengths[:, None])
            first = self._accept(Draft(root), output).next_tokens
            self._append(root, None, self._no_tokens, first)
            self.trace.record_prefill()
            if self.drafter is not None and state.max_new_tokens > 1:
                self.drafter.start(prompt, state)
                if given is not None:
                    self.drafter.observe_given(given, self._given, state)
        self.watch.note(prompt.logits[:, -1:], every_row[:, None], every_row)

    def _feed_given(self) -> TargetOutput:
        """Feed the given tokens. Returns what the target says about them, [B, P, ...]."""
        assert self._forced_tokens is not None
        tokens = self._forced_tokens[:, : self._most_given].clamp(min=0)
        tree = TokenTree.chain(tokens).clip(self._given - 1)
        output = self.target.forward(tree.tokens, tree.ancestor_mask(), tree.depth)
        self._check_logits("forward", output.logits, tokens.shape)
        self.target.commit(None, self._given)
        self.trace.passes_made += 1
        return output

    def _forced(self, output: TargetOutput, places: Tensor) -> TargetOutput:
        """The output, certain where a token is forced; `places` [B, n] int64 are those of its logits."""
        return output if self._forced_tokens is None else certain_where_forced(output, self._forced_tokens, places)

    @torch.no_grad()
    def step(self) -> int:
        """One verification step: propose, feed, judge, keep.

        Returns:
            The most tokens that any row can have gained; 0: every row had ended, and no pass was made.
        """
        self.steps += 1
        self.prepare()
        return self.perform()

    def steps_taken(self) -> tuple[Callable[[], int], DelayedRead]:
        """`step` of a run that has started, as a graph where there is a compiler, and how the host sees its rows end.

        Raises:
            ValueError: Its steps cannot be graphs, see `specdecode.graphs.static_step.StaticStep`.
        """
        if self.compiler is None:
            return self.step, DelayedRead(0)
        return self.compiler.step_of(self), DelayedRead(_LATE)

    def prepare(self) -> Hashable:
        """What the host decides about the next step, which may then be another graph: nothing here."""
        return None

    def perform(self) -> int:
        """`step` without what the host counts and decides, see `specdecode.graphs.static_step`."""
        with self._part("draft"):
            draft = self._propose()
        with self._part("target"):
            output = self._feed(draft.tree)
        with self._part("verify"):
            self.watch.note(output.logits, draft.tree.valid, self.state.active)
            verdict = self._accept(draft, output)
        with self._part("commit"):
            verdict = self._keep(draft.tree, verdict)
        with self._part("draft"):
            self._observe(draft, output, verdict)
        return draft.tree.max_depth + 1

    def _propose(self) -> Draft:
        """The drafter's tree, as far as rows have room; the newest token alone where there is no drafter."""
        if self.drafter is None:
            return Draft(TokenTree.chain(self.state.last_tokens()[:, None]))
        draft = self.drafter.propose(self.state)
        name, tokens, drawn_from = _name(self.drafter), draft.tree.tokens, draft.probabilities
        check_tensor(f"{name} must propose tokens", tokens, (torch.int64,), (len(self._buffer), "n"))
        for field, dtype in _OF_TREES.items():
            check_tensor(f"{name} must propose {field}", getattr(draft.tree, field), (dtype,), tokens.shape)
        if drawn_from is not None:
            dtype = drawn_from.dtype if drawn_from.is_floating_point() else torch.float32
            of_tree = (*tokens.shape, self.target.vocab_size)
            check_tensor(f"{name} must give probabilities", drawn_from, (dtype,), of_tree)
        return clip(draft, self.state)

    def _feed(self, tree: TokenTree) -> TargetOutput:
        """What the target says about every node."""
        self.log.width = tree.num_nodes
        output = self.target.forward(tree.tokens, tree.ancestor_mask(), tree.depth)
        self._check_logits("forward", output.logits, tree.tokens.shape)
        return self._forced(output, self.state.lengths[:, None] + tree.depth)

    def _check_logits(self, function: str, logits: Tensor, nodes: tuple[int | str, ...]) -> None:
        """Raises ValueError for logits of another shape than [*nodes, V], or another type."""
        must, wanted = f"{_name(self.target)}.{function} must give logits", (*nodes, self.target.vocab_size)
        check_tensor(must, logits, (torch.float32, torch.float64), wanted)

    def _accept(self, draft: Draft, output: TargetOutput) -> Verdict:
        """The verifier's decision."""
        verdict, name, rows = self.verifier.accept(draft, output, self.state), _name(self.verifier), len(self._buffer)
        check_tensor(f"{name} must give accepted", verdict.accepted, (torch.int64,), (rows,))
        check_tensor(f"{name} must give next_tokens", verdict.next_tokens, (torch.int64,), (rows,))
        check_tensor(f"{name} must give path", verdict.path, (torch.int64,), (rows, "k"))
        return verdict

    def _keep(self, tree: TokenTree, verdict: Verdict) -> Verdict:
        """Append, commit and record what stays. Returns the verdict, in which finished rows accept nothing."""
        counts = self.log.next_counts()
        accepted, kept = self._append(tree, _path(tree, verdict.path), verdict.accepted, verdict.next_tokens, counts)
        verdict = replace(verdict, accepted=accepted)
        self._commit(tree, verdict, kept)
        self.log.record(StepRecord(counts, verdict.relaxed))
        return verdict

    def _commit(self, tree: TokenTree, verdict: Verdict, kept: Tensor) -> None:
        """Keep the cache entries of the root and the accepted nodes, `kept` [B] of each row."""
        self.target.commit(_path(tree, verdict.path), kept)

    def _observe(self, draft: Draft, output: TargetOutput, verdict: Verdict) -> None:
        """Show the drafter what came of its draft."""
        if self.drafter is not None:
            self.drafter.observe(draft, output, verdict, self.state)

    def _append(
        self,
        tree: TokenTree,
        path: Tensor | None,
        accepted: Tensor,
        next_tokens: Tensor | None,
        counts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Write nodes of a tree, and the token behind them, behind each active row, and update the state.

        The state gets new tensors; its old ones, except the token buffer, stay as they were.

        Args:
            tree: the drafted tree.
            path: [B, k] int64 nodes, the root first; None: a chain's.
            accepted: [B] int64, how many nodes below the root, at most what the row has room for.
            next_tokens: [B] int64; None: there is none.
            counts: see `DecodeTrace.next_counts`, which are written.

        Returns:
            [B] int64 each: the nodes that stay (none in finished rows), and with the token behind them, or, where there
            is none, the tokens written: fewer where a stop token came first.
        """
        state = self.state
        at_once = fused_ops.keep(
            *(tree.tokens, tree.valid, path, accepted, next_tokens, self._skipped, self.stops, state.active),
            *(state.lengths, self._buffer, counts),
        )
        if at_once is not None:
            (stays, kept, emitted, lengths, newest), active, state.least_room = at_once
        else:
            going_on, stays = state.active, accepted * state.active
            kept = stays if next_tokens is None else stays + going_on
            tokens = new_tokens(tree, path, stays, next_tokens)
            emitted, active = self._write(tokens, kept)
            lengths = state.lengths + emitted
            active, newest, state.least_room = active & (lengths < state.max_new_tokens), None, None
            if counts is not None:
                drafted = tree.valid[:, 1:].sum(1)
                torch.stack(
                    [going_on.long(), drafted, torch.minimum(stays, emitted), emitted, self._skipped], out=counts
                )
        if state.row_tokens is not None:  # the draft was clipped at the end of each row
            active, state.least_room = active & (lengths < state.row_tokens), None
        state.lengths, state.active, state.newest = lengths, active, newest
        return stays, emitted if next_tokens is None else kept

    def _write(self, tokens: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Write the first `counts[b]` of `tokens[b]` behind each row, up to a stop token. Returns how many were
        written [B], and which rows go on [B]."""
        state, stops = self.state, self.stops
        offsets, emitted, active = torch.arange(tokens.shape[1], device=tokens.device), counts, state.active
        if stops is not None:
            is_stop = torch.isin(tokens, stops) & (offsets < emitted[:, None])
            has_stop, first_stop = is_stop.max(dim=1)
            emitted, active = torch.where(has_stop, first_stop + 1, emitted), active & ~has_stop
        columns = (state.lengths[:, None] + offsets).masked_fill_(offsets >= emitted[:, None], state.max_new_tokens)
        self._buffer.scatter_(1, columns, tokens)
        return emitted, active

    @property
    def players(self) -> tuple[object, ...]:
        """All that keep something about rows: the target and, where they are asked, the others."""
        return self.target, self.drafter if self.state.max_new_tokens > 1 else None

    def end_rows(self, first: int) -> None:
        """End the rows from `first` on, which nobody asked for, before the first step."""
        rows = torch.arange(self.target.batch_size, device=self.target.device)
        self.state.active, self.state.least_room = self.state.active & (rows < first), None

    @torch.no_grad()
    def replace_rows(self, rows: Tensor, other: DecodeRun) -> None:
        """Give rows to other requests, while the rest goes on as if nothing had happened.

        Args:
            rows: [k] int64, distinct; whatever they held is forgotten.
            other: A run of k rows and the same settings that has just started. It is used up.

        Raises:
            ValueError: A player that cannot, by name; see `specdecode.roles.RowReplacing`.
        """
        with self.in_place(self):
            for player, theirs in zip(self.players, other.players, strict=True):
                if player is not None:
                    replace_rows(player, rows, theirs)
            state = self.state
            self._buffer[rows] = other._buffer
            state.lengths = state.lengths.index_copy(0, rows, other.state.lengths)
            state.active = state.active.index_copy(0, rows, other.state.active)
            if state.row_tokens is not None:
                state.row_tokens[rows] = other.state.ends
            self._replace_forced(rows, other)
            state.newest = state.least_room = None
            state.streams = state.streams.with_rows(rows, other.state.streams)
            self.watch.replace_rows(rows, other.watch)
        self.trace.add_passes(other.trace)

    def _replace_forced(self, rows: Tensor, other: DecodeRun) -> None:
        if self._forced_tokens is None and other._forced_tokens is None:
            return
        if self._forced_tokens is None or other._forced_tokens is None:
            raise ValueError(
                "forced_tokens must be given for all rows of a batch, those that join included, or for none"
            )
        self._forced_tokens[rows] = other._forced_tokens  # in place: a captured step reads it where it lies
        mine, theirs = self.trace.forced_places, other.trace.forced_places
        assert mine is not None and theirs is not None
        for ours, others in ((mine.given, theirs.given), (mine.left, theirs.left)):
            if ours is not None and others is not None:
                ours[rows] = others


def stop_tokens(stop_token: int | Sequence[int] | None, vocab_size: int, device: torch.device) -> Tensor | None:
    """[s] int64, the tokens that end a row; None for none.

    Raises:
        ValueError: A token outside the vocabulary.
    """
    listed = [] if stop_token is None else list(stop_token) if isinstance(stop_token, Sequence) else [stop_token]
    for token in listed:
        if not is_integer(token) or not 0 <= token < vocab_size:
            raise ValueError(f"stop_token must lie in [0, {vocab_size}), got {token!r}")
    return torch.tensor(listed, device=device) if listed else None


def clip(draft: Draft, state: DecodeState) -> Draft:
    """The draft without useless nodes: the deepest useful one is a row's last but one token, whose logits give the
    last. Finished rows become padding."""
    if state.least_room is not None and state.least_room >= draft.tree.max_depth:
        return draft  # as nearly always
    room = torch.where(state.active, state.ends - 1 - state.lengths, -1)
    return replace(draft, tree=draft.tree.clip(room))


def _path(tree: TokenTree, path: Tensor) -> Tensor | None:
    """The accepted path; None for a chain, whose nodes stand in order."""
    return None if tree.is_chain else path


def new_tokens(tree: TokenTree, path: Tensor | None, accepted: Tensor, next_tokens: Tensor | None) -> Tensor:
    """[B, k]: the accepted tokens of a path, then the next one, if there is one; what follows means nothing."""
    drafted = tree.tokens[:, 1:] if path is None else tree.tokens.gather(1, path[:, 1:])
    if next_tokens is None:
        return drafted
    following = next_tokens[:, None]
    return torch.cat([drafted, following], dim=1).scatter(1, accepted[:, None], following)


def tokens_left(state: DecodeState) -> Tensor:
    """Tokens that the slowest unfinished row still needs, int64 []; 0 when all are finished."""
    if state.tokens_left is not None:
        return state.tokens_left
    return torch.where(state.active, state.ends - state.lengths, 0).max()


class DelayedRead:
    """Numbers of a device that the host reads some calls late, so that it does not wait.

    Args:
        late: After how many further calls; 0: at once.
    """

    def __init__(self, late: int) -> None:
        self._late = late
        self._waiting: deque[tuple[Tensor, Any]] = deque()

    def __call__(self, numbers: Tensor) -> Tensor | None:
        """The numbers of `late` calls ago, on the CPU; None before there was such a call."""
        if not self._late:
            return numbers
        copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=numbers.is_cuda)
        copy.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event() if numbers.is_cuda else None
        if event is not None:
            event.record(torch.cuda.current_stream(numbers.device))  # which need not be the current device
        self._waiting.append((copy, event))
        if len(self._waiting) <= self._late:
            return None
        copy, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        return copy

    def forget(self) -> None:
        """Drop the numbers of earlier calls."""
        self._waiting.clear()


_LATE = 3
"""Steps after which the host reads what a graph has computed."""


_OF_TREES = {"parents": torch.int64, "depth": torch.int64, "valid": torch.bool}
"""What a drafter proposes beside tokens; kernels read it where it lies."""


def _name(player: object) -> str:
    return type(player).__name__


def _check_forced_tokens(forced_tokens: Tensor, shape: tuple[int, int], vocab_size: int) -> None:
    """Raises ValueError for all but int64 tokens of this shape, -1 where none is forced."""
    check_tensor("forced_tokens must be", forced_tokens, (torch.int64,), shape)
    if int(forced_tokens.min()) < -1 or int(forced_tokens.max()) >= vocab_size:
        raise ValueError(f"forced_tokens must be from 0 to {vocab_size - 1}, or -1 where none is forced")


def _check_row_tokens(row_tokens: Tensor, batch_size: int, most: int) -> None:
    """Raises ValueError for what is no number of tokens, 1 to `most`, for each row."""
    check_tensor("row_tokens must be", row_tokens, (torch.int64,), (batch_size,))
    if batch_size and not 1 <= int(row_tokens.min()) <= int(row_tokens.max()) <= most:
        raise ValueError(f"row_tokens must be from 1 to max_new_tokens ({most}), got {row_tokens.tolist()}")
