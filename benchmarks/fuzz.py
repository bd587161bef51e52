"""Inputs that nobody wrote down, tried one by one: does every one end well, or with one line?

    nice python benchmarks/fuzz.py [--seed 1] [--count 500] [--only records videos] [--at 17] [--record]

Number n of a kind of input under a seed is always the same input, whatever was tried before it, so `--first` goes on
where a run was stopped, and `--at` tries one input again and shows what it said. Each input is tried in a forked
process with a folder of its own, which ends it in one of these ways:

    answered     it succeeded, and where a right answer is known, this is it
    refused      one line, exit code 2, and its folder is as it was
    wrong        it succeeded with another answer, or where no success is right
    traceback    an error that is no line; `crash` where the process died
    no line      another exit code, or none or several lines
    leftover     it was refused and left something, or it changed its input
    silent       no word in ten seconds of work or thirty of waiting, or no further word in four times as long

Belongs here: trying, watching, counting. Does not belong here: the inputs and their answers (`fuzz_inputs.py`).
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "fuzz.json"
SILENT_WORK, SILENT_WAIT, LONGEST = 10.0, 30.0, 90.0
"""Seconds: of a processor without a word; of a clock; of a clock for an input that speaks, which is then given up."""
MOST_MEMORY = 12 * 2**30
GOOD = ("answered", "refused", "still speaking")


def attempt(kind: str, seed: int, number: int, sound: Any, work: Path) -> dict[str, str]:
    """Try one input in this process, and say how it ended."""
    from fuzz_inputs import KINDS
    from hostile import contents

    tried = KINDS[kind](Random(f"{kind}/{seed}/{number}"), sound, work)
    os.chdir(work)  # where a command writes that was told nothing, or an empty name
    before = contents(work)
    try:
        code = tried.run()
    except BaseException as error:
        if isinstance(error, SystemExit):
            return {"end": "no line", "what": tried.what, "why": f"SystemExit({error.code})"}
        return {"end": "traceback", "what": tried.what, "why": traceback.format_exc()[-1500:]}
    sys.stderr.flush()
    text = Path(f"/proc/self/fd/{sys.stderr.fileno()}").read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("vargen: error: ")]
    ended = {"what": tried.what, "why": text[-800:]}
    if (code, len(lines)) not in ((0, 0), (2, 1)) or "Traceback" in text:
        return {"end": "no line", **ended}
    after = contents(work)
    may = tried.may_change if code == 0 or tried.begun else ()
    moved = [name for name in {**before, **after} if before.get(name, 0) != after.get(name, 0)]
    moved = [name for name in moved if name.split("/")[0] not in may or (code and name not in after)]
    moved = [name for name in moved if code or name in before]  # a success may write where it was told
    if moved:
        return {"end": "leftover", "what": tried.what, "why": f"{sorted(moved)[:8]}\n{text[-500:]}"}
    if code:
        return {"end": "refused", **ended}
    try:
        wrong = "it succeeded" if tried.refused else tried.check()
    except BaseException:
        return {"end": "traceback", "what": tried.what, "why": "while checking: " + traceback.format_exc()[-1500:]}
    return {"end": "wrong", "what": tried.what, "why": wrong} if wrong else {"end": "answered", **ended}


def watched(kind: str, seed: int, number: int, sound: Any, folder: Path) -> dict[str, str]:
    """The same in a forked process, which is ended when it says nothing for too long."""
    work = Path(tempfile.mkdtemp(dir=folder))
    note, said = os.memfd_create("note"), os.memfd_create("said")
    child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.pwrite(note, json.dumps(attempt(kind, seed, number, sound, work)).encode(), 0)
        except BaseException:
            os.pwrite(note, json.dumps({"end": "traceback", "what": "?", "why": traceback.format_exc()}).encode(), 0)
        finally:
            os._exit(0)
    status, stopped = _wait(child, said)
    told = os.pread(note, 1_000_000, 0).decode()
    text = os.pread(said, 1_000_000, 0).decode(errors="replace")
    os.close(note)
    os.close(said)
    shutil.rmtree(work, ignore_errors=True)
    if stopped or not told:
        tried = _told_what(kind, seed, number, sound, folder)
        end = stopped or "crash"
        return {"end": end, "what": tried, "why": f"{status}\n{text[-1500:]}"}
    return json.loads(told)


def _wait(child: int, said: int) -> tuple[int, str]:
    """Until a process ends or is ended: its status, and why it was."""
    began = spoke = time.monotonic()
    length = work = 0.0
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), ""
        now, worked = time.monotonic(), _processor_seconds(child)
        if os.fstat(said).st_size != length:
            length, spoke, work = os.fstat(said).st_size, now, worked
        patience = 4 if length else 1  # a job that has said what it does says more every half minute
        silent = worked - work > patience * SILENT_WORK or now - spoke > patience * SILENT_WAIT
        why = "silent" if silent else ""
        why = why or ("still speaking" if now - began > LONGEST else "")
        if why:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL, why
        time.sleep(0.01)


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _told_what(kind: str, seed: int, number: int, sound: Any, folder: Path) -> str:
    from fuzz_inputs import KINDS

    with tempfile.TemporaryDirectory(dir=folder) as work:
        return KINDS[kind](Random(f"{kind}/{seed}/{number}"), sound, Path(work)).what


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=500, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first number")
    parser.add_argument("--only", nargs="+", help="kinds")
    parser.add_argument("--at", type=int, help="try this number alone, and show what it said")
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        os.environ["VARGEN_CACHE"] = f"{name}/cache"
        import torch

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        from fuzz_inputs import KINDS, Sound

        from metrics.provenance import provenance

        told = provenance()
        sound = Sound(Path(name))
        gc.freeze()  # collecting garbage would copy all that is shared with the forked processes
        kinds = options.only or list(KINDS)
        numbers = range(options.first, options.count) if options.at is None else [options.at]
        ends: dict[str, collections.Counter[str]] = {}
        for kind in kinds:
            began, ends[kind] = time.monotonic(), collections.Counter()
            for number in numbers:
                ended = watched(kind, options.seed, number, sound, Path(name))
                ends[kind][ended["end"]] += 1
                if ended["end"] not in GOOD or options.at is not None:
                    print(f"{ended['end']}: {kind} {number} of seed {options.seed}: {ended['what']}\n{ended['why']}\n",
                          flush=True)  # fmt: skip
            print(f"{kind}: {dict(ends[kind])}, {time.monotonic() - began:.0f} s", flush=True)
    if options.record:
        bad = sorted({end for counts in ends.values() for end in counts} - {*GOOD})
        rows = [
            {"kind": kind, "inputs": counts.total(), **{end: counts[end] for end in (*GOOD, *bad)}}
            for kind, counts in ends.items()
        ]
        content = {"seed": options.seed, "rows": rows, "provenance": told}
        RESULT.write_text(json.dumps(content, indent=1) + "\n")
    return int(any(end not in GOOD for counts in ends.values() for end in counts))


if __name__ == "__main__":
    sys.exit(main())
