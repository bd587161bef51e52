"""One process of a command, as torchrun would start it; run by tests with a global JOB.

A file of its own, since the tests' modules cannot be imported by name in another process.
"""

from __future__ import annotations

import os

import token_image_models
import torch

from vargen.cli import main
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES

arguments, rank, count, port, cache, tiny = JOB  # type: ignore[name-defined]  # noqa: F821
if cache is not None:
    os.environ["VARGEN_CACHE"] = cache
torch.set_num_threads(1)
if tiny is not None:
    TOKEN_IMAGE_FAMILIES[tiny] = token_image_models.tiny_family(tiny)
if count > 1:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
with open(os.devnull, "w") as nowhere:
    os.dup2(nowhere.fileno(), 1)
os._exit(main(arguments))
