"""Evaluation of the potentials of one run: each query once, every answer checked, and who forbade what is recorded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.potential import Hypothesis, Lifted, Potential, Product
from structgen.errors import GenerationError, StructgenError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["Gate", "Questions"]

_MAX_ANSWERS: Final = 1 << 16
_MAX_TESTED: Final = 16
_MAX_SHOWN: Final = 60


@final
class Questions:
    """The potentials of one run.

    Attributes:
        asked: how often each potential was asked, by name.
        forbidden: how often each of them answered minus infinity, by name.

    Args:
        potentials: in the order in which they are asked.
    """

    def __init__(self, potentials: Sequence[Potential] = ()) -> None:
        self._potentials = Product(potentials).factors
        self._answers: dict[tuple[int, bool, bytes | tuple[int, ...]], float] = {}
        self._tested = 0
        self.asked: Counter[str] = Counter()
        self.forbidden: Counter[str] = Counter()

    @property
    def any(self) -> bool:
        """Whether there is any potential."""
        return bool(self._potentials)

    def prefix(self, hypothesis: Hypothesis) -> float:
        """The score of a prefix, of all potentials together.

        Raises:
            GenerationError: a potential raised an error, or its answer is no score.
        """
        return self._sum(hypothesis, is_complete=False)

    def complete(self, hypothesis: Hypothesis) -> float:
        """The score of a complete output.

        Raises:
            GenerationError: as ``prefix``; or a potential allows what it had forbidden before it was complete.
        """
        return self._sum(hypothesis, is_complete=True)

    @property
    def tests_more(self) -> bool:
        """Whether ``test_forbidden`` would look."""
        return self._tested < _MAX_TESTED

    def test_forbidden(self, hypothesis: Hypothesis) -> None:
        """Look whether the potential that forbids a prefix, which may be complete, allows it as that.

        Done only a few times a run, since it may be costly.

        Raises:
            GenerationError: it does.
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
                    remedy="let prefix forbid only what nothing that begins so is allowed",
                )
            return

    def logw_next(self, hypothesis: Hypothesis) -> NDArray[np.float64] | None:
        """What tokens add, of those potentials that can tell of all at once; None if none can."""
        total: NDArray[np.float64] | None = None
        for potential in self._potentials:
            weights = self._weights(potential, hypothesis)
            if weights is not None:
                total = weights if total is None else total + weights
        return total

    def allowed(self, hypothesis: Hypothesis) -> NDArray[np.int32] | None:
        """A row of a mask without what is known to be forbidden; None where nothing is known."""
        row: NDArray[np.int32] | None = None
        for potential in self._potentials:
            try:
                other = potential.allowed(hypothesis)
            except StructgenError:
                raise
            except Exception as error:
                raise _raised(potential, "allowed", hypothesis, error) from error
            if other is not None:
                row = other if row is None else row & other
        return row

    def culprits(self) -> str:
        """Who forbade how much, for messages."""
        counts = [f"{name} forbade {count} of {self.asked[name]}" for name, count in self.forbidden.most_common(4)]
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
        known = self._answers.get(key)
        if known is not None:
            return known
        what = "complete" if is_complete else "prefix"
        self.asked[potential.name] += 1
        try:
            score = float((potential.complete if is_complete else potential.prefix)(hypothesis))
        except StructgenError:
            raise
        except Exception as error:
            raise _raised(potential, what, hypothesis, error) from error
        if math.isnan(score) or score == math.inf:
            raise GenerationError(
                f"potential {potential.name}",
                f"{what} gives {score}",
                evidence=f"for {_shown(hypothesis)}",
                remedy="return a finite logarithm, or -inf for what is forbidden",
            )
        if score == -math.inf:
            self.forbidden[potential.name] += 1
        if len(self._answers) >= _MAX_ANSWERS:
            self._answers.clear()
        self._answers[key] = score
        return score

    def _weights(self, potential: Potential, hypothesis: Hypothesis) -> NDArray[np.float64] | None:
        try:
            weights = potential.logw_next(hypothesis)
        except StructgenError:
            raise
        except Exception as error:
            raise _raised(potential, "logw_next", hypothesis, error) from error
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


def _raised(potential: Potential, what: str, hypothesis: Hypothesis, error: Exception) -> GenerationError:
    return GenerationError(
        f"potential {potential.name}",
        f"{what} raised {type(error).__name__}: {error}",
        evidence=f"for {_shown(hypothesis)}",
        remedy="make it answer for every prefix that the grammar allows",
    )


def _shown(hypothesis: Hypothesis) -> str:
    text = hypothesis.text
    return repr(text) if len(text) <= _MAX_SHOWN else f"{len(text)} characters that end with {text[-_MAX_SHOWN:]!r}"


@final
class Gate:
    """Asks predicates about one output.

    Args:
        potentials: what is asked.
        grammar: what the output is a member of.
        vocabulary: what its tokens belong to.
    """

    def __init__(self, potentials: Sequence[Potential], grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._questions = Questions(potentials)
        self._now = Hypothesis(grammar, vocabulary)

    def admits(self, tokens: list[int], token: int | None) -> bool:
        """Whether ``token``, or the stop, may follow ``tokens``.

        Raises:
            GenerationError: a potential is not usable, or says neither yes nor no.
        """
        if not self._questions.any:
            return True
        now = self._at(tokens)
        asked = now if token is None else now.extended(token)
        score = self._questions.complete(now) if token is None else self._questions.prefix(asked)
        if score == -np.inf:
            return False
        if score != 0:
            raise GenerationError(
                "potentials",
                "a single output that is written token by token knows only yes and no",
                evidence=f"the score is {score!r} for {asked!r}",
                remedy="give sampler=SMC(...), which weighs outputs by their scores",
            )
        return True

    def mask(self, tokens: list[int]) -> NDArray[np.int32] | None:
        """A row of a mask without what is known to be forbidden after ``tokens``; None where nothing is known."""
        return self._questions.allowed(self._at(tokens)) if self._questions.any else None

    def verification(self) -> str:
        """Who forbade what, for messages; empty where there are no potentials."""
        return self._questions.culprits() if self._questions.any else ""

    def _at(self, tokens: list[int]) -> Hypothesis:
        now = self._now
        if len(tokens) == len(now.tokens) + 1 and now.tokens == tuple(tokens[:-1]):
            self._now = now.extended(tokens[-1])
        elif now.tokens != tuple(tokens):
            self._now = Hypothesis(now.grammar, now.vocabulary, tuple(tokens))
        return self._now
