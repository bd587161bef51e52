"""Every method on tiny models: exact ones say what plain decoding and transformers' own generation say."""

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused, refuses
from torch.nn.functional import cosine_similarity

from scenes.rendering.video_file import write_video
from specdecode.drafters.draft_size import StepCosts
from specdecode.trace import DecodeTrace, TokenOrigin
from specdecode.tree import chain_layout
from vargen.cli import main
from vargen.methods.base import MethodConfig
from vargen.methods.catalogue import methods_for
from vargen.models.draft_sizes import MeasuredDraftSizes
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.methods.parallelvlm import ParallelConfig
from vargen.video.methods.speculative import SpeculativeConfig
from vargen.video.methods.trained import FlashConfig, SparrowConfig, TrainedDrafterConfig
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.frames import processor_inputs
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import VideoAnswerer, _Streamer

QUESTION = "describe the video in detail."
EXACT = [method for method in methods_for("video").values() if method.exact]


def settings_of(method: type[MethodConfig], **options: Any) -> MethodConfig:
    if method is ParallelConfig:
        options = {"workers": "in_turn", "draft_length": 3, "keep_ratio": 1.0, **options}
    return method(**options)


@pytest.mark.parametrize("method", ["ar", "sd", "flash"])
def test_a_pair_says_what_transformers_says(pair, cases, answerer_of, method):
    answerer = answerer_of(pair)
    answer = answerer.answer(cases[0].frames, QUESTION, method, max_new_tokens=30)
    inputs = processor_inputs(answerer.processor, cases[0].frames, QUESTION)
    said = answerer.model.generate(**inputs, max_new_tokens=30, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert answer.token_ids == said.tolist() and len(set(answer.token_ids)) > 2
    assert len(answer.origins) == len(answer.tokens) == len(answer.token_ids)
    assert method != "sd" or answer.trace.target_passes < len(answer.token_ids)


@pytest.mark.parametrize("method", EXACT, ids=lambda method: method.name)
def test_exact_methods_draw_what_plain_decoding_draws(qwen_pair, cases, answerer_of, method):
    answerer, drawing = answerer_of(qwen_pair), {"max_new_tokens": 25, "temperature": 1.0, "top_p": 0.9, "seed": 3}
    plain = answerer.answer(cases[0].frames, QUESTION, "ar", **drawing)
    answer = answerer.answer(cases[0].frames, QUESTION, settings_of(method), **drawing)
    assert answer.token_ids == plain.token_ids
    other = answerer.answer(cases[0].frames, QUESTION, "ar", **{**drawing, "seed": 4})
    assert other.token_ids != plain.token_ids


@pytest.mark.parametrize("dear", [True, False])
@pytest.mark.parametrize("method", [SparrowConfig(), FlashConfig(depth="auto")], ids=lambda method: method.name)
def test_chains_are_as_long_as_pays_and_the_words_stay(qwen_pair, cases, answerer_of, monkeypatch, method, dear):
    costs = StepCosts((1, 9), (1.0, 90.0 if dear else 1.0))
    monkeypatch.setattr("vargen.models.draft_sizes.assumed_step_costs", lambda *_: costs)
    monkeypatch.setattr(MeasuredDraftSizes, "clock", None)
    monkeypatch.setattr("vargen.models.draft_sizes._read", lambda _: None)
    monkeypatch.setattr("vargen.models.draft_sizes.LEAST_GAIN", 1.0)  # of a head that has learned nothing
    answerer, drawing = answerer_of(qwen_pair), {"max_new_tokens": 20, "temperature": 1.0}
    monkeypatch.setattr(answerer, "_draft_sizes", MeasuredDraftSizes())
    for seed in range(2):
        plain, drawn = (
            answerer.answer(cases[0].frames, QUESTION, each, seed=seed, **drawing) for each in ("ar", method)
        )
        assert drawn.token_ids == plain.token_ids
    (sizer,) = answerer._draft_sizes._learned.values()
    longest = (3, 4) if method.name == "flash" else (3, 5, 8)
    assert [size.depth for size in sizer.candidates] == [0, 1, 2, *longest]
    assert (sizer._best().depth > 0) != dear


TRAINED = [method for method in methods_for("video").values() if issubclass(method, TrainedDrafterConfig)]


@pytest.fixture
def forked_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafters' processes come from a server that has imported everything; one that starts anew takes seconds."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vargen.video.pipelines.answering", "vargen.video.pipelines.parallel_pair"])
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda method: context)


