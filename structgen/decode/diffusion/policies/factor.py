"""As many slots as are sure enough together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["Factor"]


@final
@dataclass(frozen=True, slots=True)
class Factor:
    """Commits the ``n`` surest slots, for the largest ``n`` with ``(n + 1) (1 - c) < factor``.

    ``c`` is the least confidence among the ``n``, given the language.  With a factor of 1 this is the condition of the
    theorem (see ``Threshold``) read as a rule: the more slots, the surer each has to be.

    Attributes:
        factor: above 0; larger ones commit more.

    Source: C. Wu et al., "Fast-dLLM" (2025, arXiv 2505.22618).
    """

    factor: float = 1.0

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"Factor: factor must be above 0 and finite; found {self.factor!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        least = np.minimum.accumulate(denoised.confidence[ranking.slots])
        fitting = (np.arange(len(least)) + 2) * (1 - least) < self.factor
        return ranking.front(int(np.argmin(fitting)) if not fitting.all() else len(fitting))
