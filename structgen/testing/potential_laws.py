"""The laws that every potential obeys, as functions to run on your own potentials.

>>> import random
>>> from structgen.testing import check_potential
>>> check_potential(my_potential, constraint, random.Random(0))  # doctest: +SKIP
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Hypothesis, Potential
from structgen.engine import Constraint
from structgen.engine.mask import allowed_ids, contains, empty_masks
from structgen.errors import VocabularyError
from structgen.testing.state_walk import LawViolation

__all__ = ["check_potential"]

_WALKS: Final = 20
_LENGTH: Final = 24
_TRIED: Final = 12
_CLOSE: Final = 1e-9


def check_potential(
    potential: Potential, constraint: Constraint, rng: random.Random, *, walks: int = _WALKS, length: int = _LENGTH
) -> None:
    """Check the laws of ``Potential`` on random outputs of a constraint: ``walks`` of at most ``length`` tokens each.

    Every prefix of every walk is scored, with some of the tokens that may follow it:

    - scores are finite or minus infinity, and the same at the next evaluation;
    - what is forbidden stays forbidden, longer or complete;
    - ``logw_next`` is the difference of scores, and ``allowed`` leaves out forbidden tokens only;
    - the batch forms agree with the single ones.

    Raises:
        LawViolation: a law does not hold; it names the law and the shortest prefix that was found.
    """
    violations = []
    for _ in range(walks):
        try:
            _check_walk(potential, constraint, rng, length)
        except _BrokenLaw as broken:
            violations.append(broken)
    if violations:
        shortest = min(violations, key=lambda broken: len(broken.hypothesis.tokens))
        raise LawViolation(
            f"potential {potential.name}",
            shortest.problem,
            path=shortest.hypothesis.tokens,
            vocabulary=constraint.vocabulary,
        )


class _BrokenLaw(Exception):
    def __init__(self, problem: str, hypothesis: Hypothesis) -> None:
        self.problem = problem
        self.hypothesis = hypothesis
        super().__init__(problem)


def _check_walk(potential: Potential, constraint: Constraint, rng: random.Random, length: int) -> None:
    vocabulary = constraint.vocabulary
    matcher = constraint.matcher()
    row = empty_masks(vocabulary)
    hypothesis = Hypothesis(constraint.grammar, vocabulary)
    score = _score(potential.prefix, "prefix", hypothesis)
    for _ in range(length):
        matcher.fill_mask(row)
        ids = [token for token in allowed_ids(row[0], vocabulary.size).tolist() if token not in vocabulary.eos]
        tried = rng.sample(ids, min(_TRIED, len(ids)))
        longer = [hypothesis.extended(token) for token in tried]
        scores = [_score(potential.prefix, "prefix", each) for each in longer]
        if matcher.is_accepting:
            _check_end(potential, hypothesis, score)
        _check_extensions(potential, hypothesis, score, dict(zip(tried, scores, strict=True)), longer)
        if not tried:
            break
        # Forbidden prefixes are followed too: nothing may come back to life.
        index = rng.randrange(len(tried))
        hypothesis, score = longer[index], scores[index]
        if not matcher.accept(tried[index]):
            raise VocabularyError("matcher", f"it refuses token {tried[index]}, which its own mask allows")


def _check_end(potential: Potential, hypothesis: Hypothesis, score: float) -> None:
    complete = _score(potential.complete, "complete", hypothesis)
    if score == -math.inf and complete > -math.inf:
        raise _BrokenLaw(f"prefix forbids what complete allows with {complete!r}", hypothesis)
    if not _close(potential.complete_many([hypothesis, hypothesis]), [complete, complete]):
        raise _BrokenLaw("complete_many disagrees with complete", hypothesis)
    weights = None if score == -math.inf else potential.logw_next(hypothesis)
    for token in hypothesis.vocabulary.eos if weights is not None else ():
        if weights is not None and not _close(weights[[token]], [complete - score]):
            raise _BrokenLaw(f"logw_next of EOS is {weights[token]!r}, not complete - prefix", hypothesis)


def _check_extensions(
    potential: Potential, hypothesis: Hypothesis, score: float, scores: dict[int, float], longer: list[Hypothesis]
) -> None:
    for each, found in zip(longer, scores.values(), strict=True):
        if score == -math.inf and found > -math.inf:
            raise _BrokenLaw(f"a forbidden prefix goes on with score {found!r}", each)
    if longer and not _close(potential.prefix_many(longer), list(scores.values())):
        raise _BrokenLaw("prefix_many disagrees with prefix", hypothesis)
    if score == -math.inf:
        return
    weights, row = potential.logw_next(hypothesis), potential.allowed(hypothesis)
    for token, found in scores.items():
        if weights is not None and not _close(weights[[token]], [found - score]):
            raise _BrokenLaw(
                f"logw_next of token {token} is {weights[token]!r}, not the difference of prefix", hypothesis
            )
        if row is not None and found > -math.inf and not contains(row, token):
            raise _BrokenLaw(f"allowed leaves out token {token}, whose score is {found!r}", hypothesis)


def _score(function: Callable[[Hypothesis], float], name: str, hypothesis: Hypothesis) -> float:
    score = function(hypothesis)
    if math.isnan(score) or score == math.inf:
        raise _BrokenLaw(f"{name} gives {score}", hypothesis)
    if function(hypothesis) != score:
        raise _BrokenLaw(f"{name} gives another score at the next evaluation", hypothesis)
    return score


def _close(found: NDArray[np.float64], expected: list[float]) -> bool:
    return bool(np.allclose(found, expected, rtol=_CLOSE, atol=_CLOSE))
