from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cheap_training import CheapScenes
from diffusers.models.autoencoders.vq_model import VQModel
from refusals import refused
from resumed import assert_resumed_run_is_the_same

from scenes.captions.text_tokenizer import build_tokenizer
from scenes.training.coded import PLACES
from scenes.training.grounding import cell_attributes
from scenes.training.text_encoder import TextEncoderConfig, build_text_encoder
from scenes.training.transformer import TransformerTask, train_transformer
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.runs.files import read_jsonl
from vargen.training.run import prepare

CPU = torch.device("cpu")


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training alone: the sample sheet and the export have tests of their own."""
    monkeypatch.setattr(TransformerTask, "draw_samples", lambda self, path: None)
    monkeypatch.setattr(TransformerTask, "export", lambda self, folder: None)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.usefixtures("without_pictures")
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, transformer_config, cheap_scenes, optimizer):
    config = replace(transformer_config, optimizer=optimizer)
    assert_resumed_run_is_the_same(train_transformer, config, cheap_scenes, tmp_path, 3)


@pytest.mark.usefixtures("without_pictures")
def test_it_learns_one_batch_and_leaves_the_null_caption_alone(transformer_config, repeated_scenes):
    config = replace(transformer_config, steps=30, log_every=5, autocast=True)
    prepare(config)
    initial = TransformerTask(config, repeated_scenes, CPU).module.state_dict()
    train_transformer(config, repeated_scenes)
    losses = [entry["loss"] for entry in read_jsonl(Path(config.output) / "log.jsonl") if "event" not in entry]
    assert losses[-1] < 0.7 * losses[0]
    saved = torch.load(Path(config.output) / "checkpoint.pt", weights_only=True)["module"]
    unchanged = {name for name, value in saved.items() if torch.equal(value, initial[name])}
    frozen = {name for name in saved if name.startswith("text_encoder.")}
    assert frozen and unchanged == {"transformer.null_caption_embeds", *frozen}


def test_dropped_rows_do_not_see_their_captions(transformer_config, cheap_scenes):
    task = TransformerTask(transformer_config, cheap_scenes, CPU)
    torch.nn.init.normal_(task.transformer.lm_head.weight)  # it starts at zero, which would hide everything
    batch = task.heldout
    drop = torch.tensor([True, False] * 3)
    with torch.no_grad():
        logits = task._logits(batch, drop)
        plain = task._logits(batch, None)
        task.text_encoder.shared.weight.add_(torch.randn_like(task.text_encoder.shared.weight))
        other = task._logits(batch, drop)
    assert torch.equal(logits[drop], other[drop])
    assert not torch.allclose(logits[~drop], other[~drop], atol=1e-4)
    torch.testing.assert_close(logits[~drop], plain[~drop])


def test_the_share_of_null_captions_is_as_asked(transformer_config, cheap_scenes):
    task = TransformerTask(replace(transformer_config, batch_size=8), cheap_scenes, CPU)
    rows = [task._null_rows(step) for step in range(500)]
    assert 0.08 < torch.cat(rows).float().mean().item() < 0.12
    assert torch.equal(task._null_rows(7), rows[7])  # a function of the step, so a resumed run drops the same ones


def test_replaced_tokens_are_seen_as_others_and_predicted_as_themselves(transformer_config, cheap_scenes):
    config = replace(transformer_config, replaced_rows=0.5, replaced_tokens=0.6, batch_size=6)
    task = TransformerTask(config, cheap_scenes, CPU)
    codes = task.codes(0, 6).codes
    condition, mask = task._embed_texts(["a red cube"] * 6, None)
    seen, again, later = (task._seen(codes, step) for step in (3, 3, 4))
    assert torch.equal(seen, again) and not torch.equal(seen, later)
    numbered = torch.arange(codes.numel()).view_as(codes)  # every token another one
    changed = [task._seen(numbered, step) != numbered for step in range(300)]
    shares = torch.cat(changed).float().mean(1)
    assert 0.45 < (shares > 0).float().mean() < 0.55 and 0.12 < shares.mean() < 0.18 and shares.max() < 0.95
    assert TransformerTask(transformer_config, cheap_scenes, CPU)._seen(codes, 3) is codes

    torch.nn.init.normal_(task.transformer.lm_head.weight)
    other = codes.clone()
    other[:, 5] = (codes[:, 5] + 1) % task.transformer.config.vocab_size
    with torch.no_grad():
        losses, others = (task._run(condition, mask, codes, tokens)[0] for tokens in (codes, other))
    assert torch.equal(losses[:, :6], others[:, :6]) and not torch.equal(losses[:, 6:], others[:, 6:])


def test_mistaken_objects_are_of_their_colour_and_nothing_else_changes(transformer_config, cheap_scenes):
    config = replace(transformer_config, mistaken_objects=0.5, batch_size=48)
    task = TransformerTask(config, cheap_scenes, CPU)
    batch = task.codes(0, 48)
    owners = task._owners(batch)
    colours = cell_attributes(batch.scenes, task.grid_size, owners.view(-1, task.grid_size, task.grid_size))["colour"]
    colours, edges = colours.flatten(1), batch.places == PLACES.index("edge")
    numbered = replace(batch, codes=torch.arange(owners.numel()).view_as(owners))  # every token another one
    seen, again, later = (task._mistaken(numbered, owners, step) for step in (3, 3, 4))
    assert torch.equal(seen, again) and not torch.equal(seen, later)
    changed = seen != numbered.codes
    assert changed.any() and not changed[owners == 0].any()
    for told in (colours, edges):
        assert torch.equal(told.flatten()[seen.flatten()], told.flatten())
    untouched = sum(
        not changed[row][owners[row] == number].any()
        for row in range(48)
        for number in range(1, 4)
        if (owners[row] == number).sum() > 3
    )
    whole = sum(bool((owners[row] == number).sum() > 3) for row in range(48) for number in range(1, 4))
    assert 0.3 < untouched / whole < 0.75
    assert TransformerTask(transformer_config, cheap_scenes, CPU)._mistaken(batch, owners, 3) is batch.codes


def test_object_tokens_weigh_more_at_first_only(transformer_config, cheap_scenes):
    config = replace(transformer_config, object_loss_weight=5.0, object_loss_until=0.5)
    task = TransformerTask(config, cheap_scenes, CPU)
    on_objects = task.heldout.places <= PLACES.index("edge")
    assert on_objects.any() and not on_objects.all()
    for progress, weight in ((0.0, 5.0), (0.25, 3.0), (0.5, 1.0), (1.0, 1.0)):
        weights = task._token_weights(task.heldout.places, progress)
        assert weights[on_objects].unique().tolist() == [weight]
        assert weights[~on_objects].unique().tolist() == [1.0]


def test_the_first_token_can_weigh_more(transformer_config, cheap_scenes):
    task = TransformerTask(replace(transformer_config, first_token_weight=16.0), cheap_scenes, CPU)
    weights = task._token_weights(task.heldout.places, 0.5)
    assert weights[:, 0].unique().tolist() == [16.0] and weights[:, 1:].unique().tolist() == [1.0]
    torch.nn.init.normal_(task.transformer.lm_head.weight)
    loss, parts = task.loss(0, 0.5)
    task.config = transformer_config
    plain, plain_parts = task.loss(0, 0.5)
    assert parts["tokens"] == plain_parts["tokens"] and loss != plain


def test_evaluation_equals_training_forward_in_the_mean(transformer_config, cheap_scenes):
    task = TransformerTask(transformer_config, cheap_scenes, CPU)
    task.module.eval()
    figures = task.evaluate()
    assert figures.pop("caption_gain") == pytest.approx(0.0, abs=1e-2)
    uniform = torch.tensor(32.0).log().item()  # the head starts at zero
    assert all(value == pytest.approx(uniform, abs=1e-4) for value in figures.values())
    torch.nn.init.normal_(task.transformer.lm_head.weight)
    figures = task.evaluate()
    logits = task._logits(task.heldout, None).detach()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), task.heldout.codes.flatten()).item()
    assert figures["loss"] == pytest.approx(expected, rel=1e-4)
    places = task.heldout.places
    weighted = sum(
        (places == index).float().mean().item() * figures.get(f"entropy_{place}", 0.0)
        for index, place in enumerate(PLACES)
    )
    assert figures["entropy"] == pytest.approx(weighted, rel=1e-4)


def test_another_tokenizer_cannot_resume_the_run(transformer_config, cheap_scenes, without_pictures, tmp_path):
    from diffusers.models.autoencoders.vq_model import VQModel

    train_transformer(replace(transformer_config, steps=1), cheap_scenes)
    vqvae = VQModel.from_pretrained(transformer_config.vqvae)
    vqvae.encoder.conv_in.weight.data.mul_(1.1)
    vqvae.save_pretrained(transformer_config.vqvae)
    refused("another vqvae", train_transformer, transformer_config, cheap_scenes)


def test_export_is_a_pipeline_that_loads(transformer_config, cheap_scenes):
    from vargen.pipelines.llamagen import LlamaGenPipeline

    result = train_transformer(replace(transformer_config, steps=2), cheap_scenes)
    assert result.finished
    folder = Path(transformer_config.output)
    assert (folder / "samples" / "0000002.png").exists()
    pipeline = LlamaGenPipeline.from_pretrained(folder / "export")
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["average"]["shadow_params"]
    for value, average in zip(pipeline.transformer.parameters(), saved, strict=False):  # the text encoder's come next
        assert torch.equal(value.float(), average.bfloat16().float())
    images = pipeline("a red cube", output_type="pt", generator=torch.Generator().manual_seed(0)).images
    assert images.shape == (1, 3, transformer_config.image_size, transformer_config.image_size)


def test_a_run_starts_from_the_weights_of_a_pipeline(transformer_config, cheap_scenes, tmp_path):
    first = replace(transformer_config, steps=2)
    train_transformer(first, cheap_scenes)
    folder = Path(first.output) / "export"
    again = replace(first, output=str(tmp_path / "again"), initial_weights=str(folder), learning_rate=1e-12)
    train_transformer(replace(again, muon_learning_rate=1e-12, weight_decay=0.0, ema_decay=0.0), cheap_scenes)
    before = LlamaGenTransformer.from_pretrained(folder / "transformer").state_dict()
    after = LlamaGenTransformer.from_pretrained(tmp_path / "again" / "export" / "transformer").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)

    gone = replace(again, initial_weights=str(tmp_path / "gone"), steps=3)
    told = r"already holds a run that did not begin with initial_weights '.*gone'"
    refused(told, train_transformer, gone, cheap_scenes)
    assert train_transformer(replace(again, steps=3), cheap_scenes).step == 3
    assert train_transformer(replace(again, initial_weights="", steps=4), cheap_scenes).step == 4

    other = build_text_encoder(TextEncoderConfig(16, 8, 24, 1, 2), build_tokenizer())
    other.save_pretrained(tmp_path / "frozen" / "text_encoder")
    frozen = replace(again, output=str(tmp_path / "frozen_run"), frozen_text_encoder=str(tmp_path / "frozen"))
    task = TransformerTask(frozen, cheap_scenes, CPU)
    assert torch.equal(task.text_encoder.shared.weight, other.shared.weight), "its weights come from elsewhere"
    assert all(torch.equal(before[name], value) for name, value in task.transformer.bfloat16().state_dict().items())

    vqvae = VQModel.from_pretrained(first.vqvae)
    codebook = vqvae.quantize.embedding.weight
    codebook.data = codebook.detach().roll(1, 0)  # the same codes, each under the next number
    vqvae.save_pretrained(tmp_path / "renumbered")
    renumbered = replace(again, output=str(tmp_path / "renumbered_run"), vqvae=str(tmp_path / "renumbered"))
    refused(r"initial_weights: .* another tokenizer", TransformerTask, renumbered, cheap_scenes, CPU)

    larger = replace(again, output=str(tmp_path / "larger"), shape=replace(first.shape, num_layers=3))
    refused("initial_weights", train_transformer, larger, cheap_scenes)


def test_a_run_starts_from_the_weights_of_a_smaller_grid(transformer_config, cheap_scenes, tmp_path):
    train_transformer(replace(transformer_config, steps=2), cheap_scenes)
    folder = Path(transformer_config.output) / "export"
    before = LlamaGenTransformer.from_pretrained(folder / "transformer")
    larger = replace(
        transformer_config, output=str(tmp_path / "larger"), image_size=2 * transformer_config.image_size,
        initial_weights=str(folder), shape=replace(transformer_config.shape, position_scale=0.5),
    )  # fmt: skip
    task = TransformerTask(larger, CheapScenes(size=larger.image_size), CPU)
    side = before.config.grid_size
    assert task.transformer.config.grid_size == 2 * side and task.heldout.codes.shape[1] == 4 * side**2
    weights = task.transformer.state_dict()
    assert all(
        torch.equal(value, weights[name].bfloat16().to(value.dtype)) for name, value in before.state_dict().items()
    )
    rows = task.transformer.rotary_rows.table(CPU)[:-1].unflatten(0, (2 * side, 2 * side))
    assert torch.equal(rows[::2, ::2].flatten(0, 1), before.rotary_rows.table(CPU)[:-1])

    train_transformer(larger, CheapScenes(size=larger.image_size))
    other, scenes = replace(larger, shape=transformer_config.shape), CheapScenes(size=larger.image_size)
    refused(r"another shape\.position_scale", train_transformer, other, scenes)


@pytest.mark.usefixtures("without_pictures")
def test_a_smaller_transformer_can_learn_to_read_another_ones_features(
    transformer_config, cheap_scenes, tiny_model_folder
):
    config = replace(transformer_config, frozen_text_encoder=str(tiny_model_folder))
    task = TransformerTask(config, cheap_scenes, CPU)
    before = {name: value.clone() for name, value in task.text_encoder.state_dict().items()}
    assert task.transformer.config.caption_dim == task.text_encoder.config.d_model == 12
    train_transformer(config, cheap_scenes)
    saved = torch.load(Path(config.output) / "checkpoint.pt", weights_only=True)["module"]
    for name, value in before.items():
        assert torch.equal(saved[f"text_encoder.{name}"], value)
