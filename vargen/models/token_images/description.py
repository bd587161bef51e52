"""A family of causal language models that draw pictures token by token, as plain data.

Belongs here: the fields of a description, and the sizes that it allows. Does not belong here: any family (one file
each, beside this one), looking tokens up in a vocabulary (`grammar.py`), passes (`target.py`) and pixels (`pixels.py`).
Nothing here imports torch.

A picture of such a family is a text: tokens that begin it (`begin`, often with its size), rows of codes, a token at the
end of each row where the family has one, and a token that ends the picture. Only codes are drawn; the rest is forced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from vargen.base.bounds import MAX_PIXELS, check_number
from vargen.base.errors import UserError
from vargen.models.picture_size import Grid, asked_grid, grid_of_ratio

_NEAR_ENOUGH = 1.03
"""How far the ratio of a listed size may be from the ratio that is asked for, as a factor."""


@dataclass(frozen=True)
class CodeIds:
    """Where the codes of pictures lie in the vocabulary.

    Args:
        first: id of code 0, the others behind it; "last": the codes are the last ids of the vocabulary; "named": each
            code has its name in `vocabulary_map` of config.json.
        count: how many; None: those of the model's own codebook.
        behind_text: the codes follow the tokens that the tokenizer knows; `first` stands where there is none.
    """

    first: int | Literal["last", "named"]
    count: int | None
    behind_text: bool = False


@dataclass(frozen=True)
class Guidance:
    """Guidance towards the prompt: null + scale * (prompt - null).

    It works on logits. Where published code guides log-probabilities, these differ from logits by one number for all
    tokens, so the distribution is the same.

    Args:
        scale: used where a call gives none; off at values <= 1.
        least: the scale decays from token to token down to this value, which a smaller scale is raised to; None: it is
            constant.
        image_scale: where prompts hold pictures, a third row has their pictures alone, and this is the scale from
            nothing to pictures; None: there are two rows.
    """

    scale: float
    least: float | None = None
    image_scale: float | None = None


@dataclass(frozen=True)
class Sizes:
    """Which grids of codes a family draws.

    Args:
        pixels_a_code: along a side.
        usual: rows and columns where a call gives no size.
        listed: all grids there are; empty: every grid that the other fields allow.
        unit: rows and columns are multiples of this number.
        most_codes: of a picture; None: any number.
        most_ratio: of the longer and the shorter side; None: any.
    """

    pixels_a_code: int
    usual: Grid
    listed: tuple[Grid, ...] = ()
    unit: int = 1
    most_codes: int | None = None
    most_ratio: float | None = None

    def grid(
        self, height: int | None = None, width: int | None = None, ratio: str | None = None, area: int | None = None
    ) -> Grid:
        """Rows and columns of a picture; all None: of the usual one.

        Args:
            height, width: in pixels, both or none.
            ratio: of width and height, such as "16:9".
            area: pixels, about, where there is no list; None: those of the usual picture.

        Raises:
            UserError: the family draws no such picture.
        """
        if height is None and width is None and ratio is None and area is None:
            return self.usual
        grid = asked_grid(height, width, ratio, self.pixels_a_code, partial(self._of_ratio, area=area))
        self._check(grid)
        return grid

    def _of_ratio(self, ratio: str, area: int | None) -> Grid:
        if area is None:
            area = self.usual[0] * self.usual[1] * self.pixels_a_code**2
        check_number("image_area", area, self.pixels_a_code**2, MAX_PIXELS**2)
        if self.listed:
            rows, columns = grid_of_ratio(ratio, MAX_PIXELS**2, 1)
            off = {grid: columns * grid[0] / (rows * grid[1]) for grid in self.listed}
            nearest = min(self.listed, key=lambda grid: max(off[grid], 1 / off[grid]))
            if max(off[nearest], 1 / off[nearest]) > _NEAR_ENOUGH:
                raise UserError(f"ratio must be that of a size of this model, got {ratio!r}: {self}")
            return nearest
        rows, columns = grid_of_ratio(ratio, area, self.pixels_a_code * self.unit)
        most = None if self.most_codes is None else min(self.most_codes * self.pixels_a_code**2, area)
        while most is not None and rows * columns * (self.unit * self.pixels_a_code) ** 2 > most:  # both rounded up
            rows, columns = (rows - 1, columns) if rows > columns else (rows, columns - 1)
        return rows * self.unit, columns * self.unit

    def _check(self, grid: Grid) -> None:
        """Refuse a grid that is not drawn. Raises UserError."""
        rows, columns = grid
        allowed = (
            grid in self.listed
            if self.listed
            else not (rows % self.unit or columns % self.unit)
            and rows * columns <= (self.most_codes or rows * columns)
            and max(grid) <= min(grid) * (self.most_ratio or max(grid))
        )
        if not allowed:
            side = self.pixels_a_code
            raise UserError(
                f"height and width must be a size of this model, got {rows * side} x {columns * side}: {self}"
            )

    def __str__(self) -> str:
        """The sizes in pixels, for errors."""
        side = self.pixels_a_code
        if self.listed:
            return "it draws " + ", ".join(f"{rows * side} x {columns * side}" for rows, columns in self.listed)
        rules = [f"sides are multiples of {side * self.unit}"]
        if self.most_codes is not None:
            rules.append(f"the area is at most {self.most_codes * side**2:,} pixels")
        if self.most_ratio is not None:
            rules.append(f"the longer side is at most {self.most_ratio:g} times the shorter")
        return ", ".join(rules)


@dataclass(frozen=True)
class References:
    """Users' pictures in a prompt, for families that learned to read them there.

    In a prompt a picture is written as one that is drawn: what begins it, its codes with ends of rows, its end.

    Args:
        prompt, null_prompt: as of `TokenImageFamily`, with {pictures} where the pictures stand. A null prompt without
            it has none.
        fit: "area": a picture keeps its ratio, and has about the pixels of the usual one; "crop": the middle of it
            fills the usual one.
        scale: of guidance where a call gives none; None: that of a prompt of words.
        most: pictures of a prompt; None: any number.
        most_codes: along a side, where a picture keeps its ratio.
        among_words: a prompt may say by <image> where a picture stands.
        on_white: transparent pixels are laid on white; False: their hidden colour shows.
    """

    prompt: str
    null_prompt: str
    fit: Literal["area", "crop"]
    scale: float | None = None
    most: int | None = None
    most_codes: int = MAX_PIXELS
    among_words: bool = False
    on_white: bool = False

    def grid(self, size: tuple[int, int], sizes: Sizes, area: int | None = None) -> Grid:
        """Rows and columns of a picture of a prompt.

        Args:
            size: width and height of the user's picture in pixels.
            sizes: of the family.
            area: pixels, about, where the ratio stays; None: those of the usual picture.

        Raises:
            UserError: it is too long for its width.
        """
        side = sizes.pixels_a_code
        if self.fit == "crop":
            return sizes.usual
        if area is None:
            area = sizes.usual[0] * sizes.usual[1] * side**2
        check_number("image_area", area, side**2, MAX_PIXELS**2)
        ratio = size[0] / size[1]
        height = int((area / ratio) ** 0.5)  # whole pixels, then whole codes, as their authors round
        rows, columns = ((each + side // 2) // side for each in (height, int(height * ratio)))
        if not 0 < min(rows, columns) <= max(rows, columns) <= self.most_codes:
            raise UserError(
                f"reference_images must have sides of 1 to {self.most_codes} codes in the prompt, got {size[0]} x "
                f"{size[1]} pixels, which become {columns} x {rows} codes; crop it"
            )
        return rows, columns


@dataclass(frozen=True)
class Pixels:
    """How codes become a picture, by `pixels.py`.

    The pipeline asks it for four functions: `load_pixels(path, family, dtype)` gives a network; `decode_codes(network,
    codes)` gives fp32 [B, 3, H, W] of codes [B, h, w]; `intensities(pictures, rounded)` gives fp32 [B, H, W, 3] from 0
    to 255 before they are cut to whole numbers; `code_vectors(network)` gives [C, d], what codes are compared by.

    Args:
        network: "vqvae": a `diffusers.VQModel`; "torchscript": a TorchScript file whose path the user gives; "own": a
            part of the language model's class.
        rounded: intensities are rounded to whole numbers; False: they are cut off.
        published: what `vargen convert` reads, or which file is given, for errors.
        nearest: a picture's code is the entry of the codebook at the least distance, or with the greatest product.
    """

    network: Literal["vqvae", "torchscript", "own"]
    rounded: bool = False
    published: str = ""
    nearest: Literal["distance", "product"] = "distance"


@dataclass(frozen=True)
class TokenImageFamily:
    """A family of models. `prompt`, `null_prompt` and `begin` make one text, which the tokenizer reads as a whole.

    Args:
        name: in `ModelDescription.family` and `--family`.
        title: in messages.
        model_class: of transformers, which takes the weights.
        model_type: in config.json.
        codes: where codes lie.
        sizes: which are drawn.
        guidance: its default, and its form.
        pixels: how codes become a picture.
        special_tokens: those that the prompt and the grammar need by name, with their published ids; None: any id.
        prompt: with {prompt}, {height} and {width} in pixels, and {bos}, the token that begins a text.
        null_prompt: what guidance leads away from; with {prompt} where a negative prompt can be given.
        negative_prompt: where a call gives none.
        begin: from rows and columns of codes to what stands before the first code.
        row_end: the token at the end of a row, forced there; None: rows follow each other. Two-dimensional methods feed
            it in place of a token that is not known yet before the first of a row.
        ends_last_row: the last row has its end-of-row token, too.
        end: the token that ends the picture; None: there is none.
        temperature, top_k, top_p: where a call gives none; top_k 0 and top_p 1 are off.
        decoder: path of the decoder in the model.
        vocab_size: in config.json, to tell families of one model_type apart; None: any.
        architectures: words of which one is in `architectures` of config.json, likewise; empty: any.
        config: entries of config.json that the class of transformers needs otherwise.
        repair: "norms_per_shard": norms of queries and keys are stored once a shard, and repeated for every head.
        absent: prefixes of weights that may be missing.
        text_file: of a tokenizer in tiktoken's format, in place of transformers' files; None: there is none.
        references: pictures in its prompts; a text: why it reads none.
        example: a name on the hub.
    """

    name: str
    title: str
    model_class: str
    model_type: str
    codes: CodeIds
    sizes: Sizes
    guidance: Guidance
    pixels: Pixels
    special_tokens: Mapping[str, int | None]
    prompt: str
    null_prompt: str
    begin: Callable[[int, int], str]
    row_end: str | None = None
    ends_last_row: bool = False
    end: str | None = None
    negative_prompt: str = ""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    decoder: str = "model"
    vocab_size: int | None = None
    architectures: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    repair: Literal["norms_per_shard"] | None = None
    absent: tuple[str, ...] = ()
    text_file: str | None = None
    references: References | str = "it learned to draw from words alone"
    example: str = ""

    def num_tokens(self, grid: Grid) -> int:
        """The tokens that are drawn or forced from the first code to the last."""
        rows, columns = grid
        return rows * columns + (rows - 1 if self.row_end is not None else 0)

    def row_ends(self, grid: Grid) -> range:
        """Their places among these tokens."""
        columns = grid[1]
        return range(columns, self.num_tokens(grid), columns + 1) if self.row_end is not None else range(0)
