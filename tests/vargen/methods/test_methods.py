"""Methods through the pipeline and the command line: exact ones repeat plain decoding, bad settings are one line."""

import json
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from refusals import refused
from seeds import seeded

from specdecode.roles import TargetOutput
from vargen.cli import main
from vargen.drafters.eagle_head import EagleHead
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import find_presets, methods_for, resolve_method
from vargen.methods.jacobi import JacobiConfig
from vargen.methods.trees import FIXED_TREES
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]


def make(pipeline: LlamaGenPipeline, method: str | MethodConfig, rows: list[int], **kwargs: Any) -> Any:
    return pipeline(
        [PROMPTS[row] for row in rows], generator=seeded(*(100 + row for row in rows)),
        method=method, output_type="latent", **kwargs,
    )  # fmt: skip


FED = [
    ("ar", {}),
    ("vvs-jacobi", {"window": 5, "threshold": 0.2}),
    ("vvs", {"tree": [[0], [1], [0, 0]], "children": "sampled", "schedule": "likeness", "threshold": 0.2}),
    ("jacobi", {"window": 5}),
    ("zipar", {"window": 2}),
    ("vvs-rows", {"opens_after": 2, "guesses": 1, "max_visits": 2}),
]


@pytest.mark.parametrize("kernels", ["product_kernels", "torch"])
@pytest.mark.parametrize(("name", "options"), FED, ids=str)
def test_rows_fed_are_those_that_the_target_was_given(drafting_pipeline, monkeypatch, request, name, options, kernels):
    """In a batch whose rows accept other numbers of tokens, with padding; passes likewise."""
    if kernels != "torch":
        request.getfixturevalue(kernels)
    given: list[int] = []

    def counted(forward: Callable[..., TargetOutput]) -> Callable[..., TargetOutput]:
        return lambda target, tokens, *others: given.append(tokens.numel()) or forward(target, tokens, *others)

    for form in ("forward", "forward_places"):
        monkeypatch.setattr(LlamaGenTarget, form, counted(getattr(LlamaGenTarget, form)))
    trace = make(drafting_pipeline, resolve_method(name, options), [0, 1, 2]).trace
    assert sum(trace.rows_fed) + trace.padding_fed == sum(given) and trace.target_passes == 1 + len(given)
    assert (trace.padding_fed > 0) == (name not in ("ar", "zipar"))


# Coupled drafts and likely tokens: the picture is plain decoding's. Sampled drafts only keep the distribution.
SAME_DRAWS = [
    ("eagle", {}),
    ("eagle", {"total_tokens": 12, "depth": 3, "tree_top_k": 4}),
    ("eagle", {"tree": "mc_sim_7b_63"}),
    ("eagle", {"tree": [[0], [1], [0, 0]]}),
    ("eagle", {"tree": [[0], [1], [0, 0]], "children": "top"}),
    ("lantern", {"delta": 0.0, "total_tokens": 12, "depth": 3}),
    ("lantern", {"multiplier": 1.0, "tree": "mc_sim_7b_63_balanced"}),
    ("draft-model", {"draft_length": 3}),
    ("draft-model", {}),
    ("jacobi", {}),
    ("jacobi", {"window": 5, "corrected_by": "head"}),
    ("jacobi", {"corrected_by": "draft_model"}),
    ("jacobi", {"window": 5, "branches": 3, "branch_depth": 2, "corrected_by": "head"}),
    ("jacobi", {"window": 5, "branches": 4, "branch_depth": 2, "initial_guess": "random"}),
]


@pytest.mark.parametrize("call", [{}, {"temperature": 2.0, "top_k": 9, "guidance_scale": 1.0}, {"top_p": 0.8}], ids=str)
@pytest.mark.parametrize(("name", "options"), SAME_DRAWS, ids=str)
def test_coupled_drafts_and_likely_tokens_change_no_picture(drafting_pipeline, name, options, call):
    plain = make(drafting_pipeline, "ar", [0, 1, 2], **call)
    fast = make(drafting_pipeline, resolve_method(name, options), [0, 1, 2], **call)
    assert torch.equal(plain.tokens, fast.tokens)
    assert fast.trace.tokens == 3 * 16


