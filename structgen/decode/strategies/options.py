"""What may follow a beginning, and how strategies take it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import log_mass
from structgen.decode.result import Step

if TYPE_CHECKING:
    from structgen.decode.sampler import Sampler
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.models.protocol import Logits

__all__ = ["Options", "best", "draw", "look", "take"]


@final
@dataclass(frozen=True, slots=True)
class Options:
    """What may come next; stopping is one option, with whichever of several EOS ids it may be written.

    Attributes:
        ids: tokens, ascending, ``[n]``; one EOS id among them where the output may stop.
        log_p: their log-probabilities under the model, normalised over the whole vocabulary, ``[n]``.
        log_q: the same among these options, with what potentials tell of all tokens at once, normalised, ``[n]``.
        log_z: log of the probability that the model gives to all of them together.
        stop: the index of the stop; -1 where the output may not stop.
    """

    ids: NDArray[np.intp]
    log_p: NDArray[np.float64]
    log_q: NDArray[np.float64]
    log_z: float
    stop: int

    @classmethod
    def after(cls, branches: Branches, branch: Branch, logits: Logits) -> Self:
        """The options of a branch, after which the model says ``logits``.

        Raises:
            GenerationError: the logits are not usable, or a potential is not.
        """
        law = branches.law(branch, logits)
        ids, log_p, log_q = law.ids, law.log_p, law.log_q
        ends = np.flatnonzero(np.isin(ids, list(branches.stops)))
        if len(ends) > 1:
            log_p, log_q = log_p.copy(), log_q.copy()
            log_p[ends[0]], log_q[ends[0]] = log_mass(log_p[ends]), log_mass(log_q[ends])
            ids, log_p, log_q = np.delete(ids, ends[1:]), np.delete(log_p, ends[1:]), np.delete(log_q, ends[1:])
        stop = int(ends[0]) if len(ends) else -1
        if law.log_z > -np.inf:
            log_q = log_q - law.log_z
        return cls(ids, log_p, log_q, log_mass(log_p) if len(ids) else -np.inf, stop)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def entropy(self) -> float:
        """Of ``log_q``, in nats; 0 where there is no choice."""
        possible = self.log_q[self.log_q > -np.inf]
        return max(0.0, float(-(np.exp(possible) * possible).sum()))

    def step(self, index: int) -> Step:
        """Return what the option at an index adds to an output."""
        token = None if index == self.stop else int(self.ids[index])
        return Step(token, len(self.ids) == 1, float(self.log_p[index]) - self.log_z, self.log_z)


def look(branches: Branches, live: Sequence[Branch]) -> list[Options]:
    """Return the options of branches that are not finished, whose forward passes are run together."""
    rows = branches.logits(live)
    return [Options.after(branches, branch, row) for branch, row in zip(live, rows, strict=True)]


def take(branches: Branches, branch: Branch, options: Options, indices: Sequence[int]) -> list[Branch]:
    """Go on with each of several options; ``branch`` is used up.

    Without options it ends, where it may: only without EOS.  What potentials forbid is left out.
    """
    if not len(options):
        children = [branches.finish(branch)] if branches.ends_here(branch) else []
        branches.drop(branch)
    elif not len(indices):
        children = []
        branches.drop(branch)
    else:
        steps = [options.step(index) for index in indices]
        children = branches.split(branch, steps, [float(options.log_p[index]) for index in indices])
    for child in children:
        if child.score == -np.inf:
            branches.drop(child)
    return [child for child in children if child.score > -np.inf]


def best(branches: Branches, branch: Branch, options: Options, count: int) -> list[int]:
    """The indices of the most probable options that potentials admit, the most probable first.

    Of equally probable ones those with the lowest ids come first.
    """
    found: list[int] = []
    for index in np.argsort(-options.log_q, kind="stable").tolist():
        if len(found) == count or options.log_q[index] == -np.inf:
            break
        if branches.admits(branch, int(options.ids[index])):
            found.append(index)
    return found


def draw(
    branches: Branches, branch: Branch, options: Options, sampler: Sampler, generator: np.random.Generator
) -> int | None:
    """Draw an option that potentials admit; None where there is none.

    What is drawn and not admitted is left out and the rest renormalised, so that the law is the sampler's on the
    admitted options where the sampler leaves them as they are.
    """
    log_q = options.log_q
    while len(log_q) and log_q.max() > -np.inf:
        possible = np.flatnonzero(log_q > -np.inf)
        index = int(possible[0]) if len(possible) == 1 else sampler.draw(log_q, generator)
        if branches.admits(branch, int(options.ids[index])):
            return index
        log_q = log_q.copy()
        log_q[index] = -np.inf
        mass = log_mass(log_q)
        if mass > -np.inf:
            log_q -= mass
    return None
