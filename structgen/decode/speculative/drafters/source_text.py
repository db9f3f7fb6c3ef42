"""The text that values are copied from: where a value or a label occurs in it, and where a value may end."""

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
    """What kind of boundary lies at ``offset``: None within a word or after a space.

    ``line``, ``stop`` (a sentence may end), ``comma``, ``colon``, ``bracket``, ``quote``, ``end`` of the text, or a
    ``space`` together with what the words on its sides begin with (``letter_kind``).
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
    """A for an upper-case letter, a for a lower-case one, 1 for a digit, a full stop for anything else."""
    return "A" if byte.isupper() else "1" if byte.isdigit() else "a" if byte.isalpha() else "."


def end_prior(kind: str) -> float:
    """How likely a value ends at a boundary of this kind, before anything was learned of it."""
    return _END_PRIORS.get(kind) or _END_PRIORS[kind.split(maxsplit=1)[0]]


_MAX_LENGTH: Final = 64
_MIN_PART: Final = 3
_WORDS_BACK: Final = 8
_MAX_OCCURRENCES: Final = 500
"""Places of a short text that are looked at; most may lie within words."""
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
        end: the offset in the text after it.
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
        if len(value) > _MAX_LENGTH:
            value = value[-_MAX_LENGTH:]
        starts = [match.start() for match in re.finditer(rb"(?<![0-9A-Za-z\x80-\xff])[0-9A-Za-z\x80-\xff]", value)]
        for start in (0, *[each for each in starts if each > 0][-_WORDS_BACK:]):
            part = value[start:]
            if start and len(part) < _MIN_PART:
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
        """Where the next item of an enumeration begins after ``offset``; None at the end of the text."""
        found = _ENUMERATION.match(self.text, offset)
        end = offset if found is None else found.end()
        return end if offset < end < len(self.text) else None

    def number_at(self, offset: int) -> bytes:
        """The number that begins at ``offset``."""
        found = _NUMBER.match(self.text, offset)
        return found[0] if found else b""

    def _ends(self, text: bytes, wanted: bytes, limit: int, *, whole: bool = False) -> list[int]:
        """After where ``wanted`` occurs: first where it begins a word, then elsewhere if it is long enough."""
        if not wanted:
            return []
        good: list[int] = []
        other: list[int] = []
        at = text.find(wanted)
        for _ in range(_MAX_OCCURRENCES):
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
        return (good + (other if len(wanted) >= _MIN_PART and not whole else []))[:limit]


def words_of_label(label: bytes) -> list[bytes]:
    """The words of a key, in lower case: ``orderNumber``, ``order_number`` and ``Order number`` have the same."""
    return [word.lower() for word in _WORDS.findall(label)]
