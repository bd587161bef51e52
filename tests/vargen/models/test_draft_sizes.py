"""Measured draft sizes: costs are kept in memory and in a file that can do no harm, and what was learned is used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from refusals import refused

from specdecode.drafters.draft_size import NO_DRAFT, AdaptiveDraftSize, DraftSize, FixedDraftSize, StepCosts
from specdecode.kernels import build
from vargen.base.resources import cache_folder
from vargen.models.draft_sizes import MeasuredDraftSizes
from vargen.models.llamagen.llamagen_components import LlamaGenComponents
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.reuse import Reuse
from vargen.pipelines.llamagen import LlamaGenPipeline

SIZES = [DraftSize(3, 2), DraftSize(12, 3)]
NO_FACTORS = b'{"nodes": [1], "target_seconds": [1], "drafting_step_seconds": 0, "overhead_seconds": 0, "factors": 0}'
Ask = Callable[..., Any]


@pytest.fixture
def ask(tiny_pipeline: LlamaGenPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks some memory for a sizer, with the tiny model as what is measured; `ask.probed` counts measurements."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    embeds, mask = tiny_pipeline.encode_prompt(["a red cube", "two cones"])
    kept = Reuse()
    components = LlamaGenComponents(tiny_pipeline.transformer, None, None, None, embeds.device, kept)
    target: LlamaGenTarget = components.start({"caption_embeds": embeds}, mask, 3.0, 12)

    def asked(memory: MeasuredDraftSizes, sizes: Any = SIZES, most_sizes: int | None = None, **geometry: Any) -> Any:
        geometry = {"device": "a GPU", "rows": 4, **geometry}

        def probe(most_nodes: int) -> LlamaGenTarget:
            asked.probed.append(most_nodes)  # type: ignore[attr-defined]
            return target.half_way(most_nodes)

        return memory.sizer(sizes, geometry, probe, lambda: None, 0.4, most_sizes)

    asked.probed = []  # type: ignore[attr-defined]
    return asked


def test_one_size_is_fixed_and_nothing_is_measured(ask):
    assert ask(MeasuredDraftSizes(), SIZES[:1]) == FixedDraftSize(SIZES[0])
    assert not ask.probed and not cache_folder().exists()


def test_costs_are_measured_once_and_kept_in_a_file(ask):
    memory = MeasuredDraftSizes()
    sizer = ask(memory, rows=2)
    assert isinstance(sizer, AdaptiveDraftSize) and sizer.costs.nodes == (1, 3, 12)
    assert all(seconds > 0 for seconds in sizer.costs.target_seconds)
    assert len(list((cache_folder() / "step_costs").glob("*.json"))) == 1
    assert ask(memory, rows=2) is sizer, "what one batch taught serves the next"
    again = ask(MeasuredDraftSizes(), rows=2)
    assert again is not sizer and again.costs == sizer.costs and ask.probed == [12]
    ask(memory, rows=4)
    assert ask.probed == [12, 12], "another geometry costs differently"


def test_on_a_cpu_no_pass_is_made_to_measure_and_steps_correct_the_file(ask, monkeypatch):
    """A busy hour left a file in which wide passes look cheap; two processes correct it at once."""
    now, real = [0.0], StepCosts((1, 12), (1.0, 12.0), 0.1)
    monkeypatch.setattr(MeasuredDraftSizes, "clock", staticmethod(lambda: now[0]))
    sizes = [NO_DRAFT, *SIZES]
    sizers = [ask(MeasuredDraftSizes(), sizes, device="cpu") for _ in range(2)]
    assert not ask.probed and not cache_folder().exists(), "an assumption need not be kept"
    sizers[0]._keep({NO_DRAFT: 1.0, SIZES[0]: 0.3, SIZES[1]: 0.01})
    sizers = [ask(MeasuredDraftSizes(), sizes, device="cpu") for _ in range(2)]
    assert [sizer.choose() for sizer in sizers] == [SIZES[1]] * 2
    for _ in range(100):
        for sizer in sizers:
            size = sizer.choose()
            now[0] += real.step(size)
            sizer.observe(size, torch.tensor([min(size.depth, 1)]), torch.tensor([True]))
    assert [sizer._best() for sizer in sizers] == [NO_DRAFT] * 2
    assert ask(MeasuredDraftSizes(), sizes, device="cpu").choose() == NO_DRAFT, "the next process knows it at once"
    assert len([*(cache_folder() / "step_costs").iterdir()]) == 1 and not ask.probed


COSTS = b'{"nodes": [1, 3], "target_seconds": [%s], "drafting_step_seconds": %s, "overhead_seconds": 0, "factors": %s}'
DAMAGED = [
    *(b"", b"{}", b'{"nodes": [2, 1], "target_seconds": [1, 1]}', b"\xff", b"[1]", NO_FACTORS, b"[" * 100_000),
    *(COSTS % (seconds, b"0", b"[]") for seconds in (b"1, NaN", b"1, 1e999", b"-1, 1", b"0, 1", b"1" * 4000 + b", 1")),
    *(COSTS % (b"1, 2", *each) for each in ((b"-1", b"[]"), (b"0", b"[[3, 2, 0]]"), (b"0", b"[[3, 2, 1e999]]"))),
    (COSTS % (b"1, 2", b"0", b"[]")).replace(b"[1, 3]", b"[1, Infinity]"),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_measured_anew(ask, content):
    ask(MeasuredDraftSizes())
    (path,) = (cache_folder() / "step_costs").glob("*.json")
    good = path.read_bytes()
    path.write_bytes(content)
    assert ask(MeasuredDraftSizes()).costs.nodes == (1, 3, 12)
    assert path.read_bytes() != content and path.read_bytes()[:20] == good[:20]


def test_graphs_have_few_widths_and_of_many_sizes_powers_of_two_are_timed(ask):
    assert ask(MeasuredDraftSizes(), most_sizes=1) == FixedDraftSize(SIZES[1]) and not ask.probed
    many = [DraftSize(1 + depth, depth) for depth in range(1, 8)]
    assert ask(MeasuredDraftSizes(), many, most_sizes=3).candidates == (many[0], many[3], many[6])
    many = [DraftSize(nodes, 2) for nodes in range(3, 11)]
    assert ask(MeasuredDraftSizes(), many).costs.nodes == (1, 2, 4, 8, 10)


def test_an_unwritable_place_does_no_harm(ask, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "file" / "below"))
    assert ask(MeasuredDraftSizes()).costs.nodes == (1, 3, 12)


def test_the_place_follows_the_environment(monkeypatch):
    monkeypatch.delenv("VARGEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/vargen")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "vargen"


def test_without_a_home_costs_are_measured_and_torch_does_the_work(ask, monkeypatch):
    for name in ("VARGEN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "of nobody")  # what is loaded is remembered by it
    monkeypatch.setenv("VARGEN_KERNELS", "auto")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.warns(RuntimeWarning, match=r"there is no home directory; set VARGEN_CACHE to a folder\. PyTorch"):
        assert ask(MeasuredDraftSizes()).costs.nodes == (1, 3, 12) and build.library() is None
    refused("there is no home directory; set VARGEN_CACHE to a folder", cache_folder)


def test_processes_of_a_split_model_take_the_costs_of_the_first(ask, monkeypatch):
    def broadcast(shared: list[Any]) -> None:
        shared[0] = replace(shared[0], overhead_seconds=7.0)

    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    assert ask(MeasuredDraftSizes(), processes=2).costs.overhead_seconds == 7.0
    ask(MeasuredDraftSizes(), processes=2)
    assert len(ask.probed) == 2, "no file, which another process might lack"
