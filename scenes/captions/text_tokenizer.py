"""The word-level text tokenizer of the scene world.

Belongs here: turning words into numbers. Does not belong here: which words exist (`picture_captions.py`).
"""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from scenes.captions.picture_captions import PUNCTUATION, vocabulary

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
MODEL_MAX_LENGTH = 120


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of every word in `vocabulary()`, as T5 lays one out.

    Lower-cases, splits off punctuation, appends the end token; pad is 0, end 1, unknown 2. It saves and loads with
    `save_pretrained` and `from_pretrained`.
    """
    words = [PAD, EOS, UNKNOWN, *PUNCTUATION, *vocabulary()]
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    # Marks that no caption contains ("red-and-blue!") separate words rather than become unknown ones.
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\p{L}\p{N}\s,.:;<>/]"), " ")]
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, words.index(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=MODEL_MAX_LENGTH,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
    )
