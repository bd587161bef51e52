"""The loop that every trainer shares: steps, schedule, averaged weights, checkpoints, log, samples, export.

A trainer gives it a `Task`: the module that is trained, the loss of one batch, its evaluation and its export. Batches
are a function of the step, so a resumed run sees the batches that it would have seen. Does not belong here: images,
tokens, and anything else that only some trainers have.
"""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from torch import Tensor, nn
from tqdm import tqdm

from vargen.base.errors import UserError
from vargen.base.reading import parse_json, reason_of
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.runs.files import append_jsonl, atomic_folder, atomic_path
from vargen.runs.identity import check_identity
from vargen.runs.processes import Processes
from vargen.training.config import CHECKPOINT_NAME, RunConfig
from vargen.training.optimizer import OptimizerGroup, learning_rate_factor, schedule_progress
from vargen.training.trackers import start_tracker

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Task:
    """The part of a trainer that differs from one model to the next.

    `module` holds everything that is saved and averaged; `extra_modules` are saved but not averaged (a discriminator).
    """

    module: nn.Module
    extra_modules: nn.Module = nn.ModuleList()

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """The matrices that Muon may train; ignored with AdamW."""
        return ()

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Scalar loss of the batch of `step`, with named scalar parts for the log."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Figures on held-out samples with the module's present weights."""
        raise NotImplementedError

    def draw_samples(self, path: Path) -> None:
        """Write a sample sheet (PNG), if the task has anything to see."""

    def export(self, folder: Path) -> None:
        """Write the module's present weights in diffusers layout, bfloat16."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        step: the last one.
        elapsed: seconds of training.
        evaluation: the last figures.
        stopped_by: the signal that stopped it before its end; None if it finished.
    """

    step: int
    elapsed: float
    evaluation: dict[str, float]
    stopped_by: int | None = None

    @property
    def finished(self) -> bool:
        """Whether it reached its end."""
        return self.stopped_by is None

    def __str__(self) -> str:
        """One line for a user, such as "1,200 steps in 20:05, loss 0.21"."""
        steps = f"{self.step:,} step{'' if self.step == 1 else 's'} in {tqdm.format_interval(self.elapsed)}"
        return ", ".join((steps, *(f"{name} {value:.4g}" for name, value in self.evaluation.items())))


def prepare(config: RunConfig) -> torch.device:
    """Set threads and the random state, and give the device. Raises UserError where there is no such device, or
    `output` is a file."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device: 'cuda' is not available here; set it to 'cpu'")
    if Path(config.output).exists() and not Path(config.output).is_dir():
        raise UserError(f"output: {config.output!r} is a file; name a folder")
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    torch.manual_seed(config.seed)
    return torch.device(config.device)


def move(module: nn.Module, device: torch.device, images: bool = False) -> None:
    """Move a module to the device; one that works on images also into the channels-last layout, the faster one."""
    module.to(device)
    if images:
        module.to(memory_format=torch.channels_last)


def autocast(config: RunConfig) -> AbstractContextManager[Any]:
    """bfloat16 autocast on the run's device, or nothing if the config turns it off."""
    return torch.autocast(config.device, dtype=torch.bfloat16, enabled=bool(config.autocast))