EXACT = [(config.name, {}) for config in methods_for("image").values() if config.exact] + [
    ("eagle", {"tree": "mc_sim_7b_63", "children": "sampled"}),
    ("sjd", {"window": 5, "initial_guess": "repeat"}),
    ("scd", {"window": 5, "coupling": "maximal"}),
    ("scd", {"window": 5, "branches": 3}),
    ("scd", {"window": 5, "corrected_by": "head", "branches": 2}),
    ("sjd", {"window": 5, "keep_overlap": 0.8, "branches": 2, "branch_depth": 1}),
    ("gsd", {"window": 5, "group_size": 1}),
    ("coolsd", {"draft_length": 3, "delta": 1.0, "decay": 0.0}),
    ("lantern", {"delta": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), EXACT, ids=str)
def test_greedy_pictures_of_exact_methods_are_those_of_plain_decoding(drafting_pipeline, name, options):
    plain = make(drafting_pipeline, "ar", [0, 1, 2], temperature=0.0)
    fast = make(drafting_pipeline, resolve_method(name, options), [0, 1, 2], temperature=0.0)
    assert torch.equal(plain.tokens, fast.tokens)


@pytest.mark.parametrize("config", methods_for("image").values(), ids=lambda config: config.name)
def test_every_method_fills_the_picture_and_counts_honestly(drafting_pipeline, config):
    output = make(drafting_pipeline, config.name, [0, 1])
    assert output.tokens.shape == (2, 16)
    assert output.trace.row_tokens == [16, 16]
    assert output.trace.target_passes <= 16
    assert make(drafting_pipeline, config.name, [0], guidance_scale=1.0).trace.row_tokens == [16]


def test_class_conditional_models_can_be_drafted_for(drafting_pipeline, tiny_class_model_folder):
    base = LlamaGenPipeline.from_pretrained(tiny_class_model_folder)
    base.drafter = drafting_pipeline.drafter
    method = resolve_method("eagle", {"total_tokens": 10, "depth": 3})
    outputs = [base(class_labels=[1, 2], generator=seeded(1, 2), method=m).tokens for m in ("ar", method)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("beagle", {}, "method 'beagle' is not known for pictures (did you mean 'eagle'?); choose one of: ar, eagle"),
        ("zebra", {}, "method 'zebra' is not known for pictures; choose one of: ar, eagle"),
        ("eagle", {"tree_width": 3}, "no option 'tree_width'; it has: drafter, tree"),
        ("eagle", {"dept": 3}, "no option 'dept' (did you mean 'depth'?); it has: drafter, tree"),
        ("ar", {"depth": 3}, "none at all"),
        ("eagle", {"tree": [[1]]}, "eagle.tree: tree lists"),
        ("eagle", {"tree": [[0.5]]}, "eagle.tree must be one of dynamic"),
        ("eagle", {"total_tokens": 4, "depth": 4}, "eagle.depth must be below total_tokens"),
        ("eagle", {"depth": 16}, "eagle.depth must leave room in a picture of 16 tokens: at most 15"),
        ("eagle", {"tree": "mc_sim_7b_63", "depth": 6}, "eagle.depth must be at most 5"),
        ("eagle", {"tree_top_k": 30}, "wider than the vocabulary of 24"),
        ("eagle", {"children": "sampled"}, "sampled children need a fixed tree"),
        ("eagle", {"drafter": "nowhere"}, "nowhere is not a folder"),
        ("sjd", {"window": 16}, "sjd.window must leave room in a picture of 16 tokens: at most 15"),
        ("jacobi", {"keep_overlap": 0.5}, "no option 'keep_overlap'; it has: window, initial_guess, corrected_by"),
        ("sjd", {"corrected_by": "head"}, 'corrected windows need coupling "target" or "gumbel"'),
        ("vvs-jacobi", {"corrected_by": "head", "survival": 0.5}, "vvs-jacobi: corrected windows need coupling"),
        ("sjd", {"branches": 25}, "branches must lie between 2 and the vocabulary's 24"),
        ("lantern", {"num_neighbours": 24}, "23"),
        ("vvs", {"children": "coupled"}, 'vvs.children must be "top" or "sampled": the bound of relaxed acceptance'),
        ("vvs", {"choice": "confidence", "tree": "mc_sim_7b_63"}, "vvs.choice"),
        ("vvs", {"schedule": "likeness", "threshold": -0.5}, "vvs.threshold must be at least 0, got -0.5"),
        ("vvs", {"schedule": "likeness", "tree": "mc_sim_7b_63"}, 'vvs.schedule: "likeness" needs tree "dynamic" or'),
        ("vvs", {"choice": "drafter", "tree": "mc_sim_7b_63"}, 'vvs.choice: "drafter" needs tree "dynamic" or'),
        ("draft-model", {"draft_model": "nowhere"}, "nowhere is not a folder"),
    ],
)
def test_settings_that_cannot_be_used_are_named(drafting_pipeline, name, options, message):
    refused(re.escape(message), lambda: make(drafting_pipeline, resolve_method(name, options), [0]))


