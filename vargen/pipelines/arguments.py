"""The arguments that the call of every family takes, their checks, and the request that they become.

Belongs here: arguments that do not depend on a model. Does not belong here: prompts as tokens, which every family reads
its own way, and drawing (`base.py`, `streaming.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from specdecode.checks import LogitsError
from specdecode.drafters.forced_tokens import longest_known
from specdecode.loop import DecodeRun
from specdecode.roles import DecodeState, MakesGraphs, Target
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.base import bounds
from vargen.base.errors import NotFiniteError, UserError, warn
from vargen.methods.base import ImageMethodConfig, Method, NamedMethod
from vargen.models.components import BatchSlot
from vargen.models.known_pictures import Edit, known_pictures, paste, tokens_of
from vargen.models.picture_size import Grid

_MOST_KNOWN_AT_ONCE = 32
"""Known tokens that plain decoding feeds with a drawn one: in a graph, every pass is as wide."""
OUTPUT_TYPES = ("pil", "np", "pt", "latent")
CALLBACK_TENSORS = {"tokens": "tokens", "lengths": "lengths", "decided": "decided", "latents": "tokens"}
"""What `callback_on_step_end` can ask for, and which field of `specdecode.roles.DecodeState` that is. By "latents", as
by `output_type="latent"`, a callback that was written for diffusers gets what a picture is made of here."""
CHANGEABLE_TENSORS = ("tokens", "latents")
"""Those of them that the dictionary which it returns may change."""

StepCallback = Callable[[Any, int, Tensor, dict[str, Tensor]], Any]


class PromptWarning(UserWarning):
    """The model will not read every word of a prompt."""


def warn_of_prompts(pipeline: Any, prompts: Iterable[str | None], **size: Any) -> None:
    """Warn of what will not be read of prompts: of the first problems, and how many there are."""
    texts = [*dict.fromkeys(text for text in prompts if text)]
    problems = pipeline.prompt_problems(texts, **size) if texts else []
    told = f"{len(problems)} such warnings in all; see `prompt_problems` of the pipeline"
    for problem in problems if len(problems) <= 3 else [*problems[:3], told]:
        warn(problem, PromptWarning)


@dataclass(frozen=True)
class StepReport:
    """The callback that is called after every forward pass of the target, and the tensors it gets.

    Args:
        callback: called as `callback(pipeline, step, lengths, tensors)`; None: there is none. A dictionary that it
            returns is obeyed, see `_obey`; anything else is ignored.
        tensor_inputs: which of `CALLBACK_TENSORS` it gets; a callback of diffusers' `PipelineCallback` names its own.

    Raises:
        UserError: a name that is none of `CALLBACK_TENSORS`.
    """

    callback: StepCallback | None = None
    tensor_inputs: Sequence[str] = ("tokens",)

    def __post_init__(self) -> None:
        if self.callback is not None and hasattr(self.callback, "tensor_inputs"):
            object.__setattr__(self, "tensor_inputs", self.callback.tensor_inputs)
        unknown = [name for name in self.tensor_inputs if name not in CALLBACK_TENSORS]
        if unknown:
            raise UserError(f"callback_on_step_end_tensor_inputs must be among {list(CALLBACK_TENSORS)}, got {unknown}")

    def send(
        self, pipeline: Any, step: int, state: DecodeState, target: Target, pictures: Sequence[int | None] | None = None
    ) -> None:
        """Call the callback where there is one, and do what it or anyone else asks for.

        Args:
            pipeline: that draws; `_guidance_scale` and `_interrupt` are read from it.
            step: number of the forward pass.
            state: of every row.
            target: whose guidance the callback may change.
            pictures: in a stream, the number of the picture in each row, which the callback gets as "pictures".

        Raises:
            Interrupted: `_interrupt` is set.
            UserError: the callback changes what cannot be changed.
        """
        pipeline._num_timesteps = step + 1
        if self.callback is not None:
            # Copies: the next pass writes to these tensors, and so does the next batch where steps are graphs.
            tensors = {name: getattr(state, CALLBACK_TENSORS[name]).clone() for name in self.tensor_inputs}
            if pictures is not None:
                tensors["pictures"] = pictures
            scale = pipeline._guidance_scale
            returned = self.callback(pipeline, step, state.lengths.clone(), dict(tensors))
            if isinstance(returned, Mapping):
                _obey(returned, tensors, state, target.vocab_size)
            if pipeline._guidance_scale != scale:
                bounds.check_sampling_bounds(None, None, None, pipeline._guidance_scale)
                if not hasattr(target, "change_guidance"):
                    raise UserError("guidance_scale cannot be changed in a callback: nothing is guided here")
                target.change_guidance(pipeline._guidance_scale)
        if pipeline._interrupt:  # set by the callback, or by whoever else has the pipeline
            raise Interrupted


class Interrupted(Exception):
    """`pipeline._interrupt` is set: no forward pass follows."""


def _obey(returned: Mapping[str, Any], tensors: Mapping[str, Any], state: DecodeState, vocab_size: int) -> None:
    """Write what a callback returns into the state.

    The next pass reads the newest token of each picture, and pixels are made of all tokens. What the model made of
    tokens that it was fed before stays as it was.

    Args:
        returned: by name.
        tensors: what the callback was given.
        state: of every row; its `tokens` may change.
        vocab_size: tokens lie below it.

    Raises:
        UserError: a name that was not asked for, a tensor that cannot be changed, or tokens of another form.
    """
    for name, value in returned.items():
        if name not in tensors:
            raise UserError(
                f"callback_on_step_end returned {name!r}, which is not among callback_on_step_end_tensor_inputs "
                f"{[*tensors]}"
            )
        if name not in CHANGEABLE_TENSORS:
            if value is not tensors[name]:
                raise UserError(
                    f"callback_on_step_end must return {name!r} as it was: only {', '.join(CHANGEABLE_TENSORS)} may "
                    f"change"
                )
            continue
        old = state.tokens
        if not isinstance(value, Tensor) or value.shape != old.shape or value.dtype != old.dtype:
            got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"callback_on_step_end must return {name!r} as int64 {list(old.shape)}, got {got}")
        if int(value.min()) < 0 or int(value.max()) >= vocab_size:
            raise UserError(f"callback_on_step_end must return {name!r} between 0 and {vocab_size - 1}")
        old.copy_(value)
        if state.newest is not None:  # in place, where a compiled step reads it
            state.newest.copy_(old.gather(1, state.lengths[:, None] - 1)[:, 0])


@dataclass(frozen=True)
class DrawSettings(Edit):
    """The arguments that every family's call takes beside prompts and sizes, under their names. Raises UserError for an
    impossible number of pictures or output type, and for a tensor that no callback gets."""

    guidance_scale: float | None = None
    guided_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_images_per_prompt: int = 1
    generator: torch.Generator | Sequence[torch.Generator] | None = None
    method: NamedMethod = "jacobi"
    output_type: str = "pil"
    callback_on_step_end: StepCallback | None = None
    callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",)
    report: StepReport = field(init=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Those among a call's arguments by name; the others have their defaults. Raises UserError likewise."""
        return cls(**{name: given[name] for name in cls.names() & given.keys()})

    @classmethod
    def names(cls) -> frozenset[str]:
        """The names of all that a call gives."""
        return frozenset(each.name for each in fields(cls) if each.init)

    def __post_init__(self) -> None:
        super().__post_init__()
        report = StepReport(self.callback_on_step_end, self.callback_on_step_end_tensor_inputs)
        object.__setattr__(self, "report", report)
        check_count_and_type(self.num_images_per_prompt, self.output_type)


