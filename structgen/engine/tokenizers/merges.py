"""Which two tokens byte-pair encoding writes side by side: the conflict test on merge trees.

The token sequence of a piece is canonical iff each token is what its own bytes are encoded as, and so is each
adjacent pair.  A pair is not canonical iff, while its bytes are encoded, some merge crosses the border: of a part at
the right edge of the first token with a part at the left edge of the second, earlier than each of them is merged within
its token.

Source: T. Vieira et al., "Language Models over Canonical Byte-Pair Encodings" (2025, arXiv 2506.07956).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final, final

import numpy as np

from structgen.engine.mask import MaskWords, pack
from structgen.engine.tokenizers.split_pattern import unsupported
from structgen.memory_cache import TERMS, ContentCache

__all__ = ["Merges"]

_NEVER: Final = np.iinfo(np.int32).max
_Spine = tuple[tuple[int, int], ...]  # parts at one edge, each with the rank of the merge that takes it up


@final
class Merges:
    """The merges of a tokenizer.

    Attributes:
        reachable: whether the bytes of each token alone are encoded as this token, ``[V]``.

    Args:
        tokens: the bytes of each token.
        merges: the two parts and the token that they make, the earliest first, and what makes their parts before them.
        units: the tokens that a text consists of before anything is merged; by default those of single bytes.
        ranks: of the merges, in ascending order; by default each its place.  Of the pairs of a text that have the least
            rank the leftmost is merged.

    Complexity: ``row`` takes as many steps as there are tokens whose left edge has a part that some part at the right
        edge of the token merges with; rows are cached.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        merges: Sequence[tuple[int, int, int]],
        units: Collection[int] | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._tokens = tokens
        self._rank: dict[tuple[int, int], int] = {}
        self._right: dict[int, _Spine] = {}
        self._left: dict[int, _Spine] = {}
        if units is None:
            made = {whole for _, _, whole in merges}
            units = [token for token, data in enumerate(tokens) if len(data) == 1 and token not in made]
        for token in units:
            self._right[token] = self._left[token] = ((token, _NEVER),)
        self._units = {tokens[token]: token for token in units}
        ranked = list(zip(range(len(merges)) if ranks is None else ranks, merges, strict=True))
        for rank, (left, right, whole) in ranked:
            # A token is always made by the pair that makes it when its bytes alone are encoded: by no other.
            if whole in self._left or left not in self._left or right not in self._left:
                continue
            if not self.conflict(left, right, rank):
                self._rank[left, right] = rank
                self._right[whole] = ((whole, _NEVER), (right, rank), *self._right[right][1:])
                self._left[whole] = ((whole, _NEVER), (left, rank), *self._left[left][1:])
        self._refuse_late(ranked)
        self.reachable = np.zeros(len(tokens), dtype=np.bool_)
        self.reachable[list(self._left)] = True
        self._index()
        self._rows: ContentCache[MaskWords] = ContentCache(TERMS)

    def _refuse_late(self, ranked: Sequence[tuple[int, tuple[int, int, int]]]) -> None:
        """Refuse a token made of parts whose own merges come after its merge: times along its tree are not in order."""
        known = self._left
        late = {whole for _, (left, right, whole) in ranked if whole not in known and left in known and right in known}
        if not late:
            return
        ranks: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right, whole) in ranked:
            ranks.setdefault((left, right), (rank, whole))
        for token in late:
            parts = self._units_of(self._tokens[token])
            while found := [(*ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]:
                _, whole, at = min(found, key=lambda each: (each[0], each[2]))
                parts[at : at + 2] = [whole]
            if parts == [token]:
                problem = "a merge comes before the merges of its parts"
                raise unsupported(problem, evidence=f"it makes {self._tokens[token]!r}")

    def _units_of(self, data: bytes) -> list[int]:
        """The units of a text; those of whole characters where there are such."""
        if all(bytes([byte]) in self._units for byte in data):
            return [self._units[bytes([byte])] for byte in data]
        return [self._units[each.encode()] for each in data.decode()]

    def conflict(self, left: int, right: int, before: int = _NEVER) -> bool:
        """Whether a merge crosses the border of two reachable tokens before they are merged, with rank ``before``."""
        rank = self._rank
        for one, one_taken in self._right[left]:
            for other, other_taken in self._left[right]:
                crossing = rank.get((one, other))
                # Of equal pairs the leftmost is merged first: that within the left token, that across before the right.
                if crossing is None or crossing >= one_taken or crossing > other_taken:
                    continue
                # In the same place as the merge of the tokens, it is possible before the right one is made.
                if crossing < before or (crossing == before and one == left and other != right):
                    return True
        return False

    def _index(self) -> None:
        """Sort the parts at left edges, and the merges by their left part."""
        entries = [(part, taken, token) for token, spine in self._left.items() for part, taken in spine]
        table = np.array(entries, dtype=np.int64).reshape(-1, 3)
        table = table[np.argsort(table[:, 0], kind="stable")]
        self._starts = np.searchsorted(table[:, 0], np.arange(len(self._tokens) + 1))
        self._taken, self._owner = table[:, 1].astype(np.int32), table[:, 2].astype(np.int32)
        pairs: dict[int, list[tuple[int, int]]] = {}
        for (left, right), rank in self._rank.items():
            pairs.setdefault(left, []).append((right, rank))
        self._partners = {left: np.array(each, dtype=np.int32) for left, each in pairs.items()}

    def row(self, token: int) -> MaskWords:
        """Return the mask of the tokens that may follow a reachable token within a piece, ``[ceil(V / 32)]``."""
        known = self._rows.get(token)
        if known is not None:
            return known
        allowed = self.reachable.copy()
        for part, taken in self._right[token]:
            partners = self._partners.get(part)
            if partners is None:
                continue
            partners = partners[partners[:, 1] < taken]
            starts = self._starts[partners[:, 0]]
            counts = self._starts[partners[:, 0] + 1] - starts
            places = np.repeat(starts - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
            crosses = self._taken[places] >= np.repeat(partners[:, 1], counts)
            allowed[self._owner[places[crosses]]] = False
        row = pack(allowed)
        self._rows.put(token, row, row.nbytes + _ENTRY_BYTES)
        return row


_ENTRY_BYTES: Final = 256
