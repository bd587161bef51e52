"""`vargen evaluate` end to end on a tiny model, a random CLIP and a few pictures."""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import change_json
from PIL import Image
from process_jobs import ProcessJob
from refusals import refused, refuses

from metrics import picture_readers
from metrics.composition import Found
from metrics.extractors import EXTRACTORS, ExtractorKind, InceptionFeatures, InceptionReading
from metrics.images import ImageFolder
from specdecode.kernels import build
from vargen.cli import main
from vargen.jobs import evaluated_pictures, measuring
from vargen.jobs.evaluation import load_protocol

CAPTIONS = ["a red cube", "a blue sphere", "a green sphere left of a red cube"]
COUNT = 14
PRESET = """
captions: file
resolution: 32
resizer: bicubic
extractor: clip
manifold_extractor: clip
reference: given
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def arguments(tmp_path: Path, tiny_model_folder: Path, clip_folder: Path) -> list[str]:
    """A run of two methods."""
    (tmp_path / "mine.yaml").write_text(PRESET)
    (tmp_path / "captions.txt").write_text("\n".join(CAPTIONS[i % 3] for i in range(COUNT)))
    write_reference(tmp_path / "reference")
    return [
        *("evaluate", "--protocol", str(tmp_path / "mine.yaml"), "--prompts_file", str(tmp_path / "captions.txt")),
        *("--model", str(tiny_model_folder), "--clip", str(clip_folder), "--reference", str(tmp_path / "reference")),
        *("--methods", "ar,sjd", "--method_options.sjd.window", "3", "--batch_size", "4", "--bootstrap", "10"),
        *("--device", "cpu", "--quiet", "--output", str(tmp_path / "out")),
    ]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def finished(arguments: list[str], kept: Path, tmp_path: Path) -> list[str]:
    """The arguments of a run that is finished: once for all tests, each of which has a copy."""
    if not kept.exists():
        assert main(arguments) == 0
        for name in ("out", "cache"):
            shutil.copytree(tmp_path / name, kept / name)
    else:
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    return arguments


def write_reference(folder: Path, count: int = 16, side: int = 24) -> None:
    generator = torch.Generator().manual_seed(5)
    folder.mkdir()
    for number in range(count):
        small = torch.rand(1, 3, 3, 3, generator=generator)
        picture = torch.nn.functional.interpolate(small, size=side, mode="bilinear")[0]
        Image.fromarray((picture * 255).byte().permute(1, 2, 0).numpy()).save(folder / f"{number}.png")


def without(arguments: list[str], *flags: str) -> list[str]:
    return [word for at, word in enumerate(arguments) if word not in flags and arguments[at - 1] not in flags]


def lasting(output: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Scores without what no two runs share (times, memory, dates), and the pictures."""
    rows = json.loads((output / "scores.json").read_text())
    for row in rows:
        del row["provenance"]
        for name in ("seconds_per_image", "speedup", "phase_seconds", "peak_memory_gib"):
            row.get("decoding", {}).pop(name, None)
    pictures = {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("images/*.png"))}
    return rows, pictures


def test_every_figure_of_every_method_is_written(arguments, tmp_path, capsys):
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert rows == json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [row["method"] for row in rows] == ["ar", "sjd"]
    for row in rows:
        assert row["count"] == COUNT and row["exact"]
        for name in ("frechet_distance", "clip_score", "precision", "recall", "diversity"):
            assert row[name]["value"] >= 0 and len(row[name]["interval"]) == 2
        assert row["protocol"]["resizer"] == "bicubic" and "clip" in row["networks"]
        assert row["resolution"] == 32 and row["reference"]["count"] == 16
        assert {"commit", "hardware", "libraries"} <= set(row["provenance"])
        # Four batches: a prefill and fifteen more passes each for plain decoding.
        assert row["decoding"]["tokens"] == 16 * COUNT
    assert rows[0]["decoding"]["target_passes"] == 16 * 4
    assert rows[1]["decoding"]["pass_reduction"] > 1
    difference = rows[1]["clip_score"]["value"] - rows[0]["clip_score"]["value"]
    assert rows[1]["against_plain"]["clip_score"]["value"] == pytest.approx(difference)
    assert "14 pictures cannot fill 12" not in captured.err
    assert "| sjd | 14 |" in (tmp_path / "out" / "table.md").read_text()
    assert r"\toprule" in (tmp_path / "out" / "table.tex").read_text()
    assert len(list((tmp_path / "out").rglob("images/*.png"))) == 2 * COUNT


