"""Training of feature drafters: what they are shown and asked is what they are shown and asked when they draft."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from noise_videos import FIRST_SEEDS, FRAMES, SIZE, NoiseVideos, save_target, short_run
from refusals import refused, refuses
from resumed import stop_and_go_on
from safetensors import safe_open
from small_video_llms import ARCHITECTURES
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.drafters.tree_shapes import DynamicTree
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.cli import main
from vargen.training.run import RunResult
from vargen.video.drafters.video_draft_head import VideoDraftHead
from vargen.video.drafters.video_head import KINDS, TargetStates
from vargen.video.drafters.video_head_folder import load_video_head, new_video_head
from vargen.video.models.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs
from vargen.video.models.request import prepare_request
from vargen.video.models.target import VideoTarget
from vargen.video.training import video_questions
from vargen.video.training.video_answers import rendered_questions
from vargen.video.training.video_drafter import (
    VideoDrafterTask,
    VideoDrafterTrainingConfig,
    drafting_passes,
    offset_losses,
    train_video_drafter,
)
from vargen.video.training.video_questions import AskedVideo, Questions, generate_answers, render
from vargen.video.training.video_states import StatesFolder, TeacherForcing

LAYERS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target of each architecture, with its processor."""
    return {each: save_target(tmp_path_factory.mktemp(each), each, LAYERS) for each in ARCHITECTURES}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def target_folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture(scope="module")
def qwen_folder(folders: dict[str, Path]) -> Path:
    return folders["qwen2_5_vl"]


def load(folder: Path) -> tuple[Any, Any]:
    from vargen.video.pipelines.answering import VideoAnswerer

    answerer = VideoAnswerer.from_pretrained(str(folder))
    return answerer.model, answerer.processor


def training_config(target: Path, folder: Path, **changes: Any) -> VideoDrafterTrainingConfig:
    values = {**short_run(target, folder), "num_decoded_videos": 1, "optimizer": "muon"}
    return VideoDrafterTrainingConfig(**{**values, **changes})


def train_on_noise(config: VideoDrafterTrainingConfig, first_seeds: dict[str, int] = FIRST_SEEDS) -> RunResult:
    return train_video_drafter(config, rendered_questions(config, NoiseVideos(), first_seeds))


def clips_of(processor: Any, *frames: int) -> Any:
    """Questions about noise of so many frames by turns, a function of its number."""

    def inputs(number: int) -> dict[str, Tensor]:
        count = frames[number % len(frames)]
        noise = torch.rand(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(number))
        return processor_inputs(processor, VideoFrames.from_frames(noise), CAPTION_PROMPTS[0])

    return SimpleNamespace(inputs=inputs, split="train", batch_size=3, described={})


def questions_of(processor: Any) -> Questions:
    videos = [AskedVideo(partial(render, NoiseVideos(), 5 + each, "train"), CAPTION_PROMPTS[0]) for each in range(8)]
    return Questions(processor, None, videos, {"first_seed": 5}, "train", 2)


def reader_of(
    folder: Path,
    layer: int | None = 1,
    gib: float = 0.0,
    lengths: Sequence[int] = (9, 6),
    kept: StatesFolder | None = None,
) -> TeacherForcing:
    model, processor = load(folder)
    generator = torch.Generator().manual_seed(0)
    answers = [torch.randint(20, 60, (length,), generator=generator).tolist() for length in lengths]
    return TeacherForcing(model, questions_of(processor), answers, layer, torch.float32, gib * 2**30, kept)


