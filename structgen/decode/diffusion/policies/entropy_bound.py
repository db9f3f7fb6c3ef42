"""As many slots as a bound on their entropy allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["EntropyBound"]


@final
@dataclass(frozen=True, slots=True)
class EntropyBound:
    """Commits the largest set of slots, by rising entropy, with ``sum of entropies - largest entropy <= bound``.

    What is bounded is more than the slots of the set can tell about each other, so with a small bound they are almost
    independent.  Entropies are those of the marginals given the language, which a grammar makes small.

    Attributes:
        bound: nats, at least 0; with 0, one slot is committed, and those that are certain.

    Source: H. Ben-Hamu et al., "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking" (2025,
    arXiv 2505.24857), whose sampler draws the slots of the set independently; here they are of one completion.
    """

    bound: float = 0.1

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound >= 0):
            raise ValueError(f"EntropyBound: bound must be at least 0 nats and finite; found {self.bound!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        entropies = denoised.posterior.entropies()
        ranking = rank_slots(run, denoised, -entropies)
        rising = entropies[ranking.slots]
        spent = np.cumsum(rising) - np.maximum.accumulate(rising)
        return ranking.front(int(np.searchsorted(spent, self.bound, side="right")))
