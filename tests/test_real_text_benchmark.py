"""The benchmark on real text, over a small model of random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import language_models
import pytest
import real_text
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model of the architecture of SmolLM2 and a tokenizer of characters."""
    words = ["<pad>", "<s>", "</s>", *map(chr, range(32, 127)), *"äöüéèç"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>")
    fast.chat_template = "{{ messages[0]['content'][:40] }}"
    fast.save_pretrained(tmp_path / "model")
    sizes: dict[str, Any] = {"vocab_size": len(words), "num_hidden_layers": 7, "dtype": torch.float32}
    language_models.make("llama", **sizes).save_pretrained(tmp_path / "model")
    return tmp_path


def test_there_are_ten_prompts_of_six_kinds() -> None:
    prompts = json.loads(real_text.PROMPTS.read_text())
    assert [len(texts) for texts in prompts.values()] == [10] * 6
    assert len({text for texts in prompts.values() for text in texts}) == 60
    twelve = list(real_text.batches(prompts, 12, 1))
    assert len(twelve) == 12 and {kind for kind, _, _ in twelve} == set(prompts)
    assert [len(texts) for _, _, texts in real_text.batches(prompts, 60, 4)] == [4] * 12


def test_a_killed_run_goes_on_and_a_token_that_differs_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_text, "NEW_TOKENS", 6)
    output = folder / "real_text.json"
    given = [
        "--prompts",
        "6",
        "--batch_sizes",
        "1",
        "--temperatures",
        "0",
        "--model",
        str(folder / "model"),
        "--output",
        str(output),
    ]
    continued, calls = real_text.continued, [0]

    def killed(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20:
            raise KeyboardInterrupt
        return continued(*arguments)

    monkeypatch.setattr(real_text, "continued", killed)
    with pytest.raises(KeyboardInterrupt):
        real_text.main(given)
    assert real_text.main(given) == 0
    ways = len(real_text.WAYS) - 1  # without a head
    assert calls[0] == 1 + 6 * ways, "what was done is not done again"
    arguments = [*given, "--process", "1"]
    assert real_text.main(arguments) == 0 and real_text.main(given) == 0
    assert calls[0] == 1 + 2 * 6 * ways
    rows = json.loads(output.read_text())["rows"]
    assert len(rows) == 6 * ways and {row["texts"] for row in rows} == {1}
    for row in rows:
        assert row["processes"] == 1 and len(row["ms_a_column"]) == len(row["times_generate"]) == 3
        if row["way"] in ("generate", "plain", "plain, modules"):
            assert row["passes"] <= 6 and row["columns_per_pass"] == 1
        if row["temperature"] == 0:
            assert row["texts_equal"] == 1
    lines = output.with_suffix(".jsonl").read_text().splitlines()
    wrong = json.loads(lines[5])
    wrong["tokens"][0][0] += 1
    output.with_suffix(".jsonl").write_text("\n".join([*lines[:5], json.dumps(wrong), *lines[6:]]) + "\n")
    assert real_text.main(given) == 1


def test_a_trained_head_is_one_of_the_ways(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    from vargen.drafters.text_head import TextHead

    monkeypatch.setattr(real_text, "NEW_TOKENS", 6)
    config = AutoModelForCausalLM.from_pretrained(folder / "model").config
    torch.manual_seed(0)
    head = TextHead(config.hidden_size, 4, 32, config.vocab_size, feature_layers=[2, 7])
    head.start_from_features(1.0)
    head.save_pretrained(folder / "head")
    given = ["--prompts", "6", "--batch_sizes", "1", "--temperatures", "0", "--model", str(folder / "model")]
    given += ["--output", str(folder / "real_text.json"), "--ways", "generate", "head"]
    with pytest.raises(SystemExit):
        real_text.main(given)
    assert real_text.main([*given, "--drafter", str(folder / "head")]) == 0
    rows = json.loads((folder / "real_text.json").read_text())["rows"]
    assert len(rows) == 12 and all(row["texts_equal"] == 1 for row in rows)


def test_without_the_package_it_is_skipped_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_text, "PACKAGE", "no_such_package")
    assert real_text.main(["--output", str(tmp_path / "x.json")]) == 0
    assert "skipped: there is no no_such_package here; pip install" in capsys.readouterr().out
    assert not (tmp_path / "x.json").exists()
