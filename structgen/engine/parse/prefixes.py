"""Whether the rest of a text is a prefix of a leaf: of a literal, a character, a JSON string, a token."""

from __future__ import annotations

import json
import re
from typing import Final

from structgen.engine.parse.chart import ParsedInput
from structgen.engine.parse.grammar_graph import SPECIAL_BASE, Characters, GraphNode, Special, Text, TokenOf

__all__ = ["can_continue", "is_text", "opened_string"]

_OPEN_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_REST_OF_ESCAPE: Final = re.compile(r"(?:\\(?:u[0-9a-fA-F]{0,3})?)?")


def opened_string(symbols: str, start: int, index: int) -> ParsedInput | None:
    """The decoded text so far of an unfinished JSON string at ``start``, as an input of this index.

    The characters that are complete; None if no JSON string begins so.
    """
    match = _OPEN_STRING.match(symbols, start)
    if match is None or _REST_OF_ESCAPE.fullmatch(symbols, match.end()) is None:
        return None
    spelled = match.group().encode("latin-1", "ignore")
    if any(ord(symbol) >= SPECIAL_BASE for symbol in match.group()):
        return None
    for cut in range(min(4, len(spelled))):  # within a character
        try:
            value = json.loads(spelled[: len(spelled) - cut].decode("utf-8") + '"')
        except ValueError:
            continue
        if value and 0xD800 <= ord(value[-1]) <= 0xDBFF:  # the second half of the character is to come
            value = value[:-1]
        try:
            return ParsedInput(value.encode("utf-8").decode("latin-1"), index)
        except UnicodeError:
            return None
    return None


def can_continue(node: GraphNode, source: ParsedInput, start: int) -> bool:
    """Whether a leaf that begins at ``start`` can end beyond the text."""
    symbols = source.symbols
    match node:
        case Text(symbols=text):
            return len(text) > len(symbols) - start and text.startswith(symbols[start:])
        case Characters():
            return _class_can_continue(node, source, start)
        case Special(symbols=tokens):
            return start == len(symbols) and bool(tokens)
        case TokenOf():
            return start == len(symbols)
        case _:  # a complement
            return is_text(source, start)


def _class_can_continue(node: Characters, source: ParsedInput, start: int) -> bool:
    position, count, end = start, 0, len(source.symbols)
    while position < end:
        if node.utf8:
            value, after = source.character(position)
            if value < 0:
                break
        else:
            value, after = ord(source.symbols[position]), position + 1
        if not any(low <= value <= high for low, high in node.ranges):
            return False
        position, count = after, count + 1
    if node.max is not None and count >= node.max:
        return False
    return any(
        low <= last and first <= high
        for first, last in _characters_from(source.symbols[position:])
        for low, high in node.ranges
    )


def _characters_from(symbols: str) -> list[tuple[int, int]]:
    """The range of characters whose UTF-8 begins with a few bytes; none if there are none."""
    if not symbols:
        return [(0, 0x10FFFF)]
    if len(symbols) > 3 or any(ord(symbol) >= SPECIAL_BASE for symbol in symbols):
        return []
    data = symbols.encode("latin-1")
    lead = data[0]
    length = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead <= 0xF4 else 0
    if len(data) >= length or any(not 0x80 <= byte < 0xC0 for byte in data[1:]):
        return []
    value = lead & (0x7F >> length)
    for byte in data[1:]:
        value = value << 6 | byte & 0x3F
    missing = 6 * (length - len(data))
    least = (0x80, 0x800, 0x10000)[length - 2]  # shorter spellings are not UTF-8
    first, last = max(value << missing, least), min((value << missing) + (1 << missing) - 1, 0x10FFFF)
    return [(first, last)] if first <= last and not (first >= 0xD800 and last <= 0xDFFF) else []


def is_text(source: ParsedInput, start: int) -> bool:
    """Whether the rest is a prefix of well-formed text."""
    return _class_can_continue(Characters(((0, 0x10FFFF),), utf8=True, min=0, max=None), source, start)
