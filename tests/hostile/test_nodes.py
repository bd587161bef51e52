"""Inputs of ComfyUI's nodes that are out of range: one line, before anything is drawn."""

import pytest
from comfy_nodes import execute, model, nodes  # noqa: F401  # the fixtures are for the tests below

from vargen.base.errors import UserError

LOAD, DRAW, TRACE, COMPARE = "VargenLoadModel", "VargenDraw", "VargenTrace", "VargenCompare"


def test_what_a_node_cannot_do_is_one_line(nodes, model):  # noqa: F811
    for node, given, message in (
        (LOAD, {"model": "/nowhere"}, "nowhere"),
        (LOAD, {"model": "a\0b"}, "model"),
        (LOAD, {"model": "x" * 1_000_000}, "model has 1,000,000 characters"),
        (LOAD, {"device": "tpu"}, "device 'tpu'"),
        (LOAD, {"dtype": "int8"}, "dtype"),
        (DRAW, {"prompt": " "}, "prompt is empty"),
        (DRAW, {"prompt": "x" * 1_000_000}, "prompt has 1,000,000 characters"),
        (DRAW, {"prompt": "a\0b"}, "prompt holds a zero character"),
        (DRAW, {"prompt": "a\ud800b"}, "prompt"),
        (DRAW, {"method": "teleport"}, "teleport"),
        (DRAW, {"method": ""}, "method"),
        (DRAW, {"guidance_scale": float("nan")}, "guidance_scale"),
        (DRAW, {"guidance_scale": float("inf")}, "guidance_scale"),
        (DRAW, {"guidance_scale": 1e9}, "guidance_scale"),
        (DRAW, {"guidance_scale": -1.0}, "guidance_scale"),
        (DRAW, {"count": 0}, "count must"),
        (DRAW, {"count": 65}, "count must"),
        (DRAW, {"count": 10**30}, "count must"),
        (DRAW, {"seed": -1}, "seed must"),
        (DRAW, {"seed": 2**64}, "seed must"),
        (DRAW, {"seed": 1.5}, "seed must"),
        (COMPARE, {"seed": -1}, "seed must"),
        (COMPARE, {"first_method": "teleport"}, "teleport"),
        (COMPARE, {"second_method": "eagle"}, "drafter"),
        (COMPARE, {"prompt": "x" * 1_000_000}, "prompt has 1,000,000 characters"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            execute(nodes[node], **({} if node == LOAD else {"model": model}), **given)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
