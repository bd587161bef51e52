"""`pipeline.compile()`: every method and family draws by graphs what it draws eagerly.

Graphs run as they are and are captured on tapes, as a GPU would (`taped_graphs`): what they say is exact then. Machine
code is tried in `tests/specdecode/graphs/test_static_step.py`.
"""

import os
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import emu3_models
import family_pipelines
import pytest
import torch
from pipeline_contract import masks
from refusals import refused
from seeds import seeded
from taped_graphs import TapingCompiler
from tiny_pipelines import build_drafting_pipeline

from specdecode.graphs.static_step import StepCompiler
from vargen.methods.catalogue import resolve_method
from vargen.models.draft_sizes import MeasuredDraftSizes
from vargen.pipelines.compilation import check_compiler

PROMPTS = ["a red cube", "two blue spheres left of a green cone"]
BUCKET = 32


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Graphs are kept by function, whoever has them compiled."""
    torch._dynamo.reset()


def draw(pipeline: Any, method: Any, prompts: list[str] = PROMPTS, **arguments: Any) -> Any:
    return pipeline(prompts, generator=seeded(*range(len(prompts))), method=method, output_type="latent", **arguments)


@pytest.fixture(scope="module")
def shallow_pipeline(drafting_pipeline: Any) -> Any:
    """The same with one layer, whose steps are traced sooner."""
    return build_drafting_pipeline(num_layers=1)


METHODS: dict[str, tuple[str, dict[str, Any]]] = {  # a stream is drawn by scd, a chain that is sampled by the last
    "jacobi": ("jacobi", {"window": 4}),
    "jacobi, branches": ("jacobi", {"window": 4, "branches": 2}),
    "gsd": ("gsd", {"window": 4}),
    "draft-model": ("draft-model", {"draft_length": 2}),
    "eagle": ("eagle", {"total_tokens": 8, "depth": 3, "tree_top_k": 3}),
    "lantern": ("lantern", {"total_tokens": 5, "depth": 2, "tree_top_k": 3}),
    "vvs": ("vvs", {"total_tokens": 5, "depth": 2, "tree_top_k": 3}),
    "vvs-jacobi": ("vvs-jacobi", {}),
    "vvs-jacobi, corrected": ("vvs-jacobi", {"corrected_by": "head"}),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_draws_what_eager_steps_draw(shallow_pipeline, monkeypatch, name):
    """One graph, or two where skips are due at some steps alone. It is captured once, also for prompts of another
    length, other seeds and scales in the next batch. A step costs the host a replay, now and then a look at how far
    rows are, and where skips are due at some steps a copy of which rows."""
    method, compiler = resolve_method(*METHODS[name]), TapingCompiler(64)
    prompts = PROMPTS[1:] if name == "eagle" else PROMPTS * 2
    shorter = PROMPTS[:1] * len(prompts)
    sampling = {"temperature": 0.0} if name in ("jacobi", "lantern") else {"top_k": 12, "top_p": 0.95}

    def drawn() -> list[Any]:
        batches = []
        for rows, scale, counting in ((prompts, 3.0, nullcontext()), (shorter, 4.5, compiler.launches)):
            with counting:
                batches.append(draw(shallow_pipeline, method, rows, guidance_scale=scale, **sampling))
        return batches

    eager = drawn()
    monkeypatch.setattr(shallow_pipeline.reuse, "compiler", compiler)
    compiled = drawn()
    for one, other in zip(eager, compiled, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.trace.target_passes == other.trace.target_passes
        assert one.trace.token_origins == other.trace.token_origins
    graphs = 2 if name == "vvs" else 1
    assert compiler.counted.graphs == len(compiler.tapes) == graphs and not compiler.counted.faults
    steps = sum(each.trace.target_passes - 1 for each in compiled)
    assert compiler.replays >= steps - 2 - 4 * graphs, "but for the first steps of a batch, and those to capture"
    assert len(compiler.by_step) > 2 and min(compiler.by_step) == 1 and max(compiler.by_step) <= 1 + graphs
    assert not compiler.freed(), "what a captured graph reads stays when its run has ended"


@pytest.mark.parametrize("is_edit", [False, True])
def test_a_stream_replaces_rows(shallow_pipeline, monkeypatch, is_edit):
    method, compiler = resolve_method("scd", {"window": 4}), TapingCompiler(64)
    arguments = {"method": method, "batch_size": 2, "output_type": "latent"}
    if is_edit:
        shown = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        arguments |= {"image": shown, "mask_image": masks(4, 4, 2) * 2}

    def drawn() -> list[Any]:
        pictures = shallow_pipeline.stream(PROMPTS * 3, generator=seeded(*range(6)), **arguments)
        return [each.tokens for each in sorted(pictures, key=lambda each: each.index)]

    eager = drawn()
    monkeypatch.setattr(shallow_pipeline.reuse, "compiler", compiler)
    assert all(map(torch.equal, eager, drawn()))
    assert len(compiler.tapes) == 1 and not compiler.counted.faults


@pytest.mark.usefixtures("own_kernels")
def test_what_our_own_kernels_serve_is_not_compiled(tiny_pipeline):
    told: list[Any] = []
    eager = draw(tiny_pipeline, "ar").tokens
    tiny_pipeline.compile("eager", BUCKET, lambda *what: told.append(what))
    assert torch.equal(draw(tiny_pipeline, "ar").tokens, eager) and not told
    with tiny_pipeline.transformer.transformer_blocks[0].ff.register_forward_hook(lambda *_: None):
        draw(tiny_pipeline, "ar")
    assert [most for most, _ in told] == [1], "a hook is obeyed, so the kernels do not serve"


@pytest.mark.usefixtures("own_kernels")
def test_what_is_not_compiled_drafts_what_seconds_say(tiny_pipeline, monkeypatch):
    sizes, sizer = [], MeasuredDraftSizes.sizer
    monkeypatch.setattr(MeasuredDraftSizes, "sizer", lambda *given: sizes.append(given[-1]) or sizer(*given))
    monkeypatch.setattr(StepCompiler, "step_of", lambda self, run: run.step)  # how it steps does not matter here
    tiny_pipeline.compile("eager", BUCKET)
    draw(tiny_pipeline, "jacobi")
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    draw(tiny_pipeline, "jacobi")
    assert sizes == [None, 1]


FAMILIES: dict[str, tuple[list[float], dict[str, Any]]] = {
    "janus": ([3.0, 4.0], {}),
    "emu3": ([3.0, 4.0], {"negative_prompt": emu3_models.AWAY, **emu3_models.SIZE}),
    "lumina_mgpt_2": ([5.0, 6.0], {"height": [16, 32, 32], "width": [32, 16, 32]}),
    "glm_image": ([], family_pipelines.SIZES["glm_image"]),
}
"""Scales of two batches and other arguments of a call; the third has a scale that decays, and several sizes."""


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers(family):
    """Prompts of different lengths; the second batch has others, and takes over the cache of the first."""
    pipeline, (scales, arguments) = family_pipelines.build(family, num_layers=1), FAMILIES[family]
    prompts, given = emu3_models.PROMPTS, [{"guidance_scale": scale} for scale in scales] or [{}, {}]

    method = resolve_method("jacobi", {"window": 3})

    def drawn() -> list[Any]:
        batches = zip((prompts, prompts[::-1]), given, strict=True)
        return [draw(pipeline, method, rows, **each, **arguments) for rows, each in batches]

    eager = drawn()
    pipeline.reuse.compiler = compiler = TapingCompiler(64)
    for one, other in zip(eager, drawn(), strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.trace.target_passes == other.trace.target_passes
    assert compiler.counted.graphs == len(compiler.tapes) == 1 and not compiler.counted.faults


def test_what_cannot_be_compiled_is_refused(tiny_pipeline, monkeypatch, tmp_path):
    refused(r"compile: backend must be one of .*eager.*, got 'fast'", tiny_pipeline.compile, "fast")
    refused("compile_bucket must be at least 2 slots, got 1", tiny_pipeline.compile, "eager", 1)
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with monkeypatch.context() as nowhere:
        none = Mock(side_effect=RuntimeError("No working C++ compiler found"))  # as torch's own
        nowhere.setattr("torch._inductor.cpp_builder.get_cpp_compiler", none)
        refused(r"compile needs a C\+\+ compiler, and there is none; install", check_compiler, torch.device("cpu"))
    refused("compile needs Triton on a GPU", check_compiler, torch.device("cuda"))


def test_compiled_code_is_kept_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    check_compiler(torch.device("cpu"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    check_compiler(torch.device("cpu"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    check_compiler(torch.device("cpu"))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"
