"""Which two tokens may be adjacent in byte-pair encoding: the conflict test on merge trees.

The token sequence of a piece is canonical iff each token is what its own bytes are encoded as, and so is each
adjacent pair.  The test of pairs is native (``kernels/native/canonical/token_pairs.h``).

Source: T. Vieira et al., "Language Models over Canonical Byte-Pair Encodings" (2025, arXiv 2506.07956).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray
from structgen_kernels import _native

from structgen.engine.tokenizers.split_pattern import unsupported

__all__ = ["Merges"]


@final
class Merges:
    """The merges of a tokenizer.

    Attributes:
        pairs: which tokens may be adjacent.
        reachable: whether the bytes of each token alone are encoded as this token, ``[V]``.

    Args:
        tokens: the bytes of each token.
        merges: the two parts and the token that they make, the earliest first, and what makes their parts before them.
        units: the tokens that a text consists of before anything is merged; by default those of single bytes.
        ranks: of the merges, in ascending order; by default their indices.  Of the pairs of a text that have the least
            rank the leftmost is merged.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        merges: Sequence[tuple[int, int, int]],
        units: Collection[int] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._tokens = tokens
        if units is None:
            made = {whole for _, _, whole in merges}
            units = [token for token, data in enumerate(tokens) if len(data) == 1 and token not in made]
        self._units = {tokens[token]: token for token in units}
        table = np.array(merges, dtype=np.int32).reshape(-1, 3)
        places = np.array(range(len(table)) if ranks is None else ranks, dtype=np.int32)
        self.pairs: Final = _native.TokenPairs(len(tokens), table, places, np.array(list(units), dtype=np.int32))
        self.reachable: Final[NDArray[np.bool_]] = self.pairs.reachable().view(np.bool_)
        self._refuse_late(table, places)

    def _refuse_late(self, merges: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        """Refuse a token made of parts whose own merges come after its merge: times along its tree are not in order."""
        left, right, whole = self.reachable[merges.T]
        late = {*merges[~whole & left & right, 2].tolist()}
        if not late:
            return
        ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (one, other, made) in zip(places.tolist(), merges.tolist(), strict=True):
            ranks.setdefault((one, other), (rank, made))
        for token in late:
            parts = self._units_of(self._tokens[token])
            while found := [(*ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
                _, made, at = min(found, key=lambda each: (each[0], each[2]))
                parts[at : at + 2] = [made]
            if parts == [token]:
                problem = "a merge comes before the merges of its parts"
                raise unsupported(problem, evidence=f"it makes {self._tokens[token]!r}")

    def _units_of(self, data: bytes) -> list[int]:
        """The units of a text; those of whole characters where there are such."""
        if all(bytes([byte]) in self._units for byte in data):
            return [self._units[bytes([byte])] for byte in data]
        return [self._units[each.encode()] for each in data.decode()]
