"""Vector quantisation on the unit sphere, for training: nearest code, straight-through gradient, codebook by k-means.

`diffusers.VQModel` neither normalises nor trains its codebook this way; since the codebook kept here always has unit
rows, its own `encode` and `decode` give the same codes without this module.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def nearest_codes(latents: Tensor, codebook: Tensor) -> Tensor:
    """Index of the unit codeword nearest to each latent.

    Args:
        latents: [B, D, h, w], any float dtype, any length.
        codebook: [K, D] with unit rows.

    Returns:
        int64 [B, h, w]. The length of a latent does not matter: with unit codewords the nearest one is the one with
        the largest product.
    """
    # Not in autocast: products of neighbouring codewords are equal in bfloat16.
    with torch.autocast(latents.device.type, enabled=False):
        return torch.einsum("bdhw,kd->bhwk", latents.float(), codebook.float()).argmax(-1)


class Quantized(NamedTuple):
    """Codewords [B, D, h, w] with the gradient of the latents, codes int64 [B, h, w], and the commitment loss."""

    codewords: Tensor
    codes: Tensor
    commitment: Tensor


class SphericalQuantizer(nn.Module):
    """Learns `codebook`, the model's parameter [K, D], by running k-means on the unit sphere instead of by gradient.

    Each code keeps a decaying count and sum of the normalised latents that chose it (van den Oord et al. 2017,
    appendix A.1, with the mean projected to the sphere). A code whose count falls below `dead_threshold` is placed on a
    random latent of the batch.
    """

    counts: Tensor
    sums: Tensor
    usage: Tensor
    started: Tensor

    def __init__(self, codebook: Tensor, decay: float, dead_threshold: float):
        super().__init__()
        self.codebook = codebook.requires_grad_(False)
        self.decay = decay
        self.dead_threshold = dead_threshold
        size = codebook.shape[0]
        self.register_buffer("counts", torch.zeros(size))
        self.register_buffer("sums", torch.zeros_like(codebook))
        self.register_buffer("usage", torch.zeros(size))
        self.register_buffer("started", torch.tensor(False))

    def forward(self, latents: Tensor, learn: bool, replace_dead: bool) -> Quantized:
        """Quantise latents [B, D, h, w] with the present codebook; with `learn`, then move it towards them."""
        normalized = F.normalize(latents.float(), dim=1)
        flat = normalized.detach().movedim(1, -1).flatten(0, 2)  # [N, D]
        if learn and not self.started:
            self._start(flat)
        codes = nearest_codes(normalized.detach(), self.codebook)
        chosen = F.embedding(codes, self.codebook).movedim(-1, 1)
        commitment = (normalized - chosen).pow(2).mean()
        codewords = normalized + (chosen - normalized).detach()
        if learn:
            self._learn(flat, codes.flatten(), replace_dead)
        return Quantized(codewords, codes, commitment)

    def perplexity(self) -> Tensor:
        """exp of the entropy of the running code frequencies: how many codes are in use, were they used equally."""
        frequencies = self.usage / self.usage.sum().clamp_min(1e-9)
        return torch.special.entr(frequencies).sum().exp()

    def used_codes(self) -> Tensor:
        """How many codes are chosen more often than a tenth of the mean frequency."""
        return (self.usage > 0.1 * self.usage.mean()).sum()

    @torch.no_grad()
    def _start(self, flat: Tensor) -> None:
        self._place(torch.ones_like(self.counts, dtype=torch.bool), flat)
        self.started.fill_(True)

    @torch.no_grad()
    def _learn(self, flat: Tensor, codes: Tensor, replace_dead: bool) -> None:
        counts = torch.bincount(codes, minlength=len(self.counts)).to(self.counts.dtype)
        sums = torch.zeros_like(self.sums).index_add_(0, codes, flat.to(self.sums.dtype))
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        self.usage.lerp_(counts, 1 - self.decay)
        alive = self.sums.norm(dim=1) > 1e-6
        self.codebook.copy_(torch.where(alive[:, None], F.normalize(self.sums, dim=1), self.codebook))
        if replace_dead:
            self._place(self.counts < self.dead_threshold, flat)

    def _place(self, which: Tensor, flat: Tensor) -> None:
        """Put the codes marked in `which` [K] on random latents, with a count that gives them time to be chosen."""
        random = flat[torch.randint(len(flat), (len(which),), device=flat.device)].to(self.codebook.dtype)
        self.codebook.copy_(torch.where(which[:, None], random, self.codebook))
        self.counts.copy_(torch.where(which, torch.full_like(self.counts, 10 * self.dead_threshold), self.counts))
        self.sums.copy_(torch.where(which[:, None], random * 10 * self.dead_threshold, self.sums))
