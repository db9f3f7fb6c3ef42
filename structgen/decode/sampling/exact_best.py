"""The most probable output of all, with proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.sampling.best_first import BestFirst
from structgen.decode.sampling.samples import Sample, Samples

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branches import Branches

__all__ = ["ExactBest"]


@final
@dataclass(frozen=True, slots=True)
class ExactBest:
    """The most probable outputs of all, by best-first search.

    A beginning is never less probable than what it leads to, so an output that comes up before every beginning that is
    left is the most probable of those that are left.  What cannot be completed within the budget is never looked at.
    Only languages that are small, or of which the model is sure, are searched through: the work grows with the number
    of beginnings that are as probable as the output.

    ``Sample.score`` is the log-probability of an output under the model, with the potentials' score; so is its weight.

    Attributes:
        limit: the most beginnings that are run through the model.
        n: how many outputs, the best first; fewer where there are no more.
        score_bound: the most that the potentials give to any output.

    Raises:
        ValueError: a number is out of range.

    Complexity: a forward pass for each beginning that is as probable as the last output, and for few others; where the
        model runs several sequences in one pass, up to four of them share it.

    Source: as ``structgen.decode.sampling.best_first``; for spans of a passage O. Castel et al. (2021).
    """

    limit: int = 4096
    n: int = 1
    score_bound: float = 0.0

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the most probable of all outputs, weighted by the potentials"

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("n", self.n)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ExactBest: {name} must be an integer of at least 1; found {value!r}")
        if not math.isfinite(self.score_bound):
            raise ValueError(f"ExactBest: score_bound must be finite; found {self.score_bound!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number.

        Raises:
            LimitExceeded: more than ``limit`` beginnings are more probable than what was found.
        """
        search = BestFirst(branches, limit=self.limit, score_bound=self.score_bound)
        found = tuple(
            Sample(branches.result(each.branch), each.total, 1, each.total) for each in islice(search, self.n)
        )
        return branches.samples(found, particles=len(found))
