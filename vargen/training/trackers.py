"""Where people watch a training: TensorBoard or Weights & Biases, through accelerate's trackers.

Belongs here: which trackers there are, and starting one. Does not belong here: `log.jsonl`, which every run writes
(`run.py`), and the logged figures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.bounds import check_choice
from vargen.base.errors import UserError

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

TRACKERS = ("tensorboard", "wandb")
"""Names of trackers, which are those of their packages."""


def check_tracker(name: str | None) -> None:
    """Refuse an unknown tracker, and one whose package is not installed. Raises UserError."""
    if name is None:
        return
    check_choice("log_with", name, TRACKERS)
    if importlib.util.find_spec(name) is None:
        raise UserError(f"log_with {name} needs {name}, which is not installed; run pip install {name}")


def start_tracker(name: str | None, folder: Path, config: Mapping[str, Any]) -> GeneralTracker | None:
    """A tracker that has the settings of the run; None where none is asked for.

    Args:
        name: of `TRACKERS`.
        folder: of the run. TensorBoard writes to `tensorboard/` there; a resumed run goes on in the same place.
        config: the settings of the run.

    Raises:
        UserError: see `check_tracker`; or it cannot be started, such as without a login.
    """
    check_tracker(name)
    if name is None:
        return None
    from accelerate import PartialState
    from accelerate.tracking import TensorBoardTracker, WandBTracker

    # TensorBoard takes numbers and texts alone.
    plain = {key: each if isinstance(each, str | int | float) else str(each) for key, each in config.items()}
    try:
        PartialState()  # without it, accelerate's log refuses every message of a tracker
        tracker: GeneralTracker
        if name == "tensorboard":
            tracker = TensorBoardTracker("tensorboard", logging_dir=folder)
            tracker.start()
            tracker.store_init_configuration(plain)
        else:
            tracker = WandBTracker("vargen", name=folder.name, dir=str(folder), config=plain)
            tracker.start()
    except Exception as error:  # wandb raises classes of its own where there is no login or no network
        said = " ".join(str(error).split())[:200]
        raise UserError(f"log_with: {name} cannot be started ({said}); log in to it, or leave log_with out") from error
    return tracker
