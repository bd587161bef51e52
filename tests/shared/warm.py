"""Python in a process of its own that starts at once: forked from one in which everything is imported already.

`python("-m", "vargen", ...)` is to `subprocess`, a shell or a launcher what `[sys.executable, "-m", "vargen", ...]` is,
but for the seconds that imports take. tests/conftest.py forks the server where tests have been collected, before any
has started a thread or changed a thing. This file is also the program that is started: signals that reach it reach the
forked process, which ends when it ends, and it ends in the same way.

Belongs here: starting processes. Does not belong here: tests of what a start imports, which use `sys.executable`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRESH = "--fresh"
"""The project's own modules are imported anew, from where the process finds them; torch and others are there."""
KILL = signal.SIGUSR1
"""Kills the process. What was started ends after it; SIGKILL ends that one first, and the process soon after."""
_OWN = tuple(f"{ROOT / name}{os.sep}" for name in ("vargen", "specdecode", "metrics", "scenes", "tests", "benchmarks"))
_server: tuple[int, int, str] | None = None  # whose it is, its process, its address


def python(*arguments: str | Path) -> list[str]:
    """A command that runs Python; FRESH may come first."""
    if not hasattr(os, "pidfd_open"):  # Linux alone tells of a process's end among other events
        return [sys.executable, *(str(each) for each in arguments if each != FRESH)]
    start()
    assert _server is not None
    return [sys.executable, "-I", "-S", __file__, _server[2], *map(str, arguments)]


def executable(path: Path, *arguments: str) -> Path:
    """Write a script that runs Python as `python` does, for what takes the name of one program."""
    path.write_text(f'#!/bin/sh\nexec {" ".join(python(*arguments))} "$@"\n')
    path.chmod(0o755)
    return path


def start() -> None:
    """Fork the server of this process, unless it is there."""
    global _server
    if not hasattr(os, "pidfd_open") or (_server is not None and _server[0] == os.getpid()):
        return
    address = f"vargen-tests-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{address}")  # no file, so none is left
    listener.listen(64)
    parent = os.getpid()
    server = os.fork()
    if not server:
        try:
            _serve(listener, parent)
        finally:
            os._exit(1)
    listener.close()
    _server = parent, server, address


def stop() -> None:
    """End the server of this process; what its processes took is counted as of children of this one."""
    if _server is not None and _server[0] == os.getpid():
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(_server[1], signal.SIGTERM)
            os.waitpid(_server[1], 0)


def _serve(listener: socket.socket, parent: int) -> None:
    import faulthandler
    import struct

    faulthandler.disable()  # it would write where nobody reads
    os.setsid()
    # Objects of the tests' process still name these numbers, and close them some day: no file of a process may get one.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number != listener.fileno():
            os.dup2(nothing, number)
    listener.settimeout(1)
    while os.getppid() == parent:
        with suppress(TimeoutError, ChildProcessError):
            connection = listener.accept()[0]
            asked_by = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", asked_by)[1] == os.getuid() and not os.fork():  # nobody else may run anything
                listener.close()
                connection.setblocking(True)
                _watch(connection)
                os._exit(0)
            connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _watch(connection: socket.socket) -> None:
    """Fork one process, and say how it ends; end it where nobody listens any more."""
    import select

    _, files, *_ = socket.recv_fds(connection, 1, 3)
    told = json.loads(connection.makefile().readline())
    child = os.fork()
    if not child:
        connection.close()
        os._exit(_run(files, *told))
    for each in files:
        os.close(each)
    connection.sendall(b"%d\n" % child)
    ended = os.pidfd_open(child)
    if ended not in select.select([connection, ended], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it has started
    with suppress(OSError):
        connection.sendall(b"%d\n" % code)


def _run(files: list[int], arguments: list[str], folder: str, variables: dict[str, str], most_files: int) -> int:
    """Be the process."""
    import atexit
    import multiprocessing.util
    import resource
    import runpy
    import threading
    import traceback
    import types

    os.setpgid(0, 0)
    for place, file in enumerate(files):
        os.dup2(file, place)
    for file in files:
        os.close(file)
    modes = ("r", "strict"), ("w", "strict"), ("w", "backslashreplace")
    for place, (name, (mode, errors)) in enumerate(zip(("stdin", "stdout", "stderr"), modes, strict=True)):
        stream = open(place, mode, 1 if place == 2 else -1, "utf-8", errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments[0] == FRESH:
        arguments = arguments[1:]
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(_OWN):
                del sys.modules[name]
        sys.modules.pop("diffusers.pipelines.auto_pipeline", None)  # what is slow must be asked for again
    kind, *rest = (each for each in arguments if each != "-u")
    sys.argv = [kind, *rest[1:]] if kind == "-c" else rest if kind == "-m" else [kind, *rest]
    first = folder if kind in ("-c", "-m") else os.path.dirname(os.path.realpath(kind))
    sys.path[:0] = [first, *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    code: object = 0
    try:
        if kind == "-c":
            sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
        elif kind == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        traceback.print_exc()
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]  # as where Python ends
    atexit._run_exitfuncs()
    multiprocessing.util._exit_function()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return int(code) & 0xFF  # type: ignore[call-overload]


def _stand_in(address: str, *arguments: str) -> int:
    """Start a process by the server at this address, and be in its place."""
    import resource

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{address}")
        socket.send_fds(connection, [b"x"], [0, 1, 2])
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        told = json.dumps([arguments, os.getcwd(), dict(os.environ), most_files])
        connection.sendall(f"{told}\n".encode())
        answers = connection.makefile()
        child = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, KILL):
            signal.signal(number, lambda number, _: os.kill(child, signal.SIGKILL if number == KILL else number))
        code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        with suppress(OSError):  # nobody may say what SIGKILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_stand_in(*sys.argv[1:]))
