"""What working ahead is worth: one row decoded plainly, in turn, between threads and between processes.

Two stacks of the Qwen2.5-VL architecture with random weights, one of them with few layers and a tenth of the video.
What they cost is real; what the drafter guesses is written beforehand, right as often as `--right` says, since random
stacks would agree on nothing. Beside each measured time stands the one reckoned from passes timed alone
(`simulation`): what is missing is what the two sides take from each other (cores, bandwidth) and
what messages cost.

    python benchmarks/parallel_overlap.py                                         # one thread each
    python benchmarks/parallel_overlap.py --device cuda --draft_device cuda:1 --hidden_size 3584 --target_layers 28

Writes benchmarks/results/parallel_overlap_<device>.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from simulation import Costs, simulate_in_turn, simulate_parallel, simulate_plain
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from metrics.provenance import write_result
from specdecode.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.loop import DecodeResult, decode
from specdecode.parallel import (
    DraftChannel,
    DraftProcess,
    DraftSource,
    InTurnChannel,
    ParallelResult,
    ThreadChannel,
    decode_parallel,
    measure_draft_length,
)
from specdecode.parallel.loop import chain_layout
from specdecode.roles import TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.models.video_llms.pruning import keep_highest, token_budget, visual_gain
from vargen.models.video_llms.request import VideoRequest, keep_visual
from vargen.models.video_llms.target import VideoTarget

RESULTS = Path(__file__).resolve().parent / "results"
VOCAB, NUM_TEXT, SEED = 2000, 32, 1
GREEDY = SamplingConfig(temperature=0.0)


@dataclass(frozen=True)
class Pair:
    """Sizes of target and drafter."""

    hidden_size: int
    target_layers: int
    draft_layers: int
    num_visual: int
    dtype: str

    def build(self, num_layers: int, device: str) -> Any:
        """A stack of so many layers."""
        torch.manual_seed(0)
        heads = self.hidden_size // 64
        text = {
            "vocab_size": VOCAB,
            "hidden_size": self.hidden_size,
            "intermediate_size": 4 * self.hidden_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": heads,
            "num_key_value_heads": max(1, heads // 4),
            "max_position_embeddings": 65536,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
            "bos_token_id": None,
            "eos_token_id": None,
            "tie_word_embeddings": False,
        }
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 4}
        config = Qwen2_5_VLConfig(text_config=text, vision_config={**vision, "out_hidden_size": self.hidden_size})
        model = Qwen2_5_VLForConditionalGeneration(config).eval().requires_grad_(False)
        return model.to(device, getattr(torch, self.dtype))

    def request(self, model: Any, seed: int) -> VideoRequest:
        """A random video and question."""
        generator = torch.Generator().manual_seed(seed)
        length = self.num_visual + NUM_TEXT
        ids = torch.randint(VOCAB, (1, length), generator=generator)
        embeds = model.get_input_embeddings()(ids.to(model.device))
        is_visual = torch.arange(length) < self.num_visual
        positions = torch.arange(length).expand(3, 1, -1)
        return VideoRequest(
            ids.to(model.device), embeds, positions.to(model.device), is_visual.to(model.device), length
        )


@dataclass(frozen=True)
class Script:
    """What the drafter is told of a row: which tokens are right, and which of them it guesses."""

    seed: int
    tokens: tuple[int, ...]
    right: tuple[bool, ...]


class ScriptedDraft(VideoTarget):
    """Works like any other drafter, and then guesses what is written."""

    script: Script

    def prefill(self) -> TargetOutput:
        """As `VideoTarget`."""
        return self._scripted(super().prefill(), 0)

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """As `VideoTarget`."""
        committed = int(self.kv_cache.lengths) - self.prompt_length
        return self._scripted(super().forward(tokens, mask, depths), committed + 1)

    def _scripted(self, output: TargetOutput, position: int) -> TargetOutput:
        for row in range(output.logits.shape[1]):
            place = min(position + row, len(self.script.tokens) - 1)
            token = self.script.tokens[place] + (not self.script.right[place])
            output.logits[:, row, token % VOCAB] = 1e9
        return output


def draft_source(pair: Pair, device: str) -> DraftSource:
    """The drafter's side; also called in its process."""
    model = pair.build(pair.draft_layers, device)

    def source(script: Script, hint: Callable[[], Tensor | None]) -> VideoTarget:
        request = pair.request(model, script.seed)
        kept = hint()
        draft = ScriptedDraft(model, request if kept is None else keep_visual(request, kept.to(model.device)))
        draft.script = script
        return draft

    return source


