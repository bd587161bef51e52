"""diffusers' own tests of a pipeline, `PipelineTesterMixin`, on the pipelines of this project.

The suite is not part of any package, so it is read from a checkout of diffusers, and nothing of it is copied here:

    git clone --depth 1 https://github.com/huggingface/diffusers
    python benchmarks/diffusers_suite.py diffusers                    # prints a table, one row a test
    python benchmarks/diffusers_suite.py diffusers --output benchmarks/results/diffusers_suite.json

It needs `pip install requests-mock parameterized peft`. Pipelines are tiny, with random weights.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import re
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch

from metrics.provenance import write_result

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "shared")]

OUTCOMES = ("passed", "failed", "does not apply", "skipped")
PIXELS_IN_FLOAT32 = {
    "test_dtype_alias": "asks for every component in `dtype`; pixels are decoded in float32 unless asked by name"
}
IN_LAYOUT_OF_TRANSFORMERS = dict.fromkeys(
    (
        "test_save_load_local", "test_save_load_optional_components", "test_loading_with_variants",
        "test_loading_with_incorrect_variants_raises_error", "test_serialization_with_variants", "test_dtype_dict",
    ),
    "one model of transformers, saved in its layout: there are no components in folders of their own",
) | {
    "test_encode_prompt_works_in_isolation": "a prompt is tokens of the one model, and no text encoder makes features",
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A pipeline to test.

    Args:
        pipeline: its class.
        components: makes fresh ones.
        inputs: arguments of a call beside a prompt, a generator, guidance and `output_type`.
        does_not_apply: tests that fail by design, with the reason.
    """

    pipeline: type
    components: Callable[[], dict[str, Any]]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    does_not_apply: Mapping[str, str] = field(default_factory=lambda: IN_LAYOUT_OF_TRANSFORMERS)


def llamagen() -> Subject:
    """LlamaGen."""
    from tiny_pipelines import build_tiny_pipeline

    made = build_tiny_pipeline()
    return Subject(type(made), lambda: copy.deepcopy(made.components), {}, PIXELS_IN_FLOAT32)


def janus() -> Subject:
    """Janus, with room for the suite's longest prompt."""
    import janus_models

    from vargen.pipelines.janus import JanusPipeline

    def components() -> dict[str, Any]:
        return {"model": janus_models.make(context=160).float(), "processor": janus_models.processor()}

    return Subject(JanusPipeline, components)


def emu3() -> Subject:
    """Emu3, with room for the suite's longest prompt."""
    import emu3_models

    from vargen.pipelines.emu3 import Emu3Pipeline

    def components() -> dict[str, Any]:
        return {"model": emu3_models.make(context=160).float(), "processor": emu3_models.processor()}

    return Subject(Emu3Pipeline, components, emu3_models.SIZE)


def token_images() -> Subject:
    """Anole, which stands for families that draw token by token."""
    import token_image_models as models

    from vargen.pipelines.token_images import TokenImagePipeline

    family = models.tiny_family("anole")

    def components() -> dict[str, Any]:
        model = models.tiny_model(family, max_position_embeddings=160).float()
        return {"model": model, "tokenizer": models.tiny_tokenizer(family), "vqvae": models.tiny_vqvae(family).float()}

    class Anole(TokenImagePipeline):
        def __init__(self, model: Any, tokenizer: Any = None, vqvae: Any = None, _: Any = None) -> None:
            super().__init__(model, tokenizer, vqvae, family)

    refused = IN_LAYOUT_OF_TRANSFORMERS | PIXELS_IN_FLOAT32
    return Subject(Anole, components, {"height": 32, "width": 64}, refused)


def glm_image() -> Subject:
    """GLM-Image, whose pipeline is a subclass of diffusers' own."""
    import glm_image_models as models
    from transformers import GlmImageProcessor

    from vargen.pipelines.glm_image import GlmImagePriorPipeline

    def components() -> dict[str, Any]:
        made = models.make(kind=GlmImageProcessor)
        made.register_modules(vision_language_encoder=models.make_model(context=512).float())
        return dict(made.components)

    size = {"height": models.HEIGHT, "width": models.WIDTH, "num_inference_steps": 2, "max_sequence_length": 16}
    why = "a prior is drawn of words, so that `prompt` is needed beside features"
    words = dict.fromkeys(("test_encode_prompt_works_in_isolation", "test_save_load_optional_components"), why)
    why = "guides the codes, and a prior is drawn without guidance"
    unguided = dict.fromkeys(("test_callback_cfg", "test_callback_inputs"), why)
    return Subject(GlmImagePriorPipeline, components, size, words | unguided)


PIPELINES = {each.__name__: each for each in (llamagen, janus, emu3, token_images, glm_image)}


