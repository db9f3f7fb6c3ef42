"""Answers of models that write token by token.

Events come as fields become final, and a field that a check refuses is sampled again.  Quotations can be the most
probable ones, not those that the likeliest tokens lead to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, final

from structgen.decode import Sampler, start_generation
from structgen.decode.autoregressive.search import most_probable
from structgen.decode.potentials import Lifted, NoValue, Potential, Product, as_potential
from structgen.engine.mask import allowed_ids, empty_masks, without
from structgen.errors import GenerationError, LimitExceeded, ProgramError, ValidationFailed
from structgen.program.backends import LocalAnswerStream, ProgramSettings
from structgen.program.backends.field_marginals import field_marginals
from structgen.program.json_cursor import NUMBER_BYTES, FieldEnd, FieldStart, JsonCursor, Path, path_text, string_end
from structgen.program.outcome import FieldScore, Outcome, Violation, field_scores, token_offsets
from structgen.program.stream.event import Event, ObjectFinal, Retracted, Text
from structgen.program.stream.field_tracker import ValueRefused, value_of_text
from structgen.program.stream.guard import GuardReader, Runaway

if TYPE_CHECKING:
    from structgen.decode import AnyPotential, AnySampler, Chunk, Context, Generation, Result
    from structgen.decode.autoregressive.search import FoundRegion, Region
    from structgen.engine import Constraint
    from structgen.program.answer import Answer, QuotationSource

__all__ = ["TokenAnswerStream"]

_FORBIDDEN: Final = Violation((), "", "the potentials forbid what it led to")


@final
class TokenAnswerStream(LocalAnswerStream):
    """Lets a model write an answer token by token: see ``AnswerStream``.

    A field that its type's own validators refuse is removed immediately and sampled again without the tokens that led
    there.  So no refused value stays in the context, and the sampler chooses from the remaining tokens.

    Args:
        context: what the answer is added to.
        answer, settings: see ``AnswerStream``.
        constraint: the grammar of the answer, compiled for the model's vocabulary.
        sampler: see ``structgen.generate``.

    Raises:
        as ``structgen.decode.start_generation``.
    """

    def __init__(
        self,
        context: Context,
        answer: Answer,
        constraint: Constraint,
        settings: ProgramSettings,
        *,
        sampler: AnySampler,
    ) -> None:
        super().__init__(answer, settings)
        if settings.canonical and settings.marginals:
            raise ProgramError(
                "answer",
                "marginals=True and canonical=True exclude each other",
                evidence="marginals are those of all spellings in tokens",
                remedy="leave one out",
            )
        self._constraint = constraint
        self._generation = start_generation(
            context,
            constraint,
            max_tokens=settings.max_tokens,
            sampler=sampler,
            potentials=[_on_values(potential, answer) for potential in settings.potentials],
            seed=settings.seed,
            drafter=settings.drafter,
            alternatives=settings.alternatives,
            canonical=settings.canonical,
        )
        self._reported_tokens = 0
        self._guard: GuardReader | None = None
        is_guarded = answer.form == "json" or answer.annotation is str
        if settings.guard is not None and is_guarded and isinstance(sampler, Sampler):
            self._guard = GuardReader(settings.guard, is_json=answer.form == "json")
        self._limited: dict[str, str] = {}
        self._exact: _QuotationSearch | None = None
        source = answer.source
        if source is None or not source.search_limit:
            return
        if not isinstance(sampler, Sampler):
            raise ProgramError(
                "answer",
                "the most probable quotations are searched for where tokens are chosen one by one",
                evidence=f"{type(sampler).__name__} writes whole outputs",
                remedy="take evidence=True, or a sampler of tokens",
            )
        is_text = answer.form == "text"
        self._exact = _QuotationSearch(self._generation, source, is_text=is_text, violations=self._violations)

    @property
    def generation(self) -> Generation:
        """The output in progress."""
        return self._generation

    def __iter__(self) -> Iterator[Event]:
        """The events up to ``ObjectFinal``.

        Raises:
            ValidationFailed: checks refused all values of a field that were tried.
            LimitExceeded: a limit ended the answer; the error has its text so far.
            GenerationError: as ``structgen.generate``.
        """
        while self._outcome is None:
            try:
                for chunk in self._exact or self._generation:
                    if chunk.start < self._reported_tokens:
                        yield self._taken_back(chunk.start)
                    self._reported_tokens = chunk.start + len(chunk.tokens)
                    events: Iterator[Event] = iter(())
                    if self._tracker is not None:
                        self._tracker.cut = self._generation.cut_byte if chunk.is_cut else None
                        events = self._tracker.read(self._bytes_of(chunk.tokens), self._generation.matcher)
                    yield Text(chunk.text, name="" if self._tracker is None else self._tracker.name)
                    yield from events
                    if self._guard is not None:
                        yield from self._guarded(self._guard, chunk)
                yield from self._finished()
            except ValueRefused as refused:
                yield self._retract(refused)
            except LimitExceeded as error:
                error.ended(self._generation.data, self._generation.tokens)
                raise
            except GenerationError as error:
                if not self._violations or isinstance(error, ValidationFailed):
                    raise
                raise self._failure() from error

    def _bytes_of(self, tokens: tuple[int, ...]) -> bytes:
        return self._generation.vocabulary.decode(tokens)

    def _finished(self) -> Iterator[Event]:
        """The end of the text: what ends with it, and the value of the whole."""
        if self._tracker is not None:
            yield from self._tracker.finish()
        result = self._generation.result()
        value = value_of_text(self._answer, result.text) if self._tracker is None else self._tracker.value
        self._outcome = Outcome(
            self._answer,
            result,
            value,
            self._fields(result, value),
            tuple(self._violations),
            {} if self._exact is None else self._exact.logprobs,
            self._limited,
        )
        yield ObjectFinal(value)

    def _fields(self, result: Result, value: Any) -> tuple[FieldScore, ...]:
        ends = self._ends(result)
        known = None
        if self._settings.marginals:
            offsets = token_offsets(result.tokens, result.vocabulary.tokens)
            with suppress(LimitExceeded):  # the answer is complete without them
                known = field_marginals(
                    self._generation, self._answer, ends, offsets, max_tokens=self._settings.max_tokens
                )
        return field_scores(self._answer, result, ends, value, marginals=known)

    def _retract(self, refused: ValueRefused) -> Retracted:
        """Take back the field that was refused."""
        end, generation = refused.end, self._generation
        self._refuse(end, refused.problem)
        tokens = generation.tokens
        offsets = token_offsets(tokens, generation.vocabulary.tokens)
        keep = max(bisect_left(offsets, end.start + 1) - 1, 0)
        generation.reject(len(tokens), keep=keep, also=self._alike(end, offsets[len(tokens) - 1]) if tokens else ())
        return self._taken_back(keep)

    def _guarded(self, guard: GuardReader, chunk: Chunk) -> Iterator[Event]:
        """Let the guard read a chunk; where a list or string has to end, take back what follows."""
        for found in guard.read(self._bytes_of(chunk.tokens)):
            if self._generation.is_complete:
                return
            tokens = self._generation.tokens
            offsets = token_offsets(tokens, self._generation.vocabulary.tokens)
            keep = bisect_right(offsets, found.at) - 1
            others = self._going_on(
                tokens[:keep], self._bytes_of(tokens[keep : keep + 1]), found.at - offsets[keep], found
            )
            if others is None:
                self._guard = None  # the grammar requires more; so it would after every continuation
                return
            self._limited[path_text(found.path)] = found.reason
            self._generation.reject(keep + 1, keep=keep, also=others)
            yield self._taken_back(keep, Violation(found.path, "", found.reason))
            return

    def _going_on(self, tokens: Sequence[int], written: bytes, offset: int, found: Runaway) -> list[int] | None:
        """The tokens after ``tokens`` with which a list or string does not end; None if no other is allowed.

        ``written`` is the token that was chosen, whose byte ``offset`` is the first that may not be written.
        """
        generation = self._generation
        matcher = self._constraint.matcher()
        for token in tokens:
            matcher.accept(token)
        mask = empty_masks(generation.vocabulary)
        matcher.fill_mask(mask, budget=self._settings.max_tokens - len(tokens))
        allowed = without(mask[0], generation.blocked_at(len(tokens)))
        texts = generation.vocabulary.tokens
        ids = allowed_ids(allowed, len(texts)).tolist()
        if found.closing is None:
            others = [token for token in ids if texts[token].startswith(written[: offset + 1])]
            return others if len(others) < len(ids) else None
        start = written[:offset] if found.closing == b"]" else b""
        others = [
            token
            for token in ids
            if not (token in generation.vocabulary.eos or _ends(texts[token], start, found.closing))
        ]
        return others if len(others) < len(ids) else None

    def _taken_back(self, count: int, why: Violation | None = None) -> Retracted:
        """Go on from the first ``count`` tokens."""
        self._reported_tokens = count
        kept = self._bytes_of(self._generation.tokens[:count])
        if self._tracker is not None:
            self._tracker.restart(kept)
        if self._guard is not None:
            self._guard.restart(kept)
        last = why or (self._violations[-1] if self._violations else _FORBIDDEN)
        return Retracted(len(kept.decode("utf-8", "ignore")), last.path, last.problem, *self._so_far)

    def _alike(self, end: FieldEnd, start: int) -> list[int]:
        """The tokens that, at byte ``start``, complete the refused value as well."""
        is_number = NUMBER_BYTES.issuperset(end.data[:1])
        if start >= end.end and not is_number:
            return []  # it was complete before: what follows it is forced
        rest = self._generation.data[start : end.end]
        size = len(rest)
        return [
            token
            for token, text in enumerate(self._generation.vocabulary.tokens)
            if text.startswith(rest) and (not is_number or (len(text) > size and text[size] not in NUMBER_BYTES))
        ]


def _ends(text: bytes, start: bytes, closing: bytes) -> bool:
    """Whether a token ends what has to end: ``start`` and ``closing``, or a part of ``start``."""
    if closing and text.startswith(start + closing):
        return True
    return len(text) > 0 and len(text) <= len(start) and start.startswith(text)


def _on_values(subject: AnyPotential, answer: Answer) -> Potential:
    """A potential that is given the answer's own values; those that its checks refuse are forbidden."""
    from pydantic import ValidationError

    def value(data: bytes) -> Any:
        try:
            return answer.value(data.decode())
        except ValidationError as error:
            raise NoValue from error

    factors = Product([as_potential(subject)]).factors
    return Product([factor.reading(value) if isinstance(factor, Lifted) else factor for factor in factors])


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
class _QuotationSearch:
    """The chunks of a generation in which every quotation is the most probable one.

    Whether a quotation begins is left to the generation.  Where a token begins one, that token is taken back, and the
    most probable quotation is written from there: see ``structgen.decode.autoregressive.search.most_probable``.

    Args:
        generation: the generation of the answer.
        source: the document that is quoted, and the limit of the search.
        is_text: whether the whole output is the quotation; else it is JSON.
        violations: the values that checks have refused so far; the search skips them.

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
        self._reported = 0
        self._searched: list[_SearchedQuotation] = []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """The next chunk.

        Raises:
            LimitExceeded: the most probable quotation is not found within the limit of the source, which has no answer
                in its place.
            GenerationError: as ``Generation``.
        """
        if self._is_text:
            if not self._searched:
                self._search(_WholeTextRegion(), (), 0, b"")
            return next(self._generation)
        while True:
            chunk = next(self._generation)
            if chunk.start < self._reported:
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
            self._reported = chunk.start + len(chunk.tokens)
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
        try:
            found: FoundRegion | None = most_probable(
                generation, region, limit=self._source.search_limit, excluded=refused
            )
        except LimitExceeded as error:
            if self._source.otherwise is None or error.limit != "search_limit":
                raise
            self._searched.append(_SearchedQuotation(start, first, first))  # the generation samples this one
            generation.context.prepare()
            return
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
        """Follow the output from its start up to token ``place``."""
        generation = self._generation
        self._searched = [each for each in self._searched if each.first < place]
        self._cursor = JsonCursor()
        self._cursor.feed(generation.vocabulary.decode(generation.tokens[:place]))
        self._reported = place
