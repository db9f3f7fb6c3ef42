r"""The spellings of a text inside a JSON string, for languages that no automaton reads.

``JsonString`` decodes what an automaton reads, so that its language must be regular.  A context-free one is rewritten
instead, character by character: each is read as it stands, as a short escape, or as ``\uXXXX``, one or two of them.
The spellings of different characters differ, and none begins another, so that the boolean operators carry over.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from structgen.errors import GrammarError
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import (
    ANY_CHAR,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Label,
    Literal,
    Repeat,
    SpecialToken,
    TokenSet,
    choice,
    postorder,
    sequence,
)
from structgen.grammar.report import Described
from structgen.grammar.scopes import resolve

__all__ = ["plain_text", "spelled_content"]

_SHORT: Final = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_MUST_ESCAPE: Final = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
_BEYOND: Final = 0x10000


def spelled_content(grammar: Grammar) -> Grammar:
    """What stands between the quotes of the JSON strings whose decoded text belongs to ``grammar``.

    Args:
        grammar: a closed term.

    Raises:
        GrammarError: it speaks of something else than text: bytes that are no characters, special tokens, arrays and
            objects that repeat nothing, or labels.
    """
    return _rewritten(plain_text(resolve(grammar, through_shared=True)))


def plain_text(grammar: Grammar) -> Grammar:
    """An equal term to stand in a JSON string.

    Captures and descriptions are left out, for the texts would be spelled with escapes; JSON strings inside are written
    out, character by character.

    Raises:
        GrammarError: such a string speaks of bytes that are no characters.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(grammar):
        children = [made[id(child)] for child in node.children]
        if isinstance(node, (Capture, Described)):
            made[id(node)] = children[0]
        elif isinstance(node, JsonString):
            made[id(node)] = sequence('"', _rewritten(children[0]), '"')
        else:
            made[id(node)] = with_children(node, children)
    return made[id(grammar)]


def _rewritten(root: Grammar) -> Grammar:
    made: dict[int, Grammar] = {}
    for node in postorder(root):
        children = [made[id(child)] for child in node.children]
        match node:
            case Literal(data=data):
                made[id(node)] = sequence(*(_spellings(((ord(c), ord(c)),)) for c in _decoded(data)))
            case CharClass(ranges=ranges):
                made[id(node)] = _spellings(ranges)
            case ByteClass(ranges=ranges) if all(high < 0x80 for _, high in ranges):
                made[id(node)] = _spellings(ranges)
            case Complement():
                made[id(node)] = Intersection([_ANY_CONTENT, Complement(children[0])])
            case ByteClass() | SpecialToken() | TokenSet() | Distinct() | Label():
                raise _no_text(type(node).__name__)
            case _:
                made[id(node)] = with_children(node, children)
    return made[id(root)]


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _no_text(f"the bytes {data!r:.40}") from None


def _no_text(found: str) -> GrammarError:
    return GrammarError(
        "json schema format",
        "its grammar speaks of something else than characters",
        evidence=f"found {found}",
        remedy="write it with literals and classes of characters",
    )


@lru_cache(maxsize=1024)
def _spellings(ranges: tuple[tuple[int, int], ...]) -> Grammar:
    """One character of a class, in every spelling."""
    plain = [part for low, high in ranges for part in _without_escaped(low, high)]
    short = [mark for character, mark in _SHORT.items() if any(low <= ord(character) <= high for low, high in ranges)]
    four = [_digits(low, min(high, _BEYOND - 1), 4) for low, high in ranges if low < _BEYOND]
    pairs = [_pairs(max(low, _BEYOND) - _BEYOND, high - _BEYOND) for low, high in ranges if high >= _BEYOND]
    forms: list[Grammar] = [CharClass(plain)] if plain else []
    escapes: list[Grammar] = [CharClass([(ord(mark), ord(mark)) for mark in short])] if short else []
    escapes += [sequence("u", term) for term in four]
    if escapes:
        forms.append(sequence("\\", choice(*escapes)))
    return choice(*forms, *pairs)


def _without_escaped(low: int, high: int) -> list[tuple[int, int]]:
    """The part of a range that may stand as it is."""
    found = []
    for first, last in _MUST_ESCAPE:
        if low < first:
            found.append((low, min(high, first - 1)))
        low = max(low, last + 1)
    found.append((low, high))
    return [(first, last) for first, last in found if first <= last]


def _pairs(low: int, high: int) -> Grammar:
    r"""Two escapes for the characters beyond ``\uFFFF``, given by their distance from there."""
    first, last = low >> 10, high >> 10
    if first == last:
        return _pair(first, first, low & 0x3FF, high & 0x3FF)
    forms = [_pair(first, first, low & 0x3FF, 0x3FF), _pair(last, last, 0, high & 0x3FF)]
    if last - first > 1:
        forms.append(_pair(first + 1, last - 1, 0, 0x3FF))
    return choice(*forms)


def _pair(first: int, last: int, low: int, high: int) -> Grammar:
    return sequence("\\u", _digits(0xD800 + first, 0xD800 + last, 4), "\\u", _digits(0xDC00 + low, 0xDC00 + high, 4))


def _digits(low: int, high: int, count: int) -> Grammar:
    """The numbers of an interval in ``count`` hexadecimal digits of either case."""
    if count == 1:
        marks = [mark for digit in range(low, high + 1) for mark in (f"{digit:x}", f"{digit:X}")]
        return CharClass([(ord(mark), ord(mark)) for mark in marks])
    size = 16 ** (count - 1)
    first, last = low // size, high // size
    if first == last:
        return sequence(_digits(first, first, 1), _digits(low % size, high % size, count - 1))
    forms = []
    if low % size:
        forms.append(sequence(_digits(first, first, 1), _digits(low % size, size - 1, count - 1)))
        first += 1
    if high % size != size - 1:
        forms.append(sequence(_digits(last, last, 1), _digits(0, high % size, count - 1)))
        last -= 1
    if first <= last:
        forms.append(sequence(_digits(first, last, 1), _digits(0, size - 1, count - 1)))
    return choice(*forms)


_ANY_CONTENT: Final = Repeat(Choice([_rewritten(ANY_CHAR)]))
