"""Training of an EAGLE head for a causal language model, on the model's own answers and hidden states.

As in EAGLE-3 (Li et al. 2025, arXiv 2503.01840), the head reads the model at three depths, learns the lower levels of a
draft by drafting there (`unrolled.py`), and may draft the frequent tokens alone. The losses are the soft cross-entropy
of the tokens, their total variation, which is the chance that a drawn token is rejected, and SmoothL1 of the features,
since a guess is the feature of the next pair. All are means over levels; each level counts less than the one above.

Belongs here: settings, losses and figures. Does not belong here: prompts and answers (`text_prompts.py`), and the
network (`vargen.drafters.text_head`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import specdecode
from specdecode.targets.transformers import check_model
from vargen.base.bounds import SAMPLING_BOUNDS
from vargen.base.errors import UserError
from vargen.base.options import LOADING, SAMPLING, option
from vargen.base.path_roles import READ_FILE, writes_in
from vargen.base.prompts import read_prompts
from vargen.checkpoints.model_folder import check_stored, weights_fingerprint
from vargen.checkpoints.options import DTYPES
from vargen.checkpoints.source import find_files
from vargen.drafters.text_draft_head import TextDrafter, describe_states, text_states
from vargen.drafters.text_head import TextHead
from vargen.runs.identity import digest
from vargen.training.answers import keep_answers
from vargen.training.config import UnrolledConfig, check, check_weights
from vargen.training.drafter import soft_cross_entropy
from vargen.training.drafter_task import DrafterTask
from vargen.training.run import RunResult, autocast, prepare, train
from vargen.training.text_prompts import TextAnswers, TextPrompts, compose_prompts
from vargen.training.unrolled import guesses_by_level, loss_over_levels

_KNOWN_PROMPTS = 60  # composed prompts by which a later run recognises them
_MEASURED_LEVELS = 4


@dataclass
class TextDrafterTrainingConfig(UnrolledConfig):
    """Settings of `vargen train drafter --task text`, beside those of every such head."""

    dtype: str = option("float32", choices=DTYPES[1:], group=LOADING)
    """Precision of the model: float32, bfloat16 or float16."""
    prompts_file: str = option("", path=READ_FILE)
    """File of prompts, as `vargen generate` reads them; empty for prompts composed from words."""
    num_prompts: int = option(1536, least=1)
    """Number of prompts that the model answers to learn from; with a file, at most this many of it."""
    answers: str = option("", path=writes_in())
    """Folder of the model's answers, which several runs can share; empty for output/answers."""
    max_new_tokens: int = option(128, least=1, group=SAMPLING)
    """Largest number of tokens of an answer."""
    temperatures: list[float] = option(lambda: [0.0, 0.8], **SAMPLING_BOUNDS["temperature"])
    """Temperatures of the batches of answers, in turns; 0 is greedy."""
    memory_gib: float = option(4.0, least=0.0)
    """The most memory for hidden states in GiB; those that do not fit are computed again at every step."""
    num_attention_heads: int | None = option(None, least=1)
    """Number of heads; null for the model's, or the next smaller number that fits."""
    draft_vocab_size: int | None = option(None, least=1)
    """How many tokens may be drafted, the most frequent ones of the answers; null for all."""
    token_loss_weight: float = 1.0
    feature_loss_weight: float = 0.1
    loss_positions: int | None = 256
    levels: int = 4
    num_decoded_prompts: int = option(6, least=1)
    """Held-out prompts that are answered with the head for the accepted length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.model), "model", self.model, "must name a language model: a folder, or a name on the hub")
        check(not self.compile, "compile", True, "gains nothing here: no two steps are of one length; leave it out")
        check_weights(self, "token_loss_weight", "overlap_loss_weight", "feature_loss_weight")
        check(bool(self.temperatures), "temperatures", self.temperatures, "must hold one temperature at least")
        remedy = f"must be at most evaluation_size ({self.evaluation_size})"
        check(self.num_decoded_prompts <= self.evaluation_size, "num_decoded_prompts", self.num_decoded_prompts, remedy)

    def architecture(self) -> dict[str, Any]:
        names = ("num_attention_heads", "intermediate_size", "feature_layers", "draft_vocab_size")
        return {name: getattr(self, name) for name in names}

    def new_head(self, model: Any) -> TextHead:
        """The untrained head for a model. Raises UserError for a setting that does not fit it."""
        text = model.config.get_text_config()
        dim, vocab_size, last = int(text.hidden_size), int(text.vocab_size), int(text.num_hidden_layers)
        layers = self.layers_read(last)
        heads = self.num_attention_heads or int(text.num_attention_heads)
        while self.num_attention_heads is None and heads > 1 and (dim % heads or dim // heads % 2):
            heads -= 1
        count = self.draft_vocab_size
        try:
            head = TextHead(
                dim=dim,
                num_attention_heads=heads,
                intermediate_size=self.intermediate_size or int(getattr(text, "intermediate_size", None) or 4 * dim),
                vocab_size=vocab_size,
                draft_vocab_size=None if count is None else min(count, vocab_size),
                feature_layers=list(layers) if len(layers) > 1 else None,
                target_states=describe_states(model, tuple(layers)),
            )
            head.borrow(model)
        except ValueError as error:
            raise UserError(str(error)) from error
        # Without the token's embedding: scaled like SmolLM2's states it says that the token comes again, at 131 nats a
        # token instead of 13.
        head.start_from_features()
        return head


@dataclass(frozen=True)
class Answered:
    """A prompt and the model's answer.

    Args:
        tokens: [L] int64 of both.
        prompt_length: T.
    """

    tokens: Tensor
    prompt_length: int


@dataclass(frozen=True)
class Taught:
    """The model's hidden states and totals for a text of L tokens.

    Args:
        states: [L, k dim] after the layers that the head reads, the last layer's at the end.
        totals: [L] float32, behind the prompt the logarithm of the sum of the exponentials of the model's logits, with
            which a token's logit gives its chance without the others; 0 in the prompt.
    """

    states: Tensor
    totals: Tensor


class TextStates:
    """A model's hidden states for answered prompts, kept in main memory as far as it has room.

    Each text is fed alone, so its states do not depend on others, and a resumed run reads the same numbers.

    Args:
        model: the target.
        layers: after which states are read.
        dtype: in which they are kept.
        num_bytes: the most memory.
    """

    def __init__(self, model: Any, layers: tuple[int, ...], dtype: torch.dtype, num_bytes: float) -> None:
        self.model, self.layers, self.dtype = model, layers, dtype
        self._left = num_bytes
        self._kept: dict[int, Taught] = {}

    @torch.no_grad()
    def of(self, number: int, text: Answered) -> Taught:
        """The states and totals of text `number`."""
        if (kept := self._kept.get(number)) is not None:
            return kept
        with torch.autocast(text.tokens.device.type, enabled=False):
            states = text_states(self.model, text.tokens[None], self.layers)[0].to(self.dtype)
            last = int(self.model.config.get_text_config().hidden_size)
            logits = model_logits(self.model, states[text.prompt_length :, -last:])
        taught = Taught(states, F.pad(logits.logsumexp(-1), (text.prompt_length, 0)))
        if states.nbytes <= self._left:
            self._left -= states.nbytes
            self._kept[number] = taught
        return taught


def model_logits(model: Any, states: Tensor) -> Tensor:
    """The model's logits [..., V] float32 of its last hidden states [..., dim]."""
    output = model.get_output_embeddings()
    logits: Tensor = output(states.to(output.weight.dtype))
    return logits.float()


