"""Training of an adapter for the transformer that draws pictures, on a user's own pictures with captions.

The loss is the cross-entropy of each code given the caption and the codes before it. A share of the captions is not
read: there the null prompt of guidance stands, as each family has it (Ho and Salimans 2022, arXiv 2207.12598). Low-rank
updates beside the linear layers learn, the model's own weights stay (Hu et al. 2022, arXiv 2106.09685).

Belongs here: the adapter, its loss and its codes. Does not belong here: where pictures lie (`captioned.py`), and using
adapters (`vargen.pipelines.lora`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vargen.base.options import option
from vargen.base.path_roles import READ
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.models.description import open_model
from vargen.pipelines.arguments import warn_of_prompts
from vargen.pipelines.loading import load_pipeline
from vargen.pipelines.lora import check_peft
from vargen.runs.processes import Processes
from vargen.training.answers import keep_batches
from vargen.training.captioned import CaptionedPicture, captioned_pictures
from vargen.training.config import check
from vargen.training.pictures import Lessons, PictureModelConfig
from vargen.training.run import RunResult, Task, autocast, prepare, train
from vargen.training.teachers import teacher_of

_ENCODED_AT_ONCE = 16


@dataclass
class LoraTrainingConfig(PictureModelConfig):
    """Settings of `vargen train lora`, beside those of every run about a picture model."""

    pictures: str = option("", path=READ)
    """Pictures with captions: a folder with metadata.jsonl (file_name and text) or a .txt beside each picture; a
    .parquet file, a folder of `save_to_disk`, or hub:NAME with a column image. The middle square of each is learned."""
    rank: int = option(16, least=1, most=16_384)
    """Rank of the updates."""
    alpha: float = option(16.0, above=0.0)
    """The updates are multiplied by this number and divided by the rank."""
    target_modules: list[str] | None = option(None)
    """Ends of the names of linear layers that are adapted, such as q_proj; null for all of the transformer's blocks."""
    caption_dropout: float = option(0.1, least=0.0, below=1.0)
    """Share of the captions that are not read, for guidance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.pictures), "pictures", self.pictures, "must name pictures with captions")
        check_peft("train lora")

    def architecture(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rank", "alpha", "target_modules")}


class LoraTask(Task):
    """An adapter as the training loop sees it. Raises UserError where no layer has one of the names asked for."""

    def __init__(self, config: LoraTrainingConfig, pipeline: Any, lessons: Lessons, processes: Processes) -> None:
        from peft import LoraConfig, inject_adapter_in_model

        self.config, self.pipeline, self.lessons, self.processes = config, pipeline, lessons, processes
        network, inside, asked = pipeline._adapted, {*pipeline._decoder_layers.modules()}, config.target_modules
        names = [
            name
            for name, module in network.named_modules()
            if module in inside and isinstance(module, nn.Linear) and (asked is None or name.split(".")[-1] in asked)
        ]
        check(bool(names), "target_modules", asked, "are no linear layers of the transformer's blocks")
        adapter = LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=names)  # type: ignore[arg-type]
        inject_adapter_in_model(adapter, network, "default")
        self.module = nn.ParameterList()
        for parameter in network.parameters():
            if parameter.requires_grad:  # those of the adapter alone; they learn in float32
                parameter.data = parameter.data.float()
                self.module.append(parameter)

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config, processes = self.config, self.processes
        generator = torch.Generator().manual_seed(config.seed + step)
        prompts, codes = self.lessons.draw(config.batch_size, generator)
        dropped = torch.rand(config.batch_size, generator=generator) < config.caption_dropout
        own = slice(processes.rank, None, processes.count)  # all draw the same batch, and learn from a share of it
        loss = self.lessons.teacher.token_losses(prompts[own], codes[own], dropped[own].to(codes.device)).mean()
        return loss, {}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss of codes of held-out pictures in nats, with their captions and without."""
        sums = dict.fromkeys(("loss", "loss_without_caption"), 0.0)
        for prompts, codes in self.lessons.heldout(self.config.batch_size):
            for name, is_dropped in zip(sums, (False, True), strict=True):
                dropped = torch.full((len(codes),), is_dropped, device=codes.device)
                with autocast(self.config):
                    losses = self.lessons.teacher.token_losses(prompts, codes, dropped)
                sums[name] += losses.mean().item() * len(codes) / len(self.lessons.heldout_codes)
        return sums

    def export(self, folder: Path) -> None:
        """Write the adapter as PEFT does; `load_lora_weights` reads it."""
        self.pipeline.save_lora_weights(folder)


def train_lora(config: LoraTrainingConfig) -> RunResult:
    """Make codes of the pictures, once, then train an adapter on them; every process of the job calls this.

    Raises:
        UserError: for a field, model, picture or checkpoint that does not fit.
    """
    processes = Processes.start(config.device)
    remedy = f"must be a multiple of the {processes.count} processes"
    check(config.batch_size % processes.count == 0, "batch_size", config.batch_size, remedy)
    prepare(config)
    options = config.model_options()
    model = open_model(options)
    pipeline, _, _ = load_pipeline(model, options)
    pipeline.to(processes.device)
    teacher = teacher_of(pipeline)  # refuses a model that cannot be taught, before codes are made
    identity = {"target": weights_fingerprint(model.folder, apart_from="drafter"), **options.identity}
    listed = [(each.caption, each.described) for each in captioned_pictures(config.pictures)]
    size = config.evaluation_size
    check(len(listed) > size, "pictures", config.pictures, f"must hold more than evaluation_size ({size}) of them")
    captions = [caption for caption, _ in listed]
    warn_of_prompts(pipeline, captions * processes.is_main)
    kept = processes.gather(_codes(config, pipeline, listed, identity) if processes.is_main else None)[0]
    assert kept is not None
    torch.manual_seed(config.seed)  # the first process has made codes by then, and all begin with one adapter
    codes = kept.long().to(processes.device)
    lessons = Lessons(teacher, captions[size:], codes[size:], captions[:size], codes[:size], identity)
    return train(config, LoraTask(config, pipeline, lessons, processes), identity, processes)


def _codes(
    config: LoraTrainingConfig, pipeline: Any, listed: list[tuple[str, str]], settings: dict[str, Any]
) -> Tensor:
    """int32 [K, N] of all pictures; those that the run's folder holds are not made again."""
    source, read = captioned_pictures(config.pictures), 0

    def make(numbers: range) -> Tensor:
        nonlocal read
        pictures: list[CaptionedPicture] = [*islice(source, numbers.start - read, numbers.stop - read)]
        read = numbers.stop
        prompts = [each.caption for each in pictures]
        return pipeline.tokens_of([each.square() for each in pictures], prompts).to("cpu", torch.int32)

    folder, described = Path(config.output) / "codes", [text for _, text in listed]
    whose = {"name": "encoded", "holds": "pictures", "argument": "output"}
    return torch.cat(keep_batches(make, len(listed), _ENCODED_AT_ONCE, folder, settings, prompts=described, **whose))
