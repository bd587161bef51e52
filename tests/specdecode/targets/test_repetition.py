"""The repetition penalty along a tree is transformers' own along each of its paths."""

import torch
from random_chains import way_to
from refusals import value_error
from transformers import RepetitionPenaltyLogitsProcessor

from specdecode.targets.repetition import RepetitionPenalty
from specdecode.tree import TokenTree


def test_every_node_has_the_penalty_of_its_own_path():
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.tensor([3, 4, 4, 30]), torch.tensor([7])]
    tree = TokenTree.from_parents(
        torch.tensor([[1, 2, 3, 2], [7, 8, 9, 9]]), torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, 1]])
    )
    penalty, theirs = RepetitionPenalty(1.7, prompts, 20, 12), RepetitionPenaltyLogitsProcessor(1.7)
    first = torch.randn(2, 1, 20, generator=generator)
    for row, prompt in enumerate(prompts):
        wanted = theirs(prompt[prompt < 20][None], first[row])
        torch.testing.assert_close(penalty.of_prompts(first)[row], wanted)
    penalty.keep(torch.tensor([[5, 6, 11], [12, 13, 14]]), torch.tensor([0, 0]))
    penalty.keep(torch.tensor([[8, 16], [15, 16]]), torch.tensor([3, 1]))  # 13 and 14 were not accepted
    num_kept = torch.tensor([4, 2])  # nor was 16
    kept = [[5, 6, 11, 8], [12, 15]]
    logits = torch.randn(2, 4, 20, generator=generator)
    ours = penalty.of_nodes(logits, tree.tokens, tree.ancestor_mask(), num_kept)
    for row, prompt in enumerate(prompts):
        for node in range(4):
            way = tree.tokens[row, way_to(tree.parents[row].tolist(), node)].tolist()
            said = torch.tensor([[*prompt[prompt < 20].tolist(), *kept[row], *way]])
            torch.testing.assert_close(ours[row, node][None], theirs(said, logits[row, node][None]))


def test_a_penalty_of_nothing_is_refused():
    value_error("repetition_penalty", RepetitionPenalty, 0.0, [torch.tensor([1])], 5, 5)
