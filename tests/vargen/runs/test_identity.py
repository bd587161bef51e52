"""Identities: what differs is named first by first, whatever plain values there are, and equal ones pass."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vargen.base.errors import UserError
from vargen.runs.identity import check_identity, digest

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=80)
plain = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
identities = st.dictionaries(st.text(min_size=1), plain, max_size=4)


def difference(earlier: Any, now: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_identity(Path("there"), earlier, now, holds="pictures")
    message = str(caught.value)
    assert message.startswith("output: there holds pictures with ")
    assert message.endswith("; choose another folder or delete it")
    return message.removeprefix("output: there holds pictures with ").rsplit(";", 1)[0]


@given(identities)
def test_what_json_gives_back_is_the_same_run(identity):
    back = json.loads(json.dumps(identity))
    check_identity(Path("there"), back, identity, holds="pictures")
    assert digest(back) == digest(dict(reversed(list(identity.items()))))


@given(identities, identities)
def test_two_identities_pass_exactly_when_every_name_has_the_same_value(earlier, now):
    names = earlier.keys() | now.keys()
    if all(earlier.get(name) == now.get(name) for name in names):
        check_identity(Path("there"), earlier, now, holds="pictures")
    else:
        assert len(difference(earlier, now).encode("utf-8", "surrogatepass")) < 2000


def test_the_first_difference_is_named_with_both_values():
    assert difference({"a": 1, "seed": 0, "z": 0}, {"a": 1, "seed": 5, "z": 1}) == "another seed (0, now 5)"
    assert difference({}, {"top_k": 3}) == "another top_k (null, now 3)"
    assert difference({"gone": 1}, {}) == "another gone (1, now null)"
    assert difference({"weights": "ab"}, {"weights": "cd"}) == 'other weights ("ab", now "cd")'
    methods = [{"methods": {"vvs": {"depth": depth, "delta": 1}}} for depth in (3, 4)]
    assert difference(*methods) == "another methods.vvs.depth (3, now 4)"
    assert difference({"prompts": ["a", "b"]}, {"prompts": ["a"]}) == "another number of prompts (2, now 1)"
    assert difference({"prompts": ["a"]}, {"prompts": ["a", "b"]}) == "another number of prompts (1, now 2)"
    assert difference({"prompts": ["a", "b"]}, {"prompts": ["a", "c"]}) == 'other prompts at number 2 ("b", now "c")'
    text = difference({"prompt": "x" * 100}, {"prompt": "y" * 1000})
    assert text == f'another prompt ("{"x" * 56}..., now "{"y" * 56}...)'


def test_tuples_are_the_lists_that_json_makes_of_them():
    check_identity(Path("there"), {"tree": [[0], [1]]}, {"tree": ((0,), (1,))}, holds="pictures")
