"""A store of codes: whole or absent, the same after a kill, read as if its pictures were rendered and encoded anew."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from scenes.captions.picture_captions import compose_caption
from scenes.seeds import HELDOUT_SEED, STORE_SEED
from scenes.training import code_store
from scenes.training.code_store import CodeStoreConfig, StoredCodes, stored_pictures, write_codes
from scenes.training.coded import PLACES, load_vqvae, token_places
from scenes.training.transformer import TransformerTask, train_transformer
from vargen.base.errors import UserError
from vargen.models.llamagen.vq import encode_images

CPU = torch.device("cpu")


@pytest.fixture
def config(tmp_path: Path, transformer_config) -> CodeStoreConfig:
    return CodeStoreConfig(
        output=str(tmp_path / "codes"), vqvae=transformer_config.vqvae, num_images=10, shard_size=5, batch_size=2,
        image_size=transformer_config.image_size, autocast=False,
    )  # fmt: skip


def files(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def test_what_is_read_is_what_would_be_rendered_and_encoded(config, cheap_scenes):
    assert write_codes(config, cheap_scenes).startswith("10 pictures")
    store = StoredCodes(config.output)
    assert len(store) == 10
    batch = store(3, 4)  # from the end of one shard into the next
    rendered = cheap_scenes(STORE_SEED + 3, 4, "train")
    vqvae, grid_size = load_vqvae(config.vqvae, config.image_size, CPU)
    assert list(batch.scenes) == list(rendered.scenes)
    assert torch.equal(batch.codes, encode_images(vqvae, rendered.images)) and batch.codes.dtype == torch.int64
    assert torch.equal(batch.places, token_places(rendered.object_mask, rendered.ground_mask, grid_size))
    assert batch.places.max() < len(PLACES)

    later = store(10 * 7 + 3, 4)  # the same pictures on another round, to be described in other words
    assert torch.equal(later.codes, batch.codes) and list(later.scenes) == list(batch.scenes)
    assert set(later.caption_seeds).isdisjoint(batch.caption_seeds)
    assert torch.equal(store(8, 4).codes, torch.cat((store(8, 2).codes, store(0, 2).codes)))


def test_a_killed_writer_goes_on_and_nothing_is_written_twice(tmp_path, config, cheap_scenes):
    write_codes(replace(config, output=str(tmp_path / "whole")), cheap_scenes)

    def fails(first_seed: int, count: int, split: str):
        if first_seed == STORE_SEED + 7:  # within the second shard
            raise KeyboardInterrupt
        return cheap_scenes(first_seed, count, split)

    with pytest.raises(KeyboardInterrupt):
        write_codes(config, fails)
    assert sorted(files(config.output)) == ["codes-000000.safetensors", "store.json"]
    assert len(StoredCodes(config.output)) == 5, "it can be read before it is finished"
    cheap_scenes.first_seeds.clear()
    write_codes(config, cheap_scenes)
    assert min(cheap_scenes.first_seeds) == STORE_SEED + 5
    assert files(config.output) == files(str(tmp_path / "whole"))

    cheap_scenes.first_seeds.clear()
    write_codes(replace(config, num_images=15), cheap_scenes)
    assert min(cheap_scenes.first_seeds) == STORE_SEED + 10 and len(StoredCodes(config.output)) == 15
    assert load_file(Path(config.output) / "codes-000002.safetensors")["codes"].dtype == torch.uint16


def test_a_store_is_of_one_making(tmp_path, config, cheap_scenes, monkeypatch):
    write_codes(config, cheap_scenes)
    for name, value in {"object_count_weights": (1.0, 0.0, 0.0), "shard_size": 4}.items():
        with pytest.raises(UserError, match=f"^output: .* holds codes with (an)?other {name}"):
            write_codes(replace(config, **{name: value}), cheap_scenes)
    vqvae, _ = load_vqvae(config.vqvae, config.image_size, CPU)
    vqvae.encoder.conv_in.weight.data.mul_(1.1)
    vqvae.save_pretrained(tmp_path / "other")
    refused(r"^output: .*another vqvae", write_codes, replace(config, vqvae=str(tmp_path / "other")), cheap_scenes)

    # Scenes are sampled again at reading, so a sampler that has changed since would describe other pictures.
    monkeypatch.setattr(code_store, "sample_scene", lambda seed, *_: cheap_scenes(seed + 1, 1, "train").scenes[0])
    refused("samples other scenes", StoredCodes, config.output)


def test_a_store_for_training_on_begins_where_the_last_one_ended(tmp_path, config, cheap_scenes):
    write_codes(replace(config, num_images=15), cheap_scenes)
    rest = replace(config, output=str(tmp_path / "rest"), first_image=5)
    write_codes(rest, cheap_scenes)
    one, other = StoredCodes(config.output)(5, 10), StoredCodes(rest.output)(0, 10)
    assert torch.equal(one.codes, other.codes) and list(one.scenes) == list(other.scenes)
    for first_image, output in ((0, rest.output), (10, rest.output), (5, config.output)):
        with pytest.raises(UserError, match=r"^output: .* holds codes with (an)?other first_image"):
            write_codes(replace(config, output=output, first_image=first_image), cheap_scenes)


def test_where_no_store_is_the_remedy_is_named(tmp_path, config):
    refused("vargen train data", StoredCodes, tmp_path)
    refused(r"^object_count_weights: ", replace, config, object_count_weights=(0.0, 0.0, 0.0))
    refused(r"^vqvae: ", replace, config, vqvae="")


def test_a_transformer_learns_from_the_store_and_renders_nothing_but_held_out_scenes(
    config, transformer_config, cheap_scenes, monkeypatch
):
    monkeypatch.setattr(TransformerTask, "draw_samples", lambda self, path: None)
    monkeypatch.setattr(TransformerTask, "export", lambda self, folder: None)
    write_codes(config, cheap_scenes)
    cheap_scenes.first_seeds.clear()
    stored = replace(transformer_config, codes=config.output, grounding_weight=1.0, steps=4)
    assert train_transformer(stored, cheap_scenes).finished  # 16 pictures: more than the store has
    assert cheap_scenes.first_seeds == [HELDOUT_SEED]

    monkeypatch.setattr(code_store, "_shard_path", lambda folder, shard: Path(folder) / "nothing")
    refused("has no shard yet", TransformerTask, stored, cheap_scenes, CPU)


def test_drafters_get_pictures_with_captions_of_their_scenes(config, cheap_scenes):
    write_codes(config, cheap_scenes)
    vqvae, _ = load_vqvae(config.vqvae, config.image_size, CPU)
    prompts, codes = stored_pictures(config.output, 7, vqvae)
    batch = StoredCodes(config.output)(0, 7)
    assert torch.equal(codes, batch.codes)
    assert prompts == [compose_caption(scene, number).text for number, scene in enumerate(batch.scenes)]
    assert len(stored_pictures(config.output, 100, vqvae)[0]) == 10, "as many as there are"
    with torch.no_grad():
        vqvae.decoder.conv_out.bias.add_(1.0)
        vqvae.post_quant_conv.bias.add_(1.0)
    assert torch.equal(stored_pictures(config.output, 7, vqvae)[1], codes), "a decoder makes no codes"
    with torch.no_grad():
        vqvae.encoder.conv_in.bias.add_(1.0)
    refused("another tokenizer", stored_pictures, config.output, 7, vqvae)


def test_token_places_by_coverage():
    mask = torch.zeros(1, 8, 8)
    mask[0, 4:8, 0:4] = 1
    mask[0, 0, 4] = 1
    ground = torch.zeros(8, 8)
    ground[4:] = 1
    assert [PLACES[index] for index in token_places(mask, ground, 2)[0]] == ["sky", "edge", "object", "ground"]
