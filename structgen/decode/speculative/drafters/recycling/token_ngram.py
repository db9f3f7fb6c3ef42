"""A small model of token sequences, which says how well tokens go together."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol, final

__all__ = ["SequenceScorer", "TokenNGram"]


class SequenceScorer(Protocol):
    """Says how probable a token is behind the last few.

    Attributes:
        order: how many tokens before it that depends on.
    """

    @property
    def order(self) -> int: ...
    def log_p(self, before: tuple[int, ...], token: int, /) -> float:
        """The logarithm of the probability of ``token`` behind ``before``, up to ``order`` tokens."""


@final
class TokenNGram:
    """Counts of what followed runs of up to ``order`` tokens; those of longer runs are smoothed by shorter ones.

    Source: I. Witten and T. Bell, "The zero-frequency problem" (1991), for the smoothing; what no text showed shares
    the uniform law over the vocabulary.

    Threads may share one.  Runs that nothing was added to longest are forgotten beyond ``most``.

    Args:
        size: tokens of the vocabulary; at least 1.
        order: tokens that the next one depends on; at least 0.
        most: runs; at least 1.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(self, size: int, *, order: int = 1, most: int = 65_536) -> None:
        if size < 1 or order < 0 or most < 1:
            raise ValueError(
                f"TokenNGram: size and most must be at least 1, order at least 0; found {size}, {most} and {order}"
            )
        self.size = size
        self.order = order
        self._most = most
        self._counts: OrderedDict[tuple[int, ...], dict[int, float]] = OrderedDict()
        self._totals: dict[tuple[int, ...], float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, tokens: Sequence[int], weight: float = 1.0) -> None:
        """Count what follows what in a sequence.

        Raises:
            ValueError: ``weight`` is not positive.
        """
        if not weight > 0:
            raise ValueError(f"TokenNGram: weights must be positive; found {weight!r}")
        with self._lock:
            for place, token in enumerate(tokens):
                for start in range(max(place - self.order, 0), place + 1):
                    run = tuple(tokens[start:place])
                    counts = self._counts.setdefault(run, {})
                    counts[token] = counts.get(token, 0.0) + weight
                    self._totals[run] = self._totals.get(run, 0.0) + weight
                    self._counts.move_to_end(run)
            while len(self._counts) > self._most:
                run, _ = self._counts.popitem(last=False)
                del self._totals[run]

    def learn_all(self, texts: Iterable[Sequence[int]]) -> None:
        """Count in several sequences."""
        for tokens in texts:
            self.learn(tokens)

    def log_p(self, before: tuple[int, ...], token: int) -> float:
        """See ``SequenceScorer.log_p``; never minus infinity."""
        probability = 1 / self.size
        end = before[len(before) - min(len(before), self.order) :]
        with self._lock:
            for start in range(len(end), -1, -1):
                counts = self._counts.get(end[start:])
                if counts is None:
                    break
                total = self._totals[end[start:]]
                unseen = len(counts) / (len(counts) + total)
                probability = unseen * probability + (1 - unseen) * counts.get(token, 0.0) / total
        return math.log(probability)

    def __repr__(self) -> str:
        return f"<TokenNGram of order {self.order}, {len(self)} runs>"
