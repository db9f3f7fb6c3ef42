"""Evaluation of the potentials of one run: each query once, every score checked, and what each forbade is counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.potential import Hypothesis, Lifted, Potential, Product, Score, as_potentials
from structgen.errors import GenerationError, StructgenError

if TYPE_CHECKING:
    from structgen.engine import Constraint, Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["Gate", "PotentialEvaluator", "with_canonical"]

_MAX_SCORES: Final = 1 << 16
_MAX_TESTED: Final = 16
_MAX_SHOWN: Final = 60


@final
class PotentialEvaluator:
    """Evaluates the potentials of one run, and caches their scores.

    Attributes:
        evaluations: number of evaluations, by name of the potential.
        forbidden: number of scores minus infinity, by name of the potential.
        emptied: number of masks of the grammar that the mask of the potential left without a token, by name.

    Args:
        potentials: in the order of evaluation.
    """

    def __init__(self, potentials: Sequence[Potential] = ()) -> None:
        self._potentials = Product(potentials).factors
        self._scores: dict[tuple[int, bool, bytes | tuple[int, ...]], float] = {}
        self._tested = 0
        self.evaluations: Counter[str] = Counter()
        self.forbidden: Counter[str] = Counter()
        self.emptied: Counter[str] = Counter()

    @property
    def any(self) -> bool:
        """Whether there is any potential."""
        return bool(self._potentials)

    def prefix(self, hypothesis: Hypothesis) -> float:
        """The sum of all potentials' scores of a prefix.

        Raises:
            GenerationError: a potential raised an error, or returned no score.
        """
        return self._sum(hypothesis, is_complete=False)

    def complete(self, hypothesis: Hypothesis) -> float:
        """The sum of all potentials' scores of a complete output.

        Raises:
            GenerationError: as ``prefix``.
        """
        return self._sum(hypothesis, is_complete=True)

    @property
    def tests_more(self) -> bool:
        """Whether ``test_forbidden`` has tests left."""
        return self._tested < _MAX_TESTED

    def test_forbidden(self, hypothesis: Hypothesis) -> None:
        """Check that the potential that forbids a prefix also forbids it as a complete output.

        Done only a few times a run, since it may be costly.

        Raises:
            GenerationError: it allows it.
        """
        if not self.tests_more:
            return
        self._tested += 1
        for index, potential in enumerate(self._potentials):
            if self._score(index, hypothesis, is_complete=False) > -math.inf:
                continue
            if isinstance(potential, Lifted) and potential.is_one_function:
                return
            score = self._score(index, hypothesis, is_complete=True)
            if score > -math.inf:
                raise GenerationError(
                    f"potential {potential.name}",
                    "it forbids a prefix and allows the same as a complete output",
                    evidence=f"prefix gives -inf and complete {score!r} for {_shown(hypothesis)}",
                    remedy="let prefix forbid only prefixes that no allowed output begins with",
                )
            return

    def logw_next(self, hypothesis: Hypothesis) -> NDArray[np.float64] | None:
        """The sum of ``logw_next`` over the potentials that have it; None if none has."""
        total: NDArray[np.float64] | None = None
        for potential in self._potentials:
            weights = self._weights(potential, hypothesis)
            if weights is not None:
                total = weights if total is None else total + weights
        return total

    def allowed(self, hypothesis: Hypothesis) -> NDArray[np.int32] | None:
        """The intersection of the potentials' masks; None if none has a mask."""
        row: NDArray[np.int32] | None = None
        for potential in self._potentials:
            with _errors_of(potential, "allowed", hypothesis):
                other = potential.allowed(hypothesis)
            if other is not None:
                row = other if row is None else row & other
        return row

    def narrow(self, hypothesis: Hypothesis, row: NDArray[np.int32]) -> None:
        """Take the tokens out of a mask of the grammar that are not in all potentials' masks."""
        for potential in self._potentials:
            with _errors_of(potential, "allowed", hypothesis):
                potential.narrow(hypothesis, row)

    def count_emptied(self, hypothesis: Hypothesis, row: NDArray[np.int32]) -> None:
        """Count the potential whose mask takes the last token out of a mask of the grammar, which stays as it is."""
        left = row.copy()
        for potential in self._potentials if left.any() else ():
            with _errors_of(potential, "allowed", hypothesis):
                other = potential.allowed(hypothesis)
            if other is not None:
                left &= other
            if not left.any():
                self.emptied[potential.name] += 1
                return

    def culprits(self) -> str:
        """Which potentials forbade how much, for messages."""
        counts = [
            f"{name} forbade {count} of {self.evaluations[name]}" for name, count in self.forbidden.most_common(4)
        ]
        counts += [f"{name} left no token in {count} masks" for name, count in self.emptied.most_common(4)]
        return ", ".join(counts) or "no potential forbade anything"

    def _sum(self, hypothesis: Hypothesis, *, is_complete: bool) -> float:
        total = 0.0
        for index in range(len(self._potentials)):
            total += self._score(index, hypothesis, is_complete=is_complete)
            if total == -math.inf:
                break
        return total

    def _score(self, index: int, hypothesis: Hypothesis, *, is_complete: bool) -> float:
        potential = self._potentials[index]
        key = index, is_complete, hypothesis.data if potential.sees == "bytes" else hypothesis.tokens
        cached = self._scores.get(key)
        if cached is not None:
            return cached
        what = "complete" if is_complete else "prefix"
        self.evaluations[potential.name] += 1
        with _errors_of(potential, what, hypothesis):
            score = float((potential.complete if is_complete else potential.prefix)(hypothesis))
        if math.isnan(score) or score == math.inf:
            raise GenerationError(
                f"potential {potential.name}",
                f"{what} gives {score}",
                evidence=f"for {_shown(hypothesis)}",
                remedy="return a finite logarithm, or -inf for what is forbidden",
            )
        if score == -math.inf:
            self.forbidden[potential.name] += 1
        if len(self._scores) >= _MAX_SCORES:
            self._scores.clear()
        self._scores[key] = score
        return score

    def _weights(self, potential: Potential, hypothesis: Hypothesis) -> NDArray[np.float64] | None:
        with _errors_of(potential, "logw_next", hypothesis):
            weights = potential.logw_next(hypothesis)
        if weights is None:
            return None
        size = hypothesis.vocabulary.size
        if weights.shape != (size,) or np.isnan(weights).any() or (weights == np.inf).any():
            raise GenerationError(
                f"potential {potential.name}",
                "logw_next does not give a finite logarithm or -inf for each token",
                evidence=f"shape {weights.shape} for {size} tokens, after {_shown(hypothesis)}",
                remedy="return a float64 array with a score for every token id",
            )
        return weights


