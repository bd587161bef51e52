"""The comparison of methods on videos: figures out of known calls, resuming, and the command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from refusals import refused, refuses
from torchvision.transforms.functional import to_pil_image

from metrics.speculation import CallRecord
from scenes.rendering.video_file import write_video
from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.runs.records import Records
from vargen.video.jobs.cases import VideoCase
from vargen.video.jobs.clips import ask_about, describe_clips, find_videos, set_apart
from vargen.video.jobs.video_benchmark import BenchVideoConfig, build_video_rows, run_video_benchmark
from vargen.video.training.video_questions import AskedVideo

FRAMES, SIZE = 8, 64


def kept(method: str, batch: int, seconds: float, decode: float, tokens: int, right: float, **more: Any) -> dict:
    call = CallRecord(
        seconds=seconds, images=1, tokens=tokens, target_passes=1 + more.pop("steps", tokens - 1), row_passes=tokens,
        drafted=0, accepted_histogram=[tokens - 1], phase_seconds={"prefill": 0.5, "decode": decode},
    )  # fmt: skip
    accuracies = {"all": right, "setting": right, "objects": right, "events": right}
    drafting = {"draft_passes": None, "draft_prompt_passes": 1, "draft_flops": None}
    record = {"token_ids": [1, 2], "relaxed": [], "run_lengths": [], "accuracies": accuracies, **drafting, **more}
    return {"method": method, "batch": batch, "call": call.to_dict(), **record}


def test_figures_of_known_answers():
    records = Records(None, {})
    for batch in range(3):
        records.add(kept("ar", batch, 4.0, 2.0, 10, 0.8))
        # Half as long an answer in a quarter of the decoding: twice as fast per token, whatever the length.
        records.add(kept("lvspec", batch, 2.0, 0.5, 5, 0.6, relaxed=[1, 2], token_ids=[1, 3, 5], run_lengths=[2, 4]))
    contenders = {name: resolve_method(name, task="video") for name in ("ar", "lvspec")}
    plain, loose = build_video_rows(contenders, records, 3)
    assert plain["decode_speedup"] == plain["end_to_end_speedup"] == plain["retention"] == 1
    assert plain["equal_to_plain"] == 3 and loose["equal_to_plain"] == 0
    assert plain["agreement"] == 1 and loose["agreement"] == pytest.approx(1 / 3)  # of [1, 3, 5] and [1, 2]
    assert loose["decode_speedup"] == pytest.approx(2.0) and loose["end_to_end_speedup"] == pytest.approx(1.0)
    assert loose["retention"] == pytest.approx(0.75) and loose["relaxed_share"] == pytest.approx(0.4)
    assert loose["mean_run_length"] == 3 and plain["mean_run_length"] is None
    assert loose["answers"] == 3 and "images" not in loose


def test_what_drafting_took_leaves_out_the_prompts():
    records = Records(None, {})
    for batch in range(2):
        records.add(kept("ar", batch, 4.0, 2.0, 10, 0.8))
        drafted = kept("flash", batch, 2.0, 1.0, 10, 0.8, draft_passes=4, draft_flops=600)
        drafted["call"]["accepted_histogram"] = [0, 1, 0, 2]  # three steps, seven tokens accepted
        drafted["call"]["phase_seconds"]["draft"] = 0.3
        records.add(drafted)
    contenders = {name: resolve_method(name, task="video") for name in ("ar", "flash")}
    plain, drafted = build_video_rows(contenders, records, 2)
    names = ("drafting_passes", "accepted_per_drafting_pass", "draft_flops_per_answer", "draft_seconds_per_step")
    assert [plain[name] for name in names] == [None] * 4
    assert [drafted[name] for name in names] == [6, pytest.approx(7 / 3), 600, pytest.approx(0.1)]


def test_methods_take_turns_and_every_answer_has_its_question_and_seed():
    asked: list[tuple[str, str, int]] = []

    class Answerer:
        def answer(self, frames: str, question: str, method: Any, seed: int) -> Any:
            asked.append((method.name, f"{frames} {question}", seed))
            call = CallRecord(**kept("ar", 0, 4.0, 2.0, 10, 0.8)["call"])
            more = {"token_ids": [1], "origins": [], "run_lengths": (), "draft_passes": None, "draft_flops": None}
            more["draft_prompt_passes"] = 0
            return SimpleNamespace(record=call, text="", **more)

    asks = ("what?", "", "who?")
    cases: Any = [
        SimpleNamespace(frames=f"video {number}", question=each, truth=None, forget=lambda: None)
        for number, each in enumerate(asks)
    ]
    methods = {name: resolve_method(name, task="video") for name in ("ar", "sd")}
    answerer: Any = Answerer()
    run_video_benchmark(answerer, methods, cases, "usual?", warm_up=2, seed=5)
    first = ("video 0 what?", 5)
    assert asked[:4] == [("ar", *first), ("ar", *first), ("sd", *first), ("sd", *first)]
    second, third = ("video 1 usual?", 6), ("video 2 who?", 7)
    turns = (first, ("ar", "sd")), (second, ("sd", "ar")), (third, ("ar", "sd"))
    assert asked[4:] == [(name, *question) for question, names in turns for name in names]


def test_the_command(qwen_pair, tmp_path, capsys):
    out = tmp_path / "bench"
    base = ["bench", "--task", "video", "--model", str(qwen_pair / "target"), "--draft_model", str(qwen_pair / "draft")]
    base += f"--num_videos 1 --num_frames {FRAMES} --image_size {SIZE} --max_new_tokens 10 --quiet".split()
    loose = ["--methods", "sd,strict=lvspec,fly", "--method_options.strict.loose_ratio", "0"]
    assert main([*base, *loose, "--output", str(out)]) == 0
    assert "retention" in capsys.readouterr().out
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())}
    assert list(rows) == ["ar", "sd", "strict", "fly"]
    assert rows["sd"]["equal_to_plain"] == rows["strict"]["equal_to_plain"] == 1
    assert rows["strict"]["settings"]["loose_ratio"] == 0 and rows["strict"]["provenance"]["hardware"]
    assert [path.name for path in out.iterdir()] == ["results.json"]
    for wrong, named in (("--num_videos=0", "num_videos"), ("--methods=sd2", "sd2"), ("--split=x", "split")):
        refuses(capsys, main([*base, wrong]), named)
    refuses(capsys, main(["bench", "--task", "sound"]), "task")


@pytest.fixture
def folder(tmp_path: Path, cases: list[VideoCase]) -> Path:
    """A user's own clips: a file, and a folder of pictures."""
    place = tmp_path / "clips"
    (place / "pictures").mkdir(parents=True)
    write_video(cases[0].frames.frames, place / "first.mp4")
    for number, frame in enumerate(cases[1].frames.frames):
        to_pil_image(frame).save(place / "pictures" / f"{number}.png")
    return place