def test_a_finished_run_makes_nothing_again(finished, tmp_path, monkeypatch):
    before = lasting(tmp_path / "out")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("made or measured again")

    monkeypatch.setattr(evaluated_pictures, "stream_pipeline", never)
    monkeypatch.setattr(measuring, "measure", never)
    assert main(finished) == 0
    assert lasting(tmp_path / "out") == before


def test_one_more_method_leaves_the_others_alone(arguments, tmp_path, monkeypatch, capsys):
    only_ar = [*without(arguments, "--methods", "--method_options.sjd.window"), "--methods", "ar"]
    assert main(only_ar) == 0
    made = []
    call = evaluated_pictures.stream_pipeline

    def counting(pipeline: Any, method: Any, *rest: Any, **options: Any) -> Any:
        made.append(method.name)
        return call(pipeline, method, *rest, **options)

    monkeypatch.setattr(evaluated_pictures, "stream_pipeline", counting)
    assert main(arguments) == 0
    assert set(made) == {"sjd"}
    assert "scores.json had" not in capsys.readouterr().err
    assert main(only_ar) == 0
    assert "had sjd too; --methods sjd,ar gives one table of all" in capsys.readouterr().err


def test_a_folder_of_other_pictures_is_refused(finished, capsys):
    for changed, messages in (
        (["--seed", "1"], ["another seed"]),
        (["--method_options.sjd.window", "4"], ["another method"]),
        (["--num_prompts", "12"], ["another captions", "another count"]),
    ):
        capsys.readouterr()
        assert main([*finished, *changed]) == 2
        error = capsys.readouterr().err
        assert any(message in error for message in messages), error


def test_another_kind_of_processor_goes_on_in_float32_alone(finished, arguments, tmp_path, capsys, monkeypatch):
    rounded = [*arguments, "--dtype", "bfloat16", "--output", str(tmp_path / "rounded")]
    assert main(rounded) == 0
    kind = build.kind()
    monkeypatch.setattr(build, "kind", lambda: "another")
    assert main(finished) == 0
    refuses(capsys, main(rounded), f'other kernels ("{kind}", now "another"); choose another folder or delete it')


def test_pictures_of_a_folder_score_as_they_did_when_made(finished, tmp_path):
    made = lasting(tmp_path / "out")[0][0]
    given = [*finished, "--given_images", str(tmp_path / "out/ar/images"), "--output", str(tmp_path / "given")]
    assert main(given) == 0
    row = lasting(tmp_path / "given")[0][0]
    assert row["method"] == "given" and "decoding" not in row
    for name in ("frechet_distance", "clip_score", "precision", "recall", "diversity"):
        assert row[name] == made[name]


def test_class_conditional_models_draw_random_labels(arguments, tmp_path, tiny_class_model_folder, capsys):
    by_class = [*arguments, "--model", str(tiny_class_model_folder), "--num_prompts", "14"]
    refuses(capsys, main(by_class), "conditioned on class labels")
    by_labels = PRESET.replace("captions: file", "captions: class_labels")
    (tmp_path / "mine.yaml").write_text(by_labels + "clip_score: null\n")
    assert main(without(by_class, "--prompts_file")) == 0
    rows, pictures = lasting(tmp_path / "out")
    assert len(pictures) == 2 * COUNT and rows[0]["clip_score"] is None and rows[0]["recall"] is not None
    labels = json.loads((tmp_path / "out/ar/config.json").read_text())["captions"]
    assert len(labels) == COUNT and len(set(labels)) > 3 and all(0 <= label < 10 for label in labels)


def test_given_pictures_that_do_not_fit(arguments, tmp_path, capsys):
    folder = tmp_path / "pictures"
    write_reference(folder, COUNT)
    given = [*arguments, "--given_images", str(folder)]
    (folder / "3.png").write_bytes(b"no picture")
    (folder / "11.png").write_bytes(b"")
    assert main(given) == 2
    assert "2 of 14 files cannot be read" in (error := capsys.readouterr().err) and "3.png" in error
    (folder / "3.png").unlink()
    (folder / "11.png").unlink()
    refuses(capsys, main(given), "holds 12 pictures, but there are 14 captions")


