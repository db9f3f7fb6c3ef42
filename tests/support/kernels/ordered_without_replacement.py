"""A sampler without replacement whose tokens come from an order that was drawn elsewhere, some at a time.

Where the logits are on a GPU, the distribution need not be copied: the tokens of a batch are drawn there without
replacement (``structgen_kernels.choices.gumbel_order``), and estimators look at few of them.  A token that is put back
comes before the rest of the order with its share of what is in the sampler without replacement; the rest was drawn
without it, so its distribution is the same.
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
    """``WithoutReplacement`` over an order, read no further than needed.

    Args:
        order: all tokens of positive probability in the order in which they were drawn without replacement, each with
            its log-probability in the full distribution and the log of the probability of all that was left when it was
            drawn, itself included.
        generator: the randomness beyond the order: one uniform number for each ``misses``, and for each ``take`` while
            something that was put back is inside.

    Raises:
        ValueError: the order is empty.

    Complexity: O(tokens that were put back) for each call.
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
        """See ``WithoutReplacement``; of tokens that were taken only."""
        return self._known[token]

    def take(self) -> int:
        """See ``WithoutReplacement``: from the order, unless what was put back comes first."""
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
                found = next(reversed(self._back))  # the mark was beyond all by rounding
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
        """The next of the order, read where it is asked for."""
        if self._read is None:
            self._read = next(self._order, None)
        return self._read
