"""One forward pass over canvases, and what is kept of it: the logits of free slots, where the model left them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from structgen.decode.diffusion.host_logits import HostLogits
from structgen.decode.diffusion.mean_field import FREE
from structgen.errors import GenerationError
from structgen.models.diffusion.protocol import ResidentCachingDenoiser, ResidentDenoiser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.models.diffusion.protocol import CachingDenoiser, Denoiser, SlotLogits

__all__ = ["denoise", "denoise_live"]


def denoise(denoiser: Denoiser, canvases: Sequence[Canvas], *, mask_token: int, size: int) -> list[SlotLogits]:
    """Ask a model about several canvases in one forward pass.

    Args:
        denoiser: the model after the prompt.
        canvases: of one length, ``FREE`` in free slots.
        mask_token: what the model calls a free slot.
        size: of the vocabulary.

    Returns:
        For each canvas the logits of its free slots.

    Raises:
        GenerationError: the model fails, or what it returns are no logits.
    """
    free = np.stack(canvases) == FREE
    asked = np.where(free, mask_token, canvases).astype(np.int32)
    if isinstance(denoiser, ResidentDenoiser) and denoiser.is_resident:
        found = denoiser.denoise_resident(asked, free)
        for logits, of in zip(found, free, strict=True):
            _check(logits.shape, (int(of.sum()), size), "free slots, tokens")
        return found
    whole = denoiser.denoise(asked)
    _check(whole.shape, (*asked.shape, size), "canvases, slots, tokens")
    return [HostLogits(logits[of]) for logits, of in zip(whole, free, strict=True)]


def denoise_live(
    denoiser: CachingDenoiser, canvas: Canvas, live: NDArray[np.bool_], *, mask_token: int, size: int
) -> SlotLogits:
    """Ask a model about one canvas, and run its live slots only; otherwise as ``denoise``.

    Args:
        denoiser: likewise.
        canvas: likewise.
        live: bool ``[slots]``; see ``CachingDenoiser.denoise_live``.
        mask_token: likewise.
        size: likewise.

    Raises:
        GenerationError: likewise.
    """
    free = canvas == FREE
    asked = np.where(free, mask_token, canvas).astype(np.int32)
    if isinstance(denoiser, ResidentCachingDenoiser) and denoiser.is_resident:
        found = denoiser.denoise_live_resident(asked, live, free)
        _check(found.shape, (int(free.sum()), size), "free slots, tokens")
        return found
    whole = denoiser.denoise_live(asked, live)
    _check(whole.shape, (len(asked), size), "slots, tokens")
    return HostLogits(whole[free])


def _check(found: tuple[int, ...], wanted: tuple[int, ...], axes: str) -> None:
    if found != wanted:
        raise GenerationError(
            "denoising",
            f"there must be logits of the shape {wanted}: {axes}",
            evidence=f"found {found}",
            remedy="the model's vocabulary must be as wide as its logits",
        )
