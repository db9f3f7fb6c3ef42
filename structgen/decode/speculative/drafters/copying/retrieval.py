"""Copies from earlier outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.calibration import Calibration
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.copying.continuations import guesses_of
from structgen.decode.speculative.drafters.copying.draft_store import DraftStore
from structgen.decode.speculative.drafters.guessing.following import FollowingDrafting
from structgen.decode.speculative.drafters.guessing.guess_tree import Guess
from structgen.decode.speculative.drafters.recycling.ngram_laws import NGramLaws
from structgen.decode.speculative.drafters.recycling.reading import learned_laws

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["Retrieval"]

_PAIR: Final = 2
_LIKELY: Final = 3
"""Tokens of each law that are kept."""


def _pairs() -> NGramLaws:
    return NGramLaws(_PAIR, keep=_LIKELY)


@final
@dataclass(frozen=True, slots=True)
class Retrieval(Drafter):
    """Follows what earlier outputs had behind the same tokens, the most frequent continuations as a tree.

    What is asked again with a small change is copied from the first answer: where a token differs, the copy is taken up
    again around that place.  Where no earlier output helps, what the target itself found likely behind the same two
    tokens is guessed.

    Source: Z. He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024, arXiv 2311.08252); X. Liu et al.,
    "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (2024, arXiv 2407.12021) for what the
    target said behind two tokens.

    Attributes:
        store: the outputs; each that is complete is added.
        places: how many occurrences of the last tokens are followed at a time.
        laws: what the target said behind two tokens; None leaves that out.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: a number is out of range.
    """

    store: DraftStore = field(default_factory=DraftStore, repr=False)
    places: int = 16
    laws: NGramLaws | None = field(default_factory=_pairs, repr=False)
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"Retrieval: places must be at least 1; found {self.places!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "retrieval"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _Retrieving(self, context, task)


@final
class _Retrieving(FollowingDrafting):
    def __init__(self, settings: Retrieval, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._settings = settings
        self._store = settings.store
        self._realignment = settings.store.realignment()

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        new = min(len(tokens), len(self.output))
        self._store.follow(self._realignment, self.output[len(self.output) - new :])

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        self._realignment.forget()

    def guesses(self, state: DraftState) -> Iterator[Guess]:
        """See ``FollowingDrafting.guesses``."""
        found, again = self._store.retrieve(self.output, self._settings.places, self._realignment)
        yield from guesses_of(found, "retrieval")
        yield from again
        if self._settings.laws is not None:
            yield from self._likely(self._settings.laws, tuple(self.tokens[-_PAIR:]), 0)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        laws = self._settings.laws
        if laws is not None:
            before = self._context.tokens[max(verified.start - _PAIR, 0) : verified.start]
            laws.learn(self._task.constraint.vocabulary, learned_laws(verified, before, _PAIR, _LIKELY))

    def close(self) -> None:
        """See ``Drafting.close``."""
        super().close()
        self._store.add(self.output)

    def _likely(self, laws: NGramLaws, before: tuple[int, ...], depth: int) -> Iterator[Guess]:
        for known in laws.find(self._task.constraint.vocabulary, before)[:1]:
            if known.length < _PAIR:  # what came behind one token says too little
                return
            for rank, (token, share) in enumerate(zip(known.tokens, known.probabilities, strict=True)):
                yield Guess(
                    token,
                    ("likely", rank, round(4 * share), min(depth, 2)),
                    max(0.4 * share, 0.02),
                    lambda token=token: self._likely(laws, (before[-1], token), depth + 1),  # type: ignore[misc]
                )