def test_states_are_what_the_target_gives_when_it_decodes(target_folder):
    """Fed token by token behind the processor's own prompt, with the layer's states by transformers' own list."""
    for layer in (0, 1, LAYERS):
        reader = reader_of(target_folder, layer)
        states, learned = reader.batches([0, 1])[0]
        for row, answer in enumerate(reader.answers):
            request = prepare_request(reader.model, reader.questions.inputs(row))
            length = request.input_ids.shape[1]
            target = VideoTarget(reader.model, request)
            target.prefill()
            features = [target.prompts[0].hidden_states[None]]
            zero, one = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long)
            for token in answer:
                output = target.forward(torch.tensor([[token]]), one.bool().view(1, 1, 1), zero)
                features.append(output.hidden_states)
                target.commit(zero, one)
            wanted = torch.cat(features, dim=1)[0]  # type: ignore[arg-type]
            torch.testing.assert_close(states.features[row, : len(wanted)], wanted, rtol=1e-3, atol=1e-3)
            ids = torch.cat((request.input_ids[0], torch.tensor(answer)))
            embeds = reader.model.get_input_embeddings()(ids[None])[0]
            embeds[:length][request.is_visual] = request.inputs_embeds[0, request.is_visual]
            torch.testing.assert_close(states.embeds[row, : len(wanted)], embeds)
            assert torch.equal(states.positions[:, row, :length], request.position_ids[:, 0])
            after = request.next_position + torch.arange(len(answer))
            assert torch.equal(states.positions[:, row, length : len(wanted)], after.expand(len(states.positions), -1))
            assert learned[row].nonzero()[:, 0].tolist() == list(range(length, len(wanted) - 1))
            inside = reader.model.model.language_model(
                inputs_embeds=request.inputs_embeds,
                attention_mask=torch.ones_like(request.input_ids),
                position_ids=request.position_ids if len(request.position_ids) > 1 else request.position_ids[0],
                output_hidden_states=True,
            ).hidden_states
            if layer < LAYERS:  # the list ends with the state after the last norm
                assert states.visual_states is not None
                torch.testing.assert_close(
                    states.visual_states[row], inside[layer][0, request.is_visual], rtol=1e-3, atol=1e-3
                )


class Oracle(torch.nn.Module):
    """Knows the true features: from a pair of embedding and feature it reads off the places after it.

    It recognises a pair by its numbers, so whatever is shifted by one is not recognised, and guessed to be zero.
    """

    def __init__(self, network: Any, truth: TargetStates, places: int) -> None:
        super().__init__()
        self.network, self.places = network, places
        rows = network.rows(truth, with_video=True)
        self.known = rows.inputs[:, rows.text_rows]  # [B, n, dim]
        self.features = truth.features[:, rows.text_places]
        self.rows = network.rows

    def forward(self, inputs: Tensor, positions: Tensor) -> Tensor:
        return inputs

    def guesses(self, rows: Tensor) -> Tensor:
        same = torch.cdist(rows, self.known) < 1e-3  # [B, n, n]
        futures = [F.pad(self.features[:, place:], (0, 0, 0, place)) for place in range(self.places)]
        return torch.stack([same.float() @ future for future in futures], dim=2)


def oracle_losses(reader: TeacherForcing, places: int, passes: int) -> list[Tensor]:
    network = new_video_head("sparrow", reader.model, visual_layer=1)
    torch.manual_seed(3)
    with torch.no_grad():
        network.fc.weight.normal_()  # or a pair and its neighbour might add up alike
    truth, learned = reader.batches([0, 1])[0]
    oracle: Any = Oracle(network, truth, places)
    losses = []
    for guesses, at in drafting_passes(oracle, truth, learned, passes, with_video=True):
        losses += list(offset_losses(guesses, truth.features[:, at], learned[:, at], reader.model.lm_head))
    return losses


