"""Sure slots of the whole canvas, and now and then one that is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["Explore"]


@final
@dataclass(frozen=True, slots=True)
class Explore:
    """Commits sure slots wherever they are, and one uncertain slot where the sure ones carry too little information.

    What a text says in all, its surprise in bits, has to come in over the passes; sure slots carry next to none, so a
    rule that waits for them alone takes many.  Where the sure slots of a step carry fewer than ``bits``, the slot of
    the block whose marginal given the language has the largest entropy is committed with them, if its token is at least
    ``least`` probable: it is what the rest waits for.

    Attributes:
        confidence: of a sure slot, above 0 and at most 1.
        bits: that a step should carry, at least 0; with 0 nothing uncertain is committed beside what is sure.
        least: confidence of an uncertain slot, from 0 to 1.

    Source: "From Bits to Rounds: Parallel Decoding with Exploration for Diffusion Language Models" (2025), known to us
    by its abstract: decoding across blocks, commitment of uncertain slots to set off cascades, and the bound on rounds
    by bits.  The rule here, when to do so and for which slot, is ours.
    """

    confidence: float = 0.9
    bits: float = 1.0
    least: float = 0.2

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise ValueError(f"Explore: confidence must be above 0 and at most 1; found {self.confidence!r}")
        if not (math.isfinite(self.bits) and self.bits >= 0):
            raise ValueError(f"Explore: bits must be at least 0 and finite; found {self.bits!r}")
        if not 0 <= self.least <= 1:
            raise ValueError(f"Explore: least must be between 0 and 1; found {self.least!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        confidence = denoised.confidence
        everywhere = rank_slots(run, denoised, among=run.free)
        sure = confidence[everywhere.slots] >= self.confidence
        chosen = everywhere.passing(sure) if sure.any() else everywhere.slots[:0]
        carried = -float(np.log2(np.maximum(confidence[chosen], np.finfo(np.float64).tiny)).sum())
        here = rank_slots(run, denoised, denoised.posterior.entropies())
        rest = here.slots[: len(here.slots) - here.ends]
        rest = rest[~np.isin(rest, chosen) & (confidence[rest] >= self.least)]
        if carried < self.bits and len(rest):
            chosen = np.append(chosen, rest[0])
        return chosen if len(chosen) else rank_slots(run, denoised).front(1)
