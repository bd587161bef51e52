"""Quality of pictures by a named protocol: make them or take given ones, measure them, score them.

The order of work: refuse what can be refused; make the pictures of every method; measure them and the reference; score.
Every step is cut into batches, and one process makes a batch whole (`vargen.runs.batches`). A run can be killed at any
moment and continued by any number of processes, and ends in the same scores.

Belongs here: settings, the order of work, and cases. Does not belong here: the steps
(`vargen.jobs.evaluated_pictures`), reports (`vargen.commands.evaluate`). Importing this imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.prompt_formats import FORMATS
from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_PIXELS
from vargen.base.errors import UserError
from vargen.base.options import DECODING, OUTPUT, option
from vargen.base.path_roles import READ, READ_FILE, READ_FOLDER, READ_NAMES, writes_in
from vargen.base.picture_files import check_edit
from vargen.base.prompts import gather_prompts, read_column
from vargen.base.reading import read_yaml
from vargen.base.resources import configs_folder, shipped_clip
from vargen.base.world import missing_world
from vargen.checkpoints.options import SamplingOptions
from vargen.jobs.cases import BenchmarkCase, World, asked_cases, can_read, check_format, read_benchmark, written_cases
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import read_method_list
from vargen.models.description import ModelDescription, open_model
from vargen.runs.files import own_folder
from vargen.runs.processes import Processes

if TYPE_CHECKING:
    import torch

    from metrics.protocol import Protocol
    from metrics.quality import Reference
    from vargen.jobs.edits import Edits
    from vargen.jobs.evaluated_pictures import CaptionNames
    from vargen.jobs.measuring import Networks
    from vargen.runs.batches import PictureBatches

_USUAL_COUNT = 2000
"""Pictures where neither the user nor the protocol says how many."""


@dataclass(frozen=True)
class EvaluateConfig(SamplingOptions):
    """What to evaluate."""

    protocol: str | None = option(None, path=READ_NAMES)
    """Name of a shipped protocol (scenes, scenes-efficientnet, scene-prompts, prompts, coco2014-30k,
    coco2017-5k-longest, imagenet-50k) or a YAML file with the same fields; null for scenes, or for scene-prompts with a
    prompts_file, or for prompts with a model that does not draw the project's own scenes."""
    num_prompts: int | None = option(None, least=2, most=MAX_PICTURES)
    """Number of prompts or classes; null for the protocol's, or 2000 where it has none."""
    num_images_per_prompt: int = option(1, least=1, most=MAX_PICTURES)
    """Number of pictures of each."""
    prompts_file: str | None = option(None, path=READ_FILE)
    """Captions, one for each picture in its order, in any form that `vargen generate` reads."""
    prompts_format: str | None = option(None, choices=FORMATS)
    """What the captions are of: parti, geneval, dpg or hpsv2, as published. Scores are then told by group, too. null
    for captions alone."""
    given_images: str | None = option(None, path=READ)
    """Folder or .npz file of pictures to evaluate, instead of making any. Those of a folder are paired with captions by
    name: that of the caption's file, file_name or image_id, or the number of the caption, from 0 or 1 on."""
    image: str | None = option(None, path=READ)
    """Folder or .npz file of pictures to edit, one for each caption, paired as `given_images` are; null with
    `mask_image` or `start_rows` for renders of the protocol's own captions. What the edit kept and drew is then scored,
    too."""
    mask_image: str | None = option(None, path=READ_FILE)
    """Picture of the size of the model's own, white where each picture is drawn anew."""
    start_rows: int | None = option(None, least=1, most=MAX_PIXELS)
    """Instead of a mask: so many first rows of codes stay."""
    paste_back: bool = False
    """Score edits with the pictures' own pixels where nothing is drawn, not with decoded ones."""
    methods: str = option("jacobi", path=READ_NAMES, group=DECODING)
    """Names of methods or presets, or YAML files of settings, separated by commas. They are evaluated one after the
    other."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the defaults, by method, such as `--method_options.eagle.depth 3`."""
    reference: str | None = option(None, path=READ)
    """Folder of pictures, or .npz file of pictures (arr_0) or statistics (mu, sigma), for a protocol that does not
    render its own."""
    write_npz: bool = False
    """Also write the pictures of each method as METHOD.npz, with the array arr_0 that the evaluators of ADM and
    LlamaGen read."""
    clip: str | None = option(None, path=READ_FOLDER)
    """Folder of a CLIP model; null for the one that comes with vargen (scenes only)."""
    hps: str | None = option(None, path=READ_FOLDER)
    """Folder of a CLIP model that was trained on preferences, such as HPS v2, in the layout of transformers. Its score
    is then added."""
    detector: str | None = option(None, path=READ_FOLDER)
    """Folder of a Mask2Former, OWL-ViT or OWLv2 of transformers, which finds what GenEval's prompts name. null for the
    judge of the project's own scenes, which reads prompts about them alone."""
    vqa_model: str | None = option(None, path=READ_FOLDER)
    """Folder of a BLIP of transformers, which answers DPG-Bench's questions. null leaves them unasked."""
    inception_weights: str | None = option(None, path=READ_FILE)
    """File of torch-fidelity's Inception weights; null lets torch-fidelity download them."""
    vgg_weights: str | None = option(None, path=READ_FILE)
    """File of torchvision's VGG16 weights, for a protocol that uses them."""
    batch_size: int = option(32, least=1, most=MAX_BATCH_SIZE, group=DECODING)
    """Number of pictures per call; 32, since thousands are drawn. A stopped run is continued with the same one, since
    costs are recorded by call."""
    continuous_batches: bool = option(True, group=DECODING)
    """Give a finished picture's place in the batch to the next one at once, where the family of models can. It changes
    no picture. A stopped run is continued with the same setting."""
    bootstrap: int = option(200, least=0, most=100_000)
    """Number of draws for the 95 % intervals; 0 for none."""
    output: str = option("evaluation", path=writes_in("scores.json", "table.md", "table.tex", "plot.png"), group=OUTPUT)
    """Folder for the pictures, their features, scores.json, table.md, table.tex and plot.png. The same command
    continues a stopped run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_format(self.prompts_format, self.prompts_file)
        if self.edits:
            check_edit(self.image or "renders", self.mask_image, self.start_rows, self.paste_back)
            if self.given_images is not None:
                raise UserError("given_images cannot be edited: edits are drawn here; name them as image")
        if Path(self.output).is_file():
            raise UserError(f"output: {self.output} is a file; name a folder")

    @property
    def edits(self) -> bool:
        """Whether pictures are edited."""
        return self.paste_back or any(each is not None for each in (self.image, self.mask_image, self.start_rows))

    def contenders(
        self, resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
    ) -> dict[str, ImageMethodConfig]:
        """The methods by label. Raises UserError for an unknown one, or for options of one that is not evaluated."""
        return read_method_list(self.methods, self.method_options, "methods", resolve)


@dataclass(frozen=True)
class _Request:
    """What is evaluated, by which protocol: pictures of a model, or with None given ones."""

    config: EvaluateConfig
    protocol: Protocol
    model: ModelDescription | None
    world: World | None

    @property
    def needed_world(self) -> World:
        """The world, for a protocol that asks for its captions, pictures or judge."""
        if self.world is None:
            raise missing_world(f"protocol {self.protocol.name}", "use another protocol, such as prompts")
        return self.world

    def caption_names(self, count: int) -> CaptionNames:
        """What the captions of a file are called, a picture each."""
        from vargen.jobs.evaluated_pictures import CaptionNames

        config = self.config
        if config.prompts_file is None or config.num_images_per_prompt > 1:
            return CaptionNames()
        for column in ("file_name", "image_id", "id"):
            names = read_column(config.prompts_file, (column,))
            if names is not None and (len(names) == count or config.prompts_format is None):
                return CaptionNames(names[:count], are_files=column == "file_name")
        return CaptionNames()


def load_protocol(name: str) -> Protocol:
    """A shipped protocol by name, or the protocol of a YAML file. Raises UserError for no such protocol, or a
    field that is unknown or wrong."""
    from metrics.errors import DataError
    from metrics.protocol import Protocol

    given = name.endswith((".yaml", ".yml"))
    folder = configs_folder() / "evaluate"
    shipped = sorted(each.stem for each in folder.glob("*.yaml"))
    if not given and name not in shipped:
        raise UserError(f"protocol: {name!r} is neither a YAML file nor one of: {', '.join(shipped)}")
    path = Path(name) if given else folder / f"{name}.yaml"
    try:
        content = read_yaml(path, argument="protocol")
    except FileNotFoundError:
        raise UserError(f"protocol: {path} does not exist") from None
    if not isinstance(content, dict):
        raise UserError(f"protocol: {path} must hold the fields of a protocol")
    try:
        return Protocol.from_dict({"name": path.stem, **content})
    except (DataError, TypeError) as error:
        raise UserError(f"protocol: {path}: {error}") from error


def evaluate(config: EvaluateConfig, world: World | None, quiet: bool = False) -> list[dict[str, Any]]:
    """Make the missing pictures, measure, and score.

    Args:
        config: the evaluation.
        world: gives composed captions, rendered references and the judge; None where none is installed.
        quiet: show no progress.

    Returns:
        One row for each method, on the main process; none on the others.

    Raises:
        UserError: data that does not fit the protocol, a network that is missing, or a folder of other pictures.
    """
    model = None if config.given_images is not None else open_model(config)
    usual = "scenes" if model is None or model.draws_scenes else "prompts"
    if usual == "scenes" and config.prompts_file is not None:
        usual = "prompts" if model is None else "scene-prompts"
    protocol = load_protocol(config.protocol or usual)
    if config.hps is not None:
        if protocol.captions == "class_labels":
            raise UserError(f"hps scores captions, and {protocol.name} has none; leave it out")
        protocol = replace(protocol, hps=True)
    methods = {} if model is None else config.contenders(model.resolve_method)
    asked = _Request(config, protocol, model, world)

    from vargen.jobs.evaluated_pictures import GIVEN
    from vargen.runs.batches import PictureBatches

    inside = [f"{escape(label)}{rest}" for label in (methods or (GIVEN,)) for rest in PictureBatches.INSIDE]
    processes = Processes.start(config.device)
    try:
        with own_folder(config.output, inside) if processes.is_main else nullcontext():
            rows = _evaluate(asked, methods, processes, quiet or not processes.is_main)
            processes.wait()
        return rows
    finally:
        processes.leave()


def _evaluate(
    asked: _Request, methods: Mapping[str, ImageMethodConfig], processes: Processes, quiet: bool
) -> list[dict[str, Any]]:
    import torch

    from metrics.provenance import provenance
    from metrics.speculation import CallRecord, summarise
    from vargen.jobs import evaluated_pictures as pictures
    from vargen.jobs import measuring
    from vargen.jobs.edits import edit_scores
    from vargen.jobs.figures import against_plain, benchmark_figures, score

    config, protocol, model = asked.config, asked.protocol, asked.model
    cases = _cases(asked)
    networks = _networks(asked, processes, cases)
    edits = _edits(asked, model, cases) if config.edits and model is not None else None
    output, batch_size, in_turn = Path(config.output), config.batch_size, config.continuous_batches
    run = measuring.Evaluation(config, output, batch_size, in_turn, protocol, cases, networks, processes, quiet, edits)
    path = None if config.reference is None else Path(config.reference)
    # Before anything is made, so that a wrong one costs nothing.
    pictures_given = measuring.open_reference(protocol, path)
    statistics, notes = measuring.stored_statistics(run, path)

    jobs: dict[str, PictureBatches] = {}
    if model is None:
        assert config.given_images is not None
        captions = None if protocol.captions == "class_labels" else asked.caption_names(len(cases))
        sources = {pictures.GIVEN: pictures.given_pictures(config.given_images, run.output, len(cases), captions)}
    else:
        jobs = pictures.make_pictures(run, methods, model)
        sources = {label: pictures.made_pictures(job, model.image_size) for label, job in jobs.items()}
    side = next(iter(sources.values())).side
    measured = {
        label: measuring.measure_pictures(run, label, source.read, source.folder) for label, source in sources.items()
    }
    reference: Reference | None = None
    dimensions = run.networks.extractors[protocol.extractor].num_features
    if protocol.reference == "none":
        notes = ["no reference: Frechet distance, precision and recall are left out"]
    elif statistics is not None:
        reference, gaps = measuring.stored_reference(run, statistics, pictures_given)
        notes = [*gaps, *notes]
    else:
        count, resolution = protocol.num_renders(len(cases), dimensions), protocol.resolution or side
        compared_with = pictures_given or asked.needed_world.reference(count, resolution)
        reference = measuring.measured_reference(run, compared_with)
    if not processes.is_main:
        return []

    for label, source in sources.items() if config.write_npz else ():
        measuring.write_pictures(run.output / f"{label}.npz", source.read, len(cases))
    compared = None
    if reference is not None:
        compared = {"source": config.reference or protocol.reference, "count": reference.statistics.count}
        notes += protocol.warnings(len(cases), dimensions, reference.statistics.count)
    if model is None and protocol.captions == "scenes":
        notes.append(
            f"given_images: picture i is taken to show caption i of those that {protocol.name} composes with seed "
            f"{config.seed}; for pictures of other captions name a protocol that reads a --prompts_file"
        )
    calls = {label: [CallRecord(**record) for record in job.call_records()] for label, job in jobs.items()}
    kinds = () if run.networks.judge is None else run.networks.judge.kinds
    rows = []
    for label in sources:
        row = {
            "method": label,
            "count": len(cases),
            "protocol": protocol.to_dict(),
            "resolution": protocol.resolution or side,
            "reference": compared,
            **score(protocol, measured[label], reference, kinds, config.bootstrap),
            "networks": run.networks.identity(),
            "warnings": notes,
        }
        if prompts := [case.asked for case in cases if case.asked is not None]:
            row |= {"prompts_format": config.prompts_format}
            row |= benchmark_figures(prompts, measured[label], protocol, kinds, config.bootstrap)
        if run.edits is not None:
            batches = [jobs[label].tokens.read(batch)[0] for batch in range(len(jobs[label].tokens.batches))]
            likelihoods = torch.cat([torch.from_numpy(each["log_likelihood"]) for each in batches])
            row |= edit_scores({**measured[label], "log_likelihood": likelihoods}, kinds, config.bootstrap)
        if "ar" in measured and label != "ar":
            row["against_plain"] = against_plain(measured[label], measured["ar"], protocol, kinds, config.bootstrap)
        if label in jobs:
            row |= {name: getattr(methods[label], name) for name in ("exact", "follows_the_clock")}
            row["decoding"] = summarise(calls[label], calls.get("ar"))
            row["settings"] = {name: value for name, value in jobs[label].settings.items() if name != "captions"}
        rows.append({**row, "provenance": provenance()})
    for note in notes:
        print(f"vargen: warning: {note}", file=sys.stderr)
    return rows


def _edits(asked: _Request, model: ModelDescription, cases: list[BenchmarkCase]) -> Edits:
    """What is edited. Raises UserError for pictures or a mask that cannot be used."""
    from vargen.jobs.edits import Edits, cases_about, mask_of, scaled_to
    from vargen.jobs.evaluated_pictures import given_pictures
    from vargen.runs.identity import digest

    config = asked.config
    drawn = mask_of(config.mask_image, config.start_rows, model)
    identity = {"mask": digest(drawn.flatten().int().tolist()), "paste_back": config.paste_back}
    if config.image is None:
        if asked.protocol.captions != "scenes":
            raise UserError(f"image must name the pictures to edit: {asked.protocol.name} renders none of its captions")
        own = asked.needed_world

        def before(indices: Sequence[int]) -> list[torch.Tensor]:
            return own.renders([cases[index] for index in indices], model.image_size)

        return Edits(before, drawn, cases_about(own, cases, drawn), config.paste_back, {**identity, "image": "renders"})
    given = given_pictures(config.image, Path(config.output), len(cases), asked.caption_names(len(cases)), "image")
    size = (drawn.shape[0], drawn.shape[1])
    identity["image"] = given.folder("").name  # the digest of their content
    return Edits(lambda indices: scaled_to(given.read(indices), size), drawn, None, config.paste_back, identity)


def _cases(asked: _Request) -> list[BenchmarkCase]:
    """The case of each picture. Raises UserError where the protocol asks for others."""
    from metrics.errors import DataError

    config, protocol, model = asked.config, asked.protocol, asked.model
    count = config.num_prompts or protocol.count
    if protocol.captions == "scenes":
        if config.prompts_file is not None:
            raise UserError(f"prompts_file: {protocol.name} composes its own captions; use another protocol for a file")
        if model is not None and not model.draws_scenes:
            raise UserError(
                f"protocol: {protocol.name} asks for vargen's own scenes, which a model of the family {model.family} "
                f"does not draw; use prompts, or another protocol for captions of a file"
            )
        if count is None and config.given_images is not None:
            from vargen.jobs.evaluated_pictures import open_given

            count = len(open_given(config.given_images))
        cases = asked.needed_world.sample_cases(count or _USUAL_COUNT, config.seed)
    elif protocol.captions == "class_labels":
        import torch

        # Random labels, as the published protocol draws them: not the same number of each class.
        generator = torch.Generator().manual_seed(config.seed)
        num_classes = 1000 if model is None else model.num_classes or 1000
        labels = torch.randint(num_classes, (count or _USUAL_COUNT,), generator=generator).tolist()
        cases = [BenchmarkCase(class_label=label) for label in labels]
    else:
        if config.prompts_file is None:
            raise UserError(f"prompts_file: {protocol.name} needs captions; name a .txt, .csv, .tsv or .jsonl file")
        if config.prompts_format is None:
            cases = written_cases(gather_prompts([], config.prompts_file), asked.world)
        else:
            cases = asked_cases(read_benchmark(config.prompts_file, config.prompts_format), asked.world)
        if count is not None and len(cases) < count:
            raise UserError(f"prompts_file: {config.prompts_file} holds {len(cases):,} captions, {count:,} are asked")
        cases = cases[:count]
    cases = [case for case in cases for _ in range(config.num_images_per_prompt)]
    if len(cases) > MAX_PICTURES:
        raise UserError(f"num_images_per_prompt: {len(cases):,} pictures are more than {MAX_PICTURES:,}; ask for fewer")
    try:
        protocol.check_count(len(cases))
        if protocol.captions == "file":
            assert config.prompts_file is not None
            groups = read_column(config.prompts_file, ("image_id", "id", "file_name"))
            groups = None if groups is None or config.num_images_per_prompt > 1 else groups[: len(cases)]
            protocol.check_captions([case.prompt or "" for case in cases], groups)
    except DataError as error:
        raise UserError(str(error)) from error
    if model is not None:
        by_class = model.num_classes is not None
        if by_class != (protocol.captions == "class_labels"):
            kind = "class labels" if by_class else "text"
            raise UserError(f"protocol: the model is conditioned on {kind}, which {protocol.name} does not give")
    if len(cases) < 2:
        raise UserError("num_prompts: one picture has no spread; give 2 or more")
    return cases


def _networks(asked: _Request, processes: Processes, cases: list[BenchmarkCase]) -> Networks:
    from vargen.jobs.measuring import load_networks

    config, protocol, model = asked.config, asked.protocol, asked.model
    named = {name: getattr(config, name) for name in ("clip", "hps", "inception_weights", "vgg_weights")}
    files = {name: None if path is None else Path(path) for name, path in named.items()}
    if files["clip"] is None and (protocol.captions == "scenes" or protocol.judge):
        files["clip"] = shipped_clip()
    judge = asked.needed_world.judge() if protocol.judge else None
    if judge is not None and model is not None and not can_read(judge, model.image_size):
        raise UserError(
            f"protocol: the judge of {protocol.name} reads pictures of {judge.image_size} pixels or more, this model "
            f"makes {model.image_size}; use prompts, or another protocol without a judge"
        )
    networks = load_networks(protocol, processes.device, files, judge)
    return _with_check(asked, networks, cases, processes.device)


def _with_check(asked: _Request, networks: Networks, cases: list[BenchmarkCase], device: torch.device) -> Networks:
    """The networks, with the check of a benchmark's pictures. Raises UserError where nothing can or need."""
    from metrics import picture_checks as checks
    from metrics.errors import DataError
    from metrics.extractors import CLIPFeatures
    from metrics.picture_readers import VisualAnswers, load_detector
    from vargen.checkpoints.model_folder import check_stored

    config, protocol, world = asked.config, asked.protocol, asked.world
    prompts = [case.asked for case in cases if case.asked is not None]
    needed = checks.needs_check(prompts)
    for name in ("detector", "vqa_model"):
        if getattr(config, name) is not None and name != needed:
            raise UserError(f"{name} checks nothing here; leave it out, or name a prompts_file and its prompts_format")
    named = None if needed is None else getattr(config, needed)
    folder = None if named is None else Path(named)
    own = world.detector() if needed == "detector" and folder is None and world is not None and protocol.judge else None
    if needed == "detector" and folder is None and own is None:
        raise UserError("detector: geneval needs one; name the folder of a Mask2Former or an OWL")
    if folder is not None:
        check_stored(folder, str(needed))
    elif own is None:
        return networks
    check: checks.PictureCheck
    try:
        if folder is not None and needed == "vqa_model":
            check = checks.QuestionCheck(VisualAnswers(folder, device))
        else:
            detector = own or load_detector(folder or Path(), device)
            clip = networks.extractors.get("clip")
            if not isinstance(clip, CLIPFeatures):
                raise UserError(f"protocol: {protocol.name} has no CLIP, which names colours; give it a clip_score")
            checks.check_names(detector, prompts)
            check = checks.CompositionCheck(detector, clip, protocol.composition)
    except DataError as error:
        raise UserError(f"{needed}: {error}") from error
    return replace(networks, check=check, most_asked=checks.most_asked(prompts))
