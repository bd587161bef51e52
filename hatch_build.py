"""`pip install` from source builds the kernels of `specdecode.kernels` for this machine, in up to half a minute.

The library is not part of the wheel: it lies in the user's cache, where the first use would have put it. Without a
compiler nothing happens.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsBuildHook(BuildHookInterface):
    """Hatchling's custom hook, named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the kernels. Errors are reported when they are first used (`specdecode.kernels.build.why_not`)."""
        try:
            # By its path: the package around it imports torch, which need not be there yet.
            spec = importlib.util.spec_from_file_location("build", Path(self.root) / "specdecode/kernels/build.py")
            assert spec is not None and spec.loader is not None
            build = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(build)
            if reason := build.build_ahead():
                self.app.display_info(f"kernels: not built now: {reason}")
        except (OSError, ValueError) as error:  # an unknown VARGEN_KERNELS, no home
            self.app.display_info(f"kernels: not built now: {error}")
