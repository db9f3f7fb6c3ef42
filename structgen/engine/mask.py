"""Token masks as numpy words: one row of int32 words for each mask, one bit for each token.

Bit ``i & 31`` of word ``i >> 5`` is set where token ``i`` is allowed. A row has ``ceil(V / 32)`` words; its bits from
``V`` on are zero. vLLM, SGLang, xgrammar and llguidance use the same layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["MaskWords", "allowed_ids", "contains", "empty_masks", "mask_width", "only_token", "pack", "without"]

MaskWords: TypeAlias = NDArray[np.int32]
"""A mask, ``[ceil(V / 32)]``, or rows of masks."""


def mask_width(size: int) -> int:
    """Return how many words the mask of a vocabulary of ``size`` tokens has.

    >>> mask_width(32), mask_width(33)
    (1, 2)
    """
    return (size + 31) // 32


class _Sized(Protocol):
    """A vocabulary: ``size`` is the number of tokens."""

    @property
    def size(self) -> int:
        """The number of tokens."""


def empty_masks(vocabulary_or_size: _Sized | int, rows: int = 1) -> MaskWords:
    """Return masks that allow nothing, ``[rows, ceil(V / 32)]``, for ``Matcher.fill_mask`` to write into."""
    size = vocabulary_or_size if isinstance(vocabulary_or_size, int) else vocabulary_or_size.size
    return np.zeros((rows, mask_width(size)), dtype=np.int32)


def pack(allowed: NDArray[np.bool_]) -> MaskWords:
    """Return the mask, ``[ceil(V / 32)]``, of one truth value for each token, ``[V]``."""
    bits = np.zeros(32 * mask_width(len(allowed)), dtype=np.uint8)
    bits[: len(allowed)] = allowed
    words: MaskWords = np.packbits(bits, bitorder="little").view(np.int32)
    return words


def allowed_ids(mask: MaskWords, size: int | None = None) -> NDArray[np.intp]:
    """Return the token ids that a mask allows, ascending; those below ``size`` if it is given.

    >>> allowed_ids(pack(np.array([True, False, True])))
    array([0, 2])
    """
    bits = np.unpackbits(mask.view(np.uint8), count=size, bitorder="little")
    return np.flatnonzero(bits.view(np.bool_))


def contains(mask: MaskWords, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token >> 5] >> (token & 31) & 1)


def only_token(mask: MaskWords) -> int | None:
    """Return the token that a mask allows if it allows exactly one, else None."""
    filled = np.flatnonzero(mask)
    if len(filled) != 1:
        return None
    word = int(mask[filled[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(filled[0]) * 32 + word.bit_length() - 1


def without(mask: MaskWords, tokens: Iterable[int]) -> MaskWords:
    """Return a copy of a mask that does not allow ``tokens``."""
    words = mask.copy()
    bits = words.view(np.uint32)
    for token in tokens:
        bits[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
    return words
