"""Peak memory of an answer about a video, against transformers' own `generate`, by the number of visual tokens.

    python benchmarks/video_memory.py --record benchmarks/results/video_memory.json

Random weights of the Qwen2.5-VL architecture with a small width and the published proportions of its attention (seven
query heads share a key/value head); each measurement in a process of its own, on the CPU. What the vision tower makes
is drawn at random and its memory not measured. Memory is the resident set's peak over what the process holds before the
answer begins: keys and values, activations, copies.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from own_process import in_own_process, peak_bytes

VISUAL_TOKENS = (1_000, 5_000, 25_000)
WAYS = ("generate", "ar", "sd")
LAYERS, HEADS, SHARED, HEAD_DIM, NEW_TOKENS = 2, 7, 1, 32, 16


def measure(way: str, visual_tokens: int) -> dict[str, Any]:
    """MiB, in this process."""
    import torch
    from random_video_llm import build_model, video_inputs

    from specdecode.sampling import SamplingConfig
    from specdecode.targets.grouped_attention import use_grouped_attention
    from specdecode.trace import DecodeTrace
    from vargen.methods.catalogue import resolve_method
    from vargen.models.video_llms.architectures.base import VideoFeatures
    from vargen.models.video_llms.request import prepare_request
    from vargen.pipelines.video.components import VideoLLMComponents
    from vargen.pipelines.video.decoding import Generation, decode

    model = build_model(LAYERS, HEADS, SHARED, HEAD_DIM, 2 * HEADS * HEAD_DIM)
    model.generation_config.eos_token_id = None
    inputs = video_inputs(visual_tokens)
    features = torch.randn(visual_tokens, HEADS * HEAD_DIM)
    model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=2, do_sample=False)  # what is loaded when first used
    before = peak_bytes()
    if way == "generate":
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        del inputs["pixel_values_videos"]
        seen = {"video": BaseModelOutputWithPooling(pooler_output=(features,))}
        tokens = model.generate(**inputs, mm_encoder_outputs=seen, max_new_tokens=NEW_TOKENS, do_sample=False)
        answer = tokens[0, inputs["input_ids"].shape[1] :].tolist()
    else:
        use_grouped_attention(model)
        options = {"drafter": "self", "keep_ratio": 0.1} if way == "sd" else {}
        components = VideoLLMComponents(model, [inputs], NEW_TOKENS)
        components.__dict__["requests"] = [prepare_request(model, inputs, VideoFeatures(features))]
        generation = Generation(NEW_TOKENS, SamplingConfig(temperature=0), [0], (), DecodeTrace(1, model.device))
        method = resolve_method(way, options, task="video")
        (answer,) = decode(method.build(components), generation).token_ids
    mebibytes = (peak_bytes() - before) / 2**20
    return {"way": way, "visual_tokens": visual_tokens, "mebibytes": mebibytes, "answer": answer}


def main() -> None:
    """Measure everything, print a table, record it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--record", type=Path, help="JSON file for the figures; what it has of other sizes stays")
    parser.add_argument("--visual_tokens", type=int, nargs="+", default=VISUAL_TOKENS)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "TOKENS"), help="one measurement, as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return

    from metrics.provenance import provenance

    cache = 2 * LAYERS * SHARED * HEAD_DIM * 4
    described = {
        "cache_bytes_per_token": cache,
        "model": {"layers": LAYERS, "heads": HEADS, "key_value_heads": SHARED, "head_dim": HEAD_DIM},
        "dtype": "float32",
    }
    rows = []
    if options.record is not None and options.record.exists():
        earlier = json.loads(options.record.read_text())
        if all(earlier[name] == value for name, value in described.items()):
            rows = [row for row in earlier["rows"] if row["visual_tokens"] not in options.visual_tokens]
    for count in options.visual_tokens:
        made = [in_own_process(__file__, "--one", way, count) for way in WAYS]
        expected = made[0]["answer"]
        for row in made:
            row["equal_to_generate"] = row.pop("answer") == expected
        rows += made
        print(f"{count:,}: " + ", ".join(f"{row['way']} {row['mebibytes']:,.0f} MiB" for row in made), flush=True)
        figures = {**described, "rows": sorted(rows, key=lambda row: row["visual_tokens"]), "provenance": provenance()}
        if options.record is not None:
            options.record.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