@contextmanager
def _errors_of(potential: Potential, what: str, hypothesis: Hypothesis) -> Iterator[None]:
    """Name the potential in any error of its own."""
    try:
        yield
    except StructgenError:
        raise
    except Exception as error:
        raise GenerationError(
            f"potential {potential.name}",
            f"{what} raised {type(error).__name__}: {error}",
            evidence=f"for {_shown(hypothesis)}",
            remedy="make it return a score for every prefix that the grammar allows",
        ) from error


def _shown(hypothesis: Hypothesis) -> str:
    text = hypothesis.text
    return repr(text) if len(text) <= _MAX_SHOWN else f"{len(text)} characters that end with {text[-_MAX_SHOWN:]!r}"


@final
class Gate:
    """The potentials of one output that is written token by token, as predicates."""

    def __init__(self, potentials: Sequence[Potential], grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._evaluator = PotentialEvaluator(potentials)
        self._now = Hypothesis(grammar, vocabulary)

    def admits(self, tokens: list[int], token: int | None) -> bool:
        """Whether the potentials allow ``token`` after ``tokens``; None is EOS.

        Raises:
            GenerationError: a potential fails, or its score is neither 0 nor minus infinity.
        """
        if not self._evaluator.any:
            return True
        now = self._at(tokens)
        subject = now if token is None else now.extended(token)
        score = self._evaluator.complete(now) if token is None else self._evaluator.prefix(subject)
        if score == -np.inf:
            return False
        if score != 0:
            raise GenerationError(
                "potentials",
                "samplers of tokens take only True and False from them",
                evidence=f"the score is {score!r} for {subject!r}",
                remedy="give sampler=SMC(...), which weights outputs by their scores",
            )
        return True

    def narrow(self, tokens: list[int], row: NDArray[np.int32]) -> None:
        """Take the tokens out of a mask of the grammar after ``tokens`` that are not in all potentials' masks."""
        if self._evaluator.any:
            self._evaluator.narrow(self._at(tokens), row)

    def count_emptied(self, tokens: list[int], row: NDArray[np.int32]) -> None:
        """See ``PotentialEvaluator``."""
        self._evaluator.count_emptied(self._at(tokens), row)

    def culprits(self) -> str:
        """Which potentials forbade how much, for messages; empty without potentials."""
        return self._evaluator.culprits() if self._evaluator.any else ""

    def _at(self, tokens: list[int]) -> Hypothesis:
        now = self._now
        if len(tokens) == len(now.tokens) + 1 and now.tokens == tuple(tokens[:-1]):
            self._now = now.extended(tokens[-1])
        elif now.tokens != tuple(tokens):
            self._now = Hypothesis(now.grammar, now.vocabulary, tuple(tokens))
        return self._now


def with_canonical(
    potentials: Sequence[Potential | Constraint | Score],
    constraint: Constraint,
    max_tokens: int | None,
    *,
    canonical: bool = True,
) -> list[Potential]:
    """Return ``as_potentials``, and with ``canonical`` first that of canonical tokens: see ``potentials.canonical``.

    Raises:
        ArgumentError: the tokenizer is of a kind whose canonical tokens are not decided exactly; or as
            ``as_potentials``.
        GrammarError: the grammar speaks of tokens rather than of text, or of bytes that are no text.
    """
    given = as_potentials(potentials)
    if not canonical:
        return given
    from structgen.decode.potentials.canonical import Canonical  # reads tokenizers, which few outputs need

    return [Canonical(constraint, max_tokens), *given]
