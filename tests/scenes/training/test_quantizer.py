import pytest
import torch
import torch.nn.functional as F

from scenes.training.quantizer import SphericalQuantizer


def make_quantizer(size: int = 16, dim: int = 4, decay: float = 0.9, threshold: float = 0.05) -> SphericalQuantizer:
    codebook = torch.nn.Parameter(F.normalize(torch.randn(size, dim), dim=1))
    return SphericalQuantizer(codebook, decay, threshold)


def test_codes_are_the_nearest_on_the_sphere():
    torch.manual_seed(0)
    quantizer = make_quantizer()
    latents = torch.randn(2, 4, 3, 5) * 7
    result = quantizer(latents, learn=False, replace_dead=False)
    for row in range(2):
        for y in range(3):
            for x in range(5):
                unit = latents[row, :, y, x] / latents[row, :, y, x].norm()
                distances = [(unit - code).norm().item() for code in quantizer.codebook]
                assert result.codes[row, y, x].item() == min(range(16), key=distances.__getitem__)
    assert torch.allclose(result.codewords, quantizer.codebook[result.codes].movedim(-1, 1), atol=1e-6)


def test_the_gradient_passes_straight_through_the_choice():
    torch.manual_seed(0)
    quantizer = make_quantizer()
    latents = torch.randn(2, 4, 3, 3, requires_grad=True)
    weights = torch.randn(2, 4, 3, 3)
    (quantizer(latents, learn=False, replace_dead=False).codewords * weights).sum().backward()
    expected = torch.autograd.grad((F.normalize(latents, dim=1) * weights).sum(), latents)[0]
    torch.testing.assert_close(latents.grad, expected)
    assert quantizer.codebook.grad is None


def test_without_learning_nothing_changes():
    quantizer = make_quantizer()
    before = {name: value.clone() for name, value in quantizer.state_dict().items()}
    quantizer(torch.randn(2, 4, 8, 8), learn=False, replace_dead=True)
    assert all(torch.equal(quantizer.state_dict()[name], value) for name, value in before.items())


def test_it_finds_clusters_and_keeps_unit_codewords():
    torch.manual_seed(0)
    centres = F.normalize(torch.randn(8, 4), dim=1)
    quantizer = make_quantizer(size=32)
    for _ in range(80):
        choice = torch.randint(8, (256,))
        points = centres[choice] + 0.01 * torch.randn(256, 4)
        quantizer(points.T.reshape(1, 4, 16, 16) * 3, learn=True, replace_dead=True)
    torch.testing.assert_close(quantizer.codebook.norm(dim=1), torch.ones(32), atol=1e-5, rtol=0)
    assert (centres @ quantizer.codebook.T).amax(1).min().item() > 0.999
    assert 8 <= quantizer.used_codes().item() <= 32
    assert quantizer.perplexity().item() >= 7


def test_dead_codes_move_to_latents_only_while_allowed():
    torch.manual_seed(0)
    quantizer = make_quantizer(size=64, decay=0.5)
    latents = torch.tensor([1.0, 0.0, 0.0, 0.0]).reshape(1, 4, 1, 1).expand(1, 4, 8, 8)
    quantizer(torch.randn(1, 4, 16, 16), learn=True, replace_dead=False)
    for _ in range(30):
        quantizer(latents, learn=True, replace_dead=False)
    far = (quantizer.codebook[:, 0] < 0.99).sum().item()
    assert far > 32  # nobody chose them, and they stayed
    quantizer(latents, learn=True, replace_dead=True)
    assert (quantizer.codebook[:, 0] > 0.99).all()


@pytest.mark.parametrize("used", [1, 5, 16])
def test_perplexity_counts_codes_in_equal_use(used):
    quantizer = make_quantizer()
    quantizer.usage[:used] = 3.0
    assert quantizer.perplexity().item() == pytest.approx(used)
