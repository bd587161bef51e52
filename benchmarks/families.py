"""Each family against the library it comes from: plain decoding and `generate` in turns, planted `scd`, peak memory.

    python benchmarks/families.py                     # every family, 300M random parameters; some minutes a family
    python benchmarks/families.py --families janus --num_threads 2
    python benchmarks/families.py --smoke --output /tmp/families.json      # models of a second, to see that it works

Models are random and unmodified classes of transformers, so times and memory mean something and pictures do not. A
picture is cut short (`--grid` tokens a side) to keep the run short; both sides draw the same number of tokens.

Acceptance is *planted*: logits are mixed towards a known picture, so that a guess is right about as often as
`--planted_share` says, whatever a trained model would do. It shows what a pass over a window costs, not what a method
reaches.

The library's own `generate` runs on the same modules with the project's kernels turned off (`VARGEN_KERNELS=plain`).
Every row is kept as soon as it is measured; the same command goes on behind the last one. Memory is measured in a
process of its own for each way of drawing. Times are no measurement while anything else runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from own_process import forget_peak, held_bytes, in_own_process, peak_bytes
from torch import Tensor

from metrics.provenance import provenance, write_result
from specdecode.kernels.build import library
from specdecode.kernels.linears import serve_linears
from specdecode.loop import DecodeResult, decode
from specdecode.roles import TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.methods.catalogue import resolve_method

RESULTS = Path(__file__).resolve().parent / "results"
PROMPT_LENGTH = 12
TOP_K = 50
WINDOW = 64
"""Tokens of the window whose memory is measured."""
WAYS = ("generate", "ar", f"window of {WINDOW}")


@dataclass(frozen=True)
class Size:
    """How large a random model is, and how much it draws.

    Args:
        hidden_size, num_layers, num_heads, codes: of the language model, and of the codebook.
        grid: tokens a side.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    codes: int
    grid: int

    @classmethod
    def of(cls, millions: float, grid: int) -> Size:
        """About so many million parameters of layers and output head; text tokens hardly count."""
        width, heads, codes = (1024, 16, 16384) if millions >= 60 else (64, 4, 256)
        layer = 4 * width**2 + 3 * width * cls.feed_forward(width)
        layers = max(1, round((millions * 1e6 - 2 * codes * width) / layer))
        return cls(width, layers, heads, codes, grid)

    @staticmethod
    def feed_forward(width: int) -> int:
        """Width of the feed-forward layer: 2.75 times, as Llama's."""
        return width * 11 // 4


