"""`vargen serve` on several machines by Ray Serve: one model a replica, and one address before them.

    serve run integrations/ray/serve.yaml

The file beside this one holds the settings, the number of replicas and their GPUs. This module is imported on every
machine, so it must lie in the same place there, or in a `working_dir` of the file.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ray import serve

from vargen.serve.app import KEY, ServeConfig, open_app

SETTINGS = "VARGEN_SERVE"
"""The variable of the environment that holds settings of `vargen serve` as JSON; host and port are Ray's."""


def build() -> Any:
    """The application of one replica, which loads the model."""
    config = ServeConfig(**json.loads(os.environ.get(SETTINGS) or "{}"))
    return open_app(config, os.environ.get(KEY) or None)[0]


@serve.deployment(max_ongoing_requests=64, health_check_period_s=10)
@serve.ingress(build)
class Pictures:
    """A replica."""

    def check_health(self) -> None:
        """Ray asks now and then, and starts another replica after an error."""
        if not self.app.state.engine.alive:  # type: ignore[attr-defined]  # `app` is of Ray's ingress
            raise RuntimeError("drawing has ended")


app = Pictures.bind()
