"""One forward pass over canvases: which slots it runs, and which logits are kept of it.

A rule of reuse (``Reuse``) names the slots that are run anew; the others read keys and values of an earlier pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE, HostLogits
from structgen.errors import GenerationError
from structgen.models.protocol.diffusion import ResidentCachingDenoiser, ResidentDenoiser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.models.protocol.diffusion import CachingDenoiser, Denoiser, SlotLogits

__all__ = ["DelayedReuse", "DualReuse", "PrefixReuse", "Reuse", "denoise", "denoise_live"]


class Reuse(Protocol):
    """A rule for which slots are live."""

    @property
    def lossless(self) -> bool:
        """Whether the logits are those of passes over all slots."""

    def live_slots(self, block: tuple[int, int], before: Canvas, canvas: Canvas, /, *, step: int) -> NDArray[np.bool_]:
        """Return which slots the next pass runs, bool ``[slots]``.

        Args:
            block: the slots that are being filled, from the first to after the last.
            before: the canvas of the last pass; in the first step the canvas itself.
            canvas: the canvas now, ``FREE`` where a slot is free.
            step: passes that this block has had.

        Raises:
            ValueError: the block is not on the canvas, the canvases differ in length, or ``step`` is negative.
        """


@final
@dataclass(frozen=True)
class PrefixReuse:
    """Runs the slots from the block on; prompt and earlier blocks are as they were when the block began.

    Source: Wu et al. 2025, "Fast-dLLM" (arXiv 2505.22618), the prefix cache.
    """

    lossless: ClassVar[bool] = False

    def live_slots(self, block: tuple[int, int], before: Canvas, canvas: Canvas, /, *, step: int) -> NDArray[np.bool_]:
        """See ``Reuse.live_slots``."""
        live = _changed(block, before, canvas, step)
        live[block[0] :] = True
        return live if step else np.ones_like(live)


@final
@dataclass(frozen=True)
class DualReuse:
    """Runs the slots of the block alone; what is before and after it is as it was when the block began.

    Source: Wu et al. 2025, "Fast-dLLM" (arXiv 2505.22618), DualCache.
    """

    lossless: ClassVar[bool] = False

    def live_slots(self, block: tuple[int, int], before: Canvas, canvas: Canvas, /, *, step: int) -> NDArray[np.bool_]:
        """See ``Reuse.live_slots``."""
        live = _changed(block, before, canvas, step)
        live[block[0] : block[1]] = True
        return live if step else np.ones_like(live)


@final
@dataclass(frozen=True)
class DelayedReuse:
    """Runs the free slots, and a committed one once more: it is kept only as it became with its token in place.

    With a window, free slots too are run only near a slot that was just committed, and keep their old logits
    elsewhere (dKV-Cache-Greedy).  In the published code the windows lie around the slots that are committed next, which
    only an order drawn in advance can tell; here the policy decides after the pass, so they lie around those committed
    last.

    Attributes:
        interval: every so many steps all slots are run.
        window: how many free slots are run for each slot just committed, the nearest ones; None for all.

    Raises:
        ValueError: ``interval`` is below 1 or ``window`` below 0.

    Source: Ma, Yu, Fang and Wang 2025, "dKV-Cache" (arXiv 2505.15781).
    """

    interval: int = 8
    window: int | None = None
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"interval must be at least 1; found {self.interval}; 1 runs all slots in every step")
        if self.window is not None and self.window < 0:
            raise ValueError(f"window must be 0 or more, or None for all free slots; found {self.window}")

    def live_slots(self, block: tuple[int, int], before: Canvas, canvas: Canvas, /, *, step: int) -> NDArray[np.bool_]:
        """See ``Reuse.live_slots``."""
        live = _changed(block, before, canvas, step)
        if step % self.interval == 0 or not live.any():
            return np.ones_like(live)
        free = canvas == FREE
        if self.window is None:
            live |= free
            return live
        for slot in np.flatnonzero(live):
            near = np.flatnonzero(free & ~live)
            distance = 2 * np.abs(near - slot) - (near < slot)  # of two equally near ones the left one is first
            live[near[np.argsort(distance)[: self.window]]] = True
        return live


def _changed(block: tuple[int, int], before: Canvas, canvas: Canvas, step: int) -> NDArray[np.bool_]:
    """Return which slots hold something else than in the last pass.

    Raises:
        ValueError: see ``Reuse.live_slots``.
    """
    if before.ndim != 1 or before.shape != canvas.shape:
        raise ValueError(
            f"the canvas before and the canvas now must have as many slots; found {before.shape} and {canvas.shape}"
        )
    start, stop = block
    if not 0 <= start < stop <= len(canvas):
        raise ValueError(f"the block must be slots of the canvas; found {start} to {stop} of {len(canvas)} slots")
    if step < 0:
        raise ValueError(f"step must be 0 or more; found {step}; 0 is the first step of a block")
    changed: NDArray[np.bool_] = before != canvas
    return changed


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
            _check_shape(logits.shape, (int(of.sum()), size), "free slots, tokens")
        return found
    whole = denoiser.denoise(asked)
    _check_shape(whole.shape, (*asked.shape, size), "canvases, slots, tokens")
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
        _check_shape(found.shape, (int(free.sum()), size), "free slots, tokens")
        return found
    whole = denoiser.denoise_live(asked, live)
    _check_shape(whole.shape, (len(asked), size), "slots, tokens")
    return HostLogits(whole[free])


def _check_shape(found: tuple[int, ...], wanted: tuple[int, ...], axes: str) -> None:
    if found != wanted:
        raise GenerationError(
            "denoising",
            f"there must be logits of the shape {wanted}: {axes}",
            evidence=f"found {found}",
            remedy="the model's vocabulary must be as wide as its logits",
        )
