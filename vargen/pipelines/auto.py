"""`AutoPicturePipeline`: a pipeline of whatever family a folder or a name on the hub holds.

Belongs here: from a name to a pipeline as users of the library load one. Does not belong here: options of commands
(`vargen.pipelines.loading`), and the files of a family.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.checkpoints.source import SETTINGS, find_files
from vargen.checkpoints.transformers_folder import refuse_remote_code
from vargen.models.description import describe_model
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
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> PicturePipeline:
        """Load a pipeline of any family.

        Args:
            pretrained_model_name_or_path: a folder, in the layout of diffusers or of transformers; a name on the hub,
                such as "deepseek-community/Janus-Pro-1B"; or that of a shipped model. None: the shipped default.
            revision: branch, tag or commit on the hub; None: the main one.
            token: of the hub; None: the one that `hf auth login` kept.
            cache_dir: where files of the hub lie; None: the hub's own cache.
            local_files_only: take what was fetched, and ask for nothing.
            **kwargs: for `from_pretrained` of the pipeline that is found, such as dtype, device_map and `family`.

        Raises:
            UserError: there is no such model, or no pipeline for it; or code of a repository is to be run.
        """
        refuse_remote_code(kwargs)  # before anything is fetched
        name = pretrained_model_name_or_path
        hub: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        model = describe_model(find_files(name, revision, SETTINGS, **hub), name, kwargs.get("family"))
        folder = find_files(name, revision, **hub)
        pipeline: PicturePipeline = pipeline_class(model.family).from_pretrained(folder, **kwargs)
        return pipeline
