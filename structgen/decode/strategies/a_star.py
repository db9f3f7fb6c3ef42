"""The most probable outputs, by a heuristic of the user's or by none.

Source: G. Chatziveroglou, "A*-Decoding: Token-Efficient Inference Scaling" (2025, arXiv 2505.13672), whose heuristic is
a reward model; here it may also be a bound, under which the result is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, final

from structgen.decode.sampling.best_first import BestFirst
from structgen.decode.strategies.outcome import Judge, at_least, judged, outcome
from structgen.errors import GenerationError

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.potentials import Hypothesis
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.decode.sampling.samples import Samples

__all__ = ["AStar"]

_ROUNDING: Final = 1e-9


@final
@dataclass(frozen=True, slots=True)
class AStar:
    """Finds the outputs of the highest score by a search with a priority queue.

    The score is the log-probability of the output and its stop under the model, not renormalised by the mask, and what
    potentials say of the complete output.  A beginning promises its own log-probability and what the heuristic expects
    of the rest; the most promising is followed.  Where the heuristic never expects too little, the outputs found are
    exactly the best of all within the budget, and of equal ones those whose tokens come first in order.  With a
    heuristic of 0 that is so where no potential gives more than 0.  ``log_weight`` of a sample is its score.

    For languages with few probable members: names, labels, spans, small objects.  In free text there are too many
    beginnings, and ``limit`` ends the search.

    Attributes:
        heuristic: what the rest of a beginning comes to, log-probability and potentials together; minus infinity gives
            it up.  None is ``most``.
        admissible: whether the heuristic never gives too little.  If it may, as a reward model, what comes first is an
            output that comes to no less than any beginning promises that is left then.
        most: the most that the heuristic gives, and that potentials give to any output.  What may follow a beginning is
            looked at only while that, at most, is promising; infinity looks at all that the mask allows.
        outputs: how many to find.
        limit: the most beginnings that are run through the model.

    Raises:
        ValueError: a number is out of range.
    """

    heuristic: Judge | None = None
    admissible: bool = True
    most: float = 0.0
    outputs: int = 1
    limit: int = 10_000

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least("AStar", 1, outputs=self.outputs, limit=self.limit)
        if math.isnan(self.most) or self.most == -math.inf:
            raise ValueError(f"AStar: most must be a number; found {self.most!r}")
        if self.heuristic is None and self.most == math.inf:
            raise ValueError("AStar: without a heuristic, most=inf would promise the same of all beginnings")

    @property
    def target(self) -> str:
        """See ``SequenceSampler``."""
        return "the most probable outputs" if self.admissible else "outputs that the heuristic leads to"

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number.

        Raises:
            LimitExceeded: more than ``limit`` beginnings are more promising than what was found.
            GenerationError: an output shows that the heuristic gives too little, or it gives more than ``most``; or as
                always.
        """
        search = BestFirst(
            branches,
            limit=self.limit,
            heuristic=None if self.heuristic is None else lambda branch: self._promise(branch.hypothesis),
            score_bound=self.most,
        )
        found = list(islice(search, self.outputs))
        if self.admissible and self.heuristic is not None:
            for each in found:
                self._check(branches, each.branch, each.total)
        return outcome(branches, [(each.branch, each.total) for each in found], drawn=len(found))

    def _promise(self, hypothesis: Hypothesis) -> float:
        if self.heuristic is None:
            return self.most
        promise = judged(self.heuristic, hypothesis, what="AStar: the heuristic")
        if promise > self.most:
            raise GenerationError(
                "AStar: the heuristic",
                f"it gives more than most={self.most:g}",
                evidence=f"{promise:g} for {hypothesis!r}",
                remedy="set most to the most that it gives, or to infinity",
            )
        return promise

    def _check(self, branches: Branches, branch: Branch, total: float) -> None:
        """See whether the beginnings of an output promised what it came to."""
        hypothesis, log_p = branches.problem.beginning(), 0.0
        for step in branch.steps():
            if step.token is None:
                break
            hypothesis = hypothesis.extended(step.token)
            log_p += step.logprob + (step.log_z or 0.0)
            promise = log_p + self._promise(hypothesis)
            if total > promise + _ROUNDING * (1 + abs(total)):
                raise GenerationError(
                    "AStar: the heuristic",
                    "it gives too little, so that a better output may have been passed over",
                    evidence=f"{hypothesis!r} promises {promise:.6g} and leads to {total:.6g}",
                    remedy="let it give at least what the rest comes to, or set admissible=False",
                )
