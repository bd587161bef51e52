"""What the loop does outside forward passes, by family: each family that draws token by token, beside LlamaGen.

Models are tiny and random, with 1,024 codes and 16 rows of 16. Acceptance is *planted*: the output head is zero, so
that all guesses of a Jacobi window stay, and a chain of known tokens is wrong once in so many places. So families whose
rows have no ends take the same steps as LlamaGen: random numbers are made ahead for many places at once, and how often
depends on the steps. Figures say what a step costs around its passes, and nothing about any model.

    python benchmarks/family_loops.py                # prints a table
    python benchmarks/family_loops.py --operators    # and which calls they are

Writes benchmarks/results/family_loops.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
import transformers
from diffusers import VQModel
from host_work import RESULTS, calls, share
from torch import Tensor

from metrics.provenance import write_result
from specdecode.drafters.draft_size import DraftSize
from specdecode.roles import DecodeState, Draft, Drafter
from specdecode.tree import TokenTree
from vargen.methods.base import Components, ImageMethodConfig, Method
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
from vargen.models.token_images.description import CodeIds, Sizes, TokenImageFamily
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.token_images import TokenImagePipeline

CODES, SIDE, WINDOW, WRONG = 1_024, 16, 8, 6
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip
SAMPLING = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "guidance_scale": 4.0}
BEGINNING = 20
"""An id that begins every prompt."""


class PlantedChain(Drafter):
    """Drafts a chain from known tokens, of which one in `WRONG` places is another.

    Args:
        tokens: [B, N] int64, what will be drawn.
    """

    def __init__(self, tokens: Tensor) -> None:
        wrong = torch.arange(tokens.shape[1]) % WRONG == WRONG - 1
        planted = torch.where(wrong, (tokens + 1) % CODES, tokens)
        self._tokens = torch.cat([planted, planted[:, -1:].expand(-1, WINDOW)], 1)

    def propose(self, state: DecodeState) -> Draft:
        """The next `WINDOW` of them."""
        behind = state.lengths[:, None] + torch.arange(WINDOW)
        return Draft(TokenTree.chain(torch.cat([state.last_tokens()[:, None], self._tokens.gather(1, behind)], 1)))


@dataclass(frozen=True)
class PlantedMethod(ImageMethodConfig):
    """A method that drafts what plain decoding drew; `tokens` [B, N] of the seed."""

    name: ClassVar[str] = "planted-chain"
    exact: ClassVar[bool] = True
    tokens: Any = None

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """A chain."""
        return (DraftSize(WINDOW + 1, WINDOW),)

    def _players(self, components: Components) -> Method:
        return Method(PlantedChain(self.tokens))


def llamagen() -> Callable[..., Any]:
    """Draws a class with a tiny LlamaGen."""
    torch.manual_seed(0)
    transformer = LlamaGenTransformer(
        dim=32, num_layers=1, num_attention_heads=4, intermediate_size=48, vocab_size=CODES, grid_size=SIDE,
        condition_type="class", num_classes=10,
    )  # fmt: skip
    with torch.no_grad():
        transformer.lm_head.weight.zero_()
    vqvae = VQModel(
        block_out_channels=(4, 8), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4,
        up_block_types=("UpDecoderBlock2D",) * 2, num_vq_embeddings=CODES, vq_embed_dim=4, norm_num_groups=2,
        scaling_factor=1.0, lookup_from_codebook=True,
    )  # fmt: skip
    pipeline = LlamaGenPipeline(transformer.eval(), vqvae.eval())
    pipeline.set_progress_bar_config(disable=True)
    return partial(pipeline, class_labels=[3], output_type="latent", **SAMPLING)


def family_model(family: TokenImageFamily) -> tuple[Any, TokenImageFamily]:
    """A tiny model of a family with so few codes, and its description with them; all else is the family's own."""
    first = family.codes.first if isinstance(family.codes.first, int) else 9_216
    sizes = Sizes(family.sizes.pixels_a_code, usual=(SIDE, SIDE), listed=((SIDE, SIDE),))
    own = replace(family, codes=CodeIds(first, CODES), sizes=sizes, vocab_size=None)
    config = {**SMALL, "vocab_size": first + CODES, **family.config}
    if family.model_class.startswith("Chameleon"):
        config |= {"vocabulary_map": {"<image>": 0}, "bos_token_id": BEGINNING}
        config["vq_config"] = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1}
    model_class: Any = getattr(transformers, family.model_class)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**config)).eval()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    return model, own


def token_images(family: TokenImageFamily) -> Callable[..., Any]:
    """Draws ids of a prompt with a tiny model of a family."""
    model, own = family_model(family)
    pipeline = TokenImagePipeline(model, family=own)
    pipeline.set_progress_bar_config(disable=True)
    prompt, null = torch.full((1, 6), BEGINNING), torch.full((1, 3), BEGINNING)
    return partial(pipeline, input_ids=prompt, negative_input_ids=null, output_type="latent", **SAMPLING)


def measured(pipeline: Callable[..., Any], name: str, pictures: int) -> tuple[dict[str, Any], dict[str, float]]:
    """A row of the table, and calls a step by operator."""
    methods: dict[int, Any] = {}
    for seed in range(pictures + 1):
        methods[seed] = name if name == "ar" else resolve_method(name, {"window": WINDOW}) if name != "chain" else None
        if name == "chain":
            plain = pipeline(method="ar", generator=torch.Generator().manual_seed(seed))
            methods[seed] = PlantedMethod(tokens=plain.tokens)
    traces = []

    def draw_once(seed: int) -> None:
        traces.append(pipeline(method=methods[seed], generator=torch.Generator().manual_seed(seed)).trace)

    of_time = share(draw_once, pictures)
    of_calls = calls(draw_once, apart=True)
    by_operator = of_calls.pop("by_operator")
    length = sum(trace.mean_accepted_length for trace in traces) / len(traces)
    passes = sum(trace.target_passes for trace in traces) / len(traces)
    return {**of_calls, **of_time, "accepted_length_planted": length, "passes_planted": passes}, by_operator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="jacobi,scd,chain")
    parser.add_argument("--families", default=",".join(TOKEN_IMAGE_FAMILIES))
    parser.add_argument("--pictures", type=int, default=2)
    parser.add_argument("--operators", action="store_true", help="print which calls they are")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    families = {name: partial(token_images, TOKEN_IMAGE_FAMILIES[name]) for name in options.families.split(",")}
    drawn = {name: make() for name, make in ({"llamagen": llamagen} | families).items()}
    rows = []
    print("| method | family | calls a step | ms outside a step | accepted length (planted) |\n|---|---|---|---|---|")
    for method in options.methods.split(","):
        for family, pipeline in drawn.items():
            row, by_operator = measured(pipeline, method, options.pictures)
            rows.append({"method": method, "family": family, **row})
            cells = f"{row['calls']:.1f} | {row['milliseconds_outside']:.3f} | {row['accepted_length_planted']:.2f}"
            print(f"| {method} | {family} | {cells} |", flush=True)
            if options.operators:
                print("  ".join(f"{operator} {number:.1f}" for operator, number in by_operator.items()), flush=True)
    if not options.dry_run:
        write_result(RESULTS / "family_loops.json", {"codes": CODES, "side": SIDE, "window": WINDOW, "rows": rows})


if __name__ == "__main__":
    main()