def test_methods_that_need_what_a_model_lacks_say_so(tiny_pipeline):
    for name in ("eagle", "lantern", "coolsd"):
        refused("came without one", make, tiny_pipeline, name, [0])
    refused("draft_model: this model came without one", make, tiny_pipeline, "draft-model", [0])


def test_drafters_and_smaller_models_are_saved_and_loaded_with_the_pipeline(drafting_pipeline, tmp_path):
    drafting_pipeline.save_pretrained(tmp_path / "model")
    loaded = LlamaGenPipeline.from_pretrained(tmp_path / "model")
    for method in ("eagle", "draft-model"):
        assert torch.equal(make(loaded, method, [0]).tokens, make(drafting_pipeline, method, [0]).tokens)
    assert isinstance(loaded.drafter, EagleHead)
    other = {"transformer": drafting_pipeline.draft_model}
    refused("another model", LlamaGenPipeline.from_pretrained, tmp_path / "model", **other)


def sizes_of(name: str, num_tokens: int = 256, **options: Any) -> tuple[tuple[int, int], ...]:
    sizes = resolve_method(name, options).sizes(num_tokens)
    return tuple((size.total_tokens, size.depth) for size in sizes)


def test_sizes_follow_the_settings():
    assert resolve_method("ar").max_draft_nodes(256) == 1
    assert resolve_method("eagle", {"total_tokens": 30, "depth": 4}).max_draft_nodes(256) == 30
    assert resolve_method("eagle", {"tree": "naive_extend_57"}).max_draft_nodes(256) == 58
    assert resolve_method("sjd", {"window": 16}).max_draft_nodes(256) == 17
    assert resolve_method("scd", {"window": 16, "branches": 4, "branch_depth": 3}).max_draft_nodes(256) == 26
    assert resolve_method("scd", {"window": 2, "branches": 4, "branch_depth": 3}).max_draft_nodes(256) == 9
    vvs = resolve_method("vvs", {"total_tokens": 30, "depth": 4})
    assert vvs.max_draft_nodes(256) == 34, "skipped tokens are fed with the next tree"
    for name in ("dynamic", *FIXED_TREES):
        assert sizes_of("eagle", tree=name)


def test_seconds_choose_a_size_only_where_no_picture_depends_on_it():
    for config in methods_for("image").values():
        assert (len(sizes_of(config.name)) > 1) == (config.name in ("eagle", "jacobi", "draft-model"))
    assert len(sizes_of("eagle", tree="mc_sim_7b_63")) == 5
    assert sizes_of("eagle") == ((3, 2), (4, 3), (13, 6), (60, 8)) and sizes_of("eagle", 2)[0] == (3, 1)
    assert sizes_of("eagle", total_tokens=2) == ((2, 1),) and sizes_of("eagle", depth=5)[:2] == ((6, 5), (13, 5))
    assert len(sizes_of("eagle", tree="mc_sim_7b_63", children="sampled")) == 1
    assert len(sizes_of("draft-model", children="sampled")) == 1


