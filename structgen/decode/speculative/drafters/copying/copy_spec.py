"""Copies what followed the last few tokens when they came before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.copying.continuations import length_bucket
from structgen.decode.speculative.drafters.guessing.following import FollowingDrafting
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess, nothing

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["CopySpec"]

# A polynomial hash modulo a Mersenne prime (Karp and Rabin 1987): any multiplier below the prime serves.
_PRIME: Final = (1 << 61) - 1
_BASE: Final = 0x1F3D5B79A2C4E687
_LONGEST: Final = 64
_PRIORS: Final = (0.75, 0.88, 0.9, 0.92)


@final
@dataclass(frozen=True, slots=True)
class CopySpec(Drafter):
    """Copies a chain from the latest place where the last ``gamma`` tokens stand.

    A rolling hash finds it in constant time, whatever the length of the context; equal hashes are compared before they
    are believed.

    Source: R. Dumitru et al., "CopySpec: Accelerating LLMs with Speculative Copy-and-Paste Without Compromising
    Quality" (2025, arXiv 2502.08923).

    Attributes:
        gamma: how many tokens have to agree.
        most: the most tokens that are copied at a time.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: a number is out of range.
    """

    gamma: int = 3
    most: int = 16
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"CopySpec: gamma must be at least 1; found {self.gamma!r}")
        if not 1 <= self.most <= _LONGEST:
            raise ValueError(f"CopySpec: most must lie between 1 and {_LONGEST}; found {self.most!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "copyspec"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _Copying(self, context, task)


@final
class _Copying(FollowingDrafting):
    def __init__(self, settings: CopySpec, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._gamma = settings.gamma
        self._most = settings.most
        self._leaving = pow(_BASE, settings.gamma, _PRIME)
        self._clear()

    def _clear(self) -> None:
        self._length = 0
        self._hash = 0
        self._ends: dict[int, int] = {}  # hash of a window -> where it ended last, but for the newest
        self._source: int | None = None  # where the newest window ended before

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        seen, gamma = self.tokens, self._gamma
        for _ in tokens:
            token = seen[self._length]
            self._length += 1
            self._hash = (self._hash * _BASE + token + 1) % _PRIME
            if self._length > gamma:
                self._hash = (self._hash - (seen[self._length - 1 - gamma] + 1) * self._leaving) % _PRIME
            if self._length >= gamma:
                self._source = self._ends.get(self._hash)
                self._ends[self._hash] = self._length

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        kept = self.tokens[:length]
        self._clear()
        self.appended(kept)

    def guesses(self, state: DraftState) -> Iterable[Guess]:
        """See ``FollowingDrafting.guesses``."""
        seen, source, gamma = self.tokens, self._source, self._gamma
        if source is None or seen[source - gamma : source] != seen[len(seen) - gamma :]:
            return ()
        length = gamma
        while length < _LONGEST and length < source and seen[source - 1 - length] == seen[len(seen) - 1 - length]:
            length += 1
        return self._copied(source, 0, length_bucket(length))

    def _copied(self, source: int, index: int, bucket: int) -> Iterable[Guess]:
        if index >= self._most or source + index >= len(self.tokens):
            return nothing()
        return (
            Guess(
                self.tokens[source + index],
                ("copyspec", bucket, min(index, 4)),
                _PRIORS[min(index, 3)],
                lambda: self._copied(source, index + 1, bucket),
            ),
        )
