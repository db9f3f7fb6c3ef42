"""Potentials in front of one output that is written token by token: what they forbid does not come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.hypothesis import Hypothesis
from structgen.decode.potentials.questions import Questions
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Potential
    from structgen.engine import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["Gate"]


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

    def verdict(self) -> str:
        """Who forbade what, for messages; empty where there are no potentials."""
        return self._questions.culprits() if self._questions.any else ""

    def _at(self, tokens: list[int]) -> Hypothesis:
        now = self._now
        if len(tokens) == len(now.tokens) + 1 and now.tokens == tuple(tokens[:-1]):
            self._now = now.extended(tokens[-1])
        elif now.tokens != tuple(tokens):
            self._now = Hypothesis(now.grammar, now.vocabulary, tuple(tokens))
        return self._now
