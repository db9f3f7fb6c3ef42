"""Which label to answer, given how probable each is and what an error costs.

The most probable label is the best answer only where all errors cost the same.  Each rule here takes the probabilities
of labels (of ``label_distribution``, of a field's marginals, of any classifier) and returns the decision of the highest
expected utility among all decisions that it could return.

Source: R. Plaud et al., "To Each Metric Its Decoding: Post-Hoc Optimal Decision Rules of Probabilistic Hierarchical
Classifiers" (ICML 2025, arXiv 2506.01552); the flat rules are classical, see J. Berger, "Statistical Decision Theory
and Bayesian Analysis" (1985), and for F-beta W. Waegeman et al., "On the Bayes-Optimality of F-Measure Maximizers"
(2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, final, runtime_checkable

__all__ = [
    "FBeta",
    "HierarchicalFBeta",
    "LeastCost",
    "MostProbable",
    "NearestMean",
    "Probabilities",
    "Quantile",
    "Rule",
    "ancestors",
]

Probabilities: TypeAlias = Mapping[Any, float]
"""Labels with their probabilities; these need not sum to 1."""

_TIE: Final = 1e-12
"""Relative difference of utilities up to which they are equal; then the first decision is taken."""


@runtime_checkable
class Rule(Protocol):
    """Decides by probabilities."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """Return the decision of the highest expected utility.

        Raises:
            ValueError: there are no probabilities, one is negative or no number, all are zero, or the labels are not of
                the kind that the rule is about.
        """


@final
@dataclass(frozen=True, slots=True)
class MostProbable:
    """The label of the highest probability: best where all errors cost the same.  Of equal ones the first."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``."""
        distribution = _checked_distribution("MostProbable", probabilities)
        return _first_best(distribution, distribution.__getitem__)


@final
@dataclass(frozen=True, slots=True)
class LeastCost:
    """The decision of the least expected cost.

    Attributes:
        cost: of a decision where a label is right.
        decisions: what may be decided; None is the labels themselves.  Others are possible, as to leave a case open.

    Raises:
        ValueError: ``decisions`` is empty.

    Complexity: O(decisions times labels).
    """

    cost: Callable[[Any, Any], float]
    decisions: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.decisions is not None and not len(self.decisions):
            raise ValueError("LeastCost: there must be a decision; found none")

    @classmethod
    def of(cls, costs: Mapping[Any, Mapping[Any, float]]) -> LeastCost:
        """Make the rule from a table: for each decision the cost by the right label."""
        return cls(lambda decision, label: costs[decision][label], tuple(costs))

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``; of equally cheap decisions the first."""
        distribution = _checked_distribution("LeastCost", probabilities)

        def utility(decision: Any) -> float:
            costs = [float(self.cost(decision, label)) for label in distribution]
            if any(map(math.isnan, costs)):
                raise ValueError(f"LeastCost: the cost of {decision!r} is no number")
            # What is impossible costs nothing, even if its cost is infinite.
            return -math.fsum(p * cost for p, cost in zip(distribution.values(), costs, strict=True) if p)

        return _first_best(distribution if self.decisions is None else self.decisions, utility)


@final
@dataclass(frozen=True, slots=True)
class Quantile:
    """The least label such that it and all below have at least ``level`` of the probability; labels are numbers.

    At 0.5, the median, the expected absolute error is least; at another level the error that counts ``level`` for each
    unit below the truth and ``1 - level`` for each above.

    Attributes:
        level: in (0, 1).

    Raises:
        ValueError: ``level`` is out of range.
    """

    level: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"Quantile: level must be in (0, 1); found {self.level!r}")

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``."""
        distribution = _numbers("Quantile", probabilities)
        ordered = sorted(distribution)
        below: list[float] = []
        for label in ordered:
            below.append(distribution[label])
            if math.fsum(below) >= self.level * (1 - _TIE):
                return label
        return ordered[-1]


@final
@dataclass(frozen=True, slots=True)
class NearestMean:
    """The label nearest to the mean: the least expected squared error; labels are numbers.  Of equal ones the lower."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``."""
        distribution = _numbers("NearestMean", probabilities)
        mean = math.fsum(p * float(label) for label, p in distribution.items())
        return _first_best(sorted(distribution), lambda label: -((float(label) - mean) ** 2))


