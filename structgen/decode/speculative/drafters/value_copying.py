"""Values copied from the prompt: matched by bytes, ended at word boundaries, continued with the next field."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.acceptance import DraftCandidate
from structgen.decode.speculative.drafters.output_fields import OutputFields, ValueSeparator, structure_after
from structgen.decode.speculative.drafters.source_text import (
    Occurrence,
    SourceText,
    boundary_kind,
    end_prior,
    letter_kind,
)
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.output_fields import FieldPosition, OutputField
    from structgen.engine import Matcher, Vocabulary

__all__ = ["Spelling", "ValueCopier"]

_MAX_TEXTS: Final = 512


@final
class Spelling:
    """The canonical tokens of short texts, with a cache of 512 texts.

    Args:
        vocabulary: the tokens.
    """

    __slots__ = ("_cache", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._cache: OrderedDict[bytes, list[int]] = OrderedDict()

    def of(self, data: bytes) -> list[int]:
        """Return the tokens of a text; none if it ends or begins within a character."""
        tokens = self._cache.get(data)
        if tokens is None:
            try:
                tokens = self._vocabulary.tokenize(data.decode())
            except (UnicodeDecodeError, VocabularyError):
                tokens = []
            self._cache[data] = tokens
            if len(self._cache) > _MAX_TEXTS:
                self._cache.popitem(last=False)
        return tokens

    def following(self, word: bytes, text: bytes) -> list[int]:
        """Return the tokens of ``text`` after ``word``, the part of its first word that is written already.

        They are from the tokens of both together if one of them begins at ``text``, otherwise from ``text`` alone.
        """
        if word and text:
            length = 0
            tokens = self.of(word + text)
            for index, token in enumerate(tokens):
                if length == len(word):
                    return tokens[index:]
                length += len(self._vocabulary.tokens[token])
        return self.of(text)


_MAX_SOURCES: Final = 6
_MAX_STARTS: Final = 4
_SEGMENT: Final = 96
_NEXT_ITEM: Final = b'", "'
_MAX_FIELDS: Final = 3
"""The largest number of consecutive values that one draft starts."""
_MAX_LABELS: Final = 512
_ENDS_COPY: Final = re.compile(rb'["\\\x00-\x1f]')
_NUMBER: Final = re.compile(rb"-?[0-9]*\.?[0-9]*")
_PART_OF_CHARACTER: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}$")
_LAST_WORD: Final = re.compile(rb" ?[^ ]*$")

_START_PRIORS: Final = {"set off": 0.5, "quoted": 0.2, "next": 0.2, "near": 0.4, "number": 0.15}
_MATCH_PRIORS: Final = {"exact": 0.88, "case": 0.5, "part": 0.4}


class _Copy(NamedTuple):
    """A text of the source that may be copied; ``ValueCopier._segment`` says what its parts are."""

    segment: bytes
    tokens: Sequence[int]
    ends: Sequence[int]  # of the tokens, in bytes
    place: FieldPosition
    matcher: Matcher
    words: int  # of the value before the segment, without the one that goes on in it
    offset: int | None
    level: int


class _Structure(NamedTuple):
    """The text between two values."""

    matcher: Matcher
    separator: ValueSeparator
    tokens: Sequence[int]
    level: int
    after: int | None


@final
class ValueCopier:
    """Drafts the rest of a value and the text after it, for one output.

    The value so far is searched in the prompt as text, since a word has other tokens in a JSON string than after a
    space. The text after an occurrence is tokenized together with the word that it completes.  Wherever a word ends,
    the end of the value is drafted as well, with the punctuation of the grammar and the key of the next field; its
    probability depends on the boundary in the prompt.  A value that has not begun is drafted from the text after the
    words of its key, a number from the closest numbers.

    Source: T. Ge et al., "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (2022, arXiv
    2205.10350) for copying the input and realigning after a mismatch; N. Yang et al., "Inference with Reference" (2023,
    arXiv 2304.04487).

    Args:
        vocabulary: the vocabulary of the output.
        prompt: the text that values are copied from.
    """

    __slots__ = ("_fields", "_labels", "_source", "_spelling", "_tokens")

    def __init__(self, vocabulary: Vocabulary, prompt: bytes) -> None:
        self._tokens = vocabulary.tokens
        self._spelling = Spelling(vocabulary)
        self._source = SourceText(prompt)
        self._labels: dict[tuple[bytes, bool], list[Occurrence]] = {}
        self._fields = OutputFields()

    def drafts(self, fields: OutputFields, matcher: Matcher) -> Iterator[DraftCandidate]:
        """Yield the candidates for the next token, after the fields of the output so far; the matcher is not moved."""
        self._fields = fields
        field = fields.field
        if field.place in ("between", "key"):
            yield from self._structural(matcher, field.place, ("between", field.place), 0.7, 1)
        elif field.value.strip():
            yield from self._copies(field, matcher)
        else:
            after = self._end_of(fields.previous)
            live = matcher.live_bytes()
            if field.place == "before" and (b'"' in live or b" " in live):
                yield from self._structural(matcher, field.place, ("between", "before"), 0.8, 1, after)
            else:
                yield from self._starts(field.label, field.place, matcher, 1, after, in_array=field.in_array)

    def _copies(self, field: OutputField, matcher: Matcher) -> Iterator[DraftCandidate]:
        value = field.value
        if field.place == "bare":
            for rank, number in enumerate(self._numbers(value)):
                yield from self._segment(
                    number, b"", field.place, matcher, ("number", min(len(value), 3), rank), 0.4, 0, None, 1
                )
            yield from self._structural(matcher, field.place, ("number ends", min(len(value), 4)), 0.4, 1)
            return
        occurrences = self._distinct(self._source.occurrences(value, 4 * _MAX_SOURCES), field)
        head = _LAST_WORD.search(value)
        word = head[0] if head else b""
        for rank, each in enumerate(occurrences):
            key = ("value", each.kind, min(each.length, 6), min(rank, 3))
            prior = _MATCH_PRIORS[each.kind] * (1 if each.length > 2 else 0.6) / (1 + rank)
            segment = self._text_from(each.end)
            words = len(value.split())
            yield from self._segment(segment, word, field.place, matcher, key, prior, words, each.end, 1)
            kind = boundary_kind(self._source, each.end)
            if kind is not None:
                yield from self._end(matcher, field.place, kind, words, 1, each.end)
        if not occurrences:
            letter = letter_kind(value[-1:])
            yield from self._structural(matcher, field.place, ("not found", letter), 0.15, 1)

    def _distinct(self, occurrences: list[Occurrence], field: OutputField) -> list[Occurrence]:
        """A few occurrences with different texts after them; those after the label come first."""
        starts = [each.end for each in self._value_starts(field.label, number=False)]
        distinct: dict[bytes, Occurrence] = {}
        for each in sorted(occurrences, key=lambda each: each.end - each.length not in starts):
            distinct.setdefault(self._source.text[each.end : each.end + 16], each)
        return list(distinct.values())[:_MAX_SOURCES]

    def _starts(
        self, label: bytes, place: FieldPosition, matcher: Matcher, level: int, after: int | None, *, in_array: bool
    ) -> Iterator[DraftCandidate]:
        """Candidates for the start of a value: after the words of its label, close numbers, and after the last value.

        ``level`` is how many values the draft has started, ``after`` where in the source the previous value ended, if
        it is from there.
        """
        live = matcher.live_bytes()
        is_number = place in ("before", "bare") and b"1" in live
        if not is_number and place in ("before", "bare"):
            return
        following = None if after is None or is_number else self._source.item_after(after)
        if following is not None:
            key: tuple[object, ...] = ("follows", in_array, boundary_kind(self._source, after or 0))
            segment = self._text_from(following)
            yield from self._segment(segment, b"", place, matcher, key, 0.5 if in_array else 0.08, 0, following, level)
        if in_array and following is not None:
            return
        for rank, each in enumerate(self._value_starts(label, number=is_number)):
            key = ("start", each.kind, rank)
            prior = _START_PRIORS[each.kind] / (1 + rank)
            if is_number:
                number = self._source.number_at(each.end)
                yield from self._segment(number, b"", "bare", matcher, key, prior, 0, None, level)
            else:
                segment = self._text_from(each.end)
                yield from self._segment(segment, b"", place, matcher, key, prior, 0, each.end, level)

    def _segment(  # noqa: PLR0913, PLR0917  the parts of a segment
        self,
        segment: bytes,
        word: bytes,
        place: FieldPosition,
        matcher: Matcher,
        key: tuple[object, ...],
        prior: float,
        words: int,
        offset: int | None,
        level: int,
    ) -> Iterator[DraftCandidate]:
        """The first token of a text that may be copied, with the others after it.

        ``word`` is the part of its first word that is written already; the value has ``words`` words already.  ``key``
        and ``prior`` are those of the first token.  ``offset`` is that of the segment in the source; None for a number,
        which is whole.  See ``_starts`` for ``level``.
        """
        tokens = self._spelling.following(word, segment)
        if not tokens:
            return
        ends = list(accumulate(len(self._tokens[token]) for token in tokens))
        copy = _Copy(segment, tokens, ends, place, matcher, words - bool(word.strip()), offset, level)
        yield DraftCandidate(tokens[0], key, max(min(prior, 0.95), 0.01), partial(self._copied, copy, 0))

    def _copied(self, copy: _Copy, index: int) -> Iterable[DraftCandidate]:
        """The candidates after a token of a copy."""
        at, offset = copy.ends[index], copy.offset
        kind = "end" if offset is None else boundary_kind(self._source, offset + at)
        is_last = index + 1 == len(copy.tokens)
        if kind is not None and (offset is not None or is_last):
            probe = copy.matcher.fork()
            if probe.accept_bytes(copy.segment[:at]) == at:
                count = copy.words + len(copy.segment[:at].split())
                after_it = None if offset is None else offset + at
                yield from self._end(probe, copy.place, kind, count, copy.level, after_it)
        if not is_last:
            # The length of the copy matters as much as the boundary at its end.
            goes_on = 0.95 if kind is None else max(0.9 - end_prior(kind), 0.05)
            key = ("copy", kind, min(index, 2))
            yield DraftCandidate(copy.tokens[index + 1], key, goes_on, partial(self._copied, copy, index + 1))

    def _end(
        self, matcher: Matcher, place: FieldPosition, kind: str, words: int, level: int, after: int | None
    ) -> Iterator[DraftCandidate]:
        """The end of a value, and in an array also the next item if the grammar requires none."""
        in_array = self._fields.field.in_array
        key = ("ends", kind, min(words, 4), in_array)
        yield from self._structural(matcher, place, key, end_prior(kind), level, after)
        if in_array and place == "string":
            probe = matcher.fork()
            if probe.accept_bytes(_NEXT_ITEM) == len(_NEXT_ITEM):
                item = ValueSeparator(_NEXT_ITEM, b"", quoted=True, ends=False)
                yield from self._written(matcher, item, ("goes on", kind, min(words, 4)), end_prior(kind), level, after)

    def _structural(
        self,
        matcher: Matcher,
        place: FieldPosition,
        key: tuple[object, ...],
        prior: float,
        level: int,
        after: int | None = None,
    ) -> Iterator[DraftCandidate]:
        """The end of a value and the text up to the next one, token by token."""
        separator = structure_after(matcher, place, self._fields)
        if separator is not None:
            yield from self._written(matcher, separator, key, prior, level, after)

    def _written(
        self,
        matcher: Matcher,
        separator: ValueSeparator,
        key: tuple[object, ...],
        prior: float,
        level: int,
        after: int | None,
    ) -> Iterator[DraftCandidate]:
        tokens = self._spelling.of(separator.data)
        if not tokens:
            return

        structure = _Structure(matcher, separator, tokens, level, after)
        yield DraftCandidate(tokens[0], key, prior, partial(self._after_structure, structure, 0))

    def _after_structure(self, structure: _Structure, index: int) -> Iterable[DraftCandidate]:
        """The candidates after a token of the text between two values."""
        matcher, separator, tokens, level, after = structure
        if index + 1 < len(tokens):
            key = ("structure", min(index, 2))
            yield DraftCandidate(tokens[index + 1], key, 0.96, partial(self._after_structure, structure, index + 1))
        elif not separator.ends and level < _MAX_FIELDS:
            yield from self._next_value(matcher, separator, level, after)

    def _next_value(
        self, matcher: Matcher, separator: ValueSeparator, level: int, after: int | None
    ) -> Iterator[DraftCandidate]:
        probe = matcher.fork()
        if probe.accept_bytes(separator.data) == len(separator.data):
            place: FieldPosition = "string" if separator.quoted else "before"
            field = self._fields.field
            in_array = field.in_array and not separator.label
            label = separator.label or field.label
            yield from self._starts(label, place, probe, level + 1, after, in_array=in_array)

    def _end_of(self, value: bytes) -> int | None:
        """Where a value ends in the source, if it occurs there as a whole."""
        occurrences = self._source.occurrences(value, 1) if value.strip() else []
        return occurrences[0].end if occurrences and occurrences[0].kind != "part" else None

    def _value_starts(self, label: bytes, *, number: bool) -> list[Occurrence]:
        starts = self._labels.get((label, number))
        if starts is None:
            search = self._source.numbers_near if number else self._source.after_label
            starts = search(label, 2 if number else _MAX_STARTS)
            if len(self._labels) < _MAX_LABELS:
                self._labels[label, number] = starts
        return starts

    def _numbers(self, value: bytes) -> list[bytes]:
        """The rests of the numbers in the source that begin with ``value``."""
        if not _NUMBER.fullmatch(value):
            return []
        rests: dict[bytes, None] = {}
        for each in self._source.occurrences(value, 4 * _MAX_SOURCES):
            start = each.end - len(value)
            whole = self._source.number_at(start)
            if each.kind == "exact" and len(whole) > len(value):
                rests.setdefault(whole[len(value) :])
        return list(rests)[:_MAX_SOURCES]

    def _text_from(self, offset: int) -> bytes:
        """The text to copy from ``offset`` on: up to a quotation mark, in whole words."""
        text = self._source.text[offset : offset + _SEGMENT]
        if offset + _SEGMENT < len(self._source.text):
            cut = text.rfind(b" ")
            text = text[:cut] if cut > 0 else _PART_OF_CHARACTER.sub(b"", text)
        stop = _ENDS_COPY.search(text)
        return text[: stop.start()] if stop else text
