"""Where the end of a sequence occurred before, what followed it there, and how a copy goes on after an edit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, final

from structgen.decode.speculative.acceptance import DraftCandidate, no_candidates

__all__ = ["BARRIER", "Continuation", "Realignment", "SuffixIndex", "SuffixMatch", "candidates_of", "length_bucket"]

_PRIORS: Final = (0.1, 0.25, 0.5, 0.65, 0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.95)
"""Of a copied token by how many tokens agree before it, from 0 on; the last stands for all above."""


class Continuation(NamedTuple):
    """What followed at one place.

    Attributes:
        tokens: what followed.
        length: how many tokens agreed before it.
    """

    tokens: Sequence[int]
    length: int


def length_bucket(length: int) -> int:
    """Lengths that fare alike: 0 to 8 one by one, then 9 to 16 and all above."""
    return length if length <= 8 else 9 if length <= 16 else 10


def candidates_of(continuations: Sequence[Continuation], kind: str, depth: int = 0) -> Iterable[DraftCandidate]:
    """The tokens that followed, each once, and after them what followed there.

    A place counts by the square of the length that agrees, so that long matches outweigh many short ones; the share of
    a token among all places, and the length of the longest of its own, are its kind.

    Args:
        continuations: the longest match first.
        kind: their source, the first part of the keys.
        depth: how many of their tokens the tree has already.
    """
    groups: dict[int, list[Continuation]] = {}
    weights: dict[int, int] = {}
    for each in continuations:
        if depth < len(each.tokens):
            token = each.tokens[depth]
            groups.setdefault(token, []).append(each)
            weights[token] = weights.get(token, 0) + (1 + each.length + depth) ** 2
    total = sum(weights.values())
    for token, group in groups.items():
        share = weights[token] / total
        bucket = length_bucket(max(each.length for each in group) + depth)
        prior = min(_PRIORS[bucket] * share, 0.98)
        yield DraftCandidate(
            token,
            (kind, bucket, round(4 * share)),
            max(prior, 0.01),
            lambda group=group: candidates_of(group, kind, depth + 1),  # type: ignore[misc]
        )


BARRIER: Final = -1
"""Stands between texts that have nothing to do with each other: no match extends over it."""

_LEVELS: Final = (1, 2, 4, 8)
MAX_MATCH: Final = 64


class SuffixMatch(NamedTuple):
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
        """The position after the last token."""
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
        """Drop the first ``count`` tokens; those after keep their positions."""
        for level, heads, links in zip(_LEVELS, self._heads, self._links, strict=True):
            for end in range(level, count + 1):
                run = hash(tuple(self.tokens[end - level : end]))
                if heads.get(run) == self.first + end:
                    del heads[run]
            del links[:count]
        del self.tokens[:count]
        self.first += count

    def find(self, suffix: Sequence[int], limit: int) -> list[SuffixMatch]:
        """Return where the last tokens of ``suffix`` occur with a token after them.

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
        matches = [SuffixMatch(position, length) for position, length in found.items()]
        matches.sort(key=lambda match: (-match.length, -match.position))
        return matches[:limit]

    def following(self, position: int, count: int) -> list[int]:
        """The tokens from ``position`` on: at most ``count``, and none after a barrier."""
        start = position - self.first
        if start < 0:
            return []
        tokens = self.tokens[start : start + count]
        return tokens[: tokens.index(BARRIER)] if BARRIER in tokens else tokens

    def _length(self, position: int, suffix: Sequence[int]) -> int:
        tokens, at = self.tokens, position - self.first
        most = min(MAX_MATCH, len(suffix), at)
        length = 0
        while length < most and tokens[at - 1 - length] == suffix[-1 - length] != BARRIER:
            length += 1
        return length

    def __repr__(self) -> str:
        return f"<SuffixIndex of {len(self)} tokens>"


_WINDOW: Final = 12
_PATIENCE: Final = 16
_MAX_POSITIONS: Final = 3
_LENGTH: Final = 48


@final
class Realignment:
    """Keeps the place that an output is a copy of, and draft tokens where it goes on once a token differs.

    An edit exchanges, leaves out or adds a few tokens.  So after a token that differs, the places around the one where
    it was lost are tried: those after the same token, the closest first, and the one that leaves the lengths equal.

    Source: T. Ge et al., "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (2022, arXiv
    2205.10350), which aligns by the longest suffix; that needs a token or two which agree again.

    Args:
        index: the tokens that are copied.
    """

    __slots__ = ("_index", "_lost", "_position", "_since")

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index
        self._position: int | None = None  # of the token that should come next
        self._lost: int | None = None  # where the copy stood when it went wrong
        self._since = 0  # tokens since then

    @property
    def lost(self) -> int | None:
        """Where the copy stood when it went wrong; None while it goes well, and once it was given up."""
        return self._lost

    def forget(self) -> None:
        """Give up the place: the output was changed."""
        self._position = self._lost = None

    def follow(self, tokens: Sequence[int]) -> None:
        """Go on with tokens that have come, before the index has them."""
        for token in tokens:
            if self._position is not None:
                if self._index.following(self._position, 1) == [token]:
                    self._position += 1
                    continue
                self._lost, self._since, self._position = self._position, 0, None
            if self._lost is not None:
                self._since += 1
                if self._since > _PATIENCE:
                    self._lost = None

    def settle(self, matches: Sequence[SuffixMatch], least: int = 2) -> None:
        """Take the place of a match that is certain enough: the longest, of equal ones the closest."""
        if self._position is not None or not matches or matches[0].length < least:
            return
        near = self._lost
        longest = [match for match in matches if match.length == matches[0].length]
        best = longest[0] if near is None else min(longest, key=lambda match: abs(match.position - near))
        self._position = best.position
        if near is None or abs(best.position - near) <= 2 * _WINDOW or best.length > _WINDOW:
            self._lost = None

    def drafts(self, matches: Sequence[SuffixMatch], kind: str, last: int | None = None) -> Iterator[DraftCandidate]:
        """What comes where the copy may go on.

        Args:
            matches: of the end of the output, the longest first.
            kind: the first part of the keys.
            last: the last token of the output, where the index does not end with it.
        """
        lost, since = self._lost, self._since
        if lost is not None:
            token = self._index.tokens[-1] if last is None else last
            same = lost + since
            first = max(lost - _WINDOW // 2, self._index.first + 1)
            window = self._index.following(first - 1, _WINDOW + 1)
            places = [first + offset for offset, each in enumerate(window) if each == token]
            places.sort(key=lambda place: abs(place - same))
            for rank, place in enumerate(dict.fromkeys([*places[:_MAX_POSITIONS], same])):
                agrees = place in places
                prior = 0.4 / (1 + rank) if agrees else 0.2
                tokens = self._index.following(place, _LENGTH)
                yield from _chain(tokens, 0, (kind, agrees, min(rank, 2), min(since, 4)), prior, kind)
        self.settle(matches)


def _chain(
    tokens: Sequence[int], index: int, key: tuple[object, ...], prior: float, kind: str
) -> Iterable[DraftCandidate]:
    if index >= len(tokens):
        return no_candidates()
    following = (kind, min(index, 4))
    return (
        DraftCandidate(
            tokens[index],
            key,
            prior,
            lambda: _chain(tokens, index + 1, following, min(0.6 + 0.1 * index, 0.9), kind),
        ),
    )