@pytest.mark.parametrize(("workers", "threads"), [("processes", 2), ("in_turn", 3)])
@pytest.mark.usefixtures("forked_drafters")
def test_a_core_is_left_to_the_drafter(qwen_pair, cases, answerer_of, monkeypatch, workers, threads):
    import vargen.video.pipelines.parallel_pair as parallel

    seen, before = [], torch.get_num_threads()
    decode = parallel.decode_parallel

    def watched(*arguments: Any, **keywords: Any) -> Any:
        seen.append(torch.get_num_threads())
        return decode(*arguments, **keywords)

    monkeypatch.setattr(parallel, "decode_parallel", watched)
    config = ParallelConfig(workers=workers, draft_length=2)
    torch.set_num_threads(3)
    try:
        with answerer_of(qwen_pair) as answerer:
            answerer.answer(cases[0].frames, QUESTION, config, max_new_tokens=4)
        assert seen == [threads] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "method",
    [
        SparrowConfig(),
        SpeculativeConfig(),
        ParallelConfig(workers="in_turn"),
        ParallelConfig(workers="in_turn", draft_length=2),
    ],
    ids=str,
)
def test_every_forward_pass_is_counted_those_of_a_first_use_by_themselves(qwen_pair, cases, method):
    """Beside hooks that count: twice the same question to a pair that has answered nothing."""
    answerer = VideoAnswerer.from_pretrained(str(qwen_pair / "target"), str(qwen_pair / "draft"))
    models = {"target": answerer.model, "draft": answerer.components([]).draft_weights("pair")}
    count = Counter[str]()
    for name, model in models.items():
        architecture_of(model).decoder(model).register_forward_hook(lambda *_, name=name: count.update([name]))
    for turn in range(2):
        count.clear()
        answer = answerer.answer(cases[0].frames, QUESTION, method, max_new_tokens=8)
        drafted, first = answer.draft_passes, answer.first_use
        assert drafted is not None and answer.to_dict()["draft_passes"] == drafted
        assert count["target"] == answer.trace.target_passes + first.target_passes
        assert count["draft"] == (0 if method.name == "sparrow" else drafted) + first.draft_passes
        used = method.name == "sparrow" or method == ParallelConfig(workers="in_turn")
        assert (first.target_passes > 0) is (used and turn == 0)
    answerer.close()


@pytest.mark.parametrize("tree", ["chain", "dynamic", "mc_sim_7b_63"])
@pytest.mark.parametrize("method", TRAINED, ids=lambda method: method.name)
def test_what_a_trained_drafter_took_is_told(qwen_pair, cases, answerer_of, method, tree):
    answerer = answerer_of(qwen_pair)
    answer = answerer.answer(cases[0].frames, QUESTION, method(tree=tree, depth=3), max_new_tokens=12)
    plain = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=12)
    assert answer.token_ids == plain.token_ids and plain.draft_passes is None
    steps = len(answer.trace.accepted_lengths[0])
    assert answer.draft_passes is not None and answer.draft_flops
    # One forward for the prompt; then one a step where all places are guessed at once, else one a level, as long as
    # there is something to draft.
    levels = 1 if method.name == "flash" else 3
    assert 1 + steps * (levels - 1) - 2 * levels < answer.draft_passes <= 1 + steps * levels


@pytest.mark.usefixtures("forked_drafters")
def test_two_workers_say_what_one_says(qwen_pair, cases, answerer_of):
    with answerer_of(qwen_pair) as answerer:
        answers = [
            answerer.answer(case.frames, QUESTION, ParallelConfig(workers=each, draft_length=3), max_new_tokens=20)
            for case in cases
            for each in ("processes", "in_turn")
        ]
    for number, answer in enumerate(answers):
        alone = answers[number - number % 2 + 1]
        assert answer.token_ids == alone.token_ids and answer.run_lengths == alone.run_lengths
        assert answer.trace.accepted_lengths == alone.trace.accepted_lengths


