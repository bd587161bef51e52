"""Caches that one batch takes over from the batch before it."""

from vargen.drafters.kept_caches import KeptCaches

SIZES = {"num_layers": 1, "batch_size": 2, "num_heads": 1, "head_dim": 4}


def test_a_cache_is_kept_while_it_has_room_for_the_longest_prompt():
    """Also where this batch needs less: the next one would lose its graphs with the cache."""
    caches = KeptCaches()
    kept = caches.get("target", 8, max_length=4, **SIZES)
    assert kept.max_length == 8 and caches.get("target", 8, max_length=6, **SIZES) is kept
    assert caches.get("head", 8, max_length=4, **SIZES) is not kept
    assert caches.get("target", 12, max_length=6, **SIZES).max_length == 12
