"""Files of the public benchmarks in their published forms, and one line where they are of another."""

import json
from typing import Any

import pytest
from hostile import write
from refusals import refused

from metrics.composition import Composition, Wanted
from metrics.prompt_formats import Question
from vargen.base.resources import configs_folder
from vargen.base.world import find_world
from vargen.jobs.cases import read_benchmark
from vargen.jobs.evaluation import EvaluateConfig

PARTI = 'Prompt\tCategory\tChallenge\tNote\na sign, "so\tArtifacts\tWriting & Symbols\t\na fox\tAnimals\tBasic\tx\n'
DPG_HEADER = (
    "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple,question_natural_language\n"
)
DPG = (
    DPG_HEADER + 'whoops1,"a cube, red",,1,0,entity,whole,entity - whole (cube),Is there a cube?\n'
    'whoops1,"a cube, red",,2,1,attribute,color,"attribute - color (cube, red)",Is the cube red?\n'
    'whoops1,"a cube, red",,3,"1, 2",relation,spatial,relation,Is it near?\n'
    "vrd12,a cone,,1,0,entity,whole,entity - whole (cone),Is there a cone?\n"
)
COUNTING = {
    "tag": "counting", "include": [{"class": "dog", "count": 2}], "exclude": [{"class": "dog", "count": 3}],
    "prompt": "a photo of two dogs",
}  # fmt: skip
POSITION = {
    "tag": "position",
    "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "color": None, "position": ["left of", 0]}],
    "prompt": "a photo of a dog left of a cat",
}


def test_parti_prompts(tmp_path):
    (tmp_path / "PartiPrompts.tsv").write_text(PARTI)
    one, two = read_benchmark(str(tmp_path / "PartiPrompts.tsv"), "parti")
    assert one.prompt == 'a sign, "so' and one.groups == {"category": "Artifacts", "challenge": "Writing & Symbols"}
    assert two.groups["category"] == "Animals" and two.composition is None and two.questions == ()


def test_geneval_as_lines_and_as_a_data_set(tmp_path):
    datasets = pytest.importorskip("datasets", reason="data sets need the extra data")
    path = tmp_path / "evaluation_metadata.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (COUNTING, POSITION)))
    counting, position = read_benchmark(str(path), "geneval")
    assert counting.groups == {"task": "counting"} and position.prompt == "a photo of a dog left of a cat"
    assert counting.composition == Composition((Wanted("dog", 2),), (Wanted("dog", 3),), "counting")
    assert position.composition is not None
    assert position.composition.include == (Wanted("cat"), Wanted("dog", 1, None, ("left of", 0)))
    lists = ("include", "exclude")
    rows = [{**row, **{key: json.dumps(row.get(key, [])) for key in lists}} for row in (COUNTING, POSITION)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "set")
    assert read_benchmark(str(tmp_path / "set"), "geneval") == [counting, position]


def test_dpg_as_a_table_and_as_a_folder(tmp_path):
    (tmp_path / "dpg_bench.csv").write_text(DPG)
    one, two = read_benchmark(str(tmp_path / "dpg_bench.csv"), "dpg")
    assert (one.prompt, one.groups, two.groups) == ("a cube, red", {"source": "whoops"}, {"source": "vrd"})
    assert one.questions == (
        Question("Is there a cube?", "entity"),
        Question("Is the cube red?", "attribute", (0,)),
        Question("Is it near?", "relation", (0, 1)),
    )
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "whoops1.txt").write_text("a cube, red\n")
    (tmp_path / "prompts" / "7.txt").write_text("a cone")
    told = read_benchmark(str(tmp_path / "prompts"), "dpg")
    wanted = [("a cone", "numbered", ()), ("a cube, red", "whoops", ())]
    assert [(each.prompt, each.groups["source"], each.questions) for each in told] == wanted


def test_hpsv2_is_a_folder_of_styles(tmp_path):
    for style, prompts in (("photo", ["a cat"]), ("anime", ["a fox", "a dog"])):
        (tmp_path / f"{style}.json").write_text(json.dumps(prompts))
    told = read_benchmark(str(tmp_path), "hpsv2")
    wanted = [("a fox", "anime"), ("a dog", "anime"), ("a cat", "photo")]
    assert [(each.prompt, each.groups["style"]) for each in told] == wanted


def lines(*changes: dict[str, Any]) -> bytes:
    return "\n".join(json.dumps({**COUNTING, **change}) for change in changes).encode()


