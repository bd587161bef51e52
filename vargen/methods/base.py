"""What a decoding method is: checked settings that say how much is drafted and make the players of a run.

Belongs here: what all methods share, and the protocols between a method, a model and a tuner. Does not belong here: any
method (one file each, beside this one), any model (a method asks for what `Components` offers and knows nobody who
offers it), and how a player works (`specdecode`). Importing this imports no torch: players are imported where they are
built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from specdecode.draft_size import DraftSize, DraftSizer
    from specdecode.drafters.draft_model import DraftModel
    from specdecode.drafters.eagle import DraftHead
    from specdecode.roles import Drafter, Schedule, Target, Verifier

Auto = Literal["auto"]
AUTO: Auto = "auto"
"""The default of every draft size; `ImageMethodConfig` says what it stands for."""

LARGEST = 1_000_000
"""Of a setting of which nothing else is known; more of anything here means nothing."""

AnyConfig = TypeVar("AnyConfig", bound="MethodConfig")
Network = TypeVar("Network", covariant=True)


@dataclass(frozen=True)
class MethodConfig:
    """Settings of one method, for pictures or for videos. Subclasses add fields, every one of them a plain value.

    Attributes:
        name: what `method=` and `--method` call it.
        summary: one line for `vargen methods`.
        exact: whether what it makes is distributed exactly as with plain decoding.
        weights: settings that name a folder of weights, or null for those that came with the model.
        draft_settings: settings that together say what is drafted. Where one of them is given, a model's own are not
            mixed in.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool]
    weights: ClassVar[tuple[str, ...]] = ()
    draft_settings: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The name and every setting, ready for JSON."""
        return {"name": self.name, **asdict(self)}

    def _number(self, field: str, lowest: float, highest: float | None = None, whole: bool = False) -> None:
        """Refuse a field that is no finite number in [lowest, highest], naming it; no integer means more than `LARGEST`
        if nothing is said."""
        value = getattr(self, field)
        kind = "an integer" if whole else "a number"
        highest = LARGEST if highest is None else highest
        span = f"at least {lowest:g}" if highest == LARGEST else f"between {lowest:g} and {highest:g}"
        if isinstance(value, int | float) and not isinstance(value, bool) and value > highest == LARGEST:
            raise UserError(f"{self.name}.{field} must be at most {LARGEST:,}, got {value!r}")
        if (
            isinstance(value, bool)
            or not isinstance(value, int if whole else (int, float))
            or not lowest <= value <= highest
        ):
            raise UserError(f"{self.name}.{field} must be {kind} {span}, got {value!r}")

    def _size(self, field: str, lowest: int = 1, highest: int = MAX_DRAFT) -> None:
        """Refuse a size that is neither "auto" nor an integer from `lowest` to `highest`."""
        value = getattr(self, field)
        if value != AUTO and (isinstance(value, bool) or not isinstance(value, int) or value < lowest):
            raise UserError(f'{self.name}.{field} must be an integer of at least {lowest} or "auto", got {value!r}')
        if value != AUTO and value > highest:
            raise UserError(f"{self.name}.{field} must be at most {highest:,}, got {value!r}")

    def _one_of(self, field: str, values: Sequence[str]) -> None:
        if getattr(self, field) not in values:
            raise UserError(f"{self.name}.{field} must be one of {', '.join(values)}, got {getattr(self, field)!r}")


def configure(config: type[AnyConfig], options: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> AnyConfig:
    """Settings with some fields that differ from the defaults.

    Args:
        options: what differs.
        own: a model's own settings of the method; they stand behind the options and before the defaults.

    Raises:
        UserError: an option is unknown or out of range.
    """
    known = [field.name for field in fields(config)]
    for option in options:
        if option not in known:
            raise UserError(
                f"method {config.name!r} has no option {option!r}; it has: {', '.join(known) or 'none at all'}"
            )
    own = own or {}
    if not options.keys().isdisjoint(config.draft_settings):
        own = {name: value for name, value in own.items() if name not in config.draft_settings}
    return config(**{**own, **options})


@dataclass
class Method:
    """The players of one decoding run, as `specdecode.loop.decode` takes them.

    Args:
        drafter: proposes tokens; None: nothing is drafted.
        verifier: judges them; None: the exact one.
        schedule: says when nobody is asked; None: never.
    """

    drafter: Drafter | None = None
    verifier: Verifier | None = None
    schedule: Schedule | None = None


@dataclass(frozen=True)
class LoadedDrafter(Generic[Network]):
    """A network that drafts, and what its draft sizes can be chosen by.

    Args:
        network: a head on the target's features, or a smaller model.
        kind: tells networks apart whose passes cost differently beside the same target.
        draft_once: one pass over so many new tokens a row, whose result nobody reads; for the clock.
        acceptance_rates: how often the target accepts a token of it, by how children are chosen ("top", "sampled"),
            where anybody measured it.
    """

    network: Network
    kind: str
    draft_once: Callable[[int], object]
    acceptance_rates: Mapping[str, float | None] = field(default_factory=dict)


class Components(Protocol):
    """What a method may ask a model for, for one batch. It asks only for what it needs.

    Raises:
        UserError: from any of them: the model has no such thing; the message says what to do.
    """

    @property
    def target(self) -> Target:
        """The model itself, fed with the prompts."""
        ...

    @property
    def num_tokens(self) -> int:
        """Tokens of a finished picture."""
        ...

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """The EAGLE head in a folder, or (None) the one that came with the model, with room for so many new pairs."""
        ...

    def load_draft_model(self, folder: str | None) -> LoadedDrafter[DraftModel]:
        """A smaller model of the same tokens, likewise, fed with the same prompts."""
        ...

    def codebook(self) -> Tensor:
        """Unit vectors [V, d] of the tokens; tokens whose vectors are close look alike."""
        ...

    def neighbours(self, num_neighbours: int) -> Tensor:
        """The nearest tokens [V, num_neighbours] of each token by its vector, int64, nearest first."""
        ...

    def draft_sizer(
        self,
        sizes: Sequence[DraftSize],
        drafter: str,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
    ) -> DraftSizer:
        """What chooses among sizes by measured seconds. Only for drafts that no picture depends on.

        Args:
            sizes: one or more; one is a fixed size, and nothing is measured.
            drafter: tells drafters apart whose steps cost differently.
            draft_step: makes one drafting step; None where drafting costs nothing.
            expected: as far as is known beforehand, how often one drafted token is accepted, or how many are of each
                size.
        """
        ...


class Suggestions(Protocol):
    """Who draws settings for a tuner, such as a trial of Optuna."""

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Settings that are not varied; asked for one of them, its value comes back."""
        ...

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        """A whole number from `low` to `high`; `log`: small ones as often as large ones."""
        ...

    def number(self, name: str, low: float, high: float) -> Any:
        """A number from `low` to `high`."""
        ...

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        """One of the values."""
        ...


