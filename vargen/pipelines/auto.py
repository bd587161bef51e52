"""`AutoPicturePipeline`: a pipeline of whatever family a folder or a name on the hub holds.

Belongs here: from a name to a pipeline as users of the library load one. Does not belong here: options of commands
(`vargen.pipelines.loading`), and what a family reads.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.models.description import describe_model
from vargen.models.source import SETTINGS, find_files
from vargen.models.transformers_folder import refuse_remote_code
from vargen.pipelines.loading import pipeline_class

if TYPE_CHECKING:
    from vargen.pipelines.base import PicturePipeline


class AutoPicturePipeline:
    """Loads the pipeline that fits a model, as `AutoPipelineForText2Image` of diffusers does."""

    def __init__(self) -> None:
        raise UserError(
            "AutoPicturePipeline makes no objects; call AutoPicturePipeline.from_pretrained(NAME_OR_FOLDER)"
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        **kwargs: Any,
    ) -> PicturePipeline:
        """Load a pipeline of any family.

        Args:
            pretrained_model_name_or_path: a folder, in the layout of diffusers or of transformers; a name on the hub,
                such as "deepseek-community/Janus-Pro-1B"; or that of a shipped model. None: the shipped default.
            revision: branch, tag or commit on the hub; None: the main one.
            **kwargs: for `from_pretrained` of the pipeline that is found, such as dtype, device_map and `family`.

        Raises:
            UserError: there is no such model, or no pipeline for it; or code of a repository is to be run.
        """
        refuse_remote_code(kwargs)  # before anything is fetched
        name = pretrained_model_name_or_path
        model = describe_model(find_files(name, revision, SETTINGS), name, kwargs.get("family"))
        pipeline: PicturePipeline = pipeline_class(model.family).from_pretrained(find_files(name, revision), **kwargs)
        return pipeline
