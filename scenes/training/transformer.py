"""Training of the text-to-image transformer on codes of a frozen tokenizer and a frozen text encoder.

Pictures come as codes from a store, or are rendered and encoded on the fly. The loss is the cross-entropy of each image
token given the caption and the tokens before it; a share of the rows sees the null caption, so that guidance works (Ho
and Salimans 2022).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor, nn

from scenes.captions.picture_captions import MAX_CAPTION_TOKENS, compose_training_caption
from scenes.captions.text_tokenizer import build_tokenizer
from scenes.rendering.scene import COLOURS, MAX_OBJECTS
from scenes.seeds import HELDOUT_SEED
from scenes.training.code_store import StoredCodes
from scenes.training.coded import (
    PLACES,
    CodedBatch,
    CodeSource,
    FrozenEncoder,
    RenderedCodes,
    codes_fingerprint,
    load_vqvae,
)
from scenes.training.data import RenderedSceneSource, SceneSource, save_sheet
from scenes.training.grounding import (
    GROUNDING,
    CellReader,
    cell_attributes,
    cell_owners,
    grounding_loss,
    objects_to_come,
    told_by_owner,
)
from scenes.training.text_encoder import load_text_encoder, vocabulary_fingerprint
from scenes.training.tokenizer import exported_copy
from scenes.training.transformer_pass import train_on_cpu, training_forward, training_inputs, training_run
from vargen.base.bounds import MAX_PIXELS
from vargen.base.options import Settings, check_options, option
from vargen.base.path_roles import READ_FOLDER
from vargen.checkpoints.model_folder import check_model_folder, component_folder
from vargen.models.llamagen.text_encoder import encode_text
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.training.config import RunConfig, check
from vargen.training.initial_weights import fill
from vargen.training.run import RunResult, Task, autocast, move, prepare, train

CONDITION_ROTARY = "identity"
"""Image tokens attend to words by content. With "zero", as in official weights, they see the words' mean."""
NULL_CAPTION_SHARE = 0.1
"""Share of the captions replaced by the null caption, for guidance."""
_REPLACED_STREAM = 1 << 41  # the random numbers of replaced tokens, apart from those of null captions
_MISTAKEN_STREAM = 1 << 42
_SAMPLE_GUIDANCE = 3.0
SAMPLE_PROMPTS = (
    "a shiny red sphere left of a small blue cube",
    "a large green cylinder on sand",
    "a striped yellow cone behind a white cube on grass",
    "three objects on wood",
    "a small checkered purple cube in front of a large orange sphere",
    "a large cyan cone at sunset",
    "a matte white sphere right of a red cylinder on grass",
    "two blue cubes",
)


@dataclass
class TransformerConfig(Settings):
    """Shape of the transformer; names as in `LlamaGenTransformer`."""

    dim: int = option(192, least=1)
    """Width."""
    num_layers: int = option(16, least=1)
    """Blocks."""
    num_attention_heads: int = option(6, least=1)
    """Heads."""
    intermediate_size: int = option(512, least=1)
    """Width inside the feed-forward part."""
    condition_length: int = option(120, least=1)
    """The most text tokens that a prompt may have."""
    position_scale: float = option(1.0, above=0.0)
    """Factor on rows and columns; 0.5 for a grid of twice the side that `initial_weights` have."""

    def __post_init__(self) -> None:
        check_options(self, "shape.")
        heads = self.num_attention_heads
        remedy = f"must split shape.dim {self.dim} into heads of a multiple of 4"
        check(self.dim % (4 * heads) == 0, "shape.num_attention_heads", heads, remedy)


