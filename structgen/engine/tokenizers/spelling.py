"""Spell a byte string with as few tokens as possible, where there is no tokenizer to ask.

The shortest spelling is the closest that bytes alone give to what a trained tokenizer would write.  Among
equally short ones the longest first token wins, then the lowest id, so the result depends on nothing but the
table.
"""

from __future__ import annotations

from collections.abc import Sequence

from structgen.errors import VocabularyError

__all__ = ["Speller", "unspellable"]


class Speller:
    """Shortest spellings over one token table.

    Complexity: ``spell`` takes O(n * k) look-ups for n bytes, k the number of distinct lengths of the tokens
        that
    begin with the same two bytes; memory O(n).
    """

    __slots__ = ("_ids", "_lengths")

    def __init__(self, tokens: Sequence[bytes]) -> None:
        ids: dict[bytes, int] = {}
        for token, piece in enumerate(tokens):
            ids.setdefault(piece, token)
        ids.pop(b"", None)
        seen: dict[bytes, set[int]] = {}
        for piece in ids:
            if len(piece) > 1:
                seen.setdefault(piece[:2], set()).add(len(piece))
        self._ids = ids
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in seen.items()}

    def spell(self, data: bytes) -> list[int]:
        """Return the ids of the shortest spelling of ``data``.

        Raises:
            VocabularyError: no sequence of tokens spells ``data``; names the byte where every spelling ends.
        """
        ids, count = self._ids, len(data)
        unreachable = count + 1
        cost = [unreachable] * count + [0]
        step = [0] * count
        for start in range(count - 1, -1, -1):
            best = unreachable
            for length in self._candidates(data, start):
                through = cost[start + length] + 1 if start + length <= count else unreachable
                if through < best and data[start : start + length] in ids:
                    best, step[start] = through, length
            cost[start] = best
        if cost[0] >= unreachable:
            raise unspellable(data, self._reach(data))
        spelled, start = [], 0
        while start < count:
            spelled.append(ids[data[start : start + step[start]]])
            start += step[start]
        return spelled

    def _candidates(self, data: bytes, start: int) -> tuple[int, ...]:
        return (*self._lengths.get(data[start : start + 2], ()), 1)

    def _reach(self, data: bytes) -> int:
        """The first byte that no spelling of what is before it gets past."""
        reached = {0}
        furthest = 0
        for start in range(len(data)):
            if start in reached:
                ends = [start + n for n in self._candidates(data, start) if data[start : start + n] in self._ids]
                reached.update(end for end in ends if end <= len(data))
                furthest = start
        return furthest


def unspellable(data: bytes, offset: int) -> VocabularyError:
    """Make the error for a text that the tokens cannot write from byte ``offset`` on."""
    around = data[max(0, offset - 8) : offset + 9]
    return VocabularyError(
        "vocabulary",
        f"no tokens spell byte 0x{data[offset]:02x} at offset {offset}",
        evidence=f"found in {around!r}",
        remedy="use a tokenizer with byte fallback, or leave that text out",
    )