def train(
    config: RunConfig, task: Task, identity: dict[str, Any] | None = None, processes: Processes | None = None
) -> RunResult:
    """Train until the steps or the seconds are used up, resuming from `output` if a checkpoint is there.

    At the end the averaged weights (diffusers' `EMAModel`) are evaluated and exported to `output`/export. A run that is
    already at its end, for instance because `max_seconds` was lowered, does only this, so any run can be exported at
    any time. SIGTERM and Ctrl-C end the run after the current step with a checkpoint; a second Ctrl-C ends it at once.

    Args:
        identity: values that a checkpoint must share with the run that resumes it, beside `config.architecture()`.
        processes: that train together, each with a loss of its own share of a batch; their gradients are averaged, and
            the first one writes files. None: this one alone.

    Raises:
        UserError: the checkpoint in `output` is of another architecture or optimizer, began with other weights than
            `initial_weights` (leaving these out goes on with it), or cannot be read; or the loss or its gradient is
            not finite, which leaves the last checkpoint as it is.
    """
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = [*task.module.parameters(), *task.extra_modules.parameters()]
    optimizer = OptimizerGroup(config, parameters, task.muon_parameters())
    average = EMAModel(task.module.parameters(), config.ema_decay, foreach=True)
    identity = {**config.architecture(), **(identity or {}), "optimizer": config.optimizer}
    initial_weights: str | None = getattr(config, "initial_weights", None)
    began_with = weights_fingerprint(initial_weights) if initial_weights else None
    state = _State(config, task, optimizer, average, identity, began_with)
    checkpoint = folder / CHECKPOINT_NAME
    state.resume(checkpoint)
    is_main = processes is None or processes.is_main
    log = _Log(folder / "log.jsonl" if is_main else None, config, state)

    def judge() -> None:
        with _averaged(task, average, config.ema_decay):
            state.evaluation = task.evaluate()
        log.evaluation(state.evaluation)

    def draw() -> None:
        if not is_main:
            return
        with _averaged(task, average, config.ema_decay):
            task.draw_samples(folder / "samples" / f"{state.step:07d}.png")

    def save() -> None:
        if is_main:
            state.save(checkpoint)

    with _stop_requests() as stopped_by, log:
        last_saved = time.monotonic()
        stopped, state.elapsed = _agreed(processes, stopped_by(), state.elapsed)
        progress = schedule_progress(state.step, config.steps, state.elapsed, config.max_seconds)
        while progress < 1.0 and not stopped:
            started = time.monotonic()
            factor = learning_rate_factor(state.step, config.warmup_steps, progress, config.decay_start)
            optimizer.set_factor(factor)
            with autocast(config):
                loss, parts = task.loss(state.step, progress)
            loss.backward()
            if processes is not None:
                processes.average([each.grad for each in optimizer.parameters if each.grad is not None])
            gradient_norm = optimizer.clip(config.gradient_clip)
            state.check_finite(loss=loss, gradient_norm=gradient_norm)
            optimizer.step()
            optimizer.zero_grad()
            average.step(task.module.parameters())
            state.step += 1
            elapsed = state.elapsed + time.monotonic() - started
            stopped, state.elapsed = _agreed(processes, stopped_by(), elapsed)
            progress = schedule_progress(state.step, config.steps, state.elapsed, config.max_seconds)
            log.add({"loss": loss.detach(), **parts, "gradient_norm": gradient_norm}, config.learning_rate * factor)

            finished = progress >= 1.0
            if not finished and state.step % config.evaluate_every == 0:
                judge()
            if not finished and state.step % config.sample_every == 0:
                draw()
            if finished or time.monotonic() - last_saved >= config.checkpoint_seconds:
                save()
                last_saved = time.monotonic()
        finished = progress >= 1.0
        if finished:
            judge()
            draw()
            if is_main:
                with _averaged(task, average, config.ema_decay), atomic_folder(folder / "export") as temporary:
                    task.export(temporary)
        save()
    if processes is not None:
        processes.wait()
    return RunResult(state.step, state.elapsed, state.evaluation, None if finished else stopped)


def _agreed(processes: Processes | None, stopped_by: int | None, elapsed: float) -> tuple[int | None, float]:
    """The signal that any process caught, and the first one's clock: all of them end at one step."""
    if processes is None or processes.count == 1:
        return stopped_by, elapsed
    everyone = processes.gather((stopped_by, elapsed))
    return next((signal for signal, _ in everyone if signal), None), everyone[0][1]


@contextmanager
def _averaged(task: Task, average: EMAModel, decay: float) -> Iterator[None]:
    """Inside, the module holds the averaged weights and the global random state is set aside."""
    random_state = torch.get_rng_state()
    was_training = task.module.training
    task.module.eval()
    if decay:
        average.store(task.module.parameters())
        average.copy_to(task.module.parameters())
    try:
        yield
    finally:
        if decay:
            average.restore(task.module.parameters())
        task.module.train(was_training)
        torch.set_rng_state(random_state)


