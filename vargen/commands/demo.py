"""`vargen demo`: a page to play with, in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vargen.base.bounds import check_number
from vargen.commands.options import build_parser, fill, parse
from vargen.models.options import ModelOptions


@dataclass(frozen=True)
class DemoConfig(ModelOptions):
    """What is shown, and to whom. A model that is named is offered beside the shipped ones.

    Args:
        video_model: folder of a Qwen2.5-VL or LLaVA-OneVision; null for the shipped one.
        video_draft_model: folder of a smaller one that drafts for it; null for the one shipped with the shipped one.
        host: address the page listens at; 127.0.0.1 is for this machine alone, 0.0.0.0 for everybody on the network.
        port: null for the first free one from 7860.
        share: also open a public address at gradio.live, for everybody who knows it.
    """

    video_model: str | None = None
    video_draft_model: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    share: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is not None:
            check_number("port", self.port, 1, 65_535)


def run(arguments: Sequence[str]) -> int:
    """Serve the page until it is interrupted."""
    parser = build_parser(
        "demo",
        "Open a page on this machine: plain decoding and a method draw the same prompt side by side, answers about "
        "videos come word by word, methods are compared. Nothing leaves the machine unless --share is given.",
        DemoConfig,
    )
    config = fill(DemoConfig, parse(parser, _switches(arguments)))

    from vargen.demo.app import run_until_interrupted

    models = (config, config.video_model, config.video_draft_model)
    run_until_interrupted(config.host, config.port, config.share, *models)
    return 0


def _switches(arguments: Sequence[str]) -> list[str]:
    """`--share` alone means `--share true`."""
    following = [*arguments[1:], "--"]
    return [
        "--share=true" if argument == "--share" and after.startswith("-") else argument
        for argument, after in zip(arguments, following, strict=False)
    ]
