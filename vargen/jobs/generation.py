"""The run behind `vargen generate`: pictures from prompts into a folder, resumable.

Everything that can be refused is refused before torch is imported. Nothing stays in the folder before there is a
picture, so a failed start leaves it as it was. Picture i has the seed `seed + i` and a generator of its own. It depends
neither on the batch size, nor on the process that makes it, nor on where a run was interrupted. The first of several
candidates has that seed, too.

Belongs here: settings, the order of work, and the identity of a run. Does not belong here: printing
(`vargen.commands.generate`), files (`vargen.runs.records`), choosing among candidates (`vargen.jobs.ranking`).
"""

from __future__ import annotations

import hashlib
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.prompt_formats import FORMATS
from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_PIXELS, MAX_SEED
from vargen.base.errors import NotFiniteError, UserError
from vargen.base.options import DECODING, LOADING, OUTPUT, SAMPLING, option
from vargen.base.path_roles import READ_FILE, READ_FOLDER, READ_NAMES, writes_in
from vargen.base.picture_files import check_edit, open_picture
from vargen.base.prompts import gather_prompts
from vargen.base.reading import expanded, read_bytes
from vargen.base.resources import shipped_clip
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import SizedOptions
from vargen.jobs.cases import check_format, class_labels_of, read_benchmark
from vargen.jobs.ranking import RANKERS, ClipScorer, Ranker, best, candidate_seed
from vargen.methods.catalogue import resolve_method
from vargen.models.description import ModelDescription, open_model
from vargen.runs.files import own_folder
from vargen.runs.identity import kind_of_bits
from vargen.runs.processes import Processes, launched_processes
from vargen.runs.progress import Progress, progress
from vargen.runs.records import ImageRequest, PictureFolder

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from vargen.pipelines.loading import ImagePipeline
    from vargen.pipelines.streaming import FinishedPicture

MAX_CANDIDATES = 10_000


