"""Calls compute alike whatever block of torch surrounds them.

Belongs here: modes of a caller that a call sets aside. Does not belong here: computing.

`torch.inference_mode` makes tensors that nothing outside of it may write to, so a cache that is kept for the next call
would end that one. `torch.autocast` makes layers answer in another precision than their weights have, and tokens
then depend on the block around the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def default_torch_mode() -> Iterator[None]:
    """Without gradients, inference mode and autocast. Also a decorator of functions, though not of generators."""
    with torch.inference_mode(False), torch.no_grad(), ExitStack() as stack:
        for device in ("cpu", "cuda", "mps", "xpu"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