class Family(ABC):
    """One family: a random model, what the library draws with it, and its target here.

    Args:
        size: of the model.
        dtype: of its weights.
    """

    name: ClassVar[str]
    library: ClassVar[str]
    """Whose way of drawing it is compared with."""

    def __init__(self, size: Size, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.size = size
        self.model = self.build().to(dtype).eval()
        serve_linears(self.model)

    @abstractmethod
    def build(self) -> Any:
        """The model, in float32."""

    @abstractmethod
    def generate(self, batch_size: int) -> Tensor:
        """Tokens [B, N] by the library, sampled from the `TOP_K` likeliest."""

    @abstractmethod
    def target(self, batch_size: int, max_draft_nodes: int) -> Any:
        """The same prompts, as a target of the loop."""

    def known_picture(self, batch_size: int) -> Tensor:
        """int64 [B, N], what planted targets lean to."""
        return torch.randint(self.size.codes, (batch_size, self.num_tokens), generator=torch.manual_seed(7))

    def drafting(self, drafter: Any, target: Any) -> Any:
        """A method's drafter as the family's pipeline uses it."""
        return drafter

    @classmethod
    def tokens_of(cls, grid: int) -> int:
        """Drawn for a picture of a grid of so many tokens a side."""
        return grid**2

    @property
    def num_tokens(self) -> int:
        """N, of a picture."""
        return self.tokens_of(self.size.grid)

    @property
    def parameters(self) -> int:
        """Of the model, all parts."""
        return sum(parameter.numel() for parameter in self.model.parameters())


class Janus(Family):
    """Guidance 5: two rows a picture on both sides. The library's cache is static, and is attended to as a whole."""

    name = "janus"
    library = "JanusForConditionalGeneration.generate"

    def build(self) -> Any:
        from transformers import (
            GenerationConfig,
            JanusConfig,
            JanusForConditionalGeneration,
            JanusVisionConfig,
            JanusVQVAEConfig,
            LlamaConfig,
        )

        size = self.size
        text = LlamaConfig(
            hidden_size=size.hidden_size,
            intermediate_size=size.feed_forward(size.hidden_size),
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_heads,
            vocab_size=512,
            max_position_embeddings=PROMPT_LENGTH + self.num_tokens + 1,
        )
        vision = JanusVisionConfig(
            hidden_size=64, num_hidden_layers=1, num_attention_heads=2, image_size=4 * size.grid, patch_size=4,
            projection_dim=size.hidden_size, num_image_tokens=self.num_tokens,
        )  # fmt: skip
        vq = JanusVQVAEConfig(
            embed_dim=8, num_embeddings=size.codes, latent_channels=32, base_channels=32, channel_multiplier=[1, 1],
            num_res_blocks=1, projection_dim=size.hidden_size, image_token_embed_dim=size.hidden_size,
        )  # fmt: skip
        model = JanusForConditionalGeneration(
            JanusConfig(text_config=text, vision_config=vision, vq_config=vq, image_token_id=4)
        )
        model.generation_config = GenerationConfig(
            bos_token_id=1, eos_token_id=2, pad_token_id=0, generation_kwargs={"boi_token_id": 5}
        )
        return model

    def _prompts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        input_ids = torch.arange(batch_size * PROMPT_LENGTH).view(batch_size, -1) % 400 + 6
        input_ids[:, 0], input_ids[:, -1] = 1, 5
        return input_ids, torch.ones_like(input_ids)

    def generate(self, batch_size: int) -> Tensor:
        input_ids, mask = self._prompts(batch_size)
        return self.model.generate(
            input_ids,
            attention_mask=mask,
            generation_mode="image",
            guidance_scale=5.0,
            do_sample=True,
            top_k=TOP_K,
        )

    def target(self, batch_size: int, max_draft_nodes: int) -> Any:
        from vargen.models.janus.target import JanusTarget

        input_ids, mask = self._prompts(batch_size)
        return JanusTarget(self.model, input_ids, mask, guidance_scale=5.0, max_draft_nodes=max_draft_nodes)


class GlmImage(Family):
    """No guidance. The library's cache grows by a copy a token. A preview of one token comes before the picture."""

    name = "glm_image"
    library = "GlmImageForConditionalGeneration.generate"

    @classmethod
    def tokens_of(cls, grid: int) -> int:
        return 1 + grid**2

    def build(self) -> Any:
        from transformers import (
            GlmImageConfig,
            GlmImageForConditionalGeneration,
            GlmImageTextConfig,
            GlmImageVisionConfig,
            GlmImageVQVAEConfig,
        )

        size, head = self.size, self.size.codes + 4
        half = size.hidden_size // size.num_heads // 2
        side = 3 * half // 8
        sections = [half - 2 * side, side, side]  # the own ones of the model are [8, 12, 12]
        self.beginning, end, pad, image = size.codes, size.codes + 1, size.codes + 4, size.codes + 5
        text = GlmImageTextConfig(
            vocab_size=size.codes + 512,
            hidden_size=size.hidden_size,
            intermediate_size=size.feed_forward(size.hidden_size),
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_heads,
            max_position_embeddings=4096,
            pad_token_id=pad,
            vision_vocab_size=head,
            eos_token_id=end,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": sections,
            },
        )
        vision = GlmImageVisionConfig(
            depth=1, hidden_size=64, num_heads=2, image_size=64, patch_size=16, intermediate_size=64
        )  # fmt: skip
        vq = GlmImageVQVAEConfig(embed_dim=8, num_embeddings=size.codes, latent_channels=16)
        return GlmImageForConditionalGeneration(
            GlmImageConfig(
                text_config=text, vision_config=vision, vq_config=vq, image_token_id=image,
                image_start_token_id=self.beginning, image_end_token_id=end,
            )
        )  # fmt: skip

    def _inputs(self, batch_size: int) -> dict[str, Tensor]:
        text = torch.arange(batch_size * PROMPT_LENGTH).view(batch_size, -1) % 400 + self.size.codes + 6
        text[:, -1] = self.beginning
        grids = torch.tensor([[1, self.size.grid, self.size.grid], [1, 1, 1]]).repeat(batch_size, 1)
        per_sample = torch.full((batch_size,), 2)
        mask = torch.ones_like(text)
        return {"input_ids": text, "attention_mask": mask, "image_grid_thw": grids, "images_per_sample": per_sample}

    def generate(self, batch_size: int) -> Tensor:
        count = self.num_tokens
        sampling = {"do_sample": True, "top_k": TOP_K, "min_new_tokens": count, "max_new_tokens": count}
        return self.model.generate(**self._inputs(batch_size), **sampling)[:, PROMPT_LENGTH:]

    def target(self, batch_size: int, max_draft_nodes: int) -> Any:
        from vargen.models.glm_image.request import read_request
        from vargen.models.glm_image.target import GlmImageTarget

        request = read_request(self.model, self._inputs(batch_size))
        return GlmImageTarget(self.model, request, max_draft_nodes=max_draft_nodes)


