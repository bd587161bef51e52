"""The loss of a decoded picture against its image, which the tokenizer's trainers share, and its settings.

Belongs here: the weighted sum and its discriminator. Does not belong here: each term alone (`losses.py`), and where the
pictures come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenes.training.losses import PatchDiscriminator, adaptive_weight, hinge_loss, sharpness_loss
from vargen.base.options import option
from vargen.training.config import RunConfig
from vargen.training.run import move

_SHARPNESS_SCALES = 3
_DISCRIMINATOR_WIDTH = 32  # channels of its first layer


@dataclass
class PictureLossConfig(RunConfig):
    """Settings of the loss, beside those of every run."""

    adversarial_weight: float = option(0.0, least=0.0)
    """Weight of the patch discriminator's loss; 0 trains without one."""
    adversarial_start: float = option(0.5, least=0.0, most=1.0)
    """Share of the run after which the discriminator takes part."""


class PictureLoss:
    """The loss of decoded pictures; it owns the discriminator.

    Args:
        config: weights of its terms.
        last_weight: of the decoder's last layer, at which gradients are compared.
        device: where the discriminator is.
    """

    def __init__(self, config: PictureLossConfig, last_weight: Tensor, device: torch.device) -> None:
        self.config = config
        self.last_weight = last_weight
        self.discriminator = PatchDiscriminator(_DISCRIMINATOR_WIDTH)
        move(self.discriminator, device, images=True)

    @property
    def trained_modules(self) -> nn.Module:
        """What trains beside the decoder: the discriminator if it ever takes part."""
        return self.discriminator if self.config.adversarial_weight else nn.ModuleList()

    def __call__(
        self, images: Tensor, pictures: Tensor, weights: Tensor, progress: float
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and its parts, scalars.

        Args:
            images: [B, 3, H, W] fp32 in [-1, 1], the truth.
            pictures: [B, 3, H, W] fp32, decoded.
            weights: [B, 1, H, W] of the pixels, mean one. The discriminator does not heed them.
            progress: share of the run that is over.
        """
        config = self.config
        error = pictures - images
        l1 = (error.abs() * weights).mean()
        l2 = (error.square() * weights).mean()
        sharpness = sharpness_loss(error, weights, _SHARPNESS_SCALES)
        loss = l1 + l2 + sharpness
        parts = {"l1": l1, "l2": l2, "sharpness": sharpness}
        if config.adversarial_weight and progress >= config.adversarial_start:
            adversarial, discriminator = self.adversarial(loss, images, pictures)
            loss = loss + adversarial + discriminator
            parts |= {"adversarial": adversarial, "discriminator": discriminator}
        return loss, {name: value.detach() for name, value in parts.items()}

    def adversarial(self, reconstruction: Tensor, images: Tensor, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's and the discriminator's losses; one backward pass of their sum trains both.

        The first score is taken with the discriminator's weights held fixed, the others with detached pictures, so
        neither loss reaches the other's weights.
        """
        self.discriminator.requires_grad_(False)
        adversarial = -self.discriminator(pictures).float().mean()
        self.discriminator.requires_grad_(True)
        adversarial = adversarial * adaptive_weight(reconstruction, adversarial, self.last_weight)
        scores = self.discriminator(torch.cat([images, pictures.detach()])).float()
        real, fake = scores.chunk(2)
        return self.config.adversarial_weight * adversarial, hinge_loss(real, fake)
