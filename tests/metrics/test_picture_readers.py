"""Detectors and answers from folders of tiny networks with random weights, as transformers saves them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import raised

from metrics.errors import DataError
from metrics.picture_readers import Mask2FormerDetector, OwlDetector, VisualAnswers, load_detector

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "is", "there", "cube", "sphere", "red", "yes", "no", "the",
    "?",
]  # fmt: skip


TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION = {**TOWER, "image_size": 32, "patch_size": 8}


def word_tokenizer(**more: Any) -> Any:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", **more
    )


@pytest.fixture(scope="module")
def mask2former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import (
        Mask2FormerConfig,
        Mask2FormerForUniversalSegmentation,
        Mask2FormerImageProcessor,
        SwinConfig,
    )

    torch.manual_seed(0)
    backbone = SwinConfig(
        image_size=96, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = Mask2FormerConfig(
        backbone_config=backbone, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=32,
        dim_feedforward=32, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=6,
        id2label={0: "cube", 1: "sphere"}, label2id={"cube": 0, "sphere": 1},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("mask2former")
    Mask2FormerForUniversalSegmentation(config).save_pretrained(folder)
    Mask2FormerImageProcessor(size={"height": 96, "width": 96}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def owl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import OwlViTConfig, OwlViTForObjectDetection, OwlViTImageProcessor, OwlViTProcessor

    torch.manual_seed(0)
    text = {**TOWER, "vocab_size": len(WORDS), "max_position_embeddings": 8, "bos_token_id": 2, "eos_token_id": 3}
    config = OwlViTConfig(text_config=text, vision_config=VISION, projection_dim=16)
    folder = tmp_path_factory.mktemp("owl")
    OwlViTForObjectDetection(config).save_pretrained(folder)
    tokenizer = word_tokenizer(model_max_length=8)
    processor = OwlViTProcessor(OwlViTImageProcessor(size={"height": 32, "width": 32}), tokenizer)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BlipConfig, BlipForQuestionAnswering, BlipImageProcessor, BlipProcessor

    torch.manual_seed(0)
    special = {"bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "pad_token_id": 0}
    text = {**TOWER, "vocab_size": len(WORDS), "max_position_embeddings": 16, "encoder_hidden_size": 16, **special}
    config = BlipConfig(text_config={**text, "projection_dim": 16}, vision_config=VISION, projection_dim=16)
    folder = tmp_path_factory.mktemp("blip")
    BlipForQuestionAnswering(config).save_pretrained(folder)
    image_processor = BlipImageProcessor(size={"height": 32, "width": 32})
    BlipProcessor(image_processor, word_tokenizer(model_max_length=16)).save_pretrained(folder)
    return folder


def test_mask2former_finds_its_own_classes(mask2former, pictures):
    detector = load_detector(mask2former)
    assert isinstance(detector, Mask2FormerDetector) and detector.identity.startswith("mask2former ")
    found = detector(pictures[0], ["cube", "sphere"])
    assert found, "random weights find something above a score of nearly nothing"
    for item in found:
        left, top, right, bottom = item.box
        assert 0 <= left < right <= 32 and 0 <= top < bottom <= 32 and 0 < item.score < 1
        assert item.mask.shape == (32, 32) and item.mask[int(top) : int(bottom), int(left) : int(right)].any()
        assert item.mask.sum() == item.mask[int(top) : int(bottom), int(left) : int(right)].sum()
    only = detector(pictures[0], ["sphere"])
    assert [(item.score, item.box) for item in only] == [(i.score, i.box) for i in found if i.name == "sphere"]
    detector.check(["cube"])
    raised(DataError, "the detector knows no 'dog'", detector.check, ["cube", "dog"])


def test_owl_looks_for_what_it_is_told(owl, pictures):
    detector = load_detector(owl)
    assert isinstance(detector, OwlDetector)
    found = detector(pictures[0], ["cube", "sphere"])
    assert found and {item.name for item in found} <= {"cube", "sphere"} and all(item.mask is None for item in found)
    assert all(0 < item.score <= 1 for item in found)
    detector.check(["anything"])


def test_blip_answers_each_question_alone(blip, pictures):
    answers = VisualAnswers(blip)
    together = answers(pictures[0], ["is there a cube ?", "is the sphere red ?"])
    assert together == [answers(pictures[0], [each])[0] for each in ("is there a cube ?", "is the sphere red ?")]
    assert all(isinstance(each, str) and each == each.lower().strip() for each in together)


def test_folders_of_something_else_are_refused(clip_folder, owl, tmp_path):
    for folder, said in ((tmp_path, "no config.json"), (clip_folder, "clip")):
        raised(DataError, rf"holds no detector \({said}\)", load_detector, folder)
        raised(DataError, "holds no BLIP", VisualAnswers, folder)
    (tmp_path / "config.json").write_text("{")
    raised(DataError, "cannot be read", load_detector, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((owl / "config.json").read_text())))
    raised(DataError, "holds no OWL", load_detector, tmp_path)
