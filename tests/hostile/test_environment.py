"""Environment variables with values that no part of the project knows."""

from vargen.cli import main


def test_unknown_kernels_end_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VARGEN_KERNELS", "abc")
    assert main(["generate", "a red ball", f"--output={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err == "vargen: error: VARGEN_KERNELS must be one of auto, plain, got 'abc'\n"
