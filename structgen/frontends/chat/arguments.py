"""The arguments of calls in the notation of a family: JSON, tags, or Python (``a=1, b="x", c=[True, None]``)."""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from structgen.errors import GrammarError
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.json_schema.arguments import arguments_term
from structgen.frontends.json_schema.emit.arguments import NotationMarks, Scalars, refuse_name
from structgen.frontends.json_schema.source.json_value import BOOLEAN, NULL, NUMBER, SUBJECT, parse_json, schema_text
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import chain, quoted
from structgen.frontends.xml_arguments import STYLES, Spacing, scan_xml_arguments, style_named, xml_term
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
    from collections.abc import Callable

    from structgen.frontends.json_schema.arguments import ValueTypes
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.grammar.limits import Limits

__all__ = ["ARGUMENT_STYLES", "ArgumentStyle"]

ARGUMENT_STYLES: Final = frozenset(("json", "python", *STYLES))
"""The notations of arguments."""
_ANY_TEXT: Final = Repeat(ANY_CHAR)
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_MAX_BRACKETS: Final = 100
"""Brackets around each other that are read."""


@lru_cache(maxsize=64)
def _fixed(spacing: tuple[tuple[str, str], ...]) -> Spacing:
    return Spacing(**{name: literal(text) for name, text in spacing if text})


@final
@dataclass(frozen=True, slots=True)
class ArgumentStyle:
    """How the arguments of a call are written.

    Attributes:
        style: ``"json"``, ``"python"`` (``a=1, b="x"``), or a style of ``xml_arguments``.
        spacing: for tags, the fixed white space by the names of ``Spacing``.
    """

    style: str = "json"
    spacing: tuple[tuple[str, str], ...] = ()

    @property
    def begins(self) -> str:
        """The text before each argument, where it is always the same."""
        return style_named(self.style).open if self.style in STYLES else ""

    def term(
        self,
        parameters: Any,
        policy: JsonPolicy,
        limits: Limits,
        spell: Callable[[str], Grammar],
    ) -> Grammar:
        """The arguments that a schema allows; ``spell`` makes the terms of marks.

        Raises:
            GrammarError: as ``json_schema``, or the notation cannot write what the schema allows.
        """
        if self.style == "json":
            return json_schema(_of_objects(parameters, limits), policy=policy, limits=limits)
        if self.style == "python":
            return arguments_term(parameters, _PYTHON, policy=policy, limits=limits)
        return xml_term(parameters, self.style, _fixed(self.spacing), policy=policy, limits=limits, spell=spell)

    def check_name(self, name: str) -> None:
        """Refuse the name of a tool that a call cannot have.

        Raises:
            GrammarError: it is no name in Python, and the calls are.
        """
        if self.style == "python" and not all(map(_is_word, name.split("."))):
            raise GrammarError(
                f"tool {name}",
                "its name cannot be called in Python",
                remedy="use letters, digits, _ and dots between words",
            )

    def scan(self, text: str, at: int, types: ValueTypes) -> tuple[Any, int] | None:
        """Read arguments that begin at a position, and where they end; None if there are none."""
        try:
            if self.style == "json":
                found, end = _DECODER.raw_decode(text, at)
                return (found, end) if isinstance(found, dict) else None
            if self.style == "python":
                return _scan_python(text, at)
            return scan_xml_arguments(text, at, self.style, types, around=dict(self.spacing).get("text"))
        except (ValueError, RecursionError):  # a reply may nest as deep as it is long; errors of structgen are of these
            return None


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and infinity are not JSON


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)


def _of_objects(schema: Any, limits: Limits) -> Any:
    """The schema for objects alone: many descriptions of tools leave ``type`` out, or hold other types by mistake."""
    if isinstance(schema, (str, bytes, bytearray)):
        schema = parse_json(schema_text(schema, limits), SUBJECT, limits)
    if schema is True:
        return {"type": "object"}
    if not isinstance(schema, dict) or schema.get("type") == "object":
        return schema
    types = schema.get("type", "object")
    if isinstance(types, (str, list)) and "object" not in ([types] if isinstance(types, str) else types):
        raise GrammarError("json schema #/type", "arguments are an object, which it does not allow")
    return {**schema, "type": "object"} if "type" not in schema or isinstance(types, list) else schema


def _only_shared_escapes() -> Grammar:
    r"""The JSON strings that mean the same in Python, where ``\/`` is two characters and ``\uD83D`` half of one."""
    plain = CharClass([(0x20, 0x5B), (0x5D, 0x10FFFF)])
    short = sequence("\\", CharClass([(ord(mark), ord(mark)) for mark in '"\\bfnrt']))
    digit = CharClass([(0x30, 0x39), (0x41, 0x46), (0x61, 0x66)])
    surrogate = sequence(CharClass([(0x44, 0x44), (0x64, 0x64)]), CharClass([(0x38, 0x39), (0x41, 0x46), (0x61, 0x66)]))
    pair = Intersection([sequence(digit, digit), Complement(surrogate)])
    return Repeat(choice(plain, short, sequence("\\u", pair, digit, digit)), 0, None)


_SHARED: Final = _only_shared_escapes()


def _is_word(name: str) -> bool:
    """Whether a name is an identifier of ASCII characters, and no reserved word."""
    return re.fullmatch(_NAME, name) is not None and not keyword.iskeyword(name)


@dataclass(frozen=True, slots=True)
class _Python:
    """Members with ``=`` outermost, dictionaries and lists inside."""

    nests: bool = True
    marks: NotationMarks | None = None

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
        if not _is_word(name):
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
_PYTHON: Final = _Python()


def _scan_python(text: str, at: int) -> tuple[dict[str, Any], int] | None:
    """Read arguments up to the bracket that closes the call; None if they are no constants of Python by name.

    >>> _scan_python('a=1, b="(x")', 0)
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
