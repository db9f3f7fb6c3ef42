"""A sampler without replacement that reads its tokens, a part at a time, from an order sampled elsewhere.

If the logits are on a GPU, the distribution need not be copied: the tokens of a batch are sampled on the GPU without
replacement (``structgen_kernels.choices.gumbel_order``), and estimators read few of them.  A token that is put back
comes before the rest of the order with its share of the remaining probability.  The rest was sampled without that
token, so its distribution does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, final

from structgen.decode.step.without_replacement import sample_misses

if TYPE_CHECKING:
    import numpy as np

__all__ = ["OrderedWithoutReplacement"]


@final
class OrderedWithoutReplacement:
    """``WithoutReplacement`` over an order, which is read no further than needed.

    Args:
        order: all tokens of positive probability in the order of sampling without replacement, each with its
            log-probability in the full distribution and the log of the probability of the tokens that remained when it
            was sampled, itself included.
        generator: the generator of the other random numbers: one uniform number per ``misses``, and one per ``take``
            while a token that was put back remains.

    Raises:
        ValueError: the order is empty.

    Complexity: O(tokens that were put back) per call.
    """

    def __init__(self, order: Iterable[tuple[int, float, float]], generator: np.random.Generator) -> None:
        self._order: Iterator[tuple[int, float, float]] = iter(order)
        self._generator = generator
        self._read: tuple[int, float, float] | None = None
        self._known: dict[int, float] = {}
        self._back: dict[int, float] = {}
        if self._next is None:
            raise ValueError("no token has any probability")

    @property
    def left(self) -> float:
        """See ``WithoutReplacement``."""
        following = self._next
        rest = 0.0 if following is None else math.exp(following[2])
        return rest + sum(self._back.values())

    @property
    def is_empty(self) -> bool:
        """See ``WithoutReplacement``."""
        return not self._back and self._next is None

    def probability(self, token: int) -> float:
        """See ``WithoutReplacement``; only for tokens that were taken."""
        return self._known[token]

    def take(self) -> int:
        """See ``WithoutReplacement``: the next token of the order, unless one that was put back comes first."""
        following = self._next
        if self._back:
            mark = self._generator.random() * self.left
            found: int | None = None
            for token, probability in self._back.items():
                mark -= probability
                if mark < 0:
                    found = token
                    break
            if found is None and following is None:
                found = next(reversed(self._back))  # by rounding, the mark exceeds the sum
            if found is not None:
                del self._back[found]
                return found
        if following is None:
            raise ValueError("the sampler without replacement is empty")
        token, log_p, _ = following
        self._known[token] = math.exp(log_p)
        self._read = None
        return token

    def put_back(self, token: int) -> None:
        """See ``WithoutReplacement``."""
        self._back[token] = self._known[token]

    def misses(self, most: float) -> float:
        """See ``WithoutReplacement``."""
        return sample_misses(self.left, most, self._generator)

    @property
    def _next(self) -> tuple[int, float, float] | None:
        """The next token of the order, read when it is needed."""
        if self._read is None:
            self._read = next(self._order, None)
        return self._read
