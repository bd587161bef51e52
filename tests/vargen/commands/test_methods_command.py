"""`vargen methods` and help texts come at once: none of them imports what takes seconds.

How long the list takes is recorded by `benchmarks/token_hashes.py`; a clock would say how busy this machine is.
"""

import subprocess
import sys
from typing import get_args

from specdecode.text.generate import Method
from vargen.cli import main
from vargen.methods.catalogue import methods_for

SLOW = ("torch", "transformers", "diffusers", "numpy", "PIL", "scipy", "torchvision", "av", "optuna")
COMMANDS = ("", "generate", "bench", "evaluate", "tune", "caption", "demo", "serve", "convert llamagen")
PROGRAM = """
import sys
from vargen.cli import main
for task in ("image", "video", "text"):
    assert main(["methods", "--task", task, "--json"]) == 0
    assert not {slow!r} & sys.modules.keys(), task
for command in {commands!r}:
    try:
        main([*command.split(), "--help"])
    except SystemExit as done:
        assert not done.code
    assert "torch" not in sys.modules, command
"""


def test_lists_of_methods_and_help_texts_import_nothing_slow():
    """One after the other in one process, which begins with nothing imported."""
    program = PROGRAM.format(slow={*SLOW}, commands=COMMANDS)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("[") and process.stdout.count("usage: vargen") == len(COMMANDS)


def test_every_method_is_listed_and_one_of_each_task_has_the_mark(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " * " in line] == ["jacobi", "flash", "prompt-lookup"]
    listed = {line.split()[0] for line in lines if "exact " in line or "relaxed " in line}
    (wide,) = (line.split(": ")[1].split(", ") for line in lines if line.startswith("Presets where rows cost little"))
    assert wide == ["eagle-wide", "jacobi-wide", "scd-wide", "vvs-jacobi-wide"]
    assert "as vvs-jacobi" in next(line for line in lines if line.startswith("vvs "))
    assert listed == {*methods_for("image"), *methods_for("video"), *get_args(Method)}
