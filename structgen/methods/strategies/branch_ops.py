"""Operations of strategies on branches: look ahead, choose, take a token, end a segment, roll out, return samples.

Sampled continuations with equal tokens are one branch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias, final

import numpy as np

from structgen.decode.potentials import Hypothesis
from structgen.decode.sampling.protocol import Sample, Samples
from structgen.decode.step.distribution import descending, log_mass
from structgen.errors import GenerationError, StructgenError

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.distribution import Distribution
    from structgen.decode.step.sampler import Sampler

__all__ = [
    "Boundary",
    "Critic",
    "Rollout",
    "at_least",
    "best",
    "chosen",
    "look",
    "next_token",
    "outcome",
    "roll",
    "sample_choice",
    "scored",
    "take",
    "total",
]


def look(branches: Branches, live: Sequence[Branch]) -> list[Distribution]:
    """Return the distributions of unfinished branches; their forward passes run together.

    Raises:
        GenerationError: the logits or a potential's scores are invalid.
    """
    rows = branches.logits(live)
    return [branches.distribution(branch, row) for branch, row in zip(live, rows, strict=True)]


def take(branches: Branches, branch: Branch, distribution: Distribution, indices: Sequence[int]) -> list[Branch]:
    """Extend a branch by each of several choices, and drop those that potentials forbid; ``branch`` is used up."""
    children = branches.take(branch, distribution, indices)
    for child in children:
        if child.score == -np.inf:
            branches.drop(child)
    return [child for child in children if child.score > -np.inf]


def best(branches: Branches, branch: Branch, distribution: Distribution, count: int) -> list[int]:
    """Return the indices of the most probable choices that potentials allow, in descending order, then by token id."""
    indices: list[int] = []
    log_q = distribution.log_q
    for index in descending(log_q, count):
        if len(indices) == count or log_q[index] == -np.inf:
            break
        if branches.admits(branch, int(distribution.ids[index])):
            indices.append(index)
    return indices


def sample_choice(
    branches: Branches, branch: Branch, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
) -> int | None:
    """Sample a choice that potentials allow; None if there is none.

    A choice that a potential refuses is removed and the rest renormalised. If the sampler does not truncate, the result
    has the sampler's distribution restricted to the allowed choices.
    """
    log_q = distribution.log_q
    while len(log_q) and log_q.max() > -np.inf:
        possible = np.flatnonzero(log_q > -np.inf)
        index = int(possible[0]) if len(possible) == 1 else sampler.draw(log_q, generator)
        if branches.admits(branch, int(distribution.ids[index])):
            return index
        log_q = log_q.copy()
        log_q[index] = -np.inf
        mass = log_mass(log_q)
        if mass > -np.inf:
            log_q -= mass
    return None


@final
@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a segment of an output ends: a trial, or a step of a search. It ends with the output at the latest.

    Attributes:
        marks: characters after which a segment ends; ``""`` for none.
        forced: whether it ends where the grammar forces the continuation, as after the value of a field.
        most: the maximal number of tokens of a segment.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    marks: str = ".,;:!?\n"
    forced: bool = True
    most: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"Boundary: most must be an integer of at least 1; found {self.most!r}")

    def ends(self, branch: Branch, written: int) -> bool:
        """Whether a segment ends after ``branch``; its last ``written`` tokens, at least one, are the segment's."""
        if branch.finish_reason is not None or written >= self.most:
            return True
        return self._is_marked(branch) or (self.forced and bool(branch.matcher.forced_bytes()))

    def _is_marked(self, branch: Branch) -> bool:
        """Whether the last token completes one of the marks."""
        data, vocabulary = branch.hypothesis.data, branch.hypothesis.vocabulary
        before = len(data) - len(vocabulary.decode(branch.hypothesis.tokens[-1:]))
        return any(mark in data[max(0, before - len(mark) + 1) :] for mark in map(str.encode, self.marks))


Critic: TypeAlias = Callable[[Hypothesis], float]
"""Scores a prefix or a complete output."""


def outcome(branches: Branches, ranked: Iterable[tuple[Branch, float]], *, particles: int = 1) -> Samples:
    """Return finished branches as samples.

    Args:
        branches: the branches of the run.
        ranked: each with the log of its weight, the heaviest first.
        particles: how many outputs were started.
    """
    return branches.samples(
        (Sample(branches.result(branch), weight, 1, branch.score) for branch, weight in ranked), particles=particles
    )


