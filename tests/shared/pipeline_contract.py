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
from seeds import seeded
from torch import Tensor

from specdecode.sampling import Tag, draw_tokens
from vargen.base.errors import UserError
from vargen.methods.catalogue import resolve_method
from vargen.models.components import SINGLE_BATCH
from vargen.pipelines.arguments import DrawSettings

SETTINGS: list[dict[str, Any]] = [
    {}, {"method": "sjd", "guidance_scale": 1.0}, {"method": "scd", "top_p": 0.9, "temperature": 1.3, "top_k": 5},
]  # fmt: skip
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

EXACT: list[tuple[str, dict[str, Any]]] = [
    ("ar", {}), ("jacobi", {"window": 3}), ("scd", {"window": 4}),
    ("sjd", {"window": 3, "branches": 2, "branch_depth": 1}), ("zipar", {"window": 4}),
    ("pjd", {"opens_after": 4, "guesses": 2}),
]  # fmt: skip
"""Methods that draw plain decoding's tokens, by seed or, where they test ratios, the likeliest ones. The last two draw
rows of four codes side by side, each behind the whole row above."""


def masks(rows: int, columns: int, side: int) -> list[np.ndarray[Any, Any]]:
    """Where to draw: all rows but the first, a column in the middle, all but the last row."""
    drawn = np.zeros((3, rows, columns), np.uint8)
    drawn[0, 1:] = drawn[1, :, 1] = drawn[2, :-1] = 255
    return [np.kron(each, np.ones((side, side), np.uint8)) for each in drawn]


@torch.no_grad()
def slowly(
    pipeline: Any, prompt: str, known: Tensor, seed: int, arguments: Mapping[str, Any], **settings: Any
) -> Tensor:
    """[N]: plain decoding by the target alone, a token at a time; known [N] tokens stand in the place of draws."""
    generator = torch.Generator().manual_seed(seed)
    request = pipeline._request([prompt], DrawSettings(method="ar", generator=generator, **settings), **arguments)
    target, _ = request.start(range(1), SINGLE_BATCH)
    logits, tokens, one = target.prefill().logits[:, -1:], [], torch.ones(1, dtype=torch.int64)
    for place, forced in enumerate(known.tolist()):
        token = draw_tokens(logits, request.sampling, request.streams, torch.tensor([[place]]), Tag.TARGET)
        tokens.append(token if forced < 0 else torch.tensor([[forced]]))
        logits = target.forward(tokens[-1], one.bool().view(1, 1, 1), torch.zeros(1, 1).long()).logits
        target.commit(None, one)
    return torch.cat(tokens, 1)[0]


def check_known_tokens(
    pipeline: Any, prompts: Sequence[str], grid: tuple[int, int], side: int, scale: float | None, **arguments: Any
) -> None:
    """Rows that start, holes, and rows below: every exact method draws what the slow form does, three pictures beside
    each other, and in places that others left. Passes fall with the rows that are given."""
    shown = np.random.default_rng(0).integers(0, 256, (3, grid[0] * side, grid[1] * side, 3), np.uint8)
    about: dict[str, Any] = {"image": [*shown], "mask_image": masks(*grid, side)}
    settings: dict[str, Any] = {"guidance_scale": scale, "output_type": "latent"}
    known = pipeline._request(prompts, DrawSettings(**about, **settings), **arguments).forced_tokens
    assert known.shape[0] == 3 and len({tuple(row) for row in (known < 0).tolist()}) == 3

    def generators() -> list[torch.Generator]:
        return seeded(*range(3))

    for temperature in (0.0, 1.0):
        asked = {**settings, "temperature": temperature}
        slow = [slowly(pipeline, prompts[row], known[row], row, arguments, **asked) for row in range(3)]
        for name, options in EXACT:
            given = {"method": resolve_method(name, options), **asked, **about, **arguments}
            if name in ("zipar", "pjd") and grid[1] != 4:
                continue
            made = pipeline(prompts, generator=generators(), **given)
            assert torch.equal(torch.where(known >= 0, known, made.tokens), made.tokens), name
            assert made.trace.row_tokens == [known.shape[1]] * 3, name
            is_whole = (name, options) != ("zipar", {"window": 2})  # whose rows begin before the row above is whole
            if is_whole and (temperature == 0 or name in ("ar", "jacobi", "zipar", "pjd")):
                assert torch.equal(made.tokens, torch.stack(slow)), (name, temperature)
            if name == "ar":
                assert made.trace.target_passes <= int((known < 0).sum(1).max()) + 1, "known tokens cost no pass"
            if name == "jacobi":
                assert made.trace.drafted <= int((known < 0).sum()) * options["window"]
            if name in ("jacobi", "zipar"):
                for each in pipeline.stream(prompts, generator=generators(), batch_size=2, **given):
                    assert torch.equal(each.tokens, made.tokens[each.index])
                    assert each.trace.row_passes[0] == made.trace.row_passes[each.index]
    if grid[0] > 1:
        start = {**settings, **arguments, "method": "ar", "image": shown[0], "start_rows": grid[0] - 1}
        made = pipeline(prompts[:1], generator=generators()[:1], **start)
        drawn = int((known[0] < 0)[-grid[1] :].sum())
        assert made.trace.target_passes == drawn + 1 < known.shape[1]


