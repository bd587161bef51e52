"""Which of several candidates is kept, and by which seed it can be made again."""

from PIL import Image
from refusals import refused
from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel

from vargen.jobs.ranking import ClipScorer, best, candidate_seed


def test_equal_scores_keep_the_first_and_seeds_differ_in_their_lower_bits():
    assert best([0.5, 1.0, 1.0]) == 1 and best([0.0]) == 0
    seeds = {candidate_seed(7, number) % 2**32 for number in range(1000)}
    assert len(seeds) == 1000 and candidate_seed(7, 0) == 7 and candidate_seed(2**63 - 1, 5) < 2**63


def test_a_clip_with_damaged_weights_ranks_nothing(clip_folder, tmp_path):
    """Its scores were NaN, so that any picture was the best."""
    model = CLIPModel.from_pretrained(clip_folder)
    model.visual_projection.weight.data.fill_(float("nan"))
    for part in (model, AutoTokenizer.from_pretrained(clip_folder), AutoImageProcessor.from_pretrained(clip_folder)):
        part.save_pretrained(tmp_path)
    told, picture = "^clip: image_features must be unit vectors, got one of length nan", Image.new("RGB", (32, 32))
    refused(told, ClipScorer(tmp_path).score, [picture], ["a red cube"])
