"""Earlier occurrences of the end of a sequence, their continuations, and how a copy is resumed after an edit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, final

from structgen.decode.speculative.acceptance import DraftCandidate, no_candidates

__all__ = ["BARRIER", "Continuation", "Realignment", "SuffixIndex", "SuffixMatch", "candidates_of", "length_bucket"]

_PRIORS: Final = (0.1, 0.25, 0.5, 0.65, 0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.95)
"""Prior of a copied token by the number of agreeing tokens before it, from 0; the last holds for all above."""


class Continuation(NamedTuple):
    """The tokens after an earlier occurrence.

    Attributes:
        tokens: the tokens.
        length: how many tokens before them agree.
    """

    tokens: Sequence[int]
    length: int


def length_bucket(length: int) -> int:
    """Return the bucket of a match length: 0 to 8 one by one, then 9 to 16, then all above."""
    return length if length <= 8 else 9 if length <= 16 else 10


def candidates_of(continuations: Sequence[Continuation], kind: str, depth: int = 0) -> Iterable[DraftCandidate]:
    """Yield the next tokens of continuations, the longest match first, as candidates, each token once.

    An occurrence weighs the square of its match length, so that a long match outweighs many short ones.  The kind of a
    candidate is its share of the weight and the length of its longest match, after ``kind``.  The tree has ``depth`` of
    the tokens of the continuations already.
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
"""Separates unrelated texts: no match extends over it."""

_LEVELS: Final = (1, 2, 4, 8)
MAX_MATCH: Final = 64


class SuffixMatch(NamedTuple):
    """An earlier occurrence of the last tokens of a sequence.

    Attributes:
        position: of the token after it, counted from the first token that was ever appended.
        length: how many tokens before it agree, at most 64.
    """

    position: int
    length: int


