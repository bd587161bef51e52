"""Numbers that mean nothing, and sizes that cannot fit: refused with the bound or the figure, at once.

Both bounds of every option are tried in tests/vargen/base/test_options.py; here is what depends on more than one.
"""

from hostile import Case, arguments_of, check_refused, each

GENERATE = "generate 'a red cube' --output {work}/out --quiet "
EVALUATE = "evaluate --output {work}/out --quiet "
VIDEO = "bench --task video --quiet "
TUNE = "tune --output {work}/out --quiet "
CAPTION = "caption {work} "
SCENES = "scenes --output {work}/out --quiet "
TRAIN = "train judge --output {work}/out "


def of(name: str, command: str, option: str, expected: str) -> Case:
    return Case(f"{name} {option}".replace("/", "|"), f"{command} {option}", expected)


CASES = [
    of("generate", GENERATE, "--top_k 1e3", "top_k"),
    of("generate", GENERATE, f"--seed {2**63 - 1}", "seed must leave room for 1 pictures"),
    of("generate", GENERATE, "--num_images_per_prompt 1000001", "more than the 1,000,000 that a run can hold"),
    of("generate", GENERATE + "--method eagle", "--method_options.depth 300", "depth must"),
    of("generate", GENERATE + "--method sjd", "--method_options.window .5", "window must be an integer"),
    of("generate", GENERATE + "--method coolsd", "--method_options.delta .nan", "delta must be a number"),
    of("generate", GENERATE, "--compile maybe", "unrecognized arguments: maybe"),
    of("generate", GENERATE, "--continuous_batches 3", "unrecognized arguments: 3"),
    of("evaluate", EVALUATE, "--continuous_batches maybe", "unrecognized arguments: maybe"),
    of("video bench", VIDEO, "--num_frames 3", "num_frames must be at least 4"),
    of("video bench", VIDEO, f"--question {'x' * 20_000}", "question has 20,000 characters; give at most 10,000"),
    of("tune", TUNE, "--quality judge_accuracy --max_quality_loss 2", "max_quality_loss must be at most 1, got 2.0"),
    of("caption", CAPTION + "--method sd", "--method_options.draft_length 100000", "draft_length must be"),
    Case("a question of a megabyte", CAPTION + "{megabyte}", "has 1,000,000 characters"),
    Case("a prompt of a megabyte", GENERATE.replace("a red cube", "{megabyte}"), "has 1,000,000 characters"),
    of("scenes", SCENES, "--image_size 100", "multiple of 8"),
    of("scenes", SCENES, f"--seed {2**63 - 1}", "seed must be at most 9,223,372,036,854,775,791"),
]


@each(CASES)
def test_it_is_refused(case, tmp_path, capsys):
    places = {"work": tmp_path, "megabyte": "red " * 250_000}  # behind the shell, to which it would be long work
    check_refused(arguments_of(case.command, places), case.expected, capsys, tmp_path)
