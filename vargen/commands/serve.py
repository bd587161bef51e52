"""`vargen serve`: pictures over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.serve.app import ServeConfig, serve


def run(arguments: Sequence[str]) -> int:
    """Serve until it is stopped."""
    parser = build_parser(
        "serve",
        "Draw pictures for OpenAI's client and others that speak HTTP: /v1/images/generations, /v1/models, /health and "
        "/metrics. Only this machine is let in unless --host says otherwise, and then VARGEN_API_KEY must hold a key.",
        ServeConfig,
    )
    add_switches(parser)
    values = parse(parser, arguments)
    serve(fill(ServeConfig, values), values.quiet)
    return 0