def scored(critic: Critic, hypothesis: Hypothesis, *, what: str) -> float:
    """Call a user's critic.

    Raises:
        GenerationError: it raised an error, or returned NaN or infinity.
    """
    shown = f"for {hypothesis!r}"
    try:
        score = float(critic(hypothesis))
    except StructgenError:
        raise
    except Exception as error:
        raise GenerationError(
            what, f"it raised {type(error).__name__}: {error}", evidence=shown, remedy="let it score every output"
        ) from error
    if math.isnan(score) or score == math.inf:
        raise GenerationError(
            what, f"it returned {score}", evidence=shown, remedy="return a finite number, or -inf to forbid the output"
        )
    return score


def at_least(owner: str, minimum: float, **values: float) -> None:
    """Check numeric arguments of a strategy.

    Raises:
        ValueError: a value is below ``minimum``, or NaN; or not an integer if ``minimum`` is one.
    """
    for name, value in values.items():
        if isinstance(minimum, int):
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(f"{owner}: {name} must be an integer of at least {minimum}; found {value!r}")
        elif not value >= minimum:
            raise ValueError(f"{owner}: {name} must be a number of at least {minimum:g}; found {value!r}")


@final
@dataclass(eq=False, slots=True)
class Rollout:
    """Several equal continuations of one prefix.

    Attributes:
        branch: their branch.
        count: how many.
        start: ``total`` at the start.
        offset: bytes of the output at the start.
        steps: tokens since the start, EOS included.
        origin: index of the prefix, for the caller.
    """

    branch: Branch
    count: int
    start: float
    offset: int = 0
    steps: int = 0
    origin: int = 0

    @classmethod
    def of(cls, branch: Branch, count: int = 1, origin: int = 0) -> Self:
        """Return continuations without tokens."""
        return cls(branch, count, total(branch), len(branch.hypothesis.data), 0, origin)

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete."""
        return self.branch.finish_reason is not None

    @property
    def mean(self) -> float:
        """The mean log-probability of a step, scores of potentials included; 0 without steps.

        ``exp(-mean)`` is the perplexity.
        """
        return (total(self.branch) - self.start) / self.steps if self.steps else 0.0

    def grown(
        self, branches: Branches, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
    ) -> list[Rollout]:
        """Sample the next token of each; the branch is used up. Continuations that cannot be extended are dropped."""
        indices = [sample_choice(branches, self.branch, distribution, sampler, generator) for _ in range(self.count)]
        counts = Counter(index for index in indices if index is not None)
        steps = {distribution.step(index).token: count for index, count in counts.items()}
        grown = []
        for child in take(branches, self.branch, distribution, list(counts)):
            token = None if child.finish_reason is not None else child.hypothesis.tokens[-1]
            grown.append(self.after(child, steps[token]))
        return grown

    def after(self, branch: Branch, count: int) -> Rollout:
        """Return ``count`` of them after their extension to ``branch``; an end without EOS is not a step."""
        steps = self.steps + int(branch.path is not self.branch.path)
        return Rollout(branch, count, self.start, self.offset, steps, self.origin)


def total(branch: Branch) -> float:
    """The log-probability of a branch plus its score by potentials."""
    return branch.log_p + branch.score


def roll(
    branches: Branches,
    rollouts: Sequence[Rollout],
    *,
    sampler: Sampler,
    generator: np.random.Generator,
    ended: Callable[[Rollout], bool],
) -> list[Rollout]:
    """Sample continuations until each of them has ended or is finished.

    Args:
        branches: the branches of the run.
        rollouts: each that is not finished gets at least one token.
        sampler: samples tokens independently.
        generator: of random numbers.
        ended: whether a continuation is long enough.

    Returns:
        The continuations, equal ones together, in the order in which they ended; those that potentials stopped are
        dropped.
    """
    done = [rollout for rollout in rollouts if rollout.is_finished]
    live = [rollout for rollout in rollouts if not rollout.is_finished]
    while live:
        grown: list[Rollout] = []
        for rollout, distribution in zip(live, look(branches, [each.branch for each in live]), strict=True):
            grown += rollout.grown(branches, distribution, sampler, generator)
        live = []
        for rollout in grown:
            (done if rollout.is_finished or ended(rollout) else live).append(rollout)
    return done


def chosen(branches: Branches, rollouts: Sequence[Rollout]) -> Rollout | None:
    """Return the continuation with the highest mean, of equal ones the first by tokens; drop the others."""
    ordered = sorted(rollouts, key=lambda each: (-each.mean, each.branch.hypothesis.tokens))
    for rollout in ordered[1:]:
        branches.drop(rollout.branch)
    return ordered[0] if ordered else None


def next_token(
    branches: Branches, branch: Branch, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
) -> Branch | None:
    """Extend a branch, which is used up, by one token; None if potentials forbid every token."""
    index = sample_choice(branches, branch, distribution, sampler, generator)
    children = take(branches, branch, distribution, [] if index is None else [index])
    return children[0] if children else None
