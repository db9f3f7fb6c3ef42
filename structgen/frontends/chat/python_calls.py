"""The arguments of calls that are written in Python: ``a=1, b="x", c=[True, None]``."""

from __future__ import annotations

import ast
import keyword
import math
import re
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from structgen.frontends.json_schema.emit.arguments import Scalars, refuse_name
from structgen.frontends.json_schema.source.json_value import BOOLEAN, NULL, NUMBER
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import chain, quoted
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Repeat,
    choice,
    literal,
    sequence,
)

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.syntax import Syntax

__all__ = ["PYTHON", "is_python_name", "scan_python_arguments"]

_ANY_TEXT: Final = Repeat(ANY_CHAR)
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_MAX_BRACKETS: Final = 100
"""Brackets around each other that are read."""


def _only_shared_escapes() -> Grammar:
    r"""The JSON strings that mean the same in Python, where ``\/`` is two characters and ``\uD83D`` half of one."""
    plain = CharClass([(0x20, 0x5B), (0x5D, 0x10FFFF)])
    short = sequence("\\", CharClass([(ord(mark), ord(mark)) for mark in '"\\bfnrt']))
    digit = CharClass([(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)])
    surrogate = sequence(CharClass([(0x44, 0x44), (0x64, 0x64)]), CharClass([(0x38, 0x39), (0x41, 0x46), (0x61, 0x66)]))
    pair = Intersection([sequence(digit, digit), Complement(surrogate)])
    return Repeat(choice(plain, short, sequence("\\u", pair, digit, digit)), 0, None)


_SHARED: Final = _only_shared_escapes()


def is_python_name(name: str) -> bool:
    """Whether a call can have this name: words with dots between them, and no reserved word."""
    words = name.split(".")
    return all(re.fullmatch(_NAME, word) and not keyword.iskeyword(word) for word in words)


@dataclass(frozen=True, slots=True)
class _Python:
    """Members with ``=`` outermost, dictionaries and lists inside."""

    nests: bool = True

    @property
    def scalars(self) -> tuple[Scalars, ...]:
        return _SCALARS

    def syntax(self, json: Syntax, *, is_root: bool) -> Syntax:
        if not is_root:
            return json
        return replace(
            json, open_object=EPSILON, close_object=EPSILON, end_object=EPSILON, comma=literal(", "), colon=literal("=")
        )

    def key(self, name: str, location: Location, *, is_root: bool) -> Grammar:
        if not is_root:
            return literal(quoted(name, location, "properties").decode())
        if not re.fullmatch(_NAME, name) or keyword.iskeyword(name):
            refuse_name(location, name, f"{name!r:.60} is no name of a Python argument", remedy="rename it")
        return literal(name)

    def names(self, language: Grammar, *, is_root: bool) -> Grammar | None:
        if not is_root:
            return self.string(language)
        word = sequence(CharClass([(0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]), Repeat(_WORD_CHARACTER))
        return Intersection([language, word, Complement(choice(*map(literal, keyword.kwlist)))])

    def member(self, value: Grammar, name: str | None) -> Grammar:
        return value

    def item(self, value: Grammar) -> Grammar:
        return value

    def spells(self, text: str) -> bool:
        return True

    def string(self, language: Grammar | None) -> Grammar:
        return Intersection([JsonString(_ANY_TEXT if language is None else language), sequence('"', _SHARED, '"')])

    def array(self, items: Grammar) -> Grammar:
        return items

    def object(self, members: Grammar) -> Grammar:
        return members


_WORD_CHARACTER: Final = CharClass([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])


def _constant(text: str, _: Grammar) -> Grammar:
    return literal(text)


_SCALARS: Final = (
    Scalars(NUMBER, {"type": ["number"]}, chain),
    Scalars(BOOLEAN, {"enum": [True]}, partial(_constant, "True")),
    Scalars(BOOLEAN, {"enum": [False]}, partial(_constant, "False")),
    Scalars(NULL, {"type": ["null"]}, partial(_constant, "None")),
)
PYTHON: Final = _Python()
"""The notation."""


def scan_python_arguments(text: str, at: int) -> tuple[dict[str, Any], int] | None:
    """Read arguments up to the bracket that closes the call; None if they are no constants of Python by name.

    >>> scan_python_arguments('a=1, b="(x")', 0)
    ({'a': 1, 'b': '(x'}, 11)
    """
    end = _closing_bracket(text, at)
    if end is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            call = ast.parse(f"f({text[at:end]})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        found = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if len(found) < len(call.keywords) or "None" in found or not all(map(_is_json, found.values())):
        return None
    return found, end


def _closing_bracket(text: str, at: int) -> int | None:
    """Where the bracket closes that was open before ``at``, outside of strings."""
    depth, mark = 0, ""
    while at < len(text):
        character = text[at]
        if mark:
            if character == "\\":
                at += 1
            elif character == mark:
                mark = ""
        elif character in "\"'":
            mark = character
        elif character in "([{":
            depth += 1
            if depth > _MAX_BRACKETS:
                return None
        elif character in ")]}":
            if depth == 0:
                return at if character == ")" else None
            depth -= 1
        at += 1
    return None


def _is_json(value: Any) -> bool:
    """Whether a constant of Python is a JSON value."""
    if isinstance(value, dict):
        return all(isinstance(name, str) for name in value) and all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (str, int))
