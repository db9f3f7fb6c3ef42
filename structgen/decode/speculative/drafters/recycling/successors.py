"""Which tokens a model has lately expected behind each token."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Vocabulary

__all__ = ["Successors"]


@final
class Successors:
    """For each token the ``count`` tokens that were expected behind it the last time it was seen.

    Source: the adjacency matrix of X. Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large
    Language Models with Token Recycling" (2024, arXiv 2408.08696).

    Threads may share one.  It holds a matrix of int32 ``[V, count]`` for each vocabulary that it was used with: 1.6 MB
    for 49k tokens and 8 successors, of which a system that hands out memory page by page provides only what is used.

    Args:
        count: successors of each token; at least 1.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(self, count: int = 8) -> None:
        if count < 1:
            raise ValueError(f"Successors: count must be at least 1; found {count!r}")
        self.count = count
        self._matrices: dict[bytes, NDArray[np.int32]] = {}  # by digest; ids plus 1, 0 where there is none
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in list(self._matrices.values()))

    def learn(self, vocabulary: Vocabulary, rows: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note what is expected behind tokens, in place of what was noted before.

        Args:
            vocabulary: what the ids belong to.
            rows: tokens with their successors, the most probable first; more than ``count`` are cut off.
        """
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            if matrix is None:
                matrix = self._matrices[vocabulary.digest] = np.zeros((vocabulary.size, self.count), dtype=np.int32)
            for token, successors in rows:
                kept = successors[: self.count]
                matrix[token] = 0
                matrix[token, : len(kept)] = kept
                matrix[token, : len(kept)] += 1

    def after(self, vocabulary: Vocabulary, token: int) -> list[int]:
        """What is expected behind ``token``, the most probable first; empty where nothing is known."""
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            row: list[int] = [] if matrix is None else matrix[token].tolist()
        return [successor - 1 for successor in row if successor]

    def __repr__(self) -> str:
        return f"<Successors, {self.count} of each token, {self.nbytes} bytes>"
