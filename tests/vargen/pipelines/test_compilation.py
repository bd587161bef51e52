"""`pipeline.compile()`: every family draws with compiled passes what it draws eagerly, of one graph a width.

The captured graphs run as they are (backend "eager"): what they say is exact then. Machine code is tried in
`tests/specdecode/test_compilation.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import emu3_models
import glm_image_models
import janus_models
import pytest
import token_image_models
import torch
from tiny_pipelines import build_drafting_pipeline

from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.compilation import COMPILED, check_compiler
from vargen.pipelines.components.draft_sizes import MeasuredDraftSizes
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline
from vargen.pipelines.token_images import TokenImagePipeline

PROMPTS = ["a red cube", "two blue spheres left of a green cone"]
BUCKET = 32


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Graphs are kept by function, whoever has them compiled."""
    torch._dynamo.reset()


def generators(seeds: range = range(2)) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def draw(pipeline: Any, method: Any, prompts: list[str] = PROMPTS, **arguments: Any) -> Any:
    return pipeline(
        prompts, generator=generators(range(len(prompts))), method=method, output_type="latent", **arguments
    )


def test_llamagen_by_every_kind_of_draft(tiny_pipeline: Any) -> None:
    methods = {
        "ar": "ar",
        "window": resolve_method("jacobi", {"window": 4}),
        "drawn": resolve_method("scd", {"window": 4}),
    }
    eager = {name: draw(tiny_pipeline, method).tokens for name, method in methods.items()}
    told: list[Any] = []
    tiny_pipeline.compile("eager", BUCKET, lambda *what: told.append(what))
    for name, method in methods.items():
        output = draw(tiny_pipeline, method)
        assert torch.equal(output.tokens, eager[name]), name
    assert [(name, width) for name, width, _ in told] == [("target", 1), ("target", 5)]
    assert COMPILED not in output.trace.phase_seconds  # all was there
    greedy = {"temperature": 0.0, "guidance_scale": 4.5}
    compiled = draw(tiny_pipeline, "ar", PROMPTS[::-1], **greedy)
    assert len(told) == 2, "another scale, other prompts, greedy"
    assert compiled.trace.phase_seconds["decode"] > 0
    tiny_pipeline.compile(None)
    assert torch.equal(draw(tiny_pipeline, "ar", PROMPTS[::-1], **greedy).tokens, compiled.tokens)
    assert len(told) == 2


HEADS = {
    "chain": ("eagle", {"tree": [[0], [0, 0]], "depth": 2, "children": "sampled"}),
    "tree": ("eagle", {"total_tokens": 8, "depth": 3, "tree_top_k": 3}),
    "skipping": ("likeness-quality", {}),
    "smaller model": ("draft-model", {"draft_length": 3}),
}


@pytest.fixture(scope="module")
def shallow_pipeline() -> Any:
    """Of one layer: every layer is captured for every width."""
    return build_drafting_pipeline(num_layers=1)


