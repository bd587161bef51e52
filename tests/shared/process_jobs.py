"""Commands shared by several processes, as torchrun would start them, which tests can wait for or kill."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence

from warm import KILL, python

_TINY = """
import sys

import token_image_models
from vargen.cli import main
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES

family, *arguments = sys.argv[1:]
TOKEN_IMAGE_FAMILIES[family] = token_image_models.tiny_family(family)
sys.exit(main(arguments))
"""


class ProcessJob:
    """Processes of one command.

    Args:
        arguments: of `vargen`.
        count: how many; one is no process group.
        tiny: a family that draws token by token, to be as small as its tests' models.
    """

    def __init__(self, arguments: Sequence[str], count: int, tiny: str | None = None) -> None:
        command = python("-m", "vargen", *arguments) if tiny is None else python("-c", _TINY, tiny, *arguments)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        self.processes = []
        for rank in map(str, range(count)):
            shared |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
            variables = {**os.environ, **(shared if count > 1 else {})}
            self.processes.append(subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL))

    def wait(self) -> list[int]:
        """Until all are through. Their exit codes, by rank."""
        return [process.wait(600) for process in self.processes]

    def kill(self) -> bool:
        """One process first, as a fault would, then the rest, as a launcher does. Whether any was still at work."""
        for process in self.processes:
            process.send_signal(KILL)
        return any(code < 0 for code in self.wait())
