"""Which of several arms to play: rules of bandits, and what they know."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import inverse_cdf

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXP3", "UCB", "ArmRecord", "Arms", "Policy"]

_MOST_KINDS: Final = 256


@final
class ArmRecord:
    """What is known of the arms in one kind of position.

    Args:
        arms: how many there are.

    Attributes:
        plays: how often each was played, float64 ``[arms]``.
        totals: the sums of their rewards.
        squares: the sums of the squares of their rewards.
        log_weights: of ``EXP3``.
        chosen: how often each was chosen, whether its reward is known already or not.
    """

    def __init__(self, arms: int) -> None:
        self.plays = np.zeros(arms)
        self.totals = np.zeros(arms)
        self.squares = np.zeros(arms)
        self.log_weights = np.zeros(arms)
        self.chosen = np.zeros(arms)


class Policy(ABC):
    """A rule by which arms are chosen, whose rewards lie in [0, 1]: a value."""

    @abstractmethod
    def choose(self, record: ArmRecord, uniform: Callable[[], float]) -> tuple[int, float]:
        """Return an arm, and the probability with which it was chosen.

        Args:
            record: what is known.
            uniform: draws a number from [0, 1), for rules that leave something to chance.
        """

    @abstractmethod
    def learn(self, record: ArmRecord, arm: int, probability: float, reward: float) -> None:
        """Take in the reward of an arm that was chosen with this probability."""


@final
@dataclass(frozen=True, slots=True)
class UCB(Policy):
    """The arm of which the most can be hoped: its mean reward and a margin that shrinks as it is played.

    The margin is ``width * sqrt(min(1/4, V) * ln(t) / n)`` after ``n`` of ``t`` plays, where ``V`` bounds the variance
    from above as in UCB1-Tuned: P. Auer, N. Cesa-Bianchi, P. Fischer (2002), "Finite-time Analysis of the Multiarmed
    Bandit Problem", section 4.  Every arm is played once at first, in order.

    Attributes:
        width: of the margin; positive.

    Raises:
        ValueError: ``width`` is out of range.
    """

    width: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width > 0):
            raise ValueError(f"UCB: width must be positive and finite; found {self.width!r}")

    def choose(self, record: ArmRecord, uniform: Callable[[], float]) -> tuple[int, float]:
        """See ``Policy.choose``; draws nothing."""
        unknown = record.plays == 0
        if unknown.any():
            return int(np.where(unknown, -record.chosen, -np.inf).argmax()), 1.0
        mean = record.totals / record.plays
        log = math.log(record.plays.sum())
        variance = record.squares / record.plays - mean**2 + np.sqrt(2 * log / record.plays)
        margin = np.sqrt(np.minimum(0.25, variance) * log / record.plays)
        return int((mean + self.width * margin).argmax()), 1.0

    def learn(self, record: ArmRecord, arm: int, probability: float, reward: float) -> None:
        """See ``Policy.learn``."""
        record.plays[arm] += 1
        record.totals[arm] += reward
        record.squares[arm] += reward**2


@final
@dataclass(frozen=True, slots=True)
class EXP3(Policy):
    """Draws an arm by weights that grow with its rewards, for rewards that follow no law, as when texts change.

    Source: P. Auer, N. Cesa-Bianchi, Y. Freund, R. Schapire (2002), "The Nonstochastic Multiarmed Bandit Problem",
    section 3.

    Attributes:
        explore: the share of plays that is spread over all arms, in (0, 1].

    Raises:
        ValueError: ``explore`` is out of range.
    """

    explore: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.explore <= 1:
            raise ValueError(f"EXP3: explore must lie in (0, 1]; found {self.explore!r}")

    def choose(self, record: ArmRecord, uniform: Callable[[], float]) -> tuple[int, float]:
        """See ``Policy.choose``; draws one number."""
        weights = np.exp(record.log_weights - record.log_weights.max())
        law: NDArray[np.float64] = (1 - self.explore) * weights / weights.sum() + self.explore / len(weights)
        arm = inverse_cdf(law, uniform())
        return arm, float(law[arm])

    def learn(self, record: ArmRecord, arm: int, probability: float, reward: float) -> None:
        """See ``Policy.learn``."""
        record.plays[arm] += 1
        record.totals[arm] += reward
        record.squares[arm] += reward**2
        record.log_weights[arm] += self.explore * reward / (probability * len(record.plays))


@final
class Arms:
    """What is known of the arms, for each kind of position; threads may share one.

    Args:
        policy: the rule.
        count: how many arms there are.
    """

    def __init__(self, policy: Policy, count: int) -> None:
        self.count = count
        self._policy = policy
        self._records: dict[int, ArmRecord] = {}
        self._lock = threading.Lock()

    def choose(self, kind: int, uniform: Callable[[], float]) -> tuple[int, float]:
        """See ``Policy.choose``."""
        with self._lock:
            record = self._record(kind)
            arm, probability = self._policy.choose(record, uniform)
            record.chosen[arm] += 1
            return arm, probability

    def learn(self, kind: int, arm: int, probability: float, reward: float) -> None:
        """See ``Policy.learn``."""
        with self._lock:
            self._policy.learn(self._record(kind), arm, probability, reward)

    def plays(self, kind: int) -> tuple[int, ...]:
        """How often each arm was played in a kind of position."""
        with self._lock:
            record = self._records.get(kind)
            return (0,) * self.count if record is None else tuple(map(int, record.plays))

    def _record(self, kind: int) -> ArmRecord:
        if kind not in self._records and len(self._records) == _MOST_KINDS:
            del self._records[next(iter(self._records))]
        return self._records.setdefault(kind, ArmRecord(self.count))