@torch.no_grad()
def test_an_oracle_has_no_loss_at_any_place(target_folder):
    for loss in oracle_losses(reader_of(target_folder), places=5, passes=3):
        assert loss.shape == (5,)
        torch.testing.assert_close(loss, torch.zeros(5), atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_second_pass_reads_guesses_where_there_are_any(qwen_folder):
    """The first answered token's own state is guessed; the states of the prompt stay the target's."""
    reader = reader_of(qwen_folder)
    network = new_video_head("sparrow", reader.model, visual_layer=1)
    states, learned = reader.batches([0, 1])[0]
    network.rows = Mock(wraps=network.rows)
    (first, places), _ = drafting_passes(network, states, learned, 2, with_video=True)
    seen = [call.args[0] for call in network.rows.call_args_list]
    for row in range(2):
        for number, place in enumerate(places.tolist()):
            kept = torch.equal(seen[1].features[row, place], states.features[row, place])
            own = torch.equal(seen[1].features[row, place], first[row, number, 0])
            assert (own, kept) == ((True, False) if learned[row, place] else (False, True))
    assert seen[1].visual_states is states.visual_states


def test_losses_are_written_out():
    generator = torch.Generator().manual_seed(0)
    guesses, features = torch.randn(2, 6, 3, 4, generator=generator), torch.randn(2, 6, 4, generator=generator)
    learned = torch.tensor([[0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0]]).bool()
    head = torch.nn.Linear(4, 7, bias=False).requires_grad_(False)
    regression, classification = offset_losses(guesses, features, learned, head)
    for place in range(3):
        first, second = [], []
        for row in range(2):
            for at in range(6):
                if at + place < 6 and learned[row, at] and learned[row, at + place]:
                    guess, wanted = guesses[row, at, place], features[row, at + place]
                    first.append(float(F.smooth_l1_loss(guess, wanted)))
                    truth, drafted = head(wanted).softmax(-1), head(guess).softmax(-1)
                    second.append(sum(float(t * (t / d).log()) for t, d in zip(truth, drafted, strict=True)))
        assert float(regression[place]) == pytest.approx(sum(first) / len(first), rel=1e-4)
        assert float(classification[place]) == pytest.approx(sum(second) / len(second), rel=1e-4)
    alone = torch.tensor([[0, 0, 0, 0, 1, 0]]).bool()
    losses = offset_losses(guesses[:1], features[:1], alone, head)
    assert losses[0][1:].tolist() == [0, 0] and all(math.isfinite(value) for value in losses[1].tolist())


def test_answers_are_the_targets_and_are_kept(target_folder, tmp_path, monkeypatch):
    model, processor = load(target_folder)
    questions, made = questions_of(processor), []
    generate = video_questions.generate_batch

    def counted(*args: Any) -> Tensor:
        made.append(1)
        if len(made) == 2:
            raise KeyboardInterrupt
        return generate(*args)

    monkeypatch.setattr(video_questions, "generate_batch", counted)

    def answers(**changes: Any) -> list[list[int]]:
        settings = {"target": "a", **changes}
        return generate_answers(model, questions, 4, tmp_path, settings=settings, max_new_tokens=8)

    with pytest.raises(KeyboardInterrupt):
        answers()
    kept = answers()
    assert len(made) == 3, "only the second batch was missing"
    assert answers() == kept and len(made) == 3
    for number, tokens in enumerate(kept):
        target = VideoTarget(model, prepare_request(model, questions.inputs(number)))
        plain = decode(
            target, max_new_tokens=8, sampling=SamplingConfig(temperature=0.0), streams=RandomStreams.from_seeds([0]),
            stop_token=video_questions.stop_tokens(model),
        )  # fmt: skip
        assert tokens == plain.tokens[0, : int(plain.lengths[0])].tolist()
    refused(r'holds answers with another target \("a", now "b"\)', answers, target="b")
    next(tmp_path.iterdir()).write_bytes(b"{")
    refused(r"^answers: .* cannot be read \(.*\); delete it$", answers)


def test_answers_end_where_they_end(qwen_folder, monkeypatch):
    model, processor = load(qwen_folder)
    inputs = [questions_of(processor).inputs(0)]
    whole = video_questions.generate_batch(model, inputs, 8)[0].tolist()
    end = whole[3]
    monkeypatch.setattr(model.generation_config, "eos_token_id", [end])
    cut = video_questions.generate_batch(model, inputs, 8)[0].tolist()
    length = whole.index(end) + 1
    assert cut[:length] == whole[:length] and all(token == -1 for token in cut[length:])


def check_same(found: list[tuple[TargetStates, Tensor]], wanted: list[tuple[TargetStates, Tensor]]) -> None:
    """Bit for bit."""
    each = ([(vars(states), learned) for states, learned in parts] for parts in (found, wanted))
    torch.testing.assert_close(*each, rtol=0, atol=0)


@pytest.mark.parametrize("layer", [1, None])
def test_states_in_files_are_those_in_memory_and_are_worked_out_once(qwen_folder, tmp_path, monkeypatch, layer):
    """A kill costs the answer that it interrupts; another run works out nothing."""
    lengths, worked_out, stop = (9, 6, 7, 5, 8), [], [True]
    folder = StatesFolder(tmp_path / "states", {"target": "a"})
    states = TeacherForcing.states

    def counted(self: TeacherForcing, number: int) -> Any:
        if worked_out and stop:
            raise KeyboardInterrupt
        worked_out.append(number)
        return states(self, number)

    def reader(folder: StatesFolder | None, lengths: Sequence[int] = lengths) -> TeacherForcing:
        return reader_of(qwen_folder, layer, 1.0, lengths, folder)

    memory = reader(None)
    expected = [memory.batches(numbers) for numbers in ([0, 1], [4, 2, 2])]
    monkeypatch.setattr(TeacherForcing, "states", counted)
    with pytest.raises(KeyboardInterrupt):
        reader(folder).batches([0, 1])
    stop.clear()
    for _ in range(2):
        files = reader(folder)
        for numbers, wanted in zip(([0, 1], [4, 2, 2]), expected, strict=True):
            check_same(files.batches(numbers), wanted)
    assert worked_out == [0, 1, 4, 2]
    never = reader_of(qwen_folder, layer, 0.0, lengths)
    check_same(never.batches([4, 2, 2]), expected[1])
    assert not never._kept and 4 in memory._kept
    other = reader(StatesFolder(folder.path, {"target": "b"}))
    refused(r'^states: .* holds states with another target \("a", now "b"\)', other.batches, [0])
    refused("holds states with another answer", reader(folder, (9, 6, 8, 5, 8)).batches, [2])
    damaged = sorted(folder.path.iterdir())[1]
    damaged.write_bytes(damaged.read_bytes()[:200])
    refused(rf"^states: .*{damaged.name} cannot be read \(.*\); delete it$", reader(folder).batches, [1])


@pytest.mark.parametrize(("kind", "architecture"), zip(KINDS, itertools.cycle(ARCHITECTURES), strict=False))
def test_a_run_exports_a_drafter(folders, tmp_path, kind, architecture):
    config = training_config(folders[architecture], tmp_path, kind=kind, autocast=kind in ("sparrow", "flash"))
    result = train_on_noise(config)
    assert result.finished
    assert {*(f"agreement_{place}" for place in range(1, 5)), "accepted_length"} == set(result.evaluation)
    model, processor = load(folders[architecture])
    network = load_video_head(tmp_path / "export", model)
    assert network.config.kind == kind
    request = prepare_request(model, questions_of(processor).inputs(0))
    target = VideoTarget(model, request, capture_layers=network.config.capture_layers)
    settings: dict[str, Any] = {
        "max_new_tokens": 10,
        "sampling": SamplingConfig(temperature=0.0),
        "streams": RandomStreams.from_seeds([0]),
    }
    plain = decode(VideoTarget(model, request), **settings)
    drafter = VideoDraftHead(network, target).drafter(DynamicTree(4), FixedDraftSize(DraftSize(10, 3)))
    assert torch.equal(plain.tokens, decode(target, drafter=drafter, **settings).tokens)


def test_a_resumed_run_ends_with_the_same_weights(qwen_folder, tmp_path, monkeypatch):
    """Half of the states fit into memory, so both ways of getting them are taken."""
    config = training_config(
        qwen_folder, tmp_path / "a", answers=str(tmp_path / "answers"), memory_gib=1e-5, autocast=True, steps=4
    )
    loss, kept = VideoDrafterTask.loss, []
    monkeypatch.setattr(
        VideoDrafterTask, "loss", lambda self, *given: kept.append(len(self.training._kept)) or loss(self, *given)
    )
    stop_and_go_on(VideoDrafterTask, train_on_noise, config, tmp_path, 2)
    assert 0 < kept[-1] < config.num_videos


@pytest.mark.parametrize("kind", ["sparrow", "flash"])
def test_it_learns_to_be_accepted(qwen_folder, tmp_path, kind):
    """By heart, what it is asked again: the drafts of a whole answer are accepted."""
    config = training_config(
        qwen_folder, tmp_path, kind=kind, num_videos=1, evaluation_size=1, steps=120, learning_rate=4e-3,
        muon_learning_rate=1e-2, feature_noise=0.0, log_every=40, evaluate_every=1000, ema_decay=0.0, weight_decay=0.0,
        token_loss_weight=1.0, max_new_tokens=16, text_only=False,
    )  # fmt: skip
    result = train_on_noise(config, dict.fromkeys(FIRST_SEEDS, FIRST_SEEDS["heldout"]))
    assert result.evaluation["agreement_1"] > 0.6
    assert result.evaluation["accepted_length"] > 1.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_frames": 2}, "num_frames"),
        ({"num_decoded_videos": 65}, "num_decoded_videos"),
        ({"compile": True}, "compile"),
        ({"questions": "asked.txt"}, "questions.*belongs to a folder"),
        ({"videos": "clips", "fps": 2.0, "num_frames": 8}, "fps.*cannot both"),
    ],
)
def test_bad_settings_are_named(changes, named):
    refused(named, VideoDrafterTrainingConfig, "x", **changes)


