"""Networks that turn pictures into features, each with an identity that a result can record.

Belongs here: one table of extractors, loading their networks from local files and running them. Does not belong here:
what is computed from features (`frechet`, `manifold`, `clip_score`, `class_score`, `diversity`).

An extractor takes uint8 `[B, 3, H, W]`, refuses anything else with a DataError, and gives fp32 `[B, num_features]` on
the CPU. `identity` names network, layer and a hash of its weights: two results compare only where these agree. Nothing
is downloaded but by torch-fidelity, and only where no file is named.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from metrics.efficientnet import NUM_FEATURES, SIDE, load_efficientnet, packaged_weights
from metrics.errors import DataError, one_line
from metrics.images import to_image

INCEPTION_SIDE = 299
INCEPTION_RESIZINGS = {
    "inception": "tensorflow1",
    "inception-antialiased": "antialiased",
    "inception-clean": "clean",
}
"""How pictures reach that side, by the names that protocols use."""
_VGG_MEAN, _VGG_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FeatureExtractor(Protocol):
    """The interface of every network here."""

    @property
    def num_features(self) -> int: ...

    @property
    def identity(self) -> str: ...

    def __call__(self, pictures: Tensor) -> Tensor: ...


def weights_hash(module: nn.Module) -> str:
    """Twelve hexadecimal digits over names, shapes and values of everything the module computes with."""
    total = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        total.update(f"{name} {tuple(value.shape)} ".encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()[:12]


def _check_pictures(pictures: Tensor) -> None:
    """Raises DataError for anything but uint8 `[B, 3, H, W]` with pixels. A network would take floats in [0, 1] for
    pictures that are almost black, whose distances are small and look right."""
    if not isinstance(pictures, Tensor):
        got = type(pictures).__name__
    elif pictures.dtype != torch.uint8 or pictures.ndim != 4 or pictures.shape[1] != 3 or not pictures.numel():
        got = f"{str(pictures.dtype).removeprefix('torch.')} {list(pictures.shape)}"
    else:
        return
    raise DataError(
        f"pictures must be uint8 [B, 3, H, W] and not empty, got {got}; turn floats in [0, 1] into "
        "(pictures * 255).round().byte(), and one picture into picture[None]"
    )


class InceptionReading(NamedTuple):
    """The outputs of one pass of Inception over pictures, fp32 on the CPU.

    Attributes:
        pool: `[B, 2048]`, features of FID.
        spatial: `[B, 2023]`, features of sFID (Nash et al., arXiv 2103.03841): the first 7 channels of 17 x 17 places
            of the graph's layer mixed_6/conv, as the ADM suite reads them.
        logits: `[B, 1008]` of the classes without their bias, as the Inception Score is defined.
    """

    pool: Tensor
    spatial: Tensor
    logits: Tensor


class InceptionFeatures:
    """Inception of the TF1 FID graph in torch-fidelity's port, pool features.

    Args:
        weights: file of torch-fidelity's layout; None lets torch-fidelity download its own.
        resizing: how pictures reach 299 pixels: "tensorflow1" (bilinear without antialiasing, as FID was defined and
            torch-fidelity does), "antialiased" (bilinear with it, the default of torchmetrics since 1.8) or "clean"
            (PIL's bicubic in float, as clean-fid does). The three give different FIDs.
        device: where it runs.

    Raises:
        DataError: torch-fidelity is not installed, or the file is not of its layout.
    """

    num_features = 2048

    def __init__(
        self, weights: Path | None = None, resizing: str = "tensorflow1", device: torch.device | str = "cpu"
    ) -> None:
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
        except ImportError as error:
            raise DataError(f'Inception features need torch-fidelity ({error}); pip install "vargen[eval]"') from error
        if resizing not in INCEPTION_RESIZINGS.values():
            known = ", ".join(INCEPTION_RESIZINGS.values())
            raise DataError(f"resizing must be one of {known}, got {resizing!r}")
        if weights is not None:
            read_state_dict(weights)  # torch-fidelity would unpickle anything
        try:
            network = FeatureExtractorInceptionV3(
                "inception-v3-compat", ["2048"], None if weights is None else str(weights)
            )
        except RuntimeError as error:
            raise DataError(f"{weights} is not of torch-fidelity's Inception layout ({one_line(error)})") from error
        except OSError as error:
            raise DataError(
                f"torch-fidelity could not download Inception ({error}); name a local file of its weights"
            ) from error
        self.network = network.to(device)
        self.device = torch.device(device)
        self.resizing = resizing
        self.identity = f"inception-v3-compat 2048 {resizing} {weights_hash(network)}"

    def __call__(self, pictures: Tensor) -> Tensor:
        return self.read(pictures).pool

    @torch.no_grad()
    def read(self, pictures: Tensor) -> InceptionReading:
        """Everything that scores are made of, in one pass over uint8 `[B, 3, H, W]`. Raises DataError for other
        input."""
        _check_pictures(pictures)
        places: list[Tensor] = []
        # mixed_6 of the graph is Mixed_6d here, and its "conv" ends in the ReLU.
        handle = self.network.Mixed_6d.branch1x1.register_forward_hook(lambda *layer: places.append(layer[-1][:, :7]))
        try:
            pool = self._pool(pictures)
        finally:
            handle.remove()
        logits = pool @ self.network.fc.weight.T
        return InceptionReading(*(each.flatten(1).float().cpu() for each in (pool, places[0], logits)))

    def _pool(self, pictures: Tensor) -> Tensor:
        if self.resizing == "tensorflow1":
            return self.network(pictures.to(self.device))[0]
        # The network's own entry resizes in its own way; its parts run in the order they are declared in.
        if self.resizing == "clean":
            values = torch.stack([_clean_resize(picture) for picture in pictures]).to(self.device)
        else:
            side = (INCEPTION_SIDE, INCEPTION_SIDE)
            values = interpolate(pictures.to(self.device).float(), size=side, mode="bilinear", antialias=True)
        values = (values - 128) / 128
        for name, part in self.network.named_children():
            if name == "fc":
                break
            values = part(values)
        return values.flatten(1)


def _inception(resizing: str, weights: Path | None, device: torch.device | str) -> InceptionFeatures:
    return InceptionFeatures(weights, resizing, device)


def _clean_resize(picture: Tensor) -> Tensor:
    """fp32 `[3, 299, 299]` in [0, 255], each channel resized in float and not rounded (clean-fid)."""
    import numpy as np
    from PIL import Image

    side = (INCEPTION_SIDE, INCEPTION_SIDE)
    channels = [
        np.asarray(Image.fromarray(channel.numpy().astype(np.float32), mode="F").resize(side, Image.Resampling.BICUBIC))
        for channel in picture
    ]
    return torch.from_numpy(np.stack(channels).clip(0, 255))


class VGGFeatures:
    """VGG16's second fully connected layer, the network of improved precision and recall.

    Args:
        weights: file of torchvision's layout.
        device: where it runs.

    Raises:
        DataError: torchvision is not installed, or the file is not of its layout.
    """

    num_features = 4096

    def __init__(self, weights: Path, device: torch.device | str = "cpu") -> None:
        try:
            from torchvision.models import vgg16
        except ImportError as error:
            raise DataError(f'VGG features need torchvision ({error}); pip install "vargen[eval]"') from error
        with torch.device("meta"):  # drawing weights that are replaced takes seconds
            network = vgg16(weights=None)
        try:
            network.load_state_dict(read_state_dict(weights), assign=True)
        except RuntimeError as error:
            raise DataError(f"{weights} is not of torchvision's VGG16 layout ({one_line(error)})") from error
        network = network.float()  # as the network is made, whatever the file holds
        network.classifier = network.classifier[:5]  # up to the second layer's ReLU
        self.network = network.to(device).eval().requires_grad_(False)
        self.device = torch.device(device)
        self.identity = f"vgg16 fc2 {weights_hash(network)}"

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        _check_pictures(pictures)
        values = pictures.to(self.device).float() / 255
        values = interpolate(values, size=(224, 224), mode="bicubic", antialias=True).clamp(0, 1)
        mean, std = (torch.tensor(each, device=self.device)[:, None, None] for each in (_VGG_MEAN, _VGG_STD))
        return self.network((values - mean) / std).float().cpu()


class EfficientNetFeatures:
    """EfficientNet-Lite0 trained on ImageNet, from an installed package: a real, public network without a download.

    A Frechet distance of its features is not FID, and compares only with others of this network.

    Args:
        weights: file of the package's layout; None for the package's own.
        device: where it runs.

    Raises:
        DataError: the package is not installed, or the file is not of its layout.
    """

    num_features = NUM_FEATURES

    def __init__(self, weights: Path | None = None, device: torch.device | str = "cpu") -> None:
        path = packaged_weights() if weights is None else weights
        network = load_efficientnet(read_state_dict(path), path)
        self.network = network.to(device).eval().requires_grad_(False)
        self.device = torch.device(device)
        self.identity = f"efficientnet-lite0 pool {weights_hash(network)}"

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        _check_pictures(pictures)
        values = pictures.to(self.device).float()
        values = interpolate(values, size=(SIDE, SIDE), mode="bicubic", antialias=True).clamp(0, 255)
        return self.network((values - 127) / 128).float().cpu()  # as the Lite networks were trained


class CLIPFeatures:
    """A transformers `CLIPModel` from a local folder: features of pictures and of texts, of length one.

    Args:
        folder: holds the model, its tokenizer and its image processor's configuration.
        device: where it runs.

    Raises:
        DataError: the folder holds no CLIP.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

        if not (folder / "config.json").is_file():
            raise DataError(f"{folder} holds no CLIP model (config.json is missing); name the folder of one")
        try:
            model: Any = CLIPModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
            # PIL's resizing is what CLIP was trained with.
            self.image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        except Exception as error:  # tokenizers raise no more special kind for a damaged file
            raise DataError(f"{folder} holds no CLIP model ({one_line(error)})") from error
        self.model = model.to(device).eval().requires_grad_(False)
        self.device = torch.device(device)
        self.num_features = int(self.model.config.projection_dim)
        self.identity = f"clip {folder.name} {weights_hash(self.model)}"
        self._has_warned = False

    @torch.no_grad()
    def __call__(self, pictures: Tensor) -> Tensor:
        _check_pictures(pictures)
        values = self.image_processor([to_image(picture) for picture in pictures], return_tensors="pt").pixel_values
        return _unit(self.model.get_image_features(pixel_values=values.to(self.device)))

    @torch.no_grad()
    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """fp32 `[B, num_features]`; texts beyond the model's positions are cut before the end token.

        Warns:
            UserWarning: once, of a text with words that the tokenizer does not know, such as one in another script.
        """
        self._warn_of_unknown_words(texts)
        # Padded to the full length: a text's features must not depend, even in the last bit, on its neighbours.
        tokens = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=self.model.config.text_config.max_position_embeddings,
            return_tensors="pt",
        ).to(self.device)
        return _unit(self.model.get_text_features(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask))

    def _warn_of_unknown_words(self, texts: Sequence[str]) -> None:
        unknown = self.tokenizer.unk_token_id
        if self._has_warned or unknown is None:
            return
        words = self.tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
        for text, of_text in zip(texts, words, strict=True):
            if unknown in of_text:
                self._has_warned = True
                message = f"CLIP does not know every word of {text[:60]!r}, so scores of such texts mean little"
                warnings.warn(message, stacklevel=3)
                return