@dataclasses.dataclass
class _State:
    """Everything that a checkpoint holds.

    Attributes:
        began_with: fingerprint of the weights that the run began with; None for new ones.
        saved_step: of the last checkpoint; None before the first.
    """

    config: RunConfig
    task: Task
    optimizer: OptimizerGroup
    average: EMAModel
    identity: dict[str, Any]
    began_with: str | None
    step: int = 0
    elapsed: float = 0.0
    evaluation: dict[str, float] = dataclasses.field(default_factory=dict)
    saved_step: int | None = None

    def check_finite(self, **values: Tensor) -> None:
        """Refuse to learn from a step with a scalar that is NaN or infinite: the weights would become so."""
        for name, value in values.items():
            if not math.isfinite(value.item()):
                step = self.saved_step
                kept = "there is no checkpoint yet" if step is None else f"the checkpoint is of step {step}"
                said = f"{name} {value.item()} is not finite at step {self.step + 1}"
                raise UserError(f"{said}; lower learning_rate ({kept})")

    def save(self, path: Path) -> None:
        """Write the checkpoint; a kill leaves the old or the new one."""
        random_states = {"cpu": torch.get_rng_state()}
        if self.config.device == "cuda":
            random_states["cuda"] = torch.cuda.get_rng_state()
        content = {
            "architecture": json.dumps(self.identity),
            "module": self.task.module.state_dict(),
            "extra_modules": self.task.extra_modules.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "elapsed": self.elapsed,
            "evaluation": self.evaluation,
            "random_states": random_states,
            "began_with": self.began_with,
        }
        with atomic_path(path) as temporary, open(temporary, "wb") as file:  # an open file reports a full disk
            torch.save(content, file)
        self.saved_step = self.step

    def resume(self, path: Path) -> None:
        """Load the checkpoint at `path` if there is one. Raises UserError where it is damaged, or of another run."""
        if not path.exists():
            return
        remedy = "remove it to start anew"
        try:
            with zipfile.ZipFile(path) as content:  # torch loads garbled numbers silently
                if garbled := content.testzip():
                    raise ValueError(f"{garbled} is garbled")
            saved = torch.load(path, map_location=self.config.device, weights_only=True)
            identity, began_with = parse_json(saved["architecture"]), saved["began_with"]
        except Exception as error:  # a damaged file can raise anything
            raise UserError(f"output: {path} cannot be read ({reason_of(error)}); {remedy}") from error
        check_identity(path, identity, self.identity, holds="a run", remedy="change it back or choose another output")
        if self.began_with not in (None, began_with):
            named = f"initial_weights {self.config.to_dict()['initial_weights']!r}"
            held = f"output: {path.parent} already holds a run that did not begin with {named}"
            raise UserError(f"{held}; choose another output, or leave initial_weights out to go on with it")
        self.began_with = began_with
        try:
            self.task.module.load_state_dict(saved["module"])
            self.task.extra_modules.load_state_dict(saved["extra_modules"])
            # Not the decay: it is this run's.
            self.average.shadow_params = saved["average"]["shadow_params"]
            self.average.optimization_step = saved["average"]["optimization_step"]
            self.optimizer.load_state_dict(saved["optimizer"])
            self.step, self.elapsed, self.evaluation = saved["step"], saved["elapsed"], saved["evaluation"]
            self.saved_step = self.step
            torch.set_rng_state(saved["random_states"]["cpu"].cpu())
            if self.config.device == "cuda" and "cuda" in saved["random_states"]:
                torch.cuda.set_rng_state(saved["random_states"]["cuda"].cpu())
        except Exception as error:
            raise UserError(f"output: {path} is of another run ({reason_of(error)}); {remedy}") from error


