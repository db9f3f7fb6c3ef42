"""Every outcome of samplers that grow sequences token by token (``SMC``, ``BestOf``), with its probability.

Schemes of resampling run as they are: their uniform numbers are enumerated as intervals on which the indices do not
change, each by its midpoint and with its length as the probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from toy_outputs import Toy
from trie_walk_outcomes import Branching

from structgen.decode.sampling import Samples, SequenceSampler, proposal
from structgen.decode.step import without_replacement

_ROUNDING = 1e-13


class Uniform(float):
    """A uniform number that is only compared with a bound; ``branching`` decides the answer."""

    branching: Branching

    def __lt__(self, bound: float) -> bool:
        return self.branching.choose(np.array([min(bound, 1.0), max(1 - bound, 0.0)])) == 0


class EnumeratedNumbers:
    """Stands in for a generator: uniform numbers are those that were prepared, or undecided."""

    def __init__(self, branching: Branching) -> None:
        self.branching = branching
        self.prepared: list[float] = []

    def random(self, count: int | None = None) -> Any:
        if count is not None:
            return np.array([self.prepared.pop(0) for _ in range(count)])
        if self.prepared:
            return self.prepared.pop(0)
        number = Uniform(0.5)
        number.branching = self.branching
        return number

    def choice(self, values: np.ndarray, count: int) -> np.ndarray:
        """Ancestors affect standard errors alone."""
        return values[:count]


def runs_of_particles(toy: Toy, sampler: SequenceSampler) -> Iterator[tuple[float, Samples]]:
    """All outcomes of whole runs; the probabilities sum to 1, up to rounding."""
    scripts: list[list[int]] = [[]]
    real = dict(proposal.RESAMPLING)
    with pytest.MonkeyPatch.context() as patch:
        while scripts:
            branching = Branching(scripts.pop())
            numbers: Any = EnumeratedNumbers(branching)
            for scheme, function in real.items():
                patch.setitem(proposal.RESAMPLING, scheme, _enumerated(scheme, function))
            patch.setattr(
                without_replacement, "index_at", lambda weights, blocks, uniform, b=branching: b.choose(weights)
            )
            patch.setattr(
                without_replacement,
                "sample_misses",
                lambda left, limit, generator, b=branching: _misses(left, limit, b),
            )
            with toy.branches() as branches:
                found = sampler.run(branches, numbers)
            yield branching.probability, found
            scripts += branching.others


def _misses(left: float, limit: float, branching: Branching) -> float:
    """A geometric number of misses; ``limit`` must be finite, or there would be no end of outcomes."""
    assert limit < math.inf
    fewer = [(1 - left) ** count * left for count in range(int(limit))]
    return branching.choose(np.array([*fewer, (1 - left) ** int(limit)]))


def _enumerated(scheme: str, function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def resampled(weights: np.ndarray, count: int, numbers: EnumeratedNumbers) -> np.ndarray:
        for breaks in _breaks(scheme, weights, count):
            inside = sorted({float(at) for at in breaks if _ROUNDING < at < 1 - _ROUNDING})
            edges = np.array([0.0, *inside, 1.0])
            piece = numbers.branching.choose(np.diff(edges))
            numbers.prepared.append(float(edges[piece] + edges[piece + 1]) / 2)
        return function(weights, count, numbers)

    return resampled


def _breaks(scheme: str, weights: np.ndarray, count: int) -> list[np.ndarray]:
    """For each uniform number of a scheme, where an index changes."""
    sums = np.cumsum(weights) / weights.sum()
    match scheme:
        case "multinomial":
            return [sums] * count
        case "stratified":
            return [count * sums - stratum for stratum in range(count)]
        case "systematic":
            return [np.concatenate([count * sums - stratum for stratum in range(count)])]
        case _:
            floors = np.floor(weights * count)
            residual = weights * count - floors
            rest = count - int(floors.sum())
            return list(itertools.repeat(np.cumsum(residual) / max(residual.sum(), 1e-300), max(rest, 0)))
