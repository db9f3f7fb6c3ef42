"""Asking the potentials of one run: each question once, every answer checked, and who forbade what remembered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.lifted import Lifted
from structgen.decode.potentials.potential import Potential, Product
from structgen.errors import GenerationError, StructgenError

if TYPE_CHECKING:
    from structgen.decode.potentials.hypothesis import Hypothesis

__all__ = ["Questions"]

_MOST_ANSWERS: Final = 1 << 16
_TESTED: Final = 16
_SHOWN: Final = 60


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
        """The score of a beginning, of all potentials together.

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
        return self._tested < _TESTED

    def test_forbidden(self, hypothesis: Hypothesis) -> None:
        """Look whether the potential that forbids a beginning, which may be complete, allows it as that.

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
                    "it forbids a beginning and allows the same as a complete output",
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
        if len(self._answers) >= _MOST_ANSWERS:
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
        remedy="make it answer for every beginning that the grammar allows",
    )


def _shown(hypothesis: Hypothesis) -> str:
    text = hypothesis.text
    return repr(text) if len(text) <= _SHOWN else f"{len(text)} characters that end with {text[-_SHOWN:]!r}"
