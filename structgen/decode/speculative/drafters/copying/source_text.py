"""The text that values are copied from, and where in it a value or a label stands."""

from __future__ import annotations

import re
from bisect import bisect
from typing import Final, NamedTuple, final

__all__ = ["Occurrence", "SourceText", "words_of_label"]

_LONGEST: Final = 64
_SHORTEST_PART: Final = 3
_WORDS_BACK: Final = 8
_MOST_PLACES: Final = 500
"""Places of a short text that are looked at, most of which may lie within words."""
_RUN: Final = re.compile(rb"\s+")
_WORDS: Final = re.compile(rb"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\x00-\x7f]+")
_WORD_BYTE: Final = re.compile(rb"[0-9A-Za-z\x80-\xff]")
_SET_OFF: Final = re.compile(rb"[\"'*_`]{0,3}(?: ?[:=] ?| ?-+>? | (?:is|are|was|of|no\.?|number|#) ?:? ?)[\"'*_`]{0,3}")
_LABELLED: Final = ("set off", "quoted", "next")
_NEXT: Final = re.compile(rb" ?[#(]? ?")
_ENUMERATION: Final = re.compile(rb"[\"')]?[,;./|]? ?(?:(?:and|or|&|-|\*) )?[\"'(]?")
_NUMBER: Final = re.compile(rb"(?<![0-9A-Za-z.])-?[0-9]+(?:\.[0-9]+)?(?![0-9A-Za-z])")


class Occurrence(NamedTuple):
    """Where what stands of a value occurs.

    Attributes:
        end: the offset in the text behind it.
        length: how many bytes of the value agree.
        kind: ``exact``; ``case`` where letters differ in case; ``part`` where only the end of the value occurs; after a
            label, ``set off`` from it by a colon or a word such as "is", ``quoted`` where it stands in quotation marks
            as well, or ``next`` to it.
    """

    end: int
    length: int
    kind: str


@final
class SourceText:
    """A text with runs of white space as single spaces.

    Attributes:
        text: the text.
        breaks: the offsets of spaces that stand for a line break.
    """

    __slots__ = ("_lower", "_numbers", "breaks", "text")

    def __init__(self, data: bytes) -> None:
        self.breaks: set[int] = set()
        self._numbers: list[int] | None = None  # where they begin, once they were asked for
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
        """Whether no letter or digit stands before ``offset``."""
        return offset == 0 or not _WORD_BYTE.match(self.text, offset - 1)

    def occurrences(self, value: bytes, limit: int) -> list[Occurrence]:
        """Where ``value`` occurs, or the longest part at its end that begins with a word and does.

        The value is looked for as it is, then in any case, both at most at its last 64 bytes.  Occurrences that begin a
        word come first; others count from three bytes on.

        Complexity: a few linear searches of the text.

        Args:
            value: not empty.
            limit: the most occurrences.
        """
        value = _RUN.sub(b" ", value)
        if len(value) > _LONGEST:
            value = value[-_LONGEST:]
        starts = [match.start() for match in re.finditer(rb"(?<![0-9A-Za-z\x80-\xff])[0-9A-Za-z\x80-\xff]", value)]
        for start in (0, *[each for each in starts if each > 0][-_WORDS_BACK:]):
            part = value[start:]
            if start and len(part) < _SHORTEST_PART:
                break
            for text, wanted, kind in ((self.text, part, "exact"), (self._lower, part.lower(), "case")):
                ends = self._ends(text, wanted, limit)
                if ends:
                    return [Occurrence(end, len(part), "part" if start else kind) for end in ends]
        return []

    def after_label(self, label: bytes, limit: int) -> list[Occurrence]:
        """Where a value may begin that ``label`` names.

        The words of the label, then its last word and its first, are looked for in any case; what is set off from them
        by a colon, an equals sign, a dash or a word such as "is" comes before what only stands next to them.

        Args:
            label: a key such as ``order_number`` or ``orderNumber``.
            limit: the most places.
        """
        words = words_of_label(label)
        found: dict[int, Occurrence] = {}
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
                found.setdefault(each.end, each)
            if len(found) >= limit:
                break
        return list(found.values())[:limit]

    def numbers_near(self, label: bytes, limit: int) -> list[Occurrence]:
        """Where numbers stand close to the words of ``label``, the closest first; without those the first numbers."""
        if self._numbers is None:
            self._numbers = [match.start() for match in _NUMBER.finditer(self.text)]
        numbers = self._numbers
        places = [end for word in words_of_label(label) for end in self._ends(self._lower, word.rstrip(b"s"), limit)]
        if not places:
            return [Occurrence(start, 0, "number") for start in numbers[:limit]]
        distances: dict[int, int] = {}
        for place in places:
            middle = bisect(numbers, place)
            for start in numbers[max(middle - limit, 0) : middle + limit]:
                distances[start] = min(abs(start - place), distances.get(start, len(self.text)))
        near = sorted(distances, key=lambda start: (distances[start], start))
        return [Occurrence(start, 0, "near") for start in near[:limit]]

    def item_after(self, offset: int) -> int | None:
        """Where the next item of an enumeration begins behind ``offset``; None at the end of the text."""
        found = _ENUMERATION.match(self.text, offset)
        end = offset if found is None else found.end()
        return end if offset < end < len(self.text) else None

    def number_at(self, offset: int) -> bytes:
        """The number that begins at ``offset``."""
        found = _NUMBER.match(self.text, offset)
        return found[0] if found else b""

    def _ends(self, text: bytes, wanted: bytes, limit: int, *, whole: bool = False) -> list[int]:
        """Behind where ``wanted`` occurs: first where it begins a word, then elsewhere if it is long enough."""
        if not wanted:
            return []
        good: list[int] = []
        other: list[int] = []
        at = text.find(wanted)
        for _ in range(_MOST_PLACES):
            if at < 0 or len(good) >= limit or len(other) >= 4 * limit:
                break
            end = at + len(wanted)
            begins = self.starts_word(at) or not _WORD_BYTE.match(wanted)
            if whole:
                if begins and not _WORD_BYTE.match(text, end):
                    good.append(end)
            else:
                (good if begins else other).append(end)
            at = text.find(wanted, at + 1)
        return (good + (other if len(wanted) >= _SHORTEST_PART and not whole else []))[:limit]


def words_of_label(label: bytes) -> list[bytes]:
    """The words of a key, in lower case: ``orderNumber``, ``order_number`` and ``Order number`` have the same."""
    return [word.lower() for word in _WORDS.findall(label)]
