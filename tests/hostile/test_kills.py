"""The tests of kills.py in a process of their own: what other tests left in this one would be forked too."""

import subprocess
from pathlib import Path

from warm import python


def test_kills():
    kills = Path(__file__).with_name("kills.py")
    command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", kills)
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:]
    assert " passed" in ran.stdout and "skipped" not in ran.stdout