class _Log:
    """The JSONL log of a run, and its display: a bar on a terminal, one line for each entry elsewhere."""

    def __init__(self, path: Path | None, config: RunConfig, state: _State):
        self.path, self.config, self.state = path, config, state
        self.sums: dict[str, Tensor] = {}
        self.count, self.since = 0, state.elapsed
        self.first = (state.step, state.elapsed)
        self.tracker: Any = None

    def __enter__(self) -> _Log:
        hidden = self.path is None or not sys.stderr.isatty()
        self.bar = tqdm(total=self.config.steps, initial=self.state.step, disable=hidden, unit="step", smoothing=0.05)
        event = {"event": "resume" if self.state.step else "start", "step": self.state.step, **self.config.to_dict()}
        self._write(event)
        self._say(f"{event['event']} at step {self.state.step}: {self.config.output}")
        if self.path is not None:
            self.tracker = start_tracker(self.config.log_with, self.path.parent, self.config.to_dict())
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.tracker is not None:
            self.tracker.finish()

    def _write(self, event: dict[str, Any]) -> None:
        if self.path is not None:
            append_jsonl(self.path, event)

    def _track(self, values: Mapping[str, float], prefix: str) -> None:
        """Show numbers where the run is watched."""
        if self.tracker is not None:
            self.tracker.log({f"{prefix}/{name}": value for name, value in values.items()}, step=self.state.step)

    def add(self, values: dict[str, Tensor], learning_rate: float) -> None:
        """Count one step; every `log_every` steps write the means since the last entry."""
        self.bar.update()
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.count += 1
        if self.state.step % self.config.log_every:
            return
        means = {name: value.item() / self.count for name, value in self.sums.items()}
        state, config = self.state, self.config
        samples_per_second = self.count * config.batch_size / max(1e-9, state.elapsed - self.since)
        entry = {
            "step": state.step,
            **{name: round(value, 6) for name, value in means.items()},
            "lr": learning_rate,
            "samples_per_second": round(samples_per_second, 2),
            "elapsed": round(state.elapsed, 1),
            "eta": round(self._eta(), 1),
        }
        self._write(entry)
        self._track({name: value for name, value in entry.items() if name not in ("step", "eta")}, "train")
        parts = "  ".join(f"{name} {value:.4f}" for name, value in means.items())
        self.bar.set_postfix_str(f"loss {means['loss']:.4f}")
        self._say(
            f"step {state.step}  {parts}  lr {learning_rate:.2e}  {samples_per_second:.1f}/s  "
            f"{tqdm.format_interval(state.elapsed)} done, {tqdm.format_interval(entry['eta'])} to go"
        )
        self.sums, self.count, self.since = {}, 0, state.elapsed

    def evaluation(self, values: dict[str, float]) -> None:
        """Write the figures of one evaluation."""
        self._write({"event": "evaluation", "step": self.state.step, **values})
        self._track(values, "evaluation")
        self._say("held out: " + "  ".join(f"{name} {value:.4g}" for name, value in values.items()), always=True)

    def _eta(self) -> float:
        """Seconds until the steps or the time are used up, whichever comes first."""
        steps_done = self.state.step - self.first[0]
        seconds_per_step = (self.state.elapsed - self.first[1]) / max(1, steps_done)
        left = (self.config.steps - self.state.step) * seconds_per_step
        if self.config.max_seconds is not None:
            left = min(left, self.config.max_seconds - self.state.elapsed)
        return max(0.0, left)

    def _say(self, line: str, always: bool = False) -> None:
        if self.path is not None and (self.bar.disable or always):
            tqdm.write(line, file=sys.stderr)


@contextmanager
def _stop_requests() -> Iterator[Callable[[], int | None]]:
    """Catch SIGTERM and the first Ctrl-C; gives a function that returns the first signal caught, or None."""
    received: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if number == signal.SIGINT and len(received) > 1:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, handle) for number in _SIGNALS}
    except ValueError:  # signals can be caught, and arrive, in the main thread only
        before = {}
    try:
        yield lambda: int(received[0]) if received else None
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