@dataclass(frozen=True)
class Batch:
    """Texts whose prompts end at the same place: B rows of n pairs; pair k has token k + 1.

    Args:
        tokens: [B, n] int64 of the pairs.
        states: [B, n + 1, k dim] of the model, state k at the token before pair k.
        totals: [B, n] float32 at the pairs' tokens, see `Taught`.
        valid: [B, n] bool, False at padding before a prompt.
        learned: [B, n] bool, the pairs of all tokens of the answers but the last one.
        first: the first pair whose feature a draft may guess, see `guesses_by_level`.
    """

    tokens: Tensor
    states: Tensor
    totals: Tensor
    valid: Tensor
    learned: Tensor
    first: int

    @property
    def positions(self) -> Tensor:
        """[1, n] int64, 0 for the first token of the answers, as in `TextDraftHead`."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)[None] - (self.first - 1)


def batch_of(texts: Sequence[Answered], taught: Sequence[Taught]) -> Batch:
    """Pad texts, and what is known of them, before the prompts and behind the answers."""
    longest = max(each.prompt_length for each in texts)
    end = longest + max(len(each.tokens) - each.prompt_length for each in texts)
    tokens, features, totals, valid, learned = [], [], [], [], []
    place = torch.arange(end - 1, device=texts[0].tokens.device)
    for each, own in zip(texts, taught, strict=True):
        before, behind = longest - each.prompt_length, end - (longest - each.prompt_length) - len(each.tokens)
        tokens.append(F.pad(each.tokens, (before, behind))[1:])
        features.append(F.pad(own.states, (0, 0, before, behind)))
        totals.append(F.pad(own.totals, (before, behind))[1:])
        valid.append(place >= before)
        learned.append((place >= longest - 1) & (place < end - behind - 2))
    pairs, states, sums, there, counted = (torch.stack(each) for each in (tokens, features, totals, valid, learned))
    return Batch(pairs, states, sums, there, counted, longest)


class TextDrafterTask(DrafterTask):
    """A head as the training loop sees it.

    Args:
        config: of the run.
        model: the target.
        training, heldout: answered prompts.
    """

    not_muon = "draft_ids"  # every matrix of the head is one of a hidden layer

    def __init__(
        self, config: TextDrafterTrainingConfig, model: Any, training: Sequence[Answered], heldout: Sequence[Answered]
    ) -> None:
        self.config, self.model = config, model
        self.training, self.heldout = training, heldout
        head = config.new_head(model)
        head.choose_tokens(frequent_tokens(training, int(head.config.vocab_size), len(head.draft_ids)))
        super().__init__(config, head.to(config.device).float())
        layers = head.feature_layers or (int(model.config.get_text_config().num_hidden_layers),)
        dtype, memory = torch.bfloat16 if config.autocast else torch.float32, config.memory_gib * 2**30
        self._states = {name: TextStates(model, layers, dtype, memory / 2) for name in ("training", "heldout")}

    def _batch(self, split: str, numbers: Sequence[int]) -> Batch:
        texts: list[Answered] = [getattr(self, split)[number] for number in numbers]
        return batch_of(texts, [self._states[split].of(*each) for each in zip(numbers, texts, strict=True)])

    def _guesses(self, batch: Batch, features: Tensor, levels: int) -> list[Tensor]:
        """The head's hidden states [B, n - first + 1, dim] from pair `first - 1` on, for each level."""
        return guesses_by_level(
            self.drafter, batch.tokens, features, batch.positions, batch.valid, first=batch.first, levels=levels
        )

    def _wanted(self, batch: Batch) -> Tensor:
        """[B, n, dim]: the model's last hidden states at the pairs' tokens, which are guessed."""
        return batch.states[:, 1:, -int(self.drafter.config.dim) :]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config, generator = self.config, self.generator(step)
        numbers = torch.randint(len(self.training), (config.batch_size,), generator=generator).tolist()
        batch = self._batch("training", numbers)
        features = self.drafter.fused(batch.states[:, :-1])
        features = self.noised(features, features.shape[1], generator)
        rows, places = batch.learned.nonzero(as_tuple=True)
        if config.loss_positions is not None:
            chosen = torch.randperm(len(rows), generator=generator)[: config.loss_positions].to(self.device)
            rows, places = rows[chosen], places[chosen]
        wanted = self._wanted(batch)[rows, places]
        weight, bias = self.drafter.output_rows()
        with torch.no_grad():
            drafted = F.linear(wanted.to(weight.dtype), weight, bias).float()  # [m, draft_vocab_size]
            truth = (drafted - batch.totals[rows, places, None]).exp()

        def losses(guess: Tensor) -> dict[str, Tensor]:
            guess = guess[rows, places - (batch.first - 1)]
            logits = self.drafter.draft_logits(guess).float()
            return {
                "features": F.smooth_l1_loss(guess.float(), wanted.float()),
                "tokens": soft_cross_entropy(logits, drafted),
                "missed": 1 - torch.minimum(logits.softmax(-1), truth).sum(-1).mean(),
            }

        return loss_over_levels(map(losses, self._guesses(batch, features, config.levels)), config)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How often the likeliest draft token is the model's likeliest, on held-out answers; and the accepted length.

        `agreement_1` is of guesses from the model's features, `agreement_2` and so on of those one level below each.
        `overlap` is the chance that a token drawn from the head's distribution is accepted. `accepted_length` is of
        greedy chains of `TextDrafter.draft_length` tokens, without the bonus token.
        """
        config = self.config
        hits, overlap, count = torch.zeros(_MEASURED_LEVELS, dtype=torch.float64), 0.0, 0
        for start in range(0, len(self.heldout), config.batch_size):
            batch = self._batch("heldout", range(start, min(start + config.batch_size, len(self.heldout))))
            with autocast(config):
                learned = batch.learned[:, batch.first - 1 :]  # no pair before is
                truth = model_logits(self.model, self._wanted(batch)[batch.learned])
                guesses = self._guesses(batch, self.drafter.fused(batch.states[:, :-1]), _MEASURED_LEVELS)
                for level, guess in enumerate(guesses):
                    logits = self.drafter.draft_logits(guess[learned]).float()
                    hits[level] += (self.drafter.draft_ids[logits.argmax(-1)] == truth.argmax(-1)).sum().cpu()
                    if level == 0:
                        theirs = truth.softmax(-1)[:, self.drafter.draft_ids]
                        overlap += float(torch.minimum(logits.softmax(-1), theirs).sum())
            count += int(batch.learned.sum())
        figures = {f"agreement_{level}": value / count for level, value in enumerate(hits.tolist(), start=1)}
        return {**figures, "overlap": overlap / count, "accepted_length": self._accepted_length()}

    def _accepted_length(self) -> float:
        """Mean over verification steps, without the bonus token."""
        drafter = TextDrafter(self._copy(self.model.dtype), self.model)
        lengths = []
        for text in self.heldout[: self.config.num_decoded_prompts]:
            result = specdecode.generate(
                self.model,
                text.tokens[None, : text.prompt_length],
                max_new_tokens=self.config.max_new_tokens,
                drafter=drafter,
                draft_length=drafter.draft_length,  # said, so that nothing is copied
                temperature=0,
            )
            lengths.append(result.trace.mean_accepted_length)
        return sum(lengths) / len(lengths)

    def export(self, folder: Path) -> None:
        """Write the head in bfloat16, with its accepted length."""
        head = self._copy(torch.bfloat16)
        head.register_to_config(accepted_length=round(self._accepted_length(), 3))
        head.save_pretrained(folder)

    def _copy(self, dtype: torch.dtype) -> TextHead:
        """The head with its present weights, in a dtype, without what the model lends."""
        head: TextHead = TextHead.from_config(self.drafter.config)
        nn.Module.to(head, self.device, dtype)  # diffusers' own warns of modules to be kept in float32; there are none
        head.load_state_dict(self.drafter.state_dict())
        return head.eval().requires_grad_(False)


def frequent_tokens(texts: Sequence[Answered], vocab_size: int, count: int) -> Tensor:
    """[count] int64: the most frequent tokens of answered prompts, then those that come first in the vocabulary.

    Prompts count, too: answers repeat them.
    """
    times: Counter[int] = Counter()
    for each in texts:
        times.update(each.tokens.tolist())
    ordered = sorted(range(vocab_size), key=lambda token: (-times[token], token))
    return torch.tensor(ordered[:count])


def train_text_drafter(config: TextDrafterTrainingConfig) -> RunResult:
    """Let a language model answer prompts, then train a draft head on the answers.

    Raises:
        UserError: for a field, model, file of prompts, folder of answers or checkpoint that does not fit.
    """
    device = prepare(config)
    folder = find_files(config.model, config.revision)
    model, tokenizer = _load(folder, config.dtype)
    model.to(device).requires_grad_(False)
    config.new_head(model)  # refuses what does not fit, before answers are made
    asked = {name: getattr(config, name) for name in ("max_new_tokens", "temperatures", "seed")}
    settings = {"target": weights_fingerprint(folder), **asked}
    answer = TextAnswers(model, **asked)
    kept = Path(config.answers or Path(config.output) / "answers")
    answered = []
    for prompts in _prompts(config, tokenizer):
        inputs = [prompts.inputs(number)["input_ids"][0] for number in range(len(prompts.texts))]
        _check_lengths(model, inputs, config.max_new_tokens)
        answers = keep_answers(answer, prompts, len(prompts.texts), kept, settings)
        texts = [
            Answered(torch.cat((prompt, torch.tensor(tokens))).to(device), len(prompt))
            for prompt, tokens in zip(inputs, answers, strict=True)
            if len(tokens) > 1
        ]
        if not texts:
            raise UserError(f"model answers none of the {prompts.split} prompts with two tokens or more; give others")
        answered.append(texts)
    return train(config, TextDrafterTask(config, model, *answered), settings)


def _prompts(config: TextDrafterTrainingConfig, tokenizer: Any) -> tuple[TextPrompts, TextPrompts]:
    """Prompts to learn from, and those kept apart."""
    counts = {"train": config.num_prompts, "heldout": config.evaluation_size}
    if config.prompts_file:
        texts = read_prompts(config.prompts_file)
        remedy = f"must hold more than evaluation_size ({config.evaluation_size}) prompts"
        check(len(texts) > config.evaluation_size, "prompts_file", config.prompts_file, remedy)
        kept_apart = texts[: config.evaluation_size]
        chosen = {"train": texts[config.evaluation_size :][: config.num_prompts], "heldout": kept_apart}
        described = {split: {"prompts": digest(listed)} for split, listed in chosen.items()}
    else:
        chosen = {split: compose_prompts(split, config.seed, count) for split, count in counts.items()}
        known = {split: compose_prompts(split, config.seed, _KNOWN_PROMPTS) for split in counts}
        described = {split: {"composed": digest(listed)} for split, listed in known.items()}

    def of(split: str) -> TextPrompts:
        return TextPrompts(tokenizer, chosen[split], split, described[split], config.generation_batch_size)

    return of("train"), of("heldout")


def _load(folder: Path, dtype: str) -> tuple[Any, Any]:
    """A model and its tokenizer. Raises UserError for a folder that transformers cannot read, or no language model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_stored(folder, "model")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), use_safetensors=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        check_model(model)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UserError(f"model: {folder} cannot be used ({str(error).splitlines()[0]})") from error
    return model, tokenizer


def _check_lengths(model: Any, prompts: Sequence[Tensor], most: int) -> None:
    """Raises UserError where a prompt and its answer reach past the model's positions."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = max(len(prompt) for prompt in prompts)
    if longest is not None and length + most > longest:
        raise UserError(
            f"max_new_tokens: {most} after a prompt of {length} tokens reach past the {longest} positions of model; "
            f"lower it, or give shorter prompts"
        )