def test_auto_stands_for_the_methods_own_size_in_records():
    for name, options, size in (
        ("lantern", {}, {"total_tokens": 60, "depth": 5}),
        ("lantern", {"depth": 3}, {"total_tokens": 60, "depth": 3}),
        ("vvs", {"total_tokens": 4}, {"total_tokens": 4, "depth": 3}),
        ("vvs", {"tree": "mc_sim_7b_63"}, {"depth": 5}),
        ("eagle", {"tree": [[0], [0, 0]], "children": "sampled"}, {"depth": 2}),
        ("scd", {}, {"window": 16}),
        ("coolsd", {}, {"draft_length": 4}),
        ("draft-model", {"children": "sampled"}, {"draft_length": 4}),
        ("draft-model", {}, {"draft_length": "auto"}),
        ("eagle", {}, {"total_tokens": "auto", "depth": "auto"}),  # no picture depends on it
        ("sjd", {"window": 3}, {"window": 3}),
    ):
        method = resolve_method(name, options)
        resolved = method.resolved(256)
        assert resolved.to_dict().items() >= size.items()
        assert resolved.sizes(256) == method.sizes(256) and resolved.resolved(256) == resolved
    assert sizes_of("sjd", 9) == ((9, 8),) and sizes_of("lantern", 4) == ((60, 3),), "a small picture has room for less"


def test_the_command_line_lists_methods(capsys):
    assert main(["methods"]) == 0
    pictures, images, presets, videos, answers, for_videos, *_ = capsys.readouterr().out.split("\n\n")
    assert "pictures" in pictures and "videos" in videos
    assert all(name in presets for name in find_presets()) and all(name in for_videos for name in find_presets("video"))
    for task, listed in (("image", images), ("video", answers.removesuffix("\n"))):
        methods = methods_for(task)
        columns = [line.replace(" * ", " ").split()[:2] for line in listed.splitlines()]
        assert columns == [[name, "exact" if each.exact else "relaxed"] for name, each in methods.items()]
        assert main(["methods", "--task", task, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [row["name"] for row in rows] == [*methods, *find_presets(task)]
        assert {row["task"] for row in rows} == {task}


@pytest.mark.parametrize("name", ["lantern", "vvs", "gsd"])
def test_methods_that_compare_codes_need_a_codebook(drafting_pipeline, name, monkeypatch):
    monkeypatch.setattr(drafting_pipeline, "vqvae", None)
    refused("compares the codes of the image tokenizer, and this pipeline has none", make, drafting_pipeline, name, [0])
    assert make(drafting_pipeline, "eagle", [0]).tokens.shape == (1, 16)


def test_presets_are_files_that_name_a_method_and_settings(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("method: eagle\ndepth: 2\ntree: [[0], [1], [0, 0]]\n")
    method = resolve_method(str(path), {"tree_top_k": 4})
    assert method == resolve_method("eagle", {"depth": 2, "tree": [[0], [1], [0, 0]], "tree_top_k": 4})
    for content, message in (
        ("depth: 2\n", "`method` must be one of ar, eagle"),
        ("method: eagle\ndepht: 2\n", "no option 'depht'"),
        ("- eagle\n", "must hold `method: NAME`"),
        ("method: [\n", "is not YAML"),
    ):
        path.write_text(content)
        refused(message, resolve_method, str(path))
    refused(r"nowhere\.yaml does not exist", resolve_method, str(tmp_path / "nowhere.yaml"))


def test_the_papers_own_settings_are_the_papers():
    for name, method in (("sjd-pac", "sjd"), ("scd-pac", "scd")):
        preset = resolve_method(name).to_dict()
        assert (preset["name"], preset["branches"], preset["branch_depth"]) == (method, 4, 3) and preset["keep_overlap"]
    for name in ("vvs-paper-uniform", "vvs-paper-dynamic"):
        preset = resolve_method(name).to_dict()
        assert (preset["name"], preset["total_tokens"], preset["depth"], preset["mode"]) == ("vvs", 59, 5, "release")
        assert preset["truncate"] and not preset["refresh"] and preset["children"] == "top"


@pytest.mark.parametrize("method", methods_for("image").values(), ids=lambda method: method.name)
def test_every_setting_of_a_window_reaches_its_drafter(method):
    """Those that are options of `JacobiDrafter` under their own names."""
    if not issubclass(method, JacobiConfig):
        return
    tried = {"keep_overlap": 0.5, "initial_guess": "repeat", "coupling": "maximal"}
    for name in {field.name for field in fields(method)} & set(tried):
        assert method(**{name: tried[name]})._drafting[name] == tried[name]