@dataclass
class TransformerTrainingConfig(RunConfig):
    """Settings of `vargen train transformer`, beside those of every run."""

    vqvae: str = option("", path=READ_FOLDER)
    """Folder of the trained tokenizer (a tokenizer run's `export`, or `vqvae` of a pipeline)."""
    codes: str = option("", path=READ_FOLDER)
    """Folder of a store that `vargen train data` wrote with this tokenizer; empty to render and encode pictures at each
    step, which takes longer than the training itself."""
    initial_weights: str = option("", path=READ_FOLDER)
    """Folder of a pipeline whose transformer a new run starts from, such as the shipped one; empty for random weights.
    It must have the same tokenizer. A resumed run goes on from its checkpoint."""
    frozen_text_encoder: str = option("", path=READ_FOLDER)
    """Folder whose text encoder is used as it is: the export of `vargen train text-encoder`, or a pipeline for which a
    draft model is trained."""
    image_size: int = option(128, least=1, most=MAX_PIXELS)
    """Side of the training pictures, pixels."""
    shape: TransformerConfig = option(TransformerConfig)
    """Shape of the transformer."""
    complete_caption_share: float = option(0.7, least=0.0, most=1.0)
    """Share of the captions but null ones that say everything, see `compose_training_caption`."""
    replaced_rows: float = option(0.0, least=0.0, most=1.0)
    """Share of the pictures in which later tokens see some tokens replaced by others of the batch. Drawing makes
    mistakes that true pictures do not have, such as one token of an object where no object belongs. A model that has
    seen such mistakes trusts the caption and does not draw the rest of the object."""
    replaced_tokens: float = option(0.1, least=0.0, most=1.0)
    """The largest share of tokens replaced in such a picture; each picture draws its own share."""
    mistaken_objects: float = option(0.0, least=0.0, most=1.0)
    """Share of the objects in which later tokens see some tokens replaced by others from objects of the same colour in
    the batch, so that the object has no clear shape. Drawing makes such objects. A model that does not recognise one as
    the object asked for draws that object a second time."""
    object_loss_weight: float = option(1.0, above=0.0)
    """Weight of tokens on objects and their edges at the start. A caption says little about the other tokens, so
    captions are learned sooner if these count more. The weight favours objects, so it falls linearly to 1."""
    object_loss_until: float = option(0.7, least=0.0, most=1.0)
    """Share of the run after which that weight is 1."""
    first_token_weight: float = option(1.0, above=0.0)
    """Weight of a picture's first token against the others. This token alone decides the sky, and it is the only one
    that is predicted at a condition token. The weight depends on the position alone, so it favours no picture."""
    grounding_weight: float = option(0.0, least=0.0)
    """Weight of a helping loss at the start, see `grounding`: the states of the middle layer predict at each position
    which object is drawn there. The weight falls linearly to zero."""
    counting_weight: float = option(0.0, least=0.0)
    """Weight of a second helping loss at the start: the same states predict how many objects are still to be drawn. It
    falls in the same way."""
    grounding_until: float = option(0.8, least=0.0, most=1.0)
    """Share of the run after which both weights are zero."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.vqvae), "vqvae", self.vqvae, "must name the folder of a trained tokenizer")
        encoder = self.frozen_text_encoder
        check(bool(encoder), "frozen_text_encoder", encoder, "must name the folder of a trained text encoder")

    def architecture(self) -> dict[str, Any]:
        return {**{f"shape.{name}": value for name, value in asdict(self.shape).items()}, "image_size": self.image_size}


def load_initial_weights(folder: str, transformer: LlamaGenTransformer, vqvae: VQModel) -> None:
    """Fill a transformer with the weights of the one in a pipeline's folder.

    Raises:
        UserError: there is none in `folder`, or it has another shape or another tokenizer than `vqvae`.
    """
    check_model_folder(folder)
    same = codes_fingerprint(VQModel.from_pretrained(component_folder(folder, "vqvae"))) == codes_fingerprint(vqvae)
    check(same, "initial_weights", folder, "has another tokenizer, so its tokens mean something else; name its vqvae")
    saved = LlamaGenTransformer.from_pretrained(Path(folder) / "transformer")
    rotary = saved.config.condition_rotary
    check(rotary == CONDITION_ROTARY, "initial_weights", folder, f"has condition_rotary {rotary!r}; name a scene model")
    fill(transformer, saved.state_dict(), f"transformer in {folder!r}", "model says")


class TransformerTask(Task):
    """The transformer and its text encoder as the common loop sees them."""

    def __init__(self, config: TransformerTrainingConfig, source: SceneSource, device: torch.device):
        self.config = config
        self.device = device
        self.vqvae, grid_size = load_vqvae(config.vqvae, config.image_size, device)
        self.grid_size = grid_size
        self.tokenizer = build_tokenizer()
        shape = config.shape
        self.text_encoder = load_text_encoder(config.frozen_text_encoder).requires_grad_(False)
        self.transformer = LlamaGenTransformer(
            **asdict(shape),
            vocab_size=self.vqvae.quantize.n_e,
            grid_size=grid_size,
            condition_type="text",
            caption_dim=self.text_encoder.config.d_model,
            condition_rotary=CONDITION_ROTARY,
            class_dropout_prob=NULL_CAPTION_SHARE,
            **dict.fromkeys(("token_dropout", "residual_dropout", "ffn_dropout"), 0.0),  # scenes never repeat
        )
        if config.initial_weights and not config.goes_on:
            load_initial_weights(config.initial_weights, self.transformer, self.vqvae)
        self.transformer.train()
        self.module = nn.ModuleDict({"transformer": self.transformer, "text_encoder": self.text_encoder})
        move(self.module, device)
        self.extra_modules = readers = nn.ModuleList()
        self.cell_reader = self.counter = None
        if config.grounding_weight:
            self.cell_reader = CellReader(shape.dim, {name: 1 + len(values) for name, values in GROUNDING.items()})
            readers.append(self.cell_reader)
        if config.counting_weight:
            self.counter = CellReader(shape.dim, {"to_come": 1 + MAX_OBJECTS})
            readers.append(self.counter)
        move(readers, device)
        self.max_caption_tokens = min(MAX_CAPTION_TOKENS, shape.condition_length)
        if device.type == "cpu":
            train_on_cpu(self.transformer, config.compile)
        self.training_run = torch.compile(training_run) if config.compile else training_run
        rendered = RenderedCodes(source, FrozenEncoder(self.vqvae, config.autocast), grid_size)
        self.heldout = rendered.coded(source(HELDOUT_SEED, config.evaluation_size, "heldout"))
        self.codes: CodeSource = self._stored_codes(config.codes) if config.codes else rendered

    def identity(self) -> dict[str, Any]:
        """Hashes of the tokenizer's weights and of the vocabulary: another tokenizer means another language."""
        return {"vqvae": codes_fingerprint(self.vqvae), "vocabulary": vocabulary_fingerprint(self.tokenizer)}

    def _stored_codes(self, folder: str) -> StoredCodes:
        """The store in `folder`, if it was written with this tokenizer for pictures of this size."""
        store = StoredCodes(folder)
        for name, value in {"vqvae": codes_fingerprint(self.vqvae), "image_size": self.config.image_size}.items():
            there = store.identity[name]
            check(there == value, "codes", folder, f"was written with another {name} ({there!r}, not {value!r})")
        return store

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """The matrices inside the transformer's blocks: not embeddings, not the head."""
        return [parameter for parameter in self.transformer.transformer_blocks.parameters() if parameter.ndim == 2]

    def _embed_texts(self, captions: list[str], drop: Tensor | None) -> tuple[Tensor, Tensor]:
        """Condition tokens [B, T, dim] and their mask; rows marked in `drop` [B] see the null caption."""
        # Compiled code wants one shape; otherwise the width of the longest caption is enough.
        features, mask = encode_text(
            self.tokenizer, self.text_encoder, captions, self.max_caption_tokens, trim=not self.config.compile
        )
        return self.transformer.embed_condition(caption_embeds=features, drop=drop), mask

    def _run(self, condition: Tensor, mask: Tensor, codes: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [B, N] of all tokens in nats, and states half-way up; compiled if the config asks for it.

        Args:
            condition, mask: of the captions.
            codes: [B, N], to be predicted.
            seen: [B, N], the codes that later tokens see in their place.
        """
        inputs = training_inputs(self.transformer, condition, mask, seen)
        logits, half_way = self.training_run(self.transformer, *inputs)
        losses = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none")
        return losses.view_as(codes), half_way

    def _logits(self, batch: CodedBatch, drop: Tensor | None) -> Tensor:
        """fp32 logits [B, N, V] of every image token given captions as prompts have them, without gradients."""
        condition, mask = self._embed_texts(batch.captions(), drop)
        # Not the compiled code: it would be compiled again without gradients, and a few evaluations are not worth that.
        return training_forward(self.transformer, condition, mask, batch.codes)

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        batch = self.codes(config.seed + step * config.batch_size, config.batch_size)
        codes, places = batch.codes.to(self.device), batch.places.to(self.device)
        drop = self._null_rows(step)
        pairs = zip(batch.scenes, batch.caption_seeds, strict=True)
        share = config.complete_caption_share
        captions = [compose_training_caption(scene, seed, share).text for scene, seed in pairs]
        condition, mask = self._embed_texts(captions, drop)
        owners = self._owners(batch)
        seen = self._seen(self._mistaken(batch, owners, step).to(self.device), step)
        losses, half_way = self._run(condition, mask, codes, seen)
        weights = self._token_weights(places, progress)
        loss = (losses * weights).sum() / weights.sum()
        parts = {"tokens": losses.detach().mean()}
        left = _left(progress, config.grounding_until)
        if left and self.cell_reader is not None:
            cells = cell_attributes(batch.scenes, self.grid_size)
            truth = {name: cell.flatten(1).to(self.device) for name, cell in cells.items()}
            grounding, known = grounding_loss(self.cell_reader(half_way), truth, ~drop)
            loss = loss + config.grounding_weight * left * grounding
            parts |= {"grounding": grounding.detach(), "known": known}
        if left and self.counter is not None:
            truth = {"to_come": objects_to_come(owners).to(self.device)}
            counting, counted = grounding_loss(self.counter(half_way), truth, ~drop)
            loss = loss + config.counting_weight * left * counting
            parts |= {"counting": counting.detach(), "counted": counted}
        return loss, parts

    def _owners(self, batch: CodedBatch) -> Tensor:
        """Which object a token shows something of, an edge of it included, int64 [B, N]; 0 for none."""
        return cell_owners(batch.scenes, self.grid_size, margin=0.5).flatten(1) * _on_objects(batch.places)

    def _null_rows(self, step: int) -> Tensor:
        """Rows of the batch of `step` that see the null caption, bool [B]."""
        generator = torch.Generator().manual_seed(self.config.seed + step)
        rows = torch.rand(self.config.batch_size, generator=generator) < NULL_CAPTION_SHARE
        return rows.to(self.device)

    def _seen(self, codes: Tensor, step: int) -> Tensor:
        """Codes [B, N] of the batch of `step` as later tokens see them: some replaced by others of the batch."""
        config = self.config
        if not config.replaced_rows:
            return codes
        generator = torch.Generator().manual_seed(_REPLACED_STREAM + config.seed + step)
        others = codes.flatten()[torch.randperm(codes.numel(), generator=generator).to(self.device)].view_as(codes)
        chosen = torch.rand(len(codes), 1, generator=generator) < config.replaced_rows
        shares = torch.rand(len(codes), 1, generator=generator) * config.replaced_tokens
        replaced = chosen & (torch.rand(codes.shape, generator=generator) < shares)
        return torch.where(replaced.to(self.device), others, codes)

    def _mistaken(self, batch: CodedBatch, owners: Tensor, step: int) -> Tensor:
        """Codes [B, N] in which some objects, of `_owners`, are made of tokens of any objects of their colour."""
        if not self.config.mistaken_objects:
            return batch.codes
        generator = torch.Generator().manual_seed(_MISTAKEN_STREAM + self.config.seed + step)
        codes = batch.codes
        colours = told_by_owner(
            owners, [[1 + COLOURS.index(item.colour) for item in each.objects] for each in batch.scenes]
        )
        # Alike are tokens of a colour that show as much of an object: sorted by that, and within it as they stand or
        # at random, the two orders say which stands for which.
        alike = (2 * colours + (batch.places == PLACES.index("edge"))).flatten()
        shuffled = (alike + torch.rand(alike.shape, generator=generator)).argsort()
        others = torch.empty_like(codes.flatten())
        others[alike.argsort(stable=True)] = codes.flatten()[shuffled]
        mistaken = torch.rand(len(codes), 1 + MAX_OBJECTS, generator=generator) < self.config.mistaken_objects
        shares = torch.rand(len(codes), 1, generator=generator)
        chosen = mistaken.gather(1, owners) & (owners > 0) & (torch.rand(codes.shape, generator=generator) < shares)
        return torch.where(chosen, others.view_as(codes), codes)

    def _token_weights(self, places: Tensor, progress: float) -> Tensor:
        """Weights [B, N] of the tokens' losses: more on objects and edges at first, and on the first token always."""
        left = _left(progress, self.config.object_loss_until)
        weights = 1 + _on_objects(places) * ((self.config.object_loss_weight - 1) * left)
        weights[:, 0] *= self.config.first_token_weight
        return weights

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss on held-out scenes with and without their captions, and mean entropy and loss by place, in nats.

        `caption_gain` is what the caption saves over a whole picture: the information the model takes from it.
        """
        losses, entropies, blind = [], [], []
        for part in self.heldout.split(self.config.batch_size):
            everyone = torch.ones(len(part.codes), dtype=torch.bool, device=self.device)
            with autocast(self.config):
                logits = self._logits(part, None)
                null_logits = self._logits(part, everyone)
            log_probabilities = logits.log_softmax(-1)
            losses.append(F.nll_loss(log_probabilities.mT, part.codes, reduction="none"))
            entropies.append(-(log_probabilities.exp() * log_probabilities).sum(-1))
            blind.append(F.cross_entropy(null_logits.mT, part.codes, reduction="none"))
        loss, entropy = torch.cat(losses), torch.cat(entropies)  # [B, N]
        figures = {
            "loss": loss.mean().item(),
            "loss_without_caption": torch.cat(blind).mean().item(),
            "caption_gain": (torch.cat(blind) - loss).sum(1).mean().item(),
            "entropy": entropy.mean().item(),
        }
        for index, place in enumerate(PLACES):
            here = self.heldout.places == index
            if here.any():
                figures[f"loss_{place}"] = loss[here].mean().item()
                figures[f"entropy_{place}"] = entropy[here].mean().item()
        return figures

    def draw_samples(self, path: Path) -> None:
        """Draw the eight fixed prompts, with guidance and fixed seeds."""
        pipeline = self._pipeline(self.transformer, self.vqvae, self.text_encoder)
        pipeline.set_progress_bar_config(disable=True)
        images = pipeline(
            list(SAMPLE_PROMPTS),
            guidance_scale=_SAMPLE_GUIDANCE,
            generator=[torch.Generator().manual_seed(seed) for seed in range(len(SAMPLE_PROMPTS))],
            output_type="pt",
        ).images
        save_sheet([torch.as_tensor(images) * 2 - 1], path)

    def export(self, folder: Path) -> None:
        """Write the whole pipeline in bfloat16 (the tokenizer's codebook in fp32, as its own export has it)."""
        transformer, text_encoder = (copy.deepcopy(each).bfloat16() for each in (self.transformer, self.text_encoder))
        self._pipeline(transformer, exported_copy(self.vqvae), text_encoder).save_pretrained(folder)

    def _pipeline(self, transformer: Any, vqvae: VQModel, text_encoder: Any) -> Any:
        from vargen.pipelines.llamagen import LlamaGenPipeline

        parts = {"transformer": transformer, "vqvae": vqvae, "text_encoder": text_encoder}
        return LlamaGenPipeline(**parts, tokenizer=self.tokenizer)


def _left(progress: float, until: float) -> float:
    """What is left of a weight that falls linearly to zero at a share of the run."""
    return max(0.0, 1 - progress / until) if until else 0.0


def _on_objects(places: Tensor) -> Tensor:
    """Which of these parts of a picture show something of an object, bool."""
    return (places == PLACES.index("object")) | (places == PLACES.index("edge"))


def train_transformer(config: TransformerTrainingConfig, source: SceneSource | None = None) -> RunResult:
    """Train the text-to-image transformer on rendered scenes and their captions.

    Args:
        source: where scenes come from; the renderer if not given. With `codes` only the held-out ones.

    Raises:
        UserError: for a field, tokenizer folder, store or checkpoint that does not fit.
    """
    device = prepare(config)
    task = TransformerTask(config, source or RenderedSceneSource(config.image_size, device), device)
    return train(config, task, task.identity())
