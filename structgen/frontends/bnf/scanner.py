"""From text to tokens, strings and character classes; a ``Notation`` says how the notations differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.errors import GrammarSyntaxError, LimitExceeded
from structgen.frontends.grammar_source import GrammarSource
from structgen.grammar.algebra import inverse_of
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import MAX_CODE_POINT, SURROGATES, CharClass, Grammar

if TYPE_CHECKING:
    from structgen.frontends.bnf.parser import Parser

__all__ = ["Notation", "Token", "class_of", "scan", "string_of"]


@dataclass(frozen=True, slots=True)
class Notation:
    """A notation.

    Attributes:
        source: its name in descriptions: ``"gbnf"``.
        subject: the subject of errors.
        name: a regular expression for names of rules.
        tokens: regular expressions for the additional tokens of this notation, by kind.
        ends_at_line: whether a rule ends with its line, except in parentheses and after ``|`` and ``::=``; else a rule
            ends where the next begins, which must be at the start of a line.
        hexadecimal: the digits of an escape by code point, by letter.
        string_escapes: the meaning of other escapes in a string, by letter.
        class_escapes: the same in a class.
        macros: the readers of macros, by name.
        elements: the readers of additional tokens, by kind.
        options: applies the options in brackets after the name of a rule.
    """

    source: str
    subject: str
    name: str
    tokens: Mapping[str, str]
    ends_at_line: bool
    hexadecimal: Mapping[str, re.Pattern[str]]
    string_escapes: Mapping[str, str]
    class_escapes: Mapping[str, str]
    macros: Mapping[str, Callable[[Parser, Token], Grammar]]
    elements: Mapping[str, Callable[[Parser, Token], Grammar]]
    options: Callable[[Parser, Token, Grammar], Grammar]


class Token(NamedTuple):
    """A piece of the text.

    Attributes:
        kind: ``"name"``, ``"rule"`` (a name with ``::=`` after it), ``"string"``, ``"class"``, ``"count"``,
            ``"number"``, ``"newline"``, ``"end"``, a kind of the notation's own, or the piece itself.
        text: as written.
        start: its offset.
    """

    kind: str
    text: str
    start: int

    @property
    def span(self) -> tuple[int, int]:
        """Its half-open interval of offsets."""
        return self.start, self.start + len(self.text)


_COMMON: Final = {
    "skipped": r"\#[^\r\n]*",
    "newline": r"\r\n?|\n",
    "assign": r"::=",
    "string": r'"[^"\\]*(?:\\.[^"\\]*)*"',
    "class": r"\[[^\]\\]*(?:\\.[^\]\\]*)*\]",
    "count": r"\{[^{}\"\[\]()|:]{0,80}\}",
}
_COUNTED_TOKENS: Final = 64  # at a time
_STEPS_A_TOKEN: Final = 4
_TOKENS_PER_NODE: Final = 4
"""Tokens per node of the grammar: an item, its repetition, and a separator."""
_PUNCTUATION: Final = r"[()|*+?]"
_UNFINISHED: Final = {
    '"': ("the string is not terminated", 'close it with "'),
    "[": ("the class of characters is not terminated", "close it with ]"),
    "{": ("the count is not terminated", "write it as {2}, {2,} or {2,5}"),
    "<": ("the token is not terminated", "close it with >"),
    "'": ("a string has single quotes", 'write it in double ones: "..."'),
    ":": ("a lone colon", "a rule is written: name ::= expression"),
    "=": ("a lone equals sign", "a rule is written: name ::= expression"),
    ";": ("rules have no semicolon after them", "remove it"),
    "/": ("a slash outside a string", "comments begin with #, and there are no regexps in slashes"),
}


@cache
def _pattern(own: tuple[tuple[str, str], ...], name: str) -> re.Pattern[str]:
    kinds = [*_COMMON.items(), *own, ("name", name), ("punctuation", _PUNCTUATION)]
    return re.compile(rf"[ \t]*(?:{'|'.join(f'(?P<{kind}>{pattern})' for kind, pattern in kinds)})", re.DOTALL)


def scan(source: GrammarSource, notation: Notation, limits: Limits) -> list[Token]:
    """Return the tokens of a text, the last of kind ``"end"``.

    A name before ``::=`` is of kind ``"rule"``, and ``::=`` is left out.

    Raises:
        GrammarSyntaxError: a character begins no token, or a rule does not begin its line.
        LimitExceeded: there are too many tokens for ``limits.grammar_nodes`` or ``limits.steps``.

    Complexity: linear.
    """
    text, position = source.text, 0
    size = len(text.rstrip(" \t"))
    match_at = _pattern(tuple(notation.tokens.items()), notation.name).match
    found: list[Token] = []
    new_token = Token._make
    is_line_start = True
    max_tokens, counted = _TOKENS_PER_NODE * limits.grammar_nodes, 0
    while position < size:
        match = match_at(text, position)
        if match is None:
            raise _unexpected(source, position)
        if len(found) >= counted:
            if counted > max_tokens:
                maximum = limits.grammar_nodes
                raise LimitExceeded(source.subject_at(position), limit="grammar_nodes", maximum=maximum)
            counted += _COUNTED_TOKENS
            spend(_COUNTED_TOKENS * _STEPS_A_TOKEN, partial(source.subject_at, position))
        kind = match.lastgroup or ""
        start, position = match.span(kind)
        piece = text[start:position]
        if kind == "skipped":
            continue
        if kind == "newline":
            is_line_start = True
            if notation.ends_at_line and not (found and found[-1].kind == "newline"):
                found.append(new_token((kind, piece, start)))
            continue
        if kind == "assign":
            _mark_rule(source, found, start)
            continue
        if kind == "punctuation":
            kind = piece
        elif kind == "name" and is_line_start:
            kind = "first name"
        found.append(new_token((kind, piece, start)))
        is_line_start = False
    found.append(Token("end", "", len(text)))
    return [Token("name", *token[1:]) if token.kind == "first name" else token for token in found]


def _mark_rule(source: GrammarSource, found: list[Token], start: int) -> None:
    """Make the name before ``::=`` the start of a rule."""
    while found and found[-1].kind == "newline":  # allowed between a name and ::=
        found.pop()
    last = found[-1] if found else None
    if last is None or last.kind not in ("name", "first name"):
        raise source.syntax_error((start, start + 3), "no name before ::=", "write: name ::= expression")
    if last.kind == "name":
        raise source.syntax_error(last.span, "a rule begins within a line", "begin a new line before its name")
    found[-1] = Token("rule", last.text, last.start)


def _unexpected(source: GrammarSource, position: int) -> GrammarSyntaxError:
    position += len(source.text) - position - len(source.text[position:].lstrip(" \t"))
    character = source.text[position]
    if character == "!":
        character = "<"
    problem, remedy = _UNFINISHED.get(character, (f"the character {character!r} has no meaning here", "remove it"))
    return source.syntax_error((position, position + 1), problem, remedy)


_PLAIN: Final = re.compile(r"[^\\]+")
_LINE_END: Final = re.compile(r"[\r\n]")


def string_of(source: GrammarSource, token: Token, notation: Notation) -> str:
    """The text of a string token.

    Raises:
        GrammarSyntaxError: an escape is unknown, or its code is not a character; or the string contains a line break
            where the notation does not allow one.
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


