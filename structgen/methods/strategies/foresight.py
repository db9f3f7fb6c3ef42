"""Search by steps, each scored by rollouts.

Source: F. Xu et al., "phi-Decoding: Adaptive Foresight Sampling for Balanced Inference-Time Exploration and
Exploitation" (ACL 2025, arXiv 2503.13288). Deviations: steps end at boundaries of the grammar, equal steps are one, and
texts are clustered by common character trigrams, not by TF-IDF and k-means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.sampler import Greedy, Multinomial, Sampler
from structgen.methods.strategies.branch_ops import Boundary, Rollout, at_least, outcome, roll, total

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Samples

__all__ = ["Clusters", "Foresight", "Valued", "alike", "step_weights"]

Clusters: TypeAlias = Callable[[Sequence[str]], Sequence[Hashable]]
"""Returns a cluster label for each of several texts."""

_GROUP: Final = 3
_WORST: Final = -1e6


class Valued(NamedTuple):
    """The inputs for choosing a step.

    Attributes:
        samples: how many equal steps were sampled.
        advantage: the mean log-probability of the foreseen continuation minus that of the step before.
        cluster: of the text of the step and its foreseen continuation.
    """

    samples: int
    advantage: float
    cluster: Hashable


@final
@dataclass(eq=False, slots=True)
class _Beam:
    """A prefix, and the mean log-probability of its foreseen continuation when it was chosen."""

    branch: Branch
    value: float


@final
@dataclass(frozen=True, slots=True)
class Foresight:
    """Beam search by steps, with a look-ahead from each: phi-decoding.

    From each prefix several steps are sampled, up to a boundary. Steps whose mean log-probability is far below that of
    the others are dropped. The rest are continued greedily for a while. A step is then chosen with a probability
    proportional to

        softmax(advantage / temperature) + softmax(share of its cluster / temperature)

    where the advantage is the mean log-probability of the continuation minus that of the step before, and a cluster
    contains the steps that lead to similar texts. If most steps are in one cluster, the search ends and the chosen
    prefixes are completed greedily. ``log_weight`` of a sample is the mean log-probability of its tokens.

    Attributes:
        beams: the number of prefixes.
        rollouts: the number of steps sampled from each.
        ahead: tokens of a look-ahead.
        boundary: where a step ends.
        temperature: see above.
        width: steps more than this many standard deviations below the mean are dropped; infinity keeps all.
        agreement: the search ends if a cluster has at least this share of the steps; above 1 never.
        clusters: clusters the texts; ``alike`` by default.
        sampler: samples the tokens of steps.

    Raises:
        ValueError: a number is out of range.
    """

    beams: int = 4
    rollouts: int = 4
    ahead: int = 16
    boundary: Boundary = field(default_factory=Boundary)
    temperature: float = 0.6
    width: float = 1.0
    agreement: float = 0.8
    clusters: Clusters = field(default_factory=lambda: alike)
    sampler: Sampler = field(default_factory=Multinomial)

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "no closed-form distribution: steps chosen by their foreseen continuations"

    def __post_init__(self) -> None:
        at_least("Foresight", 1, beams=self.beams, rollouts=self.rollouts, ahead=self.ahead)
        at_least("Foresight", 0.0, width=self.width, agreement=self.agreement)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"Foresight: temperature must be positive and finite; found {self.temperature!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``."""
        live = [_Beam(branches.root(), 0.0)]
        finished: list[Branch] = []
        while live and len(finished) < self.beams:
            chosen, agrees = self._step(branches, live, self.beams - len(finished), generator)
            finished += [beam.branch for beam in chosen if beam.branch.finish_reason is not None]
            live = [beam for beam in chosen if beam.branch.finish_reason is None]
            if agrees:
                starts = [Rollout.of(beam.branch) for beam in live]
                ends = roll(branches, starts, sampler=Greedy(), generator=generator, ended=lambda _: False)
                finished, live = [*finished, *(rollout.branch for rollout in ends)], []
        scored = ((branch, total(branch) / max(1, len(branch.steps()))) for branch in finished)
        ranked = sorted(scored, key=lambda each: (-each[1], _tokens(each[0])))
        return outcome(branches, ranked, particles=self.beams)

    def _step(
        self, branches: Branches, live: Sequence[_Beam], width: int, generator: np.random.Generator
    ) -> tuple[list[_Beam], bool]:
        """Choose the next steps; also return whether most of them lead to similar texts."""
        sampled = roll(
            branches,
            [Rollout.of(beam.branch, self.rollouts, origin) for origin, beam in enumerate(live)],
            sampler=self.sampler,
            generator=generator,
            ended=lambda step: self.boundary.ends(step.branch, step.steps),
        )
        steps = self._likely(branches, sorted(sampled, key=lambda step: (step.origin, _tokens(step.branch))))
        if not steps:
            return [], False
        values, texts = self._futures(branches, live, steps, generator)
        valued = [
            Valued(step.count, value - max(live[step.origin].value, _WORST), cluster)
            for step, value, cluster in zip(steps, values, self.clusters(texts), strict=True)
        ]
        weights = step_weights(valued, self.temperature)
        # A weight may be rounded to 0, and such steps cannot be sampled.
        size = min(width, int(np.count_nonzero(weights)))
        chosen = generator.choice(len(steps), size=size, replace=False, p=weights).tolist()
        for index, step in enumerate(steps):
            if index not in chosen:
                branches.drop(step.branch)
        beams = [_Beam(steps[index].branch, values[index]) for index in chosen]
        return beams, max(_shares(valued)) >= self.agreement

    def _likely(self, branches: Branches, steps: Sequence[Rollout]) -> list[Rollout]:
        """Drop the steps that are far less probable than the others."""
        if not steps:
            return []
        means = np.array([step.mean for step in steps])
        counts = np.array([step.count for step in steps])
        middle = float(np.average(means, weights=counts))
        spread = math.sqrt(float(np.average((means - middle) ** 2, weights=counts)))
        limit = -math.inf if self.width == math.inf else min(middle - self.width * spread, float(means.max()))
        likely = [step for step, mean in zip(steps, means, strict=True) if mean >= limit]
        for step in steps:
            if step not in likely:
                branches.drop(step.branch)
        return likely

    def _futures(
        self, branches: Branches, live: Sequence[_Beam], steps: Sequence[Rollout], generator: np.random.Generator
    ) -> tuple[list[float], list[str]]:
        """The mean log-probability of each step's foreseen continuation, and the text of both.

        A step that completes the output is its own continuation; a step without an allowed continuation gets minus
        infinity.
        """
        unfinished = [index for index, step in enumerate(steps) if not step.is_finished]
        branches.logits([steps[index].branch for index in unfinished])
        futures = roll(
            branches,
            [Rollout.of(branches.copy(steps[index].branch), 1, index) for index in unfinished],
            sampler=Greedy(),
            generator=generator,
            ended=lambda future: future.steps >= self.ahead,
        )
        values = [step.mean if step.is_finished else -math.inf for step in steps]
        ends = [step.branch.hypothesis for step in steps]
        for future in futures:
            # If the output ends without EOS, nothing is added, and the step is its own continuation.
            values[future.origin] = future.mean if future.steps else steps[future.origin].mean
            ends[future.origin] = future.branch.hypothesis
            branches.drop(future.branch)
        texts = [end.data[step.offset :].decode("utf-8", "replace") for end, step in zip(ends, steps, strict=True)]
        return values, texts


