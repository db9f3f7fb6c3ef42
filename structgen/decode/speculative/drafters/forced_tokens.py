"""Guesses nothing but what the grammar leaves little choice in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.best_first import DraftCandidate, FollowingDrafting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Matcher

__all__ = ["ForcedTokens", "few_allowed"]

_MAX_PIECES: Final = 64
"""Allowed tokens, beginnings of others counted, beyond which a mask is not looked at."""


@final
@dataclass(frozen=True, slots=True)
class ForcedTokens(Drafter):
    """All that the grammar allows where that is little: enumerations, booleans, keys, punctuation, and what it forces.

    Of the allowed tokens those that are the beginning of another allowed one are left out: of ``t``, ``tr`` and
    ``true`` only the last is guessed.  How likely each is is counted for each set of choices.

    Attributes:
        most: the most choices of which all are guessed.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    most: int = 8
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"ForcedTokens: most must be at least 1; found {self.most!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "forced tokens"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _ForcedDrafting(self, context, task)


@final
class _ForcedDrafting(FollowingDrafting):
    def __init__(self, settings: ForcedTokens, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._most = settings.most
        self._vocabulary = task.constraint.vocabulary
        self._row: NDArray[np.int32] = np.zeros((1, (self._vocabulary.size + 31) // 32), dtype=np.int32)

    def guesses(self, state: DraftState) -> Iterable[DraftCandidate]:
        """See ``FollowingDrafting.guesses``."""
        return self._choices(state.matcher, state.mask)

    def _choices(self, matcher: Matcher, mask: NDArray[np.int32]) -> Iterator[DraftCandidate]:
        found = few_allowed(mask, self._vocabulary.eos, _MAX_PIECES)
        longest = _longest(found, self._vocabulary.tokens)
        if not longest or len(longest) > self._most:
            return
        among = tuple(longest)
        prior = 0.97 if len(longest) == 1 else 0.95 / len(longest)
        for token in longest:
            then = partial(self._behind, matcher, [token])
            yield DraftCandidate(token, ("allowed", among, token), prior, then)

    def _behind(self, matcher: Matcher, tokens: list[int]) -> Iterator[DraftCandidate]:
        probe = matcher.fork()
        if not all(probe.accept(token) for token in tokens):
            return
        forced = probe.forced_tokens()
        if forced:
            yield self._forced(probe, forced, 0)
        else:
            probe.fill_mask(self._row)
            yield from self._choices(probe, self._row[0])

    def _forced(self, matcher: Matcher, tokens: list[int], index: int) -> DraftCandidate:
        """The token at ``index``; ``matcher`` stands before the first."""

        def behind() -> Iterable[DraftCandidate]:
            if index + 1 < len(tokens):
                return (self._forced(matcher, tokens, index + 1),)
            return self._behind(matcher, tokens)

        return DraftCandidate(tokens[index], "forced", 0.99, behind)


def few_allowed(mask: NDArray[np.int32], eos: Iterable[int], most: int) -> list[int]:
    """The ids that are set in a mask, EOS ids left out; none where there are more than ``most``.

    Args:
        mask: words ``[ceil(V / 32)]`` in the layout of ``Matcher.fill_mask``.
        eos: the ids that end a text.
        most: the most ids.
    """
    words = np.flatnonzero(mask)
    if len(words) > most:
        return []
    held = mask[words].view(np.uint32)
    ends = set(eos)
    found: list[int] = []
    for word, bits in zip(words.tolist(), held.tolist(), strict=True):
        left = bits
        while left:
            token = 32 * word + (left & -left).bit_length() - 1
            left &= left - 1
            if token not in ends:
                found.append(token)
        if len(found) > most:
            return []
    return found


def _longest(ids: list[int], tokens: tuple[bytes, ...]) -> list[int]:
    """Those of ``ids`` whose bytes are not the beginning of those of another, in order; of equal ones the lowest."""
    ordered = sorted(ids, key=lambda token: (tokens[token], -token))
    begins = [tokens[after].startswith(tokens[token]) for token, after in pairwise(ordered)]
    return sorted(token for token, is_shorter in zip(ordered, [*begins, False], strict=False) if not is_shorter)
