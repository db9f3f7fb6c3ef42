"""Where guesses stand in their grammar, at the price of a few calls of the matcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftState
    from structgen.engine import Matcher

__all__ = ["Choice", "allowed_among"]


@final
class Choice:
    """A position at which a token is chosen, as the loop that takes the tokens before it will come to it.

    Attributes:
        matcher: the state; it belongs to the choice and does not move.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]``.
        forced: the tokens before it for which there was no choice, behind the last one that was chosen.
    """

    __slots__ = ("forced", "mask", "matcher")

    def __init__(self, matcher: Matcher, mask: NDArray[np.int32], forced: tuple[int, ...]) -> None:
        self.matcher = matcher
        self.mask = mask
        self.forced = forced

    @classmethod
    def of(cls, state: DraftState) -> Self:
        """The position where an output stands."""
        return cls(state.matcher.fork(), state.mask, ())

    def then(self, token: int) -> Choice | None:
        """The next position behind ``token``; None where there is none: it is refused, or the output ends.

        The budget of the output is not looked at.
        """
        if token in self.matcher.constraint.vocabulary.eos:
            return None
        matcher = self.matcher.fork()
        if not matcher.accept(token):
            return None
        mask = np.empty((1, len(self.mask)), dtype=np.int32)
        forced: list[int] = []
        while True:
            for run in matcher.forced_tokens():
                if not matcher.accept(run):
                    return None
                forced.append(run)
            matcher.fill_mask(mask)
            only = _only(mask[0])
            if only is None:
                return Choice(matcher, mask[0], tuple(forced))
            if only < 0 or only in matcher.constraint.vocabulary.eos or not matcher.accept(only):
                return None
            forced.append(only)

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next and is no stop, which would be of no use as a guess."""
        if token in self.matcher.constraint.vocabulary.eos:
            return False
        return bool(int(self.mask[token >> 5]) >> (token & 31) & 1)


def allowed_among(mask: NDArray[np.int32], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of some tokens a mask allows: ``[n]`` for ``[words]`` and ``[n]``, or a row for each row."""
    words = np.take_along_axis(mask, tokens >> 5, axis=-1)
    allowed: NDArray[np.bool_] = (words >> (tokens & 31).astype(np.int32) & 1).astype(np.bool_)
    return allowed


def _only(mask: NDArray[np.int32]) -> int | None:
    """The one token that a mask allows; -1 where it allows none, None where it allows more."""
    words = np.flatnonzero(mask)
    if len(words) != 1:
        return None if len(words) else -1
    word = int(mask[words[0]]) & 0xFFFFFFFF
    return None if word & (word - 1) else int(words[0]) * 32 + word.bit_length() - 1
