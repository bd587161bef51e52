"""What models offer methods: the parts of `vargen.methods.base.Components` that are alike for every family.

Belongs here: what is worth keeping between two batches, loading what a method names, sizes by the clock, and the
refusal of what a family has not got. Does not belong here: a model (each family has its `components.py`), or a method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from diffusers import ModelMixin
from torch import Tensor, nn

from specdecode.draft_size import DraftSize, DraftSizer, FixedDraftSize
from specdecode.drafters.draft_model import DraftModel
from specdecode.drafters.eagle import DraftHead
from specdecode.kernels.quantized import quantization_of
from specdecode.kv_cache import StaticKVCache
from specdecode.roles import Target
from specdecode.sampling import RandomStreams
from specdecode.verifiers.neighbours import nearest_neighbours
from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.methods.base import LoadedDrafter
from vargen.models.finite import check_weights
from vargen.models.model_folder import check_component_folder
from vargen.models.offloading import has_hooks
from vargen.models.quantization import quantize_layers
from vargen.pipelines.components.draft_sizes import MeasuredDraftSizes

if TYPE_CHECKING:
    from specdecode.compilation import PassCompiler
    from specdecode.targets.transformers import TransformersTarget

Model = TypeVar("Model", bound=ModelMixin)


class KeptCaches:
    """Keys and values of the last batch, whose memory the next one uses again, by whose they are.

    Captured graphs write to fixed addresses, and to allocate takes time.
    """

    def __init__(self) -> None:
        self._caches: dict[str, StaticKVCache] = {}

    def get(self, whose: str, most_slots: int | None = None, **sizes: Any) -> StaticKVCache:
        """The last one where it fits `sizes`, else a new one, which replaces it.

        Args:
            whose: several are kept side by side.
            most_slots: of a new one, so that the next batch, of longer prompts, fits as well; None: as `sizes` says.
            sizes: of `StaticKVCache`.
        """
        kept = self._caches.get(whose)
        if kept is None or not kept.fits(**sizes):
            self._caches.pop(whose, None)  # free the old one first
            kept = self._caches[whose] = StaticKVCache(**sizes | {"max_length": most_slots or sizes["max_length"]})
        return kept


@dataclass
class BatchMemory:
    """What the last batch wrote to, and the next writes to again; of one batch at a time.

    Args:
        caches: of targets and of what drafts.
        weight_caches: of networks that stand for larger ones (`weighted`).
        target, draft_model: of the last batch, where passes are compiled: the next take over the addresses of their
            caches.
    """

    caches: KeptCaches = field(default_factory=KeptCaches)
    weight_caches: KeptCaches = field(default_factory=KeptCaches)
    target: Any = None
    draft_model: Any = None


@dataclass
class KeptBetweenBatches:
    """What a pipeline keeps from one batch for the next. No picture depends on it.

    Args:
        memory: of the last batch.
        models: drafters and smaller transformers that methods named, by folder.
        neighbours: the nearest codes [V, k] of each code, by k.
        compiler: of passes; None: they run eagerly.
        draft_quantization: of the layers of what drafts, see `vargen.pipelines.quantization`; None: as they are.
        draft_sizes: measured costs, and what sizes turned out to be worth.
    """

    memory: BatchMemory = field(default_factory=BatchMemory)
    models: dict[str, Any] = field(default_factory=dict)
    neighbours: dict[int, Tensor] = field(default_factory=dict)
    compiler: PassCompiler | None = None
    draft_quantization: str | None = None
    draft_sizes: MeasuredDraftSizes = field(default_factory=MeasuredDraftSizes)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within, the memory of the batch that has just begun is its own.

        Whoever begins another one meanwhile, between two pictures of a stream or in a callback, gets other memory.
        """
        own, self.memory = self.memory, BatchMemory()
        try:
            yield
        finally:
            self.memory = own

    def compile(self, target: Any, **arguments: Any) -> None:
        """Have a target's passes compiled, where the pipeline's are; `arguments` are for its `compile`.

        Raises:
            UserError: a draft is wider than a bucket, or accelerate's hooks move parts of the model.
        """
        if self.compiler is None:
            return
        parts = (getattr(target, name, None) for name in ("transformer", "model", "drafter"))
        if any(isinstance(part, nn.Module) and has_hooks(part) for part in parts):
            raise UserError(
                "compile: parts of this model come to their device, or what they are given does, as they are called "
                "(enable_model_cpu_offload, or a device_map of several devices), which compiled passes cannot; leave "
                "one of the two out"
            )
        try:
            target.compile(self.compiler, **arguments)
        except ValueError as error:
            raise UserError(str(error)) from error

    def compile_in_place(self, target: TransformersTarget, of: str) -> None:
        """As `compile`, on the cache of the last batch where it fits: captured graphs write to fixed addresses.

        Args:
            of: whose passes they are, "target" or "draft_model".
        """
        if self.compiler is None:
            return
        last = getattr(self.memory, of)
        self.compile(target, kv_cache=None if last is None else last.kv_cache)
        setattr(self.memory, of, target)

    def compile_draws(self, streams: RandomStreams) -> None:
        """Have random numbers made by compiled code, where the pipeline's passes are."""
        streams.compile(None if self.compiler is None else self.compiler.function)

    def draft_with(self, *layers: nn.Module) -> None:
        """Have linear layers of what drafts quantized, where the pipeline's are to be."""
        if self.draft_quantization is not None:
            for each in layers:
                quantize_layers(each, self.draft_quantization)

    def told(self, layers: nn.Module) -> dict[str, Any]:
        """What measured seconds depend on, of how passes are computed; empty where nothing was asked for.

        Args:
            layers: the target's.
        """
        told = {} if self.compiler is None else {"compiled": f"{self.compiler.backend}-{self.compiler.bucket}"}
        if (quantization := quantization_of(layers)) is not None:
            told["quantization"] = quantization
        return told | ({} if self.draft_quantization is None else {"draft_quantization": self.draft_quantization})


