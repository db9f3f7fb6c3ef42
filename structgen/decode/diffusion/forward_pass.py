"""One forward pass over canvases: which slots run, and which logits are returned.

A reuse rule (``Reuse``) names the slots to run; the others keep the keys and values of an earlier pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE, HostLogits
from structgen.decode.step.background import check_stopped
from structgen.errors import GenerationError
from structgen.models.protocol.diffusion import ResidentCachingDenoiser, ResidentDenoiser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.models.protocol.diffusion import CachingDenoiser, Denoiser, SlotLogits

__all__ = ["DelayedReuse", "DualReuse", "PrefixReuse", "Reuse", "check_unmasked", "denoise", "denoise_live"]


class Reuse(Protocol):
    """A rule for which slots a pass runs: the live slots."""

    @property
    def lossless(self) -> bool:
        """Whether the logits equal those of passes over all slots."""

    def live_slots(self, block: tuple[int, int], before: Canvas, canvas: Canvas, /, *, step: int) -> NDArray[np.bool_]:
        """Return which slots the next pass runs, bool ``[slots]``.

        Args:
            block: the slots that are being filled, as a half-open range.
            before: the canvas of the last pass; in the first step the canvas itself.
            canvas: the current canvas, ``FREE`` where a slot is free.
            step: how many passes this block has had.

        Raises:
            ValueError: the block is not on the canvas, the canvases differ in length, or ``step`` is negative.
        """


@final
@dataclass(frozen=True)
class PrefixReuse:
    """Runs the slots from the block on; keys and values before the block are those of the block's first pass.

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
    """Runs the slots of the block only; all other keys and values are those of the block's first pass.

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
    """Runs the free slots, and each committed slot once more, so that its keys and values are those of its token.

    With a window, only the free slots near a newly committed slot run; others keep their old logits
    (dKV-Cache-Greedy). In the published code the windows surround the slots that are committed next, which requires an
    order sampled in advance; here the policy decides after the pass, so they surround those committed last.

    Attributes:
        interval: all slots run once in this many steps.
        window: how many free slots run for each newly committed slot, the nearest ones; None for all.

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
            distance = 2 * np.abs(near - slot) - (near < slot)  # of two equally near slots the left one is first
            live[near[np.argsort(distance)[: self.window]]] = True
        return live


def _changed(block: tuple[int, int], before: Canvas, canvas: Canvas, step: int) -> NDArray[np.bool_]:
    """Return which slots changed since the last pass.

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
    """Run a model on several canvases of one length in one forward pass; return the logits of the free slots of each.

    ``mask_token`` is the model's id for a free slot, ``size`` that of its vocabulary.

    Raises:
        GenerationError: the model fails, or its logits have a wrong shape.
    """
    check_stopped()
    free = np.stack(canvases) == FREE
    queried = np.where(free, mask_token, canvases).astype(np.int32)
    if isinstance(denoiser, ResidentDenoiser) and denoiser.is_resident:
        on_device = denoiser.denoise_resident(queried, free)
        for logits, of in zip(on_device, free, strict=True):
            _check_shape(logits.shape, (int(of.sum()), size), "free slots, tokens")
        return on_device
    whole = denoiser.denoise(queried)
    _check_shape(whole.shape, (*queried.shape, size), "canvases, slots, tokens")
    return [HostLogits(logits[of]) for logits, of in zip(whole, free, strict=True)]


def check_unmasked(canvas: Canvas, mask_token: int) -> None:
    """Raise ``GenerationError`` if a filled slot holds MASK."""
    if (canvas == mask_token).any():
        raise GenerationError(
            f"slot {int((canvas == mask_token).argmax())}",
            "the grammar asks for MASK, which is the model's id for a free slot",
            evidence=f"MASK is token {mask_token}",
            remedy="name another special token in the grammar",
        )


def denoise_live(
    denoiser: CachingDenoiser, canvas: Canvas, live: NDArray[np.bool_], *, mask_token: int, size: int
) -> SlotLogits:
    """Run a model on the live slots of one canvas, bool ``[slots]``; otherwise as ``denoise``.

    Raises:
        GenerationError: as ``denoise``.
    """
    check_stopped()
    free = canvas == FREE
    queried = np.where(free, mask_token, canvas).astype(np.int32)
    if isinstance(denoiser, ResidentCachingDenoiser) and denoiser.is_resident:
        on_device = denoiser.denoise_live_resident(queried, live, free)
        _check_shape(on_device.shape, (int(free.sum()), size), "free slots, tokens")
        return on_device
    whole = denoiser.denoise_live(queried, live)
    _check_shape(whole.shape, (len(queried), size), "slots, tokens")
    return HostLogits(whole[free])


def _check_shape(shape: tuple[int, ...], expected: tuple[int, ...], axes: str) -> None:
    if shape != expected:
        raise GenerationError(
            "denoising",
            f"the logits must have the shape {expected}: {axes}",
            evidence=f"found {shape}",
            remedy="the model's vocabulary must be as wide as its logits",
        )
