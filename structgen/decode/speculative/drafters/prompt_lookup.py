"""Drafts copied from the prompt and the output: ``PromptLookup`` as a tree, ``CopySpec`` as a single chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.acceptance import Calibration, DraftCandidate, FollowingDrafting, no_candidates
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.output_fields import OutputFields
from structgen.decode.speculative.drafters.suffix_index import (
    MAX_MATCH,
    Continuation,
    Realignment,
    SuffixIndex,
    candidates_of,
    length_bucket,
)
from structgen.decode.speculative.drafters.value_copying import ValueCopier

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = ["CopySpec", "PromptLookup"]

# A polynomial hash modulo a Mersenne prime (Karp and Rabin 1987); the multiplier is any number below the prime.
_PRIME: Final = (1 << 61) - 1
_BASE: Final = 0x1F3D5B79A2C4E687
_MAX_LENGTH: Final = 64
_PRIORS: Final = (0.75, 0.88, 0.9, 0.92)


@final
@dataclass(frozen=True, slots=True)
class CopySpec(Drafter):
    """Copies a chain from the latest earlier occurrence of the last ``gamma`` tokens.

    A rolling hash finds it in constant time, whatever the length of the context; the tokens are compared as well.

    Source: R. Dumitru et al., "CopySpec: Accelerating LLMs with Speculative Copy-and-Paste Without Compromising
    Quality" (2025, arXiv 2502.08923).

    Attributes:
        gamma: how many tokens must agree.
        most: the largest number of tokens that are copied at a time.
        calibration: estimates the confidences; outputs that share it learn from each other.

    Raises:
        ValueError: a number is out of range.
    """

    gamma: int = 3
    most: int = 16
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.gamma < 1:
            raise ValueError(f"CopySpec: gamma must be at least 1; found {self.gamma!r}")
        if not 1 <= self.most <= _MAX_LENGTH:
            raise ValueError(f"CopySpec: most must lie between 1 and {_MAX_LENGTH}; found {self.most!r}")

    name = "copyspec"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _CopyDrafting(self, context, task)


@final
class _CopyDrafting(FollowingDrafting):
    def __init__(self, settings: CopySpec, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._gamma = settings.gamma
        self._most = settings.most
        self._leaving = pow(_BASE, settings.gamma, _PRIME)
        self._clear()

    def _clear(self) -> None:
        self._length = 0
        self._hash = 0
        self._ends: dict[int, int] = {}  # hash of a window -> end of its latest occurrence
        self._source: int | None = None  # end of the previous occurrence of the last window

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
        left = self.tokens[:length]
        self._clear()
        self.appended(left)

    def drafts(self, state: DraftState) -> Iterable[DraftCandidate]:
        """See ``FollowingDrafting.drafts``."""
        seen, source, gamma = self.tokens, self._source, self._gamma
        if source is None or seen[source - gamma : source] != seen[len(seen) - gamma :]:
            return ()
        length = gamma
        while length < _MAX_LENGTH and length < source and seen[source - 1 - length] == seen[len(seen) - 1 - length]:
            length += 1
        return self._copied(source, 0, length_bucket(length))

    def _copied(self, source: int, index: int, bucket: int) -> Iterable[DraftCandidate]:
        if index >= self._most or source + index >= len(self.tokens):
            return no_candidates()
        return (
            DraftCandidate(
                self.tokens[source + index],
                ("copyspec", bucket, min(index, 4)),
                _PRIORS[min(index, 3)],
                lambda: self._copied(source, index + 1, bucket),
            ),
        )


@final
@dataclass(frozen=True, slots=True)
class PromptLookup(Drafter):
    """Drafts by copying from the prompt and from the output so far.

    It combines two ways.  As tokens: earlier occurrences of the last tokens are followed, several as a tree; if a copy
    goes wrong, it is resumed around the position where it was lost.  As text: the value that is being written is looked
    up in the prompt, see ``ValueCopier``.

    Source: A. Saxena, "Prompt Lookup Decoding" (2023); T. Ge et al., "Lossless Acceleration for Seq2seq Generation with
    Aggressive Decoding" (2022, arXiv 2205.10350); N. Yang et al., "Inference with Reference" (2023, arXiv 2304.04487).

    Attributes:
        places: how many earlier occurrences of the last tokens are followed.
        shortest: the smallest number of tokens that must agree.
        values: whether values are matched as text as well.
        calibration: estimates the confidences; outputs that share it learn from each other.

    Raises:
        ValueError: a number is out of range.
    """

    places: int = 6
    shortest: int = 1
    values: bool = True
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.places < 1:
            raise ValueError(f"PromptLookup: places must be at least 1; found {self.places!r}")
        if not 1 <= self.shortest <= MAX_MATCH:
            raise ValueError(f"PromptLookup: shortest must lie between 1 and {MAX_MATCH}; found {self.shortest!r}")

    name = "prompt lookup"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _LookupDrafting(self, context, task)


@final
class _LookupDrafting(FollowingDrafting):
    def __init__(self, settings: PromptLookup, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._settings = settings
        self._index = SuffixIndex()
        self._realignment = Realignment(self._index)
        self._tokens = task.constraint.vocabulary.tokens
        self._fields = OutputFields()
        prompt = context.tokens[: task.prompt_tokens]
        # Special tokens, which have no bytes, separate texts.
        data = b"".join([self._spelled(token) or b"\n" for token in prompt]) if settings.values else b""
        self._copier = ValueCopier(task.constraint.vocabulary, data)

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        self._realignment.follow(tokens)
        before = len(self._index)
        self._index.extend(tokens)
        for token in tokens[max(self._task.prompt_tokens - before, 0) :]:
            self._fields.feed(self._tokens[token])

    def _spelled(self, token: int) -> bytes:
        """The bytes of a token; a prompt may have token ids beyond the vocabulary."""
        return self._tokens[token] if token < len(self._tokens) else b""

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        self._index.truncate(length)
        self._realignment.forget()
        self._fields = OutputFields()
        self._fields.feed(b"".join([self._tokens[token] for token in self.output]))

    def drafts(self, state: DraftState) -> Iterator[DraftCandidate]:
        """See ``FollowingDrafting.drafts``."""
        suffix = self.tokens[-MAX_MATCH:]
        matches = [
            match
            for match in self._index.find(suffix, self._settings.places)
            if match.length >= self._settings.shortest
        ]
        yield from candidates_of(
            [Continuation(self._index.following(each.position, MAX_MATCH), each.length) for each in matches], "lookup"
        )
        yield from self._realignment.drafts(matches, "lookup again")
        if self._settings.values:
            yield from self._copier.drafts(self._fields, state.matcher)