def hinting_target(model: Any, request: VideoRequest, keep_ratio: float, give: Callable[[Tensor], None]) -> VideoTarget:
    """A target that tells, after a quarter of its layers, what the drafter should look at."""
    visual, text = request.is_visual.nonzero()[:, 0], (~request.is_visual).nonzero()[:, 0]
    before, budget = request.inputs_embeds[0], token_budget(request.num_visual, keep_ratio)

    def choose(states: Tensor) -> None:
        give(keep_highest(visual_gain(before[visual], states[visual], before[text], states[text]), budget))

    return VideoTarget(model, request, on_layer={max(1, len(model.model.language_model.layers) // 4): choose})


class Comparison:
    """Ways of decoding one row, each timed several times.

    Args:
        options: of the command line.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.pair = Pair(*(getattr(options, field.name) for field in fields(Pair)))
        self.draft_device = options.draft_device or options.device
        self.model = self.pair.build(self.pair.target_layers, options.device)
        self.request = self.pair.request(self.model, SEED)
        self.source = draft_source(self.pair, self.draft_device)
        self.rows: list[dict[str, Any]] = []
        self._plain_tokens: list[int] = []

    def run(self) -> list[dict[str, Any]]:
        """All of them."""
        options, length = self.options, self.options.max_new_tokens
        tokens = self.plain().tokens[0].tolist()
        dice = random.Random(0)
        right = [dice.random() < options.right for _ in tokens]
        self.script = Script(SEED, tuple(tokens), tuple(right))
        channel = InTurnChannel(self.source)
        measured = measure_draft_length(self.hinting(channel.hint), channel, prompt=self.script)
        draft_length = options.draft_length or measured.tokens
        longer = self.pass_seconds(draft_length)
        costs = Costs(
            measured.target_seconds,
            measured.draft_seconds,
            target_token=max(0.0, longer - measured.target_seconds) / max(draft_length - 1, 1),
        )
        print(
            f"alone: target {1e3 * costs.target:.1f} ms a pass, {1e3 * longer:.1f} ms over a window of {draft_length}; "
            f"drafter {1e3 * costs.draft:.1f} ms a token",
            flush=True,
        )
        reckoned = simulate_parallel(right, costs, draft_length)
        kept: list[Tensor] = []
        self.hinting(kept.append).prefill()

        def in_turn() -> DecodeResult:
            sizer = FixedDraftSize(DraftSize(draft_length + 1, draft_length))
            return self.plain(DraftModelDrafter(self.source(self.script, lambda: kept[0]), sizer, "top"))

        self.add("plain", self.plain, simulate_plain(length, costs))
        self.add("in turn, with bonus", in_turn, simulate_in_turn(right, costs, draft_length))
        overlapped_seconds = reckoned.total_seconds - reckoned.seconds[0].target - reckoned.seconds[0].waiting
        make_process = partial(draft_source, self.pair, self.draft_device)
        with ThreadChannel(self.source, self.draft_device) as thread:
            self.add("overlapped, threads", partial(self.overlapped, thread, draft_length), overlapped_seconds)
        with DraftProcess(make_process, num_threads=options.num_threads) as process:
            self.add("overlapped, processes", partial(self.overlapped, process, draft_length), overlapped_seconds)
        for row in self.rows:
            row.update(
                draft_length=draft_length,
                target_pass_seconds_alone=costs.target,
                target_window_seconds_alone=longer,
                draft_token_seconds_alone=costs.draft,
            )
        return self.rows

    @torch.no_grad()
    def pass_seconds(self, num_tokens: int) -> float:
        """Median seconds of a pass of the target over a window, behind the prompt."""
        target = VideoTarget(self.model, self.request)
        tokens = target.prefill().logits[:, -1:].argmax(-1).expand(1, num_tokens)
        places, mask = chain_layout(tokens)
        seconds = []
        for _ in range(1 + 5):
            began = time.perf_counter()
            target.forward(tokens, mask, places).logits.argmax().item()
            seconds.append(time.perf_counter() - began)
            target.commit(None, torch.zeros(1, dtype=torch.int64, device=tokens.device))
        return statistics.median(seconds[1:])

    def plain(self, drafter: DraftModelDrafter | None = None) -> DecodeResult:
        """Plain decoding, or in turn with a drafter."""
        return decode(VideoTarget(self.model, self.request), drafter=drafter, **self.settings)

    def overlapped(self, channel: DraftChannel, draft_length: int) -> ParallelResult:
        """Parallel decoding over a channel."""
        return decode_parallel(
            self.hinting(channel.hint), channel, draft_length=draft_length, prompt=self.script, **self.settings
        )

    def hinting(self, give: Callable[[Tensor], None]) -> VideoTarget:
        """The target, which says what the drafter should look at."""
        return hinting_target(self.model, self.request, self.options.keep_ratio, give)

    @property
    def settings(self) -> dict[str, Any]:
        """The same for every way."""
        streams = RandomStreams.from_seeds([0], device=self.options.device)
        return {"max_new_tokens": self.options.max_new_tokens, "sampling": GREEDY, "streams": streams}

    def add(self, name: str, way: Callable[[], DecodeResult], reckoned: float) -> None:
        """Time a way of decoding: once to warm up, then `repeats` times; medians."""
        results = [way() for _ in range(1 + self.options.repeats)][1:]
        seconds = {
            phase: statistics.median(result.trace.phase_seconds[phase] for result in results)
            for phase in ("prefill", "decode")
        }
        tokens = results[-1].tokens[0].tolist()
        self._plain_tokens = self._plain_tokens or tokens
        row: dict[str, Any] = {
            "way": name,
            "prefill_seconds": seconds["prefill"],
            "decode_seconds": seconds["decode"],
            "reckoned_decode_seconds": reckoned,
            "decode_speedup": (self.rows[0]["decode_seconds"] if self.rows else seconds["decode"]) / seconds["decode"],
            "same_tokens_as_plain": tokens == self._plain_tokens,
            "target_passes": results[-1].trace.target_passes,
        }
        if isinstance(results[-1], ParallelResult):
            row["account"] = results[-1].account.to_dict()
        self.rows.append(row)
        print(
            f"{name:22} prefill {seconds['prefill']:.2f} s   decode {seconds['decode']:.2f} s (reckoned "
            f"{reckoned:.2f})   {row['decode_speedup']:.2f} x plain   {row['target_passes']} passes   "
            f"{'same' if row['same_tokens_as_plain'] else 'OTHER'} tokens",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draft_device", default=None, help="of the drafter; the target's unless given")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--hidden_size", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--target_layers", type=int, default=24)
    parser.add_argument("--draft_layers", type=int, default=4)
    parser.add_argument("--right", type=float, default=0.85, help="share of right guesses")
    parser.add_argument("--num_visual", type=int, default=1000, help="visual tokens")
    parser.add_argument("--keep_ratio", type=float, default=0.1, help="share of them that the drafter sees")
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--draft_length", type=int, default=None, help="of a window; measured unless given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num_threads", type=int, default=1, help="of each side")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.num_threads)
    rows = Comparison(options).run()
    if not options.dry_run:
        name = torch.device(options.device).type
        write_result(RESULTS / f"parallel_overlap_{name}.json", {"settings": vars(options), "rows": rows})


if __name__ == "__main__":
    main()
