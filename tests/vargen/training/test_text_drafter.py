"""Training a head for a language model: it learns from the model's own answers, and nothing is lost by a kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import text_models
import torch
from cheap_training import DRAFT_STEPS
from language_models import ragged_prompts
from refusals import refused, refuses
from resumed import stop_and_go_on

import specdecode
from vargen.cli import main
from vargen.drafters.text_draft_head import load_text_drafter
from vargen.training import text_drafter
from vargen.training.text_prompts import TextAnswers, TextPrompts, compose_prompts
from vargen.training.unrolled import guesses_by_level


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_models.build(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(tmp_path: Path, folder: Path) -> text_drafter.TextDrafterTrainingConfig:
    return text_drafter.TextDrafterTrainingConfig(
        output=str(tmp_path / "run"), model=str(folder), steps=25, log_every=20, num_threads=1, batch_size=4,
        prompts_file=str(text_models.prompts_file(tmp_path / "prompts.txt", 30)), max_new_tokens=16,
        evaluation_size=6, num_decoded_prompts=3, draft_vocab_size=38, **DRAFT_STEPS,
    )  # fmt: skip


def test_a_learned_head_is_accepted_more_often_and_changes_no_token(config, folder):
    untrained = text_drafter.train_text_drafter(replace(config, steps=1, learning_rate=1e-9)).evaluation
    result = text_drafter.train_text_drafter(replace(config, output=config.output + "-longer"))
    learned = result.evaluation
    assert result.finished
    assert learned["agreement_1"] > untrained["agreement_1"] + 0.1
    assert learned["agreement_4"] > untrained["agreement_4"] + 0.3
    assert learned["overlap"] > untrained["overlap"] + 0.1
    assert learned["accepted_length"] > untrained["accepted_length"] + 1

    model, (input_ids, mask) = text_models.load(folder), ragged_prompts(vocab_size=40)
    drafter = load_text_drafter(Path(config.output + "-longer") / "export", model)
    assert drafter.network.config.accepted_length == pytest.approx(learned["accepted_length"], abs=1e-3)
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 24}
    plain = specdecode.generate(model, input_ids, method="ar", **options)
    fast = specdecode.generate(model, input_ids, drafter=drafter, draft_length=4, **options)
    assert torch.equal(plain.sequences, fast.sequences)
    assert fast.trace.target_passes < plain.trace.target_passes - 4


def test_a_resumed_run_ends_with_the_same_weights(config, tmp_path):
    config = replace(config, steps=4, answers=str(tmp_path / "answers"))
    stopped = stop_and_go_on(text_drafter.TextDrafterTask, text_drafter.train_text_drafter, config, tmp_path, 2)
    other = replace(config, output=str(stopped), draft_vocab_size=20)
    refused("draft_vocab_size", text_drafter.train_text_drafter, other)


def test_greedy_answers_are_those_of_generate_and_drawn_ones_are_a_prompts_own(folder):
    from transformers import AutoTokenizer

    model, tokenizer = text_models.load(folder), AutoTokenizer.from_pretrained(folder)
    prompts = TextPrompts(tokenizer, ["w3 w4 w5", "w9", "w7 w8"], "train", {}, 3)
    inputs = [prompts.inputs(number) for number in range(3)]
    assert [each["input_ids"].tolist() for each in inputs] == [[[6, 7, 8]], [[12]], [[10, 11]]]
    answers = TextAnswers(model, 9, [0.0, 1.0], seed=5)
    for given, answer in zip(inputs, answers(0, inputs), strict=True):
        wanted = model.generate(given["input_ids"], max_new_tokens=9, do_sample=False)[0, given["input_ids"].shape[1] :]
        assert answer[answer >= 0].tolist() == wanted.tolist()
    drawn = answers(3, inputs)
    assert drawn.tolist() != answers(0, inputs).tolist() and drawn.tolist() == answers(3, inputs).tolist()
    own = {"temperature": 1.0, "generator": torch.Generator().manual_seed(9)}
    again = specdecode.generate(model, inputs[1]["input_ids"], max_new_tokens=9, **own)
    assert again.sequences[0, 1:].tolist() == drawn[1].tolist(), "prompt 4 has the seed 5 + 4"


@torch.no_grad()
def test_guesses_in_training_are_those_of_drafting(config, folder):
    """A padded batch of texts against a chain drafted at one place of each, level by level."""
    model = text_models.load(folder)
    head = config.new_head(model)
    torch.manual_seed(3)
    for parameter in head.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.05)
    head.eval()
    layers = head.feature_layers
    lengths = ((14, 4), (17, 9), (12, 1))
    texts = [text_drafter.Answered(torch.randint(3, 40, (length,)), prompt) for length, prompt in lengths]
    known = text_drafter.TextStates(model, layers, torch.float32, 1e9)
    batch = text_drafter.batch_of(texts, [known.of(*each) for each in enumerate(texts)])
    assert batch.learned.sum(1).tolist() == [len(each.tokens) - each.prompt_length - 1 for each in texts]
    assert batch.positions[0, batch.first - 1] == 0
    truth = text_drafter.model_logits(model, batch.states[:, 1:, -int(head.config.dim) :]).logsumexp(-1)
    torch.testing.assert_close(batch.totals[batch.learned], truth[batch.learned])
    fused = head.fused(batch.states[:, :-1])
    levels = guesses_by_level(head, batch.tokens, fused, batch.positions, batch.valid, batch.first, 3)
    # Where a draft would begin before the answer, the state is of the deepest level that does not.
    torch.testing.assert_close(levels[2][:, 0], levels[0][:, 0])
    torch.testing.assert_close(levels[2][:, 1], levels[1][:, 1])
    for row, text in enumerate(texts):
        for pair in (text.prompt_length - 1, text.prompt_length + 3):  # a chain from the token of this pair
            drafted = _drafted(head, model, text, pair)
            column = pair + 1 - text.prompt_length
            for level, state in enumerate(drafted):
                torch.testing.assert_close(levels[level][row, column + level], state, atol=2e-5, rtol=1e-4)


def _drafted(head: Any, model: Any, text: text_drafter.Answered, pair: int) -> list[torch.Tensor]:
    """Hidden states of a chain of the text's own tokens, as `specdecode.generate` drafts them, three levels."""
    from specdecode.targets.transformers import TransformersTarget
    from vargen.drafters.text_draft_head import TextDraftHead

    prompt, answer = text.tokens[None, : text.prompt_length], text.tokens[None, text.prompt_length :]
    target = TransformersTarget(model, prompt, max_new_tokens=32, max_draft_nodes=20)
    draft_head = TextDraftHead(head, target, 16)
    feature = draft_head.start(target.prefill())
    count = pair - text.prompt_length + 1  # tokens of the answer before the root, which the target has been fed
    if count:
        tril = torch.ones(1, count, count, dtype=torch.bool).tril()
        depths = torch.arange(count)[None]
        features = torch.cat((feature, draft_head.features(target.forward(answer[:, :count], tril, depths))), 1)
        draft_head.forward(answer[:, :count], features[:, :-1], tril, depths)
        draft_head.advance(torch.tensor([count]))
        feature = features[:, -1:]
    states = []
    for level in range(3):
        mask = torch.ones(1, 1, level + 1, dtype=torch.bool)
        token = answer[:, count + level : count + level + 1]
        feature = draft_head.forward(token, feature, mask, torch.tensor([[level]])).hidden_states
        states.append(feature[0, 0])
    return states


