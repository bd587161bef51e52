"""A decoding method: checked settings that say how much is drafted and build the players of a run.

Belongs here: the base of all methods, and the protocols between a method, a model and a tuner. Does not belong here:
any method (one file each, beside this one; `video/` has those for videos), any model (a method asks for what
`Components` offers), and how a player works (`specdecode`). Importing this imports no torch: players are imported where
they are built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from vargen.base.bounds import check_characters
from vargen.base.errors import UserError, did_you_mean
from vargen.base.options import Settings, check_options

if TYPE_CHECKING:
    from torch import Tensor

    from specdecode.drafters.draft_model import DraftModel
    from specdecode.drafters.draft_size import DraftSize, DraftSizer
    from specdecode.drafters.eagle import DraftHead
    from specdecode.grid.mixed_grids import MixedGrids
    from specdecode.grid.positions import Lines
    from specdecode.grid.row_windows import RowWindows
    from specdecode.roles import Drafter, Schedule, Target, Verifier

Auto = Literal["auto"]
AUTO: Auto = "auto"
"""The default of every draft size; `ImageMethodConfig` says what it stands for."""

LARGEST = 1_000_000
"""The upper limit of counts that buffers are as large as."""

Task = Literal["image", "video"]
TASKS: dict[Task, str] = {"image": "pictures", "video": "videos"}
"""What a method is for, with the word for messages."""

AnyConfig = TypeVar("AnyConfig", bound="MethodConfig")
Network = TypeVar("Network", covariant=True)


@contextmanager
def refusals(where: str = "") -> Iterator[None]:
    """Turn ValueErrors of the core about a model, its arguments or a method's into UserErrors that begin like this."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where}{error}") from error


