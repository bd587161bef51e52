"""Training of Video-LLMs: what the model is shown and told is what it will be shown and asked when it is used."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import raised, refused
from resumed import stop_and_go_on
from transformers import AutoModelForImageTextToText, AutoProcessor

from scenes.captions.story_captions import compose_written_caption
from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig
from scenes.models.processor import build_processor
from scenes.rendering import camera
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import COLOURS, SHAPES
from scenes.rendering.story import sample_story
from scenes.rendering.video import KINDS
from scenes.training import video_data, video_llm
from scenes.training.video_llm import VideoLLMTask, VideoLLMTrainingConfig, train_video_llm
from scenes.training.video_views import hidden_states
from vargen.video.models.frames import CAPTION_PROMPTS, VideoFrames, processor_inputs

SIZE, FRAMES = 64, 8
FEW_TOKENS = 30
"""Of a caption: a fresh model never ends one."""
DEEP = TextModelConfig(32, 64, 4, 4, 2)
MOVES = ("goes left", "goes right", "comes closer", "goes away")


def model_config(**changes: Any) -> VideoLLMConfig:
    towers = {"text": TextModelConfig(32, 64, 2, 4, 2), "vision": TowerConfig(32, 64, 2, 2)}
    return VideoLLMConfig(**{"image_size": SIZE, "num_frames": FRAMES, **towers, **changes})


def training_config(folder: Path, **changes: Any) -> VideoLLMTrainingConfig:
    values: dict[str, Any] = {
        "output": str(folder), "batch_size": 2, "steps": 4, "evaluation_size": 2, "log_every": 1, "warmup_steps": 1,
        "optimizer": "muon",
    }  # fmt: skip
    return VideoLLMTrainingConfig(**{"shape": model_config(), **values, **changes})


SOURCE = video_data.RenderedVideoSource(SIZE, FRAMES, torch.device("cpu"))


def task_of(config: VideoLLMTrainingConfig) -> VideoLLMTask:
    return VideoLLMTask(config, SOURCE, torch.device("cpu"))


@pytest.fixture(scope="module")
def batch():
    return SOURCE(0, 3, "train")


def test_patches_are_the_processors(batch):
    processor = build_processor(SIZE, 8)
    bytes_of = (batch.frames * 255).round().to(torch.uint8)
    patches, grid = video_data.qwen_patches(bytes_of.float() / 255, 8)
    for number, frames in enumerate(bytes_of):
        inputs = processor_inputs(processor, VideoFrames.from_frames(frames), "what?")
        expected = inputs["pixel_values_videos"]
        torch.testing.assert_close(patches.view(3, -1, patches.shape[1])[number], expected, atol=1e-5, rtol=0)
        assert torch.equal(grid[number : number + 1], inputs["video_grid_thw"])


def test_training_sees_what_the_model_will_see(batch, tmp_path):
    """Logits of the trainer's own forward equal those of the unmodified model on the processor's own inputs."""
    task = task_of(training_config(tmp_path))
    frames = (batch.frames * 255).round().to(torch.uint8)[:1]
    inputs = processor_inputs(task.processor, VideoFrames.from_frames(frames[0]), CAPTION_PROMPTS[0])
    ids = torch.tensor([task._about(task.config.shape.num_frames).prompt(CAPTION_PROMPTS[0])])
    assert torch.equal(ids, inputs["input_ids"])
    with torch.no_grad():
        expected = task.model(**inputs).logits
        view = task.view(ids, task._features(frames.float() / 255), FRAMES)
        actual = task.model.lm_head(hidden_states(task.model.model.language_model, view))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_captions_are_what_transformers_generates(batch, tmp_path, monkeypatch):
    task = task_of(training_config(tmp_path))
    monkeypatch.setattr(video_llm, "MAX_CAPTION_TOKENS", FEW_TOKENS)
    # Tied to its embeddings, an untrained head says the same word over and over.
    task.model.lm_head.weight = torch.nn.Parameter(torch.randn_like(task.model.lm_head.weight))
    frames = (batch.frames * 255).round().to(torch.uint8)
    for text, each in zip(task.captions(frames.float() / 255), frames, strict=True):
        inputs = processor_inputs(task.processor, VideoFrames.from_frames(each), CAPTION_PROMPTS[0])
        tokens = task.model.generate(**inputs, max_new_tokens=FEW_TOKENS, do_sample=False)
        answer = tokens[0, inputs["input_ids"].shape[1] :]
        assert text == task.tokenizer.decode(answer, skip_special_tokens=True)
        assert text


def test_stories_are_learned_from_parts_of_them_at_several_lengths(tmp_path, monkeypatch):
    """Everything that makes long videos affordable at once: lengths, parts, early readers, states like the question."""
    monkeypatch.setattr(video_llm, "MAX_CAPTION_TOKENS", FEW_TOKENS)
    config = training_config(
        tmp_path, steps=12, learning_rate=3e-3, frame_counts=(8, 12), short_until=0.3, kept_shares=(1.0, 0.5, 0.2),
        fusion_share=0.5, repeats=(1, 4), grounded_layer=1, alignment_weight=0.5,
    )  # fmt: skip
    config.shape = model_config(text=TextModelConfig(32, 64, 3, 4, 2))
    result = train_video_llm(config)
    assert result.finished and {"sequence_pruned", "all_shuffled", "objects"} <= set(result.evaluation)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [each["answers"] for each in log if "answers" in each]
    assert losses[-1] < losses[0] - 0.25
    processor = AutoProcessor.from_pretrained(tmp_path / "export")
    assert processor.tokenizer.unk_token_id not in processor.tokenizer("it seems that the ball drifts left").input_ids


def test_what_is_asked_about_grows_like_the_question(tmp_path, monkeypatch):
    """The alignment loss is told the tokens of the object that a question names, and of all where it names none."""
    config = training_config(tmp_path, batch_size=6, question_share=1.0, alignment_weight=0.5)
    task, told = task_of(config), []
    monkeypatch.setattr(video_llm, "alignment_loss", lambda *given: told.append(given[-1]) or torch.zeros(()))
    task.loss(0, 0.0)
    videos = [sample_story(number, FRAMES) for number in range(6)]
    truth = video_data.grounding_targets(videos, range(1, FRAMES, 2), config.shape.grid_size)
    kinds = set()
    for number, (video, shown) in enumerate(zip(videos, told[0], strict=True)):
        ids, _, named = task._about(FRAMES).about(video, 0, 1.0)
        question = task.tokenizer.decode(ids).split("?")[0]
        for colour, shape in itertools.product(COLOURS, SHAPES):
            assert (f"{colour} {shape}" in question) <= (named != (0, 0))
        pairs = zip(truth["colour"][number].tolist(), truth["shape"][number].tolist(), strict=True)
        assert shown.tolist() == [shape > 0 and named in ((0, 0), (colour, shape)) for colour, shape in pairs]
        kinds.add(named == (0, 0))
    assert kinds == {True, False}


def test_only_answers_are_learned():
    tokenizer = build_processor(SIZE, 8).tokenizer
    conversations = video_data.Conversations(tokenizer, 8)
    turns = [("what does the red cube do?", "it appears"), ("how many objects are there in the video?", "two")]
    ids, labels = conversations.sample(turns)
    learned = tokenizer.decode([label for label in labels if label != video_data.IGNORED])
    assert learned.split() == ["it", "appears", "<|im_end|>", "two", "<|im_end|>"]
    assert ids.count(tokenizer.convert_tokens_to_ids("<|video_pad|>")) == 8
    assert all(label in (video_data.IGNORED, token) for token, label in zip(ids, labels, strict=True))
    padded_ids, padded_labels = video_data.pad([(ids, labels), (ids[:5], labels[:5])], 0)
    assert padded_ids[1, 5:].eq(0).all() and padded_labels[1, 5:].eq(video_data.IGNORED).all()


def test_captions_and_questions_come_in_their_shares():
    conversations = video_data.Conversations(build_processor(SIZE, 8).tokenizer, 8)
    video = sample_story(3, 8)
    caption = compose_written_caption(video, 5).text
    _, labels, named = conversations.about(video, 5, question_share=0.0)
    assert named == (0, 0)
    words = conversations.tokenizer.decode([label for label in labels if label != video_data.IGNORED][:-1])
    assert words.replace(" .", ".").replace(" ,", ",") == caption
    shares = [len(conversations.about(video, seed, 0.5)[1]) > 100 for seed in range(60)]
    assert 15 < sum(shares) < 45


def test_visual_tokens_are_told_what_they_show():
    """The cell in which an object's middle lies is told its name, unless a nearer object's box is in front of it."""
    videos = [sample_story(seed, 8) for seed in range(30)]
    grid, checked = 6, 0
    targets = video_data.grounding_targets(videos, [1, 7], grid)
    assert targets["colour"].shape == (30, 2 * grid * grid)
    for number, video in enumerate(videos):
        for place, step in enumerate([1, 7]):
            cells = {name: values[number].view(2, grid, grid)[place] for name, values in targets.items()}
            scene = video.frames[step]
            for item in scene.objects:
                if any(other.depth < item.depth for other in scene.objects if other is not item):
                    continue
                middle = torch.tensor([[item.x, 0.5 * item.height, item.depth]])
                column, row = camera.project(middle, grid)[0].long().tolist()
                corner = camera.project(torch.tensor([[item.x + item.half_width, item.height, item.depth]]), grid)[0]
                width, height = (corner - camera.project(middle, grid)[0]).abs().tolist()
                if not (0 <= column < grid and 0 <= row < grid) or min(width, height) < 0.5:
                    continue
                assert cells["colour"][row, column] == 1 + COLOURS.index(item.colour)
                assert cells["shape"][row, column] == 1 + SHAPES.index(item.shape)
                checked += 1
            assert (cells["colour"] == 0).any()
    assert checked > 25


def test_visual_tokens_are_told_the_setting_and_what_happens():
    """Where nothing stands: the sky above the horizon, the ground below it, as the renderer draws them; everywhere the
    light; and of an object what happens to it, while it does."""
    videos, grid = [sample_story(seed, 16) for seed in range(24)], 8
    steps = range(1, 16, 2)
    targets = video_data.grounding_targets(videos, steps, grid)
    told = {name: each.view(24, 8, grid, grid) for name, each in targets.items()}
    mask = SceneRenderer(8 * grid)(videos[0].frames[:1]).ground_mask.view(grid, 8, grid, 8).mean((1, 3))
    seen = set()
    for number, video in enumerate(videos):
        scene, bare = video.frames[0], told["shape"][number] == 0
        surface = told["surface"][number]
        names = video_data.VIDEO_GROUNDING["surface"]
        expected = torch.where(mask > 0.5, 1 + names.index(scene.ground), 1 + names.index(scene.sky)).expand(8, -1, -1)
        assert torch.equal(surface, expected * bare)
        assert told["light"][number].eq(1 + video_data.VIDEO_GROUNDING["light"].index(video.light)).all()
        assert not told["event"][number][bare].any()
        for turn, event in enumerate(video.events):
            colour, shape = video.name_in(turn)
            for step, frame in enumerate(steps):
                if not (event.first < frame < event.last and event.kind in MOVES):
                    continue
                who = told["shape"][number, step] == 1 + SHAPES.index(shape)
                who &= told["colour"][number, step] == 1 + COLOURS.index(colour)
                assert told["event"][number, step][who].eq(1 + KINDS.index(event.kind)).all()
                others = told["event"][number, step][~who & ~bare[step]]
                assert not others.any()
                seen.add(event.kind)
    assert len(seen) > 2


def test_a_run_learns_resumes_and_exports(tmp_path, monkeypatch):
    monkeypatch.setattr(video_llm, "MAX_CAPTION_TOKENS", FEW_TOKENS)
    config, results = training_config(tmp_path, steps=12, learning_rate=3e-3), []
    folder = stop_and_go_on(VideoLLMTask, lambda given: results.append(train_video_llm(given)), config, tmp_path, 6)
    assert results[0].finished and {"all", "events_shuffled", "all_none"} <= set(results[0].evaluation)
    model = AutoModelForImageTextToText.from_pretrained(folder / "export")
    processor = AutoProcessor.from_pretrained(folder / "export")
    frames = SOURCE(0, 1, "train").frames[0]
    inputs = processor_inputs(processor, VideoFrames.from_frames(frames), "describe the video in detail.")
    assert model.generate(**inputs, max_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3


def test_a_drafter_starts_from_layers_of_its_target(tmp_path):
    """One model run through the picked layers alone is what the drafter begins as."""
    task_of(training_config(tmp_path / "target", shape=model_config(text=DEEP))).export(tmp_path / "target")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "target", dtype=torch.float32)
    inside = model.model.language_model
    inside.layers = torch.nn.ModuleList([inside.layers[3], inside.layers[0]])
    start = {"initial_weights": str(tmp_path / "target"), "initial_layers": (3, 0)}
    config = training_config(tmp_path / "drafter", **start)
    drafter = task_of(config).model
    ids = torch.arange(8, 16)[None]
    assert torch.equal(drafter(input_ids=ids).logits, model(input_ids=ids).logits)
    for picked, said in (((3, 4), "between 0 and 3"), ((-1, 0), "at least 0")):
        refused(said, lambda picked=picked: task_of(replace(config, initial_layers=picked)))
    refused(r"initial_weights: .* has another shape", task_of, replace(config, initial_layers=()))
    refused("initial_weights: nowhere cannot be read", task_of, replace(config, initial_weights="nowhere"))


def test_the_last_layers_learn_to_say_what_they_show(tmp_path):
    """The words for it are predicted ever better, from the frozen layers below; nothing else is trained."""
    torch.manual_seed(0)
    task_of(training_config(tmp_path)).export(tmp_path / "target")
    last_stage = {"initial_weights": str(tmp_path / "target"), "trained_layers": 1, "shown_words_weight": 1.0}
    task = task_of(training_config(tmp_path, **last_stage))
    trained = {name: each for name, each in task.module.named_parameters() if each.requires_grad}
    assert {name.split(".layers.")[-1].split(".")[0] for name in trained} == {"1", "model"}  # and the last norm
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    said = []
    for _ in range(6):
        loss, parts = task.loss(0, 0.0)
        assert "grounding" not in parts
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(float(parts["shown_words"]))
    assert said[-1] < said[0] - 0.1
    assert all(each.grad is None for name, each in task.module.named_parameters() if name not in trained)


def test_the_words_for_what_is_shown_are_those_of_captions(tmp_path):
    task = task_of(training_config(tmp_path))

    def words(name: str, value: str) -> dict[str, float]:
        shares = task.shown_words[name][1 + video_data.VIDEO_GROUNDING[name].index(value)]
        return {task.tokenizer.decode([number]): float(shares[number]) for number in shares.nonzero()[:, 0].tolist()}

    assert words("shape", "sphere") == {"ball": 0.5, "sphere": 0.5}
    assert words("surface", "sand") == {"sand": 1.0} and words("surface", "sunset") == {"sunset": 1.0}
    assert set(words("light", "viewer")) == {"behind", "camera", "viewer"}
    assert "retreats" in words("event", "goes away")
    assert not any(shares[0].any() for shares in task.shown_words.values())


def test_bad_settings_are_named():
    for changes, named in (
        ({"trained_layers": 3}, "trained_layers"),
        ({"trained_layers": 1}, "trained_layers.*needs initial_weights"),
        ({"repeats": ()}, "repeats"),
        ({"frame_counts": (7,)}, "frame_counts"),
        ({"grounded_layer": 99}, "grounded_layer"),
        ({"initial_layers": (0,)}, "initial_layers.*need initial_weights"),
        ({"initial_weights": "x", "initial_layers": (0,)}, "initial_layers.*as many"),
    ):
        refused(named, VideoLLMTrainingConfig, "x", **changes)


def test_bad_sizes_are_named():
    for changes, named in (
        ({"image_size": 50}, "image_size"),
        ({"num_frames": 5}, "num_frames"),
        ({"text": TextModelConfig(30, 64, 2, 4, 2)}, "text.hidden_size"),
    ):
        raised(ValueError, named, model_config, **changes)
