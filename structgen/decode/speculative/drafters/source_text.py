"""The text that values are copied from: where values and labels occur in it, and where a value may end."""

from __future__ import annotations

import re
from bisect import bisect
from typing import Final, NamedTuple, final

__all__ = ["Occurrence", "SourceText", "boundary_kind", "end_prior", "letter_kind", "words_of_label"]

_END_PRIORS: Final = {
    "line": 0.75,
    "stop": 0.6,
    "comma": 0.45,
    "colon": 0.5,
    "bracket": 0.5,
    "quote": 0.6,
    "end": 0.85,
    "space": 0.15,
    "space Aa": 0.35,
}


def boundary_kind(source: SourceText, offset: int) -> str | None:
    """Return the kind of boundary at ``offset``; None within a word or after a space.

    ``line``, ``stop`` (a sentence may end), ``comma``, ``colon``, ``bracket``, ``quote``, ``end`` of the text, or
    ``space`` with the first letters of the words on both sides (``letter_kind``).
    """
    text = source.text
    if offset <= 0 or text[offset - 1] == 32:
        return None
    if offset >= len(text):
        return "end"
    if offset in source.breaks:
        return "line"
    following = text[offset : offset + 2]
    first, is_last = following[:1], len(following) == 1 or following[1:] == b" "
    if first == b" ":
        word = text.rfind(b" ", 0, offset) + 1
        return f"space {letter_kind(text[word : word + 1])}{letter_kind(following[1:])}"
    if first in b".!?":
        return "stop" if is_last else None
    if first in b",;:":
        return ("comma" if first == b"," else "colon") if is_last else None
    if first in b")]}>":
        return "bracket"
    return "quote" if first in b"\"'*`" and (is_last or first == b'"') else None


def letter_kind(byte: bytes) -> str:
    """Return A for an upper-case letter, a for a lower-case one, 1 for a digit, a full stop for anything else."""
    return "A" if byte.isupper() else "1" if byte.isdigit() else "a" if byte.isalpha() else "."


def end_prior(kind: str) -> float:
    """Return the prior probability that a value ends at a boundary of this kind."""
    return _END_PRIORS.get(kind) or _END_PRIORS[kind.split(maxsplit=1)[0]]


_MAX_LENGTH: Final = 64
_MIN_PART: Final = 3
_WORDS_BACK: Final = 8
_MAX_OCCURRENCES: Final = 500
"""The largest number of occurrences that are examined; most occurrences of a short text are within words."""
_RUN: Final = re.compile(rb"\s+")
_WORDS: Final = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\x00-\x7f]+")
_WORD_BYTE: Final = re.compile(rb"[0-9A-Za-z\x80-\xff]")
_SET_OFF: Final = re.compile(rb"[\"'*_`]{0,3}(?: ?[:=] ?| ?-+>? | (?:is|are|was|of|no\.?|number|#) ?:? ?)[\"'*_`]{0,3}")
_LABELLED: Final = ("set off", "quoted", "next")
_NEXT: Final = re.compile(rb" ?[#(]? ?")
_ENUMERATION: Final = re.compile(rb"[\"')]?[,;./|]? ?(?:(?:and|or|&|-|\*) )?[\"'(]?")
_NUMBER: Final = re.compile(rb"(?<![0-9A-Za-z.])-?[0-9]+(?:\.[0-9]+)?(?![0-9A-Za-z])")


class Occurrence(NamedTuple):
    """An occurrence of a value, or the start of a possible value.

    Attributes:
        end: the offset in the text after it.
        length: how many bytes of the value agree.
        kind: ``exact``; ``case`` if letters differ in case; ``part`` if only the end of the value occurs.  For the
            start of a value after a label: ``set off`` by a colon or a word such as "is", ``quoted`` if the label is in
            quotation marks as well, or ``next`` to the label.
    """

    end: int
    length: int
    kind: str


