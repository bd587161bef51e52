"""The public code of each family, run once on weights made by rule: its tokens and its logits, at every size.

Sizes, scales and ids are the golden's own, so that another one of the same form can stand in.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from official_layout import golden
from synthetic import decoded
from token_image_models import FAMILY_OF, golden_family, golden_folder
from torch import Tensor

from vargen.models.token_images.description import TokenImageFamily
from vargen.models.token_images.grammar import ImageVocabulary, vocabulary_of
from vargen.models.token_images.token_image_loading import load_family_model
from vargen.models.token_images.token_image_target import TokenImageTarget

CASES = [(name, number) for name in FAMILY_OF for number in range(len(golden(name)[0]["cases"]))]


class Golden:
    """A model that was loaded as its authors publish it, and what their code drew with it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.description, self.tensors = golden(name)
        self.family: TokenImageFamily = golden_family(name)
        self.model: Any = load_family_model(golden_folder(name, folder), self.family)[0]
        self.vocabulary: ImageVocabulary = vocabulary_of(self.family, self.model)

    def case(self, number: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        prefix = f"case{number}."
        tensors = {key.removeprefix(prefix): each for key, each in self.tensors.items() if key.startswith(prefix)}
        return self.description["cases"][number], tensors

    def grid(self, number: int) -> tuple[int, int]:
        case = self.description["cases"][number]
        return case["height"], case["width"]

    def prompts(self, number: int) -> list[tuple[Tensor, Tensor | None]]:
        """Of both rows, with all that stands before the first code."""
        begun, tensors = self.tokens(number)[0], self.case(number)[1]
        both = tensors["input_ids"], tensors["negative_input_ids"]
        return [(torch.cat((ids.reshape(1, -1), begun), 1), None) for ids in both]

    def tokens(self, number: int) -> tuple[Tensor, Tensor]:
        """[1, n] that the public code drew before the first code, such as a size, and [1, M] from there on."""
        tokens = self.case(number)[1]["tokens"].reshape(1, -1)
        first = int(torch.isin(tokens[0], self.vocabulary.ids[: self.vocabulary.num_codes]).nonzero()[0])
        return tokens[:, :first], tokens[:, first:]

    def target(self, number: int, copies: int = 1, nodes: int = 1) -> TokenImageTarget:
        case = self.case(number)[0]
        prompts = [(ids.expand(copies, -1), mask) for ids, mask in self.prompts(number)]
        return TokenImageTarget(
            self.model, self.vocabulary, prompts, grids=[self.grid(number)], decoder=self.family.decoder,
            guidance=self.family.guidance, guidance_scale=case["guidance_scale"], max_draft_nodes=nodes,
        )  # fmt: skip


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Golden]:
    return {name: Golden(name, tmp_path_factory.mktemp(name)) for name in FAMILY_OF}


@pytest.mark.parametrize(("name", "number"), CASES)
def test_tokens_are_those_of_the_public_code(goldens, name, number):
    made, copies = goldens[name], 3 if number == 0 else 1
    target = made.target(number, copies)
    count = target.max_new_tokens
    tokens = decoded(target, count).tokens
    tensors, grid = made.case(number)[1], made.grid(number)
    assert torch.equal(made.vocabulary.text(tokens), made.tokens(number)[1].expand(copies, -1))
    assert torch.equal(made.vocabulary.codes(tokens, *grid)[0], tensors["codes"].view(grid))
    assert count == made.family.num_tokens(grid)
    ends = (target.forced_tokens[0] >= 0).nonzero().flatten().tolist()
    assert ends == [*made.family.row_ends(grid)]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_logits_are_those_of_the_public_code(goldens, name, number):
    """Of both rows at every place, forced ones too, when the tokens of the public code are fed."""
    made = goldens[name]
    tensors = made.case(number)[1]
    drawn, wanted = made.tokens(number)[1], tensors["logits"]  # [1, M], [2, M, picks]
    numbers = {int(number): place for place, number in enumerate(made.vocabulary.ids)}
    fed = torch.tensor([[numbers[int(token)] for token in drawn[0, :-1]]])
    target = made.target(number, nodes=drawn.shape[1])
    if not target.is_guided:
        wanted = wanted[:1]
    states = target.hidden_states_of(fed)[:, -drawn.shape[1] :]  # [1, M, rows * dim]
    rows = torch.cat(states.chunk(target.rows_per_sequence, dim=-1))
    logits = made.model.lm_head(rows)[..., tensors.get("logits_vocab_ids", made.tensors.get("logits_vocab_ids"))]
    torch.testing.assert_close(logits, wanted, atol=2e-4, rtol=0)


def test_what_is_for_training_alone_is_off(tmp_path):
    folder = golden_folder("emu35_tiny", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))
    model, _ = load_family_model(folder, golden_family("emu35_tiny"))
    assert model.config.attention_dropout == 0.0
