"""Words, numbers, names and text files: prompts of every format, YAML and options, in the wrong shape or depth."""

import pytest
from hostile import Case, check_case, each, write

from vargen.base.errors import UserError
from vargen.methods.catalogue import METHODS, resolve_method

FILE = "generate --prompts_file {work}/p.%s --output {work}/out --quiet"
CONFIG = "generate 'a red cube' --config {work}/c.yaml --output {work}/out --quiet"
METHOD = "generate 'a red cube' --method {work}/m.yaml --output {work}/out --quiet"
PRESET = "evaluate --protocol {work}/p.yaml --output {work}/out --quiet"
DEEP, LONG = "[" * 50_000, "x" * 300
GENERATE = "generate 'a red cube' --output {work}/out --quiet "
EVALUATE = "evaluate --output {work}/out --quiet "
VIDEO = "bench --task video --quiet "
TUNE = "tune --output {work}/out --quiet "
CAPTION = "caption {work} "
SCENES = "scenes --output {work}/out --quiet "
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def file(name: str, kind: str, content: bytes | str, expected: str) -> Case:
    return Case(f"prompts: {name}", FILE % kind, expected, write(f"p.{kind}", content))


def yaml(name: str, command: str, content: bytes | str, expected: str) -> Case:
    place = next(word.split("/")[-1] for word in command.split() if word.endswith(".yaml"))
    return Case(f"{place}: {name}", command, expected, write(place, content))


def say(name: str, command: str, expected: str) -> Case:
    return Case(name, command, expected)


def of(command: str, option: str, expected: str) -> Case:
    return Case(f"{command} {option}".replace("/", "|"), f"{command} {option}", expected)


