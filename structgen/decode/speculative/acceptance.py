"""Measured acceptance of draft tokens: by kind (``Calibration``), and by depth and rank (``RankRates``)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, final

__all__ = ["Calibration", "RankRates"]

_MAX_KEYS: Final = 4096


@final
class Calibration:
    """Estimates, for each kind of guess, the probability that a guess of that kind is taken.

    A kind is whatever a drafter puts into a key: how long the match was, the rank among siblings, what sort of position
    it is.  The chance of a kind has a Beta law: its prior has the mean that the caller states and weighs as much as
    ``strength`` guesses, and every guess whose outcome is known adds one count.  The estimate is the mean

        (strength * prior + taken) / (strength + taken + missed).

    Counts fade: beyond ``memory`` guesses of a kind, older ones weigh less, by the same factor at each new one, so that
    an estimate follows a target that changes.  The kinds that nobody recorded or asked for longest are forgotten beyond
    ``most_keys``.

    Threads may share one.  What it says depends on the order of the records alone.

    Args:
        prior: the mean before anything was recorded, for callers that state none; strictly between 0 and 1.
        strength: how many guesses the prior weighs as much as; positive.
        memory: how many guesses of a kind count at most; at least 1.
        most_keys: how many kinds are kept; at least 1.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> calibration = Calibration(strength=2)
        >>> calibration.probability("copy")
        0.5
        >>> calibration.record("copy", taken=True)
        >>> calibration.record("copy", taken=True)
        >>> calibration.probability("copy")
        0.75
        >>> calibration.probability("other", prior=0.1)
        0.1
    """

    def __init__(
        self, *, prior: float = 0.5, strength: float = 4.0, memory: float = 200.0, most_keys: int = _MAX_KEYS
    ) -> None:
        if not 0 < prior < 1:
            raise ValueError(f"Calibration: prior must lie between 0 and 1; found {prior!r}")
        if not strength > 0:
            raise ValueError(f"Calibration: strength must be positive; found {strength!r}")
        if not memory >= 1:
            raise ValueError(f"Calibration: memory must be at least 1; found {memory!r}")
        if most_keys < 1:
            raise ValueError(f"Calibration: most_keys must be at least 1; found {most_keys!r}")
        self._prior = prior
        self._strength = strength
        self._memory = memory
        self._most_keys = most_keys
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # taken, missed
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def probability(self, key: Hashable, prior: float | None = None) -> float:
        """The estimated probability that a guess of this kind is taken, strictly between 0 and 1.

        Args:
            key: the kind.
            prior: the mean before anything was recorded of it, strictly between 0 and 1; None takes that of the
                calibration.
        """
        mean = self._prior if prior is None else prior
        with self._lock:
            counts = self._counts.get(key)
            if counts is None:
                return mean
            self._counts.move_to_end(key)
        taken, missed = counts
        return (self._strength * mean + taken) / (self._strength + taken + missed)

    def record(self, key: Hashable, *, taken: bool) -> None:
        """Note that a guess of this kind was taken, or was not although its parent was."""
        with self._lock:
            self._record(key, taken)

    def record_all(self, outcomes: Iterable[tuple[Hashable, bool]]) -> None:
        """Note several guesses, as pairs of a kind and whether it was taken, in their order."""
        with self._lock:
            for key, taken in outcomes:
                self._record(key, taken)

    def count(self, key: Hashable) -> float:
        """How many guesses of this kind the estimate rests on, besides the prior; at most ``memory``."""
        with self._lock:
            return sum(self._counts.get(key, (0.0, 0.0)))

    def _record(self, key: Hashable, taken: bool) -> None:
        hits, misses = self._counts.get(key, (0.0, 0.0))
        if hits + misses + 1 > self._memory:
            fade = (self._memory - 1) / (hits + misses)
            hits, misses = hits * fade, misses * fade
        self._counts[key] = (hits + taken, misses + (not taken))
        self._counts.move_to_end(key)
        if len(self._counts) > self._most_keys:
            self._counts.popitem(last=False)

    def __repr__(self) -> str:
        return f"<Calibration of {len(self)} kinds>"


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
