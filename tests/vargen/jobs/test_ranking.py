"""Which of several candidates is kept, and by which seed it can be made again."""

from __future__ import annotations

from vargen.jobs.ranking import best, candidate_seed


def test_equal_scores_keep_the_first_and_seeds_differ_in_their_lower_bits() -> None:
    assert best([0.5, 1.0, 1.0]) == 1 and best([0.0]) == 0
    seeds = {candidate_seed(7, number) % 2**32 for number in range(1000)}
    assert len(seeds) == 1000 and candidate_seed(7, 0) == 7 and candidate_seed(2**63 - 1, 5) < 2**63
