"""Videos that no model can see, and folders of Video-LLMs that are damaged: one line that names them."""

import shutil
from collections.abc import Callable
from pathlib import Path

from hostile import Case, arguments_of, change, check_refused, cut, each, write
from PIL import Image

from vargen.base.resources import find_video_model

CAPTION = "caption {work}/video --model {work}/model --method ar --device cpu"


def frames(width: int, height: int) -> Callable[[Path], object]:
    def draw(work: Path) -> None:
        for number in range(4):
            Image.new("RGB", (width, height), (number, 0, 0)).save(work / "video" / f"{number}.png")

    return draw


CASES = [
    Case("sides of 300:1", CAPTION, "video: the model's processor refuses its frames", frames(6000, 20)),
    Case("sides of 1:300", CAPTION, "video: the model's processor refuses its frames", frames(20, 6000)),
    Case("a config that is no JSON", CAPTION, "model", write("model/config.json", b"{")),
    Case("a config of a list", CAPTION, "model", write("model/config.json", b"[]")),
    Case("a config of another kind of model", CAPTION, "model", change("model/config.json", model_type="bert")),
    Case("no config", CAPTION, "config.json", lambda work: (work / "model" / "config.json").unlink()),
    Case(
        "an end that is no token",
        CAPTION,
        "eos_token_id must be at most",
        change("model/generation_config.json", eos_token_id=10**9),
    ),
    Case("no weights", CAPTION, "model", lambda work: (work / "model" / "model.safetensors").unlink()),
    Case("torn weights", CAPTION, "model", cut("model/model.safetensors", 0.1)),
    Case("weights that are none", CAPTION, "model", write("model/model.safetensors", b"junk" * 9)),
    Case("a torn tokenizer", CAPTION, "model", cut("model/tokenizer.json", 0.5)),
    Case("a processor that is no JSON", CAPTION, "model", write("model/processor_config.json", b"{")),
]


@each(CASES)
def test_what_cannot_be_seen_is_refused(case, tmp_path, capsys):
    own = shutil.ignore_patterns("drafters")
    shutil.copytree(find_video_model(None), tmp_path / "model", ignore=own)
    (tmp_path / "video").mkdir()
    frames(32, 32)(tmp_path)
    assert case.damage is not None
    case.damage(tmp_path)
    check_refused(arguments_of(case.command, {"work": tmp_path}), case.expected, capsys, tmp_path)