def test_frequent_tokens_are_drafted_and_no_other():
    texts = [text_drafter.Answered(torch.tensor([5, 5, 7, 9]), 2), text_drafter.Answered(torch.tensor([9, 9, 2]), 1)]
    assert text_drafter.frequent_tokens(texts, 12, 4).tolist() == [9, 5, 2, 7]
    assert text_drafter.frequent_tokens(texts, 12, 6).tolist() == [9, 5, 2, 7, 0, 1]


def test_composed_prompts_are_a_function_of_the_seed_and_none_of_the_benchmarks():
    import json

    prompts = compose_prompts("train", 3, 90)
    assert compose_prompts("train", 3, 30) == prompts[:30]
    assert len(set(prompts)) > 80 and not set(prompts) & set(compose_prompts("heldout", 3, 90))
    assert not any("{" in each and "python" not in each for each in prompts), "every place has its word"
    asked = json.loads((Path(__file__).parents[3] / "benchmarks" / "real_text_prompts.json").read_text())
    sentences = {part for texts in asked.values() for text in texts for part in text.split("\n\n") if len(part) > 60}
    assert sentences and not any(part in sentences for each in prompts for part in each.split("\n\n"))


def test_settings_that_do_not_fit_are_named(config):
    for changes, message in (
        ({"model": ""}, "model: '' must name a language model"),
        ({"feature_layers": [1, 2]}, "feature_layers: .* must end with the target's last layer, which is 3"),
        ({"num_attention_heads": 5}, "dim must be num_attention_heads times an even number"),
        ({"max_new_tokens": 500}, "max_new_tokens: 500 after a prompt of 6 tokens reach past the 128 positions"),
        ({"prompts_file": "/nowhere.txt"}, "prompts_file: cannot read"),
        ({"evaluation_size": 30}, "prompts_file: .* must hold more than evaluation_size"),
        ({"num_decoded_prompts": 9}, "num_decoded_prompts: 9 must be at most evaluation_size"),
    ):
        refused(message, lambda changes=changes: text_drafter.train_text_drafter(replace(config, **changes)))
        assert not Path(config.output, "export").exists()


def test_the_command_trains_for_text(config, capsys):
    arguments = ["train", "drafter", "--task", "text", "--model", config.model, "--prompts_file", config.prompts_file]
    small = {"steps": 1, "evaluation_size": 4, "num_decoded_prompts": 1, "max_new_tokens": 8, "num_threads": 1}
    for name, value in small.items():
        arguments += [f"--{name}", str(value)]
    assert main([*arguments, "--output", config.output]) == 0
    assert "training of the drafter-text is over" in capsys.readouterr().out
    assert load_text_drafter(Path(config.output) / "export", text_models.load(Path(config.model)))
    refuses(capsys, main([*arguments[:3], "songs"]), "task must be one of image, video, text, got 'songs'")
