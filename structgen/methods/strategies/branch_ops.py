"""What strategies do at a branch: look ahead, choose, take a token, end a piece, roll out, and return the outcome.

Continuations that are sampled side by side and have the same tokens are one branch.
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
    "Judge",
    "Rollout",
    "at_least",
    "best",
    "chosen",
    "judged",
    "look",
    "next_token",
    "outcome",
    "roll",
    "sample_choice",
    "take",
    "total",
]


def look(branches: Branches, live: Sequence[Branch]) -> list[Distribution]:
    """Return the distributions of branches that are not finished, whose forward passes are run together.

    Raises:
        GenerationError: the logits are not usable, or a potential is not.
    """
    rows = branches.logits(live)
    return [branches.distribution(branch, row) for branch, row in zip(live, rows, strict=True)]


def take(branches: Branches, branch: Branch, distribution: Distribution, indices: Sequence[int]) -> list[Branch]:
    """Go on with each of several choices; ``branch`` is used up.  What potentials forbid is left out."""
    children = branches.take(branch, distribution, indices)
    for child in children:
        if child.score == -np.inf:
            branches.drop(child)
    return [child for child in children if child.score > -np.inf]


def best(branches: Branches, branch: Branch, distribution: Distribution, count: int) -> list[int]:
    """The indices of the most probable choices that potentials admit, the most probable first.

    Of equally probable ones those with the lowest ids come first.
    """
    found: list[int] = []
    log_q = distribution.log_q
    for index in descending(log_q, count):
        if len(found) == count or log_q[index] == -np.inf:
            break
        if branches.admits(branch, int(distribution.ids[index])):
            found.append(index)
    return found


def sample_choice(
    branches: Branches, branch: Branch, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
) -> int | None:
    """Draw a choice that potentials admit; None where there is none.

    What is drawn and not admitted is left out and the rest renormalised, so that the distribution is the sampler's on
    the admitted choices where the sampler leaves them as they are.
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
    """Where a piece of an output ends: a trial, or a step of a search.  It ends with the output at the latest.

    Attributes:
        marks: characters after which a piece ends; ``""`` for none.
        forced: whether it ends where the grammar leaves no choice of what follows, as after the value of a field.
        most: the most tokens of a piece.

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
        """Whether a piece ends after ``branch``; its last ``written`` tokens, at least one, belong to the piece."""
        if branch.finish_reason is not None or written >= self.most:
            return True
        return self._is_marked(branch) or (self.forced and bool(branch.matcher.forced_bytes()))

    def _is_marked(self, branch: Branch) -> bool:
        """Whether the last token completes one of the marks."""
        data, vocabulary = branch.hypothesis.data, branch.hypothesis.vocabulary
        before = len(data) - len(vocabulary.decode(branch.hypothesis.tokens[-1:]))
        return any(mark in data[max(0, before - len(mark) + 1) :] for mark in map(str.encode, self.marks))


Judge: TypeAlias = Callable[[Hypothesis], float]
"""Says what a prefix, or a complete output, is worth."""


def outcome(branches: Branches, ranked: Iterable[tuple[Branch, float]], *, drawn: int = 1) -> Samples:
    """Return finished branches as samples.

    Args:
        branches: of the run.
        ranked: each with the logarithm of its weight, the heaviest first.
        drawn: how many outputs were begun.
    """
    return branches.samples(
        (Sample(branches.result(branch), weight, 1, branch.score) for branch, weight in ranked), particles=drawn
    )


def judged(judge: Judge, hypothesis: Hypothesis, *, what: str) -> float:
    """Ask a user's function.

    Raises:
        GenerationError: it raised an error, or its answer is no score.
    """
    shown = f"for {hypothesis!r}"
    try:
        score = float(judge(hypothesis))
    except StructgenError:
        raise
    except Exception as error:
        raise GenerationError(
            what, f"it raised {type(error).__name__}: {error}", evidence=shown, remedy="make it answer for every output"
        ) from error
    if math.isnan(score) or score == math.inf:
        raise GenerationError(
            what, f"it gives {score}", evidence=shown, remedy="return a finite number, or -inf for what is unwanted"
        )
    return score


def at_least(owner: str, least: float, **values: float) -> None:
    """Check numbers that are given to a strategy.

    Raises:
        ValueError: one is below ``least``, or no number; or no integer where ``least`` is one.
    """
    for name, value in values.items():
        if isinstance(least, int):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{owner}: {name} must be an integer of at least {least}; found {value!r}")
        elif not value >= least:
            raise ValueError(f"{owner}: {name} must be a number of at least {least:g}; found {value!r}")


@final
@dataclass(eq=False, slots=True)
class Rollout:
    """Several equal continuations of one prefix.

    Attributes:
        branch: where they stand.
        count: how many.
        start: ``total`` at the start.
        offset: bytes of the output then.
        steps: tokens since then, the stop included.
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
        """Continuations without tokens."""
        return cls(branch, count, total(branch), len(branch.hypothesis.data), 0, origin)

    @property
    def is_finished(self) -> bool:
        """Whether the output is complete."""
        return self.branch.finish_reason is not None

    @property
    def mean(self) -> float:
        """The mean log-probability of a step, scores of potentials included; 0 where there is none.

        ``exp(-mean)`` is the perplexity.
        """
        return (total(self.branch) - self.start) / self.steps if self.steps else 0.0

    def grown(
        self, branches: Branches, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
    ) -> list[Rollout]:
        """Draw the next token of each; their branch is used up.  Those that cannot go on are left out."""
        drawn = [sample_choice(branches, self.branch, distribution, sampler, generator) for _ in range(self.count)]
        counts = Counter(index for index in drawn if index is not None)
        steps = {distribution.step(index).token: count for index, count in counts.items()}
        grown = []
        for child in take(branches, self.branch, distribution, list(counts)):
            token = None if child.finish_reason is not None else child.hypothesis.tokens[-1]
            grown.append(self.after(child, steps[token]))
        return grown

    def after(self, branch: Branch, count: int) -> Rollout:
        """Return those that went on to ``branch``; an end without EOS is no step."""
        steps = self.steps + int(branch.path is not self.branch.path)
        return Rollout(branch, count, self.start, self.offset, steps, self.origin)


def total(branch: Branch) -> float:
    """The log-probability of a branch with what potentials say of it."""
    return branch.log_p + branch.score


def roll(
    branches: Branches,
    rollouts: Sequence[Rollout],
    *,
    sampler: Sampler,
    generator: np.random.Generator,
    ended: Callable[[Rollout], bool],
) -> list[Rollout]:
    """Draw continuations until each of them has ended, or is finished.

    Args:
        branches: of the run.
        rollouts: at least one token is added to each that is not finished.
        sampler: draws tokens, independently of each other.
        generator: of the random numbers.
        ended: whether one is long enough.

    Returns:
        Those that could go on; equal ones together, those that ended first first.
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
    """Return the one with the highest mean, of equal ones that whose tokens come first in order; drop the others."""
    ordered = sorted(rollouts, key=lambda each: (-each.mean, each.branch.hypothesis.tokens))
    for rollout in ordered[1:]:
        branches.drop(rollout.branch)
    return ordered[0] if ordered else None


def next_token(
    branches: Branches, branch: Branch, distribution: Distribution, sampler: Sampler, generator: np.random.Generator
) -> Branch | None:
    """Add one token to a branch, which is used up; None where potentials forbid everything."""
    index = sample_choice(branches, branch, distribution, sampler, generator)
    children = take(branches, branch, distribution, [] if index is None else [index])
    return children[0] if children else None
