"""A small model of text: which byte follows the last few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

__all__ = ["END", "NGram"]

END: Final = 256
"""The symbol after the last byte."""


@final
class NGram:
    """Laws of the next byte, or the end, given the ``order - 1`` bytes before; immutable.

    Counts of longer contexts are smoothed by those of shorter ones, and those of none by the uniform law over 257
    symbols, so that nothing is impossible.  Without any text it is that uniform law: expectations under it count.

    Source: I. Witten and T. Bell, "The zero-frequency problem" (1991), for the smoothing.

    Args:
        texts: with their weights.
        order: bytes that hang together, the predicted one included; at least 1.

    Raises:
        ValueError: ``order`` is below 1, or a weight is negative.

    Complexity: O(bytes * order) to make; O(order) for a law that was asked for before.
    """

    def __init__(self, texts: Iterable[tuple[bytes, float]] = (), *, order: int = 3) -> None:
        if order < 1:
            raise ValueError(f"NGram: order must be at least 1; found {order!r}")
        self.order = order
        self._counts: dict[bytes, dict[int, float]] = {}
        for text, weight in texts:
            if weight < 0:
                raise ValueError(f"NGram: weights must not be negative; found {weight!r} for {text[:40]!r}")
            for place, symbol in enumerate((*text, END)):
                for length in range(min(order - 1, place) + 1):
                    row = self._counts.setdefault(text[place - length : place], {})
                    row[symbol] = row.get(symbol, 0.0) + weight
        self._laws: dict[bytes, NDArray[np.float64]] = {}

    @classmethod
    def of_texts(cls, texts: Iterable[str | bytes], *, order: int = 3) -> NGram:
        """Fit to complete outputs, for instance to what the model writes without a constraint."""
        return cls(((text.encode() if isinstance(text, str) else text, 1.0) for text in texts), order=order)

    @classmethod
    def of_vocabulary(cls, vocabulary: Vocabulary, *, order: int = 2) -> NGram:
        """Fit to the tokens of a vocabulary.

        A token with id ``i`` counts ``1 / (i + 1)``: tokenizers number tokens as they merge them, frequent ones first,
        and frequencies of words fall about so (Zipf's law).
        """
        return cls(((token, 1 / (index + 1)) for index, token in enumerate(vocabulary.tokens) if token), order=order)

    def __repr__(self) -> str:
        return f"<NGram of order {self.order}, {len(self._counts)} contexts>"

    def context(self, data: bytes) -> bytes:
        """What of ``data`` the next byte depends on."""
        return data[len(data) - min(len(data), self.order - 1) :]

    def law(self, context: bytes) -> NDArray[np.float64]:
        """Probabilities of the bytes and of ``END`` after ``context``, ``[257]``; read only."""
        known = self._laws.get(context)
        if known is None:
            known = self._laws[context] = self._smoothed(context)
            known.flags.writeable = False
        return known

    def _smoothed(self, context: bytes) -> NDArray[np.float64]:
        law = np.full(257, 1 / 257)
        for start in range(len(context), -1, -1):
            row = self._counts.get(context[start:])
            if row is None:
                break
            total = sum(row.values())
            if not total:
                continue
            unseen = len(row) / (len(row) + total)  # the more kinds followed, the more others may
            law = unseen * law
            for symbol, count in row.items():
                law[symbol] += (1 - unseen) * count / total
        return law