def test_settings_that_do_not_fit_the_target_are_named(qwen_folder, tmp_path):
    model, _ = load(qwen_folder)
    refused("num_queries", training_config(qwen_folder, tmp_path, num_queries=3).new_video_head, model)
    config = training_config(qwen_folder, tmp_path, steps=1)
    train_on_noise(config)
    refused("draft_length", train_on_noise, replace(config, draft_length=2))
    refused("max_new_tokens", train_on_noise, replace(config, max_new_tokens=11))


@pytest.mark.parametrize(("kind", "share", "expected"), [("sparrow", None, 0.5), ("msd", None, 0.0), ("msd", 1.0, 1.0)])
def test_a_share_of_steps_is_blind(qwen_folder, tmp_path, monkeypatch, kind, share, expected):
    reader = reader_of(qwen_folder)
    config = training_config(qwen_folder, tmp_path, kind=kind, blind_share=share)
    task = VideoDrafterTask(config, reader.model, reader, reader)
    monkeypatch.setattr(task.drafter, "rows", rows := Mock(wraps=task.drafter.rows))
    steps = 24 if 0 < expected < 1 else 4
    for step in range(steps):
        task.loss(step, 0.0)
    seen = [call.args[1] for call in rows.call_args_list]
    blind = seen.count(False) / len(seen)
    assert abs(blind - expected) <= (0.3 if 0 < expected < 1 else 0.0)