def test_a_reference_changed_behind_the_cache_is_another_one(finished, tmp_path):
    before = lasting(tmp_path / "out")[0][0]["frechet_distance"]["value"]
    Image.new("RGB", (24, 24), (255, 0, 0)).save(tmp_path / "reference" / "3.png")
    assert main(finished) == 0
    assert lasting(tmp_path / "out")[0][0]["frechet_distance"]["value"] != before
    assert len(list((tmp_path / "cache" / "references").iterdir())) == 2


def test_a_file_of_pictures_and_statistics_gives_all_scores(finished, tmp_path, capsys):
    """As ADM's files do: the distance by the statistics, precision and recall by the pictures."""
    from_pictures = lasting(tmp_path / "out")[0][0]
    reference = ImageFolder(Path(finished[finished.index("--reference") + 1]))
    pixels = torch.stack(reference.read(range(len(reference)))).permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "both.npz", arr_0=pixels, **np.load(tmp_path / "out" / "reference.npz"))
    capsys.readouterr()
    assert main([*finished, "--reference", str(tmp_path / "both.npz")]) == 0
    row = lasting(tmp_path / "out")[0][0]
    for name in ("frechet_distance", "precision", "recall"):
        assert row[name]["value"] == pytest.approx(from_pictures[name]["value"], rel=1e-6)
    assert f"use the {len(reference)} pictures beside the statistics" in capsys.readouterr().err


