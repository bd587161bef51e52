"""Inputs that nobody wrote down, tried one by one: does every one end well, or with one line?

    nice python benchmarks/fuzz.py --seed 1 --count 430

Number n of a kind under a seed is always the same input, so `--first` goes on, and `--first 17 --count 18` shows one
again. Each is tried in a forked process, and one that works for ten seconds or waits for sixty without an end is
"silent". Exits with 1 where an input ended badly. Does not belong here: inputs and answers (`fuzz_inputs.py` in
`tests/shared`).
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "shared")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
MOST_WORK, MOST_WAITING = 10, 60
"""Seconds of a processor and of a clock."""


def watched(kind: str, seed: int, number: int, sound: object, folder: Path) -> tuple[str, str]:
    """`attempt` in a forked process."""
    from fuzz_inputs import attempt

    work, note = Path(tempfile.mkdtemp(dir=folder)), os.memfd_create("note")
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_WORK, MOST_WORK))
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            os.chdir(work)
            os.pwrite(note, "\t".join(attempt(kind, seed, number, sound, work)).encode(errors="replace"), 0)
        finally:
            os._exit(0)
    began, ended, status = time.monotonic(), 0, 0
    while not ended and time.monotonic() - began < MOST_WAITING:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    told = os.pread(note, 1_000_000, 0).decode()
    os.close(note)
    shutil.rmtree(work, ignore_errors=True)
    how, _, why = told.partition("\t")
    stopped = not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU))
    return ("silent" if stopped else how or "crash"), why


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=430, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--only", nargs="+", help="kinds")
    options = parser.parse_args()
    import torch
    from fuzz_inputs import GOOD, KINDS, Sound

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    together: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        sound = Sound(Path(name))
        gc.freeze()  # collecting garbage would copy all that is shared with the forked processes
        for kind in options.only or KINDS:
            ends: collections.Counter[str] = collections.Counter()
            for number in range(options.first, options.count):
                end, why = watched(kind, options.seed, number, sound, Path(name))
                ends[end] += 1
                if end not in GOOD or options.count - options.first == 1:
                    print(f"{end}: {kind} {number} of seed {options.seed}: {why}\n", flush=True)
            print(f"{kind}: {dict(ends)}", flush=True)
            together += ends
    print(f"together: {dict(together)}, refused {together['refused'] / max(together.total(), 1):.0%}")
    return int(any(end not in GOOD for end in together))


if __name__ == "__main__":
    sys.exit(main())