def suite_of(subject: Subject, mixin: type) -> type[unittest.TestCase]:
    """The mixin's tests of one pipeline, as a class of unittest."""
    make = subject.components
    # The suite reads the source of `encode_prompt` by the name of the class among diffusers' own.
    setattr(diffusers.pipelines, subject.pipeline.__name__, subject.pipeline)
    embeds: dict[str, Any] = {}

    class Tests(mixin, unittest.TestCase):  # type: ignore[misc, valid-type]
        pipeline_class = subject.pipeline
        params = frozenset({"prompt", "height", "width", "guidance_scale", "negative_prompt"})
        batch_params = frozenset({"prompt", "negative_prompt"})
        required_optional_params = frozenset({"num_images_per_prompt", "generator", "output_type", "return_dict"})
        callback_cfg_params: frozenset[str] = frozenset()
        test_xformers_attention = False
        test_attention_slicing = False

        def get_dummy_components(self) -> dict[str, Any]:
            return make()

        def get_dummy_inputs(self, device: Any, seed: int = 0) -> dict[str, Any]:
            asked = embeds or {"prompt": "a red cube"}
            generator = torch.Generator().manual_seed(seed)
            return {**asked, "generator": generator, "guidance_scale": 2.5, "output_type": "np", **subject.inputs}

        def test_save_load_optional_components(self, expected_max_difference: float = 1e-4) -> None:
            """Without text encoder: prompts come as features."""
            features = self.pipeline_class(**make()).encode_prompt("a red cube")
            embeds.update(zip(("prompt_embeds", "prompt_attention_mask"), features, strict=True))
            try:
                super().test_save_load_optional_components(expected_max_difference)
            finally:
                embeds.clear()

        def test_inference_batch_consistent(self, batch_sizes: Any = (2,)) -> None:
            """No `num_inference_steps` to copy."""
            self._test_inference_batch_consistent(batch_sizes, additional_params_copy_to_batched_inputs=[])

        def test_inference_batch_single_identical(self, batch_size: int = 3, expected_max_diff: float = 1e-4) -> None:
            """No `num_inference_steps` to copy."""
            self._test_inference_batch_single_identical(
                batch_size, expected_max_diff, additional_params_copy_to_batched_inputs=[]
            )

    return Tests


def run(name: str, mixin: type) -> dict[str, dict[str, str]]:
    """What came of every test: "passed", "failed", "skipped" or "does not apply", and why."""
    subject = PIPELINES[name]()
    tests, refused = suite_of(subject, mixin), subject.does_not_apply
    found: dict[str, dict[str, str]] = {}
    for test in unittest.defaultTestLoader.getTestCaseNames(tests):
        if test in refused:
            found[test] = {"outcome": "does not apply", "why": refused[test]}
            continue
        # Marks of pytest, which unittest does not know: most say that there is no accelerator.
        marks = (mark for mark in getattr(getattr(tests, test), "pytestmark", ()) if mark.name in ("skip", "skipif"))
        if marked := [mark for mark in marks if mark.name == "skip" or any(mark.args)]:
            found[test] = {"outcome": "skipped", "why": str(marked[0].kwargs.get("reason", ""))}
            continue
        result = unittest.TestResult()
        tests(test).run(result)
        wrong = [*result.errors, *result.failures]
        if result.skipped:
            found[test] = {"outcome": "skipped", "why": result.skipped[0][1]}
        elif wrong:
            found[test] = {"outcome": "failed", "why": wrong[0][1].strip().splitlines()[-1][:300]}
        else:
            found[test] = {"outcome": "passed", "why": ""}
        print(f"{name:10} {test:60} {found[test]['outcome']:15} {found[test]['why']}", flush=True)
    return found


def main() -> int:
    """Run the suite; the exit code is 1 if a test that applies fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="of diffusers, with its tests")
    parser.add_argument("--pipelines", nargs="*", choices=[*PIPELINES], default=[*PIPELINES])
    parser.add_argument("--output", type=Path, help="a JSON file with all outcomes")
    options = parser.parse_args()
    home = options.checkout / "tests" / "pipelines" / "test_pipelines_common.py"
    if not home.is_file():
        parser.error(f"{options.checkout} is no checkout of diffusers: {home} is missing")
    sys.path.insert(0, str(options.checkout.resolve()))
    warnings.simplefilter("ignore")
    from tests.pipelines.test_pipelines_common import PipelineTesterMixin

    outcomes = {name: run(name, PipelineTesterMixin) for name in options.pipelines}
    rows = []
    for name, found in outcomes.items():
        counts = Counter(each["outcome"] for each in found.values())
        rows.append({"pipeline": name, **{kind: counts[kind] for kind in OUTCOMES}})
        print(f"{name}: {counts['passed']} of {counts['passed'] + counts['failed']} passed; {dict(counts)}")
    if options.output is not None:
        suite = {"version": _version(options.checkout), "sha256": hashlib.sha256(home.read_bytes()).hexdigest()}
        write_result(options.output, {"suite": suite, "rows": rows, "outcomes": outcomes})
    return int(any(row["failed"] for row in rows))


def _version(checkout: Path) -> str:
    """That of diffusers in a checkout, which is not the installed one."""
    told = (checkout / "src" / "diffusers" / "__init__.py").read_text()
    return next(iter(re.findall(r'^__version__ = "(.+)"', told, re.MULTILINE)), "unknown")


if __name__ == "__main__":
    sys.exit(main())
