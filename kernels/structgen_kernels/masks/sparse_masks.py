"""Bitmasks in the sparse form of ``MaskTable``: a default word and the words that differ from it.

The host packs rows with numpy before their upload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from structgen_kernels.masks.mask_rows import SPARSE_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SPARSE_WIDTH", "chosen_forms", "default_words", "pack_sparse"]

SPARSE_WIDTH: Final = 2 + 2 * SPARSE_WORDS
"""Words per sparse row."""

_ABSENT: Final = 2**31 - 1


def default_words(words: NDArray[np.int32], size: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the default word of each row, 0 or all ones, whichever fewer words differ from, and which words differ.

    Bits from ``size`` on are ignored: a row that allows every token counts as all ones.

    Args:
        words: int32 ``[rows, ceil(size / 32)]``.
        size: the number of tokens of the vocabulary.

    Returns:
        int32 ``[rows]`` and bool ``[rows, ceil(size / 32)]``.
    """
    outside = -1 << size % 32 if size % 32 else 0
    some, lacking = words != 0, words != -1
    some[:, -1] = words[:, -1] & ~outside != 0
    lacking[:, -1] = words[:, -1] | outside != -1
    is_full = np.count_nonzero(lacking, axis=1) < np.count_nonzero(some, axis=1)
    return np.where(is_full, -1, 0).astype(np.int32), np.where(is_full[:, None], lacking, some)


def chosen_forms(
    fits: NDArray[np.bool_], words: int, *, sparse_free: int, dense_free: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Choose the sparse and the dense form for rows: the smaller form first, within the free capacity.

    Args:
        fits: bool ``[rows]``, whether each row fits the sparse form.
        words: words per dense row.
        sparse_free: how many sparse rows can be added.
        dense_free: how many dense rows can be added.  More rows are dense if they do not fit the sparse rows.

    Returns:
        The indices of the sparse rows and of the dense ones.
    """
    candidates, others = np.flatnonzero(fits), np.flatnonzero(~fits)
    count = min(len(candidates), sparse_free)
    if words <= SPARSE_WIDTH:
        count = min(count, max(len(fits) - dense_free, 0))
    return candidates[:count], np.sort(np.concatenate((others, candidates[count:])))


def pack_sparse(words: NDArray[np.int32], default: NDArray[np.int32], differs: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return rows in the sparse form, int32 ``[rows, SPARSE_WIDTH]``.

    Args:
        words: int32 ``[rows, n]``.
        default: int32 ``[rows]``.
        differs: bool ``[rows, n]``, at most ``SPARSE_WORDS`` of them true in a row.
    """
    counts = np.count_nonzero(differs, axis=1)
    sparse = np.zeros((len(words), SPARSE_WIDTH), dtype=np.int32)
    sparse[:, 0], sparse[:, 1] = default, counts
    sparse[:, 2 : 2 + SPARSE_WORDS] = _ABSENT
    row, word = np.divmod(np.flatnonzero(differs), words.shape[1])
    place = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    sparse[row, 2 + place] = word
    sparse[row, 2 + SPARSE_WORDS + place] = words[row, word]
    return sparse