def test_who_names_no_methods_compares_those_whose_drafter_is_there():
    paired = {"ar", "sd", "specvlm", "fly", "lvspec", "parallelvlm"}
    assert set(BenchVideoConfig().contenders()) == paired | {"sparrow", "flash"}
    assert set(BenchVideoConfig(model="some/large", draft_model="some/small").contenders()) == paired
    refused("methods must name at least one", BenchVideoConfig(model="some/large").contenders)


def test_ones_own_clips_are_compared_with_plain_decoding(qwen_pair, folder, tmp_path, capsys):
    questions, out = tmp_path / "questions.jsonl", tmp_path / "bench.json"
    asked = [{"video": "first.mp4", "question": "what is there?"}, {"video": "pictures", "question": "what happens?"}]
    questions.write_text("".join(json.dumps(each) + "\n" for each in asked))
    base = ["bench", "--task", "video", "--model", str(qwen_pair / "target"), "--draft_model", str(qwen_pair / "draft")]
    base += ["--videos", str(folder), "--max_new_tokens", "8", "--quiet", "--warm_up", "0", "--num_frames", "4"]
    arguments = [*base, "--questions", str(questions), "--methods", "sd,lvspec", "--output", str(out)]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "agreement" in table and "retention" not in table
    rows = {row["method"]: row for row in json.loads((out / "results.json").read_text())}
    assert rows["sd"]["agreement"] == 1 and rows["sd"]["answers"] == rows["sd"]["equal_to_plain"] == 2
    assert 0 <= rows["lvspec"]["agreement"] <= 1 and rows["ar"]["caption_accuracy"] is None
    assert rows["ar"]["temperature"] == 0


