"""What strategies do at a branch: look at what may come next, choose among it, and take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from structgen.decode.projection import log_mass
from structgen.decode.sampling.law import descending

if TYPE_CHECKING:
    from structgen.decode.sampler import Sampler
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.decode.sampling.law import Law

__all__ = ["best", "draw", "look", "take"]


def look(branches: Branches, live: Sequence[Branch]) -> list[Law]:
    """Return the laws of branches that are not finished, whose forward passes are run together.

    Raises:
        GenerationError: the logits are not usable, or a potential is not.
    """
    rows = branches.logits(live)
    return [branches.law(branch, row) for branch, row in zip(live, rows, strict=True)]


def take(branches: Branches, branch: Branch, law: Law, indices: Sequence[int]) -> list[Branch]:
    """Go on with each of several choices; ``branch`` is used up.  What potentials forbid is left out."""
    children = branches.take(branch, law, indices)
    for child in children:
        if child.score == -np.inf:
            branches.drop(child)
    return [child for child in children if child.score > -np.inf]


def best(branches: Branches, branch: Branch, law: Law, count: int) -> list[int]:
    """The indices of the most probable choices that potentials admit, the most probable first.

    Of equally probable ones those with the lowest ids come first.
    """
    found: list[int] = []
    log_q = law.log_q
    for index in descending(log_q, count):
        if len(found) == count or log_q[index] == -np.inf:
            break
        if branches.admits(branch, int(law.ids[index])):
            found.append(index)
    return found


def draw(branches: Branches, branch: Branch, law: Law, sampler: Sampler, generator: np.random.Generator) -> int | None:
    """Draw a choice that potentials admit; None where there is none.

    What is drawn and not admitted is left out and the rest renormalised, so that the law is the sampler's on the
    admitted choices where the sampler leaves them as they are.
    """
    log_q = law.log_q
    while len(log_q) and log_q.max() > -np.inf:
        possible = np.flatnonzero(log_q > -np.inf)
        index = int(possible[0]) if len(possible) == 1 else sampler.draw(log_q, generator)
        if branches.admits(branch, int(law.ids[index])):
            return index
        log_q = log_q.copy()
        log_q[index] = -np.inf
        mass = log_mass(log_q)
        if mass > -np.inf:
            log_q -= mass
    return None
