"""Reading and resizing pictures."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from refusals import raised

from metrics.errors import DataError
from metrics.images import (
    RESIZERS,
    ImageArray,
    ImageFolder,
    natural_key,
    open_images,
    read_image,
    resize,
    to_bytes,
    to_image,
    unreadable,
)


def make_folder(folder: Path, names: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", (6, 4), (number, 0, 0)).save(folder / name)
    return folder


def test_files_are_in_natural_order_and_read_as_bytes(tmp_path):
    folder = ImageFolder(make_folder(tmp_path / "pictures", ["image10.png", "image9.png", "Image1.png"]))
    assert [path.name for path in folder.files] == ["Image1.png", "image9.png", "image10.png"]
    pictures = folder.read([0, 2])
    assert pictures[0].shape == (3, 4, 6) and pictures[0].dtype == torch.uint8
    assert [int(picture[0, 0, 0]) for picture in pictures] == [2, 0]
    assert natural_key("a2") < natural_key("a10") < natural_key("b1")


def test_grey_and_transparent_pictures_become_rgb(tmp_path):
    Image.new("L", (2, 2), 7).save(tmp_path / "grey.png")
    Image.new("RGBA", (2, 2), (1, 2, 3, 4)).save(tmp_path / "clear.png")
    assert read_image(tmp_path / "grey.png")[:, 0, 0].tolist() == [7, 7, 7]
    assert read_image(tmp_path / "clear.png")[:, 0, 0].tolist() == [251, 251, 251]  # the hidden colour hardly shows
    for kind, mode in (("16", "I;16"), ("32", "I")):
        Image.new(mode, (2, 2), 127 * 257).save(tmp_path / f"{kind}.png")
        assert read_image(tmp_path / f"{kind}.png")[:, 0, 0].tolist() == [127, 127, 127]
    for mode, rounding in (("CMYK", 0), ("1", 60), ("LA", 0), ("P", 3), ("LAB", 3)):
        Image.new("RGB", (8, 8), (200, 200, 200)).convert(mode).save(tmp_path / "other.tiff")
        assert (read_image(tmp_path / "other.tiff").float().mean() - 200).abs() <= rounding
    for mode, value in (("F", 0.5), ("I", 70_000)):
        Image.new(mode, (2, 2), value).save(tmp_path / "no_white.tiff")
        raised(DataError, "has no white", read_image, tmp_path / "no_white.tiff")


def test_a_name_that_lies_a_broken_mark_and_what_moves(tmp_path):
    image = Image.new("RGB", (6, 4), (9, 0, 0))
    image.save(tmp_path / "0.jpg", "PNG")
    image.save(tmp_path / "1.jpg", exif=b"Exif\0\0broken")
    image.save(tmp_path / "2.gif", save_all=True, append_images=[Image.new("RGB", (6, 4))])
    assert all(abs(int(picture[0, 0, 0]) - 9) < 2 for picture in ImageFolder(tmp_path).read([0, 1, 2]))


def test_a_half_written_file_is_found_and_named(tmp_path):
    folder = make_folder(tmp_path / "pictures", ["1.png", "2.png"])
    Image.effect_noise((64, 64), 50).convert("RGB").save(folder / "3.png")
    content = (folder / "3.png").read_bytes()
    (folder / "3.png").write_bytes(content[: len(content) // 2])
    assert unreadable(ImageFolder(folder).files) == [folder / "3.png"]
    raised(DataError, r"3\.png cannot be read", ImageFolder(folder).read, [2])


def test_arrays_of_the_adm_suite(tmp_path):
    pictures = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    np.savez(tmp_path / "batch.npz", pictures)
    opened = open_images(tmp_path / "batch.npz")
    assert isinstance(opened, ImageArray) and len(opened) == 2
    assert torch.equal(opened.read([1])[0], torch.from_numpy(pictures[1]).permute(2, 0, 1))


def test_empty_and_missing_folders_are_refused(tmp_path):
    raised(DataError, "holds no picture", ImageFolder, tmp_path)
    raised(DataError, "not a folder", ImageFolder, tmp_path / "missing")


def test_pictures_of_another_size_are_refused_where_nothing_resizes():
    raised(DataError, "6 x 4, not 4 x 4", resize, [torch.zeros(3, 4, 6, dtype=torch.uint8)], "none", 4)
    raised(DataError, "resizer must be", resize, [], "nearest", 4)


def test_bytes_survive_the_way_to_pil_and_back():
    picture = torch.randint(0, 256, (3, 5, 7), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    assert torch.equal(resize([picture[:, :, :5]], "none", 5)[0], picture[:, :, :5])
    assert to_image(picture).size == (7, 5)


def test_resizers_are_the_filters_of_their_names():
    """By Pillow's own words: another filter moves every FID of a protocol."""
    picture = torch.randint(0, 256, (3, 24, 36), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    image = to_image(picture)
    middle = image.crop((6, 0, 30, 24))
    lanczos = middle.resize((8, 8), Image.Resampling.LANCZOS)
    wanted = {"bicubic": image.resize((8, 8), Image.Resampling.BICUBIC), "center-crop-lanczos": lanczos}
    for name, resized in wanted.items():
        assert torch.equal(resize([picture], name, 8)[0], to_bytes(resized))
    assert set(wanted) | {"none"} == set(RESIZERS)


def test_a_digest_tells_names_and_shapes_apart(tmp_path):
    """A cached reference is found by it."""
    one, other = (ImageFolder(make_folder(tmp_path / name, ["1.png", f"{name}.png"])) for name in ("2", "3"))
    assert [file.read_bytes() for file in one.files] == [file.read_bytes() for file in other.files]
    assert one.digest() == ImageFolder(make_folder(tmp_path / "copy", ["1.png", "2.png"])).digest() != other.digest()
    arrays = []
    for name, shape in (("a", (2, 4, 6, 3)), ("b", (2, 6, 4, 3))):
        np.savez(tmp_path / f"{name}.npz", arr_0=np.zeros(shape, np.uint8))
        arrays.append(ImageArray(tmp_path / f"{name}.npz"))
    assert arrays[0].array.tobytes() == arrays[1].array.tobytes() and arrays[0].digest() != arrays[1].digest()
