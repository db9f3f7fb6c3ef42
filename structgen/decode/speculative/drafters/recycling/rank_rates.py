"""How often the guess of each rank came, at each depth: what a tree of fixed form is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, final

from structgen.decode.speculative.calibration import Calibration

__all__ = ["RankRates"]

DEPTHS: Final = 4
"""Greater depths are taken for one."""

_STRENGTH: Final = 8.0
_MEMORY: Final = 1000.0


@final
class RankRates:
    """Estimated acceptance of guesses by their depth and their rank among the guesses for the same position.

    Threads may share one.

    Args:
        prior: the rate of each rank before anything was recorded, each strictly between 0 and 1; the last is that of
            all greater ranks too.

    Raises:
        ValueError: there are no rates, or one is out of range.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        if not prior or not all(0 < rate < 1 for rate in prior):
            raise ValueError(f"RankRates: expected rates between 0 and 1; found {prior!r}")
        self._prior = tuple(prior)
        self._calibration = Calibration(strength=_STRENGTH, memory=_MEMORY)

    def rate(self, depth: int, rank: int) -> float:
        """How often a guess of a rank came at a depth, the first of which is 0, where its parent did."""
        prior = self._prior[min(rank, len(self._prior) - 1)]
        return self._calibration.probability((min(depth, DEPTHS - 1), rank), prior)

    def rates(self, ranks: int) -> list[list[float]]:
        """The rates of the first ``ranks`` ranks by depth, as ``RankTree.of_rates`` takes them."""
        return [[self.rate(depth, rank) for rank in range(ranks)] for depth in range(DEPTHS)]

    def learn(self, outcomes: Iterable[tuple[int, int, bool]]) -> None:
        """Note guesses whose parent came: their depth, their rank, and whether they came."""
        self._calibration.record_all(((min(depth, DEPTHS - 1), rank), taken) for depth, rank, taken in outcomes)