def test_questions_go_to_their_videos(folder, tmp_path):
    def pairs(name: str, text: str) -> list[tuple[str, str]]:
        (tmp_path / name).write_text(text, newline="")
        return [(clip.path.name, clip.question) for clip in ask_about(folder, str(tmp_path / name), "", list)]

    assert pairs("q.txt", "a?\nb?\n") == [(video, q) for video in ("first.mp4", "pictures") for q in ("a?", "b?")]
    assert pairs("q.csv", 'video,question\npictures,"a, b?"\n') == [("pictures", "a, b?")]
    lines = '\ufeffvideo,question\r\npictures,"what?\nA. one\nB. two"\r\n'  # as spreadsheets write it
    assert pairs("lines.csv", lines) == [("pictures", "what?\nA. one\nB. two")]
    odd = '\ufeff{"video": "pictures", "question": "one\u2028two"}\n'
    assert pairs("odd.jsonl", odd) == [("pictures", "one\u2028two")]
    usual = ask_about(folder, None, "what?", lambda total, rate: [0, 2])
    assert [clip.question for clip in usual] == ["what?"] * 2
    assert [len(clip.frames.frames) for clip in usual] == [2, 2]
    frames = usual[0].frames
    assert usual[0].frames is frames
    usual[0].forget()
    assert usual[0].frames is not frames
    for name, text, told in (
        ("q.jsonl", '{"video": "second.mp4", "question": "a?"}', "line 1: 'second.mp4' is not among the videos"),
        ("q.jsonl", '{"video": "first.mp4"}', "line 1: it needs a video and a question"),
        ("q.jsonl", "{", "line 1: not JSON"),
        ("q.csv", "video,question\n", "holds none"),
        ("q.csv", "", "must name a column question"),
        ("q.tsv", "video\tquestion\n", r"must end in \.txt, \.csv or \.jsonl"),
    ):
        refused(told, pairs, name, text)
    refused("is not a folder", ask_about, tmp_path / "none", None, "", list)
    (tmp_path / "empty").mkdir()
    refused("holds no videos", ask_about, tmp_path / "empty", None, "", list)


def test_questions_belong_to_ones_own_videos(capsys):
    code = main(["bench", "--task", "video", "--questions", "q.txt"])
    refuses(capsys, code, "questions belongs to a folder of videos")


def test_videos_of_a_folder_are_told_by_their_suffix_and_a_tenth_is_kept_apart(tmp_path):
    for name in ("B.MP4", "a.gif", ".hidden.mp4", "notes.txt"):
        (tmp_path / name).write_text("x" * len(name))
    (tmp_path / "frames").mkdir()
    found = find_videos(tmp_path)
    assert [path.name for path in found] == ["B.MP4", "a.gif", "frames"]
    clips = [AskedVideo(Mock(), "what?", path) for path in found[:2]]
    assert describe_clips(clips) == [["B.MP4", 5, "what?"], ["a.gif", 5, "what?"]]
    many = [AskedVideo(Mock(), each, Path(f"{number:02d}.mp4")) for number in range(25) for each in ("a?", "b?")]
    train, apart = set_apart(many)
    assert [(clip.path.name, clip.question) for clip in apart] == [
        (f"{number}.mp4", each) for number in ("00", "10", "20") for each in ("a?", "b?")
    ]
    assert len(train) == 44 and len(set_apart(clips)[1]) == 1
    (tmp_path / "q.jsonl").write_text('{"video": "B.MP4", "question": " "}')
    refused("line 1: it needs a video and a question", ask_about, tmp_path, str(tmp_path / "q.jsonl"), "", list)
