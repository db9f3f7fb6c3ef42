"""Copies from earlier outputs, which a store keeps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.acceptance import Calibration, DraftCandidate, FollowingDrafting
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import NGramTable, ngram_top_tokens
from structgen.decode.speculative.drafters.suffix_index import (
    BARRIER,
    MAX_MATCH,
    Continuation,
    Realignment,
    SuffixIndex,
    SuffixMatch,
    candidates_of,
)

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = ["DraftStore", "Retrieval"]

_MAX_TOKENS: Final = 1 << 15


@final
class DraftStore:
    """The tokens of outputs that are complete, by what they contain; threads may share one.

    The oldest outputs are forgotten beyond ``max_tokens`` tokens (about 300 bytes each), and of an output
    that is longer than that, its prefix.  A store belongs to one vocabulary: ids of another one would mean nothing.

    Args:
        max_tokens: the most tokens of outputs.

    Raises:
        ValueError: ``max_tokens`` is less than 2.

    Example:
        >>> store = DraftStore()
        >>> store.add([5, 6, 7, 8])
        >>> store.continuations([1, 6, 7], places=4)[0].tokens
        [8]
    """

    def __init__(self, *, max_tokens: int = _MAX_TOKENS) -> None:
        if max_tokens < 2:
            raise ValueError(f"DraftStore: max_tokens must be at least 2; found {max_tokens!r}")
        self._max_tokens = max_tokens
        self._index = SuffixIndex()
        self._lengths: deque[int] = deque()  # of the outputs, the barrier after each counted
        self._starts: deque[int] = deque()  # where they begin
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many tokens it holds, and one for each output."""
        return len(self._index)

    @property
    def outputs(self) -> int:
        """How many outputs it holds."""
        return len(self._lengths)

    def add(self, output: Sequence[int]) -> None:
        """Remember an output: ``O(len(output))``, and the same for each that is forgotten for it."""
        if not output:
            return
        kept = output[-(self._max_tokens - 1) :]
        with self._lock:
            self._starts.append(self._index.end)
            self._index.extend(kept)
            self._index.append(BARRIER)
            self._lengths.append(len(kept) + 1)
            while len(self._index) > self._max_tokens:
                self._index.forget(self._lengths.popleft())
                self._starts.popleft()

    def continuations(self, suffix: Sequence[int], *, places: int) -> list[Continuation]:
        """What followed the last tokens of ``suffix`` in outputs, the longest match first, at most 64 tokens each."""
        return self.retrieve(suffix, places, Realignment(self._index))[0] if suffix else []

    def realignment(self) -> Realignment:
        """The place in the store that an output is a copy of; only ``follow`` and ``retrieve`` may use it."""
        return Realignment(self._index)

    def follow(self, realignment: Realignment, tokens: Sequence[int]) -> None:
        """Move a place on by tokens that have come."""
        with self._lock:
            realignment.follow(tokens)

    def retrieve(
        self, output: Sequence[int], places: int, realignment: Realignment
    ) -> tuple[list[Continuation], list[DraftCandidate]]:
        """What may follow an output.

        Args:
            output: what stands of it; where it is empty, the prefixes of the latest outputs are meant.
            places: how many occurrences are looked at.
            realignment: the place that it is a copy of.

        Returns:
            What followed the last tokens, and the draft tokens at where a copy that went wrong goes on.
        """
        with self._lock:
            if not output:
                matches = [SuffixMatch(start, 0) for start in islice(reversed(self._starts), places)]
            else:
                matches = self._index.find(output[-MAX_MATCH:], places)
            found = [Continuation(self._index.following(each.position, MAX_MATCH), each.length) for each in matches]
            again = list(realignment.drafts(matches, "retrieval again", output[-1])) if output else []
        return found, again

    def __repr__(self) -> str:
        return f"<DraftStore of {self.outputs} outputs, {len(self)} tokens>"


_PAIR: Final = 2
_LIKELY: Final = 3
"""Tokens of each distribution that are kept."""


def _pair_table() -> NGramTable:
    return NGramTable(_PAIR, keep=_LIKELY)


@final
@dataclass(frozen=True, slots=True)
class Retrieval(Drafter):
    """Follows what earlier outputs had after the same tokens, the most frequent continuations as a tree.

    What is asked again with a small change is copied from the first answer: where a token differs, the copy is taken up
    again around that place.  Where no earlier output helps, what the target itself found likely after the same two
    tokens is drafted.

    Source: Z. He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024, arXiv 2311.08252); X. Liu et al.,
    "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (2024, arXiv 2407.12021) for what the
    target said after two tokens.

    Attributes:
        store: the outputs; each that is complete is added.
        places: how many occurrences of the last tokens are followed at a time.
        distributions: what the target said after two tokens; None leaves that out.
        calibration: of the confidences; outputs that share the value share what was learned.

    Raises:
        ValueError: a number is out of range.
    """

    store: DraftStore = field(default_factory=DraftStore, repr=False)
    places: int = 16
    distributions: NGramTable | None = field(default_factory=_pair_table, repr=False)
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"Retrieval: places must be at least 1; found {self.places!r}")

    @property
    def laws(self) -> NGramTable | None:
        """The old name of ``distributions``, for one release."""
        return self.distributions

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "retrieval"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _RetrievalDrafting(self, context, task)


@final
class _RetrievalDrafting(FollowingDrafting):
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

    def drafts(self, state: DraftState) -> Iterator[DraftCandidate]:
        """See ``FollowingDrafting.draft tokens``."""
        found, again = self._store.retrieve(self.output, self._settings.places, self._realignment)
        yield from candidates_of(found, "retrieval")
        yield from again
        if self._settings.distributions is not None:
            yield from self._likely(self._settings.distributions, tuple(self.tokens[-_PAIR:]), 0)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        distributions = self._settings.distributions
        if distributions is not None:
            before = self._context.tokens[max(verified.start - _PAIR, 0) : verified.start]
            distributions.learn(self._task.constraint.vocabulary, ngram_top_tokens(verified, before, _PAIR, _LIKELY))

    def close(self) -> None:
        """See ``Drafting.close``."""
        super().close()
        self._store.add(self.output)

    def _likely(self, distributions: NGramTable, before: tuple[int, ...], depth: int) -> Iterator[DraftCandidate]:
        for known in distributions.find(self._task.constraint.vocabulary, before)[:1]:
            if known.length < _PAIR:  # what came after one token says too little
                return
            for rank, (token, share) in enumerate(zip(known.tokens, known.probabilities, strict=True)):
                yield DraftCandidate(
                    token,
                    ("likely", rank, round(4 * share), min(depth, 2)),
                    max(0.4 * share, 0.02),
                    lambda token=token: self._likely(distributions, (before[-1], token), depth + 1),  # type: ignore[misc]
                )