@final
@dataclass(frozen=True, slots=True)
class FBeta:
    """The set of labels with the highest expected F-beta, where one label is right.

    ``F = (1 + beta^2) [the label is in the set] / (beta^2 + size of the set)``.  For each size the most probable labels
    are best, so as many sets as there are labels are compared.

    Attributes:
        beta: how much more it counts to have the label than to have no others.

    Raises:
        ValueError: ``beta`` is not positive and finite.

    Complexity: O(labels log labels).
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        _check_beta("FBeta", self.beta)

    def decide(self, probabilities: Probabilities, /) -> frozenset[Any]:
        """See ``Rule``; of equal sets the smallest, and of equal labels the first."""
        distribution = _checked_distribution("FBeta", probabilities)
        ordered = sorted(distribution, key=lambda label: -distribution[label])

        def utility(size: int) -> float:
            return math.fsum(distribution[label] for label in ordered[:size]) / (self.beta**2 + size)

        return frozenset(ordered[: _first_best(range(1, len(ordered) + 1), utility)])


@final
@dataclass(frozen=True, slots=True)
class HierarchicalFBeta:
    """A node of a tree of labels, or a set of them, with the highest expected hierarchical F-beta.

    A node stands for itself and all above it.  With ``h`` what the decision stands for and ``y`` what the right label
    stands for, ``hF = (1 + beta^2) |h and y| / (beta^2 |y| + |h|)``.  So where the model is in doubt between two
    labels, what they have in common may be the best answer.

    Attributes:
        parents: of nodes; what has no parent is at the top.  (A root that all labels share is best left out.)
        beta: how much more it counts to name what is right than to name nothing else.
        single: whether to decide for one node, any of the tree; else for the best of all sets of nodes that have with a
            node all above it.

    Raises:
        ValueError: ``beta`` is not positive and finite, or ``parents`` has a cycle.

    Complexity: O(nodes times labels) for a node, O(nodes squared times labels) for a set.
    """

    parents: Mapping[Any, Any]
    beta: float = 1.0
    single: bool = True

    def __post_init__(self) -> None:
        _check_beta("HierarchicalFBeta", self.beta)
        for node in self.parents:
            ancestors(self.parents, node)

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``: a node, or a frozenset of nodes; of equal ones the higher, then the first."""
        distribution = _checked_distribution("HierarchicalFBeta", probabilities)
        above = {label: ancestors(self.parents, label) for label in distribution}
        nodes = self._nodes(distribution)
        if self.single:
            chains = {node: frozenset(ancestors(self.parents, node)) for node in nodes}
            higher_first = sorted(nodes, key=lambda node: len(chains[node]))
            return _first_best(higher_first, lambda node: self._expected(chains[node], distribution, above))
        return self._best_set(nodes, distribution, above)

    def _nodes(self, labels: Iterable[Any]) -> list[Any]:
        """All nodes, in the order in which they are named: labels first."""
        return list(dict.fromkeys([*labels, *self.parents, *self.parents.values()]))

    def _expected(
        self, stands_for: frozenset[Any], distribution: Probabilities, above: Mapping[Any, tuple[Any, ...]]
    ) -> float:
        return math.fsum(
            p * len(stands_for.intersection(above[label])) / (self.beta**2 * len(above[label]) + len(stands_for))
            for label, p in distribution.items()
        )

    def _best_set(
        self, nodes: Sequence[Any], distribution: Probabilities, above: Mapping[Any, tuple[Any, ...]]
    ) -> frozenset[Any]:
        """For a given size the utility is a sum over nodes, and no node is worth more than one above it."""
        depth = {node: len(ancestors(self.parents, node)) for node in nodes}
        sets: list[frozenset[Any]] = []
        for size in range(1, len(nodes) + 1):
            worth = dict.fromkeys(nodes, 0.0)
            for label, p in distribution.items():
                for node in above[label]:
                    worth[node] += p / (self.beta**2 * len(above[label]) + size)
            sets.append(self._closed(sorted(nodes, key=lambda node: (-worth[node], depth[node]))[:size]))
        return _first_best(sets, lambda each: self._expected(each, distribution, above))  # type: ignore[no-any-return]

    def _closed(self, nodes: Iterable[Any]) -> frozenset[Any]:
        """The nodes with all above them, which are among them but for rounding."""
        return frozenset(each for node in nodes for each in ancestors(self.parents, node))


def ancestors(parents: Mapping[Any, Any], node: Hashable) -> tuple[Any, ...]:
    """Return a node and all above it, from below.

    Raises:
        ValueError: they go round in a circle.
    """
    chain = [node]
    seen = {node}
    while chain[-1] in parents:
        parent = parents[chain[-1]]
        if parent in seen:
            raise ValueError(f"parents: {parent!r} is above itself")
        chain.append(parent)
        seen.add(parent)
    return tuple(chain)


def _first_best(decisions: Iterable[Any], utility: Callable[[Any], float]) -> Any:
    """The first decision whose utility none exceeds by more than rounding."""
    scored = [(utility(decision), decision) for decision in decisions]
    best = max(score for score, _ in scored)
    least = best - _TIE * abs(best) if math.isfinite(best) else best
    return next(decision for score, decision in scored if score >= least)


def _checked_distribution(owner: str, probabilities: Probabilities) -> dict[Any, float]:
    """The probabilities, made to sum to 1."""
    distribution = {label: float(p) for label, p in probabilities.items()}
    total = math.fsum(distribution.values())
    if any(not 0 <= p < math.inf for p in distribution.values()) or not 0 < total < math.inf:
        raise ValueError(f"{owner}: probabilities must be numbers of at least 0, not all 0; found {probabilities!r}")
    return {label: p / total for label, p in distribution.items()}


def _numbers(owner: str, probabilities: Probabilities) -> dict[Any, float]:
    distribution = _checked_distribution(owner, probabilities)
    wrong = next((label for label in distribution if not _is_number(label)), None)
    if wrong is not None:
        raise ValueError(f"{owner}: labels must be finite numbers; found {wrong!r}; turn labels into numbers first")
    return distribution


def _is_number(label: Any) -> bool:
    return isinstance(label, (int, float)) and math.isfinite(label)


def _check_beta(owner: str, beta: float) -> None:
    if not (math.isfinite(beta) and beta > 0):
        raise ValueError(f"{owner}: beta must be positive and finite; found {beta!r}")
