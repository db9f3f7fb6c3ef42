"""``Bandit`` chooses one of several drafters at a time, by a multi-armed bandit for each kind of position."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from structgen.cache import Locked
from structgen.decode.speculative.cost import CostModel, company_of
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.step.sampler import inverse_cdf
from structgen.methods.tree_policies.draft_outcome import choice_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.decode.step.context import Context

__all__ = ["EXP3", "UCB", "ArmRecord", "Arms", "Bandit", "Policy"]

_MAX_KINDS: Final = 256


@final
class ArmRecord:
    """The statistics of the arms for one kind of position.

    Args:
        arms: the number of arms.

    Attributes:
        plays: how often each was played, float64 ``[arms]``.
        totals: the sums of their rewards.
        squares: the sums of the squares of their rewards.
        log_weights: the weights of ``EXP3``.
        chosen: how often each was chosen, including choices without a reward yet.
    """

    def __init__(self, arms: int) -> None:
        self.plays = np.zeros(arms)
        self.totals = np.zeros(arms)
        self.squares = np.zeros(arms)
        self.log_weights = np.zeros(arms)
        self.chosen = np.zeros(arms)


class Policy(ABC):
    """A rule that chooses arms with rewards in [0, 1]: a value."""

    @abstractmethod
    def choose(self, record: ArmRecord, uniform: Callable[[], float]) -> tuple[int, float]:
        """Return an arm, and the probability with which it was chosen.

        Args:
            record: the statistics of the arms.
            uniform: samples a number from [0, 1), for randomised rules.
        """

    @abstractmethod
    def learn(self, record: ArmRecord, arm: int, probability: float, reward: float) -> None:
        """Learn the reward of an arm that was chosen with this probability."""


@final
@dataclass(frozen=True, slots=True)
class UCB(Policy):
    """The arm with the highest upper bound: its mean reward and a margin that shrinks as it is played.

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
        """See ``Policy.choose``; uses no random number."""
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
    """Samples an arm by weights that grow with its rewards; the rewards may change over time.

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
        """See ``Policy.choose``; uses one random number."""
        weights = np.exp(record.log_weights - record.log_weights.max())
        distribution: NDArray[np.float64] = (1 - self.explore) * weights / weights.sum() + self.explore / len(weights)
        arm = inverse_cdf(distribution, uniform())
        return arm, float(distribution[arm])

    def learn(self, record: ArmRecord, arm: int, probability: float, reward: float) -> None:
        """See ``Policy.learn``."""
        record.plays[arm] += 1
        record.totals[arm] += reward
        record.squares[arm] += reward**2
        record.log_weights[arm] += self.explore * reward / (probability * len(record.plays))


@final
class Arms(Locked):
    """The statistics of the arms by kind of position; threads may share them.

    Args:
        policy: the rule.
        count: the number of arms.
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
        """Return how often each arm was played in a kind of position."""
        with self._lock:
            record = self._records.get(kind)
            return (0,) * self.count if record is None else tuple(map(int, record.plays))

    def _record(self, kind: int) -> ArmRecord:
        if kind not in self._records and len(self._records) == _MAX_KINDS:
            del self._records[next(iter(self._records))]
        return self._records.setdefault(kind, ArmRecord(self.count))


_WIDTH: Final = 0.5
"""Outputs are short: it explores less than theory suggests."""


@final
@dataclass(frozen=True)
class Bandit(Drafter):
    """Chooses one drafter at a time, and learns which is best for each kind of position.

    A drafter may be given several times with different settings.  The speed of a round is the number of choices that
    its pass decided, divided by the time of the pass and the price of the drafter.  The reward is the speed as a share
    of ``most``, at most 1.

    It is for drafters that cost time.  If drafting is free, ``Combined`` uses all drafters and learns from every token.

    Source: Y. Hou, F. Zhang, C. Du et al., "BanditSpec" (ICML 2025, arXiv 2505.15141); kinds of positions and costs are
    ours.

    Attributes:
        drafters: the arms; one that fails proposes nothing from then on.
        policy: ``UCB`` or ``EXP3``.
        cost: the cost of passes; None assumes that of the model.
        prices: the cost of a draft of each drafter, in passes over one row; empty for no cost.
        most: the speed with the full reward, in choices per pass over one row; above 1.
        arms: the statistics; outputs that share them learn from each other.

    Raises:
        ValueError: there are no drafters, or a number is out of range.
    """

    drafters: tuple[Drafter, ...]
    policy: Policy = field(default_factory=lambda: UCB(_WIDTH))
    cost: CostModel | None = None
    prices: tuple[float, ...] = ()
    most: float = 6.0
    arms: Arms = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if not self.drafters:
            raise ValueError("Bandit: expected at least one drafter; found none")
        if self.prices and len(self.prices) != len(self.drafters):
            raise ValueError(f"Bandit: expected {len(self.drafters)} prices, or none; found {len(self.prices)}")
        if not all(math.isfinite(price) and price >= 0 for price in self.prices):
            raise ValueError(f"Bandit: prices must be finite and not negative; found {self.prices!r}")
        if not (math.isfinite(self.most) and self.most > 1):
            raise ValueError(f"Bandit: most must be finite and above 1; found {self.most!r}")
        object.__setattr__(self, "arms", Arms(self.policy, len(self.drafters)))

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return " or ".join(dict.fromkeys(drafter.name for drafter in self.drafters))

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _BanditDrafting(self, self.cost or CostModel.assumed(context.model), context, task)


class _BanditRound(NamedTuple):
    start: int
    kind: int
    arm: int
    probability: float
    tree: DraftTree


@final
class _BanditDrafting(Drafting):
    def __init__(self, bandit: Bandit, cost: CostModel, context: Context, task: DraftTask) -> None:
        self._bandit = bandit
        self._cost = cost
        self._context = context
        self._generator = task.generator
        self._draftings = [GuardedDrafting(drafter, context, task) for drafter in bandit.drafters]
        self._round: _BanditRound | None = None

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._settle()
        arm, probability = self._bandit.arms.choose(state.kind, self._generator.random)
        drafting = self._draftings[arm]
        tree = drafting.propose(context, state, budget)
        self._round = _BanditRound(len(context), state.kind, arm, probability, tree)
        return _signed(tree, drafting.name)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        if self._round is not None and self._round.start == verified.start:
            self._round = self._round._replace(tree=verified.tree)  # the part that was run
        for drafting in self._draftings:
            drafting.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._settle()
        for drafting in self._draftings:
            drafting.close()

    def _settle(self) -> None:
        """Reward the last round."""
        last, self._round = self._round, None
        if last is None or last.start >= len(self._context):
            return
        choices = 1 + choice_count(last.tree, self._context.tokens[last.start :])
        price = self._bandit.prices[last.arm] if self._bandit.prices else 0.0
        cost = self._cost.beside(company_of(self._context.model))
        speed = choices / (cost.relative(1 + len(last.tree)) + price)
        self._bandit.arms.learn(last.kind, last.arm, last.probability, min(speed / self._bandit.most, 1.0))


def _signed(tree: DraftTree, name: str) -> DraftTree:
    """The tree with the drafter's name for nodes without a source."""
    tree.sources[:] = [source or name for source in tree.sources]
    return tree