@final
class SourceText:
    """A text with runs of white space as single spaces.

    Attributes:
        text: the text.
        breaks: the offsets of spaces that replace a line break.
    """

    __slots__ = ("_lower", "_numbers", "breaks", "text")

    def __init__(self, data: bytes) -> None:
        self.breaks: set[int] = set()
        self._numbers: list[int] | None = None  # where numbers begin; found on first use
        pieces: list[bytes] = []
        at = length = 0
        for run in _RUN.finditer(data):
            pieces.append(data[at : run.start()])
            length += run.start() - at
            if b"\n" in run[0]:
                self.breaks.add(length)
            pieces.append(b" ")
            length += 1
            at = run.end()
        pieces.append(data[at:])
        self.text = b"".join(pieces)
        self._lower = self.text.lower()

    def starts_word(self, offset: int) -> bool:
        """Return whether no letter or digit is before ``offset``."""
        return offset == 0 or not _WORD_BYTE.match(self.text, offset - 1)

    def occurrences(self, value: bytes, limit: int) -> list[Occurrence]:
        """Return up to ``limit`` occurrences of ``value``, or of its longest suffix that begins with a word and occurs.

        The value is not empty.  Its last 64 bytes are searched as they are, then ignoring case.  Occurrences at the
        start of a word come first; others count from three bytes on.

        Complexity: a few linear searches of the text.
        """
        value = _RUN.sub(b" ", value)
        if len(value) > _MAX_LENGTH:
            value = value[-_MAX_LENGTH:]
        starts = [match.start() for match in re.finditer(rb"(?<![0-9A-Za-z\x80-\xff])[0-9A-Za-z\x80-\xff]", value)]
        for start in (0, *[each for each in starts if each > 0][-_WORDS_BACK:]):
            part = value[start:]
            if start and len(part) < _MIN_PART:
                break
            for text, needle, kind in ((self.text, part, "exact"), (self._lower, part.lower(), "case")):
                ends = self._ends(text, needle, limit)
                if ends:
                    return [Occurrence(end, len(part), "part" if start else kind) for end in ends]
        return []

    def after_label(self, label: bytes, limit: int) -> list[Occurrence]:
        """Return up to ``limit`` positions where a value of a label such as ``order_number`` may begin.

        The words of the label, then its last word, then its first word are searched, ignoring case.  Text that is set
        off from them by a colon, an equals sign, a dash or a word such as "is" comes before text that is just next to
        them.
        """
        words = words_of_label(label)
        starts: dict[int, Occurrence] = {}
        phrases = [b" ".join(words), words[-1], words[0]] if words else []
        for phrase in dict.fromkeys(phrases):
            near: list[Occurrence] = []
            for end in self._ends(self._lower, phrase, 4 * limit, whole=True):
                gap = _SET_OFF.match(self.text, end)
                kind = "set off" if gap else "next"
                if gap and self.text[end - len(phrase) - 1 : end - len(phrase)] in (b'"', b"'"):
                    kind = "quoted"
                gap = gap or _NEXT.match(self.text, end)
                if gap and gap.end() > end and gap.end() < len(self.text):
                    near.append(Occurrence(gap.end(), 0, kind))
            near.sort(key=lambda each: _LABELLED.index(each.kind))
            for each in near:
                starts.setdefault(each.end, each)
            if len(starts) >= limit:
                break
        return list(starts.values())[:limit]

    def numbers_near(self, label: bytes, limit: int) -> list[Occurrence]:
        """Return the numbers closest to the words of ``label``; the first numbers if there are no such words."""
        if self._numbers is None:
            self._numbers = [match.start() for match in _NUMBER.finditer(self.text)]
        numbers = self._numbers
        ends = [end for word in words_of_label(label) for end in self._ends(self._lower, word.rstrip(b"s"), limit)]
        if not ends:
            return [Occurrence(start, 0, "number") for start in numbers[:limit]]
        distances: dict[int, int] = {}
        for end in ends:
            middle = bisect(numbers, end)
            for start in numbers[max(middle - limit, 0) : middle + limit]:
                distances[start] = min(abs(start - end), distances.get(start, len(self.text)))
        near = sorted(distances, key=lambda start: (distances[start], start))
        return [Occurrence(start, 0, "near") for start in near[:limit]]

    def item_after(self, offset: int) -> int | None:
        """Return where the next item of an enumeration begins after ``offset``; None if there is none."""
        separator = _ENUMERATION.match(self.text, offset)
        end = offset if separator is None else separator.end()
        return end if offset < end < len(self.text) else None

    def number_at(self, offset: int) -> bytes:
        """Return the number that begins at ``offset``; empty if there is none."""
        number = _NUMBER.match(self.text, offset)
        return number[0] if number else b""

    def _ends(self, text: bytes, needle: bytes, limit: int, *, whole: bool = False) -> list[int]:
        """The ends of occurrences: first those at the start of a word, then others if ``needle`` is long enough."""
        if not needle:
            return []
        good: list[int] = []
        other: list[int] = []
        at = text.find(needle)
        for _ in range(_MAX_OCCURRENCES):
            if at < 0 or len(good) >= limit or len(other) >= 4 * limit:
                break
            end = at + len(needle)
            begins = self.starts_word(at) or not _WORD_BYTE.match(needle)
            if whole:
                if begins and not _WORD_BYTE.match(text, end):
                    good.append(end)
            else:
                (good if begins else other).append(end)
            at = text.find(needle, at + 1)
        return (good + (other if len(needle) >= _MIN_PART and not whole else []))[:limit]


def words_of_label(label: bytes) -> list[bytes]:
    """Return the words of a key in lower case: equal for ``orderNumber``, ``order_number`` and ``Order number``."""
    return [word.lower() for word in _WORDS.findall(label)]
