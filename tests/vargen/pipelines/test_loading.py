"""Loading a pipeline of any family: by what its files say, and none of the other families."""

from __future__ import annotations

import ast
from pathlib import Path

import emu3_models
import glm_image_models
import pytest

import vargen
from vargen.checkpoints.options import ModelOptions
from vargen.models.description import describe_model
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


@pytest.mark.parametrize(
    ("models", "family", "sizes", "usual"),
    [(glm_image_models, "glm_image", (1024, 32, 1280), None), (emu3_models, "emu3", (720, 90, 90 * 91 - 1), 3.0)],
)
def test_a_folder_tells_what_its_pipeline_knows(models, family, sizes, usual, tmp_path):
    told = describe_model(models.save(tmp_path))
    pipeline, device, dtype = load_pipeline(told, ModelOptions(model=str(tmp_path), device="cpu"))
    assert type(pipeline) is pipeline_class(family) and pipeline.processor is not None
    assert (device, dtype) == ("cpu", "float32") and (told.image_size, told.grid_size, told.num_tokens) == sizes
    assert told.resolve_method("scd", None) == pipeline.resolve_method("scd")
    assert (told.guidance_scale, told.top_k) == (usual, 50)
    if family == "emu3":
        assert pipeline.grid() == (told.grid_size, told.grid_size)
        assert [*told.beside_grid] == (pipeline.vocabulary.forced_tokens(90, 90, "cpu") >= 0).nonzero()[:, 0].tolist()
    else:
        assert pipeline._size(None, None, None) == (told.image_size, told.image_size)
