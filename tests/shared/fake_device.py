"""A GPU that is not there: tensors with shapes and a device and no numbers (`FakeTensorMode`).

Whatever asks such a tensor for a number (`int`, `bool`, `tolist`, `nonzero`, a shape that depends on one) fails, and on
a GPU it is what the host would wait for.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig


def forget_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what asks the driver, once a picture and not once a step."""
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    for module in ("kv_cache", "loop"):
        monkeypatch.setattr(f"specdecode.{module}.check_room", lambda *sizes: None)


def written(player: Any) -> io.BytesIO:
    """A target or a network that was made for real, since making a target reads its prompts."""
    file = io.BytesIO()
    torch.save(player, file)
    file.seek(0)
    return file


def there(file: io.BytesIO) -> Any:
    """The written target on the device; within `FakeTensorMode`."""
    target = torch.load(file, map_location="cuda", weights_only=False)
    target.device = torch.device("cuda")
    return target


def take_steps(target: Any, max_new_tokens: int, steps: int = 4, **players: Any) -> None:
    """Some steps of the loop, sampled with every filter."""
    run = new_run(
        target,
        max_new_tokens=max_new_tokens,
        sampling=SamplingConfig(0.9, top_k=5, top_p=0.9),
        streams=RandomStreams(torch.empty(target.batch_size, dtype=torch.int64)),
        **players,
    )
    run.start()
    for _ in range(steps):
        run.step()
