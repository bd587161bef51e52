"""Losses of the image tokenizer: weighted reconstruction, sharpness, and an optional patch discriminator.

All images are [B, 3, H, W] fp32 in [-1, 1].
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OBJECT_WEIGHT = 7.0


def object_weights(object_mask: Tensor) -> Tensor:
    """Weights [B, 1, H, W] with mean one: `OBJECT_WEIGHT` on objects and their outline, relative to one elsewhere.

    Args:
        object_mask: [B, H, W], 1 on objects, 0 elsewhere.
    """
    grown = F.max_pool2d(object_mask[:, None], kernel_size=3, stride=1, padding=1)  # the outline counts as object
    weights = 1 + (OBJECT_WEIGHT - 1) * grown
    return weights / weights.mean()


def sharpness_loss(error: Tensor, weights: Tensor, scales: int) -> Tensor:
    """L1 distance of the image gradients (differences of neighbours) at `scales` scales, each half the one before.

    Args:
        error: reconstruction minus image; the gradients are linear, so their distance needs only this.
        weights: [B, 1, H, W].

    Returns:
        Scalar: the mean over the scales. Unlike L1 or L2 on pixels it costs more to blur an edge than to move it.
    """
    total = error.new_zeros(())
    for scale in range(scales):
        if scale:
            error, weights = F.avg_pool2d(error, 2), F.avg_pool2d(weights, 2)
        across = ((error[..., :, 1:] - error[..., :, :-1]).abs() * weights[..., :, 1:]).mean()
        down = ((error[..., 1:, :] - error[..., :-1, :]).abs() * weights[..., 1:, :]).mean()
        total = total + across + down
    return total / scales


def peak_signal_to_noise(images: Tensor, reconstructions: Tensor, mask: Tensor | None = None) -> Tensor:
    """PSNR in dB (peak 2, reconstructions clamped), scalar, over the pixels where mask [B, H, W] is set."""
    squared = (images.float() - reconstructions.float().clamp(-1, 1)).pow(2).mean(1)  # [B, H, W]
    error = squared.mean() if mask is None else (squared * mask).sum() / mask.sum().clamp_min(1)
    return 10 * torch.log10(4 / error.clamp_min(1e-10))


class PatchDiscriminator(nn.Module):
    """Scores overlapping patches as rendered or reconstructed (Isola et al. 2017), without norms."""

    def __init__(self, width: int, layers: int = 3):
        super().__init__()
        channels = [3, *(min(width * 2**layer, width * 4) for layer in range(layers))]
        blocks: list[nn.Module] = []
        for before, after in itertools.pairwise(channels):
            blocks += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*blocks, nn.Conv2d(channels[-1], 1, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        """Scores [B, 1, H / 2**layers, W / 2**layers]; above zero means rendered."""
        return self.layers(images)


def hinge_loss(real_scores: Tensor, fake_scores: Tensor) -> Tensor:
    """The discriminator's hinge loss."""
    return 0.5 * (F.relu(1 - real_scores).mean() + F.relu(1 + fake_scores).mean())


def adaptive_weight(reconstruction: Tensor, adversarial: Tensor, last_weight: Tensor, highest: float = 1e3) -> Tensor:
    """Ratio of the two losses' gradients at the decoder's last layer (Esser et al. 2021, equation 7), scalar."""
    (reconstruction_gradient,) = torch.autograd.grad(reconstruction, last_weight, retain_graph=True)
    (adversarial_gradient,) = torch.autograd.grad(adversarial, last_weight, retain_graph=True)
    return (reconstruction_gradient.norm() / (adversarial_gradient.norm() + 1e-6)).clamp(max=highest).detach()
