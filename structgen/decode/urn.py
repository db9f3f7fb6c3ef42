"""Tokens drawn without replacement, with what is left of their probability."""

from __future__ import annotations

import math
from typing import Final, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import BLOCK, block_sums, index_at

__all__ = ["TokenUrn", "Urn", "draw_misses"]

Number_co = TypeVar("Number_co", covariant=True)
_LEAST: Final = 1e-300


class Urn(Protocol[Number_co]):
    """Tokens with probabilities; those that are taken out are not drawn again.

    The probabilities are ``Number_co``: floats, or exact fractions in proofs.

    Attributes:
        left: the probability of all that is in it; 1 at first.
        is_empty: whether nothing is in it that has any probability.
    """

    @property
    def left(self) -> Number_co: ...
    @property
    def is_empty(self) -> bool: ...
    def probability(self, token: int, /) -> Number_co:
        """That of a token in the full urn."""

    def take(self) -> int:
        """Draw a token with its share of what is in the urn, and take it out; the urn must not be empty."""

    def put_back(self, token: int, /) -> None:
        """Put back a token that was taken."""

    def misses(self, most: float, /) -> float:
        """Draw how often one who draws with replacement from the full urn meets what is out of it.

        That is, before anything that is in it; ``most`` where it is as often or more, which it is if nothing is in it.
        """


@final
class TokenUrn:
    """The tokens of a law.

    What is left is summed anew from what is there, never found by subtraction: of a law in which all but 1e-15 was
    taken out, the rest is known as precisely as the whole.  Probabilities below 1e-300 count as zero.

    Args:
        weights: in proportion to the probabilities, float64 ``[n]``, none negative, of which the largest is about 1;
            tokens are indices into it.
        generator: the randomness: one uniform number for each ``take`` and ``misses``.

    Raises:
        ValueError: all weights are zero.

    Complexity: O(n) to make, O(n / 512 + 512) for each token.
    """

    def __init__(self, weights: NDArray[np.float64], generator: np.random.Generator) -> None:
        self._generator = generator
        self._full = np.where(weights < _LEAST, 0.0, weights)
        self._weights = self._full.copy()
        self._sums = block_sums(self._weights)
        self._total = float(self._sums.sum())
        if not self._total > 0:
            raise ValueError("no token has any probability")

    @property
    def left(self) -> float:
        """See ``Urn``."""
        return float(self._sums.sum()) / self._total

    @property
    def is_empty(self) -> bool:
        """See ``Urn``."""
        return not self._sums.any()

    def probability(self, token: int) -> float:
        """See ``Urn``."""
        return float(self._full[token]) / self._total

    def take(self) -> int:
        """See ``Urn``: by the inverse distribution function, in the order of the tokens."""
        token = index_at(self._weights, self._sums, self._generator.random())
        self._set(token, 0.0)
        return token

    def put_back(self, token: int) -> None:
        """See ``Urn``."""
        self._set(token, float(self._full[token]))

    def misses(self, most: float) -> float:
        """See ``Urn``."""
        return draw_misses(self.left, most, self._generator)

    def _set(self, token: int, weight: float) -> None:
        self._weights[token] = weight
        block = token // BLOCK
        self._sums[block] = self._weights[block * BLOCK : (block + 1) * BLOCK].sum()


def draw_misses(left: float, most: float, generator: np.random.Generator) -> float:
    """Draw what ``Urn.misses`` returns of an urn with ``left`` in it, by the geometric law's inverse distribution.

    One uniform number.
    """
    uniform = 1 - generator.random()  # in (0, 1]
    if left >= 1:
        return 0
    if left == 0:
        return most
    count = math.log(uniform) / math.log1p(-left)  # P(k or more) = (1 - left)^k
    return min(float(math.floor(count)), most)