def test_relaxed_tokens_are_told(qwen_pair, cases, answerer_of):
    answerer = answerer_of(qwen_pair)
    strict, loose = (
        answerer.answer(cases[0].frames, QUESTION, LVSpecConfig(loose_ratio=ratio), max_new_tokens=40)
        for ratio in (0.0, 1.0)
    )
    plain = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=40)
    assert strict.token_ids == plain.token_ids and TokenOrigin.RELAXED not in strict.origins
    assert loose.to_dict()["relaxed_positions"]
    assert loose.trace.target_passes < strict.trace.target_passes


def test_relevance_is_read_as_the_rule_says(qwen_pair, cases, answerer_of):
    """Token by token over a prompt fed anew each time: a row, a layer, and the mean of all cosines taken off."""
    answerer, num_layers = answerer_of(qwen_pair), 3
    answer = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=5)
    (request,) = answerer.components([answerer.inputs(cases[0].frames, QUESTION)]).requests
    for row, layer, centred in (("token", -1, False), ("prediction", -2, True), ("prediction", 1, False)):
        rule = LVSpecConfig(relevance_from=row, relevance_layer=layer, relevance_centred=centred, num_nearest=2)
        after = layer if layer > 0 else num_layers + 1 + layer
        target = VideoTarget(answerer.model, request)
        target.feature_layers = (after,)
        target.prefill()
        tokens = torch.tensor([answer.token_ids])
        layout = chain_layout(*tokens.shape, tokens.device)
        every = torch.cat(
            (target.prompts[0].hidden_states, target.forward(tokens, layout.mask, layout.depth).hidden_states[0])
        )
        visual, expected = every[: request.length][request.is_visual], []
        for place in range(len(answer.token_ids)):
            state = every[request.length + place - (row == "prediction")]
            cosines = sorted((float(cosine_similarity(state, one, dim=0)) for one in visual), reverse=True)
            expected.append(sum(cosines[:2]) / 2 - centred * sum(cosines) / len(cosines))
        found = answerer.relevance(cases[0].frames, QUESTION, answer, rule)
        assert found == pytest.approx(expected, abs=1e-5)
    for layer in (0, num_layers + 1, -num_layers - 1):
        rule, line = (
            LVSpecConfig(relevance_layer=layer),
            r"lvspec\.relevance_layer must lie between 1 and the model's 3",
        )
        refused(line, answerer.answer, cases[0].frames, QUESTION, rule)


def test_text_is_streamed_as_it_is_decided(qwen_pair, cases, answerer_of):
    pieces: list[str] = []
    answer = answerer_of(qwen_pair).answer(
        cases[0].frames, QUESTION, SpeculativeConfig(), max_new_tokens=24, on_text=pieces.append
    )
    assert "".join(pieces) == answer.text and len([piece for piece in pieces if piece]) > 2


class Words:
    """A tokenizer of words in bytes, of which number 9 is special."""

    all_special_ids = (9,)

    def __init__(self, words: dict[int, bytes]) -> None:
        self.words = words

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return b"".join(self.words[token] for token in token_ids).decode(errors="replace")


def test_a_character_that_is_cut_off_hides_no_words():
    """Byte-level tokens: the last one may be the first part of a character."""
    words = {1: b"a red", 2: b" ball", 3: "\U0001f534".encode()[:2], 4: "\U0001f534".encode()[2:]}

    pieces: list[str] = []
    streamer = _Streamer(Words(words), DecodeTrace(1), pieces.append)
    tokens = torch.tensor([[1, 2, 3, 4]])
    for length in (1, 3, 4):
        streamer.step(0, SimpleNamespace(tokens=tokens, lengths=torch.tensor([length])))
    assert pieces == ["a red", " ball", "\U0001f534"], "nothing half, and nothing late"
    pieces.clear()
    streamer.shown = ""
    streamer.end([1, 2, 3])
    assert "".join(pieces) == "a red ball\ufffd", "the end is shown as it is"


def test_special_tokens_are_not_shown_and_others_keep_their_origins():
    shown: list[Any] = []
    origins = [TokenOrigin.TARGET, TokenOrigin.ACCEPTED, TokenOrigin.RELAXED]
    trace: Any = SimpleNamespace(token_origins=[origins])
    streamer = _Streamer(Words({1: b"a", 2: b" ball", 9: b"</s>"}), trace, on_tokens=lambda *given: shown.append(given))
    streamer.end([1, 9, 2])
    assert shown == [(["a", " ball"], [TokenOrigin.TARGET, TokenOrigin.RELAXED])]


