import math

import pytest
import torch

from scenes.training import losses


def test_object_weights_have_mean_one_and_cover_the_outline():
    mask = torch.zeros(1, 9, 9)
    mask[0, 3:6, 3:6] = 1
    weights = losses.object_weights(mask)[0, 0]
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights[4, 4] / weights[0, 0] == pytest.approx(7.0)
    assert weights[2, 2] == weights[4, 4] and weights[1, 1] == weights[0, 0]  # one pixel around the object counts


def slow_sharpness(error: torch.Tensor, weights: torch.Tensor) -> float:
    total, batch, height, width = 0.0, error.shape[0], error.shape[2], error.shape[3]
    for b in range(batch):
        for c in range(3):
            for y in range(height):
                for x in range(width):
                    weight = weights[b, 0, y, x].item()
                    if x:
                        step = abs((error[b, c, y, x] - error[b, c, y, x - 1]).item())
                        total += weight * step / (batch * 3 * height * (width - 1))
                    if y:
                        step = abs((error[b, c, y, x] - error[b, c, y - 1, x]).item())
                        total += weight * step / (batch * 3 * (height - 1) * width)
    return total


def test_sharpness_equals_the_written_out_sum():
    torch.manual_seed(0)
    error, weights = torch.randn(2, 3, 4, 6), torch.rand(2, 1, 4, 6)
    assert losses.sharpness_loss(error, weights, 1).item() == pytest.approx(slow_sharpness(error, weights), rel=1e-4)
    halved = [value.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)) for value in (error, weights)]
    both = (slow_sharpness(error, weights) + slow_sharpness(halved[0], halved[1])) / 2
    assert losses.sharpness_loss(error, weights, 2).item() == pytest.approx(both, rel=1e-4)


def test_psnr_of_known_errors():
    images = torch.zeros(1, 3, 4, 4)
    assert losses.peak_signal_to_noise(images, images + 0.2).item() == pytest.approx(20.0, abs=1e-3)
    mask = torch.zeros(1, 4, 4)
    mask[0, 0] = 1
    worse = images.clone()
    worse[:, :, 0] = 0.5
    assert losses.peak_signal_to_noise(images, worse, mask).item() == pytest.approx(10 * math.log10(4 / 0.25), abs=1e-3)
    assert losses.peak_signal_to_noise(images + 1, images + 9).item() > 60  # clamped to the range of pictures


def test_discriminator_scores_patches_and_learns_to_tell():
    torch.manual_seed(0)
    discriminator = losses.PatchDiscriminator(8)
    assert discriminator(torch.zeros(2, 3, 32, 32)).shape == (2, 1, 4, 4)
    optimizer = torch.optim.Adam(discriminator.parameters(), 3e-3)
    for _ in range(60):
        rendered = torch.rand(4, 3, 16, 16) * 2 - 1
        smooth = rendered.mean((-1, -2), keepdim=True).expand_as(rendered)
        loss = losses.hinge_loss(discriminator(rendered), discriminator(smooth))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2


def test_adaptive_weight_is_the_ratio_of_gradients():
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    ratio = losses.adaptive_weight((3 * weight).sum(), (0.5 * weight).sum(), weight)
    assert ratio.item() == pytest.approx(6.0, rel=1e-4)
    assert losses.adaptive_weight((3 * weight).sum(), (0 * weight).sum(), weight, highest=100.0).item() == 100.0
    assert not ratio.requires_grad
