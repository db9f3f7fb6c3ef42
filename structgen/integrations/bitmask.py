"""Token bitmasks applied to torch logits."""

from __future__ import annotations

import torch

__all__ = ["masked_scores"]


def masked_scores(scores: torch.Tensor, bitmask: torch.Tensor) -> torch.Tensor:
    """Return ``scores`` with negative infinity where ``bitmask`` has no bit.

    Args:
        scores: logits ``[rows, W]`` of any floating type and device; not changed.
        bitmask: int32 words ``[rows, ceil(V / 32)]`` on any device.  Columns that no word covers, those of a head
            wider than the vocabulary, are masked too.
    """
    width = scores.shape[-1]
    words = bitmask.to(scores.device)
    shifts = torch.arange(32, device=scores.device, dtype=torch.int32)
    excluded = (words.unsqueeze(-1) >> shifts & 1).flatten(1) == 0
    if excluded.shape[1] < width:
        excluded = torch.nn.functional.pad(excluded, (0, width - excluded.shape[1]), value=True)
    return scores.masked_fill(excluded[:, :width], -torch.inf)