DOG, EACH, CAT = {"class": "dog", "count": 1}, "\n".join(DPG.split("\n")[:2]), b"a cat\tAnimals\tBasic\n"
HEAD = b"Prompt\tCategory\tChallenge\n"
INCLUDED = [
    ([{"class": ["dog"], "count": 1}], "must say the class"),
    ([DOG | {"count": 0}], "must say a count"),
    ([DOG | {"count": 1e99}], "must say a count"),
    ([DOG | {"color": ["red"]}], "color must be one of"),
    ([DOG, DOG | {"position": [["near"], 0]}], "position must be"),
    ([DOG | {"position": ["left of", 1]}], "position must be"),
    ([DOG | {"position": ["left of", -1]}], "position must be"),
    ([DOG, DOG | {"position": ["left of", "9" * 5000]}], "position must be"),
    ("[" * 99_999, "include is not JSON"),
    ([DOG] * 5000, "a list of at most 100 objects"),
]
TWICE = lines({"include": [{"class": "dog", "count": True}]})
NAMED = DPG_HEADER.replace("item_id", "name").encode() + DPG.split("\n")[1].encode()
BAD = [
    ("parti", "a.tsv", b"", "the first line must name a column"),
    ("parti", "a.tsv", bytes(range(256)) * 9, "is not UTF-8 text"),
    ("parti", "a.tsv", PARTI.encode("utf-16"), "is not UTF-8 text"),
    ("parti", "a.tsv", HEAD + b"a cat\tAnim", "2 cells under 3 columns"),
    ("parti", "a.tsv", HEAD + CAT.replace(b" ", b"\0"), "zero character"),
    ("parti", "a.tsv", HEAD + b"cat " * 250_000 + CAT, "field larger than"),
    ("parti", "a.tsv", HEAD + b"a cat\t" + b"x" * 1_000_000 + b"\tBasic\n", "field larger than"),
    ("parti", "a.tsv", DPG.encode(), "a.tsv"),
    ("geneval", "a.jsonl", lines({"tag": None}), "needs a text in a column tag"),
    ("geneval", "a.jsonl", lines({"tag": ["counting"]}), "needs a text in a column tag"),
    ("geneval", "a.jsonl", lines({"tag": "x" * 1_000_000}), "tag must be one of"),
    ("geneval", "a.jsonl", lines({"prompt": None}), "need"),
    ("geneval", "a.jsonl", lines({"prompt": "x" * 1_000_000}), "characters"),
    *(("geneval", "a.jsonl", lines({"include": included}), told) for included, told in INCLUDED),
    ("dpg", "a.csv", b"", "the first line must name a column"),
    ("dpg", "a.csv", EACH.encode() + b'\ncoco2,"a cone', "a.csv"),
    ("dpg", "a.csv", EACH.replace(",1,0,", ",1,1,").encode(), "must name other questions"),
    ("dpg", "a.csv", EACH.replace(",1,0,", f",1,{'9' * 5000},").encode(), "must name other questions"),
    ("dpg", "a.csv", EACH.replace(",1,0,", f",{'9' * 5000},0,").encode(), "proposition_id must be a number"),
    ("dpg", "a.csv", DPG.replace('cube, red",,2', 'cone, red",,2').encode(), "text must be"),
    ("dpg", "d/1.txt", b"", "1.txt"),
    ("dpg", "d/1.txt", b"\xff", "save it as UTF-8"),
    ("dpg", "d/a.doc", b"", "holds neither"),
    ("hpsv2", "h/anime.json", b'{"a": 1}', "anime.json"),
    ("hpsv2", "h/anime.json", b"[1, 2]", "anime.json"),
    ("hpsv2", "h/anime.json", b'["a fox", "a', "anime.json"),
    ("hpsv2", "h/anime.json", b"[" * 99_999, "anime.json"),
    ("hpsv2", "h/anime.doc", b"a fox", "holds n"),
    ("parti", "a.tsv", b"Prompt\tCategory\na fox\tAnimals\n", "line 2: needs a text in a column challenge"),
    ("parti", "a.tsv", b"Prompt\tCategory\tChallenge\na fox\t\tBasic\n", "needs a text in a column category"),
    ("parti", "a.tsv", b"Prompt\tCategory\tChallenge\n", "holds no prompt"),
    ("parti", "a.txt", b"a fox\n", "needs a text in a column category"),
    ("geneval", "a.jsonl", TWICE, "must say a count of 'dog'"),
    ("dpg", "a.csv", NAMED, "needs a column item_id"),
    ("dpg", "a.csv", DPG.replace(",,2,1,", ",,1,1,").encode(), "proposition_id must be a number of its own, got '1'"),
    ("dpg", "a.csv", DPG.replace(",,2,1,attribute", ",,2,1,").encode(), "needs a text in a column category_broad"),
    ("hpsv2", "a.parquet", b"PAR1", "cannot be read"),
]


@pytest.mark.parametrize(("name", "file", "content", "message"), BAD, ids=range(len(BAD)))
def test_another_form_is_one_line(tmp_path, name, file, content, message):
    write(file, content)(tmp_path)
    told = rf"^(?!.{{600}})prompts_file: .*{message}"
    refused(told, read_benchmark, str(tmp_path / file.split("/")[0]), name)


def test_shipped_prompts_are_read_by_their_formats_and_by_the_judge():
    refused("prompts_format needs prompts_file", EvaluateConfig, prompts_format="parti")
    world = find_world()
    for name in ("geneval", "parti"):
        (path,) = (configs_folder() / "prompts").glob(f"scenes-{name}.*")
        told = read_benchmark(str(path), name)
        assert len(told) >= 8 and all(world.claims(each.prompt) is not None for each in told)
