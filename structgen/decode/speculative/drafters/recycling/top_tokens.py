"""The largest logits of several rows, in little more than the time that it takes to read them.

A partial sort of a row of 49k logits takes longer than everything else that a drafter does with it, and a forward pass
has many rows.  So a row is cut into columns, each of a few logits that lie far apart: the ``count`` largest logits lie
in the ``count`` columns with the largest maxima, and only these are looked into.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from structgen.models.protocol import Logits

__all__ = ["top_tokens"]

_HEIGHT: Final = 12
"""So many logits make a column."""

_LEAST_WIDTH: Final = 4
"""So many times as many columns as tokens must there be, or the row is sorted as it is."""


def top_tokens(rows: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """Return the tokens with the largest logits of each row, the largest first; of equal ones those with lower ids.

    Args:
        rows: logits, ``[n, V]``, without NaN.
        count: how many; at least 1.  Where the vocabulary is smaller, all of it.

    Returns:
        Token ids and their logits, each ``[n, min(count, V)]``.

    Complexity: O(n V), one pass over the rows.
    """
    size = rows.shape[1]
    width = size // _HEIGHT
    if width < max(_LEAST_WIDTH * count, _HEIGHT):  # what is left over has to fit in a row of columns
        return _sorted(np.arange(size)[None], rows, count)
    body = _HEIGHT * width
    maxima = rows[:, :body].reshape(len(rows), _HEIGHT, width).max(axis=1)
    tail = size - body  # fewer than the columns are high, so fewer than there are
    np.maximum(maxima[:, :tail], rows[:, body:], out=maxima[:, :tail])
    least = np.partition(maxima, width - count, axis=1)[:, width - count]
    reached = np.flatnonzero(maxima >= least[:, None])
    if len(reached) > len(rows) * count:
        return _with_ties(rows, least, count)
    columns = reached.reshape(len(rows), count) % width
    ids = (columns[:, None, :] + np.arange(0, size, width)[None, :, None]).reshape(len(rows), -1)
    inside = np.minimum(ids, size - 1)
    values = np.take_along_axis(rows, inside, axis=1)
    values[ids >= size] = -np.inf
    return _sorted(inside, values, count)


def _sorted(ids: NDArray[np.int64], values: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """The ``count`` largest values of each row with their ids, which ascend in a row or in all of them."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(np.broadcast_to(ids, values.shape), order, axis=1), np.take_along_axis(values, order, 1)


def _with_ties(rows: Logits, least: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """As ``top_tokens``, where at least ``count`` logits of each row are known to reach ``least``."""
    ids = np.empty((len(rows), count), dtype=np.int64)
    values = np.empty((len(rows), count), dtype=rows.dtype)
    for row, bound, found, largest in zip(rows, least, ids, values, strict=True):
        candidates = np.flatnonzero(row >= bound)
        candidates = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
        found[:] = candidates
        largest[:] = row[candidates]
    return ids, values
