"""Continuations that are drawn side by side; those with the same tokens are one branch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from structgen.methods.strategies.branch_ops import look, sample_choice, take

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.distribution import Distribution
    from structgen.decode.step.sampler import Sampler

__all__ = ["Rollout", "chosen", "next_token", "roll", "total"]


@final
@dataclass(eq=False, slots=True)
class Rollout:
    """Several equal continuations of one beginning.

    Attributes:
        branch: where they stand.
        count: how many.
        start: ``total`` at the beginning.
        offset: bytes of the output then.
        steps: tokens since then, the stop included.
        origin: index of the beginning, for the caller.
    """

    branch: Branch
    count: int
    start: float
    offset: int = 0
    steps: int = 0
    origin: int = 0

    @classmethod
    def of(cls, branch: Branch, count: int = 1, origin: int = 0) -> Self:
        """Continuations of which nothing is written."""
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
        self, branches: Branches, law: Distribution, sampler: Sampler, generator: np.random.Generator
    ) -> list[Rollout]:
        """Draw the next token of each; their branch is used up.  Those that cannot go on are left out."""
        drawn = [sample_choice(branches, self.branch, law, sampler, generator) for _ in range(self.count)]
        counts = Counter(index for index in drawn if index is not None)
        steps = {law.step(index).token: count for index, count in counts.items()}
        grown = []
        for child in take(branches, self.branch, law, list(counts)):
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
        for rollout, law in zip(live, look(branches, [each.branch for each in live]), strict=True):
            grown += rollout.grown(branches, law, sampler, generator)
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
    branches: Branches, branch: Branch, law: Distribution, sampler: Sampler, generator: np.random.Generator
) -> Branch | None:
    """Add one token to a branch, which is used up; None where potentials forbid everything."""
    index = sample_choice(branches, branch, law, sampler, generator)
    children = take(branches, branch, law, [] if index is None else [index])
    return children[0] if children else None
