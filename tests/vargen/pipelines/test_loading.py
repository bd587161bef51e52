"""Loading a pipeline of any family: by what its files say, and none of the other families."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import glm_image_models
import pytest
from transformers import GlmImageProcessor

from vargen.models.description import describe_model
from vargen.models.options import ModelOptions
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.loading import load_pipeline, pipeline_class

FAMILIES = ("llamagen", "janus", "glm_image")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_other_family_is_imported(family: str) -> None:
    script = (
        "import sys; from vargen.pipelines.loading import pipeline_class; "
        f"pipeline_class({family!r}); print(*(name for name in sys.modules if name.startswith('vargen.')))"
    )
    imported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    found = {other for other in FAMILIES if any(name.startswith(f"vargen.pipelines.{other}") for name in imported)}
    assert found == {family}


def test_a_folder_of_glm_image_tells_what_its_pipeline_knows(tmp_path: Path) -> None:
    pipe = glm_image_models.make(kind=GlmImageProcessor)
    pipe.vision_language_encoder.float()
    pipe.save_pretrained(tmp_path)
    told = describe_model(tmp_path)
    pipeline, device, dtype = load_pipeline(told, ModelOptions(model=str(tmp_path), device="cpu"))
    assert type(pipeline) is pipeline_class("glm_image") is GlmImagePriorPipeline
    assert (device, dtype, told.image_size, told.grid_size, told.num_tokens) == ("cpu", "float32", 1024, 32, 1280)
    assert pipeline._size(None, None, None) == (told.image_size, told.image_size)
    assert told.resolve_method("scd", None) == pipeline.resolve_method("scd")
