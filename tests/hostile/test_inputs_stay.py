"""No output takes the place of an input or is written among the files of a model: every command, every two arguments.

The pairs are found by walking the settings of every command, so a new command or a new field is tried without a row.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from commands import CommandOfTests, every_command
from hostile import Case, arguments_of, check_refused, contents, each
from refusals import refused

from vargen.base.options import path_roles_of
from vargen.commands.arguments import fill

NAMES = {
    *("attn_implementation", "device", "device_map", "draft_quantization", "draft_revision", "dtype", "family"),
    *("extractor", "prompts_format", "target_modules", "tp_plan"),
    *(
        "host",
        "kept_choices",
        "kept_spreads",
        "kind",
        "log_with",
        "negative_prompt",
        "optimizer",
        "quality",
        "quantization",
        "question",
        "ranker",
    ),
    *("ratio", "revision", "speed", "split", "task", "visual"),
}
"""Fields of text that name no place."""
WRITES_NOTHING = {"judge", "demo", "serve"}
"""Commands without an output of their own: judge records in the run that it is given."""
COMMANDS = every_command()


def of_text(kind: Any) -> bool:
    return kind is str or any(of_text(each) for each in get_args(kind) if each is not dict[str, Any])


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_field_of_text_says_whether_it_names_a_place(command):
    unmarked = {name for name, kind in command.types().items() if of_text(kind)} - set(path_roles_of(command.settings))
    assert unmarked - NAMES - {name for name, kind in command.types().items() if "dict" in str(kind)} == set()
    written = [name for name, place in path_roles_of(command.settings).items() if not place.is_read]
    assert bool(written) is (command.words not in WRITES_NOTHING)


def pairs() -> Iterator[tuple[CommandOfTests, str, str]]:
    """Every command with an output and an input."""
    for command in COMMANDS:
        places = path_roles_of(command.settings)
        nested = [name for name, kind in command.types().items() if kind == dict[str, Any]]
        read = [name for name, place in places.items() if place.is_read]
        for output in (name for name, place in places.items() if not place.is_read):
            for source in [*read, *(f"{name}.drafter" for name in nested), "config"]:
                yield command, output, source


def check(command: CommandOfTests, expected: str, **values: object) -> None:
    """As the command line has it, where every command calls `fill`."""
    given = {name: {"drafter": str(value)} if kind else str(value) for name, value, kind in _split(values)}
    if "config" in given:
        given["config"] = [Path(str(given["config"]))]
    refused(re.escape(expected), fill, command.settings, command.values(**given))


def _split(values: dict[str, object]) -> Iterator[tuple[str, object, str]]:
    for name, value in values.items():
        head, _, inner = name.partition(".")
        yield head, value, inner


@pytest.mark.parametrize(("command", "output", "source"), pairs(), ids=str)
def test_an_output_is_no_input(command, output, source, tmp_path):
    """The same file; for folders the same one, one inside it, and a file that the command would write."""
    places = path_roles_of(command.settings)
    written, there = places[output], tmp_path / "there"
    if written.kind == "file":
        there.write_text("")
        check(command, f"{there} is also what", **{output: there, source: there})
        return
    there.mkdir()
    if source == "config" or places.get(source, written).kind == "read names":
        for name in (each for each in written.names if not each.endswith("/")):
            (there / name).write_text("")
            check(command, f"{there / name} would be replaced", **{output: there, source: there / name})
        return
    check(command, f"{there} is also what", **{output: there, source: there})
    check(command, f"lies in {there}", **{output: there / "out", source: there})


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_what_cannot_be_replaced_is_refused_before_any_work(command, tmp_path):
    """A link or a folder with the name of every file that a command says it writes."""
    for output, place in path_roles_of(command.settings).items():
        for name in filter(lambda name: Path(name).suffix, place.names):
            check(command, f"{output} must name a place", **{output: ""})
            for number, make in enumerate((Path.mkdir, lambda path: path.symlink_to("nowhere"))):
                folder = tmp_path / f"{output}-{name}-{number}"
                folder.mkdir()
                make(folder / name)
                check(command, f"{folder / name} is a {('folder', 'link')[number]}", **{output: folder})


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.words not in WRITES_NOTHING], ids=str)
def test_nothing_is_written_among_the_files_of_a_model(command, tmp_path):
    (tmp_path / "transformer").mkdir()
    for layout in (["model_index.json"], ["config.json", "model.safetensors"]):
        for name in layout:
            (tmp_path / name).write_text("{}")
        for output, place in path_roles_of(command.settings).items():
            if place.is_read or place.kind == "replaced":  # a conversion may write the part that a model lacks
                continue
            for inside in ("new", "transformer/new"):
                check(command, "holds a model, whose files stay", **{output: tmp_path / inside})
        for name in layout:
            (tmp_path / name).unlink()


def test_a_run_may_be_named_as_a_method_or_a_shipped_model_is(tmp_path, monkeypatch, capsys):
    """A folder called jacobi is not the method, and scenes-128 in the working directory not the shipped model."""
    from vargen.base.path_roles import check_paths
    from vargen.jobs.generation import GenerateConfig

    monkeypatch.chdir(tmp_path)
    for name in ("jacobi", "scenes-128"):
        (tmp_path / name).mkdir()
        check_paths(path_roles_of(GenerateConfig), {"method": "jacobi", "model": "scenes-128", "output": name})


CASES = [
    Case("judge in a model", "judge {work}/model", "holds a model"),
    Case("a caption's picture among its frames", "caption {work}/f --picture {work}/f/9.png", "which video names"),
    Case("a folder over its own", "convert anole --checkpoint {work}/model --output {work}/model", "also what check"),
    Case("and over what holds it", "convert anole --checkpoint {work}/model --output {work}", "which checkpoint names"),
    Case("a link to the video", "caption {work}/v.gif --picture {work}/link.gif", "v.gif is also what video names"),
    Case("a head over its start", "train drafter --initial_weights {work}/r/export --output {work}/r", "be replaced"),
]


@each(CASES)
def test_it_is_refused(case, tmp_path, tiny_model_folder, capsys):
    assert tiny_model_folder == tmp_path / "model"
    (tmp_path / "f").mkdir()
    (tmp_path / "r" / "export").mkdir(parents=True)
    for name in ("v.gif", "f/1.png"):
        (tmp_path / name).write_text("output: elsewhere")
    (tmp_path / "link.gif").symlink_to(tmp_path / "v.gif")
    check_refused(arguments_of(case.command, {"work": tmp_path}), case.expected, capsys, tmp_path)


def test_runs_write_what_their_settings_say(finished_run):
    from vargen.jobs.generation import GenerateConfig

    declared = path_roles_of(GenerateConfig)["output"].names
    assert {name.split("/")[0] for name in contents(finished_run)} <= set(declared)
