"""A method's settings as text and back."""

import pytest
from refusals import refused

from vargen.demo.controls import read_settings, write_settings
from vargen.methods.catalogue import METHODS, find_presets, resolve_method

EVERY = [*(method() for method in METHODS), *map(resolve_method, find_presets())]


@pytest.mark.parametrize("config", EVERY, ids=lambda config: config.name)
def test_what_is_written_is_read_back(config):
    text = write_settings(config)
    assert read_settings(config, text) == config
    assert not any(f"{name}:" in text.splitlines() for name in config.weights)


def test_what_is_changed_is_all_that_changes():
    config = resolve_method("scd", {"initial_guess": "repeat", "window": 8})
    assert read_settings(config, "window: 32") == resolve_method("scd", {"initial_guess": "repeat", "window": 32})


def test_what_is_wrong_is_named():
    for text, named in (
        ("window: -1", "scd.window"),
        ("windows: 4", "windows"),
        ("window", "one `name: value` a line"),
        ("window: [", "one `name: value` a line"),
        ("!!python/object/apply:os.system ['true']", "one `name: value` a line"),
    ):
        refused(named, read_settings, resolve_method("scd"), text)


def test_no_folder_of_the_machine_can_be_named():
    for config in EVERY:
        for name in config.weights:
            refused(f"{name} names a folder", read_settings, config, f"{name}: /etc")
