"""Prompts about videos as a pair of models sees them: what a method may ask for.

Belongs here: what methods build their players from. Does not belong here: methods, and anything that outlives a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from specdecode.drafters.draft_model import MOST_WAITING
from vargen.base.errors import UserError
from vargen.drafters.video_head import VideoHead
from vargen.models.video_llms.request import VideoRequest, prepare_request
from vargen.models.video_llms.target import VideoTarget
from vargen.pipelines.video.loading import LazyModel


def no_trained_drafter(kind: str, folder: str | None, text_only: bool | None = None) -> VideoHead:
    """Of a prompt that is asked about without any. Raises UserError."""
    raise UserError("drafter must be given: there are no trained drafters here")


@dataclass
class Prompt:
    """Prompts that are answered together.

    Args:
        model: the target's.
        inputs: of the processor, for each prompt.
        max_new_tokens: of an answer.
        draft_model: the smaller one, if there is one; loaded, or when it is asked for.
        protected_tokens: special tokens, which nobody may loosen.
        trained_drafter: gives the network of a kind, in a folder or (None) the one that came with the model; its third
            argument says whether the video has rows when drafting (None: as it was trained to).
        lasting: what methods keep from one answer to the next, by keys that begin with their names. Whoever owns it
            closes what is in it.
        repetition_penalty: of `generate`; 1 does nothing.
        source: where the target's weights came from; None: its folder.
    """

    model: Any
    inputs: Sequence[Mapping[str, Tensor]]
    max_new_tokens: int
    draft_model: Any | None = None
    protected_tokens: tuple[int, ...] = ()
    trained_drafter: Callable[..., VideoHead] = no_trained_drafter
    lasting: MutableMapping[Hashable, Any] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    source: LazyModel | None = None

    @cached_property
    def requests(self) -> list[VideoRequest]:
        """The target's; its vision tower has run once."""
        return [prepare_request(self.model, each) for each in self.inputs]

    def check_single(self, name: str) -> None:
        """Refuse several prompts, for a method that decodes one at a time. Raises UserError."""
        if len(self.inputs) > 1:
            raise UserError(f"{name} answers one question at a time, got {len(self.inputs)}; ask one after the other")

    def target(self, num_nodes: int, **options: Any) -> VideoTarget:
        """The large model over the requests, for drafts of so many nodes; options as of `VideoTarget`."""
        return VideoTarget(self.model, self.requests, **options, **self.sizes(num_nodes))

    def sizes(self, num_nodes: int) -> dict[str, Any]:
        """Options of `VideoTarget` for a model that is fed so many nodes at once, or what has waited of a draft."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "max_draft_nodes": max(num_nodes, MOST_WAITING + 2),
            "vocab_size": self.vocab_size,
            "repetition_penalty": self.repetition_penalty,
        }

    def draft_weights(self, drafter: str) -> Any:
        """The model that drafts: the target's own ("self") or the smaller one ("pair").

        Raises:
            UserError: there is no smaller model.
        """
        if drafter == "self":
            return self.model
        source = self.draft_source(drafter)
        return source.load() if isinstance(source, LazyModel) else source

    def draft_source(self, drafter: str) -> Any:
        """What `draft_weights` gives, or a `LazyModel` of it, for whoever loads it elsewhere.

        Raises:
            UserError: there is no smaller model.
        """
        if drafter == "self":
            return self.model if self.source is None else self.source
        if self.draft_model is None:
            raise UserError('draft_model must be given: this method drafts with a smaller model; or set drafter "self"')
        return self.draft_model

    def draft_requests(self, drafter: str) -> tuple[Any, list[VideoRequest]]:
        """The drafter's model and its requests, whole. The target's own weights share what its vision tower made.

        Raises:
            UserError: there is no smaller model.
        """
        model = self.draft_weights(drafter)
        if model is self.model:
            return model, self.requests
        moved = [{name: value.to(model.device) for name, value in each.items()} for each in self.inputs]
        return model, [prepare_request(model, each) for each in moved]

    @property
    def vocab_size(self) -> int:
        """Of the logits that are compared: the shorter one, since models of one family pad theirs differently."""
        models = [self.model] if self.draft_model is None else [self.model, self.draft_model]
        return min(int(model.config.get_text_config().vocab_size) for model in models)
