"""Loading a pipeline of any family: by what its files say, and none of the other families."""

from __future__ import annotations

import ast
from pathlib import Path

import glm_image_models
import pytest
from transformers import GlmImageProcessor

import vargen
from vargen.checkpoints.options import ModelOptions
from vargen.models.description import describe_model
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.loading import load_pipeline, pipeline_class

FAMILIES = ("llamagen", "janus", "glm_image", "emu3")


def imported_at_once(module: str) -> set[str]:
    """Modules of vargen that importing this one imports, by the sources: outside functions and `if TYPE_CHECKING`."""
    found, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        path = Path(vargen.__file__).parents[1].joinpath(*name.split("."))
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if name in found or not file.is_file():
            continue
        found.add(name)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("vargen"):
                waiting += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_no_other_family_is_imported(family):
    assert pipeline_class(family).__module__ == f"vargen.pipelines.{family}"
    imported = imported_at_once("vargen.pipelines.loading") | imported_at_once(f"vargen.pipelines.{family}")
    assert f"vargen.pipelines.{family}" in imported and "vargen.pipelines.base" in imported
    for other in {*FAMILIES} - {family}:
        assert not {
            name for name in imported if name.startswith((f"vargen.pipelines.{other}", f"vargen.models.{other}"))
        }


def test_a_folder_of_glm_image_tells_what_its_pipeline_knows(tmp_path):
    pipe = glm_image_models.make(kind=GlmImageProcessor)
    pipe.vision_language_encoder.float()
    pipe.save_pretrained(tmp_path)
    told = describe_model(tmp_path)
    pipeline, device, dtype = load_pipeline(told, ModelOptions(model=str(tmp_path), device="cpu"))
    assert type(pipeline) is pipeline_class("glm_image") is GlmImagePriorPipeline
    assert (device, dtype, told.image_size, told.grid_size, told.num_tokens) == ("cpu", "float32", 1024, 32, 1280)
    assert pipeline._size(None, None, None) == (told.image_size, told.image_size)
    assert told.resolve_method("scd", None) == pipeline.resolve_method("scd")
