"""`vargen serve` on several machines by Ray Serve: one model a replica, and one address before them.

    VARGEN_SERVE='{"model": "my-model", "method": "scd"}' serve run integrations.ray.serve_app:app

VARGEN_SERVE holds settings of `vargen serve` as JSON, without host and port, which are Ray's. VARGEN_API_KEY is the key
that clients must send; without one, Ray must listen on this machine alone, as it does by default. Replicas and GPUs of
each: `serve build` writes a YAML file of this application, in which they are numbers.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ray import serve

from vargen.serve.app import KEY, ServeConfig, open_app


def build() -> Any:
    """The application of one replica, which loads the model."""
    config = ServeConfig(**json.loads(os.environ.get("VARGEN_SERVE", "{}")))
    return open_app(config, os.environ.get(KEY) or None)[0]


@serve.deployment(max_ongoing_requests=64, health_check_period_s=10)
@serve.ingress(build)
class Pictures:
    """A replica. Ray starts another one where drawing has ended."""


app = Pictures.bind()