class PictureTarget(Target, Protocol):
    """A target that a pipeline may compile."""

    @property
    def compiler(self) -> MakesGraphs | None:
        """Makes its steps into graphs; None: they run eagerly."""


def forced_nowhere(grid: Grid) -> Tensor:
    """[rows * columns] int64 of -1: nothing but codes."""
    return torch.full((grid[0] * grid[1],), -1)


@dataclass(frozen=True)
class PictureRequest:
    """Pictures to draw, all arguments checked.

    Args:
        start: starts a batch: encodes the prompts of the pictures of these numbers, and gives the target and the other
            players before the prefill.
        images: makes pictures of tokens int64 [B, num_tokens] of the pictures of these numbers, as `output_type` asks.
        num_tokens: tokens of each picture, at most.
        longest_prompt: gives the number of tokens of the longest prompt. A stream asks once, before it begins.
        sampling: how tokens are drawn.
        streams: one random stream for each picture.
        report: the callback after every forward pass of the target.
        guidance_scale: with which the target begins.
        row_tokens: int64 [count], tokens of each picture; None: all have `num_tokens`.
        forced_tokens: int64 [count, num_tokens], see `specdecode.loop.DecodeRun`; None: all are drawn.
        picture_tokens: int64 [count, num_tokens], those that the users' pictures are made of; None: there are none.
        num_candidates: pictures that are drawn for each, of which one is given.
        offloaded: the model comes to its device only when it is called, so a stream draws fixed batches.
    """

    start: Callable[[range, BatchSlot], tuple[PictureTarget, Method]]
    images: Callable[[Tensor, range], Any]
    num_tokens: int
    longest_prompt: Callable[[], int]
    sampling: SamplingConfig
    streams: RandomStreams
    report: StepReport
    guidance_scale: float = 1.0
    row_tokens: Tensor | None = None
    forced_tokens: Tensor | None = None
    picture_tokens: Tensor | None = None
    num_candidates: int = 1
    offloaded: bool = False

    def edited(
        self,
        settings: DrawSettings,
        grids: Sequence[Grid],
        pixels_a_code: int,
        encode: Callable[[Tensor], Tensor] | None,
        title: str,
        forced: Callable[[Grid], Tensor] = forced_nowhere,
    ) -> PictureRequest:
        """This request with users' pictures, if there are any. Raises UserError as `known_pictures`.

        Args:
            settings: of the call.
            grids, pixels_a_code, encode, title: see `known_pictures`.
            forced: int64 [N], the tokens that a grid forces, -1 where there is a code.
        """
        known = known_pictures(settings, grids, pixels_a_code, encode, title)
        if known is None:
            return self
        copies, make = self.count // len(known), self.images
        of_each = [picture for picture in known for _ in range(copies)]
        given, whole = tokens_of(known, copies, [*map(forced, grids)], self.num_tokens, self.streams.keys.device)
        most = int((given >= 0).long().cumprod(1).sum(1).max()) + 1
        run = min(longest_known(given), _MOST_KNOWN_AT_ONCE)

        def images(tokens: Tensor, pictures: range) -> Any:
            made = make(tokens, pictures)
            return paste(made, of_each[pictures.start : pictures.stop], settings.output_type)

        def start(pictures: range, place: BatchSlot) -> tuple[PictureTarget, Method]:
            return self.start(pictures, replace(place, num_given=most, num_known=run))

        return replace(
            self,
            start=start,
            images=images if settings.paste_back else make,
            forced_tokens=given,
            picture_tokens=whole,
            num_candidates=settings.num_candidates,
        )

    @property
    def count(self) -> int:
        """The number of pictures."""
        return self.streams.batch_size

    def run(self, pictures: range, target: PictureTarget, players: Method, trace: DecodeTrace) -> DecodeRun:
        """A run over the pictures of these numbers that is not yet started; arguments as `start` gave them."""
        part = slice(pictures.start, pictures.stop)
        return new_run(
            target,
            max_new_tokens=self.num_tokens,
            sampling=self.sampling,
            streams=self.streams.part(part.start, part.stop),
            row_tokens=None if self.row_tokens is None else self.row_tokens[part],
            forced_tokens=None if self.forced_tokens is None else self.forced_tokens[part],
            trace=trace,
            compiler=target.compiler,
            drafter=players.drafter,
            verifier=players.verifier,
            schedule=players.schedule,
            order=players.order,
        )


