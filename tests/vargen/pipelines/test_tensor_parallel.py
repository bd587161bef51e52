"""One model split over two processes by transformers' plan: tokens are those of one process, and of plain decoding."""

import json
import os
import socket
import subprocess
import sys

import emu3_models
import janus_models
import split_worker
import token_image_models

from vargen.pipelines.token_images import TokenImagePipeline


def test_two_processes_draw_what_one_draws(tmp_path):
    janus_models.make().float().save_pretrained(tmp_path / "janus")
    janus_models.processor().save_pretrained(tmp_path / "janus")
    emu3_models.save(tmp_path / "emu3")
    for name in ("emu3_5", "simplear", "liquid", "anole"):
        family = token_image_models.tiny_family(name)
        TokenImagePipeline(token_image_models.tiny_model(family), None, None, family).save_pretrained(tmp_path / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": str(free.getsockname()[1]), "PYTHONPATH": os.path.dirname(split_worker.__file__)}
    processes = [
        subprocess.Popen(
            [sys.executable, split_worker.__file__, str(tmp_path), str(rank)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(900) for process in processes] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    alone = split_worker.draw(tmp_path)
    for name in ("janus", "emu3_5", "simplear", "liquid"):
        plain, jacobi, _ = alone[name]
        assert first[name] == alone[name] and plain == jacobi, name
    for name in ("emu3", "anole"):
        assert "tp_plan: transformers has none for the layers of a" in first[name]
    (refused,) = {value for value in split_worker.draw(tmp_path, tp_plan="auto").values()}
    assert "tp_plan must be" in refused