def class_of(source: GrammarSource, token: Token, notation: Notation) -> Grammar:
    """The characters of a class token.

    Raises:
        GrammarSyntaxError: an escape is unknown, its code is not a character, a range is reversed, or the class is
            empty; or it contains a line break where the notation does not allow one.
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


def _ranges(source: GrammarSource, start: int, end: int, notation: Notation) -> Iterator[tuple[int, int]]:
    """A hyphen is literal where no range is possible: first, last, and after a range."""
    text = source.text
    while start < end:
        offset = start
        low, start = _character(source, start, end, notation)
        high = low
        if text.startswith("-", start) and start + 1 < end:
            high, start = _character(source, start + 1, end, notation)
        if high < low:
            raise source.syntax_error(
                (offset, start),
                f"the range is reversed: U+{ord(low):04X} comes after U+{ord(high):04X}",
                "swap its ends",
            )
        yield ord(low), ord(high)


def _character(source: GrammarSource, start: int, end: int, notation: Notation) -> tuple[str, int]:
    character = source.text[start]
    if character == "\\":
        return _escape(source, start, end, notation, is_class=True)
    _check(source, (start, start + 1), ord(character))
    return character, start + 1


def _escape(source: GrammarSource, start: int, end: int, notation: Notation, *, is_class: bool) -> tuple[str, int]:
    """The character of the escape at ``start``, and the offset after it."""
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
        context = "class" if is_class else "string"
        names = " ".join(f"\\{name}" for name in (*known, *notation.hexadecimal))
        raise source.syntax_error(
            (start, start + 2),
            f"the escape \\{letter} is not known in a {context}",
            f"known are {names}",
        )
    return known[letter], start + 2


def _check_lines(source: GrammarSource, token: Token, notation: Notation) -> None:
    found = None if notation.ends_at_line else _LINE_END.search(token.text)
    if found is not None:
        kind = "string" if token.kind == "string" else "class of characters"
        offset = token.start + found.start()
        raise source.syntax_error((offset, offset + 1), f"the {kind} is not terminated in its line", r"write \n")


def _checked(source: GrammarSource, token: Token, text: str) -> str:
    if not text.isascii():
        for at, character in enumerate(text):
            if SURROGATES[0] <= ord(character) <= SURROGATES[1]:
                _check(source, (token.start + 1 + at, token.start + 2 + at), ord(character))
    return text


def _check(source: GrammarSource, span: tuple[int, int], code: int) -> None:
    if code > MAX_CODE_POINT or SURROGATES[0] <= code <= SURROGATES[1]:
        shown = "beyond U+10FFFF" if code > MAX_CODE_POINT else f"U+{code:04X}, a surrogate"
        raise source.syntax_error(span, f"the code is no character: {shown}", "write a Unicode scalar value")
