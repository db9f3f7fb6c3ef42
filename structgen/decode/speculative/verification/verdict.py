"""What a verification comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, final

from structgen.decode.awrs import Number

__all__ = ["Verdict", "WeightedVerdict"]


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """The guesses that are taken, and one token behind them that is no guess.

    Attributes:
        nodes: the nodes that are taken, one behind the other; of a chain, the positions from 0 on.
        token: what follows them; an index into the law of that position.
    """

    nodes: tuple[int, ...]
    token: int

    @property
    def accepted(self) -> int:
        """How many guesses are taken."""
        return len(self.nodes)


@final
@dataclass(frozen=True, slots=True)
class WeightedVerdict(Generic[Number]):
    """As ``Verdict``, where each token was drawn with a weight.

    Attributes:
        nodes: the nodes that are taken.
        token: what follows them; None where nothing was found, and then the last weight is zero.
        weights: of each token that was drawn: of those that are taken, and of ``token``.
    """

    nodes: tuple[int, ...]
    token: int | None
    weights: tuple[Number, ...]

    @property
    def weight(self) -> Number:
        """All weights multiplied."""
        return math.prod(self.weights[1:], start=self.weights[0])
