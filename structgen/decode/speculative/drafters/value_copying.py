"""Values copied from the prompt: matched by bytes, ended where words end, led on to the next field."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, final

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
    """The canonical tokens of short texts; those of the last 512 are kept.

    Args:
        vocabulary: the tokens.
    """

    __slots__ = ("_known", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: OrderedDict[bytes, list[int]] = OrderedDict()

    def of(self, data: bytes) -> list[int]:
        """The tokens of a text; none where characters are broken, which the tokenizer itself cannot spell."""
        known = self._known.get(data)
        if known is None:
            try:
                known = self._vocabulary.tokenize(data.decode())
            except (UnicodeDecodeError, VocabularyError):
                known = []
            self._known[data] = known
            if len(self._known) > _MAX_TEXTS:
                self._known.popitem(last=False)
        return known

    def following(self, word: bytes, text: bytes) -> list[int]:
        """The tokens of ``text`` as they are after the prefix of its first word, which stands already.

        Where no token of both together begins at ``text``, those of ``text`` alone.
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
"""Values ahead whose prefix is drafted."""
_MAX_LABELS: Final = 512
_ENDS_COPY: Final = re.compile(rb'["\\\x00-\x1f]')
_NUMBER: Final = re.compile(rb"-?[0-9]*\.?[0-9]*")
_PART_OF_CHARACTER: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}$")
_LAST_WORD: Final = re.compile(rb" ?[^ ]*$")

_START_PRIORS: Final = {"set off": 0.5, "quoted": 0.2, "next": 0.2, "near": 0.4, "number": 0.15}
_MATCH_PRIORS: Final = {"exact": 0.88, "case": 0.5, "part": 0.4}


