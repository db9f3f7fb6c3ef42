"""Sure slots, and less sure ones beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["LocalLeap"]


@final
@dataclass(frozen=True, slots=True)
class LocalLeap:
    """Commits every slot above a threshold that is lower near anchors, and always the surest one.

    Anchors are the slots that the language has forced, and the free ones whose confidence reaches ``anchor``.  At
    distance 1 of the nearest anchor a slot needs ``relaxed``, at distances up to ``window`` linearly more, beyond it as
    much as an anchor.

    Attributes:
        anchor: confidence of an anchor, above 0 and at most 1.
        relaxed: confidence beside an anchor, above 0 and at most ``anchor``.
        window: slots to either side, at least 0; with 0 this is ``Threshold(anchor)``.

    Source: F. Kong et al., "Accelerating Diffusion LLM Inference via Local Determinism Propagation" (2025, arXiv
    2510.07081), for anchors and bounded neighbourhoods in which reliability falls with distance.  Forced slots as
    anchors and the linear form are ours.
    """

    anchor: float = 0.9
    relaxed: float = 0.7
    window: int = 4

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.anchor <= 1:
            raise ValueError(f"LocalLeap: anchor must be above 0 and at most 1; found {self.anchor!r}")
        if not 0 < self.relaxed <= self.anchor:
            raise ValueError(
                f"LocalLeap: relaxed must be above 0 and at most anchor={self.anchor}; found {self.relaxed!r}"
            )
        if self.window < 0:
            raise ValueError(f"LocalLeap: window must be at least 0; found {self.window}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        sure = ranking.slots[denoised.confidence[ranking.slots] >= self.anchor]
        anchors = np.union1d(np.flatnonzero(run.was_forced), sure)
        return ranking.passing(denoised.confidence[ranking.slots] >= self._needed(ranking.slots, anchors))

    def _needed(self, slots: NDArray[np.intp], anchors: NDArray[np.intp]) -> NDArray[np.float64]:
        """Confidence that each slot needs."""
        if not len(anchors) or not self.window:
            return np.full(len(slots), self.anchor)
        distance = np.abs(slots[:, None] - anchors[None, :]).min(axis=1)
        near = self.relaxed + (self.anchor - self.relaxed) * (np.maximum(distance, 1) - 1) / self.window
        needed: NDArray[np.float64] = np.where((distance > 0) & (distance <= self.window), near, self.anchor)
        return needed
