"""Protocols: what they refuse, what they warn of, and the shipped ones."""

import torch
from refusals import raised

from metrics.errors import DataError
from metrics.protocol import ClipProtocol, Protocol
from metrics.quality import score_pictures
from metrics.tables import latex_quality, markdown_quality


def test_wrong_fields_are_named():
    for values, message in (
        ({"resizer": "nearest"}, "resizer must be one of"),
        ({"extractor": "resnet"}, "extractor must be one of"),
        ({"manifold_extractor": "resnet"}, "manifold_extractor must be"),
        ({"count": 0}, "count must be a positive integer"),
        ({"resolution": "256"}, "resolution must be a positive integer"),
        ({"reference": "renders"}, "reference_count must say"),
        ({"captions": "class_labels"}, "clip_score must be null"),
        ({"prefix": "x"}, "prefix is not a field"),
        ({"clip_score": {"model": "x"}}, r"clip_score\.model is not a field"),
        ({"clip_score": True}, "clip_score must be null or its own fields"),
        ({"clip_score": {"scale": "abc"}}, r"clip_score\.scale must be a finite number"),
        ({"clip_score": {"prefix": 5}}, r"clip_score\.prefix must be a text"),
        ({"judge": "false"}, "judge must be true or false"),
    ):
        raised(DataError, message, Protocol.from_dict, {"name": "mine", **values})


def test_a_protocol_survives_plain_values():
    protocol = Protocol("mine", count=7, extractor="clip", clip_score=ClipProtocol("A photo depicts ", 1.0, False))
    assert Protocol.from_dict(protocol.to_dict()) == protocol
    assert protocol.extractors == ("clip",)


def test_another_number_of_pictures_is_refused():
    protocol = Protocol("coco", count=5000)
    protocol.check_count(5000)
    for other in (4999, 5001):
        raised(DataError, f"5,000 pictures, not {other:,}", protocol.check_count, other)


def test_captions_that_do_not_fit_are_refused():
    protocol = Protocol("coco", longest_caption=True)
    protocol.check_captions(["a", "b"], ["1", "2"])
    raised(DataError, "number 1 is empty", protocol.check_captions, ["a", " "])
    raised(DataError, "names a picture twice", protocol.check_captions, ["a", "b"], ["1", "1"])


def test_too_few_pictures_for_the_dimensions_are_warned_of():
    assert not Protocol("mine").warnings(3000, 2048, 2049)
    mine = Protocol("mine", extractor="clip", manifold_extractor="clip", reference="renders", reference_count=5000)
    assert [mine.num_renders(count, 128) for count in (24, 200, 999, 1000, 2000)] == [256, 800, 3996, 5000, 5000]
    assert "coverage too low" in mine.warnings(200, 128, 800)[0] and not mine.warnings(2500, 128, 5000)
    warnings = Protocol("mine").warnings(2048, 2048, 100)
    assert len(warnings) == 2 and "2,048 pictures cannot fill 2,048" in warnings[0]


def test_without_a_reference_or_draws_there_are_dashes_and_no_intervals():
    features = torch.nn.functional.normalize(torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), dim=-1)
    protocol = Protocol("mine", extractor="clip", manifold_extractor="clip")
    without = score_pictures(protocol, {"clip": features}, None, features, draws=0)
    assert without["frechet_distance"] is None and without["recall"] is None
    assert without["diversity"]["interval"] is None
    raised(DataError, "needs captions", score_pictures, protocol, {"clip": features}, None)


def test_tables_say_what_was_measured_and_dash_what_was_not():
    figure = {"value": 0.5, "interval": [0.4, 0.6]}
    recall, clip_score = {"value": 0.99, "interval": [0.9461, 0.9982]}, {"value": 31.2, "interval": None}
    decoding = {"pass_reduction": 2.5, "mean_accepted_length": 1.25, "skipped_tokens": 35, "tokens": 256}
    row = {"method": "vvs_x", "count": 2000, "frechet_distance": figure, "precision": None, "recall": recall}
    row |= {"clip_score": clip_score, "decoding": decoding}
    table = markdown_quality([row], "clip")
    header, _, cells = table.splitlines()
    assert "Frechet distance (clip features)" in header
    assert "FID |" in markdown_quality([row], "inception").splitlines()[0]
    assert cells == "| vvs_x | 2,000 | 0.500 ± 0.100 | 31.20 | 99.0 (94.6-99.8) | 2.50x | 1.25 | 14 % |"
    latex = latex_quality([row], "clip")
    assert r"vvs\_x & 2,000 & 0.500 $\pm$ 0.100 & 31.20 & 99.0 (94.6-99.8) & 2.50$\times$ & 1.25 & " in latex
    assert r"recall, \%" in latex