@final
class ValueCopier:
    """Draft tokens at the rest of a value and at what comes after it, for one output.

    What stands of a value is looked for in the prompt as text, because a word has other tokens within a JSON string
    than after a space.  The text that follows there is tokenized together with the word that it completes.  Wherever a
    word ends, the end of the value is drafted as well, with the punctuation that the grammar wants, and the key of the
    next field; how likely that is depends on what stands at that place of the prompt.  Where a value has not begun,
    only what the prompt has after the words of its key is drafted, and for numbers what is closest to them.

    Source: T. Ge et al., "Lossless Acceleration for Seq2seq Generation with Aggressive Decoding" (2022, arXiv
    2205.10350) for copying the input and aligning anew after a mismatch; N. Yang et al., "Inference with
    Reference" (2023, arXiv 2304.04487).

    Args:
        vocabulary: of the output.
        prompt: what values are copied from.
    """

    __slots__ = ("_fields", "_labels", "_source", "_spelling", "_tokens")

    def __init__(self, vocabulary: Vocabulary, prompt: bytes) -> None:
        self._tokens = vocabulary.tokens
        self._spelling = Spelling(vocabulary)
        self._source = SourceText(prompt)
        self._labels: dict[tuple[bytes, bool], list[Occurrence]] = {}
        self._fields = OutputFields()

    def drafts(self, fields: OutputFields, matcher: Matcher) -> Iterator[DraftCandidate]:
        """What may come next.

        Args:
            fields: of the output so far.
            matcher: where the output stands; not moved.
        """
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
        found = self._distinct(self._source.occurrences(value, 4 * _MAX_SOURCES), field)
        head = _LAST_WORD.search(value)
        word = head[0] if head else b""
        for rank, each in enumerate(found):
            key = ("value", each.kind, min(each.length, 6), min(rank, 3))
            prior = _MATCH_PRIORS[each.kind] * (1 if each.length > 2 else 0.6) / (1 + rank)
            segment = self._text_from(each.end)
            words = len(value.split())
            yield from self._segment(segment, word, field.place, matcher, key, prior, words, each.end, 1)
            kind = boundary_kind(self._source, each.end)
            if kind is not None:
                yield from self._end(matcher, field.place, kind, words, 1, each.end)
        if not found:
            letter = letter_kind(value[-1:])
            yield from self._structural(matcher, field.place, ("not found", letter), 0.15, 1)

    def _distinct(self, found: list[Occurrence], field: OutputField) -> list[Occurrence]:
        """At most a few occurrences with different texts after them; those after the label come first."""
        starts = [each.end for each in self._places(field.label, number=False)]
        found = sorted(found, key=lambda each: each.end - each.length not in starts)
        distinct: dict[bytes, Occurrence] = {}
        for each in found:
            distinct.setdefault(self._source.text[each.end : each.end + 16], each)
        return list(distinct.values())[:_MAX_SOURCES]

    def _starts(
        self, label: bytes, place: FieldPosition, matcher: Matcher, level: int, after: int | None, *, in_array: bool
    ) -> Iterator[DraftCandidate]:
        """Values that stand after the words of a label, or numbers close to them; and what follows the last value.

        Args:
            label: the key of the value.
            place: in what kind of text it stands.
            matcher: the state before it.
            level: how many values have been begun.
            after: where in the source the value before it ended, if it is from there.
            in_array: whether it is an item of an array.
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
        for rank, each in enumerate(self._places(label, number=is_number)):
            key = ("start", each.kind, rank)
            prior = _START_PRIORS[each.kind] / (1 + rank)
            if is_number:
                number = self._source.number_at(each.end)
                yield from self._segment(number, b"", "bare", matcher, key, prior, 0, None, level)
            else:
                segment = self._text_from(each.end)
                yield from self._segment(segment, b"", place, matcher, key, prior, 0, each.end, level)

    def _segment(  # noqa: PLR0913, PLR0917  all that a piece of text is
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

        Args:
            segment: the text.
            word: the prefix of its first word, which stands already.
            place: in what kind of text it stands.
            matcher: the state before it.
            key: of its first token.
            prior: of its first token.
            words: how many words the value has already.
            offset: of the segment in the source; None for a number, which is whole.
            level: how many values have been begun.
        """
        tokens = self._spelling.following(word, segment)
        if not tokens:
            return
        ends = []
        length = 0
        for token in tokens:
            length += len(self._tokens[token])
            ends.append(length)

        def following(index: int) -> Iterable[DraftCandidate]:
            at = ends[index]
            kind = "end" if offset is None else boundary_kind(self._source, offset + at)
            is_last = index + 1 == len(tokens)
            if kind is not None and (offset is not None or is_last):
                probe = matcher.fork()
                if probe.accept_bytes(segment[:at]) == at:
                    count = words + len(segment[:at].split()) - bool(word.strip())
                    after_it = None if offset is None else offset + at
                    yield from self._end(probe, place, kind, count, level, after_it)
            if not is_last:
                # How far the copy has come tells as much as what stands at its edge.
                goes_on = 0.95 if kind is None else max(0.9 - end_prior(kind), 0.05)
                yield DraftCandidate(
                    tokens[index + 1],
                    ("copy", kind, min(index, 2)),
                    goes_on,
                    lambda: following(index + 1),
                )

        yield DraftCandidate(tokens[0], key, max(min(prior, 0.95), 0.01), lambda: following(0))

    def _end(
        self, matcher: Matcher, place: FieldPosition, kind: str, words: int, level: int, after: int | None
    ) -> Iterator[DraftCandidate]:
        """The end of a value, and in an array another item as well where the grammar does not ask for one."""
        in_array = self._fields.field.in_array
        key = ("ends", kind, min(words, 4), in_array)
        yield from self._structural(matcher, place, key, end_prior(kind), level, after)
        if in_array and place == "string":
            probe = matcher.fork()
            if probe.accept_bytes(_NEXT_ITEM) == len(_NEXT_ITEM):
                item = ValueSeparator(_NEXT_ITEM, b"", True, False)
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
        """The end of a value and all up to the next one, token by token."""
        found = structure_after(matcher, place, self._fields)
        if found is not None:
            yield from self._written(matcher, found, key, prior, level, after)

    def _written(
        self,
        matcher: Matcher,
        found: ValueSeparator,
        key: tuple[object, ...],
        prior: float,
        level: int,
        after: int | None,
    ) -> Iterator[DraftCandidate]:
        tokens = self._spelling.of(found.data)
        if not tokens:
            return

        def following(index: int) -> Iterable[DraftCandidate]:
            if index + 1 < len(tokens):
                yield DraftCandidate(
                    tokens[index + 1], ("structure", min(index, 2)), 0.96, lambda: following(index + 1)
                )
            elif not found.ends and level < _MAX_FIELDS:
                yield from self._next_value(matcher, found, level, after)

        yield DraftCandidate(tokens[0], key, prior, lambda: following(0))

    def _next_value(
        self, matcher: Matcher, found: ValueSeparator, level: int, after: int | None
    ) -> Iterator[DraftCandidate]:
        probe = matcher.fork()
        if probe.accept_bytes(found.data) == len(found.data):
            place: FieldPosition = "string" if found.quoted else "before"
            field = self._fields.field
            in_array = field.in_array and not found.label
            label = found.label or field.label
            yield from self._starts(label, place, probe, level + 1, after, in_array=in_array)

    def _end_of(self, value: bytes) -> int | None:
        """Where a value ends in the source, if all of it is there."""
        found = self._source.occurrences(value, 1) if value.strip() else []
        return found[0].end if found and found[0].kind != "part" else None

    def _places(self, label: bytes, *, number: bool) -> list[Occurrence]:
        known = self._labels.get((label, number))
        if known is None:
            search = self._source.numbers_near if number else self._source.after_label
            known = search(label, 2 if number else _MAX_STARTS)
            if len(self._labels) < _MAX_LABELS:
                self._labels[label, number] = known
        return known

    def _numbers(self, value: bytes) -> list[bytes]:
        """What is missing of the numbers of the source that begin with ``value``."""
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
        """What may be copied from ``offset`` on: up to a quotation mark, and no part of a word."""
        text = self._source.text[offset : offset + _SEGMENT]
        if offset + _SEGMENT < len(self._source.text):
            cut = text.rfind(b" ")
            text = text[:cut] if cut > 0 else _PART_OF_CHARACTER.sub(b"", text)
        stop = _ENDS_COPY.search(text)
        return text[: stop.start()] if stop else text
