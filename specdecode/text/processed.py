"""Exact verification behind logits processors, each applied exactly where plain decoding applies it.

Belongs here: walking down a chain with processed logits, and keeping scores. Does not belong here: which processors a
call wants (`specdecode.text.generate_arguments`), and the processors.

A processor (transformers' `LogitsProcessor`) changes the logits of the next token by the tokens so far: a penalty for
repetition, a grammar. So the logits of a drafted place are processed only when every token before it has been accepted,
and one place after the other: a processor sees the texts that plain decoding would show it, each once, in their order,
and never one that the model would not have said. Places behind the first rejection are not processed.

Rows of a batch have their own lengths here. A processor is called with all rows of one length, [B, length] as in plain
decoding, so that it finds row b at place b; its scores for rows of another length are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import SamplingConfig, Tag, draw_tokens, filtered, logits_to_probabilities, sample
from specdecode.verifiers.exact import chain_length, chain_path, check_chain, residual

Processors = Callable[[Tensor, Tensor], Tensor]
"""A function that processes logits [B, V] float32 of the token after each text [B, length] int64."""


class Texts:
    """The tokens of all rows: the prompts, then what was decoded and drafted.

    Args:
        prompts: [B, T] int64.
        pad_token: stands behind the end of shorter rows.
    """

    def __init__(self, prompts: Tensor, pad_token: int) -> None:
        self.prompts, self.pad_token = prompts, pad_token

    def of(self, tokens: Tensor, counts: Iterable[int], rows: Iterable[int]) -> Iterator[tuple[Tensor, list[int]]]:
        """The texts of some rows, all of one length at a time.

        Args:
            tokens: [B, n] int64, behind the prompts.
            counts: for every row how many of its tokens count.
            rows: whose texts are wanted.

        Yields:
            Texts [B, length] int64, and the numbers of the wanted rows of that length.
        """
        listed, by_count = list(counts), defaultdict(list)
        for row in rows:
            by_count[listed[row]].append(row)
        for count, members in sorted(by_count.items()):
            there = tokens[:, :count]
            if any(other < count for other in listed):
                known = torch.tensor(listed, device=tokens.device)[:, None]
                is_known = torch.arange(count, device=tokens.device) < known
                there = there.masked_fill(~is_known, self.pad_token)
            yield torch.cat([self.prompts, there], 1), members


class Scores:
    """Logits of every token that was decided, as transformers' `scores` and `logits`.

    A row that has ended says the pad token for certain: its logits are minus infinity elsewhere.

    Args:
        pad_token: fills up rows that ended.
        sampling: temperature and filters, which `scores` have in them.

    Attributes:
        scores: for each token behind the prompts, processed logits [B, V] float32.
        logits: the same before processors.
    """

    def __init__(self, pad_token: int, sampling: SamplingConfig) -> None:
        self.pad_token, self.sampling = pad_token, sampling
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []

    def keep(self, place: int, rows: list[int], processed: Tensor, logits: Tensor) -> None:
        """Keep [B, V], by which `rows` decided token number `place` behind their prompts."""
        for kept, values in ((self.scores, filtered(processed, self.sampling)), (self.logits, logits)):
            while len(kept) <= place:
                nothing = torch.full_like(values, -torch.inf)
                nothing[:, self.pad_token] = 0
                kept.append(nothing)
            kept[place][rows] = values[rows]

    def cut(self, lengths: list[int]) -> None:
        """Drop what was decided behind the end of each row."""
        for kept in (self.scores, self.logits):
            del kept[max(lengths) :]
            for place, values in enumerate(kept):
                for row, length in enumerate(lengths):
                    if place >= length:
                        values[row] = -torch.inf
                        values[row, self.pad_token] = 0


class ProcessedVerifier:
    """The exact rule for chains, over processed logits. Waits for the device at every place.

    Without processors, its tokens are those of `ExactVerifier`.

    Args:
        processors: applied to the logits of every token; None: none are.
        texts: the prompts.
        scores: where logits are kept; None: nowhere.
    """

    exact = True

    def __init__(self, processors: Processors | None, texts: Texts, scores: Scores | None = None) -> None:
        self.processors, self.texts, self.scores = processors, texts, scores

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Judge a chain, place after place.

        Raises:
            ValueError: the draft is no chain.
        """
        check_chain("ProcessedVerifier", draft)
        tree, length = draft.tree, chain_length(draft.tree)
        lengths, going_on = state.lengths.tolist(), state.active.tolist()
        # Behind each row's tokens those of its chain, whose root is the newest of them.
        tokens = torch.zeros(len(lengths), max(lengths) + length + 1, dtype=torch.int64, device=tree.device)
        tokens[:, : max(lengths)] = state.tokens[:, : max(lengths)]
        places = state.lengths[:, None] + torch.arange(length, device=tree.device)
        tokens.scatter_(1, places, tree.tokens[:, 1 : length + 1])
        next_tokens, accepted = torch.zeros_like(state.lengths), torch.zeros_like(state.lengths)
        rows = [row for row, goes_on in enumerate(going_on) if goes_on]
        for level in range(length + 1):
            if not rows:
                break
            counts = (state.lengths + accepted).tolist()  # of rows that go on, `level` more than they had
            logits = self._processed(output.logits[:, level], tokens, counts, rows)
            chosen, passes = _decide(logits, draft, level, level < length, state)
            descends = passes.tolist()
            ended = torch.tensor([row for row in rows if not descends[row]], dtype=torch.int64, device=tree.device)
            next_tokens[ended] = chosen[ended]
            rows = [row for row in rows if descends[row]]
            accepted[torch.tensor(rows, dtype=torch.int64, device=tree.device)] += 1
        return Verdict(chain_path(tree), accepted, next_tokens)

    def _processed(self, logits: Tensor, tokens: Tensor, counts: list[int], rows: list[int]) -> Tensor:
        """[B, V]: processed logits of `rows`; the others' are as they were.

        Args:
            logits: [B, V] of the token behind the first `counts[b]` of `tokens` [B, n].

        Raises:
            ValueError: no token of a row is left.
        """
        processed = logits.clone()
        for texts, members in self.texts.of(tokens, counts, rows):
            result = self.processors(texts, logits.clone()) if self.processors else logits
            forbidden = (result[members].amax(-1) == -torch.inf) & logits[members].isfinite().all(-1)
            if bool(forbidden.any()):
                row = members[int(forbidden.nonzero()[0])]
                raise ValueError(
                    f"the settings of logits forbid every token behind token {counts[row]} of row {row}; leave one, in "
                    f"suppress_tokens, bad_words_ids, or a processor of your own"
                )
            processed[members] = result[members].to(processed.dtype)
            if self.scores is not None:
                self.scores.keep(counts[members[0]], members, processed, logits)
        return processed


def _decide(logits: Tensor, draft: Draft, level: int, has_child: bool, state: DecodeState) -> tuple[Tensor, Tensor]:
    """The token that ends each row's chain at this node, [B], and whether the child is accepted instead, [B].

    Args:
        logits: [B, V] processed, behind node `level`.
        has_child: whether the chain may go on behind that node.
    """
    tree, counters, node = draft.tree, state.lengths + level, level + has_child
    child, follows = tree.tokens[:, node], tree.valid[:, node] & has_child
    if draft.probabilities is None or state.sampling.is_greedy:
        token = draw_tokens(logits[:, None], state.sampling, state.streams, counters[:, None], Tag.TARGET)[:, 0]
        return token, follows & (token == child)
    target, drawn_from = logits_to_probabilities(logits, state.sampling), draft.probabilities[:, node]
    threshold = state.streams.uniform(Tag.ACCEPT, counters)
    proposed, own = (values.gather(1, child[:, None])[:, 0] for values in (drawn_from, target))
    passes = follows & (threshold * proposed < own)
    left = torch.where(follows[:, None], residual(target, drawn_from), target)
    noise = state.streams.exponential(Tag.TARGET, counters, left.shape[-1])
    return sample(left, noise), passes
