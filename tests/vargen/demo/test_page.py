"""The page from the command line. What it lets in once it is served: `tests/hostile/test_page.py`."""

import sys

from background import ROOT

from vargen.cli import main
from vargen.commands.arguments import build_parser, fill, parse
from vargen.demo.app import DemoConfig
from vargen.video.models.architectures.catalogue import ARCHITECTURES


def test_nobody_else_is_let_in_by_default():
    assert (DemoConfig().host, DemoConfig().share) == ("127.0.0.1", False)
    parser = build_parser("demo", "", DemoConfig)
    assert fill(DemoConfig, parse(parser, ["--share", "--port", "1"])) == DemoConfig(share=True, port=1)
    assert not fill(DemoConfig, parse(parser, ["--share", "false"])).share


def test_help_has_every_architecture_of_video_llms():
    """The docs have a table of them, and `vargen.models` a list."""
    said = " ".join(build_parser("demo", "", DemoConfig).format_help().split())
    table = (ROOT / "docs" / "models" / "video_llms.md").read_text()
    for each in ARCHITECTURES.values():
        assert each.title in said and f"| {each.title} | `{each.model_type}` |" in table


def test_without_gradio_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo"]) == 2
    assert 'pip install "vargen[demo]"' in capsys.readouterr().err
