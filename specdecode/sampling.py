"""Tokens drawn from logits: guidance, temperature, top-k, top-p, and random numbers.

Belongs here: the one function that turns logits into the distribution a token is drawn from (plain decoding, acceptance
tests and drafters must all use it), and random streams that belong to a row and not to a batch. Does not belong here:
drafters, verifiers, and anything that knows what a token stands for.

A random number is a function of (row key, tag, counter, element) alone. So a row draws the same numbers alone or beside
others. Drafter and verifier use different tags and never share a number. The noise of output position `i` is the same
however the position is reached, so exact speculative sampling reproduces plain sampling draw for draw. Tokens are
chosen by an exponential race, `argmax(p / e)`: with shared noise the winner is stable under small changes of `p`, which
coupled drafting needs, and no cumulative sum loses precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdecode.kernels import fused_ops
from specdecode.kernels.fused_ops import Ahead
from specdecode.kernels.in_graph import in_graph


@dataclass(frozen=True)
class SamplingConfig:
    """How a token is drawn from logits. The order is temperature, top-k, top-p, softmax.

    Args:
        temperature: Divides the logits; 0 means greedy (argmax, no random number is used), else 0.01 to 100: beyond
            that float32 logits overflow or become equal.
        top_k: Keep the `top_k` largest logits and every logit equal to the smallest of them; 0 keeps all.
        top_p: Keep the most probable tokens that top-k left up to and including the one at which their cumulative
            probability exceeds `top_p`; 1 keeps all.

    Raises:
        ValueError: A field is out of range; the message names it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not _is_real(self.temperature) or not (self.temperature == 0 or 0.01 <= self.temperature <= 100):
            raise ValueError(f"temperature must be 0 (greedy) or between 0.01 and 100, got {self.temperature!r}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, Integral) or not 0 <= self.top_k < 2**31:
            raise ValueError(f"top_k must be an integer from 0 (keeps every token) to 2**31 - 1, got {self.top_k!r}")
        object.__setattr__(self, "top_k", int(self.top_k))  # also of numpy's integers
        if not _is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be a number in (0, 1] (1 keeps every token), got {self.top_p!r}")

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0

    def tempered(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature; as they are where it is 0."""
        return logits if self.temperature in (0, 1) else logits / self.temperature


@dataclass(frozen=True)
class SamplingInGraph(SamplingConfig):
    """The same, with the temperature, which is not 0, as a float32 tensor []: one graph serves all temperatures."""

    temperature: Any = None

    graph_state = ("temperature",)

    def __post_init__(self) -> None:
        """Nothing to check."""

    @property
    def is_greedy(self) -> bool:
        """No."""
        return False

    def tempered(self, logits: Tensor) -> Tensor:
        """Logits divided by the temperature."""
        return logits / self.temperature

    @classmethod
    def of(cls, config: SamplingConfig, device: torch.device) -> SamplingInGraph:
        """A configuration that is not greedy, for graphs."""
        return cls(torch.tensor(float(config.temperature), device=device), config.top_k, config.top_p)


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def apply_guidance(conditional: Tensor, unconditional: Tensor | None, guidance_scale: float) -> Tensor:
    """Classifier-free guidance on raw logits: `unconditional + guidance_scale * (conditional - unconditional)`.

    Args:
        conditional: [..., V] logits given the condition, any float type.
        unconditional: [..., V] logits given the null condition; may be None where guidance is off.
        guidance_scale: Guidance is off at values <= 1: the conditional logits are returned.

    Returns:
        [..., V] float32 logits, before temperature and any filter.

    Raises:
        ValueError: Guidance is on and `unconditional` is None.
    """
    if guidance_scale <= 1:
        return conditional.float()
    if unconditional is None:
        raise ValueError(f"unconditional logits are needed at guidance_scale {guidance_scale}; pass them or use 1")
    return guide(conditional, unconditional, guidance_scale)


def guide(conditional: Tensor, unconditional: Tensor, guidance_scale: float | Tensor) -> Tensor:
    """`apply_guidance` where it is known to be on; the scale may be a tensor [], for compiled code."""
    unconditional = unconditional.float()
    return unconditional + guidance_scale * (conditional.float() - unconditional)


def logits_to_probabilities(logits: Tensor, config: SamplingConfig) -> Tensor:
    """The distribution tokens are drawn from.

    Args:
        logits: [..., V] raw (already guided) logits, any float type.
        config: Temperature and filters; at temperature 0 the result is one-hot at the argmax.

    Returns:
        [..., V] float32, each row summing to one; exactly 0 at filtered tokens.
    """
    logits = logits if logits.dtype == torch.float32 else logits.float()  # which would be a call, too
    if config.is_greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return filtered(logits, config).softmax(-1)


def filtered(logits: Tensor, config: SamplingConfig) -> Tensor:
    """Logits [..., V] float32 behind temperature and filters, minus infinity at filtered tokens; greedy: unchanged."""
    if config.is_greedy:
        return logits
    logits = config.tempered(logits)
    if 0 < config.top_k < logits.shape[-1]:
        smallest_kept = logits.topk(config.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < smallest_kept, -math.inf)
    if config.top_p < 1:
        # Stable, so that equal logits are cut in index order on every device.
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        cumulative = ordered.softmax(-1).cumsum(-1)
        dropped = torch.zeros_like(order, dtype=torch.bool)
        dropped[..., 1:] = cumulative[..., :-1] > config.top_p  # a token goes if those before it already exceed top_p
        logits = logits.masked_fill(torch.zeros_like(dropped).scatter_(-1, order, dropped), -math.inf)
    return logits


@fused_ops.fused(fused_ops.largest)
def largest(values: Tensor) -> Tensor:
    """[...] int64: where the largest entry of each row of float32 [..., V] stands, the first of equal ones.

    On a CPU a kernel searches, or numpy, in a fifth of torch's time.
    """
    if values.device.type != "cpu" or in_graph():
        return values.argmax(-1)
    return torch.from_numpy(np.asarray(values.detach().numpy().argmax(-1)))


def sample(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Exponential race: the token whose arrival `noise / probability` comes first.

    With independent Exp(1) noise the winner has exactly the given distribution; probabilities need not be normalised.

    Args:
        probabilities: [..., V] non-negative, at least one entry of each row positive.
        noise: [..., V] positive Exp(1) numbers, e.g. from `RandomStreams.exponential`.

    Returns:
        [...] int64 token indices; never one of probability zero.
    """
    return largest(probabilities / noise)


def draw_tokens(logits: Tensor, config: SamplingConfig, streams: RandomStreams, counters: Tensor, tag: int) -> Tensor:
    """One token for every row of logits; greedy configurations use no random number.

    Args:
        logits: [B, n, V] raw (already guided) logits.
        config: Temperature and filters.
        streams: One stream per row of the batch.
        counters: [B, n] int64, the output position each token is drawn for.
        tag: The purpose of the draw, a `Tag` or another integer.

    Returns:
        [B, n] int64.
    """
    if config.is_greedy:
        return largest(logits)
    return streams.race(logits_to_probabilities(logits, config), tag, counters)


class Tag(IntEnum):
    """The purpose of a random number. Numbers under different tags are independent."""

    TARGET = 1  # the token the target would draw at an output position
    DRAFT = 2  # a drafter's guesses
    ACCEPT = 3  # acceptance tests
    SKIP = 4  # which drafted path is taken unverified
    COUPLE = 5  # whether a drafter's guess stays as it was
    BRANCH = 6  # guesses beside a drafter's first


# SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the state advances by
# an odd constant near 2^64 / golden ratio, and each state is scrambled by a bijection of two multiply-xorshift rounds.
_OTHERS = 1 << 16
"""Tags from here on make streams instead of numbers."""
_MASK64 = (1 << 64) - 1
_ADVANCE = 0x9E3779B97F4A7C15
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift of int64: the sign bits an arithmetic shift brings in are cleared."""
    return (value >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _scramble_(value: Tensor) -> Tensor:
    """SplitMix64's output function, in place; products wrap modulo 2^64."""
    value.bitwise_xor_(_shift_right(value, 30)).mul_(_signed(_MULTIPLY_1))
    value.bitwise_xor_(_shift_right(value, 27)).mul_(_signed(_MULTIPLY_2))
    return value.bitwise_xor_(_shift_right(value, 31))


def _states(tag_keys: Tensor, counters: Tensor) -> Tensor:
    """A scrambled 64-bit state per row, tag and counter: of keys [B] and counters [B, ...], int64 like these."""
    return _scramble_((counters * _signed(_ADVANCE)).add_(tag_keys.view(-1, *[1] * (counters.ndim - 1))))


@fused_ops.fused(fused_ops.uniform)
def _uniform(tag_keys: Tensor, counters: Tensor, elements: Tensor, size: int | None) -> Tensor:
    """`RandomStreams.uniform` of a tag's keys [B] and of what is added for each element, [size or 1]."""
    states = _states(tag_keys, counters)
    bits = states.add_(elements) if size is None else states[..., None] + elements
    # Odd numbers of 53 bits are exact in float64 and exclude 0 and 1, where logarithms and divisions break.
    bits = _shift_right(_scramble_(bits), 11).bitwise_or_(1)
    return bits.to(torch.float64).mul_(2.0**-53)


def _exponential(tag_keys: Tensor, counters: Tensor, elements: Tensor, size: int | None) -> Tensor:
    """The same of `RandomStreams.exponential`."""
    return _uniform(tag_keys, counters, elements, size).log_().neg_().float()


def _covers(ahead: Ahead, counters: Tensor, count: int) -> bool:
    """Whether `count` counters from each of `counters` [B, ...] on are among those whose numbers were made."""
    if counters.numel() == 1:  # to look at two numbers takes less than a call
        return 0 <= int(counters) - int(ahead.first) <= ahead.numbers.shape[1] - count
    places = counters.reshape(len(ahead.first), -1) - ahead.first[:, None]
    return bool(((places >= 0) & (places + count <= ahead.numbers.shape[1])).all())


_REVISITED = (Tag.TARGET, Tag.ACCEPT)
"""Tags whose numbers are read position after position, and often twice."""
_POSITIONS_AHEAD = 32
_NUMBERS_AHEAD = 2**18  # over all rows, at most


class RandomStreams:
    """One reproducible stream of random numbers per row of a batch.

    Bits are the same on every device. The logarithm of `exponential` may differ between devices in its last float64
    bit, so a float32 result very rarely differs by one unit in the last place.

    Args:
        keys: [B] int64, one key per row; rows with equal keys draw equal numbers.

    Raises:
        ValueError: `keys` has another shape or type.
    """

    graph_state = ("keys",)

    def __init__(self, keys: Tensor) -> None:
        if keys.ndim != 1 or keys.dtype != torch.int64:
            raise ValueError(f"keys must be int64 of shape [batch], got {keys.dtype} of shape {list(keys.shape)}")
        self.keys = keys
        self._tag_keys: dict[int, Tensor] = {}
        self._elements: dict[int, Tensor] = {}
        # Numbers drawn ahead, by tag, kind of number and size.
        self._ahead: dict[tuple[int, str, int | None], Ahead] = {}

    @classmethod
    def from_generators(
        cls, generators: Sequence[torch.Generator | None], device: torch.device | str = "cpu"
    ) -> RandomStreams:
        """Draw one key from each generator, in order (None: torch's default generator).

        The same generator may appear several times; each appearance draws a new key and so a different stream.

        torch's generator of a CPU reads the last 32 bits of its seed; those above them are mixed into its keys here.

        Raises:
            ValueError: `generators` is empty, or holds something else.
        """
        if len(generators) == 0:
            raise ValueError("generators must hold one torch.Generator per row, got none")
        for generator in generators:
            if generator is not None and not isinstance(generator, torch.Generator):
                raise ValueError(f"generators must be torch.Generator or None, got {generator!r}")
        keys = []
        for generator in generators:
            source = torch.default_generator if generator is None else generator
            key = torch.randint(-(1 << 63), (1 << 63) - 1, (1,), generator=source, device=source.device)
            if source.device.type == "cpu" and (above := source.initial_seed() % (1 << 64) >> 32):
                key ^= _signed(above * _ADVANCE)
            keys.append(key.to(device))
        return cls(torch.cat(keys))

    @classmethod
    def from_seeds(cls, seeds: Sequence[int], device: torch.device | str = "cpu") -> RandomStreams:
        """One stream per integer seed; equal seeds give equal streams.

        Raises:
            ValueError: `seeds` is empty, or holds what is no integer of 64 bits, with a sign or without.
        """
        if len(seeds) == 0:
            raise ValueError("seeds must hold one integer per row, got none")
        for seed in seeds:
            if isinstance(seed, bool) or not isinstance(seed, Integral) or not -(1 << 63) <= seed < 1 << 64:
                raise ValueError(f"seeds must be integers from -2**63 to 2**64 - 1, got {seed!r:.40}")
        return cls(torch.tensor([_signed(int(seed)) for seed in seeds], dtype=torch.int64, device=device))

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return self.keys.shape[0]

    def part(self, first: int, last: int) -> RandomStreams:
        """The streams `first` to `last - 1`."""
        return RandomStreams(self.keys[first:last])

    def with_rows(self, rows: Tensor, other: RandomStreams) -> RandomStreams:
        """These streams with those of `rows` [k] int64 replaced by another's k streams."""
        return RandomStreams(self.keys.index_copy(0, rows, other.keys))

    def another(self, number: int) -> RandomStreams:
        """Further streams of the same rows, independent of these; `number` is at least 1."""
        return RandomStreams(self.key_of(_OTHERS + number))

    def key_of(self, tag: int) -> Tensor:
        """[B] int64, from which the numbers of a tag are made."""
        if in_graph() or tag not in self._tag_keys:
            # Two scrambles, so that neither small seeds nor small tags lie near one another in the state space.
            tag_keys = _scramble_(self.keys + _signed(_ADVANCE)) + _signed((tag + 1) * _MULTIPLY_2)
            tag_keys = _scramble_(tag_keys)
            if in_graph():
                return tag_keys
            self._tag_keys[tag] = tag_keys
        return self._tag_keys[tag]

    def _steps(self, size: int) -> Tensor:
        """[size] int64, the offset of each element of a counter."""
        if in_graph() or size not in self._elements:
            steps = torch.arange(1, size + 1, dtype=torch.int64, device=self.keys.device) * _signed(_ADVANCE)
            if in_graph():
                return steps
            self._elements[size] = steps
        return self._elements[size]

    def _draw(self, numbers: Callable[..., Tensor], tag: int, counters: Tensor, size: int | None) -> Tensor:
        return numbers(self.key_of(tag), counters, self._steps(1 if size is None else size), size)

    def uniform(self, tag: int, counters: Tensor, size: int | None = None) -> Tensor:
        """Uniform numbers strictly between 0 and 1: odd multiples of 2^-53, symmetric about one half.

        Args:
            tag: The purpose, a `Tag` or another integer.
            counters: [B, ...] int64, usually output positions.
            size: How many independent numbers per counter; None for one, without a dimension for it.

        Returns:
            float64 of the shape of `counters`, or with one more dimension of length `size`.

        Raises:
            ValueError: `counters` are not int64, or not of as many rows as there are streams.
        """
        return self._drawn(_uniform, tag, counters, size, tag in _REVISITED)

    def exponential(self, tag: int, counters: Tensor, size: int, revisited: bool = False) -> Tensor:
        """Exp(1) numbers for `sample`.

        Computed in float64: the smallest ones decide the race, and in float32 they would be few and coarse.

        Args:
            tag: The purpose, a `Tag` or another integer.
            counters: [B, ...] int64, usually output positions.
            size: Numbers per counter, usually the vocabulary size.
            revisited: Whether the same counters, and those behind them, will be read again under this tag.

        Returns:
            [B, ..., size] float32, positive and finite.
        """
        return self._drawn(_exponential, tag, counters, size, revisited or tag in _REVISITED)

    @fused_ops.fused(fused_ops.race)
    def race(self, probabilities: Tensor, tag: int, counters: Tensor, revisited: bool = False) -> Tensor:
        """`sample` with the exponential numbers of a tag and counters, which on a CPU are read where they lie.

        Args:
            probabilities: [B, n, V].
            tag, revisited: As for `exponential`.
            counters: [B, n] int64.

        Returns:
            [B, n] int64 tokens.
        """
        return sample(probabilities, self.exponential(tag, counters, probabilities.shape[-1], revisited))

    def numbers(
        self, tag: int, counters: Tensor, size: int | None, count: int = 1, revisited: bool = False
    ) -> Ahead | None:
        """Numbers for the kernels: those of `count` counters from each of `counters` [B] or [B, n] on are among them.

        Exponential ones [B, W, size], or uniform ones [B, W] where `size` is None. None where the counters of a row lie
        so far apart that most of the numbers would go unread.
        """
        self._check(counters)
        numbers, revisited = _uniform if size is None else _exponential, revisited or tag in _REVISITED
        return self._made_ahead(numbers, tag, counters, size, count, revisited)

    def _check(self, counters: Tensor) -> None:
        """Raises ValueError for counters of other rows or another type: a row's numbers are those of its key."""
        if counters.shape[:1] != self.keys.shape or counters.dtype != torch.int64:
            raise ValueError(
                f"counters must be int64 of shape [{self.batch_size}, ...], a row for each stream, got "
                f"{counters.dtype} of shape {list(counters.shape)}"
            )

    def _drawn(
        self, numbers: Callable[..., Tensor], tag: int, counters: Tensor, size: int | None, revisited: bool
    ) -> Tensor:
        """Numbers of a tag and counters. On a CPU, revisited ones are made ahead for the next counters and kept: a call
        costs ten times as much as the numbers of one position."""
        self._check(counters)
        on_cpu = self.keys.device.type == "cpu" and not in_graph()
        if not revisited or not on_cpu or not counters.numel():
            return self._draw(numbers, tag, counters, size)
        ahead = self._made_ahead(numbers, tag, counters, size)
        if ahead is None:
            return self._draw(numbers, tag, counters, size)
        places = counters.reshape(self.batch_size, -1) - ahead.first[:, None]
        rows = torch.arange(self.batch_size)[:, None]
        return ahead.numbers[rows, places].view(*counters.shape, *ahead.numbers.shape[2:])

    def _made_ahead(
        self, numbers: Callable[..., Tensor], tag: int, counters: Tensor, size: int | None, count: int = 1,
        revisited: bool = True,
    ) -> Ahead | None:  # fmt: skip
        """Numbers of consecutive counters, kept where they are revisited. None where counters lie so far apart, as in
        several lines at once, that most numbers between would go unread."""
        key = tag, numbers.__name__, size
        kept = self._ahead.get(key)
        if kept is None or not _covers(kept, counters, count):
            first, last = counters.reshape(self.batch_size, -1).aminmax(dim=1)
            width = int((last - first).max()) + count
            if width - count >= 2 * (counters.numel() // self.batch_size):
                return None
            if revisited:
                width += min(width + _POSITIONS_AHEAD, _NUMBERS_AHEAD // (self.batch_size * (size or 1)))
            kept = Ahead(first, self._draw(numbers, tag, first[:, None] + torch.arange(width), size))
            if revisited:
                self._ahead[key] = kept
        return kept
