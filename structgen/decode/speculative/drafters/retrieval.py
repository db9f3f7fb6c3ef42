"""Drafts copied from earlier outputs, which a store keeps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from structgen.cache import Locked
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

__all__ = ["DraftStore", "Retrieval", "pair_table"]

_MAX_TOKENS: Final = 1 << 15
_TOKEN_BYTES: Final = 450


@final
class DraftStore(Locked):
    """The tokens of complete outputs, with an index of their n-grams; threads may share one.

    Beyond ``max_tokens`` tokens (about 450 bytes each) the oldest outputs are dropped; of a longer output, only the end
    is kept.  A store belongs to one vocabulary.

    Args:
        max_tokens: the largest number of tokens.

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
        self._lengths: deque[int] = deque()  # of the outputs, with the barrier after each
        self._starts: deque[int] = deque()  # positions where the outputs begin
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of tokens, plus one for each output."""
        return len(self._index)

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return len(self._lengths)

    @property
    def nbytes(self) -> int:
        """About the bytes of all tokens with their index."""
        return _TOKEN_BYTES * len(self)

    def add(self, output: Sequence[int]) -> None:
        """Add an output: O(len(output)), and the same for each output that is dropped."""
        if not output:
            return
        tokens = output[-(self._max_tokens - 1) :]
        with self._lock:
            self._starts.append(self._index.end)
            self._index.extend(tokens)
            self._index.append(BARRIER)
            self._lengths.append(len(tokens) + 1)
            while len(self._index) > self._max_tokens:
                self._index.forget(self._lengths.popleft())
                self._starts.popleft()

    def continuations(self, suffix: Sequence[int], *, places: int) -> list[Continuation]:
        """Return up to 64 tokens after each occurrence of the end of ``suffix``, the longest match first."""
        return self.retrieve(suffix, places, Realignment(self._index))[0] if suffix else []

    def realignment(self) -> Realignment:
        """Return a new copy position in the store; only ``follow`` and ``retrieve`` may use it."""
        return Realignment(self._index)

    def follow(self, realignment: Realignment, tokens: Sequence[int]) -> None:
        """Move a copy position on by new tokens."""
        with self._lock:
            realignment.follow(tokens)

    def retrieve(
        self, output: Sequence[int], places: int, realignment: Realignment
    ) -> tuple[list[Continuation], list[DraftCandidate]]:
        """Return continuations of an output at up to ``places`` occurrences, and candidates that resume a lost copy.

        If the output is empty, the latest outputs are followed from their start.  ``realignment`` is its copy position.
        """
        with self._lock:
            if not output:
                matches = [SuffixMatch(start, 0) for start in islice(reversed(self._starts), places)]
            else:
                matches = self._index.find(output[-MAX_MATCH:], places)
            continuations = [
                Continuation(self._index.following(each.position, MAX_MATCH), each.length) for each in matches
            ]
            again = list(realignment.drafts(matches, "retrieval again", output[-1])) if output else []
        return continuations, again

    def __repr__(self) -> str:
        return f"<DraftStore of {self.outputs} outputs, {len(self)} tokens>"


_PAIR: Final = 2
_MAX_PAIRS: Final = 1 << 14
_LIKELY: Final = 3
"""How many tokens of each distribution are kept."""


def pair_table(most: int = _MAX_PAIRS) -> NGramTable:
    """A table of what the target predicted after one or two tokens, for this many of these."""
    return NGramTable(_PAIR, keep=_LIKELY, most=most)


@final
@dataclass(frozen=True, slots=True)
class Retrieval(Drafter):
    """Drafts the continuations of the same tokens in earlier outputs, the most frequent ones as a tree.

    The answer to a slightly changed request is copied from the first answer: after a token that differs, the copy is
    resumed around that position.  Otherwise the target's own predictions after the same two tokens are drafted.

    Source: Z. He et al., "REST: Retrieval-Based Speculative Decoding" (NAACL 2024, arXiv 2311.08252); X. Liu et al.,
    "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (2024, arXiv 2407.12021) for what the
    target predicted after two tokens.

    Attributes:
        store: the earlier outputs; each complete output is added.
        places: how many occurrences of the last tokens are followed.
        distributions: the distributions of the target after two tokens; None leaves them out.
        calibration: estimates the confidences; outputs that share it learn from each other.

    Raises:
        ValueError: a number is out of range.
    """

    store: DraftStore = field(default_factory=DraftStore, repr=False)
    places: int = 16
    distributions: NGramTable | None = field(default_factory=pair_table, repr=False)
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"Retrieval: places must be at least 1; found {self.places!r}")

    name = "retrieval"

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
        """See ``FollowingDrafting.drafts``."""
        continuations, again = self._store.retrieve(self.output, self._settings.places, self._realignment)
        yield from candidates_of(continuations, "retrieval")
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
        for after in distributions.find(self._task.constraint.vocabulary, before)[:1]:
            if after.length < _PAIR:  # the distribution after one token is too vague
                return
            for rank, (token, share) in enumerate(zip(after.tokens, after.probabilities, strict=True)):
                yield DraftCandidate(
                    token,
                    ("likely", rank, round(4 * share), min(depth, 2)),
                    max(0.4 * share, 0.02),
                    lambda token=token: self._likely(distributions, (before[-1], token), depth + 1),  # type: ignore[misc]
                )