def step_weights(steps: Sequence[Valued], temperature: float) -> NDArray[np.float64]:
    """The probability of each step to be chosen first, see ``Foresight``; a step counts as often as it was sampled."""
    counts = np.array([step.samples for step in steps], dtype=np.float64)
    advantages = np.array([step.advantage for step in steps])
    total_weight = _softmax(advantages, counts, temperature) + _softmax(np.array(_shares(steps)), counts, temperature)
    weights: NDArray[np.float64] = np.where(advantages > -np.inf, total_weight, 0.0)
    if not weights.any():
        weights = counts
    weights /= weights.sum()
    return weights


def alike(texts: Sequence[str], *, similarity: float = 0.5) -> list[int]:
    """Cluster texts by single linkage: similar texts share at least half of their character trigrams.

    Complexity: O(texts squared times their length).
    """
    groups = [{text[at : at + _GROUP] for at in range(max(1, len(text) - _GROUP + 1))} for text in texts]
    cluster = list(range(len(texts)))
    for one in range(len(texts)):
        for other in range(one):
            union = len(groups[one] | groups[other])
            if cluster[one] != cluster[other] and len(groups[one] & groups[other]) >= similarity * union:
                old, new = max(cluster[one], cluster[other]), min(cluster[one], cluster[other])
                cluster = [new if each == old else each for each in cluster]
    return cluster


def _shares(steps: Sequence[Valued]) -> list[float]:
    """The share of each step's cluster."""
    sizes: Counter[Hashable] = Counter()
    for step in steps:
        sizes[step.cluster] += step.samples
    return [sizes[step.cluster] / sizes.total() for step in steps]


def _softmax(values: NDArray[np.float64], counts: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    top = values.max()
    if top == -np.inf:
        return np.zeros_like(values)
    weights: NDArray[np.float64] = counts * np.exp((values - top) / temperature)
    weights /= weights.sum()
    return weights


def _tokens(branch: Branch) -> tuple[int, ...]:
    return branch.hypothesis.tokens
