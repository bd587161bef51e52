"""A store of codes: pictures rendered and encoded once by a process of their own, for every trainer of pictures.

Rendering and encoding would take most of a training step. Scenes are not stored, because their seeds give them back.
Belongs here: writing the store and reading it. Does not belong here: training on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from scenes.rendering.scene import MAX_OBJECTS, OBJECT_COUNT_WEIGHTS, sample_scene
from scenes.seeds import STORE_SEED
from scenes.training.coded import CodedBatch, FrozenEncoder, RenderedCodes, codes_fingerprint, load_vqvae
from scenes.training.data import RenderedSceneSource, SceneSource
from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PIXELS, MAX_THREADS
from vargen.base.options import COMPUTING, OUTPUT, Settings, option
from vargen.base.path_roles import READ_FOLDER, writes_in
from vargen.base.precision import bfloat16_pays
from vargen.base.reading import read_json, reading
from vargen.runs.files import atomic_path, write_json_atomic
from vargen.runs.identity import check_identity_file, digest
from vargen.runs.progress import progress
from vargen.training.config import DEVICES, check

_DESCRIPTION = "store.json"

_PROBES = 16  # the first scenes are part of a store's identity, because scenes are sampled again at reading


@dataclass
class CodeStoreConfig(Settings):
    """Settings of `vargen train data`."""

    output: str = option("runs/codes", path=writes_in(_DESCRIPTION), group=OUTPUT)
    """Folder of the store."""
    vqvae: str = option("", path=READ_FOLDER)
    """Folder of the trained tokenizer (a tokenizer run's `export`, or `vqvae` of a pipeline)."""
    num_images: int = option(200_000, least=1)
    """Number of pictures; a finished store grows when more are asked for."""
    first_image: int = option(0, least=0)
    """Number of the first picture. A store for training on begins where the last store ended, so that no picture is
    seen again."""
    shard_size: int = option(2048, least=1)
    """Pictures per file; what is lost when the process is killed."""
    batch_size: int = option(16, least=1, most=MAX_BATCH_SIZE)
    """Pictures rendered and encoded at once. On a CPU a small batch stays in the cache."""
    image_size: int = option(128, least=1, most=MAX_PIXELS)
    """Side of the pictures, pixels."""
    object_count_weights: tuple[float, ...] = option(OBJECT_COUNT_WEIGHTS, least=0.0)
    """How often a scene has one, two or three objects, as weights."""
    device: str = option("cpu", choices=DEVICES, group=COMPUTING)
    """Device that encodes, "cpu" or "cuda"."""
    autocast: bool | None = option(None, group=COMPUTING)
    """Encode in bfloat16; null: where bfloat16 is faster."""
    num_threads: int = option(0, least=0, most=MAX_THREADS, group=COMPUTING)
    """CPU threads for torch; 0 keeps torch's choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.vqvae), "vqvae", self.vqvae, "must name the folder of a trained tokenizer")
        weights = self.object_count_weights
        right = len(weights) == MAX_OBJECTS and sum(weights) > 0
        check(right, "object_count_weights", weights, f"must be {MAX_OBJECTS} numbers, not all zero")
        if self.autocast is None:
            self.autocast = bfloat16_pays(self.device)


def write_codes(config: CodeStoreConfig, source: SceneSource | None = None) -> str:
    """Write a store of codes, shard by shard; the same command goes on after a kill.

    Args:
        source: where scenes come from; the renderer if not given.

    Returns:
        What the store holds now, in words.

    Raises:
        UserError: for a field that does not fit, or a store in `output` that was made otherwise.
    """
    device = torch.device(config.device)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    vqvae, grid_size = load_vqvae(config.vqvae, config.image_size, device)
    encoder = FrozenEncoder(vqvae, config.autocast)
    if source is None:
        source = RenderedSceneSource(config.image_size, device, config.object_count_weights)
    rendered = RenderedCodes(source, encoder, grid_size)

    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    identity = _identity(config, codes_fingerprint(vqvae), grid_size**2)
    check_identity_file(folder / _DESCRIPTION, identity, holds="codes", argument="output")
    write_json_atomic(folder / _DESCRIPTION, identity)
    num_shards = -(-config.num_images // config.shard_size)
    with progress(num_shards, "shards of codes") as shown:
        for shard in range(num_shards):
            path = _shard_path(folder, shard)
            if path.exists():
                shown.skip()
                continue
            first = STORE_SEED + config.first_image + shard * config.shard_size
            parts = [
                rendered(first + start, min(config.batch_size, config.shard_size - start))
                for start in range(0, config.shard_size, config.batch_size)
            ]
            content = {
                "codes": torch.cat([part.codes for part in parts]).cpu().to(torch.uint16),
                "places": torch.cat([part.places for part in parts]).cpu().to(torch.uint8),
            }
            with atomic_path(path) as temporary:
                save_file(content, temporary)
            shown.update()
    return f"{len(StoredCodes(folder)):,} pictures in {folder}"


class StoredCodes:
    """A store read as a `CodeSource`: numbers go round and round its pictures, captions differ each time.

    Shards that are written later are not seen, so a run that is to be the same when resumed wants a finished store.

    Args:
        folder: what `write_codes` wrote.

    Attributes:
        identity: how the store was made.

    Raises:
        UserError: no store is there, or its scenes are not those that this version samples.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        path = folder / _DESCRIPTION
        check(path.is_file(), "codes", str(folder), f"holds no {_DESCRIPTION}; write it with vargen train data")
        with reading(path, "write the store anew", "codes"):
            self.identity: dict[str, Any] = read_json(path)
            scenes = _scenes_fingerprint(self.identity["object_count_weights"])
            shard_size, num_tokens = int(self.identity["shard_size"]), int(self.identity["num_tokens"])
            self._first_seed = STORE_SEED + int(self.identity.get("first_image", 0))
        same = self.identity["scenes"] == scenes
        check(same, "codes", str(folder), "was written by a version that samples other scenes; write it anew")
        # Only shards without a gap before them: a number must mean the same picture for ever.
        self._shards: list[dict[str, Tensor]] = []
        while (path := _shard_path(folder, len(self._shards))).exists():
            with reading(path, "delete it and write the store anew", "codes"):
                with safe_open(path, framework="pt") as file:
                    shard = {name: file.get_tensor(name) for name in ("codes", "places")}
                if shard["codes"].shape != (shard_size, num_tokens) or len(shard["places"]) != shard_size:
                    raise ValueError(f"it holds codes {list(shard['codes'].shape)}, not [{shard_size}, {num_tokens}]")
            self._shards.append(shard)
        check(bool(self._shards), "codes", str(folder), "has no shard yet; wait for the first one")

    def __len__(self) -> int:
        return len(self._shards) * int(self.identity["shard_size"])

    def __call__(self, first: int, count: int) -> CodedBatch:
        indices = [number % len(self) for number in range(first, first + count)]
        rows = [divmod(index, int(self.identity["shard_size"])) for index in indices]
        codes, places = (
            torch.stack([self._shards[shard][name][row] for shard, row in rows]).long() for name in ("codes", "places")
        )
        weights = self.identity["object_count_weights"]
        scenes = [sample_scene(self._first_seed + index, "train", weights) for index in indices]
        return CodedBatch(scenes, range(first, first + count), codes, places)


def stored_pictures(folder: str, count: int, vqvae: VQModel) -> tuple[list[str], Tensor]:
    """Captions and codes int64 [K, N] of the first pictures of a store, K = `count` or as many as there are.

    Raises:
        UserError: no store is there, or it was made with another tokenizer than `vqvae`.
    """
    stored = StoredCodes(folder)
    remedy = "was written with another tokenizer than the model's; write one with vargen train data --vqvae"
    check(stored.identity["vqvae"] == codes_fingerprint(vqvae), "codes", folder, remedy)
    batch = stored(0, min(count, len(stored)))
    return batch.captions(), batch.codes


def _shard_path(folder: Path, shard: int) -> Path:
    return folder / f"codes-{shard:06d}.safetensors"


def _identity(config: CodeStoreConfig, vqvae: str, num_tokens: int) -> dict[str, Any]:
    """What must be the same for all shards of a store."""
    first = {"first_image": config.first_image} if config.first_image else {}  # older stores do not name it
    return {
        **first,
        "vqvae": vqvae,
        "num_tokens": num_tokens,
        "image_size": config.image_size,
        "object_count_weights": list(config.object_count_weights),
        "shard_size": config.shard_size,
        "autocast": config.autocast,
        "scenes": _scenes_fingerprint(config.object_count_weights),
    }


def _scenes_fingerprint(object_count_weights: Sequence[float]) -> str:
    """A digest of the first scenes of a store as they are sampled now."""
    return digest([sample_scene(STORE_SEED + index, "train", object_count_weights) for index in range(_PROBES)])
