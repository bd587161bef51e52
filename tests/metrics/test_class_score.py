"""Scores beside those of torch-fidelity and clean-fid, on the same features and the same files."""

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import raised
from torch import Tensor

from metrics.class_score import inception_score
from metrics.errors import DataError
from metrics.extractors import _clean_resize
from metrics.images import read_image, to_image
from metrics.manifold import compare_manifolds


def features(count: int, shift: float, seed: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) * 1.5 + shift


def test_the_inception_score_is_that_of_torch_fidelity():
    theirs = pytest.importorskip("torch_fidelity.metric_isc", reason="torch-fidelity is missing")
    logits = 3 * features(47, 0.0, 0)
    told = theirs.isc_features_to_metric(logits)
    assert inception_score(logits) == pytest.approx((told["inception_score_mean"], told["inception_score_std"]))
    assert told["inception_score_mean"] > 1.5


def test_the_inception_score_of_extremes():
    certain = 50 * torch.eye(8).repeat(10, 1)  # every part of ten holds some classes, and each is sure
    assert inception_score(certain, parts=1)[0] == pytest.approx(8)
    assert inception_score(torch.zeros(20, 8)) == (pytest.approx(1), pytest.approx(0))
    raised(DataError, "needs 10 or more pictures, got 9", inception_score, torch.zeros(9, 3))


def test_precision_and_recall_are_those_of_torch_fidelity():
    theirs = pytest.importorskip("torch_fidelity.metric_prc", reason="torch-fidelity is missing")
    real, made = features(60, 0.0, 3), features(50, 1.0, 4)
    told = theirs.calculate_precision_recall_full(made.double(), real.double(), 3)
    assert [float(each.double().mean()) for each in compare_manifolds(real, made, 3)[:2]] == pytest.approx(told)
    assert 0.1 < told[0] < 0.9


def test_files_are_resized_as_clean_fid_resizes_them(tmp_path, pictures):
    resizer = pytest.importorskip("cleanfid.resize", reason="clean-fid is missing")
    to_image(pictures[0]).save(tmp_path / "a.png")
    theirs = resizer.build_resizer("clean")(np.asarray(Image.open(tmp_path / "a.png")))
    ours = _clean_resize(read_image(tmp_path / "a.png"))
    assert torch.equal(ours, torch.from_numpy(theirs).permute(2, 0, 1))
