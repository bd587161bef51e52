"""What LlamaGen offers methods: for whom it loads what, and what is kept between batches."""

import pytest
import torch
from refusals import refused

from vargen.methods.catalogue import resolve_method
from vargen.models.components import SINGLE_BATCH, BatchSlot
from vargen.models.llamagen.llamagen_components import LlamaGenComponents
from vargen.models.reuse import Reuse
from vargen.pipelines.llamagen import LlamaGenPipeline


def components_of(
    pipeline: LlamaGenPipeline, kept: Reuse, rows: int = 1, place: BatchSlot = SINGLE_BATCH
) -> LlamaGenComponents:
    parts = (pipeline.transformer, pipeline.vqvae, pipeline.drafter, pipeline.draft_model)
    components = LlamaGenComponents(*parts, pipeline.device, kept)
    embeds, mask = pipeline.encode_prompt(["two cones"] * rows)
    components.start({"caption_embeds": embeds}, mask, 3.0, 4, place)
    return components


@torch.no_grad()
def test_the_cache_of_the_last_batch_is_used_again_where_it_fits(drafting_pipeline):
    kept = Reuse()
    first = components_of(drafting_pipeline, kept)
    assert components_of(drafting_pipeline, kept).target.kv_cache is first.target.kv_cache
    larger = components_of(drafting_pipeline, kept, rows=2)
    assert larger.target.kv_cache is not first.target.kv_cache
    assert components_of(drafting_pipeline, kept, rows=2).target.kv_cache is larger.target.kv_cache


@torch.no_grad()
@pytest.mark.parametrize("draft", ["draft_head", "draft_model"])
def test_so_is_that_of_what_drafts_unless_its_rows_join_a_batch_that_uses_it(drafting_pipeline, draft):
    kept, arguments = Reuse(), (None, 4) if draft == "draft_head" else (None,)
    first, second, joining = (
        getattr(components_of(drafting_pipeline, kept, place=place), f"load_{draft}")(*arguments).network.kv_cache
        for place in (SINGLE_BATCH, SINGLE_BATCH, BatchSlot(joins=True))
    )
    assert first is second and joining is not first


@torch.no_grad()
def test_what_is_found_or_loaded_once_is_kept(drafting_pipeline, tmp_path):
    drafting_pipeline.drafter.save_pretrained(tmp_path / "drafter")
    drafting_pipeline.draft_model.save_pretrained(tmp_path / "smaller" / "transformer")
    kept = Reuse()
    components = components_of(drafting_pipeline, kept)
    head = components.load_draft_head(str(tmp_path / "drafter"), 4)
    assert components.load_draft_head(str(tmp_path / "drafter"), 4).network.drafter is head.network.drafter
    smaller = components.load_draft_model(str(tmp_path / "smaller"))
    assert components.load_draft_model(str(tmp_path / "smaller")).network.transformer is smaller.network.transformer
    assert components.neighbours(3) is components.neighbours(3) and components.neighbours(3).shape == (24, 3)
    assert set(kept.models) == {str(tmp_path / "drafter"), str(tmp_path / "smaller")}
    refused("for another model|weights of", components.load_draft_head, str(tmp_path / "smaller/transformer"), 4)


@torch.no_grad()
def test_what_is_timed_leaves_target_and_drafters_as_they_are(drafting_pipeline):
    components = components_of(drafting_pipeline, Reuse(), rows=2)
    target, head, smaller = components.target, components.load_draft_head(None, 8), components.load_draft_model(None)
    for draft in (head, smaller):
        before = draft.network.kv_cache.lengths.clone()
        draft.draft_once(1)
        assert torch.equal(draft.network.kv_cache.lengths, before)
    head.draft_once(3)
    probe = target.half_way(12)
    assert probe.kv_cache is not target.kv_cache and int(target.kv_cache.lengths.max()) == 0
    assert int(probe.kv_cache.lengths.min()) == target.condition_length + 8, "in the middle of 16 tokens"


def test_only_a_drafter_asks_for_prompts_in_full_length(drafting_pipeline):
    components = components_of(drafting_pipeline, Reuse())
    assert not components.wants_full_prompt(resolve_method("eagle"))
    components.drafter = type(drafting_pipeline.drafter)(
        dim=16, num_attention_heads=2, intermediate_size=20, vocab_size=24, grid_size=4, attend_to_padding=True
    )
    wanted = {name: components.wants_full_prompt(resolve_method(name)) for name in ("ar", "scd", "eagle", "coolsd")}
    assert wanted == {"ar": False, "scd": False, "eagle": True, "coolsd": True}
    components.drafter = None
    assert not components.wants_full_prompt(resolve_method("vvs")), "it is missed when it is needed"
