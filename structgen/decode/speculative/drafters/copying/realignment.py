"""Taking up a copy again where it went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

from structgen.decode.speculative.drafters.copying.suffix_index import Match, SuffixIndex
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess, nothing

__all__ = ["Realignment"]

_WINDOW: Final = 12
_PATIENCE: Final = 16
_MOST: Final = 3
_LENGTH: Final = 48


@final
class Realignment:
    """Keeps the place that an output is a copy of, and guesses where it goes on once a token differs.

    An edit exchanges, leaves out or adds a few tokens.  So behind a token that differs, the places around the one where
    it was lost are tried: those behind the same token, the closest first, and the one that leaves the lengths equal.

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

    def settle(self, matches: Sequence[Match], least: int = 2) -> None:
        """Take the place of a match that is certain enough: the longest, of equal ones the closest."""
        if self._position is not None or not matches or matches[0].length < least:
            return
        near = self._lost
        longest = [match for match in matches if match.length == matches[0].length]
        best = longest[0] if near is None else min(longest, key=lambda match: abs(match.position - near))
        self._position = best.position
        if near is None or abs(best.position - near) <= 2 * _WINDOW or best.length > _WINDOW:
            self._lost = None

    def guesses(self, matches: Sequence[Match], kind: str, last: int | None = None) -> Iterator[Guess]:
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
            for rank, place in enumerate(dict.fromkeys([*places[:_MOST], same])):
                agrees = place in places
                prior = 0.4 / (1 + rank) if agrees else 0.2
                tokens = self._index.following(place, _LENGTH)
                yield from _chain(tokens, 0, (kind, agrees, min(rank, 2), min(since, 4)), prior, kind)
        self.settle(matches)


def _chain(tokens: Sequence[int], index: int, key: tuple[object, ...], prior: float, kind: str) -> Iterable[Guess]:
    if index >= len(tokens):
        return nothing()
    following = (kind, min(index, 4))
    return (
        Guess(
            tokens[index],
            key,
            prior,
            lambda: _chain(tokens, index + 1, following, min(0.6 + 0.1 * index, 0.9), kind),
        ),
    )
