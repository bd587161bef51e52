"""Where a model's files come from: a shipped name, a folder, or a name on the hub, which becomes a folder.

Belongs here: fetching from the hub, and one line for everything that can go wrong with it. What is fetched lies in the
hub's own cache (`HF_HOME`), where other libraries find it, and an interrupted download goes on. Does not belong here:
reading the files (`vargen.models.description`) and loading (`vargen.pipelines.loading`). Nothing here imports torch.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.resources import find_model_of_any_family, shipped_models

SETTINGS = ("*.json", "*.txt", "*.model", "*.jinja")
"""Files that say what a model is and how it reads prompts; small ones."""
WEIGHTS = (*SETTINGS, "*.safetensors")
"""Everything that is loaded. Pickled weights are not: they may run code."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(model: str | os.PathLike[str] | None) -> bool:
    """Whether a model is named as the hub names them, and no folder is called so."""
    name = "" if model is None else os.fspath(model)
    return _HUB_NAME.fullmatch(name) is not None and name[0] not in ".~" and not Path(name).exists()


def find_files(
    model: str | os.PathLike[str] | None, revision: str | None = None, files: Sequence[str] = WEIGHTS
) -> Path:
    """The folder of a model of any family.

    Args:
        model: a shipped name (None: the default), a folder, or a name on the hub.
        revision: of the hub; None for the main one.
        files: patterns of what is fetched from the hub.

    Raises:
        UserError: no such model, no way to it, or a revision of what has none.
    """
    if model is not None and is_hub_name(model) and os.fspath(model) not in shipped_models():
        return fetch(os.fspath(model), revision, files)
    folder = find_model_of_any_family(model)
    if revision is not None:
        raise UserError(f"revision cannot be used: {folder} is a folder, and only models on the hub have revisions")
    return folder


def fetch(name: str, revision: str | None, files: Sequence[str], argument: str = "model") -> Path:
    """The folder in the hub's cache that holds these files of a repository; what is there already is not fetched again.

    Args:
        name: of the repository.
        revision: branch, tag or commit; None for the main one.
        files: patterns.
        argument: which argument named it.

    Raises:
        UserError: there is no such repository or revision, it is gated, or it cannot be reached.
        OSError: the disk is full, or nothing may be written there.
    """
    from huggingface_hub import errors, snapshot_download

    again = "the same command goes on with what was fetched"
    # Of the library that carries the files, which differs from one version of the hub's client to the next.
    transport: Any = next(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*files]))
    except errors.GatedRepoError as error:
        raise UserError(
            f"{argument}: {name} is gated: accept its conditions at https://huggingface.co/{name} and log in with "
            f"`hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{argument}: {name} is no folder and no model on the hub (or a private one: log in with `hf auth login`); "
            f"check its name"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"revision: {name} has no {revision!r} on the hub; check its branches and tags") from error
    except errors.HFValidationError as error:
        raise UserError(f"{argument}: {name!r} is no folder and no name that the hub allows") from error
    except errors.LocalEntryNotFoundError as error:
        if hasattr(error, "snapshot_path"):
            raise UserError(
                f"{argument}: {name} was not fetched whole, and the hub cannot be reached; connect, and {again}"
            ) from error
        raise UserError(
            f"{argument}: {name} is no folder, and the hub cannot be reached to fetch it; connect, or name a folder"
        ) from error
    except (transport, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        raise UserError(f"{argument}: fetching {name} was interrupted ({_first_line(error)}); {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{name} is not fetched whole yet; {again}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
