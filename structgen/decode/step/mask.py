"""The words of one row of a token mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["has_bit", "mask_words", "only_token", "words_without"]


def mask_words(allowed: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return a token mask, int32 ``[ceil(V / 32)]``, of bool ``[V]``."""
    bits = np.zeros((len(allowed) + 31) // 32 * 32, dtype=np.uint8)
    bits[: len(allowed)] = allowed
    packed: NDArray[np.int32] = np.packbits(bits, bitorder="little").view(np.int32)
    return packed


def words_without(ids: Sequence[int], size: int) -> NDArray[np.int32]:
    """Words for ``size`` tokens with every bit set but those of ``ids``."""
    bits = np.ones((size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(ids)] = 0
    words: NDArray[np.int32] = np.packbits(bits, bitorder="little").view(np.int32)
    return words


def has_bit(words: NDArray[np.int32], token: int) -> bool:
    """Whether the bit of a token is set."""
    return bool(words[token >> 5] >> (token & 31) & 1)


def only_token(words: NDArray[np.int32]) -> int | None:
    """The id of the one bit that is set in words that are not all zero; None if there are more."""
    filled = np.flatnonzero(words)
    word = int(words[filled[0]]) & 0xFFFFFFFF
    if len(filled) > 1 or word & (word - 1):
        return None
    return int(filled[0]) * 32 + word.bit_length() - 1