@final
class SuffixIndex:
    """A sequence of tokens with the ends of all its runs of 1, 2, 4 and 8 tokens.

    The ends of equal runs are chained from the latest to the earliest, as in compressors of the Lempel-Ziv family.
    Appending a token, or removing one at either end, costs a dictionary access for each of the four lengths; a token
    takes about 450 bytes.

    Attributes:
        tokens: the tokens.
        first: the position of the first token; larger than 0 once some were dropped.
    """

    __slots__ = ("_heads", "_links", "_run", "first", "tokens")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.first = 0
        self._run = 0  # the number of tokens after the last barrier
        self._heads: list[dict[int, int]] = [{} for _ in _LEVELS]  # hash of a run -> its latest end
        self._links: list[list[int]] = [[] for _ in _LEVELS]  # by end: the end before of the same run, or -1
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.first + len(self.tokens)

    def append(self, token: int) -> None:
        """Add a token or a barrier at the end."""
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
        """Drop all tokens from position ``end`` on; ``end`` must not be before the first position."""
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
        """Drop the first ``count`` tokens; the others keep their positions."""
        for level, heads, links in zip(_LEVELS, self._heads, self._links, strict=True):
            for end in range(level, count + 1):
                run = hash(tuple(self.tokens[end - level : end]))
                if heads.get(run) == self.first + end:
                    del heads[run]
            del links[:count]
        del self.tokens[:count]
        self.first += count

    def find(self, suffix: Sequence[int], limit: int) -> list[SuffixMatch]:
        """Return up to ``limit`` occurrences of the last tokens of ``suffix`` that have a token after them.

        The longest match comes first, of equal ones the latest.  Only the latest ``limit`` occurrences of a run are
        examined, so the longest match is found if its last 8, 4, 2 or 1 tokens (as many as it has) occur no more often.
        ``suffix`` may be the end of the indexed tokens.

        Complexity: at most ``4 * limit`` comparisons of up to 64 tokens each.
        """
        lengths: dict[int, int] = {}
        first, end = self.first, self.end
        for level, heads, links in zip(reversed(_LEVELS), reversed(self._heads), reversed(self._links), strict=True):
            if len(suffix) < level:
                continue
            position = heads.get(hash(tuple(suffix[-level:])), -1)
            for _ in range(limit + 1):
                if position <= first:
                    break
                if position < end and position not in lengths and self.tokens[position - first] != BARRIER:
                    length = self._length(position, suffix)
                    if length >= level:  # otherwise only the hashes are equal
                        lengths[position] = length
                position = links[position - first - 1]
            if len(lengths) >= limit:
                break
        matches = [SuffixMatch(position, length) for position, length in lengths.items()]
        matches.sort(key=lambda match: (-match.length, -match.position))
        return matches[:limit]

    def following(self, position: int, count: int) -> list[int]:
        """Return the tokens from ``position`` on: at most ``count``, and none after a barrier."""
        start = position - self.first
        if start < 0:
            return []
        tokens = self.tokens[start : start + count]
        return tokens[: tokens.index(BARRIER)] if BARRIER in tokens else tokens

    def _length(self, position: int, suffix: Sequence[int]) -> int:
        tokens, at = self.tokens, position - self.first
        max_length = min(MAX_MATCH, len(suffix), at)
        length = 0
        while length < max_length and tokens[at - 1 - length] == suffix[-1 - length] != BARRIER:
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
    """Follows the position that an output is a copy of, and drafts where the copy resumes after a token that differs.

    An edit replaces, removes or adds a few tokens.  So after a token that differs, positions around the lost one are
    tried: those after the same token, the closest first, and the position that assumes a replacement.

    Source: T. Ge et al., "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (2022, arXiv
    2205.10350), which aligns by the longest suffix and so needs a token or two that agree again.

    Args:
        index: the tokens that are copied.
    """

    __slots__ = ("_index", "_lost", "_position", "_since")

    def __init__(self, index: SuffixIndex) -> None:
        self._index = index
        self._position: int | None = None  # of the expected next token
        self._lost: int | None = None  # the position at which the copy went wrong
        self._since = 0  # tokens since then

    @property
    def lost(self) -> int | None:
        """The position at which the copy went wrong; None while it goes well or after it was given up."""
        return self._lost

    def forget(self) -> None:
        """Give up the position: the output was changed."""
        self._position = self._lost = None

    def follow(self, tokens: Sequence[int]) -> None:
        """Follow new tokens, before they are added to the index."""
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
        """Take the position of the longest match if it is long enough; of equal ones the closest."""
        if self._position is not None or not matches or matches[0].length < least:
            return
        near = self._lost
        longest = [match for match in matches if match.length == matches[0].length]
        best = longest[0] if near is None else min(longest, key=lambda match: abs(match.position - near))
        self._position = best.position
        if near is None or abs(best.position - near) <= 2 * _WINDOW or best.length > _WINDOW:
            self._lost = None

    def drafts(self, matches: Sequence[SuffixMatch], kind: str, last: int | None = None) -> Iterator[DraftCandidate]:
        """Yield the candidates where the copy may resume, with ``kind`` as the first part of their keys.

        ``matches`` are those of the end of the output, the longest first.  ``last`` is the last token of the output, if
        the index does not end with it.
        """
        lost, since = self._lost, self._since
        if lost is not None:
            token = self._index.tokens[-1] if last is None else last
            same = lost + since
            first = max(lost - _WINDOW // 2, self._index.first + 1)
            window = self._index.following(first - 1, _WINDOW + 1)
            positions = [first + offset for offset, each in enumerate(window) if each == token]
            positions.sort(key=lambda position: abs(position - same))
            for rank, position in enumerate(dict.fromkeys([*positions[:_MAX_POSITIONS], same])):
                agrees = position in positions
                prior = 0.4 / (1 + rank) if agrees else 0.2
                tokens = self._index.following(position, _LENGTH)
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
            tokens[index], key, prior, lambda: _chain(tokens, index + 1, following, min(0.6 + 0.1 * index, 0.9), kind)
        ),
    )