def check_guided_tokens(guided_tokens: int | None, method: ImageMethodConfig, compiles: bool) -> None:
    """Refuse a number of guided tokens out of range, and what needs all rows to the end. Raises UserError.

    Args:
        guided_tokens: of a call; None: guidance leads all tokens.
        method: of the call.
        compiles: whether steps are graphs.
    """
    if guided_tokens is None:
        return
    bounds.check_number("guided_tokens", guided_tokens, 1, bounds.MAX_COUNT)
    if "drafter" in method.weights:
        raise UserError(
            f"guided_tokens leaves out a row that the drafter of {method.name} reads; use jacobi, scd or rows-fast"
        )
    if compiles:
        raise UserError("compile: guided_tokens decides between steps what they feed, so leave one of them out")


def check_count_and_type(num_images_per_prompt: int, output_type: str = "latent") -> None:
    """Refuse less than one picture and an unknown type. Raises UserError."""
    bounds.check_number("num_images_per_prompt", num_images_per_prompt, 1, bounds.MAX_BATCH_SIZE)
    bounds.check_choice("output_type", output_type, OUTPUT_TYPES)


def check_size(image_size: int, height: int | None, width: int | None) -> None:
    """Refuse another size than the only one a model makes. Raises UserError."""
    for name, size in (("height", height), ("width", width)):
        if size is not None and size != image_size:
            raise UserError(f"{name} must be {image_size}, the only size this model makes, got {size}")


