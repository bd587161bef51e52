"""Help texts: options of the task first, of loading last, and none that does nothing."""

import pytest
from refusals import refuses

from vargen.cli import main

PICTURE_MODELS = ("--compile ", "--compile_bucket", "--family", "--tokenizer", "--vqvae")


def help_of(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return capsys.readouterr().out


def places(text: str, *parts: str) -> list[int]:
    found = [text.index(part) for part in parts]
    assert len(set(found)) == len(parts)
    return found


@pytest.mark.parametrize("recipe", ["drafter", "transformer", "video-drafter"])
def test_help_of_training_begins_with_the_task(recipe, capsys):
    heads = ["\nTraining:", "\nOutput:", "\nComputing:", "\nAbout these options:"]
    if recipe != "transformer":  # it loads no model
        heads.insert(2, "\nLoading the model:")
    told = places(help_of(f"train {recipe}", capsys), f"\nSettings of `vargen train {recipe}`", *heads)
    assert told == sorted(told)


def test_shapes_have_a_group_of_their_own_with_the_defaults_of_the_recipe(capsys):
    text = help_of("train clip", capsys)
    assert "Number of blocks (default: 5)" in text and "Number of blocks (default: 3)" in text
    assert "--shape.condition_length" in help_of("train transformer", capsys)


@pytest.mark.parametrize("words", ["caption", "bench --task video"])
def test_commands_about_videos_show_no_options_of_picture_models(words, capsys):
    text = help_of(words, capsys)
    assert "--quantization" in text and not [option for option in PICTURE_MODELS if option in text]
    assert all(option in help_of("generate", capsys) for option in PICTURE_MODELS)


def test_help_speaks_plainly_of_lists_and_of_another_task(capsys):
    text = help_of("generate", capsys)
    assert "--class_labels '[NUMBER, ...]'" in text and "keywords separated" not in text
    refuses(capsys, main(["scenes", "--videos"]), "(write --task video)")


def test_a_hint_is_a_near_name_or_none(capsys):
    for typed, meant in (
        *(("--tempreature", "--temperature"), ("--promts_file", "--prompts_file"), ("--sed", "--seed")),
        *(("--max_images", None), ("--steps", None), ("--num_prompts", None)),
    ):
        assert main(["generate", "a cone", typed, "3"]) == 2
        told = capsys.readouterr().err
        assert f"{typed} is not an option" in told
        assert f"did you mean '{meant}'?" in told if meant else "mean" not in told
