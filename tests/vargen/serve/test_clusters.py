"""The recipes for clusters: Ray Data and Ray Serve on a local Ray, and the Slurm script with two tasks here."""

import base64
import io
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from background import PATH, ROOT, process, wait_for
from PIL import Image
from warm import KILL, executable, python

from vargen import LlamaGenPipeline

httpx = pytest.importorskip("httpx", reason="a server is asked by it")
SMALL = {
    "PYTHONPATH": PATH,  # of the workers
    "RAY_memory_monitor_refresh_ms": "0",  # or it ends workers where other tests fill the memory
    "RAY_prestart_worker_first_driver": "0",  # workers start when there is work
    "RAY_worker_niceness": "0",  # not after whatever else runs here
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables of a Ray that starts little and asks nobody."""


@pytest.fixture(scope="module")
def drawn(_saved_tiny_pipelines: dict[str, Path]) -> Callable[[str, int], Any]:
    pipeline = LlamaGenPipeline.from_pretrained(_saved_tiny_pipelines["text"])
    return lambda prompt, seed: np.asarray(pipeline(prompt, generator=torch.Generator().manual_seed(seed)).images[0])


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of one small Ray for all tests here: most of their time is processes that start and import."""
    ray = pytest.importorskip("ray", reason='needs pip install "vargen[cluster]"')
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setenv(name, value)
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, logging_level="ERROR")
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


def test_ray_data_goes_on_after_a_kill(cluster, _saved_tiny_pipelines, drawn, tmp_path):
    import ray

    log, output = tmp_path / "log", tmp_path / "pictures"
    prompts = [f"a {colour} {shape}" for colour in ("red", "blue", "green") for shape in ("cube", "cone")] * 7
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    recipe = python("integrations/ray/generate.py", tmp_path / "prompts.txt", output)
    recipe += ["--model", str(_saved_tiny_pipelines["text"])]

    def there() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in output.glob("*.png")}

    with process([*recipe, "--workers", "2", "--batch_size", "1"], log, RAY_ADDRESS=cluster) as running:
        wait_for(there, running, log, every=0.02)
        running.send_signal(KILL)
        running.wait(600)
    while ray.available_resources().get("CPU") != 2:  # a worker hears of the end a little later
        time.sleep(0.05)
    before = there()
    assert 0 < len(before) < len(prompts), "killed while it drew"
    with process([*recipe, "--workers", "1", "--batch_size", "42"], log, RAY_ADDRESS=cluster) as running:
        assert running.wait(600) == 0, log.read_text()[-3000:]
    assert f"{len(before)} of {len(prompts)} pictures are there" in log.read_text()
    after = there()
    assert len(after) == len(prompts) and {name: after[name] for name in before} == before
    for number in (*range(6), len(prompts) - 1):
        assert np.array_equal(Image.open(output / f"{number:06}.png"), drawn(prompts[number], number))
    assert not [*output.glob("*.partial*")]


def test_the_recipe_for_ray_data_refuses_a_folder_of_other_prompts(tmp_path):
    """Before it looks for a Ray."""
    (tmp_path / "prompts.txt").write_text("a red cube")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "settings.json").write_text("{}")
    recipe = python("integrations/ray/generate.py", tmp_path / "prompts.txt", tmp_path / "pictures")
    refused = subprocess.run(recipe, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": PATH})
    assert refused.returncode == 1 and refused.stderr.startswith("error: ") and "choose another" in refused.stderr


def test_ray_serve_answers(cluster, _saved_tiny_pipelines, drawn, tmp_path):
    """The shipped file with a tiny model, a key and a free port, run as it says."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shipped = yaml.safe_load((ROOT / "integrations" / "ray" / "serve.yaml").read_text())
    assert shipped["http_options"]["host"] == "127.0.0.1"
    shipped["http_options"]["port"] = port
    (application,) = shipped["applications"]
    assert application["deployments"][0]["num_replicas"] == 2
    settings = json.dumps({"model": str(_saved_tiny_pipelines["text"]), "method": "jacobi"})
    application["runtime_env"]["env_vars"] = {"VARGEN_SERVE": settings, "VARGEN_API_KEY": "secret"}
    (tmp_path / "serve.yaml").write_text(yaml.safe_dump(shipped))
    log = tmp_path / "log"

    def answer(place: str, body: Any = None, key: str = "secret") -> Any:
        url, headers = f"http://127.0.0.1:{port}{place}", {"Authorization": f"Bearer {key}"}
        return httpx.request("GET" if body is None else "POST", url, json=body, headers=headers, timeout=600)

    def healthy() -> bool:
        with suppress(httpx.TransportError):
            return answer("/health").status_code == 200
        return False

    command = python("-m", "ray.serve.scripts", "run", tmp_path / "serve.yaml")
    with process(command, log, RAY_ADDRESS=cluster) as running:
        wait_for(healthy, running, log, every=0.25)
        for seed in range(4):  # whichever replica draws, a seed decides its picture
            told = answer("/v1/images/generations", {"prompt": "a red cube", "seed": seed % 2})
            picture = Image.open(io.BytesIO(base64.b64decode(told.json()["data"][0]["b64_json"])))
            assert told.status_code == 200 and np.array_equal(picture, drawn("a red cube", seed % 2))
        assert answer("/v1/images/generations", {"prompt": "a red cube", "n": 1000}).status_code == 400
        assert answer("/v1/models", key="other").status_code == 401


def test_the_slurm_script_shares_pictures_among_two_tasks(_saved_tiny_pipelines, drawn, tmp_path):
    """Its body by bash: `srun` starts two tasks of one machine each, here, with the variables that Slurm would set."""
    (tmp_path / "bin").mkdir()
    executable(tmp_path / "bin" / "python")
    task = "SLURM_PROCID=$rank SLURM_LOCALID=0"
    programs = {
        "scontrol": '[ "$*" = "show hostnames here,there" ] && printf "127.0.0.1\\nthere\\n"',
        "srun": f'for rank in 0 1; do {task} "$@" & tasks[rank]=$!; done; wait ${{tasks[0]}}; wait ${{tasks[1]}}',
    }
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/usr/bin/env bash\nset -e\n{body}\n")
        path.chmod(0o755)
    prompts = ["a red cube", "a blue cone", "a green cube"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    slurm = {"JOB_NODELIST": "here,there", "JOB_ID": str(os.getpid()), "NTASKS": "2", "NNODES": "2"}
    variables = {f"SLURM_{name}": value for name, value in slurm.items()}
    variables["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = ["bash", "integrations/slurm/run.sh", "generate", "--prompts_file", str(tmp_path / "prompts.txt")]
    command += ["--output", str(tmp_path / "pictures"), "--model", str(_saved_tiny_pipelines["text"])]
    command += ["--device", "cpu", "--batch_size", "1"]
    with process(command, tmp_path / "log", **variables) as running:
        assert running.wait(600) == 0, (tmp_path / "log").read_text()[-3000:]
    told = (tmp_path / "log").read_text()
    assert told.count("3 images in") == 1, "the first task alone speaks, for both"
    for number, prompt in enumerate(prompts):
        picture = Image.open(tmp_path / "pictures" / "images" / f"{number:06}.png")
        assert np.array_equal(picture, drawn(prompt, number))
