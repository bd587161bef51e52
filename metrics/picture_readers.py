"""Networks that say what is in a picture, from local folders of transformers: detectors, and answers to questions.

Belongs here: loading them and running them. Does not belong here: what their answers mean for a score (`composition`).
Each has an `identity` that a result can record, as extractors do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from metrics.composition import Found
from metrics.errors import DataError, one_line
from metrics.extractors import weights_hash
from metrics.images import to_image

_LEAST_SCORE = 0.01
"""Objects below it are not handed on; every rule asks for more."""


class Detector(Protocol):
    """Finds objects."""

    @property
    def identity(self) -> str: ...

    def check(self, names: Sequence[str]) -> None:
        """Raises DataError for a class that it cannot find."""

    def __call__(self, picture: Tensor, names: Sequence[str]) -> list[Found]:
        """The objects of these classes in a picture, uint8 `[3, H, W]`."""


class Mask2FormerDetector:
    """Mask2Former with the classes that it was trained on, GenEval's own kind of detector.

    Args:
        folder: a transformers `Mask2FormerForUniversalSegmentation` and its image processor.
        device: where it runs.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        from transformers import AutoImageProcessor, Mask2FormerForUniversalSegmentation

        self.model, self.processor = _load(
            folder, device, Mask2FormerForUniversalSegmentation, AutoImageProcessor, "Mask2Former"
        )
        self.names = {int(number): str(name) for number, name in self.model.config.id2label.items()}
        self.identity = f"mask2former {folder.name} {weights_hash(self.model)}"

    def check(self, names: Sequence[str]) -> None:
        known = set(self.names.values())
        if unknown := [name for name in names if name not in known]:
            raise DataError(f"the detector knows no {unknown[0]!r}; name one of its classes, or a detector such as OWL")

    @torch.no_grad()
    def __call__(self, picture: Tensor, names: Sequence[str]) -> list[Found]:
        inputs = self.processor(to_image(picture), return_tensors="pt").to(self.model.device)
        result = self.processor.post_process_instance_segmentation(
            self.model(**inputs),
            threshold=_LEAST_SCORE,
            target_sizes=[tuple(picture.shape[-2:])],
            return_binary_maps=True,
        )[0]
        found = []
        for segment, mask in zip(result["segments_info"], result["segmentation"], strict=False):  # none: a map of -1
            name = self.names.get(int(segment["label_id"]), "")
            if name in names:
                mask = mask.bool().cpu()
                rows, columns = mask.nonzero().T
                box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
                found.append(Found(name, float(segment["score"]), tuple(map(float, box)), mask))  # type: ignore[arg-type]
        return found


class OwlDetector:
    """OWL-ViT or OWLv2, which find what a text names. Their scores lie lower than Mask2Former's.

    Args:
        folder: a transformers `OwlViTForObjectDetection` or `Owlv2ForObjectDetection`, and its processor.
        device: where it runs.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

        self.model, self.processor = _load(folder, device, AutoModelForZeroShotObjectDetection, AutoProcessor, "OWL")
        self.identity = f"owl {folder.name} {weights_hash(self.model)}"

    def check(self, names: Sequence[str]) -> None:
        """Any name can be looked for."""

    @torch.no_grad()
    def __call__(self, picture: Tensor, names: Sequence[str]) -> list[Found]:
        texts = [[f"a photo of a {name}" for name in names]]
        inputs = self.processor(text=texts, images=to_image(picture), return_tensors="pt").to(self.model.device)
        result = self.processor.post_process_grounded_object_detection(
            self.model(**inputs), threshold=_LEAST_SCORE, target_sizes=[tuple(picture.shape[-2:])]
        )[0]
        return [
            Found(names[int(label)], float(score), tuple(box.tolist()))
            for label, score, box in zip(result["labels"], result["scores"], result["boxes"], strict=True)
        ]


DETECTORS: dict[str, Callable[[Path, torch.device | str], Detector]] = {
    "mask2former": Mask2FormerDetector,
    "owlvit": OwlDetector,
    "owlv2": OwlDetector,
}
"""The detectors, by the `model_type` of a folder's config.json."""


def load_detector(folder: Path, device: torch.device | str = "cpu") -> Detector:
    """The detector of a folder. Raises DataError for a folder of anything else."""
    kind = _model_type(folder)
    if kind not in DETECTORS:
        raise DataError(f"{folder} holds no detector ({kind or 'no config.json'}); name one of {', '.join(DETECTORS)}")
    return DETECTORS[kind](folder, device)


class VisualAnswers:
    """BLIP, which answers a question about a picture with a word or two.

    Args:
        folder: a transformers `BlipForQuestionAnswering` and its processor.
        device: where it runs.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        from transformers import AutoProcessor, BlipForQuestionAnswering

        if (kind := _model_type(folder)) != "blip":
            raise DataError(f"{folder} holds no BLIP that answers questions ({kind or 'no config.json'}); name one")
        self.model, self.processor = _load(folder, device, BlipForQuestionAnswering, AutoProcessor, "BLIP")
        self.identity = f"blip {folder.name} {weights_hash(self.model)}"

    @torch.no_grad()
    def __call__(self, picture: Tensor, questions: Sequence[str]) -> list[str]:
        """Answers about a picture, uint8 `[3, H, W]`, in lower case."""
        image = to_image(picture)
        answers = []
        for question in questions:  # alone, so that an answer does not depend on how others are padded
            inputs = self.processor(images=image, text=question, return_tensors="pt").to(self.model.device)
            tokens = self.model.generate(**inputs, max_new_tokens=8, do_sample=False)
            answers.append(self.processor.decode(tokens[0], skip_special_tokens=True).strip().lower())
        return answers


def _model_type(folder: Path) -> str:
    from transformers import PretrainedConfig

    if not (folder / "config.json").is_file():
        return ""
    try:
        return str(PretrainedConfig.get_config_dict(folder)[0].get("model_type", ""))
    except Exception as error:  # transformers raises several kinds for a damaged file
        raise DataError(f"{folder / 'config.json'} cannot be read ({one_line(error)})") from error


def _load(folder: Path, device: torch.device | str, model_class: Any, processor_class: Any, what: str) -> Any:
    """Model and processor of a folder, without running code of it. Raises DataError."""
    try:
        model = model_class.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, local_files_only=True)
        processor = processor_class.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # libraries raise half a dozen kinds for damaged folders
        raise DataError(f"{folder} holds no {what} ({one_line(error)})") from error
    return model.to(device).eval().requires_grad_(False), processor
