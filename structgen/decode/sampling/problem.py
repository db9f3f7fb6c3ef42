"""What is to be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from structgen.decode.potentials import Hypothesis, Potential

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.models.protocol import LanguageModel

__all__ = ["Problem"]


@final
@dataclass(frozen=True, slots=True)
class Problem:
    """A law over outputs, known up to its sum: the model's, on the members of a constraint, weighted by potentials.

        target(x) = p(x, stop | prompt) exp(sum of complete(x)), for members x of at most ``max_tokens`` tokens

    Two sequences of tokens are two outputs, though they may spell the same text.  ``p`` is the model's law at
    temperature 1.

    Attributes:
        model: the language model.
        prompt: the tokens before the output, at least one.
        constraint: compiled for the model's vocabulary.
        potentials: what else outputs are worth.
        max_tokens: the most tokens that an output has, EOS not counted; at least ``constraint.min_tokens()``.
        begun: tokens of the output that stand already; the prompt ends with them.
    """

    model: LanguageModel
    prompt: tuple[int, ...]
    constraint: Constraint
    potentials: Sequence[Potential]
    max_tokens: int
    begun: tuple[int, ...] = ()

    def beginning(self) -> Hypothesis:
        """The output as it stands."""
        return Hypothesis(self.constraint.grammar, self.constraint.vocabulary, self.begun)
