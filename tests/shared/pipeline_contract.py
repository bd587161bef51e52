"""What the pipeline of every family does, as diffusers' `PipelineTesterMixin`: a family's test file subclasses it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vargen.base.errors import UserError

SETTINGS: list[dict[str, Any]] = [
    {},
    {"method": "sjd"},
    {"guidance_scale": 1.0},
    {"method": "scd", "top_p": 0.9, "temperature": 1.3},
    {"top_k": 5},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt must hold at least one prompt"),
    ({"prompt": ["a dog", " "]}, "prompt 2 is empty"),
    ({"num_images_per_prompt": 0}, "num_images_per_prompt must be at least 1"),
    ({"output_type": "gif"}, "output_type must be one of pil, np, pt, latent"),
    ({"temperature": -1}, "temperature must be at least 0"),
    ({"generator": [torch.Generator()] * 2}, "generator must be one per picture, 1 here"),
    ({"method": "nothing"}, "method 'nothing' is not known"),
    ({"method": "eagle"}, "drafter: .* came without one"),
    ({"callback_on_step_end_tensor_inputs": ["logits"]}, "tensor_inputs must be among"),
]
"""Arguments beside a prompt that no family takes, and what the one line says."""


class PipelineContract:
    """Tests of the fixture `pipeline` of a subclass's file, in float64: no tie is so near that rounding decides it.

    Attributes:
        prompts: three, of different lengths.
        arguments: of every call, such as a size.
        num_tokens: of a picture of that size.
        refused: arguments that this family refuses, as in `REFUSED`.
        makes_pixels: whether pixels follow from tokens alone.
    """

    prompts: ClassVar[Sequence[str]]
    arguments: ClassVar[Mapping[str, Any]] = {}
    num_tokens: ClassVar[int] = 16
    refused: ClassVar[Sequence[tuple[dict[str, Any], str]]] = ()
    makes_pixels: ClassVar[bool] = True

    def decoder(self, pipeline: Any) -> nn.Module:
        """The module that every forward pass calls once."""
        raise NotImplementedError

    def draw(self, pipeline: Any, rows: Sequence[int] = (0, 1, 2), seed: int = 1, **settings: Any) -> Any:
        """Pictures of some of the prompts, each with its own seed."""
        generators = [torch.Generator().manual_seed(seed + row) for row in rows]
        given = {"generator": generators, "output_type": "latent", **self.arguments, **settings}
        return pipeline([self.prompts[row] for row in rows], **given)

    @pytest.mark.parametrize("settings", SETTINGS, ids=str)
    def test_a_seed_gives_the_same_picture_in_any_batch(self, pipeline: Any, settings: dict[str, Any]) -> None:
        together = self.draw(pipeline, **settings).tokens
        for row in range(3):
            assert torch.equal(self.draw(pipeline, [row], **settings).tokens[0], together[row])
        assert not torch.equal(self.draw(pipeline, seed=9, **settings).tokens, together)

    def test_images_per_prompt_follow_each_other(self, pipeline: Any) -> None:
        generator = [torch.Generator().manual_seed(seed) for seed in range(4)]
        repeated = self.draw(pipeline, [0, 1], num_images_per_prompt=2, generator=generator).tokens
        generator = [torch.Generator().manual_seed(seed) for seed in range(4)]
        assert torch.equal(repeated, self.draw(pipeline, [0, 0, 1, 1], generator=generator).tokens)

    @pytest.mark.parametrize("method", ["ar", "scd"])
    def test_the_trace_and_the_callback_see_every_pass(self, pipeline: Any, method: str) -> None:
        calls: list[int] = []
        seen: list[tuple[int, list[int], dict[str, Tensor]]] = []
        with self.decoder(pipeline).register_forward_hook(lambda *_: calls.append(1)):
            output = self.draw(
                pipeline,
                method=method,
                callback_on_step_end=lambda made_by, step, lengths, tensors: seen.append(
                    (step, lengths.tolist(), tensors)
                ),
                callback_on_step_end_tensor_inputs=["tokens", "lengths"],
            )
        assert (
            output.trace.target_passes == len(calls) == len(seen) and output.trace.row_tokens == [self.num_tokens] * 3
        )
        assert [step for step, _, _ in seen] == [*range(len(seen))] and set(seen[0][2]) == {"tokens", "lengths"}
        assert seen[0][1] == [1] * 3 and seen[-1][1] == [self.num_tokens] * 3
        assert method != "ar" or [lengths for _, lengths, _ in seen] == [[step + 1] * 3 for step in range(len(seen))]
        assert torch.equal(seen[-1][2]["tokens"], output.tokens)
        assert {"encode_prompt", "prefill", "decode", "decode_images"} <= set(output.trace.phase_seconds)

    def test_types_of_output_show_the_same_picture(self, pipeline: Any) -> None:
        if not self.makes_pixels:
            pytest.skip("pixels are denoised")
        images, tensor, array = (self.draw(pipeline, [0, 1], output_type=kind).images for kind in ("pil", "pt", "np"))
        height, width = array.shape[1:3]
        assert tensor.shape == (2, 3, height, width) and 0 <= array.min() <= array.max() <= 1
        assert np.array_equal(tensor.permute(0, 2, 3, 1).numpy(), array)
        for image, each in zip(images, array, strict=True):
            assert image.size == (width, height) and np.abs(np.asarray(image) - each * 255).max() <= 1
        codes, tokens, trace = self.draw(pipeline, [0, 1], return_dict=False)
        assert codes.shape[0] == tokens.shape[0] == 2 and codes.dtype == torch.int64 and trace.batch_size == 2

    def test_a_saved_pipeline_makes_the_same_pictures(self, pipeline: Any, tmp_path: Path) -> None:
        pipeline.save_pretrained(tmp_path)
        loaded = type(pipeline).from_pretrained(tmp_path, dtype=torch.float64)
        loaded.set_progress_bar_config(disable=True)
        assert torch.equal(self.draw(loaded, method="ar").tokens, self.draw(pipeline, method="ar").tokens)

    def test_what_cannot_be_done_is_refused_in_one_line(self, pipeline: Any) -> None:
        for arguments, match in (*REFUSED, *self.refused):
            given = {"prompt": self.prompts[0], "output_type": "latent", **self.arguments, **arguments}
            with pytest.raises(UserError, match=match) as error:
                pipeline(**given)
            assert "\n" not in str(error.value)

    def test_every_argument_of_a_call_is_described(self, pipeline: Any) -> None:
        call = type(pipeline).__call__
        described = re.findall(r"^    (\S[^:\n]*):", inspect.cleandoc(call.__doc__).partition("Args:")[2], re.MULTILINE)
        named = {name.strip("*") for each in described for name in each.split(", ")}
        assert inspect.signature(call).parameters.keys() - {"self"} <= named