class Emu3(Family):
    """Guidance 3: two rows a picture here, two passes with two growing caches there, and its caller's function says
    which tokens are allowed, where the mark that ends a line is forced."""

    name = "emu3"
    library = "Emu3ForConditionalGeneration.generate"

    @classmethod
    def tokens_of(cls, grid: int) -> int:
        return grid * (grid + 1) - 1

    def build(self) -> Any:
        from transformers import (
            Emu3Config,
            Emu3ForConditionalGeneration,
            Emu3TextConfig,
            Emu3VQVAEConfig,
            GenerationConfig,
        )

        size, words = self.size, 512
        special = ["<pad>", "<image>", "<|extra_200|>", "<bos>", "<eos>"]
        names = [*special, *(f"word {word}" for word in range(words))]
        names += [f"<|visual token {code:06d}|>" for code in range(size.codes)]
        text = Emu3TextConfig(
            vocab_size=len(names),
            hidden_size=size.hidden_size,
            intermediate_size=size.feed_forward(size.hidden_size),
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_heads,
            max_position_embeddings=4096,
            pad_token_id=0,
            bos_token_id=3,
            eos_token_id=4,
        )
        vq = Emu3VQVAEConfig(
            codebook_size=size.codes, base_channels=32, channel_multiplier=[1, 1], num_res_blocks=1, hidden_size=32,
            attn_resolutions=[], temporal_downsample_factor=1,
        )  # fmt: skip
        vocabulary = {name: number for number, name in enumerate(names)}
        model = Emu3ForConditionalGeneration(Emu3Config(vq_config=vq, text_config=text, vocabulary_map=vocabulary))
        model.generation_config = GenerationConfig(bos_token_id=3, eos_token_id=4, pad_token_id=0)
        return model

    def _prompts(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Prompts, and what guidance leads away from."""
        text = torch.arange(2 * batch_size * PROMPT_LENGTH).view(2, batch_size, -1) % 400 + 5
        text[..., 0] = 3
        return text[0], text[1]

    def generate(self, batch_size: int) -> Tensor:
        prompts, away = self._prompts(batch_size)
        codes, mark = self.model.vocabulary_mapping.image_tokens, [self.model.vocabulary_mapping.eol_token_id]
        line = self.size.grid + 1
        return self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            negative_prompt_ids=away,
            negative_prompt_attention_mask=torch.ones_like(away),
            guidance_scale=3.0,
            prefix_allowed_tokens_fn=lambda _, ids: codes if (len(ids) - PROMPT_LENGTH + 1) % line else mark,
            do_sample=True,
            top_k=TOP_K,
            max_new_tokens=self.num_tokens,
        )[:, PROMPT_LENGTH:]

    def target(self, batch_size: int, max_draft_nodes: int) -> Any:
        from vargen.models.token_images.emu3 import EMU3
        from vargen.models.token_images.grammar import vocabulary_of
        from vargen.models.token_images.target import TokenImageTarget

        return TokenImageTarget(
            self.model,
            vocabulary_of(EMU3, self.model),
            [(prompts, None) for prompts in self._prompts(batch_size)],
            height=self.size.grid,
            width=self.size.grid,
            decoder=EMU3.decoder,
            guidance_scale=3.0,
            max_draft_nodes=max_draft_nodes,
        )

    def known_picture(self, batch_size: int) -> Tensor:
        forced = self.target(1, 1).known_tokens
        return torch.where(forced >= 0, forced, super().known_picture(batch_size))

    def drafting(self, drafter: Any, target: Any) -> Any:
        from specdecode.drafters.known_tokens import KnownTokensDrafter

        forced = getattr(target, "target", target).known_tokens  # a planted target's own
        return KnownTokensDrafter(drafter, forced, target.vocab_size)


FAMILIES: dict[str, type[Family]] = {family.name: family for family in (Janus, GlmImage, Emu3)}


class PlantedTarget:
    """A target whose logits are mixed towards a known picture.

    Args:
        target: mixed.
        known: int64 [B, N], the picture.
        share: of the probability that goes to it, at every place and whatever came before.
    """

    def __init__(self, target: Any, known: Tensor, share: float) -> None:
        self.target, self.known, self.share = target, known, share
        self.vocab_size, self.batch_size, self.device = target.vocab_size, target.batch_size, target.device

    def prefill(self) -> TargetOutput:
        """See `specdecode.roles.Target`; so the others."""
        self.committed = torch.zeros(self.batch_size, dtype=torch.long)
        return self._mixed(self.target.prefill(), torch.zeros(self.batch_size, 1, dtype=torch.long))

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        return self._mixed(self.target.forward(tokens, mask, depths), self.committed[:, None] + depths + 1)

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        self.target.commit(node_indices, counts)
        self.committed = self.committed + counts

    def _mixed(self, output: TargetOutput, places: Tensor) -> TargetOutput:
        known = self.known.gather(1, places.clamp(max=self.known.shape[1] - 1))
        probabilities = output.logits.softmax(-1).mul_(1 - self.share)
        probabilities.scatter_add_(-1, known[..., None], torch.full_like(probabilities[..., :1], self.share))
        return TargetOutput(probabilities.log_(), output.hidden_states)


def draw(family: Family, batch_size: int, method: str, seed: int, planted: float | None = None, **options: Any) -> Any:
    """One batch by a method of ours, from the prompts to the tokens. With `planted`, from a planted target."""
    settings = resolve_method(method, options).resolved(family.num_tokens)
    target = family.target(batch_size, settings.max_draft_nodes(family.num_tokens))
    top_k = TOP_K
    if planted is not None:
        target, top_k = PlantedTarget(target, family.known_picture(batch_size), planted), 0
    players = settings.build(SimpleNamespace(target=target, num_tokens=family.num_tokens))  # type: ignore[arg-type]
    drafter = None if players.drafter is None else family.drafting(players.drafter, target)
    result: DecodeResult = decode(
        target,
        max_new_tokens=family.num_tokens,
        sampling=SamplingConfig(1.0, top_k, 1.0),
        streams=RandomStreams.from_seeds(range(seed, seed + batch_size)),
        drafter=drafter,
        verifier=players.verifier,
    )
    return result


def in_turns(ways: dict[str, Callable[[int], Any]], repeats: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of every way, called in turns, and what each returned last. No call is left out: warm up before."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    returned: dict[str, Any] = {}
    for repeat in range(repeats):
        names = list(ways)
        for name in names if repeat % 2 == 0 else reversed(names):
            began = time.perf_counter()
            returned[name] = ways[name](repeat)
            seconds[name].append(time.perf_counter() - began)
    return seconds, returned


def by_itself(family: Family, batch_size: int) -> Tensor:
    """What the library draws where nobody has given it the project's kernels."""
    with patch.dict(os.environ, VARGEN_KERNELS="plain"):
        return family.generate(batch_size)


def speed_row(family: Family, batch_size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Plain decoding against the library."""
    seconds, _ = in_turns(
        {
            "library": lambda repeat: by_itself(family, batch_size),
            "ours": lambda repeat: draw(family, batch_size, "ar", repeat),
        },
        options.repeats,
    )
    return {
        "library": family.library,
        "seconds_library": seconds["library"],
        "seconds_ours": seconds["ours"],
        "speedup": statistics.median(seconds["library"]) / statistics.median(seconds["ours"]),
    }


def planted_row(family: Family, batch_size: int, options: argparse.Namespace) -> dict[str, Any]:
    """`scd` against plain decoding of the same planted target."""
    share = options.planted_share
    seconds, results = in_turns(
        {
            name: lambda repeat, name=name: draw(family, batch_size, name, repeat, planted=share)  # type: ignore[misc]
            for name in ("ar", "scd")
        },
        options.repeats,
    )
    trace = {name: results[name].trace for name in results}
    return {
        "planted_share": share,
        "passes_ar": trace["ar"].target_passes,
        "passes_scd": trace["scd"].target_passes,
        "seconds_ar": seconds["ar"],
        "seconds_scd": seconds["scd"],
        "speedup": statistics.median(seconds["ar"]) / statistics.median(seconds["scd"]),
    }


def memory_row(family: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Peak memory of one way of drawing, in a process of its own."""
    arguments = ["--measure_memory", way, "--families", family]
    for name in ("parameters", "memory_grid", "memory_dtype", "num_threads"):
        arguments += [f"--{name}", str(getattr(options, name))]
    return in_own_process(__file__, *arguments)


def measure_memory(options: argparse.Namespace) -> dict[str, Any]:
    """What the process holds before drawing, and the most that it held while drawing one picture; bytes."""
    (name,) = options.families
    family = FAMILIES[name](Size.of(options.parameters, options.memory_grid), getattr(torch, options.memory_dtype))
    gc.collect()
    before = held_bytes()
    forget_peak()
    if options.measure_memory == "generate":
        by_itself(family, 1)
    elif options.measure_memory == "ar":
        draw(family, 1, "ar", 0)
    else:  # planted, so that a picture takes few of these large passes
        draw(family, 1, "scd", 0, planted=0.95, window=min(WINDOW, family.num_tokens - 1))
    return {"bytes_before": before, "bytes_peak": peak_bytes()}


class Rows:
    """Rows on disk, each kept as soon as it is there.

    Args:
        path: the file. Rows of other settings or another machine are measured anew.
        settings: what all rows of a run share.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.is_file() else []
        self.hardware = provenance()["hardware"]["processor"]

    def add(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a row that is not there yet, and say it."""
        whole = {**key, "settings": self.settings, "processor": self.hardware}
        if any(all(row.get(name) == value for name, value in whole.items()) for row in self.rows):
            return
        row = {**whole, **measure()}
        same = [other for other in self.rows if all(other.get(name) == value for name, value in key.items())]
        self.rows = [other for other in self.rows if other not in same] + [row]
        write_result(self.path, {"rows": self.rows})
        print(self.tell(row), flush=True)

    @staticmethod
    def tell(row: dict[str, Any]) -> str:
        """What is printed of a row."""
        return json.dumps({name: value for name, value in row.items() if name not in ("settings", "processor")})


def time_family(name: str, size: Size, dtype: str, rows: Rows, options: argparse.Namespace) -> None:
    """All rows of times of a family in one precision; the model is built, and warmed up, for the first missing one."""
    tokens = FAMILIES[name].tokens_of(size.grid)
    built: list[Family] = []

    def measure(row: Callable[..., dict[str, Any]], batch_size: int) -> dict[str, Any]:
        if not built:
            family = FAMILIES[name](size, getattr(torch, dtype))
            draw(family, 1, "ar", 0)
            family.generate(1)
            built.append(family)
        return {"parameters": built[0].parameters, **row(built[0], batch_size, options)}

    for batch_size in options.batch_sizes:
        key = {"family": name, "dtype": dtype, "batch_size": batch_size, "tokens": tokens}
        rows.add({**key, "row": "speed"}, partial(measure, speed_row, batch_size))
        rows.add({**key, "row": "planted"}, partial(measure, planted_row, batch_size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--parameters", type=float, default=300, help="of each model, in millions")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--grid", type=int, default=7, help="tokens a side, of what is timed")
    parser.add_argument("--memory_grid", type=int, default=12, help="the same, of what memory is measured of")
    parser.add_argument("--memory_dtype", default="float32")
    parser.add_argument("--planted_share", type=float, default=0.7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num_threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "families.json")
    parser.add_argument("--smoke", action="store_true", help="models of a million parameters: does it work at all?")
    parser.add_argument("--measure_memory", choices=WAYS, help=argparse.SUPPRESS)  # what a process of its own does
    options = parser.parse_args()
    if options.smoke:
        options.parameters, options.grid, options.memory_grid, options.repeats = 1, 4, 4, 1
        if options.output == RESULTS / "families.json":
            parser.error("--smoke needs an --output of its own: its rows are no record")
    torch.set_num_threads(options.num_threads)
    if options.measure_memory:
        print(json.dumps(measure_memory(options)))
        return

    size = Size.of(options.parameters, options.grid)
    shared = {"repeats": options.repeats, "num_threads": options.num_threads, "torch": torch.__version__}
    shared["kernels"] = library() is not None
    rows = Rows(options.output, {**shared, "hidden_size": size.hidden_size, "num_layers": size.num_layers})
    for name in options.families:
        for dtype in options.dtypes:
            time_family(name, size, dtype, rows, options)
            gc.collect()
        for way in WAYS:
            tokens = FAMILIES[name].tokens_of(options.memory_grid)
            key = {"family": name, "dtype": options.memory_dtype, "batch_size": 1, "tokens": tokens}
            rows.add({**key, "row": "memory", "way": way}, partial(memory_row, name, way, options))


if __name__ == "__main__":
    main()