def test_the_command(qwen_pair, cases, tmp_path, capsys):
    video = tmp_path / "video.mp4"
    write_video(cases[0].frames.frames, video)
    models = ["--model", str(qwen_pair / "target"), "--draft_model", str(qwen_pair / "draft"), "--max_new_tokens", "16"]
    assert main(["caption", str(video), QUESTION, "--method", "sd", *models]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip() and "target passes" in shown.err
    picture = tmp_path / "answer.png"
    assert main(["caption", str(video), "--method", "lvspec", "--json", "--picture", str(picture), *models]) == 0
    account = json.loads(capsys.readouterr().out)
    assert account["method"]["name"] == "lvspec" and len(account["token_ids"]) == len(account["origins"]) <= 16
    assert account["mean_accepted_length_with_bonus"] >= account["mean_accepted_length"]
    assert picture.stat().st_size > 1000
    code = main(["caption", str(video), "--method", "sd", "--method_options.draft_length", "0", *models])
    refuses(capsys, code, "draft_length")


@pytest.mark.usefixtures("forked_drafters")
def test_a_window_measured_in_a_short_answer_is_not_a_long_ones(qwen_pair, cases):
    with VideoAnswerer.from_pretrained(str(qwen_pair / "target"), str(qwen_pair / "draft")) as answerer:
        measured = [
            answerer.answer(cases[0].frames, QUESTION, "parallelvlm", max_new_tokens=room).first_use.target_passes > 0
            for room in (1, 24, 1, 24)
        ]
    assert measured == [True, True, False, False]


def test_what_is_missing_is_named(qwen_pair, cases, tmp_path):
    alone, asked = VideoAnswerer.from_pretrained(str(qwen_pair / "target")), (cases[0].frames, QUESTION)
    for method in ("sd", "parallelvlm"):
        refused("draft_model", alone.answer, *asked, method)
    refused(r"flash\.depth must be at most 4", alone.answer, *asked, FlashConfig(depth=5))
    answer = VideoAnswerer(alone.model, alone.processor).answer
    refused(r"sparrow\.drafter must be given.*train video-drafter --kind sparrow", answer, *asked, "sparrow")
    refused("sparrow: drafter: .* holds no", answer, *asked, SparrowConfig(drafter=str(tmp_path)))
    draft = VideoAnswerer.from_pretrained(str(qwen_pair / "draft"))  # of the same sizes, with other weights
    head = SparrowConfig(drafter=str(qwen_pair / "target/drafters/sparrow"))
    refused("trained on other features", draft.answer, *asked, head)
    refused("max_new_tokens", alone.answer, *asked, "ar", max_new_tokens=0)
    refused("temperature", alone.answer, *asked, "ar", temperature=-1.0)
    refused(r"config\.json", VideoAnswerer.from_pretrained, str(tmp_path))


def test_a_drafter_of_other_words_is_refused(qwen_pair, tmp_path):
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(qwen_pair / "draft")
    processor.tokenizer.add_tokens(["zebra"])
    for file in (qwen_pair / "draft").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    processor.save_pretrained(tmp_path)
    pair = str(qwen_pair / "target"), str(tmp_path)
    refused("draft_model has another tokenizer", VideoAnswerer.from_pretrained, *pair)


@pytest.mark.usefixtures("forked_drafters")
def test_a_drafter_that_dies_fails_the_answer_and_not_the_next(qwen_pair, cases, answerer_of):
    import os
    import signal

    config = ParallelConfig(draft_length=3)
    with answerer_of(qwen_pair) as answerer:
        plain = answerer.answer(cases[0].frames, QUESTION, "ar", max_new_tokens=10)
        answerer.answer(cases[0].frames, QUESTION, config, max_new_tokens=10)
        (pair,) = answerer._lasting.values()
        os.kill(pair.channel.pid, signal.SIGKILL)
        refused("SIGKILL", answerer.answer, cases[0].frames, QUESTION, config, max_new_tokens=10)
        again = answerer.answer(cases[0].frames, QUESTION, config, max_new_tokens=10)
        assert again.token_ids == plain.token_ids
