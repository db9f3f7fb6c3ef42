"""Strings and classes of characters: their escapes and ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from structgen.grammar.bnf.notation import Notation
from structgen.grammar.bnf.scanner import Token
from structgen.grammar.dialects.inverse import inverse_of
from structgen.grammar.lark.source import Source
from structgen.grammar.nodes import MAX_CODE_POINT, SURROGATES, CharClass, Grammar

__all__ = ["class_of", "string_of"]

_PLAIN: Final = re.compile(r"[^\\]+")
_LINE_END: Final = re.compile(r"[\r\n]")


def string_of(source: Source, token: Token, notation: Notation) -> str:
    """The text that a string means.

    Raises:
        GrammarSyntaxError: an escape is not known, or its code is no character; or it goes on in the next line where
            the notation does not allow that.
    """
    _check_lines(source, token, notation)
    start, end = token.start + 1, token.start + len(token.text) - 1
    if "\\" not in token.text:
        return _checked(source, token, token.text[1:-1])
    pieces: list[str] = []
    while start < end:
        plain = _PLAIN.match(source.text, start, end)
        if plain is not None:
            pieces.append(plain[0])
            start = plain.end()
        else:
            character, start = _escape(source, start, end, notation, is_class=False)
            pieces.append(character)
    return _checked(source, token, "".join(pieces))


def class_of(source: Source, token: Token, notation: Notation) -> Grammar:
    """The characters that a class means.

    Raises:
        GrammarSyntaxError: an escape is not known, its code is no character, a range is reversed, or the class is
            empty; or it goes on in the next line where the notation does not allow that.
    """
    _check_lines(source, token, notation)
    start, end = token.start + 1, token.start + len(token.text) - 1
    is_negated = source.text.startswith("^", start, end)
    ranges = list(_ranges(source, start + is_negated, end, notation))
    if not ranges and (not is_negated or notation.ends_at_line):
        anything = "." if notation.ends_at_line else "[^]"
        remedy = f'name its characters; "" is the empty text, and {anything} any character'
        raise source.syntax_error(token.span, "the class of characters is empty", remedy)
    found = CharClass(ranges)
    return CharClass(inverse_of(found.ranges)) if is_negated else found


def _ranges(source: Source, start: int, end: int, notation: Notation) -> Iterator[tuple[int, int]]:
    """A hyphen stands for itself where no range can be: first, last, and behind a range."""
    text = source.text
    while start < end:
        place = start
        low, start = _character(source, start, end, notation)
        high = low
        if text.startswith("-", start) and start + 1 < end:
            high, start = _character(source, start + 1, end, notation)
        if high < low:
            raise source.syntax_error(
                (place, start),
                f"the range is reversed: U+{ord(low):04X} comes after U+{ord(high):04X}",
                "swap its ends",
            )
        yield ord(low), ord(high)


def _character(source: Source, start: int, end: int, notation: Notation) -> tuple[str, int]:
    character = source.text[start]
    if character == "\\":
        return _escape(source, start, end, notation, is_class=True)
    _check(source, (start, start + 1), ord(character))
    return character, start + 1


def _escape(source: Source, start: int, end: int, notation: Notation, *, is_class: bool) -> tuple[str, int]:
    """The character that an escape at ``start`` stands for, and where it ends."""
    letter = source.text[start + 1 : start + 2] if start + 1 < end else ""
    digits = notation.hexadecimal.get(letter)
    if digits is not None:
        match = digits.match(source.text, start + 2, end)
        if match is None:
            raise source.syntax_error(
                (start, start + 2),
                f"too few hexadecimal digits follow \\{letter}",
                r"write \x41, \u0041 or \U00000041",
            )
        code = int(match[0][-9:], 16) if len(match[0].lstrip("0")) <= 8 else MAX_CODE_POINT + 1
        _check(source, (start, match.end()), code)
        return chr(code), match.end()
    known = notation.class_escapes if is_class else notation.string_escapes
    if letter not in known:
        place = "class" if is_class else "string"
        names = " ".join(f"\\{name}" for name in (*known, *notation.hexadecimal))
        raise source.syntax_error(
            (start, start + 2),
            f"the escape \\{letter} is not known in a {place}",
            f"known are {names}",
        )
    return known[letter], start + 2


def _check_lines(source: Source, token: Token, notation: Notation) -> None:
    found = None if notation.ends_at_line else _LINE_END.search(token.text)
    if found is not None:
        kind = "string" if token.kind == "string" else "class of characters"
        place = token.start + found.start()
        raise source.syntax_error((place, place + 1), f"the {kind} is not terminated in its line", r"write \n")


def _checked(source: Source, token: Token, text: str) -> str:
    if not text.isascii():
        for at, character in enumerate(text):
            if SURROGATES[0] <= ord(character) <= SURROGATES[1]:
                _check(source, (token.start + 1 + at, token.start + 2 + at), ord(character))
    return text


def _check(source: Source, span: tuple[int, int], code: int) -> None:
    if code > MAX_CODE_POINT or SURROGATES[0] <= code <= SURROGATES[1]:
        shown = "beyond U+10FFFF" if code > MAX_CODE_POINT else f"U+{code:04X}, a surrogate"
        raise source.syntax_error(span, f"the code is no character: {shown}", "write a Unicode scalar value")
