"""Families that draw token by token, from folders that do not fit: a line each, and no code of a repository is run."""

import dataclasses
import json
from pathlib import Path

import pytest
import token_image_models
import transformers
from hostile import arguments_of, check_refused

from vargen.base.errors import UserError
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES
from vargen.pipelines.token_images import TokenImagePipeline

GENERATE = "generate x --model {work}/model --family {family} --output {work}/out --quiet "
NAMES = sorted(TOKEN_IMAGE_FAMILIES)
NO_SIZE = {
    "anole": (256, 256), "emu3_5": (512, 512), "liquid": (512, 1024), "lumina_mgpt": (528, 512),
    "lumina_mgpt_2": (1024, 1024), "simplear": (1024, 512),
}  # fmt: skip


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model of a family's class with 64 tokens, in its authors' form, beside code that tells when it is run."""
    family = TOKEN_IMAGE_FAMILIES[request.getfixturevalue("name")]
    model = tmp_path / "model"
    tiny_class = getattr(transformers, family.model_class)
    config = {**token_image_models.TINY, **family.config, "vocab_size": 64}
    if family.model_type == "chameleon":
        config["model_parallel_size"] = config["num_attention_heads"]  # a norm for each head, as it is saved here
        config |= {"vq_config": token_image_models.SMALL_VQ, "vocabulary_map": {"<image>": 0}}
    tiny_class(tiny_class.config_class(**config)).save_pretrained(model)
    raw = json.loads((model / "config.json").read_text())
    raw |= {"model_type": family.model_type, "auto_map": {name: "code.Model" for name in ("AutoConfig", "AutoModel")}}
    (model / "config.json").write_text(json.dumps(raw))
    (model / "code.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_a_size_that_a_family_does_not_have(folder, name, capsys):
    height, width = NO_SIZE[name]
    places = {"work": folder, "family": name}
    asked = arguments_of(f"{GENERATE} --height {height} --width {width}", places)
    wanted = f"height and width must be a size of this model, got {height} x {width}"
    check_refused(asked, wanted, capsys, folder)


@pytest.mark.parametrize("name", NAMES)
def test_another_vocabulary_another_tokenizer_and_code(folder, name, capsys):
    family = TOKEN_IMAGE_FAMILIES[name]
    asked = arguments_of(GENERATE, {"work": folder, "family": name})
    named = family.codes.first == "named"
    wanted = "model must name each of its 8192 codes" if named else f"model must have the {family.codes.count:,} codes"
    check_refused(asked, wanted, capsys, folder)
    words = token_image_models.tiny_tokenizer(dataclasses.replace(family, special_tokens={}))
    words.save_pretrained(folder / "model")
    check_refused(asked, "tokenizer must have the token <", capsys, folder)
    with pytest.raises(UserError, match="trust_remote_code cannot be used") as error:
        TokenImagePipeline.from_pretrained(folder / "model", family=name, trust_remote_code=True)
    assert "\n" not in str(error.value) and not (folder / "executed").exists()
