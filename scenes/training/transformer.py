"""Training of the text-to-image transformer on codes of a frozen tokenizer and, mostly, a frozen text encoder.

Pictures come as codes from a store, or are rendered and encoded on the fly. The loss is the cross-entropy of each image
token given the caption and the tokens before it; a share of the rows sees the null caption, so that guidance works (Ho
and Salimans 2022).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5EncoderModel

from scenes.captions.captions import MAX_CAPTION_TOKENS, compose_caption, compose_training_caption
from scenes.captions.text_tokenizer import build_tokenizer
from scenes.rendering.scene import COLOURS, MAX_OBJECTS, OBJECT_COUNT_WEIGHTS
from scenes.seeds import HELDOUT_SEED
from scenes.training.code_store import StoredCodes, check_object_count_weights
from scenes.training.code_translation import code_shares, translate
from scenes.training.coded import (
    PLACES,
    CodedBatch,
    CodeSource,
    FrozenEncoder,
    RenderedCodes,
    load_vqvae,
    weights_fingerprint,
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
from scenes.training.text_encoder import (
    TextEncoderConfig,
    build_text_encoder,
    load_text_encoder,
    vocabulary_fingerprint,
)
from scenes.training.tokenizer import exported_copy
from vargen.models.llamagen.text_encoder import encode_text
from vargen.models.llamagen.transformer import CONDITION_ROTARY, LlamaGenTransformer
from vargen.models.model_folder import check_model_folder
from vargen.training.config import RunConfig, check, check_fraction, check_positive, main
from vargen.training.initial_weights import fill
from vargen.training.run import RunResult, autocast, move, prepare, train
from vargen.training.transformer_pass import train_on_cpu, training_forward, training_inputs, training_run

_HIDDEN_STREAM = 1 << 40  # the random numbers of hidden tokens, apart from those of null captions
_REPLACED_STREAM = 1 << 41
_MISTAKEN_STREAM = 1 << 42
_TRANSLATED = 256  # pictures on which the codes of two tokenizers are compared
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
class TransformerConfig:
    """Shape of the transformer; names as in `LlamaGenTransformer`.

    Args:
        dim: width.
        num_layers: blocks.
        num_attention_heads: heads.
        intermediate_size: width inside the feed-forward part.
        condition_length: the most text tokens that a prompt may have.
        condition_rotary: "identity" lets image tokens attend to words by content; "zero" shows them the words' mean, as
            in official weights.
        dropout: of tokens, attention and feed-forward outputs; scenes never repeat, so none is needed.
    """

    dim: int = 192
    num_layers: int = 16
    num_attention_heads: int = 6
    intermediate_size: int = 512
    condition_length: int = 120
    condition_rotary: str = "identity"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        names = ("dim", "num_layers", "num_attention_heads", "intermediate_size", "condition_length")
        check_positive(self, *names, prefix="model.")
        check_fraction(self, "dropout", prefix="model.")
        check(
            self.condition_rotary in CONDITION_ROTARY,
            "model.condition_rotary",
            self.condition_rotary,
            f"is not one of {', '.join(CONDITION_ROTARY)}",
        )
        check(
            self.dim % (4 * self.num_attention_heads) == 0,
            "model.num_attention_heads",
            self.num_attention_heads,
            f"must split model.dim {self.dim} into heads of a multiple of 4",
        )


@dataclass
class TransformerTrainingConfig(RunConfig):
    """Settings of `vargen train transformer`, beside those of every run.

    Args:
        vqvae: folder of the trained tokenizer (a tokenizer run's `export`, or `vqvae` of a pipeline).
        initial_weights: folder of a pipeline whose transformer a new run starts from, such as the shipped one, and
            whose text encoder if that is trained; empty for random weights. If its tokenizer is another one, every code
            starts from those that stood in its places. A resumed run goes on from its checkpoint.
        codes: folder of a store that `vargen train data` wrote with this tokenizer; empty to render and encode pictures
            step by step, which takes longer than what is learned from them. A store has its own detail and numbers of
            objects.
        frozen_text_encoder: folder whose text encoder is used as it is: the export of `vargen train text-encoder`, or a
            pipeline for which a smaller transformer is to draft; empty to train one with the transformer.
        image_size: side of the training pictures, pixels.
        detail: strength of the pictures' stochastic detail.
        model: shape of the transformer.
        text_encoder: shape of the text encoder if it is trained.
        null_caption_probability: share of the captions replaced by the null caption.
        complete_caption_share: share of the other captions that say everything, see `compose_training_caption`.
        hidden_rows: share of the pictures of which some tokens are hidden from those after them.
        hidden_tokens: the largest share of tokens hidden in such a picture; each draws its own between none and that.
            Whoever sees a red token beside it needs no caption to be red; who does not has to read.
        replaced_rows: share of the pictures of which those after them see some tokens as others, from anywhere in the
            batch. Drawing makes mistakes that true pictures do not have: one token of an object where none is to be.
            Who has seen such goes by what else is known, and does not draw the rest of it.
        replaced_tokens: the largest share of tokens replaced in such a picture; each draws its own between none and
            that.
        replaced_by_draws: share of those pictures whose replaced tokens are what the transformer itself would draw
            there after the true ones, one more pass without gradients: mistakes as it makes them.
        mistaken_objects: share of the objects of which those after them see some tokens as others, from anywhere on
            objects of that colour in the batch: something red of no shape. Drawing makes such objects; who takes one
            for none of those that were asked for, draws that one again.
        object_loss_weight: weight of tokens on objects and their edges at the start. A caption tells little about a
            picture's other tokens, so it is learned sooner if these count more. The weight depends on the picture that
            is to be predicted, which favours objects, so it falls linearly to 1.
        object_loss_until: share of the run after which it is 1.
        first_token_weight: weight of a picture's first token against its others, all through the run. That token alone
            settles the sky, and it is the only one that is told by a condition token, in whose place nothing else is
            learned. The weight depends on the place alone, so it favours no picture.
        grounding_weight: weight of a helping loss for the transformer at the start, see `grounding`: half-way up, each
            place is asked which object is to come there. It falls linearly to zero.
        counting_weight: weight of another one at the start: at the same states each place is asked how many objects are
            still to come. It falls as the first does.
        grounding_until: share of the run after which both are zero.
        object_count_weights: how often a training scene has one, two or three objects, as weights.
        sample_guidance_scale: guidance of the sample sheets.
    """

    vqvae: str = ""
    codes: str = ""
    initial_weights: str = ""
    frozen_text_encoder: str = ""
    image_size: int = 128
    detail: float = 1.0
    model: TransformerConfig = field(default_factory=TransformerConfig)
    text_encoder: TextEncoderConfig = field(default_factory=TextEncoderConfig)
    null_caption_probability: float = 0.1
    complete_caption_share: float = 0.7
    hidden_rows: float = 0.0
    hidden_tokens: float = 0.7
    replaced_rows: float = 0.0
    replaced_tokens: float = 0.1
    replaced_by_draws: float = 0.0
    mistaken_objects: float = 0.0
    object_loss_weight: float = 1.0
    object_loss_until: float = 0.7
    first_token_weight: float = 1.0
    grounding_weight: float = 0.0
    counting_weight: float = 0.0
    grounding_until: float = 0.8
    object_count_weights: tuple[float, ...] = OBJECT_COUNT_WEIGHTS
    sample_guidance_scale: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.model, dict):
            self.model = TransformerConfig(**self.model)
        if isinstance(self.text_encoder, dict):
            self.text_encoder = TextEncoderConfig(**self.text_encoder)
        check(bool(self.vqvae), "vqvae", self.vqvae, "must name the folder of a trained tokenizer")
        self.object_count_weights = tuple(self.object_count_weights)
        check_positive(self, "image_size")
        check(self.detail >= 0, "detail", self.detail, "must not be negative")
        check_positive(self, "object_loss_weight", "first_token_weight")
        check_fraction(
            self,
            *("null_caption_probability", "complete_caption_share", "hidden_rows", "hidden_tokens"),
            *("replaced_rows", "replaced_tokens", "replaced_by_draws", "mistaken_objects"),
            *("object_loss_until", "grounding_until"),
        )
        for name in ("grounding_weight", "counting_weight"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        check_object_count_weights(self.object_count_weights)
        check(self.sample_guidance_scale >= 1, "sample_guidance_scale", self.sample_guidance_scale, "must be 1 or more")

    def architecture(self) -> dict[str, Any]:
        return {
            **{f"model.{name}": value for name, value in asdict(self.model).items()},
            **{f"text_encoder.{name}": value for name, value in asdict(self.text_encoder).items()},
            "image_size": self.image_size,
        }


def load_initial_weights(folder: str, modules: Mapping[str, LlamaGenTransformer | T5EncoderModel]) -> None:
    """Fill modules, each under its name in a pipeline, from that pipeline's folder.

    Raises:
        UserError: if there is none in `folder`, or its modules have other shapes.
    """
    check_model_folder(folder)
    for name, module in modules.items():
        saved = type(module).from_pretrained(Path(folder) / name)
        if isinstance(module, LlamaGenTransformer):
            before, now = saved.config.condition_rotary, module.config.condition_rotary
            check(before == now, "model.condition_rotary", now, f"does not fit initial_weights, which have {before!r}")
        fill(module, saved.state_dict(), f"{name} in {folder!r}", "model and text_encoder say")


class TransformerTask:
    """The transformer and its text encoder as the common loop sees them."""

    def __init__(self, config: TransformerTrainingConfig, source: SceneSource, device: torch.device):
        self.config = config
        self.device = device
        self.vqvae, grid_size = load_vqvae(config.vqvae, config.image_size, device)
        self.grid_size = grid_size
        self.tokenizer = build_tokenizer()
        shape = config.model
        if config.frozen_text_encoder:
            self.text_encoder = load_text_encoder(config.frozen_text_encoder).requires_grad_(False)
        else:
            self.text_encoder = build_text_encoder(config.text_encoder, self.tokenizer)
        self.transformer = LlamaGenTransformer(
            dim=shape.dim,
            num_layers=shape.num_layers,
            num_attention_heads=shape.num_attention_heads,
            intermediate_size=shape.intermediate_size,
            vocab_size=self.vqvae.quantize.n_e,
            grid_size=grid_size,
            condition_type="text",
            caption_dim=self.text_encoder.config.d_model,
            condition_length=shape.condition_length,
            condition_rotary=shape.condition_rotary,
            class_dropout_prob=config.null_caption_probability,
            token_dropout=shape.dropout,
            residual_dropout=shape.dropout,
            ffn_dropout=shape.dropout,
        )
        if config.initial_weights and not config.goes_on:
            trained = {"transformer": self.transformer}
            if not config.frozen_text_encoder:
                trained["text_encoder"] = self.text_encoder
            load_initial_weights(config.initial_weights, trained)
            self._translate_codes(source)
        self.transformer.train()
        self.text_encoder.train()
        self.module = nn.ModuleDict({"transformer": self.transformer, "text_encoder": self.text_encoder})
        move(self.module, device)
        self.extra_modules = nn.ModuleList()
        self.cell_reader = self.counter = None
        if config.grounding_weight:
            self.cell_reader = CellReader(shape.dim, {name: 1 + len(values) for name, values in GROUNDING.items()})
            self.extra_modules.append(self.cell_reader)
        if config.counting_weight:
            self.counter = CellReader(shape.dim, {"to_come": 1 + MAX_OBJECTS})
            self.extra_modules.append(self.counter)
        move(self.extra_modules, device)
        self.max_caption_tokens = min(MAX_CAPTION_TOKENS, shape.condition_length)
        if device.type == "cpu":
            train_on_cpu(self.transformer, config.compile)
        self.training_run = torch.compile(training_run) if config.compile else training_run
        rendered = RenderedCodes(source, FrozenEncoder(self.vqvae, config.autocast), grid_size)
        self.heldout = rendered.coded(source(HELDOUT_SEED, config.evaluation_size, "heldout"))
        self.codes: CodeSource = self._stored_codes(config.codes) if config.codes else rendered

    def _translate_codes(self, source: SceneSource) -> None:
        """Where the initial weights speak the codes of another tokenizer, have them begin with this one's."""
        config = self.config
        before, _ = load_vqvae(str(Path(config.initial_weights) / "vqvae"), config.image_size, self.device)
        if weights_fingerprint(before) != weights_fingerprint(self.vqvae):
            batches = range(config.seed, config.seed + _TRANSLATED, config.batch_size)
            images = (source(seed, config.batch_size, "train").images for seed in batches)
            translate(self.transformer, code_shares(before, self.vqvae, images))

    def identity(self) -> dict[str, Any]:
        """Hashes of the tokenizer's weights and of the vocabulary: another tokenizer means another language."""
        return {
            "vqvae": weights_fingerprint(self.vqvae),
            "vocabulary": vocabulary_fingerprint(self.tokenizer),
        }

    def _stored_codes(self, folder: str) -> StoredCodes:
        """The store in `folder`, if it was written with this tokenizer for pictures of this size."""
        store = StoredCodes(folder)
        for name, value in {"vqvae": weights_fingerprint(self.vqvae), "image_size": self.config.image_size}.items():
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

    def _run(
        self, condition: Tensor, mask: Tensor, codes: Tensor, seen: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Losses [B, N] of all tokens in nats, and states half-way up; compiled if the config asks for it.

        Tokens are `codes` [B, N], and `seen` by later ones as others maybe. Those marked in `hidden`, bool [B, N], are
        to be predicted as all others but tell later ones nothing.
        """
        embeds, rotary, attention_mask, length = training_inputs(self.transformer, condition, mask, seen)
        if hidden is not None:
            # An embedding of zeros; its key and value are zero in the first layer.
            embeds = embeds * ~F.pad(hidden[:, :-1], (condition.shape[1], 0))[..., None]
        logits, half_way = self.training_run(self.transformer, embeds, rotary, attention_mask, length)
        losses = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none")
        return losses.view_as(codes), half_way

    def _logits(self, batch: CodedBatch, drop: Tensor | None) -> Tensor:
        """fp32 logits [B, N, V] of every image token given captions as prompts have them, without gradients."""
        pairs = zip(batch.scenes, batch.caption_seeds, strict=True)
        condition, mask = self._embed_texts([compose_caption(scene, seed).text for scene, seed in pairs], drop)
        # Not the compiled code: it would be compiled again without gradients, and a few evaluations are not worth that.
        return training_forward(self.transformer, condition, mask, batch.codes)

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        batch = self.codes(config.seed + step * config.batch_size, config.batch_size)
        codes, places = batch.codes.to(self.device), batch.places.to(self.device)
        drop, hidden = self._null_rows(step), self._hidden(step)
        pairs = zip(batch.scenes, batch.caption_seeds, strict=True)
        share = config.complete_caption_share
        captions = [compose_training_caption(scene, seed, share).text for scene, seed in pairs]
        condition, mask = self._embed_texts(captions, drop)
        owners = self._owners(batch)
        seen = self._seen(self._mistaken(batch, owners, step).to(self.device), condition, mask, step)
        losses, half_way = self._run(condition, mask, codes, seen, hidden)
        weights = self._token_weights(places, progress)
        loss = (losses * weights).sum() / weights.sum()
        parts = {"tokens": losses.detach().mean()}
        left = max(0.0, 1 - progress / config.grounding_until) if config.grounding_until else 0.0
        if left:
            if self.cell_reader is not None:
                cells = cell_attributes(batch.scenes, self.grid_size)
                truth = {name: cell.flatten(1).to(self.device) for name, cell in cells.items()}
                grounding, known = grounding_loss(self.cell_reader(half_way), truth, ~drop)
                loss = loss + config.grounding_weight * left * grounding
                parts |= {"grounding": grounding.detach(), "known": known}
            if self.counter is not None:
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
        rows = torch.rand(self.config.batch_size, generator=generator) < self.config.null_caption_probability
        return rows.to(self.device)

    def _hidden(self, step: int) -> Tensor | None:
        """Tokens of the batch of `step` that are hidden from later ones, bool [B, N]; None if none are to be."""
        config = self.config
        if not config.hidden_rows:
            return None
        generator = torch.Generator().manual_seed(_HIDDEN_STREAM + config.seed + step)
        return self._some_tokens(config.hidden_rows, config.hidden_tokens, generator)

    def _seen(self, codes: Tensor, condition: Tensor, mask: Tensor, step: int) -> Tensor:
        """Codes [B, N] of the batch of `step` as later ones see them."""
        config = self.config
        if not config.replaced_rows:
            return codes
        generator = torch.Generator().manual_seed(_REPLACED_STREAM + config.seed + step)
        others = codes.flatten()[torch.randperm(codes.numel(), generator=generator).to(self.device)].view_as(codes)
        replaced = self._some_tokens(config.replaced_rows, config.replaced_tokens, generator)
        if config.replaced_by_draws:
            by_draws = torch.rand(len(codes), 1, generator=generator) < config.replaced_by_draws
            others = torch.where(by_draws.to(self.device), self._draws(codes, condition, mask, generator), others)
        return torch.where(replaced, others, codes)

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

    @torch.no_grad()
    def _draws(self, codes: Tensor, condition: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """What the transformer draws at every place after the true codes [B, N] before it."""
        logits, _ = self.training_run(self.transformer, *training_inputs(self.transformer, condition, mask, codes))
        # The largest of logits with Gumbel noise is a draw of their softmax.
        noise = torch.empty(logits.shape).exponential_(generator=generator).log_().to(self.device)
        return (logits - noise.view_as(logits)).argmax(-1).view_as(codes)

    def _some_tokens(self, rows: float, largest_share: float, generator: torch.Generator) -> Tensor:
        """A share of a batch's tokens, another one in each of a share of its pictures, bool [B, N]."""
        batch_size = self.config.batch_size
        chosen = torch.rand(batch_size, 1, generator=generator) < rows
        shares = torch.rand(batch_size, 1, generator=generator) * largest_share
        return (chosen & (torch.rand(batch_size, self.grid_size**2, generator=generator) < shares)).to(self.device)

    def _token_weights(self, places: Tensor, progress: float) -> Tensor:
        """Weights [B, N] of the tokens' losses: more on objects and edges at first, and on the first token always."""
        left = max(0.0, 1 - progress / self.config.object_loss_until) if self.config.object_loss_until else 0.0
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
        from vargen.pipelines.llamagen import LlamaGenPipeline

        pipeline = LlamaGenPipeline(
            transformer=self.transformer,
            vqvae=self.vqvae,
            text_encoder=self.text_encoder,
            tokenizer=self.tokenizer,
        )
        pipeline.set_progress_bar_config(disable=True)
        images = pipeline(
            list(SAMPLE_PROMPTS),
            guidance_scale=self.config.sample_guidance_scale,
            generator=[torch.Generator().manual_seed(seed) for seed in range(len(SAMPLE_PROMPTS))],
            output_type="pt",
        ).images
        save_sheet([torch.as_tensor(images) * 2 - 1], path)

    def export(self, folder: Path) -> None:
        """Write the whole pipeline in bfloat16 (the tokenizer's codebook in fp32, as its own export has it)."""
        from vargen.pipelines.llamagen import LlamaGenPipeline

        text_encoder: Any = copy.deepcopy(self.text_encoder)
        LlamaGenPipeline(
            transformer=copy.deepcopy(self.transformer).to(torch.bfloat16),
            vqvae=exported_copy(self.vqvae),
            text_encoder=text_encoder.to(torch.bfloat16),
            tokenizer=self.tokenizer,
        ).save_pretrained(folder)


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
    if source is None:
        source = RenderedSceneSource(config.image_size, device, config.detail, config.object_count_weights)
    task = TransformerTask(config, source, device)
    return train(config, task, task.identity())


if __name__ == "__main__":
    main(TransformerTrainingConfig, train_transformer)
