"""Numbers of the wrong kind are named, wherever they are given."""

import numpy as np
import pytest
import torch
from refusals import value_error

from specdecode import DraftSize, PromptLookupDrafter, RandomStreams, StaticKVCache
from specdecode.checks import check_counts, is_integer
from specdecode.loop import stop_tokens


def test_truth_values_and_fractions_are_no_counts():
    check_counts(3, a=3, b=np.int64(4))  # type: ignore[arg-type]
    value_error(r"^b must be below 2\*\*31, got", check_counts, a=1, b=2**63)
    assert is_integer(0) and is_integer(np.int32(5)) and not is_integer(True) and not is_integer(1.0)
    for wrong in (True, 2.5, 2.0, "2", None, torch.tensor(2)):
        value_error(r"^rows must be an integer, at least 1, got", check_counts, columns=2, rows=wrong)
    value_error(r"^rows must be at least 2, got 1", check_counts, 2, rows=1)


SIZER = object()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: DraftSize(2.5, 1), "total_tokens"),  # type: ignore[arg-type]
        (lambda: DraftSize(2, True), "depth"),
        (lambda: StaticKVCache(1, 2, 1.5, 8, 4), "num_heads"),  # type: ignore[arg-type]
        (lambda: StaticKVCache(1, 2, 1, True, 4), "max_length"),
        (lambda: PromptLookupDrafter(torch.ones(1, 2), SIZER, max_ngram_size=2.5), "max_ngram_size"),  # type: ignore[arg-type]
        (lambda: stop_tokens("a", 5, torch.device("cpu")), "stop_token"),  # type: ignore[arg-type]
        (lambda: stop_tokens([1.0], 5, torch.device("cpu")), "stop_token"),  # type: ignore[list-item]
        (lambda: RandomStreams.from_generators([3]), "generators"),  # type: ignore[list-item]
    ],
)
def test_arguments_of_the_wrong_kind_are_named(make, name):
    value_error(f"{name}.* must", make)