class PipelineContract:
    """Tests of the fixture `pipeline` of a subclass's file, in float64: no tie is so near that rounding decides it.

    Attributes:
        prompts: three, of different lengths.
        arguments: of every call, such as a size.
        num_tokens: of a picture of that size.
        refused: arguments that this family refuses, as in `REFUSED`.
        makes_pixels: whether pixels follow from tokens alone.
        grid, side: rows and columns of codes of that size, and pixels along a code.
    """

    prompts: ClassVar[Sequence[str]]
    arguments: ClassVar[Mapping[str, Any]] = {}
    num_tokens: ClassVar[int] = 16
    refused: ClassVar[Sequence[tuple[dict[str, Any], str]]] = ()
    makes_pixels: ClassVar[bool] = True
    grid: ClassVar[tuple[int, int]] = (4, 4)
    side: ClassVar[int] = 2

    def draw(self, pipeline: Any, rows: Sequence[int] = (0, 1, 2), seed: int = 1, **settings: Any) -> Any:
        """Pictures of some of the prompts, each with its own seed."""
        generators = seeded(*(seed + row for row in rows))
        given = {"generator": generators, "output_type": "latent", **self.arguments, **settings}
        return pipeline([self.prompts[row] for row in rows], **given)

    @torch.no_grad()
    def test_the_likelihood_of_a_picture_is_that_of_its_tokens(self, pipeline: Any) -> None:
        if not hasattr(pipeline, "log_likelihoods"):
            pytest.skip("this family starts from no picture")
        tokens, one = self.draw(pipeline, method="ar").tokens, torch.ones(3, dtype=torch.int64)
        settings = DrawSettings(method="ar", output_type="latent")
        target, _ = pipeline._request(self.prompts, settings, **self.arguments).start(range(3), SINGLE_BATCH)
        said = [target.prefill().logits[:, -1]]
        for token in tokens[:, :-1].split(1, dim=1):
            said.append(target.forward(token, one.bool().view(3, 1, 1), torch.zeros(3, 1).long()).logits[:, 0])
            target.commit(None, one)
        alone = torch.stack(said, 1).log_softmax(-1).gather(2, tokens[..., None]).sum((1, 2))
        together = pipeline.log_likelihoods(tokens, prompt=self.prompts, **self.arguments)
        torch.testing.assert_close(torch.tensor(together), alone.float(), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("settings", SETTINGS, ids=str)
    def test_a_seed_gives_the_same_picture_in_any_batch(self, pipeline: Any, settings: dict[str, Any]) -> None:
        together = self.draw(pipeline, **settings).tokens
        for row in range(3):
            assert torch.equal(self.draw(pipeline, [row], **settings).tokens[0], together[row])
        assert not torch.equal(self.draw(pipeline, seed=9, **settings).tokens, together)

    def test_images_per_prompt_follow_each_other(self, pipeline: Any) -> None:
        generator = seeded(*range(4))
        repeated = self.draw(pipeline, [0, 1], num_images_per_prompt=2, generator=generator).tokens
        generator = seeded(*range(4))
        assert torch.equal(repeated, self.draw(pipeline, [0, 0, 1, 1], generator=generator).tokens)

    @pytest.mark.parametrize("method", ["ar", "scd"])
    def test_the_trace_and_the_callback_see_every_pass(self, pipeline: Any, method: str) -> None:
        calls: list[int] = []
        seen: list[tuple[int, list[int], dict[str, Tensor]]] = []
        with pipeline._decoder_layers[0].register_forward_hook(lambda *_: calls.append(1)):
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

    @pytest.mark.parametrize("scale", [None, 1.0], ids=["guided", "unguided"])
    def test_known_tokens_are_the_prefix_of_plain_decoding(self, pipeline: Any, scale: float | None) -> None:
        check_known_tokens(pipeline, self.prompts, self.grid, self.side, scale, **self.arguments)

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
