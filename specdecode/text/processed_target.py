"""A causal language model whose first tokens are drawn from processed logits.

Belongs here: the logits of prompts. Does not belong here: those of drafted places, which a verifier processes one after
the other (`specdecode.text.processed`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specdecode.roles import TargetOutput
from specdecode.targets.transformers import TransformersTarget
from specdecode.text.processed import ProcessedVerifier


class ProcessedTarget(TransformersTarget):
    """A `TransformersTarget` with processors.

    Args:
        given, options: of `TransformersTarget`.
        verifier: processes logits.
    """

    def __init__(self, *given: Any, verifier: ProcessedVerifier, **options: Any) -> None:
        super().__init__(*given, **options)
        self._verifier = verifier

    def prefill(self) -> TargetOutput:
        """See `TransformersTarget.prefill`; the logits are processed."""
        output = super().prefill()
        return replace(output, logits=self._verifier.of_prompts(output.logits[:, -1:]))
