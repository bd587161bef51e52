"""The models' side of methods: the parts of `vargen.methods.base.Components` that are alike for every family.

Belongs here: loading what a method names, draft sizes chosen by the clock, and errors for what a family does not have.
Does not belong here: the parts of one family (a file for each), a method, and all that is kept between two batches
(`vargen.models.reuse`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from diffusers import ModelMixin
from torch import Tensor

from specdecode.drafters.draft_model import DraftModel
from specdecode.drafters.draft_size import NO_DRAFT, DraftSize, DraftSizer, FixedDraftSize
from specdecode.drafters.eagle import DraftHead
from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines
from specdecode.roles import Target
from specdecode.verifiers.neighbours import nearest_neighbours
from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_component_folder
from vargen.methods.base import LoadedDrafter
from vargen.models.reuse import Reuse

Model = TypeVar("Model", bound=ModelMixin)


@dataclass(frozen=True)
class BatchSlot:
    """The position of a batch among those that are decoded as one, see `specdecode.runs.continuous`.

    Args:
        longest_prompt: tokens of the longest prompt that may take one of its rows; 0: none is longer than its own.
        joins: its rows take the places of rows in another batch as soon as they have begun.
        num_given: the most tokens that are fed behind a prompt before anything is drawn, with the first one drawn.
        num_known: the most known tokens that plain decoding feeds with a drawn one.
    """

    longest_prompt: int = 0
    joins: bool = False
    num_given: int = 0
    num_known: int = 0


_MOST_SIZES_IN_GRAPHS = 3
"""Sizes of drafts that a GPU captures, see `specdecode.graphs.static_step`."""
_SPLIT_DEPTH = 16
"""Draft tokens of a step of a model that is split over processes, whose clocks would not agree."""
SINGLE_BATCH = BatchSlot()
"""The place of a batch that is decoded alone."""


class ModelComponents(ABC):
    """Plays `vargen.methods.base.Components` but for `num_tokens`, which every family adds.

    A family overrides what it has. Every other request of a method is refused in one line.

    Args:
        device: where everything computes.
        reuse: the pipeline's.
        joins: see `BatchSlot`. Such a batch is never compiled, has caches of its own, and its draft size is that of the
            batch it joins.
    """

    family: ClassVar[str] = "this model"
    """The name of the family in error messages."""

    def __init__(self, device: torch.device, reuse: Reuse, joins: bool = False) -> None:
        self.device = device
        self.reuse = reuse
        self.joins = joins

    @property
    @abstractmethod
    def target(self) -> Any:
        """The model, fed with the prompts; its `compiler` is None where steps run eagerly."""

    @abstractmethod
    def _pass_geometry(self) -> dict[str, Any]:
        """Names and values, ready for JSON: a forward pass is as fast as they, the device and the drafter make it."""

    @abstractmethod
    def _probe(self, num_tokens: int) -> Target:
        """The target in the middle of a picture, for timing passes over so many tokens."""

    def draft_sizer(
        self,
        sizes: Sequence[DraftSize],
        drafter: str,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
    ) -> DraftSizer:
        """See `Components.draft_sizer`."""
        if self.joins or len(sizes) == 1:
            return FixedDraftSize(sizes[0])
        if getattr(getattr(self, "model", None), "tp_size", None) is not None:  # every process must choose the same
            return FixedDraftSize(min(sizes, key=lambda size: abs(size.depth - _SPLIT_DEPTH)))
        if self.target.batch_size > 1 or self.device.type == "cpu":  # where plain decoding may be the fastest
            sizes = (NO_DRAFT, *sizes)
            expected = expected if isinstance(expected, float) else (0.0, *expected)
        is_cuda = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if is_cuda else self.device.type
        geometry = {"device": device, "drafter": drafter, **self._pass_geometry()}
        most_sizes = None
        if self.target.compiler is not None:  # on a CPU compiling a width takes longer than the best one gains
            most_sizes = _MOST_SIZES_IN_GRAPHS if is_cuda else 1
        return self.reuse.draft_sizes.sizer(sizes, geometry, self._probe, draft_step, expected, most_sizes)

    def grid_lines(self) -> Lines | MixedGrids:
        """The rows of the pictures' grids.

        Raises:
            UserError: the family offers no grid.
        """
        lines = self._lines()
        if lines is None:
            raise UserError(
                f"method must be one that draws tokens in their order, because {self.family} offers no grid: ar, "
                f"jacobi or scd"
            )
        return lines

    def _lines(self) -> Lines | MixedGrids | None:
        """The rows of the grids; None: the family offers none."""
        return None

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """Refuse: there is none."""
        raise UserError(
            f"drafter: {self.family} came without one; train one with `vargen train drafter` and name its folder in "
            f"the method's settings, such as --method_options.drafter runs/drafter/export"
        )

    def load_draft_model(self, folder: str | None, most_nodes: int = 0) -> LoadedDrafter[DraftModel]:
        """Refuse: there is none."""
        raise self._nothing("draft model")

    def codebook(self) -> Tensor:
        """Refuse: there is none."""
        raise self._nothing("codebook to compare tokens by")

    def neighbours(self, num_neighbours: int) -> Tensor:
        """The nearest codes [V, k] of each code; computed once, because a large codebook takes a second."""
        codebook = self.codebook()
        if num_neighbours not in self.reuse.neighbours:
            self.reuse.neighbours[num_neighbours] = nearest_neighbours(codebook, num_neighbours)
        return self.reuse.neighbours[num_neighbours].to(self.device)

    def _nothing(self, what: str) -> UserError:
        return UserError(
            f"method must be one that needs no {what}, because there is none for {self.family}: ar, jacobi or scd"
        )

    def _loaded(self, folder: str, path: str, kind: type[Model], dtype: torch.dtype) -> Model:
        """A network that a method named, read once for all batches.

        Args:
            folder: as the method named it.
            path: of the component itself.
            kind: its class.
            dtype: of its weights.

        Raises:
            UserError: there is none, it cannot be read, or its weights are not finite.
        """
        if folder not in self.reuse.models:
            try:
                check_component_folder(path, kind)
            except UserError as error:
                raise UserError(f"drafter or draft_model: {error}") from error
            with reading(path):
                model = kind.from_pretrained(path, torch_dtype=dtype)
            check_weights(model, path)
            self.reuse.models[folder] = model.eval()
        return self.reuse.models[folder].to(self.device)


def draft_passes(draft_model: Callable[[], Target]) -> Callable[[int], None]:
    """A function that runs one forward pass of a draft model over so many new tokens a row, for the clock."""

    def draft_once(num_tokens: int) -> None:
        target = draft_model()
        tokens = torch.zeros(target.batch_size, num_tokens, dtype=torch.long, device=target.device)
        mask = torch.eye(num_tokens, dtype=torch.bool, device=target.device).expand(len(tokens), -1, -1)
        target.forward(tokens, mask, torch.zeros_like(tokens))

    return draft_once
