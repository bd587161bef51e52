"""vargen without a world: real models work, and where a world is needed one line names the remedy.

Commands run in a process of their own in which importing `scenes` fails, as it does where the package is not there.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from video_pairs import qwen_pair  # noqa: F401  # a fixture
from warm import FRESH, python

_PROGRAM = """
import contextlib, importlib.metadata, io, json, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "scenes":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
commands, forget = json.loads(sys.argv[1])
if forget:
    everything = importlib.metadata.entry_points
    importlib.metadata.entry_points = lambda **wanted: importlib.metadata.EntryPoints(
        point for point in everything(**wanted) if not point.value.startswith("scenes")
    )
from vargen.cli import main

results = []
for command in commands:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = main(command)
    results.append((code, out.getvalue(), error.getvalue()))
assert not [name for name in sys.modules if name.partition(".")[0] == "scenes"]
assert "diffusers.pipelines.auto_pipeline" not in sys.modules  # all of diffusers, and what it says of torchvision
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Result:
    """What a command ended with."""

    code: int
    out: str
    error: str

    def check_worked(self) -> None:
        assert self.code == 0, self.error

    def check_line(self, *expected: str) -> None:
        told = [line for line in self.error.splitlines() if not line.startswith("vargen: training ")]
        assert self.code == 2 and len(told) == 1 and told[0].startswith("vargen: error: "), self.error
        for part in expected:
            assert part in self.error


def run_blocked(*commands: list[str | Path], forget: bool = False) -> list[Result]:
    """Commands without `scenes`; `forget` takes its entry points away too."""
    argument = json.dumps([[list(map(str, command)) for command in commands], forget])
    done = subprocess.run(python(FRESH, "-c", _PROGRAM, argument), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return [Result(*each) for each in json.loads(done.stdout)]


def needing_the_world(folder: Path) -> list[list[str | Path]]:
    """Commands that cannot work without it."""
    generate = ["generate", "a red cube", "--output", folder / "none"]
    return [["--help"], generate, ["scenes"], ["train", "--help"], ["train", "judge"]]


def check_one_line_each(results: list[Result], reason: str) -> None:
    """What these commands say."""
    shown, generated, unknown, trainable, judge = results
    shown.check_worked()
    assert "generate" in shown.out and "\n  scenes" not in shown.out
    generated.check_line("model: no world is installed", reason, "--model", "reinstall vargen")
    unknown.check_line("'scenes' is not a command")
    assert "drafter" in trainable.out and "tokenizer" not in trainable.out
    judge.check_line(
        "'judge' cannot be trained; choose one of: drafter, lora, video-drafter, video-draft-model, drafter-text"
    )


def test_without_an_entry_point_what_needs_the_world_ends_in_one_line(tmp_path):
    check_one_line_each(run_blocked(*needing_the_world(tmp_path), forget=True), "no world is installed")


def test_behind_a_broken_entry_point_models_of_ones_own_work_and_the_rest_ends_in_one_line(
    tiny_model_folder,
    clip_folder,
    qwen_pair,  # noqa: F811
    tmp_path,
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red cube\na blue cone\n")
    protocol = "{name: mine, captions: file, reference: none, judge: false, extractor: clip, count: 2, resolution: 8}"
    (tmp_path / "mine.yaml").write_text(protocol)
    frames = tmp_path / "frames"
    frames.mkdir()
    for number in range(4):
        Image.new("RGB", (32, 32), (60 * number, 0, 0)).save(frames / f"{number}.png")
    bench = ["bench", "--model", tiny_model_folder, "--methods", "ar,jacobi", "--warm_up", "0", "--quiet"]
    evaluate = ["evaluate", "--model", tiny_model_folder, "--quiet", "--output", tmp_path / "scores"]
    file = ["--protocol", tmp_path / "mine.yaml", "--prompts_file", prompts, "--bootstrap", "0"]
    caption = ["caption", frames, "what happens?", "--num_frames", "4", "--max_new_tokens", "4", "--method", "ar"]

    *needing, drawn, compared, composed, scored, scenes, described, shipped, converted, trained = run_blocked(
        *needing_the_world(tmp_path),
        ["generate", "a red cube", "--model", tiny_model_folder, "--output", tmp_path / "out", "--quiet"],
        [*bench, "--prompts_file", prompts, "--output", tmp_path / "bench"],
        bench,
        [*evaluate, *file, "--clip", clip_folder],
        evaluate,
        [*caption, "--model", qwen_pair / "target"],
        caption,
        ["convert"],
        ["train", "drafter", "--output", tmp_path / "drafter"],
    )
    check_one_line_each(needing, "No module named 'scenes'")
    drawn.check_worked()
    assert (tmp_path / "out" / "images" / "000000.png").is_file()
    compared.check_worked()
    assert [row["method"] for row in json.loads((tmp_path / "bench" / "results.json").read_text())] == ["ar", "jacobi"]
    composed.check_line("prompts_file: no world is installed", "name a file of prompts")
    scored.check_worked()
    scenes.check_line("protocol scenes: no world is installed", "use another protocol")
    described.check_worked()
    shipped.check_line("model: no world is installed", "name a folder")
    converted.check_worked()
    trained.check_line("prompts_file: no world is installed", "name a file of prompts")
