"""All slots that are sure enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["Threshold"]


@final
@dataclass(frozen=True, slots=True)
class Threshold:
    """Commits every slot whose token is at least so probable given the language, and always the surest one.

    Theorem 1 of the source: where each of ``n`` tokens has a marginal probability above ``1 - e`` and
    ``(n + 1) e <= 1``, together they are the most probable joint choice of their slots, whatever joint law has these
    marginals.  Here the marginals are those of the law restricted to the language, so the joint law is that, too; how
    near the law of one pass is to the model's own the theorem does not say.

    Attributes:
        confidence: above 0, at most 1.

    Source: C. Wu et al., "Fast-dLLM" (2025, arXiv 2505.22618).
    """

    confidence: float = 0.9

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise ValueError(f"Threshold: confidence must be above 0 and at most 1; found {self.confidence!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        return ranking.passing(denoised.confidence[ranking.slots] >= self.confidence)
