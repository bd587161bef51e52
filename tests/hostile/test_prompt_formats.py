"""Files of public benchmarks, damaged: `generate` and `evaluate` say one line and write nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile import Case, check_case, each

DRAW = "generate --prompts_file {work}/%s --prompts_format %s --model {model} --output {work}/out --quiet"
SCORE = "evaluate --prompts_file {work}/%s --prompts_format %s --model {model} --output {work}/out --quiet"
PARTI = "Prompt\tCategory\tChallenge\na fox\tAnimals\tBasic\n"
DOG = {"class": "dog", "count": 1}
DPG = (
    "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language\n"
    "coco1,a cube,,1,0,entity,whole,cube,Is there a cube?\n"
)


def write(name: str, content: bytes | str) -> Callable[[Path], object]:
    data = content if isinstance(content, bytes) else content.encode()

    def damage(work: Path) -> None:
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(data)

    return damage


def parti(name: str, content: bytes | str, expected: str) -> Case:
    return Case(f"parti: {name}", DRAW % ("p.tsv", "parti"), expected, write("p.tsv", content))


def geneval(name: str, expected: str, command: str = DRAW, **changes: Any) -> Case:
    row = {"tag": "single_object", "include": [DOG], "prompt": "a dog", **changes}
    content = json.dumps({key: value for key, value in row.items() if value is not None})
    return Case(f"geneval: {name}", command % ("g.jsonl", "geneval"), expected, write("g.jsonl", content))


def dpg(name: str, content: bytes | str, expected: str, command: str = DRAW) -> Case:
    return Case(f"dpg: {name}", command % ("d.csv", "dpg"), expected, write("d.csv", content))


def hpsv2(name: str, content: bytes | str, expected: str, path: str = "h/anime.json") -> Case:
    return Case(f"hpsv2: {name}", DRAW % ("h", "hpsv2"), expected, write(path, content))


CASES = [
    Case("no such format", DRAW % ("p.tsv", "coco"), "prompts_format must be one of", write("p.tsv", PARTI)),
    Case("no file", DRAW % ("p.tsv", "parti"), "cannot read"),
    Case("a format alone", "generate --prompts_format parti --output {work}/out", "prompts_format needs prompts_file"),
    parti("empty", "", "the first line must name a column"),
    parti("of nothing but bytes", bytes(range(256)) * 9, "is not UTF-8 text"),
    parti("of UTF-16", PARTI.encode("utf-16"), "is not UTF-8 text"),
    parti("cut in a row", PARTI + "a cat\tAnim", "2 cells under 3 columns"),
    parti("a zero character", PARTI + "a\0cat\tAnimals\tBasic\n", "zero character"),
    parti("a prompt of a megabyte", PARTI + "cat " * 250_000 + "\tAnimals\tBasic\n", "field larger than"),
    parti("a category of a megabyte", PARTI + "a cat\t" + "x" * 1_000_000 + "\tBasic\n", "field larger than"),
    parti("a column twice", PARTI.replace("Challenge", "Category"), "two columns 'category'"),
    parti("of another benchmark", DPG, "p.tsv"),
    geneval("no tag", "needs a text in a column tag", tag=None),
    geneval("a tag of a list", "needs a text in a column tag", tag=["counting"]),
    geneval("a tag of a megabyte", "tag must be one of", tag="x" * 1_000_000),
    geneval("no prompt", "need", prompt=None),
    geneval("a prompt of a megabyte", "characters", prompt="x" * 1_000_000),
    geneval("a class of a list", "must say the class", include=[{"class": ["dog"], "count": 1}]),
    geneval("a count below one", "must say a count", include=[DOG | {"count": 0}]),
    geneval("a count of no number", "must say a count", include=[DOG | {"count": 1e99}]),
    geneval("a colour of a list", "color must be one of", include=[DOG | {"color": ["red"]}]),
    geneval("a place of a list", "position must be", include=[DOG, DOG | {"position": [["near"], 0]}]),
    geneval("a place after it", "position must be", include=[DOG | {"position": ["left of", 1]}]),
    geneval("a place of no number", "position must be", include=[DOG, DOG | {"position": ["left of", -1]}]),
    geneval("objects that are deep", "include is not JSON", include="[" * 99_999),
    geneval("many objects", "a list of at most 100 objects", include=[DOG] * 5000),
    geneval("scored, an object of nothing", "include names no object", SCORE, include=[]),
    geneval("a place of many digits", "position must be", include=[DOG, DOG | {"position": ["left of", "9" * 5000]}]),
    dpg("empty", "", "the first line must name a column"),
    dpg("cut in a quotation", DPG + 'coco2,"a cone', "d.csv"),
    dpg("a question of its own answer", DPG.replace(",1,0,", ",1,1,"), "must name other questions"),
    dpg("a question of many digits", DPG.replace(",1,0,", f",1,{'9' * 5000},"), "must name other questions"),
    dpg("a number that is large", DPG.replace(",1,0,", f",{'9' * 5000},0,"), "proposition_id must be a number"),
    dpg(
        "two texts of one prompt",
        DPG + DPG.split("\n")[1].replace("a cube", "a cone").replace(",1,", ",2,"),
        "text must be",
    ),
    Case("dpg: a folder of nothing", DRAW % ("d", "dpg"), "holds neither", lambda work: (work / "d").mkdir()),
    Case("dpg: an empty text", DRAW % ("d", "dpg"), "1.txt", write("d/1.txt", "")),
    Case("dpg: a text of another encoding", DRAW % ("d", "dpg"), "save it as UTF-8", write("d/1.txt", b"\xff")),
    hpsv2("an object", '{"a": 1}', "anime.json"),
    hpsv2("numbers", "[1, 2]", "anime.json"),
    hpsv2("cut", '["a fox", "a', "anime.json"),
    hpsv2("deep", "[" * 99_999, "anime.json"),
    hpsv2("another file", "a fox", "holds n", "h/anime.doc"),
]


@each(CASES)
def test_it_is_refused(case, tmp_path, _saved_tiny_pipelines, capsys):
    check_case(case, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]}, capsys)