def test_statistics_made_with_another_resizer_are_refused(finished, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(PRESET.replace("resizer: bicubic", "resizer: center-crop-lanczos"))
    stored = [*finished, "--reference", str(tmp_path / "out" / "reference.npz")]
    refuses(capsys, main(stored), 'made with another resizer ("bicubic", now "center-crop-lanczos")')


def test_foreign_statistics_are_taken_on_trust_and_said_so(finished, tmp_path, capsys):
    distance = lasting(tmp_path / "out")[0][0]["frechet_distance"]
    np.savez(tmp_path / "foreign.npz", mu=np.zeros(12), sigma=np.eye(12))
    assert main([*finished, "--reference", str(tmp_path / "foreign.npz"), "--write_npz", "true"]) == 0
    assert "does not say how it was made" in capsys.readouterr().err
    foreign = lasting(tmp_path / "out")[0][0]
    assert foreign["frechet_distance"] != distance and foreign["recall"] is None
    with np.load(tmp_path / "out" / "ar.npz") as written:
        assert written["arr_0"].shape == (COUNT, *written["arr_0"].shape[1:3], 3)
        first = np.asarray(Image.open(tmp_path / "out" / "ar" / "images" / "000000.png"))
        assert np.array_equal(written["arr_0"][0], first)


def test_bad_input_is_one_line_and_nothing_is_written(arguments, tmp_path, capsys):
    for changed, message in (
        (["--device", "cuda"], "not available"),
        (["--num_prompts", "200"], "holds 14 captions, 200 are asked"),
        (["--reference", "missing"], "not a folder of pictures"),
        (["--clip", "missing"], "holds no CLIP"),
        (["--protocol", "coco2017-5k-longest"], "14 captions, 5,000 are asked"),
        (["--protocol", "scenes"], "composes its own captions"),
    ):
        if changed == ["--device", "cuda"] and torch.cuda.is_available():
            continue
        assert main([*arguments, *changed]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
        assert not list((tmp_path / "out").rglob("*.png"))


def test_a_protocol_that_is_none_is_told_beside_those_there_are():
    """Files that are none: tests/hostile/test_texts.py."""
    known = "coco2014-30k, coco2017-5k-longest, imagenet-50k, prompts, scene-prompts, scenes, scenes-efficientnet"
    for name in ("nope", "", "../train/clip", "bench"):
        refused(f"^protocol: {name!r} is neither a YAML file nor one of: {known}$", load_protocol, name)


# Several processes, and kills.


def test_two_processes_and_kills_at_random_moments_change_nothing(arguments, tmp_path):
    """Pictures and scores are those of one process; kills are of one process and of two that share the work."""
    alone, together, killed = (tmp_path / name for name in ("out", "together", "killed"))
    assert main(arguments) == 0
    shutil.rmtree(tmp_path / "cache")  # the reference is shared work, too
    began = time.monotonic()
    assert ProcessJob([*arguments, "--output", str(together)], 2).wait() == [0, 0]
    duration = time.monotonic() - began
    assert lasting(together) == lasting(alone)
    assert len(ImageFolder(together / "ar").files) == COUNT
    shutil.rmtree(tmp_path / "cache")
    moments = random.Random(0)
    at_work = 0
    for processes in (2, 1, 2, 1):
        job = ProcessJob([*arguments, "--output", str(killed)], processes)
        time.sleep(moments.uniform(0.05, 0.7) * duration)
        at_work += job.kill()
        if at_work == 2:  # by now most is done: lose some of it, so that later kills hit work, too
            shutil.rmtree(killed / "ar", ignore_errors=True)
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert at_work >= 2
    assert ProcessJob([*arguments, "--output", str(killed)], 2).wait() == [0, 0]
    assert lasting(killed) == lasting(alone)


def test_a_new_drafter_leaves_the_pictures_of_methods_without_one(arguments, drafting_pipeline, tmp_path, capsys):
    drafting_pipeline.save_pretrained(tmp_path / "model")
    few = [*arguments, "--model", str(tmp_path / "model"), "--num_prompts", "4", "--methods"]
    assert main([*few, "sjd,eagle"]) == 0
    assert "4 pictures cannot fill 12 feature dimensions" in capsys.readouterr().err
    change_json(tmp_path / "model" / "drafter" / "config.json", acceptance_rate=0.125)  # as a new one's would be
    assert main([*few, "sjd"]) == 0
    refuses(capsys, main([*few, "sjd,eagle"]), "eagle")


def scores(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "out" / "scores.json").read_text())


def benchmark(arguments: list[str], tmp_path: Path, name: str, content: str, prompts_format: str) -> list[str]:
    """An evaluation of a benchmark's file, on pictures that are there."""
    (tmp_path / name).write_text(content)
    preset = PRESET.replace("manifold_extractor: clip\nreference: given", "reference: none")
    (tmp_path / "mine.yaml").write_text(preset)
    left_out = ("--prompts_file", "--reference", "--methods", "--method_options.sjd.window", "--model")
    kept = without(arguments, *left_out)
    given = ["--prompts_file", str(tmp_path / name), "--prompts_format", prompts_format]
    return [*kept, *given, "--given_images", str(tmp_path / "reference")]


def test_parti_prompts_are_scored_by_category_and_challenge(arguments, tmp_path, clip_folder, capsys):
    rows = [f"{text}\t{kind}\t{hard}" for text in CAPTIONS for kind, hard in (("A", "Basic"), ("B", "Basic"))]
    table = "\n".join(["Prompt\tCategory\tChallenge", *rows[:4], "two cones\tA\tQuantity"])
    run = benchmark(arguments, tmp_path, "p.tsv", table, "parti")
    for number in range(10, 16):
        (tmp_path / "reference" / f"{number}.png").unlink()
    assert main([*run, "--num_images_per_prompt", "2", "--hps", str(clip_folder), "--inception_weights", "unused"]) == 0
    (row,) = scores(tmp_path)
    groups = row["groups"]
    assert {name: each["count"] for name, each in groups["category"].items()} == {"A": 6, "B": 4}
    assert {name: each["count"] for name, each in groups["challenge"].items()} == {"Basic": 8, "Quantity": 2}
    for key in ("clip_score", "hps"):
        parts = [(each["count"], each[key]["value"]) for each in groups["category"].values()]
        assert sum(count * value for count, value in parts) / 10 == pytest.approx(row[key]["value"], abs=0.3)
    assert row["prompts_format"] == "parti" and row["protocol"]["hps"]
    printed = capsys.readouterr().out
    assert "| category | method | pictures |" in printed and "HPS" in (tmp_path / "out" / "table.md").read_text()


GENEVAL = {"tag": "single_object", "include": [{"class": "cube", "count": 1}], "prompt": "a cube"}


def test_geneval_is_checked_by_a_detector_or_refused(arguments, tmp_path, monkeypatch, capsys):
    lines = [GENEVAL, {**GENEVAL, "tag": "two_object", "include": [{"class": "cone", "count": 1}]}]
    run = benchmark(arguments, tmp_path, "g.jsonl", "\n".join(map(json.dumps, lines)), "geneval")
    run, folder = [*run, "--num_images_per_prompt", "8"], str(tmp_path / "detector")
    Path(folder).mkdir()
    for more, said in (
        ([], "detector: geneval needs one; name the folder"),
        (["--detector", folder], "holds no detector"),
        (["--vqa_model", folder], "vqa_model checks nothing here"),
    ):
        refuses(capsys, main([*run, *more]), said)

    class Cubes:
        identity = "cubes"

        def check(self, names: Any) -> None: ...

        def __call__(self, picture: torch.Tensor, names: Any) -> Any:
            return [Found("cube", 1.0, (0.0, 0.0, 4.0, 4.0))]

    monkeypatch.setattr(picture_readers, "load_detector", lambda folder, device: Cubes())
    assert main([*run, "--detector", folder]) == 0
    (row,) = scores(tmp_path)
    assert row["geneval"]["overall"]["value"] == 0.5 == row["geneval"]["prompts"]["value"]
    assert row["groups"]["task"]["single_object"]["shown"]["value"] == 1
    assert row["networks"]["check"].startswith("cubes")


def test_dpg_is_answered_and_told_by_source(arguments, tmp_path, clip_folder, monkeypatch):
    head = "item_id,text,proposition_id,dependency,category_broad,question_natural_language\n"
    asked = "\n".join(f"{name},{name},1,0,entity,Is there a {name}?" for name in ("cube", "cone"))

    class Answers:
        identity = "finds cubes"

        def __call__(self, picture: torch.Tensor, questions: Any) -> list[str]:
            return ["yes" if "cube" in question else "no" for question in questions]

    monkeypatch.setattr(picture_readers, "VisualAnswers", lambda folder, device: Answers())
    run = benchmark(arguments, tmp_path, "d.csv", head + asked, "dpg")
    assert main([*run, "--num_images_per_prompt", "8", "--vqa_model", str(clip_folder)]) == 0
    (row,) = scores(tmp_path)
    sources = row["groups"]["source"]
    assert row["dpg"]["score"]["value"] == 0.5 and sources["cube"]["count"] == sources["cone"]["count"] == 8


def test_sfid_and_the_inception_score_of_a_file_with_pictures_and_statistics(arguments, tmp_path, monkeypatch, capsys):
    class Small(InceptionFeatures):
        """Means of pictures' squares stand for what Inception sees."""

        num_features = 12

        def __init__(self, weights: Any, device: Any) -> None:
            self.identity = "small"

        def read(self, pictures: torch.Tensor) -> InceptionReading:
            means = torch.nn.functional.adaptive_avg_pool2d(pictures.float(), 2).flatten(1) / 64
            return InceptionReading(means, means[:, :8] ** 2, means)

    monkeypatch.setitem(EXTRACTORS, "inception", ExtractorKind(Small, "inception_weights"))
    run = benchmark(arguments, tmp_path, "p.txt", "a cube\n" * 16, "parti")
    run = [word for word in run if word not in ("--prompts_format", "parti")]
    write_reference(tmp_path / "real", 20)
    more = "clip_score: null\nmanifold_extractor: inception\ninception_score: true\nspatial_distance: true\n"
    (tmp_path / "mine.yaml").write_text(PRESET.replace("extractor: clip\nmanifold_extractor: clip\n", more))
    assert main([*run, "--reference", str(tmp_path / "real")]) == 0
    (whole,) = scores(tmp_path)
    assert whole["inception_score"]["value"] > 1 and whole["inception_score"]["deviation"] >= 0
    assert whole["spatial_distance"]["value"] > 0
    with np.load(tmp_path / "out" / "reference.npz") as saved:
        stored = dict(saved)
    assert stored["mu_s"].shape == (8,) and stored["sigma_s"].shape == (8, 8)
    pictures = np.stack([np.asarray(Image.open(path)) for path in sorted((tmp_path / "real").iterdir())])
    lacking = {name: value for name, value in stored.items() if not name.endswith("_s")}
    for arrays, said in (
        (stored, "precision, recall, density and coverage are left out"),
        ({**lacking, "arr_0": pictures}, "sFID uses the 20 pictures beside the statistics"),
        (lacking, "no statistics mu_s and sigma_s; sFID is left out"),
    ):
        np.savez(tmp_path / "r.npz", **arrays)
        capsys.readouterr()
        assert main([*run, "--reference", str(tmp_path / "r.npz")]) == 0
        assert said in capsys.readouterr().err
        (row,) = scores(tmp_path)
        for name in ("frechet_distance", "spatial_distance"):
            if name == "spatial_distance" and arrays is lacking:
                assert row[name] is None
            else:
                assert row[name]["value"] == pytest.approx(whole[name]["value"], rel=1e-6)
