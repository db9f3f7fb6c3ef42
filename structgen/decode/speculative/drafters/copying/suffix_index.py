"""Where the end of a sequence of tokens has occurred before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, final

__all__ = ["BARRIER", "Match", "SuffixIndex"]

BARRIER: Final = -1
"""Stands between texts that have nothing to do with each other: no match extends over it."""

_LEVELS: Final = (1, 2, 4, 8)
LONGEST: Final = 64


class Match(NamedTuple):
    """An earlier occurrence of the last tokens of a sequence.

    Attributes:
        position: of the token that followed there, counted from the first that was ever appended.
        length: how many tokens before it are the same, at most 64.
    """

    position: int
    length: int


@final
class SuffixIndex:
    """Tokens, with all places where runs of 1, 2, 4 and 8 of them end.

    The places of each run are chained from the latest to the earliest, as in compressors of the Lempel-Ziv family.
    Appending, and taking back from either end, costs a dictionary access for each of the four lengths; about 300 bytes
    a token are kept.

    Attributes:
        tokens: those that are kept.
        first: the position of the first of them; larger than 0 once some were forgotten.
    """

    __slots__ = ("_heads", "_links", "_run", "first", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.first = 0
        self._run = 0  # tokens at the end without a barrier
        self._heads: list[dict[int, int]] = [{} for _ in _LEVELS]  # hash of a run -> where it ended last
        self._links: list[list[int]] = [[] for _ in _LEVELS]  # by end: where the same run ended before; -1 for nowhere
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.first + len(self.tokens)

    def append(self, token: int) -> None:
        """Add a token, or a barrier, at the end."""
        tokens = self.tokens
        tokens.append(token)
        self._run = 0 if token == BARRIER else self._run + 1
        end = self.end
        for level, heads, links in zip(_LEVELS, self._heads, self._links, strict=True):
            if self._run < level:
                links.append(-1)
                continue
            run = hash(tuple(tokens[-level:]))
            links.append(heads.get(run, -1))
            heads[run] = end

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens at the end."""
        for token in tokens:
            self.append(token)

    def truncate(self, end: int) -> None:
        """Drop all tokens from position ``end`` on, which must not lie before the first that is kept."""
        tokens = self.tokens
        while self.end > end:
            for level, heads, links in zip(_LEVELS, self._heads, self._links, strict=True):
                before = links.pop()
                run = hash(tuple(tokens[-level:]))
                if heads.get(run) == self.end:
                    if before > self.first:
                        heads[run] = before
                    else:
                        del heads[run]
            tokens.pop()
        self._run = 0
        for token in reversed(tokens[-_LEVELS[-1] :]):
            if token == BARRIER:
                break
            self._run += 1

    def forget(self, count: int) -> None:
        """Drop the first ``count`` tokens; those behind keep their positions."""
        for level, heads, links in zip(_LEVELS, self._heads, self._links, strict=True):
            for end in range(level, count + 1):
                run = hash(tuple(self.tokens[end - level : end]))
                if heads.get(run) == self.first + end:
                    del heads[run]
            del links[:count]
        del self.tokens[:count]
        self.first += count

    def find(self, suffix: Sequence[int], limit: int) -> list[Match]:
        """Return where the last tokens of ``suffix`` occur with a token behind them.

        The longest come first, of equal ones the latest.  Only the latest ``limit`` occurrences of a run are looked at,
        so the longest of all is found wherever its last 8, 4, 2 or 1 tokens (as many as it has) occur no more often.

        Complexity: at most ``4 * limit`` comparisons of up to 64 tokens each.

        Args:
            suffix: tokens; may be the end of those that are kept.
            limit: the most matches.
        """
        found: dict[int, int] = {}
        first, end = self.first, self.end
        for level, heads, links in zip(reversed(_LEVELS), reversed(self._heads), reversed(self._links), strict=True):
            if len(suffix) < level:
                continue
            position = heads.get(hash(tuple(suffix[-level:])), -1)
            for _ in range(limit + 1):
                if position <= first:
                    break
                if position < end and position not in found and self.tokens[position - first] != BARRIER:
                    length = self._length(position, suffix)
                    if length >= level:  # else only the hashes are the same
                        found[position] = length
                position = links[position - first - 1]
            if len(found) >= limit:
                break
        matches = [Match(position, length) for position, length in found.items()]
        matches.sort(key=lambda match: (-match.length, -match.position))
        return matches[:limit]

    def following(self, position: int, count: int) -> list[int]:
        """The tokens from ``position`` on: at most ``count``, and none behind a barrier."""
        start = position - self.first
        if start < 0:
            return []
        tokens = self.tokens[start : start + count]
        return tokens[: tokens.index(BARRIER)] if BARRIER in tokens else tokens

    def _length(self, position: int, suffix: Sequence[int]) -> int:
        tokens, at = self.tokens, position - self.first
        most = min(LONGEST, len(suffix), at)
        length = 0
        while length < most and tokens[at - 1 - length] == suffix[-1 - length] != BARRIER:
            length += 1
        return length

    def __repr__(self) -> str:
        return f"<SuffixIndex of {len(self)} tokens>"