@dataclass(frozen=True)
class Place:
    """Where a batch stands among those that are decoded as one, see `specdecode.continuous`.

    Args:
        longest_prompt: tokens of the longest prompt that may take one of its rows; 0: none longer than its own does.
        joins: its rows take places in another batch as soon as they have begun.
    """

    longest_prompt: int = 0
    joins: bool = False


ONLY = Place()
"""Of a batch that is decoded alone."""


class ModelComponents(ABC):
    """Plays `vargen.methods.base.Components`, but for `num_tokens`, which every family adds.

    A family overrides what it has; whatever else a method asks for is refused in one line.

    Args:
        device: where everything computes.
        kept: the pipeline's.
        joins: the batch's rows take places in another one as soon as they have begun, so its target's passes are never
            compiled, its caches are its own, and nobody asks it for sizes.
    """

    family: ClassVar[str] = "this model"
    """What refusals call it."""

    def __init__(self, device: torch.device, kept: KeptBetweenBatches, joins: bool = False) -> None:
        self.device = device
        self.kept = kept
        self.joins = joins

    @property
    @abstractmethod
    def target(self) -> Any:
        """The model, fed with the prompts; its `compiler` is None where passes run eagerly or in our own kernels."""

    @abstractmethod
    def _pass_geometry(self) -> dict[str, Any]:
        """What the milliseconds of a pass depend on, beside the device and what drafts; JSON."""

    @abstractmethod
    def _probe(self, num_tokens: int) -> Target:
        """The target half way through a picture, to time passes over so many tokens on."""

    def draft_sizer(
        self,
        sizes: Sequence[DraftSize],
        drafter: str,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
    ) -> DraftSizer:
        """See `Components.draft_sizer`."""
        if self.joins:
            return FixedDraftSize(sizes[0])  # who joins a batch drafts as that does
        is_cuda = self.device.type == "cuda"
        device = torch.cuda.get_device_name(self.device) if is_cuda else self.device.type
        geometry = {"device": device, "drafter": drafter, **self._pass_geometry()}
        compiled = self.target.compiler is not None
        return self.kept.draft_sizes.sizer(sizes, geometry, self._probe, draft_step, expected, compiled)

    def load_draft_head(self, folder: str | None, most_new_pairs: int) -> LoadedDrafter[DraftHead]:
        """None."""
        raise UserError(
            f"drafter: {self.family} came without one; train one with `vargen train drafter` and name its folder in "
            f"the method's settings, such as --method_options.drafter runs/drafter/export"
        )

    def load_draft_model(self, folder: str | None) -> LoadedDrafter[DraftModel]:
        """None."""
        raise self._nothing("smaller model that drafts")

    def codebook(self) -> Tensor:
        """None."""
        raise self._nothing("codebook to compare tokens by")

    def neighbours(self, num_neighbours: int) -> Tensor:
        """The nearest codes [V, k] of each code; computed once, for a large codebook takes a second."""
        codebook = self.codebook()
        if num_neighbours not in self.kept.neighbours:
            self.kept.neighbours[num_neighbours] = nearest_neighbours(codebook, num_neighbours)
        return self.kept.neighbours[num_neighbours].to(self.device)

    def _nothing(self, what: str) -> UserError:
        return UserError(
            f"method must be one that needs no {what}, because there is none for {self.family}: ar, jacobi or scd"
        )

    def _loaded(self, folder: str, path: str, kind: type[Model], dtype: torch.dtype) -> Model:
        """What a method named, read once for all batches.

        Args:
            folder: as it was named.
            path: of the component itself.
            kind: its class.
            dtype: of its weights.

        Raises:
            UserError: there is none, it cannot be read, or its weights are not finite.
        """
        if folder not in self.kept.models:
            check_component_folder(path, kind)
            with reading(path):
                model = kind.from_pretrained(path, torch_dtype=dtype)
            check_weights(model, path)
            self.kept.models[folder] = model.eval()
        return self.kept.models[folder].to(self.device)