def _unit(output: Any) -> Tensor:
    """Features as unit vectors; transformers 5 wraps them in an output object, 4 did not."""
    features = output if isinstance(output, Tensor) else output.pooler_output
    return nn.functional.normalize(features.float(), dim=-1).cpu()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a file of `torch.save`, and nothing but tensors. Raises DataError for a missing or damaged
    file, or other content."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; name a local file of the network's weights") from None
    except Exception as error:  # torch raises half a dozen kinds for damaged or unsafe files
        raise DataError(f"{path} holds no weights that can be read safely ({one_line(error, 120)})") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise DataError(f"{path} holds something else than a network's weights by name")
    return loaded


@dataclass(frozen=True)
class ExtractorKind:
    """How a network comes to be.

    Args:
        load: from a file or a folder and a device.
        argument: which names the file or the folder; empty: none does.
        needed: what to name, where the network does not do without; empty: it does.
    """

    load: Callable[[Any, torch.device | str], FeatureExtractor]
    argument: str = ""
    needed: str = ""


EXTRACTORS: dict[str, ExtractorKind] = {
    "clip": ExtractorKind(CLIPFeatures, "clip", "a CLIP model; name the folder of one"),
    **{
        name: ExtractorKind(partial(_inception, resizing), "inception_weights")
        for name, resizing in INCEPTION_RESIZINGS.items()
    },
    "vgg16": ExtractorKind(VGGFeatures, "vgg_weights", "torchvision's VGG16; name a file of its weights"),
    "efficientnet-lite0": ExtractorKind(EfficientNetFeatures),
    "hps": ExtractorKind(CLIPFeatures, "hps", "a CLIP trained on preferences; name the folder of one"),
}
"""Every network that a protocol may name. A new one is a class and a line here."""
