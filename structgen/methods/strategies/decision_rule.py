"""Decision rules: the label to answer, given the probabilities of labels and the cost of errors.

The most probable label is optimal only if all errors cost the same. Each rule takes probabilities of labels (from
``label_distribution``, a field's marginals, or any classifier) and returns the decision of the highest expected utility
among all possible decisions.

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
"""Labels with their probabilities, which need not sum to 1."""

_TIE: Final = 1e-12
"""Relative difference up to which utilities count as equal; the first of equal decisions is taken."""


@runtime_checkable
class Rule(Protocol):
    """Decides on the basis of probabilities."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """Return the decision of the highest expected utility.

        Raises:
            ValueError: there are no probabilities, one is negative or NaN, all are zero, or the labels are of a wrong
                kind for the rule.
        """


@final
@dataclass(frozen=True, slots=True)
class MostProbable:
    """The label of the highest probability, optimal if all errors cost the same; of equal ones the first."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``."""
        distribution = _checked_distribution("MostProbable", probabilities)
        return _first_best(distribution, distribution.__getitem__)


@final
@dataclass(frozen=True, slots=True)
class LeastCost:
    """The decision of the lowest expected cost.

    Attributes:
        cost: of a decision, given the right label.
        decisions: the possible decisions, which need not be labels, such as to leave a case open; None for the labels.

    Raises:
        ValueError: ``decisions`` is empty.

    Complexity: O(decisions times labels).
    """

    cost: Callable[[Any, Any], float]
    decisions: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        if self.decisions is not None and not len(self.decisions):
            raise ValueError("LeastCost: decisions is empty; pass at least one")

    @classmethod
    def of(cls, costs: Mapping[Any, Mapping[Any, float]]) -> LeastCost:
        """Make the rule from a table: for each decision the cost by the right label."""
        return cls(lambda decision, label: costs[decision][label], tuple(costs))

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``; of decisions of equal cost the first."""
        distribution = _checked_distribution("LeastCost", probabilities)

        def utility(decision: Any) -> float:
            costs = [float(self.cost(decision, label)) for label in distribution]
            if any(map(math.isnan, costs)):
                raise ValueError(f"LeastCost: the cost of {decision!r} is NaN")
            # An impossible label costs nothing, even if its cost is infinite.
            return -math.fsum(p * cost for p, cost in zip(distribution.values(), costs, strict=True) if p)

        return _first_best(distribution if self.decisions is None else self.decisions, utility)


@final
@dataclass(frozen=True, slots=True)
class Quantile:
    """The smallest label whose cumulative probability is at least ``level``; labels are numbers.

    At 0.5, the median, it minimises the expected absolute error; at another level the error that weighs each unit below
    the truth by ``level`` and each above by ``1 - level``.

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
    """The label nearest to the mean, of the lowest expected squared error; labels are numbers. Ties go to the lower."""

    def decide(self, probabilities: Probabilities, /) -> Any:
        """See ``Rule``."""
        distribution = _numbers("NearestMean", probabilities)
        mean = math.fsum(p * float(label) for label, p in distribution.items())
        return _first_best(sorted(distribution), lambda label: -((float(label) - mean) ** 2))


@final
@dataclass(frozen=True, slots=True)
class FBeta:
    """The set of labels with the highest expected F-beta, if exactly one label is right.

    ``F = (1 + beta^2) [the label is in the set] / (beta^2 + size of the set)``. For each size the most probable labels
    are optimal, so only one set for each size is compared.

    Attributes:
        beta: the weight of containing the right label relative to containing no others.

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
    """A node of a tree of labels, or a set of nodes, with the highest expected hierarchical F-beta.

    A node represents itself and its ancestors. With ``h`` the nodes that the decision represents and ``y`` those of the
    right label, ``hF = (1 + beta^2) |h and y| / (beta^2 |y| + |h|)``. So if the model is uncertain between two labels,
    their common ancestor may be the best answer.

    Attributes:
        parents: the parent of each node; a node without one is at the top. (Leave out a root that all labels share.)
        beta: the weight of containing the right nodes relative to containing no others.
        single: whether to decide for one node; otherwise for the best of all sets that are closed under ancestors.

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
        """All nodes in the order of their first mention, labels first."""
        return list(dict.fromkeys([*labels, *self.parents, *self.parents.values()]))

    def _expected(
        self, decided: frozenset[Any], distribution: Probabilities, above: Mapping[Any, tuple[Any, ...]]
    ) -> float:
        return math.fsum(
            p * len(decided.intersection(above[label])) / (self.beta**2 * len(above[label]) + len(decided))
            for label, p in distribution.items()
        )

    def _best_set(
        self, nodes: Sequence[Any], distribution: Probabilities, above: Mapping[Any, tuple[Any, ...]]
    ) -> frozenset[Any]:
        """For each size, the utility is a sum over nodes, in which no node exceeds its ancestors."""
        depth = {node: len(ancestors(self.parents, node)) for node in nodes}
        sets: list[frozenset[Any]] = []
        for size in range(1, len(nodes) + 1):
            value = dict.fromkeys(nodes, 0.0)
            for label, p in distribution.items():
                for node in above[label]:
                    value[node] += p / (self.beta**2 * len(above[label]) + size)
            sets.append(self._closed(sorted(nodes, key=lambda node: (-value[node], depth[node]))[:size]))
        return _first_best(sets, lambda each: self._expected(each, distribution, above))  # type: ignore[no-any-return]

    def _closed(self, nodes: Iterable[Any]) -> frozenset[Any]:
        """The nodes with their ancestors, which they include except for rounding."""
        return frozenset(each for node in nodes for each in ancestors(self.parents, node))


def ancestors(parents: Mapping[Any, Any], node: Hashable) -> tuple[Any, ...]:
    """Return a node and its ancestors, bottom up.

    Raises:
        ValueError: the parents have a cycle.
    """
    chain = [node]
    seen = {node}
    while chain[-1] in parents:
        parent = parents[chain[-1]]
        if parent in seen:
            raise ValueError(f"parents: {parent!r} is its own ancestor")
        chain.append(parent)
        seen.add(parent)
    return tuple(chain)


def _first_best(decisions: Iterable[Any], utility: Callable[[Any], float]) -> Any:
    """The first decision with the highest utility, up to rounding."""
    utilities = [(utility(decision), decision) for decision in decisions]
    best = max(value for value, _ in utilities)
    threshold = best - _TIE * abs(best) if math.isfinite(best) else best
    return next(decision for value, decision in utilities if value >= threshold)


def _checked_distribution(owner: str, probabilities: Probabilities) -> dict[Any, float]:
    """The probabilities, normalised."""
    distribution = {label: float(p) for label, p in probabilities.items()}
    total = math.fsum(distribution.values())
    if any(not 0 <= p < math.inf for p in distribution.values()) or not 0 < total < math.inf:
        raise ValueError(f"{owner}: probabilities must be numbers of at least 0, not all 0; found {probabilities!r}")
    return {label: p / total for label, p in distribution.items()}


def _numbers(owner: str, probabilities: Probabilities) -> dict[Any, float]:
    distribution = _checked_distribution(owner, probabilities)
    wrong = next((each for each in distribution if not (isinstance(each, (int, float)) and math.isfinite(each))), None)
    if wrong is not None:
        raise ValueError(f"{owner}: labels must be finite numbers; found {wrong!r}; convert the labels to numbers")
    return distribution


def _check_beta(owner: str, beta: float) -> None:
    if not (math.isfinite(beta) and beta > 0):
        raise ValueError(f"{owner}: beta must be positive and finite; found {beta!r}")
