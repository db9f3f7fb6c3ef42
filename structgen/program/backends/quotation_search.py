"""Quotations that are the most probable ones, not those that the likeliest tokens lead to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from structgen.decode.autoregressive.search import most_probable
from structgen.program.json_cursor import FieldStart, JsonCursor, Path, string_end

if TYPE_CHECKING:
    from structgen.decode import Chunk, Generation
    from structgen.decode.autoregressive.search import FoundRegion, Region
    from structgen.program.answer import QuotationSource
    from structgen.program.outcome import Violation

__all__ = ["QuotationSearch"]


@final
class _JsonStringRegion:
    """A JSON string whose opening quote is the last byte of ``before``."""

    is_rest = False

    def __init__(self, before: bytes) -> None:
        self._before = before

    def admits(self, data: bytes) -> bool:
        """See ``Region.admits``."""
        return data.startswith(self._before) or self._before.startswith(data)

    def end(self, data: bytes) -> int | None:
        """See ``Region.end``."""
        return string_end(data, len(self._before))


@final
class _WholeTextRegion:
    """All that is written."""

    is_rest = True

    def admits(self, data: bytes) -> bool:
        """See ``Region.admits``."""
        return True

    def end(self, data: bytes) -> int | None:
        """See ``Region.end``."""
        return None


@final
@dataclass(frozen=True, slots=True)
class _SearchedQuotation:
    """A quotation that was searched for: it begins at byte ``start``, in token ``first``, and ends before ``last``."""

    start: int
    first: int
    last: int


@final
class QuotationSearch:
    """The chunks of a generation in which every quotation is the most probable one.

    Whether a quotation begins is left to the generation.  Where a token begins one, that token is taken back, and the
    most probable quotation is written from there: see ``structgen.decode.autoregressive.search.most_probable``.

    Args:
        generation: of an answer that is quoted from a source.
        source: from which, with a limit of the search.
        is_text: whether the whole output is the quotation; else it is JSON.
        violations: what checks have refused, as far as that is known when a quotation begins; such is passed over.

    Attributes:
        logprobs: of the quotations, by their paths: see ``structgen.decode.autoregressive.search.FoundRegion``.
    """

    def __init__(
        self, generation: Generation, source: QuotationSource, *, is_text: bool, violations: Sequence[Violation]
    ) -> None:
        self.logprobs: dict[Path, float] = {}
        self._generation = generation
        self._source = source
        self._is_text = is_text
        self._violations = violations
        self._cursor = JsonCursor()
        self._told = 0
        self._searched: list[_SearchedQuotation] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """The next chunk.

        Raises:
            LimitExceeded: the most probable quotation is not found within the limit of the source.
            GenerationError: as ``Generation``.
        """
        if self._is_text:
            if not self._searched:
                self._search(_WholeTextRegion(), (), 0, b"")
            return next(self._generation)
        while True:
            chunk = next(self._generation)
            if chunk.start < self._told:
                place = self._resumed(chunk.start)
                self._restart(place)
                if place < chunk.start:
                    self._generation.rewind(place)
                    continue
            begins = self._begins(chunk)
            if begins is not None:
                event, offset, before = begins
                chunk = self._generation.take_back(chunk, offset)
                self._search(_JsonStringRegion(before), event.path, event.start, before)
                if not chunk.tokens:
                    continue
            self._cursor.feed(self._generation.vocabulary.decode(chunk.tokens))
            self._told = chunk.start + len(chunk.tokens)
            return chunk

    def _begins(self, chunk: Chunk) -> tuple[FieldStart, int, bytes] | None:
        """The first quotation that begins in a chunk and was not searched for.

        With it the number of the token, and the bytes of this up to the opening quotation mark.
        """
        ahead = self._cursor.copy()
        known = {each.start for each in self._searched}
        place = len(ahead.data)
        for offset, token in enumerate(chunk.tokens):
            data = self._generation.vocabulary.tokens[token]
            for event in ahead.feed(data):
                if isinstance(event, FieldStart) and event.start not in known:
                    before = data[: event.start - place + 1]
                    if before.endswith(b'"') and self._source.is_quoted(event.path):
                        return event, offset, before
            place += len(data)
        return None

    def _search(self, region: Region, path: Path, start: int, before: bytes) -> None:
        """Plan the most probable quotation; where nothing is left, see to it that none begins here."""
        generation = self._generation
        refused = {before[:-1] + each.text.encode() for each in self._violations if each.path == path}
        first = len(generation.tokens)
        found: FoundRegion | None = most_probable(generation, region, limit=self._source.search_limit, excluded=refused)
        if found is None:
            generation.block(
                token for token, data in enumerate(generation.vocabulary.tokens) if data.startswith(before)
            )
            return
        generation.plan(found.steps, forwards=found.forwards, time_model_s=found.time_model_s)
        self._searched.append(_SearchedQuotation(start, first, first + len(found.steps)))
        self.logprobs[path] = found.logprob

    def _resumed(self, place: int) -> int:
        """Where to go on if the output was taken back to ``place``: not within a quotation."""
        if all(each.first != place for each in self._searched):
            place = min([place, *(each.first for each in self._searched if each.first < place < each.last)])
        return place

    def _restart(self, place: int) -> None:
        """Follow the output from its prefix up to token ``place``."""
        generation = self._generation
        self._searched = [each for each in self._searched if each.first < place]
        self._cursor = JsonCursor()
        self._cursor.feed(generation.vocabulary.decode(generation.tokens[:place]))
        self._told = place