@pytest.mark.parametrize("kind", HEADS)
def test_what_drafts_is_compiled_too(shallow_pipeline: Any, kind: str) -> None:
    """Once for all prompts, batches of a size and scales; tokens stay, and so does the number of passes."""
    method = resolve_method(*HEADS[kind])

    def drawn() -> list[Any]:
        rows, scales = (PROMPTS, PROMPTS[::-1]), (3.0, 4.5)
        return [draw(shallow_pipeline, method, each, guidance_scale=scale) for each in rows for scale in scales]

    eager = drawn()
    told: list[str] = []
    shallow_pipeline.compile("eager", BUCKET, lambda name, *_: told.append(name))
    try:
        compiled = drawn()
        assert set(told) == {"target"} if kind == "smaller model" else {"target", "drafter"}
        graphs = len(told)
        drawn()
        assert len(told) == graphs
    finally:
        shallow_pipeline.compile(None)
    for one, other in zip(eager, compiled, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.trace.target_passes == other.trace.target_passes


@pytest.mark.usefixtures("own_kernels")
def test_what_our_own_kernels_serve_is_not_compiled(tiny_pipeline: Any) -> None:
    told: list[Any] = []
    eager = draw(tiny_pipeline, "ar").tokens
    tiny_pipeline.compile("eager", BUCKET, lambda *what: told.append(what))
    assert torch.equal(draw(tiny_pipeline, "ar").tokens, eager) and not told
    with tiny_pipeline.transformer.transformer_blocks[0].ff.register_forward_hook(lambda *_: None):
        draw(tiny_pipeline, "ar")
    assert [width for _, width, _ in told] == [1], "a hook is obeyed, so the kernels do not serve"


@pytest.mark.usefixtures("own_kernels")
def test_what_is_not_compiled_drafts_what_seconds_say(tiny_pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool] = []

    def noted(*arguments: Any) -> Any:
        compiled.append(arguments[-1])
        return sizer(*arguments)

    sizer = MeasuredDraftSizes.sizer
    monkeypatch.setattr(MeasuredDraftSizes, "sizer", noted)
    tiny_pipeline.compile("eager", BUCKET)
    draw(tiny_pipeline, "jacobi")
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    draw(tiny_pipeline, "jacobi")
    assert compiled == [False, True]


def test_compiling_is_a_phase_of_its_own(tiny_pipeline: Any) -> None:
    tiny_pipeline.compile("eager", BUCKET)
    first, second = (draw(tiny_pipeline, "ar", guidance_scale=1.0).trace.phase_seconds for _ in range(2))
    assert first[COMPILED] > 5 * first["decode"] and COMPILED not in second


def _janus() -> tuple[Any, dict[str, Any]]:
    return JanusPipeline(janus_models.make(num_layers=1), janus_models.processor()), {"prompt": janus_models.PROMPTS}


def _emu3() -> tuple[Any, dict[str, Any]]:
    pipeline = Emu3Pipeline(emu3_models.make(), emu3_models.processor())
    return pipeline, {"prompt": emu3_models.PROMPTS, "negative_prompt": emu3_models.AWAY, **emu3_models.SIZE}


def _glm_image() -> tuple[Any, dict[str, Any]]:
    pipe = glm_image_models.make()
    glm_image_models.mend(pipe)
    size = {"height": glm_image_models.HEIGHT, "width": glm_image_models.WIDTH}
    return GlmImagePriorPipeline.from_pipe(pipe), {"prompt": glm_image_models.PROMPTS, **size}


def _lumina_mgpt_2() -> tuple[Any, dict[str, Any]]:
    """With a scale that decays."""
    family = token_image_models.tiny_family("lumina_mgpt_2")
    family = replace(family, guidance=replace(family.guidance, least=1.5))
    model, tokenizer = token_image_models.tiny_model(family), token_image_models.tiny_tokenizer(family)
    pipeline = TokenImagePipeline(model, tokenizer, family=family)
    return pipeline, {"prompt": token_image_models.PROMPTS, "height": 32, "width": 32}


FAMILIES: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "janus": _janus,
    "emu3": _emu3,
    "lumina_mgpt_2": _lumina_mgpt_2,
    "glm_image": _glm_image,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(family: str) -> None:
    """Prompts of different lengths; the second batch has others, and takes over the cache of the first."""
    pipeline, arguments = FAMILIES[family]()
    pipeline.set_progress_bar_config(disable=True)
    prompts = arguments.pop("prompt")
    scales = [{}] if family == "glm_image" else [{"guidance_scale": 3.0}, {"guidance_scale": 4.0}]

    def drawn() -> list[Any]:
        return [
            draw(pipeline, method, rows, **each, **arguments)
            for method in ("ar", resolve_method("jacobi", {"window": 3}))
            for rows, each in zip((prompts, prompts[::-1]), scales * 2, strict=False)
        ]

    eager = drawn()
    told: list[Any] = []
    pipeline.compile("eager", 64, lambda *what: told.append(what))
    for one, other in zip(eager, drawn(), strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.trace.target_passes == other.trace.target_passes
    assert [width for _, width, _ in told] == [1, 4]


def test_what_cannot_be_compiled_is_refused(
    tiny_pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"compile: backend must be one of .*eager.*, got 'fast'"):
        tiny_pipeline.compile("fast")
    with pytest.raises(UserError, match="compile_bucket must be at least 2 slots, got 1"):
        tiny_pipeline.compile("eager", 1)
    tiny_pipeline.compile("eager", 4)
    with pytest.raises(UserError, match="compile_bucket must be at least the 9 tokens of a draft, got 4; give a"):
        draw(tiny_pipeline, resolve_method("jacobi", {"window": 8}))
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with monkeypatch.context() as nowhere:
        nowhere.setattr("torch._inductor.cpp_builder.get_cpp_compiler", _no_compiler)
        with pytest.raises(UserError, match=r"compile needs a C\+\+ compiler, and there is none; install"):
            check_compiler(torch.device("cpu"))
    with pytest.raises(UserError, match="compile needs Triton on a GPU"):
        check_compiler(torch.device("cuda"))


def _no_compiler() -> str:
    raise RuntimeError("No working C++ compiler found")  # as torch's own


def test_compiled_code_is_kept_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    check_compiler(torch.device("cpu"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    check_compiler(torch.device("cpu"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    check_compiler(torch.device("cpu"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
