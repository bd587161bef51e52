"""Passes and seconds a picture of `vargen serve` under load, by method and number of clients.

    python benchmarks/serve_load.py --clients 1,4,16 --rounds 5
    python benchmarks/serve_load.py --methods ar,jacobi,rows-batch -- --dtype bfloat16 --guided_tokens 96   # of servers

A client asks again once it has its picture. The servers of all methods live side by side and draw in turns, and medians
over rounds are compared with the first method's, so that a busy machine slows all of them. Processor seconds are the
server's own (Linux). Passes are those that a picture takes part in. A first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from scenes.cases import sample_prompts


def start(method: str, options: Sequence[str]) -> tuple[subprocess.Popen[bytes], str]:
    """A server that listens, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vargen", "serve", "--quiet", "--method", method, "--port", str(port), *options]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, f"http://127.0.0.1:{port}"
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"the server of {method} ended; see above")


def ask(place: str, asked: tuple[int, str]) -> None:
    """Draw a prompt with a seed."""
    body = json.dumps({"seed": asked[0], "prompt": asked[1]}).encode()
    request = urllib.request.Request(f"{place}/v1/images/generations", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request).read()


def costs(server: subprocess.Popen[bytes], place: str) -> tuple[float, float, float]:
    """So far: passes added up over pictures, processor seconds, seconds of the wall."""
    told = urllib.request.urlopen(f"{place}/metrics").read().decode()
    passes = re.search(r"^vargen_passes (\S+)$", told, re.MULTILINE)
    assert passes is not None
    ticks = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return float(passes[1]), sum(map(int, ticks)) / 100, time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="ar,jacobi", help="the first is what others are compared with")
    parser.add_argument("--clients", default="1,4,16")
    parser.add_argument("--pictures", type=int, default=32, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="of the servers, behind --")
    given = parser.parse_args()
    prompts = [case.caption.text for case in sample_prompts(given.pictures)]
    servers = {method: start(method, given.options) for method in given.methods.split(",")}
    for clients in map(int, given.clients.split(",")):
        taken: dict[str, list[list[float]]] = {method: [] for method in servers}
        for number in range(given.rounds + 1):
            for method, (server, place) in servers.items():
                before = costs(server, place)
                with ThreadPoolExecutor(clients) as pool:
                    list(pool.map(partial(ask, place), enumerate(prompts, number * len(prompts))))
                spent = zip(before, costs(server, place), strict=True)
                taken[method].append([(after - each) / len(prompts) for each, after in spent])
        of_method = {each: [median(one) for one in zip(*rounds[1:], strict=True)] for each, rounds in taken.items()}
        plain = next(iter(of_method.values()))
        names = ("passes", "processor s", "s", "fewer", "less processor", "faster")
        rows = [(*mine, *(a / b for a, b in zip(plain, mine, strict=True))) for mine in of_method.values()]
        for method, row in zip(of_method, rows, strict=True):
            figures = [f"{name} {each:.2f}" for name, each in zip(names, row, strict=True)]
            print(f"{clients} clients, {method}: {', '.join(figures)}", flush=True)
    for server, _ in servers.values():
        server.terminate()


if __name__ == "__main__":
    main()
