"""Where a model's files come from: the hub's own cache, and one line for whatever goes wrong with the hub."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from refusals import raised, refused

from vargen.checkpoints.options import ModelOptions
from vargen.checkpoints.source import find_files, is_hub_name

NAME = "somebody/tiny-janus"


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way to the hub itself."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put(cache: Path, commit: str, content: str, *references: str) -> Path:
    """A snapshot in a cache as the hub's client lays it out, whose commit these branches and tags name."""
    repository = cache / f"models--{NAME.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    for reference in references:
        (repository / "refs" / reference).write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(content)
    return snapshot


def test_a_hub_name_has_an_owner_and_is_no_path():
    assert is_hub_name(NAME) and is_hub_name("deepseek-community/Janus-Pro-1B")
    assert not any(map(is_hub_name, ("janus", "./models/janus", "/models/janus", "~/janus", "models/of/mine", None)))


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / NAME).mkdir(parents=True)
    (tmp_path / NAME / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert find_files(NAME) == Path(NAME)
    refused(r"revision cannot be used: .* is a folder, and only models on the hub have", find_files, NAME, "main")


def test_what_was_fetched_needs_no_network(offline_cache):
    first, second = put(offline_cache, "1" * 40, "{}", "main"), put(offline_cache, "2" * 40, "{}", "v2")
    assert find_files(NAME).samefile(first) and find_files(NAME, "v2").samefile(second)
    assert find_files(NAME, "1" * 40).samefile(first)


def test_another_cache_is_looked_into_and_a_token_shown(offline_cache, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    snapshot = put(tmp_path / "mine", "1" * 40, "{}", "main")
    assert find_files(NAME, cache_dir=tmp_path / "mine", local_files_only=True).samefile(snapshot)
    refused("cannot be reached to fetch it; leave out local_files_only, or", find_files, NAME, local_files_only=True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download := Mock(return_value=str(snapshot)))
    find_files(NAME, token="hf_mine")
    assert download.call_args.kwargs["token"] == "hf_mine"


def test_without_network_and_cache_there_is_one_line(offline_cache):
    refused(f"model: {NAME} is not a folder, and the hub cannot be reached to fetch it; conn", find_files, NAME)


def of_the_hub(kind: type[Exception], **attributes: Any) -> Exception:
    """An error as the hub's client raises it, without the answer of a server."""
    error = kind.__new__(kind)
    error.__dict__.update(attributes)
    return error


class CarrierError(errors.HfHubHTTPError.__bases__[0]):  # type: ignore[misc, valid-type]
    """Of the library that carries the files."""


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (of_the_hub(errors.GatedRepoError), "is gated: accept its conditions at https://huggingface.co/somebody"),
        (of_the_hub(errors.RepositoryNotFoundError), "is neither a folder nor a model on the hub .* check its name"),
        (of_the_hub(errors.RevisionNotFoundError), "revision: somebody/tiny-janus has no 'v3' on the hub"),
        (errors.LocalEntryNotFoundError("x"), "the hub cannot be reached to fetch it; connect, or name a folder"),
        (of_the_hub(errors.LocalEntryNotFoundError, snapshot_path="x"), "was not fetched whole, and the hub cannot be"),
        (CarrierError("peer closed\nthe rest"), r"was interrupted \(peer closed the rest\); the same command cont"),
        (OSError("Consistency check failed"), "was interrupted .*the same command continues the download"),
        (errors.HFValidationError("x"), "is neither a folder nor a name that the hub allows"),
    ],
)
def test_what_goes_wrong_with_the_hub_is_one_line(raised, message, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download := Mock(side_effect=raised))
    refused(message, find_files, NAME, "v3")
    assert download.call_args.args == (NAME,) and download.call_args.kwargs["revision"] == "v3"


def test_a_full_disk_and_an_interrupt_stay_what_they_are(monkeypatch):
    for error, match in (
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
        (KeyboardInterrupt(), "not fetched whole yet; the same command continues the download"),
    ):
        monkeypatch.setattr(huggingface_hub, "snapshot_download", Mock(side_effect=error))
        raised(type(error), match, find_files, NAME)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda", "device_map": "auto"}, "device cannot be given beside device_map"),
        ({"quantization": "int3"}, "quantization must be one of int8, .*bitsandbytes-8bit, .* mapping, got 'int3'"),
        ({"quantization": {"load_in_4bit": True}}, "quantization.quant_method must be one of bitsandbytes, torchao"),
        ({"quantization": "torchao-int8"}, "quantization needs torchao, which is not installed; run pip install"),
        ({"quantization": "bitsandbytes-4bit"}, "quantization needs bitsandbytes, which is not installed; run pip"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, message, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(message, ModelOptions, **options)


def test_quantization_is_that_of_transformers(monkeypatch):
    """Fields arrive in the library's own configurations; that of torchao is only there with its package."""
    from vargen.checkpoints.quantization import quantization_config

    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(name=name))
    eight = quantization_config("bitsandbytes-8bit")
    assert type(eight).__name__ == "BitsAndBytesConfig" and eight.load_in_8bit and not eight.load_in_4bit
    four = quantization_config({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})
    assert four.load_in_4bit and four.bnb_4bit_quant_type == "nf4"
    unknown = "BitsAndBytesConfig has no 'load_in_3bit'; it has: bnb_4bit"
    for asked, said in (({"load_in_3bit": True}, unknown), ({"load_in_4bit": "yes"}, "")):
        refused(f"quantization: {said}", quantization_config, {"quant_method": "bitsandbytes", **asked})
