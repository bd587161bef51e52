"""Work in batches: cut by number, each kept whole, in shares of processes; pictures made again from tokens."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from vargen.runs.batches import BatchStore, PictureBatches, Share
from vargen.runs.progress import Progress


def counted() -> Progress:
    """Progress that is shown nowhere."""
    return Progress(total=9, file=io.StringIO())


def squares(indices: Sequence[int]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {"squares": np.array([index**2 for index in indices])}, {"first": indices[0]}


def test_batches_are_cut_by_number_and_each_process_makes_its_share(tmp_path):
    store, made = BatchStore(tmp_path, 7, 2), []

    def make(indices: range) -> Any:
        made.append(list(indices))
        return squares(indices)

    with counted() as shown:
        store.work(Share(1, 2), make, shown)
        assert shown.n == 2
    assert made == [[2, 3], [6]] and store.missing() == [0, 2]
    with counted() as shown:
        store.work(Share(), make, shown)
        assert shown.n == 4, "the finished ones of all of its share are counted"
    with counted() as shown:
        store.work(Share(1, 2), make, shown)
        assert shown.n == 2, "and of nobody else's"
    assert made[2:] == [[0, 1], [4, 5]] and store.missing() == []
    for batch, (squared, first) in enumerate((([0, 1], 0), ([4, 9], 2), ([16, 25], 4), ([36], 6))):
        arrays, record = store.read(batch)
        assert arrays["squares"].tolist() == squared and record == {"first": first}


def test_items_in_any_order_are_kept_in_theirs(tmp_path):
    """The second batch is whole before the first, and what a kill interrupts is made again as a batch."""
    store, asked = BatchStore(tmp_path, 5, 2), []

    def make(order: Sequence[int]) -> Any:
        def items(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
            asked.append(list(indices))
            for index in order:
                assert index in indices
                yield index, index

        return items

    with counted() as shown, pytest.raises(KeyboardInterrupt):
        store.collect(Share(), lambda indices: killed(make([3, 0, 2])(indices)), squares, shown)
    assert store.missing() == [0, 2]
    with counted() as shown:
        store.collect(Share(), make([4, 1, 0]), squares, shown)
        assert shown.n == 3
    assert asked == [[0, 1, 2, 3, 4], [0, 1, 4]]
    assert [store.read(batch)[0]["squares"].tolist() for batch in range(3)] == [[0, 1], [4, 9], [16]]


def killed(items: Iterator[Any]) -> Iterator[Any]:
    yield from items
    raise KeyboardInterrupt


def test_a_batch_of_another_size_is_refused(tmp_path):
    for count in (1, 3):
        BatchStore(tmp_path, 3, 3).write(0, {"squares": np.zeros(count)})
        told = r"000000\.npz holds another number of pictures; delete it and run"
        refused(told, BatchStore(tmp_path, 2, 2).read, 0)


def test_pictures_are_made_again_from_their_own_tokens(tmp_path):
    job = PictureBatches(tmp_path, {"seed": 1}, 4, 2)
    for batch in (0, 1):
        job.tokens.write(batch, {"tokens": np.array([[2 * batch], [2 * batch + 1]])})

    def decode(tokens: np.ndarray) -> Image.Image:
        return Image.new("L", (8, 8), 10 * int(tokens[0]))

    for batch in (0, 1):
        job.save_pictures(batch, decode)
    whole = [job.image_path(index).read_bytes() for index in range(4)]
    assert [Image.open(job.image_path(index)).getpixel((0, 0)) for index in range(4)] == [0, 10, 20, 30]
    job.image_path(3).write_bytes(whole[3][: len(whole[3]) // 2])
    job.image_path(0).unlink()
    job.image_path(1).write_bytes(whole[2])
    Image.new("L", (8, 8)).save(job.image_path(2))
    for batch in (0, 1):
        job.save_pictures(batch, decode)
    assert [job.image_path(index).read_bytes() for index in range(4)] == whole
    job.image_path(3).write_bytes(whole[3][: len(whole[3]) // 2])
    job.forget_without_pictures([0, 1])
    assert job.tokens.missing() == [1]


def test_a_folder_is_of_as_many_pictures_as_it_says(tmp_path):
    PictureBatches(tmp_path, {"seed": 1}, 4, 2).tokens.write(0, {"tokens": np.zeros((2, 1))})
    PictureBatches(tmp_path, {"seed": 1}, 4, 2).check_identity()
    for settings, count, size in (({"seed": 2}, 4, 2), ({"seed": 1}, 5, 2), ({"seed": 1}, 4, 4)):
        refused("holds pictures with another", PictureBatches(tmp_path, settings, count, size).check_identity)
