"""The folder of a model: a shipped one by name, a folder, or a repository on the hub.

Belongs here: fetching from the hub, and one line for every failure. Files go to the hub's own cache (`HF_HOME`), where
other libraries find them, and an interrupted download continues. Does not belong here: reading the files
(`vargen.models.description`) and loading (`vargen.pipelines.loading`). Nothing here imports torch.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.reading import reason_of
from vargen.base.resources import find_model, shipped_models

SETTINGS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""Small files that describe a model and its prompts."""
WEIGHTS = (*SETTINGS, "*.safetensors")
"""All files that are loaded. Pickled weights are not, because they may run code."""

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_name(model: str | os.PathLike[str] | None) -> bool:
    """Whether a name has the form of the hub's names, and is not a folder."""
    name = "" if model is None else os.fspath(model)
    return _HUB_NAME.fullmatch(name) is not None and name[0] not in ".~" and not Path(name).exists()


def find_files(
    model: str | os.PathLike[str] | None, revision: str | None = None, files: Sequence[str] = WEIGHTS, **hub: Any
) -> Path:
    """The folder of a model of any family.

    Args:
        model: a shipped name (None: the default), a folder, or a name on the hub.
        revision: on the hub; None for the main one.
        files: patterns of the files that are fetched from the hub.
        **hub: see `fetch`; a folder needs none of it.

    Raises:
        UserError: no such model, it cannot be fetched, or a revision of a folder.
    """
    if model is not None and is_hub_name(model) and os.fspath(model) not in shipped_models():
        return fetch(os.fspath(model), revision, files, **hub)
    folder = find_model(model, ("model_index.json", "config.json"))  # of diffusers, of transformers
    if revision is not None:
        raise UserError(f"revision cannot be used: {folder} is a folder, and only models on the hub have revisions")
    return folder


def fetch(name: str, revision: str | None, files: Sequence[str], argument: str = "model", **hub: Any) -> Path:
    """The folder in the hub's cache that holds these files of a repository; files that it has are not fetched again.

    Args:
        name: of the repository.
        revision: branch, tag or commit; None for the main one.
        files: patterns.
        argument: the argument that named it, for errors.
        **hub: token, cache_dir and local_files_only, as the hub's client takes them.

    Raises:
        UserError: there is no such repository or revision, it is gated, or it cannot be reached.
        OSError: the disk is full, or nothing may be written there.
    """
    from huggingface_hub import errors, snapshot_download

    again = "the same command continues the download"
    connect = "leave out local_files_only" if hub.get("local_files_only") else "connect"
    # The HTTP library differs from one version of the hub's client to the next.
    transport: Any = next(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[*files], **hub))
    except errors.GatedRepoError as error:
        raise UserError(
            f"{argument}: {name} is gated: accept its conditions at https://huggingface.co/{name} and log in with "
            f"`hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{argument}: {name} is neither a folder nor a model on the hub (or a private one: log in with `hf auth "
            f"login`); check its name"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"revision: {name} has no {revision!r} on the hub; check its branches and tags") from error
    except errors.HFValidationError as error:
        raise UserError(f"{argument}: {name!r} is neither a folder nor a name that the hub allows") from error
    except errors.LocalEntryNotFoundError as error:
        what = f"is not a folder, and the hub cannot be reached to fetch it; {connect}, or name a folder"
        if hasattr(error, "snapshot_path"):
            what = f"was not fetched whole, and the hub cannot be reached; {connect}, and {again}"
        raise UserError(f"{argument}: {name} {what}") from error
    except (transport, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            raise
        raise UserError(f"{argument}: fetching {name} was interrupted ({reason_of(error)}); {again}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{name} is not fetched whole yet; {again}") from None