@dataclass(frozen=True)
class GenerateConfig(SizedOptions):
    """What to draw."""

    prompts_file: str | None = option(None, path=READ_FILE)
    """File of more prompts: .txt (one a line), .csv or .tsv (with a column "prompt"), .jsonl, .json (COCO's captions
    too), .parquet, .tar (webdataset); a folder of `datasets`, shards or texts; "hub:NAME" for a data set on the hub;
    scenes-geneval or scenes-parti, which are shipped; "-" reads lines from standard input."""
    prompts_format: str | None = option(None, choices=FORMATS)
    """What the file is of: parti, geneval, dpg or hpsv2, as published; null for prompts alone."""
    class_labels: list[int] = option(list, least=0)
    """Classes to draw instead of prompts, such as "[207, 360]", for a class-conditional model."""
    image: str | None = option(None, path=READ_FILE)
    """Picture to start from, with `mask_image` or `start_rows`: PNG, JPEG or WebP in the shape that is drawn."""
    mask_image: str | None = option(None, path=READ_FILE)
    """Picture of the same size, white where to draw."""
    start_rows: int | None = option(None, least=1, most=MAX_PIXELS)
    """Instead of a mask: so many first rows of codes stay, and what is below them is drawn."""
    paste_back: bool = False
    """Give the pixels of `image` where nothing is drawn, not the decoded ones."""
    reference_images: list[str] = option(list, path=READ_FILE)
    """Pictures that the prompts speak of, such as "[cup.png, table.png]", for a family that reads them (emu3_5, anole).
    They stand before the words, or for anole where these have <image>; emu3_5 draws in the size of the last."""
    num_images_per_prompt: int = option(1, least=1)
    """Number of pictures for every prompt."""
    num_candidates: int = option(1, least=1, most=MAX_CANDIDATES, group=SAMPLING)
    """Number of candidates for each picture; the best one is kept. The first has the picture's seed. 1 keeps the
    first."""
    ranker: str = option("judge", choices=RANKERS, group=SAMPLING)
    """Chooses the best candidate: "judge" reads scenes of the shipped model, "clip" scores any picture, "likelihood"
    asks the model how likely `image` is behind what was drawn."""
    clip: str | None = option(None, path=READ_FOLDER)
    """Folder of the CLIP model that ranks; null for the one that comes with vargen (scenes only)."""
    method: str = option("jacobi", path=READ_NAMES, group=DECODING)
    """Decoding method or preset; `vargen methods` lists them. "jacobi" draws the very pictures of plain decoding ("ar")
    in fewer passes."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the method's defaults, such as `--method_options.total_tokens 30`; `vargen methods
    --json` shows them all."""
    batch_size: int = option(8, least=1, most=MAX_BATCH_SIZE, group=DECODING)
    """Number of pictures that are drawn at once. It changes speed and memory, not the pictures."""
    dtype: str = "auto"
    """Precision of the transformer: float32, bfloat16 or float16. "auto" is that of the run that is continued, else
    bfloat16 on a GPU, and on a CPU that multiplies it for models published in it; else float32. The image decoder
    always works in float32."""
    continuous_batches: bool = option(True, group=DECODING)
    """Give a finished picture's place in the batch to the next prompt at once, where the family of models can. It
    changes speed, not the pictures."""
    tp_plan: str | None = option(None, choices=("auto",), group=LOADING)
    """Under torchrun "auto" splits one model over all processes by transformers' own plan, instead of the pictures."""
    output: str | None = option(None, path=writes_in("images", "traces", "result.jsonl", "config.json"), group=OUTPUT)
    """Folder for images/000000.png and so on, result.jsonl and config.json. The same command continues a stopped run;
    finished pictures stay. null for out, or for out-2 and so on where that holds another run."""
    trace_image: bool = option(False, group=OUTPUT)
    """Also write traces/000000.png for each picture. It shows where each token came from, and the passes in time.
    Pictures without one are drawn again, the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_format(self.prompts_format, self.prompts_file)
        resolve_method(self.method, self.method_options)
        check_edit(self.image, self.mask_image, self.start_rows, self.paste_back)
        if self.ranker == "likelihood" and self.num_candidates > 1 and self.image is None:
            raise UserError("ranker likelihood needs image: it compares candidates by the tokens that stay")
        if self.tp_plan is not None and (self.device_map is not None or launched_processes() < 2):
            raise UserError("tp_plan needs several processes of torchrun, and no device_map; leave it out")

    @property
    def beside_model(self) -> dict[str, str]:
        return super().beside_model | ({} if self.tp_plan is None else {"tp_plan": self.tp_plan})


@dataclass
class RunTotals:
    """The number of a run's pictures, and the cost of the new ones.

    Args:
        images: pictures in the folder at the end.
        new_images: pictures that this run made, in all its processes.
        tokens: image tokens of all new pictures.
        forward_passes: passes of the transformer over a batch. Prefills count, also those of rows that join a batch.
        seconds: by phase: load, encode_prompt, prefill, decode, decode_images, and save.
        output: the folder.
    """

    images: int = 0
    new_images: int = 0
    tokens: int = 0
    forward_passes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    output: str = ""

    @property
    def ms_per_token(self) -> float | None:
        """Milliseconds of prefill and decoding per token, all pictures of a batch together; None without tokens."""
        decoding = self.seconds.get("prefill", 0.0) + self.seconds.get("decode", 0.0)
        return 1000 * decoding / self.tokens if self.tokens else None

    @classmethod
    def of_processes(cls, shares: Sequence[RunTotals]) -> RunTotals:
        """The sum of all processes, with the seconds of the slowest in each phase."""
        together = cls(
            new_images=sum(share.new_images for share in shares),
            tokens=sum(share.tokens for share in shares),
            forward_passes=sum(share.forward_passes for share in shares),
            output=shares[0].output,
        )
        for phase, seconds in ((phase, seconds) for share in shares for phase, seconds in share.seconds.items()):
            together.seconds[phase] = max(seconds, together.seconds.get(phase, 0.0))
        return together

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def generate(
    config: GenerateConfig,
    prompts: Sequence[str],
    judge_ranker: Callable[[int], Ranker],
    quiet: bool = False,
) -> RunTotals | None:
    """Make the missing pictures.

    Args:
        config: what to draw, how, and where.
        prompts: beside those of the config's file.
        judge_ranker: gives a ranker of candidates by their content, from the side of a picture in pixels. It is called
            only where the config asks for it.
        quiet: show no progress.

    Returns:
        The number and cost of the pictures. Where several processes share the run, the main one returns those of all,
        and the others return None.

    Raises:
        UserError: pictures that cannot be made, or a folder of another run. Nothing has been written then.
        KeyboardInterrupt: with a message that says how many pictures are finished.
    """
    shared = launched_processes() > 1
    if shared and config.prompts_file == "-":
        raise UserError("prompts_file: standard input cannot be read by several processes; name a file")
    run = _Run(config, prompts, judge_ranker, quiet)
    if shared:
        return _share(run)
    with own_folder(run.totals.output, PictureFolder.INSIDE):
        run.open_folder()
        if missing := run.results.missing:
            run.fill(missing, run.results.add, config.device)
        else:
            run.results.begin({})
        run.totals.images = len(run.results.records)
        return run.totals


def _share(run: _Run) -> RunTotals | None:
    """Make this process's share of a run. The main process returns the totals of all.

    With a split model every process draws all pictures, and the main one keeps them. Else the shares are settled before
    any picture is made. A picture carries its record, so one process alone writes `result.jsonl`, when all have
    finished.
    """
    processes = Processes.start(run.config.device)
    device = run.config.device if run.config.device_map is not None else str(processes.device)
    try:
        with own_folder(run.totals.output, PictureFolder.INSIDE) if processes.is_main else nullcontext():
            processes.wait()  # until the folder is there, and cleared of what a kill left
            run.open_folder()
            missing, split = run.results.missing, run.config.tp_plan is not None
            keep: Callable[..., None] = run.results.save if processes.is_main or not split else lambda *_: None
            if not split:
                missing = missing[processes.rank :: processes.count]
            processes.wait()  # until every process has looked
            with warnings.catch_warnings():
                if not processes.is_main:  # warnings are printed once
                    warnings.simplefilter("ignore")
                    run.quiet = True
                if missing:
                    run.fill(missing, keep, device)
            together = RunTotals.of_processes(processes.gather(run.totals)[: 1 if split else None])
            if not processes.is_main:
                return None
            run.results.scan()
            run.results.begin({})
            together.images = len(run.results.records)
            return together
    finally:
        processes.leave()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read_conditions(config: GenerateConfig, prompts: Sequence[str], model: ModelDescription) -> list[str] | list[int]:
    """The prompts or class labels of the run. Raises UserError for none, or for those of another model."""
    if model.num_classes is not None and (prompts or config.prompts_file is not None):
        raise UserError("prompts cannot be used: the model is class-conditional; give --class_labels")
    if labels := class_labels_of(model, config.class_labels):
        return labels
    if config.prompts_format is None:
        gathered = gather_prompts(prompts, config.prompts_file)
    else:
        assert config.prompts_file is not None
        asked = read_benchmark(config.prompts_file, config.prompts_format)
        gathered = [*gather_prompts(prompts), *(each.prompt for each in asked)]
    if not gathered:
        raise UserError("a prompt must be given, in quotes, or a file of them with --prompts_file")
    return gathered


def _build_requests(config: GenerateConfig, conditions: list[str] | list[int], image_size: int) -> list[ImageRequest]:
    """Every picture of the run. Raises UserError where a run cannot hold so many, or seeds run out."""
    count = len(conditions) * config.num_images_per_prompt
    if count > MAX_PICTURES:
        raise UserError(
            f"num_images_per_prompt: {count:,} pictures are more than the {MAX_PICTURES:,} that a run can hold; at one "
            f"a second they take {count / 31_557_600:,.1f} years, and up to {count * 3 * image_size**2 / 1e12:,.1f} TB "
            "of disk; ask for fewer"
        )
    if config.seed + count > MAX_SEED:
        raise UserError(f"seed must leave room for {count} pictures below 2**63, got {config.seed}")
    repeated = [each for each in conditions for _ in range(config.num_images_per_prompt)]
    return [
        ImageRequest(index, config.seed + index, **{"text" if isinstance(each, str) else "class_label": each})  # type: ignore[arg-type]
        for index, each in enumerate(repeated)
    ]


_MOST_IN_A_STREAM = 4096
"""Pictures of one stream. Rows idle at its end, which costs little after this number."""


class _Run:
    """A run as one process sees it: the pictures of its folder, and the settings of the missing ones.

    Args:
        config, prompts, judge_ranker, quiet: of `generate`.

    Attributes:
        model: sized as the config asks.
        requests: all pictures.
        totals: of this process.
        settings: everything that decides the pictures.
        results: the folder; there after `open_folder`.
        pipeline, ranker: that draw and rank; there while the folder is filled.
    """

    results: PictureFolder
    pipeline: ImagePipeline
    ranker: Ranker | None

    def __init__(
        self, config: GenerateConfig, prompts: Sequence[str], judge_ranker: Callable[[int], Ranker], quiet: bool
    ) -> None:
        self.config, self.quiet = config, quiet
        self.model = open_model(config).sized(config.height, config.width, config.ratio)
        shown = [read_bytes(expanded(path), "reference_images") for path in config.reference_images]
        references = [open_picture(content, "reference_images") for content in shown]
        if references:
            self.model = self.model.reading([each.size for each in references])
        self._conditions = _read_conditions(config, prompts, self.model)
        self.requests = _build_requests(config, self._conditions, self.model.image_size)
        self._judge_ranker = judge_ranker
        files = {name: path for name in ("image", "mask_image") if (path := getattr(config, name)) is not None}
        contents = {name: read_bytes(expanded(path), name) for name, path in files.items()}
        self._edit: dict[str, Any] = {name: open_picture(content, name) for name, content in contents.items()}
        self._digests: dict[str, Any] = {name: _sha256(content) for name, content in contents.items()}
        if self._edit:
            self._edit |= {"start_rows": config.start_rows, "paste_back": config.paste_back}
        if references:
            self._edit["reference_images"] = references
            self._digests["reference_images"] = list(map(_sha256, shown))
        self._method = self.model.resolve_method(config.method, config.method_options)
        self.settings = self._all_settings()
        self.totals = RunTotals(seconds={"load": 0.0}, output=config.output or self._free_place())

    def _all_settings(self) -> dict[str, Any]:
        config, model = self.config, self.model
        ranking = {name: getattr(config, name) for name in ("num_candidates", "ranker", "clip")}
        return {
            "weights": weights_fingerprint(model.folder),
            **config.identity,
            "method": self._method.to_dict(),
            **model.sampling(**config.sampling),
            **model.size,
            "dtype": config.dtype,
            "seed": config.seed,
            "num_images_per_prompt": config.num_images_per_prompt,
            **(ranking if config.num_candidates > 1 else {}),
            **self._edit,
            **self._digests,
            "prompts" if model.num_classes is None else "class_labels": self._conditions,
        }

    def _free_place(self) -> str:
        """The first of out, out-2 and so on that is new or holds this very run."""

        def fits(place: str) -> bool:
            try:
                self._settings_in(PictureFolder(place, self.requests))
            except UserError:
                return False
            return not Path(place).exists() or Path(place).is_dir()

        return next(filter(fits, itertools.chain(["out"], map("out-{}".format, itertools.count(2)))))

    def _settings_in(self, folder: PictureFolder) -> dict[str, Any]:
        """The settings, with the precision of the run that began the folder where none is asked for. Raises UserError
        for another run's folder."""
        earlier, settings = folder.earlier_settings(), self.settings
        if settings["dtype"] == "auto" and earlier is not None:
            settings = settings | {"dtype": earlier.get("dtype")}
        if settings["dtype"] != "auto":
            settings = self._with_kind(settings)
            folder.check_identity(settings)
        return settings

    def _with_kind(self, settings: dict[str, Any], device: str | None = None) -> dict[str, Any]:
        """The settings and what multiplies on the device, where bits depend on it."""
        config, dtype = self.config, settings["dtype"]
        is_quantized = bool(config.quantization or config.draft_quantization)
        if dtype == "float32" and not is_quantized:
            return settings  # without torch: a finished folder is told at once
        from vargen.pipelines.loading import place_and_precision

        return settings | kind_of_bits(device or place_and_precision(config.device, dtype)[0], dtype, is_quantized)

    def open_folder(self) -> None:
        """Find the finished pictures, and the settings of the others. Raises UserError for another run's folder."""
        self.results = PictureFolder(self.totals.output, self.requests, self.config.trace_image)
        self.settings = self._settings_in(self.results)
        self.results.scan()

    def fill(self, missing: Sequence[ImageRequest], keep: Callable[..., None], device: str) -> None:
        """Load the model, make missing pictures, and `keep` each as soon as it is finished."""
        from vargen.pipelines.arguments import PromptWarning, warn_of_prompts
        from vargen.pipelines.loading import load_pipeline

        config, model, began = self.config, self.model, time.perf_counter()
        place = replace(config, dtype=self.settings["dtype"], device=device)
        self.pipeline, device, self.settings["dtype"] = load_pipeline(model, place, self.quiet)
        self.settings = self._with_kind(self.settings, device)
        self.totals.add_seconds("load", time.perf_counter() - began)
        self.totals.new_images = len(missing)
        prompts = list(dict.fromkeys(request.text for request in self.requests if request.text is not None))
        if not config.reference_images:  # their room is looked at when pictures are read
            warn_of_prompts(self.pipeline, [*prompts, config.negative_prompt], **model.size)
        self.ranker = self._ranker(prompts)
        self.results.begin(self._describe(device))
        num_tokens = len(missing) * config.num_candidates * model.num_tokens
        at_once = max(1, _MOST_IN_A_STREAM // config.num_candidates)
        with progress(num_tokens, "tokens", self.quiet) as shown, warnings.catch_warnings():
            warnings.simplefilter("ignore", PromptWarning)  # printed once, for all prompts
            count = _TokenCount(shown)
            try:
                for first in range(0, len(missing), at_once):
                    self._draw(missing[first : first + at_once], keep, count)
            except KeyboardInterrupt:
                done = sum(request.index in self.results.records for request in missing)
                raise KeyboardInterrupt(
                    f"{done} of {len(missing)} new images are finished; the same command makes the rest"
                ) from None

    def _ranker(self, prompts: Sequence[str]) -> Ranker | None:
        """The ranker of candidates; None for a single one. Raises UserError where it cannot score them."""
        config = self.config
        if config.num_candidates == 1 or config.ranker == "likelihood":
            return None
        if not prompts:
            raise UserError("num_candidates must be 1 for a class-conditional model: there is no prompt to rank by")
        if config.ranker == "judge":
            ranker = self._judge_ranker(self.model.image_size)
        else:
            ranker = ClipScorer(shipped_clip() if config.clip is None else Path(config.clip))
        ranker.check(prompts)
        return ranker

    def _describe(self, device: str) -> dict[str, Any]:
        """The content of config.json."""
        import diffusers
        import torch
        import transformers

        import vargen

        return {
            "settings": self.settings,
            "options": asdict(self.config),
            "model_folder": str(self.model.folder.resolve()),
            "device": device,
            "follows_the_clock": self._method.follows_the_clock,
            "versions": {each.__name__: each.__version__ for each in (vargen, torch, diffusers, transformers)},
        }

    def _draw(self, requests: Sequence[ImageRequest], keep: Callable[..., None], count: _TokenCount) -> None:
        """Make and keep pictures in one stream."""
        import torch

        from vargen.pipelines.streaming import open_stream

        config, num_tokens = self.config, self.model.num_tokens
        candidates = [(request, number) for request in requests for number in range(config.num_candidates)]
        seeds = [candidate_seed(request.seed, number) for request, number in candidates]
        stream = open_stream(
            self.pipeline,
            config.continuous_batches,
            **self._arguments([request for request, _ in candidates]),
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            batch_size=config.batch_size,
            method=self._method,
            callback_on_step_end=count.step,
        )
        # The finished candidates of each request, by number.
        made: dict[int, dict[int, FinishedPicture]] = {request.index: {} for request in requests}
        try:
            for picture in stream:
                count.finished(num_tokens)
                self.totals.tokens += num_tokens
                request, number = candidates[picture.index]
                own = made[request.index]
                own[number] = picture
                if len(own) == config.num_candidates:
                    began = time.perf_counter()
                    keep(request, *self._choose(request, [own[each] for each in sorted(own)]))
                    phase = "save" if config.num_candidates == 1 else "rank_and_save"
                    self.totals.add_seconds(phase, time.perf_counter() - began)
                    del made[request.index]
        except NotFiniteError as error:
            raise UserError(f"{candidates[error.row][0].image_path}: {error}") from error
        except torch.OutOfMemoryError as error:
            told = f"batch_size {config.batch_size} needs more memory than {self.pipeline.device} has"
            raise UserError(f"{told}; give a smaller one") from error
        finally:
            self.totals.forward_passes += stream.trace.target_passes
            for phase, seconds in stream.trace.phase_seconds.items():
                self.totals.add_seconds(phase, seconds)

    def _choose(
        self, request: ImageRequest, candidates: Sequence[FinishedPicture]
    ) -> tuple[Image, dict[str, Any], Image | None]:
        """The best candidate, the rest of its record, and its trace image, if the config asks for one."""
        from vargen.drawing.trace_image import draw_trace

        chosen, ranked = candidates[0], {}
        if len(candidates) > 1:
            if self.ranker is None:
                scores = self._likelihoods(request, candidates)
            else:
                assert request.text is not None
                scores = self.ranker.score([each.image for each in candidates], [request.text] * len(candidates))
            number = best(scores)
            chosen = candidates[number]
            ranked = {
                "candidate": number,
                "candidate_seed": candidate_seed(request.seed, number),
                "scores": [round(score, 4) for score in scores],
            }
        cost = {"tokens": chosen.trace.tokens, "forward_passes": chosen.trace.target_passes}
        measured = {**cost, "seconds": round(chosen.seconds, 4), "batch_size": chosen.batch_size, **ranked}
        drawn = None
        if self.config.trace_image:
            drawn = draw_trace(chosen.image, chosen.trace, 0, self.model.rows_and_columns, self.model.beside_grid)
        return chosen.image, measured, drawn

    def _likelihoods(self, request: ImageRequest, candidates: Sequence[FinishedPicture]) -> list[float]:
        """Log-likelihoods of the tokens of `image` behind what was drawn."""
        import torch

        from vargen.pipelines.base import beside

        asked, tokens = self._arguments([request] * len(candidates)), torch.stack([each.tokens for each in candidates])
        scored: list[float] = beside(self.pipeline).log_likelihoods(tokens, **asked)
        return scored

    def _arguments(self, requests: Sequence[ImageRequest]) -> dict[str, Any]:
        """Those of a call for the pictures of some requests."""
        name, of_each = ("prompt", "text") if self.model.num_classes is None else ("class_labels", "class_label")
        sampled = (*self.config.sampling, "height", "width")
        asked = {each: self.settings[each] for each in sampled if each in self.settings}
        return {name: [getattr(each, of_each) for each in requests], **asked, **self._edit}


class _TokenCount:
    """Progress in tokens. It reads the device only a few times a second."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown
        self.before = 0
        self.read_at = 0.0

    def finished(self, tokens: int) -> None:
        """Count a finished picture of this number of tokens. Its row belongs to another picture now."""
        self.before += tokens
        self._show(self.before)

    def step(self, pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Any]) -> None:
        """`callback_on_step_end` of the stream."""
        if self.shown.disable or time.perf_counter() - self.read_at < 0.2:
            return
        occupied = [picture is not None for picture in tensors["pictures"]]
        rows = zip(lengths.tolist(), occupied, strict=True)
        drawn = self.before + sum(length for length, counts in rows if counts)
        if self.read_at:
            self._show(drawn)
        else:
            self.shown.begin(drawn)
        self.read_at = time.perf_counter()

    def _show(self, tokens: int) -> None:
        self.shown.update(max(tokens - self.shown.n, 0))
