"""A small CLIP with random weights, of the real layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, PreTrainedTokenizerFast

SIDE = 32
WORDS = ("a", "red", "blue", "green", "cube", "sphere", "left", "of", "photo", "depicts")


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved CLIP with random weights, its tokenizer and its image processor."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel

    folder = tmp_path_factory.mktemp("clip") / "tiny-clip"
    names = ["<pad>", "</s>", "<unk>", *WORDS]
    backend = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=12
    )
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**tower, "vocab_size": len(names), "max_position_embeddings": 12, "pad_token_id": 0, "eos_token_id": 1}
    torch.manual_seed(0)
    model = CLIPModel(
        CLIPConfig(
            text_config={**text, "bos_token_id": None},
            vision_config={**tower, "image_size": SIDE, "patch_size": 8},
            projection_dim=12,
        )
    )
    with torch.no_grad():  # fresh weights are so small that all pictures look the same
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    side = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size=side, crop_size=side, do_center_crop=False).save_pretrained(folder)
    return folder