@dataclass(frozen=True)
class MethodConfig(Settings):
    """Settings of one method. Subclasses add fields, every one of them a plain value, see `vargen.base.options`.

    Attributes:
        task: what it makes.
        name: what `method=` and `--method` call it.
        summary: one line for `vargen methods`.
        exact: whether what it makes is distributed exactly as with plain decoding.
        weights: settings that name a folder of weights, or null for those that came with the model.
        stand_in: the method that its bare name means where neither the model nor a call sets what this one alone has;
            None: itself.
        draft_settings: settings that together say what is drafted. If one of them is given, a model's own values of the
            others are ignored.
    """

    task: ClassVar[Task]
    name: ClassVar[str]
    summary: ClassVar[str]
    exact: ClassVar[bool]
    weights: ClassVar[tuple[str, ...]] = ()
    draft_settings: ClassVar[tuple[str, ...]] = ()
    stand_in: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check_options(self, f"{self.name}.")
        for name in self.weights:
            if not str(getattr(self, name)).strip():  # which would be the folder that somebody happens to be in
                raise UserError(f"{self.name}.{name} must be a folder of weights, or null, got an empty name")
            check_characters(f"{self.name}.{name}", str(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """The name and every setting, ready for JSON."""
        return {"name": self.name, **asdict(self)}

    @property
    def follows_the_clock(self) -> list[str]:
        """Settings that are chosen by measured seconds, of resolved ones. They change no picture and no answer, but the
        number of passes and accepted lengths, which then differ between two runs, and between a run and one that was
        killed and continued."""
        return [name for name, value in self.to_dict().items() if value == AUTO]

    def _errors_by_name(self) -> AbstractContextManager[None]:
        """ValueErrors of the players become UserErrors that name the method."""
        return refusals(f"method {self.name}: ")


def configure(config: type[AnyConfig], options: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> AnyConfig:
    """Settings with some fields that differ from the defaults.

    Args:
        options: what differs.
        own: a model's own settings of the method; options override them, and they override the defaults.

    Raises:
        UserError: an option is unknown or out of range.
    """
    known = [field.name for field in fields(config)]
    for option in options:
        if option not in known:
            raise UserError(
                f"method {config.name!r} has no option {option!r}{did_you_mean(option, known)}; it has: "
                f"{', '.join(known) or 'none at all'}"
            )
    own = own or {}
    if not options.keys().isdisjoint(config.draft_settings):
        own = {name: value for name, value in own.items() if name not in config.draft_settings}
    return config(**{**own, **options})


@dataclass
class Method:
    """The players of one decoding run, as `specdecode.loop.decode` takes them.

    Args:
        drafter: proposes draft tokens; None: nothing is drafted.
        verifier: accepts or rejects them; None: the exact one.
        schedule: says which verification steps are skipped; None: none.
        order: in what order places are drawn; None: one after another.
    """

    drafter: Drafter | None = None
    verifier: Verifier | None = None
    schedule: Schedule | None = None
    order: RowWindows | None = None


@dataclass(frozen=True)
class LoadedDrafter(Generic[Network]):
    """A network that drafts, and what its draft sizes can be chosen by.

    Args:
        network: a draft head or a draft model.
        kind: tells networks apart whose forward passes cost differently beside the same target.
        draft_once: makes one forward pass over so many new tokens a row, to be timed.
        acceptance_rates: how often the target accepts its tokens, by how children are chosen; empty
            where this was not measured.
    """

    network: Network
    kind: str
    draft_once: Callable[[int], object]
    acceptance_rates: Mapping[str, float | None] = field(default_factory=dict)


class Components(Protocol):
    """What a method may ask a model for, for one batch. It asks only for what it needs. Raises UserError where the
    model has no such thing; the message says what to do."""

    @property
    def target(self) -> Target:
        """The model itself, fed with the prompts."""

    @property
    def num_tokens(self) -> int:
        """Tokens of a finished picture."""

    def grid_lines(self) -> Lines | MixedGrids:
        """The rows of the pictures' grids, where the target can draw them side by side."""

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """The EAGLE head in a folder, or (None) the one that came with the model, with room for so many new pairs."""

    def load_draft_model(self, folder: str | None, most_nodes: int = 0) -> LoadedDrafter[DraftModel]:
        """A draft model of the same tokens, fed with the same prompts: that in a folder, or (None) the model's own.

        It has room for a waiting chain, or for `most_nodes` nodes where these are more.
        """

    def codebook(self) -> Tensor:
        """Unit vectors [V, d] of the tokens; tokens whose vectors are close look alike."""

    def neighbours(self, num_neighbours: int) -> Tensor:
        """The nearest tokens [V, num_neighbours] of each token by its vector, int64, nearest first."""

    def draft_sizer(
        self,
        sizes: Sequence[DraftSize],
        drafter: str,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
    ) -> DraftSizer:
        """Chooses among sizes, and nothing where that may be the fastest, by measured seconds. Only for drafts that do
        not change the picture.

        Args:
            sizes: one or more; one is a fixed size, and nothing is measured.
            drafter: tells drafters apart whose steps cost differently.
            draft_step: makes one drafting step; None where drafting costs nothing.
            expected: the expected acceptance rate of one draft token, or the expected accepted length of each size.
        """


class SearchSpace:
    """Draws settings for a tuner.

    A trial that begins with given settings, its attribute "start", measures these. What they have outside the space is
    not drawn, so that nothing is learned from it.

    Args:
        trial: of Optuna; it draws.
        fixed: settings that are not varied. Asking for one of them returns its value.
    """

    def __init__(self, trial: Any, fixed: Mapping[str, Any]) -> None:
        self.trial = trial
        self.fixed = fixed
        self._given = {**trial.user_attrs.get("start", {}), **fixed}

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        """An integer from `low` to `high`; `log`: uniform in the logarithm."""
        if self._is_settled(name, lambda value: isinstance(value, int) and low <= value <= high):
            return self._given[name]
        return self.trial.suggest_int(name, low, high, log=log)

    def size(self, name: str, low: int, high: int, measured: bool) -> Any:
        """An integer as `integer` draws it in the logarithm, or "auto" where measured seconds may choose the size."""
        if measured and name not in self.fixed and self.trial.suggest_categorical(f"{name}_is_auto", [True, False]):
            return AUTO
        return self.integer(name, low, high, log=True)

    def number(self, name: str, low: float, high: float) -> Any:
        """A number from `low` to `high`."""
        if self._is_settled(name, lambda value: isinstance(value, int | float) and low <= value <= high):
            return self._given[name]
        return self.trial.suggest_float(name, low, high)

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        """One of the values."""
        if self._is_settled(name, lambda value: value in values):
            return self._given[name]
        return self.trial.suggest_categorical(name, values)

    def _is_settled(self, name: str, fits: Callable[[Any], bool]) -> bool:
        return name in self.fixed or (name in self._given and not fits(self._given[name]))


@dataclass(frozen=True)
class ImageMethodConfig(MethodConfig, ABC):
    """Settings of a method that makes pictures, or anything else of a known number of tokens.

    Timing never decides a picture. Where the size of a draft does not change the picture, the size "auto" stands for
    the most expected tokens a second on this machine. Elsewhere it stands for one fixed size of the method.
    """

    task: ClassVar[Task] = "image"

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """What the method may draft in a picture of so many tokens: several sizes where measured seconds choose one;
        here nothing. Raises UserError for a draft longer than the picture."""
        from specdecode.drafters.draft_size import NO_DRAFT

        return (NO_DRAFT,)

    @abstractmethod
    def _players(self, components: Components) -> Method:
        """Do what `build` does, with ValueErrors of the players as they come."""

    def _verifier(self, components: Components) -> Verifier | None:
        """The verifier of `Method`."""
        return None

    def _schedule(self, components: Components) -> Schedule | None:
        """The schedule of `Method`."""
        return None

    def resolved(self, num_tokens: int) -> Self:
        """The same with a number for every size that changes pictures, for records and identities."""
        return self

    def kept_with_model(self) -> Self:
        """What a model's folder keeps after a search that found these settings to be the fastest."""
        return self

    def max_draft_nodes(self, num_tokens: int) -> int:
        """The most rows the target is fed at once: the largest tree, its root included, and the pending tokens."""
        return max(size.total_tokens for size in self.sizes(num_tokens))

    def build(self, components: Components) -> Method:
        """The players for one batch. Raises UserError where the settings do not fit this model, or something is
        missing."""
        with self._errors_by_name():
            return self._players(components)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """One draw of the settings that a tuner may vary, by name. Empty: there is nothing to tune."""
        return {}

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Settings that a search measures first, beside the defaults and the presets."""
        return ()

    def _fitting(self, sizes: Sequence[DraftSize], field: str, num_tokens: int) -> tuple[DraftSize, ...]:
        """The sizes that fit in a picture. Raises UserError, naming the field, where none fits."""
        longest = num_tokens - 1
        fitting = tuple(size for size in sizes if size.depth <= longest)
        if not fitting:
            raise UserError(
                f"{self.name}.{field} must leave room in a picture of {num_tokens} tokens: at most {longest}, got "
                f"{min(size.depth for size in sizes)}"
            )
        return fitting


NamedMethod = str | Mapping[str, Any] | ImageMethodConfig
"""What `method=` takes: a name, a mapping such as `{"name": "jacobi", "window": 16}`, or settings."""


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
        if getattr(self, self.length_setting) != AUTO:
            return self
        return replace(self, **{self.length_setting: min(self.usual_length, num_tokens - 1)})

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        return self._chains([getattr(self.resolved(num_tokens), self.length_setting)], num_tokens)

    def _chains(self, lengths: Sequence[int], num_tokens: int) -> tuple[DraftSize, ...]:
        from specdecode.drafters.draft_size import DraftSize

        return self._fitting([DraftSize(length + 1, length) for length in lengths], self.length_setting, num_tokens)
