"""What happens on the tabs, without a page: tiny models draw, answer and are compared."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from vargen.base.errors import UserError
from vargen.checkpoints.options import ModelOptions
from vargen.demo import compare, pictures, videos
from vargen.demo.models import FIRST, Models
from vargen.demo.work import Stopped
from vargen.methods.advice import LOSSES
from vargen.methods.catalogue import resolve_method


@pytest.fixture
def models(tiny_model_folder: Path) -> Models:
    return Models(ModelOptions(str(tiny_model_folder)))


def last(pages: Any) -> Any:
    *_, page = pages
    return page


def draw(models: Models, *asked: Any, method: str = "scd", settings: str = "window: 3", negative: Any = None) -> Any:
    return last(pictures.draw(models, models.default, method, settings, *asked, negative))


def test_both_pictures_their_counts_and_what_was_saved(models):
    page, kept = draw(models, "a red cube", 3, 2.0, 2, negative=" a cone ")
    pipeline = models.pipeline(models.default)
    for images, method in ((kept.plain, "ar"), (kept.chosen, resolve_method("scd", {"window": 3}))):
        generators = [torch.Generator().manual_seed(seed) for seed in (3, 4)]
        given = {"generator": generators, "guidance_scale": 2.0, "negative_prompt": "a cone"}
        alone = pipeline(["a red cube"] * 2, method=method, **given)
        assert [image.tobytes() for image in images] == [image.tobytes() for image in alone.images]
    assert page.count("<img") == 4 and len(kept.traces) == 2
    saved = re.search(r"([\d.]+) times fewer passes \((\d+) instead of (\d+)\)", page)
    assert saved and int(saved[3]) == 16 and float(saved[1]) == pytest.approx(16 / int(saved[2]), abs=0.06)
    assert "exactly the same distribution" in page and kept.alike == [False, False]


def test_a_picture_is_filled_where_it_is_painted_or_goes_on_below_its_rows(models):
    pipeline = models.pipeline(models.default)
    own = Image.effect_noise((8, 8), 90).convert("RGB")
    stroke = Image.new("RGBA", (8, 8))
    stroke.paste((255, 0, 0, 9), (0, 0, 8, 4))
    painted = {"background": own.convert("RGBA"), "layers": [Image.new("RGBA", (8, 8)), stroke], "composite": None}
    mask = stroke.getchannel("A").point(lambda level: 255 * (level > 0))
    for layers, edit in ((painted["layers"], {"mask_image": mask}), ([], {"start_rows": 2})):
        asked = ("a red cube", 3, 2.0, 1, None, {**painted, "layers": layers}, 2)
        _, kept = last(pictures.draw(models, models.default, "jacobi", "", *asked))
        generator = torch.Generator().manual_seed(3)
        given = {"image": own, "paste_back": True, "guidance_scale": 2.0, "generator": generator, "method": "ar"}
        alone = pipeline("a red cube", **given, **edit).images[0]
        assert kept.plain[0].tobytes() == kept.chosen[0].tobytes() == alone.tobytes()
        row = slice(4, 8) if layers else slice(0, 4)
        assert np.array_equal(np.asarray(alone)[row], np.asarray(own)[row])
    assert pictures.read_edit({"background": None, "layers": [], "composite": None}, 8) == {}


def test_the_default_draws_the_same_picture_which_no_slider_has_to_show(models):
    page, kept = draw(models, "a red zebra", 3, 2.0, 1, method=next(iter(models.methods(models.default))), settings="")
    assert "Token for token the same picture" in page and kept.alike == [False]
    assert "zebra" in page, "a word that the model does not know"


def test_lists_mark_methods_and_cards_hold_no_markdown(models, tmp_path):
    pytest.importorskip("gradio", reason='the page needs the extra "demo"')
    from vargen.demo.app import build_page

    page = json.dumps(build_page(models, tmp_path).get_config_file(), default=str)
    assert "jacobi (exact)" in page and "gsd (relaxed)" in page and "`" not in page
    assert "of the world" not in page


def test_a_model_without_a_drafter_offers_no_method_that_needs_one(models):
    assert {"scd", "sjd", "gsd"} <= models.methods(models.default).keys()
    assert not any(config.weights for config in models.methods(models.default).values())
    assert {"scd", "eagle-chain", "likeness-fast", "draft-model"} < set(models.methods("scenes-128"))
    assert next(iter(models.methods("scenes-128"))) == "jacobi"


def test_what_is_wrong_is_named_and_nothing_is_drawn(models):
    for asked, method, settings, said in (
        (("  ", 0, None, 1), "scd", "", "Write what is to be drawn"),
        (("a cube", -1, None, 1), "scd", "", "seed"),
        (("a cube", None, None, 1), "scd", "", "seed"),
        (("a cube", 2**53 - 1, None, 2), "scd", "", "9,007,199,254,740,990"),
        (("a cube", 0, None, 99), "scd", "", "pictures"),
        (("a cube " * 1000, 0, None, 1), "scd", "", "characters"),
        (("a cube", 0, None, 1), "eagle", "", "does not fit"),
        (("a cube", 0, None, 1), "scd", "window: none", "scd.window"),
    ):
        refused(said, draw, models, *asked, method=method, settings=settings)


def test_a_class_conditional_model_is_asked_for_classes(tiny_class_model_folder):
    models = Models(ModelOptions(str(tiny_class_model_folder)))
    refused("between 0 and 9", draw, models, "a cube", 0, None, 1)
    assert draw(models, "7", 0, None, 1)[1] is not None


def test_a_relaxed_method_says_what_it_took(drafting_pipeline):
    from vargen.demo.race import race

    methods = {name: drafting_pipeline.resolve_method(name) for name in ("ar", "likeness-fast")}
    lanes = last(race(drafting_pipeline, methods, "a red cube", (0,)))
    skipped = lanes[1].trace.skipped_tokens
    assert skipped and f"{100 * skipped / 16:.0f} % of the tokens were never verified" in pictures.verdict(*lanes)
    lanes[1].label, lanes[1].passes, lanes[1].images = "rows-batch", lanes[0].passes, lanes[1].images * 2
    told = pictures.verdict(*lanes)
    assert "About as many passes" in told and told.count("right 1 point less often") == 2, "its price, and in batches"


def test_what_a_verdict_says_of_a_loss_stands_in_the_readme():
    said = " ".join((Path(__file__).parents[3] / "README.md").read_text().split())
    for name, loss in LOSSES.items():
        assert f"`{name}`" in said and loss.removeprefix("the ") in said, name


def test_recommended_methods_come_first_and_exact_ones_next(models):
    configs = models.methods(models.default)
    first = [name for name in FIRST if name in configs]
    assert [*configs][: len(first)] == first and first[0] == "jacobi"
    marks = [config.exact for name, config in configs.items() if name not in FIRST]
    assert marks == sorted(marks, reverse=True)


# Compare


def compare_all(models: Models, names: list[str], *asked: Any) -> Any:
    return last(compare.compare(models, models.default, names, *asked))


def test_rows_are_those_of_the_benchmark(models, tmp_path):
    from metrics.tables import format_table

    page, rows = compare_all(models, ["scd"], "a red cube\n\na blue cone", 9, 0)
    assert page == "" and [row["method"] for row in rows] == ["ar", "scd"]
    assert rows[0]["images"] == 2 and rows[0]["target_passes"] == 32 and rows[0]["model"] == "model"
    assert "scd" in format_table(rows)
    path = compare.write_rows(rows, tmp_path)
    assert json.loads(Path(path).read_text()) == json.loads(json.dumps(rows))


def test_a_plot_needs_a_judge(models):
    pytest.importorskip("matplotlib", reason='plots need the extra "eval"')
    row = {"method": "ar", "model": "m", "batch_size": 1, "images": 1, "speedup": 1.0, "exact": True}
    assert compare.plot([{**row, "judge_accuracy": None}]) is None
    assert compare.plot([{**row, "judge_accuracy": 0.5}]).width > 400


def test_a_comparison_that_cannot_be_made_says_why(models):
    for names, asked, said in (
        ([], ("", 1, 0), "choose 1 to"),
        (["eagle"], ("a cube", 1, 0), "drafter"),
        (["scd"], ("a cube\n" * 40, 1, 0), "too many"),
        (["scd"], ("a cube " * 100, 1, 0), "characters"),
        (["scd"], ("a cube", 1, None), "seed"),
    ):
        refused(said, compare_all, models, names, *asked)


def test_a_comparison_is_stopped_between_two_steps(models, monkeypatch):
    from vargen.demo import work

    monkeypatch.setattr(work, "BETWEEN_LOOKS", 0.0)
    pages = compare.compare(models, models.default, ["scd"], "a red cube\n" * 30, 1, 0)
    assert "of 60 pictures" in next(pages)[0]
    pages.close()


# Videos


@pytest.fixture(scope="module")
def video_models(qwen_pair: Path) -> Models:
    return Models(None, str(qwen_pair / "target"), str(qwen_pair / "draft"))


@pytest.mark.parametrize(
    ("folder", "paired", "first"),
    [("target", True, "flash"), ("target", False, "flash"), ("draft", True, "sd"), ("draft", False, "ar")],
)
def test_methods_for_videos_are_those_whose_drafter_is_there(qwen_pair, tmp_path, folder, paired, first):
    """The target came with draft heads, and the draft model with none."""
    models = Models(None, str(qwen_pair / folder), str(qwen_pair / "draft") if paired else None)
    offered = models.video_methods().keys()
    assert "ar" in offered
    for names, there in ((("sd", "specvlm", "parallelvlm"), paired), (("flash", "eagle"), folder == "target")):
        assert all((name in offered) == there for name in names)
    assert models.video_default == models.answerer().default_method == first
    pytest.importorskip("gradio", reason='the page needs the extra "demo"')
    from vargen.demo.app import build_page

    page = build_page(models, tmp_path).get_config_file()
    (shown,) = (each["props"] for each in page["components"] if each["props"].get("elem_id") == "video-method")
    assert shown["value"] == first and {value for _, value in shown["choices"]} == offered


def ask(models: Models, *asked: Any, clip: videos.Clip | None = None, method: str = "sd", settings: str = "") -> Any:
    return list(videos.ask(models, clip or videos.Clip(1), method, settings, *asked))


def test_the_answer_grows_word_by_word_and_its_account_is_true(video_models):
    pages = ask(video_models, videos.DESCRIBE, 4, 24, 0.0, 0)
    answer = video_models.answerer().answer(videos.world_case(1).frames, videos.DESCRIBE, "sd", max_new_tokens=24)
    lengths = [page.count("border-bottom") for page, _ in pages]
    assert lengths == sorted(lengths) and lengths[-1] in (len(answer.tokens), len(answer.tokens) - 1)
    account = pages[-1][1]
    assert f"<th>target passes</th><td>{answer.trace.target_passes}</td>" in account
    assert "by the clip&#x27;s truth" in account


def test_a_question_that_cannot_be_answered_says_why(video_models):
    for asked, method, said in (
        (("", 4, 24, 0.0, 0), "sd", "empty"),
        (("why? " * 500, 4, 24, 0.0, 0), "sd", "characters"),
        (("why?", 4, 10**6, 0.0, 0), "sd", "tokens"),
        (("why?", 4, 24, 0.0, -1), "sd", "seed"),
        (("why?", 4, 24, 0.0, 0), "eagle-tree", "does not fit"),
    ):
        refused(said, ask, video_models, *asked, method=method)


def test_a_broken_upload_is_refused_in_place(video_models, tmp_path):
    path = tmp_path / "mine.mp4"
    path.write_bytes(b"\x00\x00\x00\x18ftypmp42 and nothing")
    clip = videos.Clip(-1, str(path))
    refused(r"^(?!.*/).*mine\.mp4", ask, video_models, "why?", 4, 24, 0.0, 0, clip=clip)
    assert 'role="alert"' in videos.show_clip(video_models, clip, 4)


@pytest.mark.parametrize("method", ["sd", "flash", "parallelvlm"])
def test_a_stop_ends_an_answer_between_two_passes(video_models, monkeypatch, method):
    settings = "workers: in_turn" if method == "parallelvlm" else ""
    passes = []

    def stopping(call: Any, look: Any) -> Any:
        def check() -> None:
            passes.append(look())
            raise Stopped

        with pytest.raises(Stopped):
            call(check)
        raise UserError("stopped")
        yield

    monkeypatch.setattr(videos, "follow", stopping)
    refused("stopped", ask, video_models, "why?", 4, 64, 0.0, 0, method=method, settings=settings)
    assert len(passes) == 1


def test_a_family_that_cannot_be_shown_row_by_row_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "emu3"}')
    refused("emu3", Models, ModelOptions(str(tmp_path)))
    refused("model", Models, ModelOptions("no/such/folder"))


def test_a_video_model_that_is_none_is_refused_by_its_own_name(tmp_path):
    for config, said in (
        (None, "no folder with a config.json"),
        ("{", "config.json"),
        ("[]", "must hold a JSON object"),
        ('{"model_type": "bert"}', "is of type 'bert', which cannot answer about videos"),
    ):
        if config is not None:
            (tmp_path / "config.json").write_text(config)
        for argument in ("video_model", "video_draft_model"):
            told = rf"^(?!.* model: ){argument}: \S*{tmp_path.name}.*{said}"
            refused(told, Models, None, **{argument: str(tmp_path)})