@dataclass(frozen=True)
class ImageMethodConfig(MethodConfig, ABC):
    """Settings of a method that makes pictures, or anything else of a known number of tokens.

    Timing never decides a picture. So "auto" as a size stands for the most expected tokens a second on this machine
    only where no picture depends on it; elsewhere it stands for one size, which is the method's own.
    """

    @abstractmethod
    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """What the method may draft in a picture of so many tokens; several sizes where seconds choose among them.

        Raises:
            UserError: a draft longer than the picture.
        """

    @abstractmethod
    def _players(self, components: Components) -> Method:
        """As `build`, with ValueErrors of the players as they come."""

    def _verifier(self, components: Components) -> Verifier | None:
        """As `Method.verifier`."""
        return None

    def _schedule(self, components: Components) -> Schedule | None:
        """As `Method.schedule`."""
        return None

    def resolved(self, num_tokens: int) -> Self:
        """The same with every size that pictures depend on in numbers, for records and identities."""
        return self

    def kept_with_model(self, measured: Sequence[tuple[Mapping[str, Any], Sequence[float]]]) -> Self:
        """What a model's folder keeps of a search whose fastest settings these are.

        Args:
            measured: settings of this method, and of each the survival by place (`metrics.speculation`).
        """
        return self

    def max_draft_nodes(self, num_tokens: int) -> int:
        """The most nodes the target is fed at once: the largest tree, its root included, and what was skipped."""
        return max(size.total_tokens for size in self.sizes(num_tokens))

    def build(self, components: Components) -> Method:
        """The players for one batch.

        Raises:
            UserError: the settings do not fit this model, or something the method needs is missing.
        """
        try:
            return self._players(components)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"method {self.name}: {error}") from error

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """One draw from what a tuner may vary; names are those of the settings. Empty: there is nothing to tune."""
        return {}

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Settings that a search measures before it draws any, beside the defaults and the presets."""
        return ()

    def search_terms(self) -> dict[str, Any]:
        """The settings under the names by which `search` asks for them, so that a search can begin with them."""
        return asdict(self)

    def _fitting(self, sizes: Sequence[DraftSize], field: str, num_tokens: int) -> tuple[DraftSize, ...]:
        """Those of some sizes that a picture has room for. Raises UserError, naming the field, where none is."""
        longest = num_tokens - 1
        fitting = tuple(size for size in sizes if size.depth <= longest)
        if not fitting:
            raise UserError(
                f"{self.name}.{field} must leave room in a picture of {num_tokens} tokens: at most {longest}, got "
                f"{min(size.depth for size in sizes)}"
            )
        return fitting


@dataclass(frozen=True)
class ChainMethodConfig(ImageMethodConfig):
    """Settings of a method that drafts a chain.

    Attributes:
        length_setting: which setting is its length.
        usual_length: what "auto" stands for.
    """

    length_setting: ClassVar[str] = "draft_length"
    usual_length: ClassVar[int] = 4

    def resolved(self, num_tokens: int) -> Self:
        """See `ImageMethodConfig.resolved`."""
        if getattr(self, self.length_setting) != AUTO:
            return self
        return replace(self, **{self.length_setting: min(self.usual_length, num_tokens - 1)})

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """See `ImageMethodConfig.sizes`."""
        return self._chains([getattr(self.resolved(num_tokens), self.length_setting)], num_tokens)

    def _chains(self, lengths: Sequence[int], num_tokens: int) -> tuple[DraftSize, ...]:
        from specdecode.draft_size import DraftSize

        return self._fitting([DraftSize(length + 1, length) for length in lengths], self.length_setting, num_tokens)
