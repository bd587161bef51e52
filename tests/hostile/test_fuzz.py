"""What the tables miss: a few inputs of each kind drawn at random, the same in every run. `benchmarks/fuzz.py` tries
many more."""

from pathlib import Path

import pytest
from fuzz_inputs import GOOD, KINDS, Sound, attempt


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Sound:
    return Sound(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")
def test_inputs_that_nobody_wrote_down(kind, sound, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        work = Path(tmp_path / str(number))
        work.mkdir()
        end, told = attempt(kind, 0, number, sound, work)
        assert end in GOOD, told