def test_videos_of_several_sizes_are_learned_from_each_as_alone(qwen_folder, tmp_path):
    """The loss of a batch is the mean of what its parts have; parts hold those whose visual tokens stand alike."""
    model, processor = load(qwen_folder)
    short, long, both = (clips_of(processor, *each) for each in ((FRAMES,), (2 * FRAMES,), (FRAMES, 2 * FRAMES)))
    answers = [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29, 30, 31]]
    config = training_config(qwen_folder, tmp_path, kind="eagle", feature_noise=0.0)

    def loss(questions: Any, numbers: list[int]) -> float:
        reader = TeacherForcing(model, questions, answers, None, torch.float32, 0)
        task = VideoDrafterTask(config, model, reader, reader)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randint", lambda *args, **kwargs: torch.tensor(numbers))
            return float(task.loss(0, 0.0)[0].detach())

    parts = TeacherForcing(model, both, answers, None, torch.float32, 0).batches([0, 1, 2])
    assert [len(learned) for _, learned in parts] == [2, 1]
    assert loss(both, [0, 1, 2]) == pytest.approx((2 * loss(short, [0, 2]) + loss(long, [1])) / 3, rel=1e-4)


def test_a_users_own_videos_train_a_drafter(qwen_folder, tmp_path, capsys):
    """Of two lengths; the folder says which, and one of them is kept apart."""
    for number, frames in enumerate((4, 6, 4)):
        pictures = tmp_path / "clips" / f"clip{number}"
        pictures.mkdir(parents=True)
        for at, frame in enumerate(torch.rand(frames, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(number))):
            to_pil_image(frame).save(pictures / f"{at}.png")
    arguments = ["train", "video-drafter", "--model", str(qwen_folder), "--videos", str(tmp_path / "clips")]
    arguments += ["--output", str(tmp_path / "run"), "--max_new_tokens", "6", "--steps", "2"]
    arguments += ["--batch_size", "3", "--evaluation_size", "2", "--num_decoded_videos", "1", "--autocast", "false"]
    assert main(arguments) == 0
    assert "training of the video-drafter is over" in capsys.readouterr().out
    assert load_video_head(tmp_path / "run" / "export", load(qwen_folder)[0]).config.kind == "sparrow"
    answers = sorted(path.name for path in (tmp_path / "run" / "answers").glob("*.safetensors"))
    assert answers == ["heldout-0000000.safetensors", "train-0000000.safetensors"]
    with safe_open(tmp_path / "run" / "answers" / answers[1], "pt") as file:
        assert len(file.get_tensor("tokens")) == 2 * len(CAPTION_PROMPTS)
    refuses(capsys, main([*arguments, "--questions", str(tmp_path / "none.txt")]), "none.txt")
    (tmp_path / "one" / "only").mkdir(parents=True)
    code = main([*arguments[:5], str(tmp_path / "one"), "--output", str(tmp_path / "other")])
    refuses(capsys, code, "give two or more")