def check_prompts(prompt: str | Sequence[str] | None) -> list[str]:
    """One or several prompts as a list. Raises UserError for none, an empty one, or one that is not text."""
    prompts = [prompt] if isinstance(prompt, str) else list(prompt or ())
    if not prompts:
        raise UserError("prompt must hold at least one prompt, got an empty list")
    for index, text in enumerate(prompts):
        if not isinstance(text, str):
            raise UserError(f"prompt must be a string or a list of strings, got {type(text).__name__}")
        if not text.strip():
            which = "prompt" if isinstance(prompt, str) else f"prompt {index + 1}"
            raise UserError(f"{which} is empty; describe the picture in words")
    return prompts


def negative_prompts(negative_prompt: str | Sequence[str] | None, num_prompts: int) -> list[str] | None:
    """A negative prompt for each prompt; None: there is none, or all are empty, and guidance leads away from the
    model's own null prompt. Raises UserError for another number of them, and for empty ones among others."""
    if negative_prompt is None:
        return None
    each = [negative_prompt] * num_prompts if isinstance(negative_prompt, str) else list(negative_prompt)
    if wrong := [text for text in each if not isinstance(text, str)]:
        raise UserError(f"negative_prompt must be a string or a list of strings, got {type(wrong[0]).__name__}")
    if len(each) != num_prompts:
        raise UserError(
            f"negative_prompt must be one for all prompts or one for each, {num_prompts} here; got {len(each)}"
        )
    return each if any(text.strip() for text in each) else None


def negative_words(
    negative_prompt: str | Sequence[str] | None, num_prompts: int, name: str, instead: Tensor | None
) -> list[str] | None:
    """`negative_prompts` where an empty one stands for no words, or a tensor stands in the place of them all.

    Args:
        negative_prompt, num_prompts: of the call.
        name: of the argument that may be given instead.
        instead: its value.

    Raises:
        UserError: as `negative_prompts`; also for empty ones among others, and for both or another number of them.
    """
    texts = negative_prompts(negative_prompt, num_prompts)
    if instead is not None and texts is not None:
        raise UserError(f"negative_prompt or {name} must be given, and not both")
    if instead is not None and len(instead) != num_prompts:
        raise UserError(f"{name} must hold one for each prompt, {num_prompts}; got {len(instead)}")
    if texts is not None and not all(text.strip() for text in texts):
        raise UserError("negative_prompt must be empty for all prompts or for none; draw them in two calls")
    return texts


def check_sampling(temperature: float, top_k: int, top_p: float, guidance_scale: float) -> SamplingConfig:
    """How tokens are drawn. Raises UserError for a setting out of range; guidance is checked too."""
    bounds.check_sampling_bounds(temperature, top_k, top_p, guidance_scale)
    return SamplingConfig(temperature, top_k, top_p)


def random_streams(
    generator: torch.Generator | Sequence[torch.Generator] | None,
    batch_size: int,
    device: torch.device,
    is_greedy: bool = False,
) -> RandomStreams:
    """One stream for each picture. A single generator gives each picture its own stream, in order; without one, greedy
    decoding leaves torch's own as it is. Raises UserError for a list of another length than there are pictures."""
    if generator is None and is_greedy:
        return RandomStreams.from_seeds(range(batch_size), device)
    if generator is None or isinstance(generator, torch.Generator):
        return RandomStreams.from_generators([generator] * batch_size, device)
    generators = list(generator) if isinstance(generator, Iterable) else [generator]
    if wrong := [each for each in generators if not isinstance(each, torch.Generator | None)]:
        raise UserError(
            f"generator must hold torch.Generator objects, got {wrong[0]!r}; manual_seed makes one of a seed"
        )
    if len(generators) != batch_size:
        raise UserError(f"generator must be one per picture, {batch_size} here, or a single one; got {len(generators)}")
    return RandomStreams.from_generators(generators, device)


@contextmanager
def finite_logits(first: int, of_what: str) -> Iterator[None]:
    """Turn the core's error about logits into a user's, which counts pictures from `first`."""
    try:
        yield
    except LogitsError as error:
        picture = first + error.row
        raise NotFiniteError(
            picture,
            f"picture {picture + 1} {of_what}: the model's logits are not finite at step {error.step}: numbers too "
            f"large for its precision or for guidance_scale; give dtype float32 or a smaller scale",
        ) from error
