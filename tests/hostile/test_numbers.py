"""Numbers that mean nothing, and sizes that cannot fit: refused with the bound or the figure, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import Case, arguments_of, check_refused, each

GENERATE = "generate 'a red cube' --output {work}/out --quiet "
EVALUATE = "evaluate --output {work}/out --quiet "
BENCH = "bench --quiet "
VIDEO = "bench --task video --quiet "
TUNE = "tune --output {work}/out --quiet "
CAPTION = "caption {work} "
SCENES = "scenes --output {work}/out --quiet "
CONVERT = "convert llamagen --transformer a.pt --vqvae b.pt --output {work}/out "
TRAIN = "train judge --output {work}/out "


def of(name: str, command: str, option: str, expected: str) -> Case:
    return Case(f"{name} {option}".replace("/", "|"), f"{command} {option}", expected)


CASES = [
    of("generate", GENERATE, "--guidance_scale 101", "guidance_scale must be at most 100, got 101.0"),
    of("generate", GENERATE, "--guidance_scale 1e300", "guidance_scale must be at most"),
    of("generate", GENERATE, "--guidance_scale nan", "guidance_scale must be a number"),
    of("generate", GENERATE, "--guidance_scale inf", "guidance_scale must be a number"),
    of("generate", GENERATE, "--guidance_scale=-3", "guidance_scale must be at least 0, got -3.0"),
    of("generate", GENERATE, "--temperature 1e-300", "temperature must be at least 0.01, got 1e-300"),
    of("generate", GENERATE, "--temperature 1e300", "temperature must be at most"),
    of("generate", GENERATE, "--temperature=-1", "temperature must be at least 0, got -1.0"),
    of("generate", GENERATE, "--temperature nan", "temperature must be a number"),
    of("generate", GENERATE, "--top_k=-1", "top_k must be at least 0, got -1"),
    of("generate", GENERATE, "--top_k 1e3", "top_k"),
    of("generate", GENERATE, f"--top_k {10**30}", "top_k must be at most"),
    of("generate", GENERATE, "--top_p 0", "top_p must lie above 0"),
    of("generate", GENERATE, "--top_p 1.5", "top_p must be at most 1, got 1.5"),
    of("generate", GENERATE, "--top_p nan", "top_p must be a number"),
    of("generate", GENERATE, "--seed=-1", "seed must be at least 0, got -1"),
    of("generate", GENERATE, f"--seed {2**63}", "seed must be at most 2**63 - 1"),
    of("generate", GENERATE, f"--seed {2**63 - 1}", "seed must leave room for 1 pictures"),
    of("generate", GENERATE, "--batch_size 0", "batch_size must be at least 1, got 0"),
    of("generate", GENERATE, "--batch_size 10000000000", "batch_size must be at most 65,536"),
    of("generate", GENERATE, "--num_images_per_prompt 0", "num_images_per_prompt must be at least 1"),
    of("generate", GENERATE, "--num_images_per_prompt 1000001", "more than the 1,000,000 that a run can hold"),
    of(
        "generate",
        GENERATE,
        f"--num_images_per_prompt {10**18}",
        "num_images_per_prompt must be at most 1,000,000,000,000",
    ),
    of("generate", GENERATE, "--num_candidates 0", "num_candidates must be at least 1"),
    of("generate", GENERATE, "--num_candidates 100000", "num_candidates must be at most 10,000"),
    of(
        "generate", GENERATE + "--method eagle", "--method_options.total_tokens 1000000", "total_tokens must be at most"
    ),
    of("generate", GENERATE + "--method eagle", "--method_options.total_tokens 1", "total_tokens must be an integer"),
    of("generate", GENERATE + "--method eagle", "--method_options.depth 1000000", "depth must be at most 4,096"),
    of("generate", GENERATE + "--method eagle", "--method_options.depth 300", "depth must"),
    of("generate", GENERATE + "--method eagle", "--method_options.tree_top_k 100000", "tree_top_k must be"),
    of("generate", GENERATE + "--method eagle", "--method_options.depth true", "depth must be an integer"),
    of("generate", GENERATE + "--method sjd", "--method_options.window 100000", "window must be at most 4,096"),
    of("generate", GENERATE + "--method sjd", "--method_options.window .5", "window must be an integer"),
    of(
        "generate", GENERATE + "--method gsd", "--method_options.group_size 1e9", "group_size must be an integer from 1"
    ),
    of("generate", GENERATE + "--method coolsd", "--method_options.delta .inf", "delta must be at most"),
    of("generate", GENERATE + "--method lantern", "--method_options.delta 7", "delta must be at most 1, got 7"),
    of("generate", GENERATE + "--method lantern", "--method_options.num_neighbours=-3", "num_neighbours must be"),
    of("generate", GENERATE + "--method vvs", "--method_options.interval 1", "interval must be at least 2, got 1"),
    of("generate", GENERATE + "--method draft-model", "--method_options.draft_length 0", "draft_length must be"),
    of("generate", GENERATE, "--compile maybe", "unrecognized arguments: maybe"),
    of("generate", GENERATE, "--compile_bucket 1", "compile_bucket must be at least 2, got 1"),
    of("generate", GENERATE, "--compile_bucket 1000000000", "compile_bucket must be at most"),
    of("generate", GENERATE, "--continuous_batches 3", "unrecognized arguments: 3"),
    of("evaluate", EVALUATE, "--continuous_batches maybe", "unrecognized arguments: maybe"),
    of("demo", "demo ", "--port 0", "port must be at least 1, got 0"),
    of("demo", "demo ", "--port 99999999", "port must be at most 65,535"),
    of("demo", "demo ", "--compile_bucket 1", "compile_bucket must be at least 2, got 1"),
    of("evaluate", EVALUATE, "--num_prompts 1", "num_prompts must be at least 2, got 1"),
    of("evaluate", EVALUATE, "--num_prompts 100000000", "num_prompts must be at most 1,000,000"),
    of("evaluate", EVALUATE, "--bootstrap=-1", "bootstrap must be at least 0"),
    of("evaluate", EVALUATE, "--bootstrap 1000000000", "bootstrap must be at most 100,000"),
    of("evaluate", EVALUATE, "--batch_size 0", "batch_size must be at least 1"),
    of("evaluate", EVALUATE, "--guidance_scale 1e300", "guidance_scale must be at most"),
    of("bench", BENCH, "--num_prompts 0", "num_prompts must be at least 1"),
    of("bench", BENCH, "--num_prompts 1000000000", "num_prompts must be at most 1,000,000"),
    of("bench", BENCH, "--warm_up=-1", "warm_up must be at least 0"),
    of("bench", BENCH, "--warm_up 1000000", "warm_up must be at most 1,000"),
    of("bench", BENCH, "--temperature 1e-300", "temperature must be at least 0.01"),
    of("bench", BENCH, f"--seed {2**70}", "seed must be at most 2**63 - 1"),
    of("video bench", VIDEO, "--num_videos 0", "num_videos must be at least 1"),
    of("video bench", VIDEO, "--num_frames 3", "num_frames must be at least 4"),
    of("video bench", VIDEO, "--num_frames 1000000", "num_frames must be at most 10,000"),
    of("video bench", VIDEO, "--image_size 1000000", "image_size must be at most 4,096"),
    of("video bench", VIDEO, "--max_new_tokens 1000000000", "max_new_tokens must be at most 131,072"),
    of("video bench", VIDEO, "--temperature nan", "temperature must be a number"),
    of("video bench", VIDEO, f"--question {'x' * 20_000}", "question has 20,000 characters; give at most 10,000"),
    of("tune", TUNE, "--max_quality_loss 2", "max_quality_loss must lie between 0 and 1"),
    of("tune", TUNE, "--max_quality_loss nan", "max_quality_loss must be a number"),
    of("tune", TUNE, "--max_seconds nan", "max_seconds must be a number"),
    of("tune", TUNE, "--max_seconds inf", "max_seconds must be a number"),
    of("tune", TUNE, "--num_prompts 0", "num_prompts must be at least 1"),
    of("tune", TUNE, "--seed=-5", "seed must be at least 0"),
    of("tune", TUNE + "--method vvs", "--fixed.depth 1000000", "depth must be at most 4,096"),
    of("caption", CAPTION + "--method sd", "--method_options.draft_length 100000", "draft_length must be"),
    of("caption", CAPTION + "--method fly", "--method_options.window 0", "window must be"),
    of("caption", CAPTION + "--method eagle", "--method_options.total_tokens 1000000", "total_tokens must be"),
    of("caption", CAPTION + "--method specvlm", "--method_options.keep_ratio 0", "keep_ratio must be above 0"),
    of("caption", CAPTION + "--method lvspec", "--method_options.loose_ratio 1.5", "loose_ratio must be"),
    of("caption", CAPTION, "--max_new_tokens 0", "max_new_tokens must be at least 1"),
    of("caption", CAPTION, "--max_new_tokens 1000000000", "max_new_tokens must be at most 131,072"),
    of("caption", CAPTION, "--temperature=-1", "temperature must be at least 0"),
    of("caption", CAPTION, "--temperature 1e-300", "temperature must be at least 0.01"),
    of("caption", CAPTION, "--top_p 0", "top_p must lie above 0"),
    of("caption", CAPTION, "--seed=-1", "seed must be at least 0"),
    of("caption", CAPTION, "--num_frames 0", "num_frames must be at least 1"),
    of("caption", CAPTION, "--num_frames 100000000", "num_frames must be at most 10,000"),
    Case("a question of a megabyte", CAPTION + "{megabyte}", "has 1,000,000 characters"),
    Case("a prompt of a megabyte", GENERATE.replace("a red cube", "{megabyte}"), "has 1,000,000 characters"),
    of("scenes", SCENES, "--image_size 1000000", "image_size must be at most 4,096"),
    of("scenes", SCENES, "--image_size 0", "image_size must be at least 8"),
    of("scenes", SCENES, "--image_size 100", "multiple of 8"),
    of("scenes", SCENES, "--num_scenes 100000000", "num_scenes must be at most 1,000,000"),
    of("scenes", SCENES, f"--seed {2**63}", "seed must be at most"),
    of("scenes", SCENES + "--task video", "--num_frames 100000000", "num_frames must be at most 10,000"),
    of("scenes", SCENES + "--task video", "--fps nan", "fps must be a number"),
    of("scenes", SCENES + "--task video", "--fps 1e9", "fps must lie between 0.001 and 1000"),
    of("judge", "judge {work} ", "--batch_size 0", "batch_size must be at least 1"),
    of("train", TRAIN, "--steps 0", "steps: 0 must be above zero"),
    of("train", TRAIN, "--learning_rate inf", "learning_rate must be a number"),
    of("train", TRAIN, "--learning_rate nan", "learning_rate must be a number"),
    of("train", TRAIN, "--batch_size=-1", "batch_size: -1 must be above zero"),
    of("train", TRAIN, "--weight_decay nan", "weight_decay must be a number"),
    of("train", TRAIN, "--gradient_clip inf", "gradient_clip must be a number"),
    of("train", TRAIN, f"--seed {2**64}", "seed"),
    of("train", TRAIN, "--num_threads 1000000", "num_threads"),
    of("train", TRAIN, "--max_seconds nan", "max_seconds must be a number"),
    of("train", TRAIN, "--ema_decay 1", "ema_decay: 1.0 must be at least 0 and below 1"),
    of("train", TRAIN, "--image_size 1000000", "image_size"),
    of("convert", CONVERT, "--image_size 0", "image_size must be at least 16"),
    of("convert", CONVERT, "--image_size 99999", "image_size must be at most 4,096"),
    of("convert", CONVERT + "--image_size 256", "--num_attention_heads 0", "num_attention_heads must be at least 1"),
]


@each(CASES)
def test_it_is_refused(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {"work": tmp_path, "megabyte": "red " * 250_000}  # behind the shell, to which it would be long work
    check_refused(arguments_of(case.command, places), case.expected, capsys, tmp_path)