CASES = [
    # Numbers that mean nothing alone; both bounds of every option are tried in tests/vargen/base/test_options.py.
    of(GENERATE, "--top_k 1e3", "top_k"),
    of(GENERATE, "--seed 1e3", "seed must be an integer"),
    of(GENERATE, f"--seed {2**63 - 1}", "seed must leave room for 1 pictures"),
    of(GENERATE, "--num_images_per_prompt 1000001", "more than the 1,000,000 that a run can hold"),
    of(GENERATE + "--method eagle", "--method_options.depth 300", "depth must"),
    of(GENERATE + "--method sjd", "--method_options.window .5", "window must be an integer"),
    of(GENERATE + "--method coolsd", "--method_options.delta .nan", "delta must be a number"),
    of(GENERATE, "--compile maybe", "unrecognized arguments: maybe"),
    of(GENERATE, "--continuous_batches 3", "unrecognized arguments: 3"),
    of(EVALUATE, "--continuous_batches maybe", "unrecognized arguments: maybe"),
    of(VIDEO, "--num_frames 3", "num_frames must be at least 4"),
    of(VIDEO, f"--question {'x' * 20_000}", "question has 20,000 characters; give at most 10,000"),
    of(TUNE, "--quality judge_accuracy --max_quality_loss 2", "max_quality_loss must be at most 1, got 2.0"),
    of(CAPTION + "--method sd", "--method_options.draft_length 100000", "draft_length must be"),
    Case("a question of a megabyte", CAPTION + "{megabyte}", "has 1,000,000 characters"),
    Case("a prompt of a megabyte", "generate {megabyte} --output {work}/out", "has 1,000,000 characters"),
    of(SCENES, "--image_size 100", "multiple of 8"),
    of(SCENES, f"--seed {2**63 - 1}", "seed must be at most 9,223,372,036,854,775,791"),
    Case("no file of a format", "generate --prompts_file {work}/p.tsv --prompts_format parti", "cannot read"),
    # Words, names and files.
    say("no command that is one", "paint", "'paint' is not a command; choose one of: check, generate"),
    say("an option that is none", "generate 'a cube' --colour red", "colour"),
    say("an option without its value", "generate 'a cube' --seed", "seed"),
    say("a nested option without its value", "bench --method_options.eagle.depth", "needs a value"),
    say("a number in words", "generate 'a cube' --seed many", "seed"),
    say("no prompt", "generate --output {work}/out", "a prompt must be given"),
    say("an empty prompt", "generate '' --output {work}/out", "prompt 1 is empty"),
    say("a blank prompt", "generate 'a cube' '   ' --output {work}/out", "prompt 2 is empty"),
    say("no such method", "generate 'a cube' --method magic --output {work}/out", "method 'magic' is not known"),
    say("a setting of another method", "generate 'a cube' --method ar --method_options.depth 3", "no option 'depth'"),
    say("a tree of words", "generate 'a cube' --method eagle --method_options.tree '[[a]]'", "tree"),
    say("a tree of nothing", "generate 'a cube' --method eagle --method_options.tree '[]'", "tree"),
    say("an option that is no YAML", "generate 'a cube' --method eagle --method_options.depth '['", "got '['"),
    say("an option of aliases", "bench --method_options.eagle.depth '*a'", "method_options"),
    say(
        "an option that is deep",
        "generate 'a cube' --method eagle --method_options.depth '" + DEEP + "'",
        "nested too deeply",
    ),
    say("no such ranker", "generate 'a cube' --num_candidates 2 --ranker dice --output {work}/out", "ranker must be"),
    say(
        "no such device", "generate 'a cube' --device tpu9 --model {model} --output {work}/out", "device 'tpu9' cannot"
    ),
    say("the device of nothing", "generate 'a cube' --device meta --model {model} --output {work}/out", "'meta'"),
    say("an absent GPU", "generate 'a cube' --device cuda:99 --model {model} --output {work}/out", "cuda:99"),
    say("the videos' device of nothing", "caption {work} --device meta", "device 'meta' cannot be used"),
    say("no such model", "generate 'a cube' --model {work}/none --output {work}/out", "does not exist"),
    say("a model of another name", "generate 'a cube' --model scenes-999 --output {work}/out", "scenes-999"),
    say(
        "a class and a prompt",
        "generate 'a cube' --class_labels [1] --model {model} --output {work}/out",
        "class_labels",
    ),
    say("a task that is none", "bench --task music", "task must be one of image, video"),
    say("methods of nothing", "bench --methods ,", "methods must name at least one method"),
    say("a method twice", "bench --methods eagle,eagle", "eagle is named twice"),
    *(say(f"a label {label}", f"bench --methods '{label}=ar'", "must be a plain name") for label in ("", "..", "a/b")),
    say("options of a method that is not there", "bench --methods ar --method_options.eagle.depth 3", "'eagle' is not"),
    say("options without a method", "bench --method_options.depth 3", "must say which method"),
    say(
        "a video method for pictures", "generate 'a cube' --method lvspec --output {work}/out", "'lvspec' is not known"
    ),
    say("a method for pictures about videos", "caption {work} --method vvs", "'vvs' is not known for videos"),
    say("no such protocol", "evaluate --protocol magic --output {work}/out", "protocol: 'magic' is neither"),
    say("what cannot be tuned", "tune --method ar --output {work}/out", "'ar' has nothing to tune"),
    say("a fixed setting that is none", "tune --method_options.depht 3 --output {work}/out", "no setting 'depht'"),
    say("what cannot be trained", "train everything", "'everything' cannot be trained"),
    say("what cannot be converted", "convert flux", "'flux' cannot be converted"),
    say("a configuration that is not there", "train judge --config nowhere", "'nowhere' is not shipped"),
    say("a surrogate in a prompt", "generate 'a \ud800 cube' --output {work}/out", "not UTF-8 text"),
    say("a byte of another encoding in a name", "generate 'a cube' --output {work}/\udcff", "is not UTF-8 text"),
    say("a zero character in a name", "generate 'a cube' --output '{work}/a\0b'", "zero character"),
    *(
        say(f"a name of 300 characters, {command}", f"{command} --output {{work}}/out", told)
        for command, told in (
            (f"generate a --model {LONG}", "name too long"),
            (f"generate --prompts_file {LONG}", "too long"),
            (f"generate a --config {LONG}", "xxx"),
            (f"generate a --method {LONG}.yaml", "does not exist"),
            (f"evaluate --protocol {LONG}.yaml", "does not exist"),
        )
    ),
    say("an output of 300 characters", f"generate a --output {{work}}/{LONG}", "file name too long"),
    say("the home of nobody", "generate a --model ~nobody-at-all --output {work}/out", "~nobody-at-all"),
    say("prompts at the home of nobody", "generate --prompts_file ~nobody-at-all/p.txt --output {work}/out", "p.txt"),
    say("a video at the home of nobody", "caption ~nobody-at-all/v.mp4", "does not exist"),
    say("a video of 300 characters", f"caption {LONG}", "too long"),
    Case("prompts that are a folder", FILE % "txt", "holds neither a data set", lambda work: (work / "p.txt").mkdir()),
    Case("a method that is a folder", METHOD, "cannot be read", lambda work: (work / "m.yaml").mkdir()),
    Case("a protocol that is a folder", PRESET, "cannot be read", lambda work: (work / "p.yaml").mkdir()),
    Case("a configuration that is a folder", CONFIG, "cannot be read", lambda work: (work / "c.yaml").mkdir()),
    say("prompts that are not there", FILE % "txt", "cannot read"),
    file("another ending", "pdf", "a cube", "must end in .txt, .csv, .tsv, .jsonl"),
    file("none", "txt", "\n \n", "holds no prompt"),
    file("of another encoding", "txt", b"caf\xe9", "is not UTF-8 text (byte 3)"),
    file("of UTF-16", "txt", "a cube".encode("utf-16"), "is not UTF-8 text"),
    file("with a zero character", "txt", "a\0cube", "zero character"),
    file("a line of a megabyte", "txt", "red " * 250_000, "line 1: the prompt has 1,000,000 characters"),
    file("a table without a column", "csv", "a,b\n1,2\n", "must name a column"),
    file("a table of ragged rows", "csv", "prompt,id\na cube\n", "1 cells under 2 columns"),
    file("a table with an empty cell", "tsv", "prompt\tid\n\t7\n", "the prompt is empty"),
    file("a table of two marks of order", "csv", "\ufeff\ufeffprompt,id\na cube,7\n", "must name a column"),
    file("a table of a million columns", "csv", "a," * 10**6 + "b\n", "names two columns 'a'"),
    file("a table with a field of 200 KB", "csv", f"prompt,id\n{'x' * 200_000},7\n", "field larger than"),
    file("a line that is no JSON", "jsonl", '"a cube"\n{\n', "line 2: not JSON"),
    file("a line that is deep", "jsonl", DEEP + "\n", "line 1: not JSON (it is nested too deeply)"),
    file("a surrogate", "jsonl", '"a \\ud800 cube"\n', "is not UTF-8 text"),
    file("a zero character in JSON", "jsonl", '"a \\u0000 cube"\n', "zero character"),
    yaml("of another encoding", CONFIG, b"model: \xff\xfe", "cannot be read"),
    yaml("a list", CONFIG, "- 1\n", "must hold options by name"),
    yaml("no YAML", CONFIG, "a: [", "it is not YAML"),
    yaml("a class of Python", CONFIG, "a: !!python/object/apply:os.system [ls]\n", "it is not YAML"),
    yaml("aliases", CONFIG, BOMB, "it uses aliases"),
    yaml("deep", CONFIG, DEEP, "it is nested too deeply"),
    yaml("deep dashes", CONFIG, "- " * 50_000, "it is nested too deeply"),
    yaml("another field", CONFIG, "colour: red\n", "colour"),
    yaml("a zero character", CONFIG, 'model: "a\\0b"\n', "zero character"),
    yaml("a surrogate", CONFIG, 'model: "a\\ud800b"\n', "model is not UTF-8 text"),
    yaml("a key twice", CONFIG, "seed: 1\nseed: 2\n", "seed is there twice, again in line 2"),
    yaml("base sixty", CONFIG, "seed: 1:30\n", "seed must be an integer from 0 to 2**63 - 1, got '1:30'"),
    say("half a seed", "generate a --seed 1.5 --output {work}/out", "2**63 - 1, got '1.5' (see"),
    say("a scale in words", "generate a --guidance_scale x --output {work}/out", "guidance_scale must be a number"),
    say(
        "base sixty",
        "generate a --seed 1:30 --output {work}/out",
        "seed must be an integer from 0 to 2**63 - 1, got '1:30'",
    ),
    yaml("of another encoding", METHOD, b"method: \xff", "cannot be read"),
    yaml("two documents", CONFIG, "seed: 1\n---\nseed: 2\n", "it is not YAML"),
    yaml("a tag", CONFIG, "seed: !!binary MQ==\n", "seed must be an integer"),
    yaml("a directive", CONFIG, "%YAML 9.9\n---\nseed: 1\n", "YAML"),
    yaml("a letter that looks alike", CONFIG, "s\u0435ed: 1\n", "s\u0435ed"),
    yaml("a letter of no width", CONFIG, "se\u200bed: 1\n", "se\\u200bed"),
    yaml("two marks of order", CONFIG, "\ufeff\ufeffseed: 1\n", "ufeff"),
    yaml("3,000 levels", CONFIG, f"seed: {'[' * 3000}{']' * 3000}\n", "nested too deeply"),
    yaml("a list", METHOD, "[1]", "must hold `method: NAME`"),
    yaml("no method", METHOD, "depth: 3\n", "`method` must be one of"),
    yaml("a method of a list", METHOD, "method: [1]\n", "`method` must be one of"),
    yaml("a setting that is none", METHOD, "method: eagle\ncolour: red\n", "no option 'colour'"),
    yaml("a key of a number", METHOD, "method: eagle\n3: 4\n", "no option 3"),
    yaml("empty", METHOD, "", "must hold `method: NAME`"),
    yaml("a list", PRESET, "[1]", "must hold the fields of a protocol"),
    yaml("another field", PRESET, "colour: red\n", "colour is not a field of a protocol"),
    yaml("a number in words", PRESET, "count: many\n", "count must be a positive integer"),
    yaml("of another encoding", PRESET, b"\xff\xfe", "cannot be read"),
    yaml("no such network", PRESET, "extractor: magic\n", "extractor must be one of"),
]


@pytest.mark.parametrize("method", [method for method in METHODS if method.weights], ids=lambda method: method.name)
def test_weights_of_a_method_that_are_no_text(method):
    """Every setting of every method that names a folder."""
    for name in method.weights:
        for wrong in ([None], 7, {"a": "b"}, True, "", " "):
            with pytest.raises(UserError, match=f"^{method.name}.{name} must be a folder"):
                resolve_method(method.name, {name: wrong}, task=method.task)
        with pytest.raises(UserError, match=f"^{method.name}.{name} is not UTF-8 text"):
            resolve_method(method.name, {name: "a\ud800"}, task=method.task)


@each(CASES)
def test_it_is_refused(case, tmp_path, _saved_tiny_pipelines, capsys):
    places = {"work": tmp_path, "model": _saved_tiny_pipelines["text"], "megabyte": "red " * 250_000}
    check_case(case, places, capsys)
