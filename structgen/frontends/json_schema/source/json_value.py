"""JSON values: a strict parser, types and equality; and schemas as they are given.

Duplicate names, NaN and excessive nesting are errors with a position.
"""

from __future__ import annotations

import json
import marshal
import re
import sys
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from math import isfinite
from typing import Any, Final, NoReturn, TypeAlias

from structgen_kernels import _native

from structgen.errors import GrammarSyntaxError, LimitExceeded
from structgen.grammar.limits import Limits

__all__ = [
    "ANY",
    "ARRAY",
    "BOOLEAN",
    "FRACTION",
    "INTEGER",
    "NULL",
    "NUMBER",
    "OBJECT",
    "STRING",
    "SUBJECT",
    "Json",
    "SchemaDump",
    "SchemaText",
    "content_of",
    "copied",
    "dump_of",
    "given",
    "parse_json",
    "schema_text",
    "type_of",
    "unshared",
    "value_key",
]

NULL: Final = 1
BOOLEAN: Final = 2
INTEGER: Final = 4
FRACTION: Final = 8  # numbers that are not integers
STRING: Final = 16
ARRAY: Final = 32
OBJECT: Final = 64
NUMBER: Final = INTEGER | FRACTION
ANY: Final = 127


def type_of(value: Json) -> int:
    """The bit of the type of a JSON value; 0 for other values."""
    match value:
        case str():
            return STRING
        case bool():
            return BOOLEAN
        case None:
            return NULL
        case int():
            return INTEGER
        case float():
            return INTEGER if value.is_integer() else FRACTION
        case Decimal():
            return INTEGER if value == value.to_integral_value() else FRACTION
        case dict():
            return OBJECT
        case list() | tuple():
            return ARRAY
    return 0


def value_key(value: Json) -> object:
    """A hashable key: two values have equal keys iff they are equal in JSON Schema, as 1 and 1.0 are.

    Complexity: linear in the size of the value; without recursion.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (dict, list, tuple)):
        return _scalar_key(value)
    made: dict[int, object] = {}
    stack: list[tuple[Json, bool]] = [(value, False)]
    while stack:
        item, is_ready = stack.pop()
        members = _members(item)
        if not is_ready:
            stack.append((item, True))
            stack.extend((member, False) for member in members if isinstance(member, (dict, list, tuple)))
            continue
        keys = [
            made[id(member)] if isinstance(member, (dict, list, tuple)) else _scalar_key(member) for member in members
        ]
        is_object = isinstance(item, dict)
        made[id(item)] = ("object", frozenset(zip(item, keys, strict=True))) if is_object else ("array", tuple(keys))
    return made[id(value)]


def _members(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, dict) else list(value)


def _scalar_key(value: Json) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return (value,)
    sign, digits, exponent = Decimal(repr(value) if isinstance(value, float) else value).as_tuple()
    text = "".join(map(str, digits))
    significant = text.rstrip("0")
    if not significant or not isinstance(exponent, int):
        return ("number", text and not significant)
    return ("number", sign, significant.lstrip("0"), exponent + len(text) - len(significant))


Json: TypeAlias = Any
"""A JSON value: ``dict``, ``list``, ``str``, ``int``, ``float`` or ``Decimal``, ``bool``, ``None``."""

_MAX_DIGITS: Final = 4_000
"""Digits of one integer; Python refuses to convert more than 4,300."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z0-9_+-]+")
_STRING: Final = re.compile(r'"((?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*)"')
_STRING_START: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class SchemaText(str):
    """A schema as JSON text, cut out of a larger text that was read."""

    __slots__ = ()


class _TooLarge(Exception):
    """The exponent of a number."""


def parse_json(text: str, subject: str, limits: Limits, *, kept: tuple[str, ...] = ()) -> Json:
    """Return the value of a JSON text.

    Fractions and exponents become ``float`` where that is exact, else ``Decimal``.

    Args:
        text: it.
        subject: of errors.
        limits: ``nesting`` bounds how deep its arrays and objects are.
        kept: names of members.  Most of their objects are left as they are written, as ``SchemaText``.

    Raises:
        GrammarSyntaxError: the text is not JSON, or an object has the same name twice.
        LimitExceeded: it is nested deeper than ``limits.nesting``.

    Complexity: O(len(text)).
    """
    value = _native.read_json(text, limits.nesting, _decimal, kept, SchemaText)
    # The reference implementation reads unusual texts too, and finds the place and the reason of an error.
    return _JsonParser(text, subject, limits).parse() if value is None else value


def _decimal(text: str) -> float | Decimal:
    try:
        exact, approximate = Decimal(text), float(text)
    except DecimalException:  # an exponent beyond the range of Decimal
        raise _TooLarge from None
    return approximate if isfinite(approximate) and Decimal(repr(approximate)) == exact else exact


@dataclass(slots=True)
class _JsonParser:
    """Parses a text in one pass, with an explicit stack of open containers."""

    text: str
    subject: str
    limits: Limits
    at: int = 0

    def parse(self) -> Json:
        # each with the name that waits for a value
        open_containers: list[tuple[dict[str, Json] | list[Json], str]] = []
        while True:
            self._skip_space()
            value, opened = self._value()
            if opened and not self._closes_at_once(value):
                if len(open_containers) >= self.limits.nesting:
                    raise LimitExceeded(
                        self.subject,
                        limit="nesting",
                        maximum=self.limits.nesting,
                        evidence=f"at character {self.at} of the text",
                    )
                open_containers.append((value, self._name(value)))
                continue
            while open_containers:  # add the value to its container; close containers that end here
                container, name = open_containers[-1]
                if isinstance(container, dict):
                    container[name] = value
                else:
                    container.append(value)
                self._skip_space()
                mark = self.text[self.at : self.at + 1]
                if mark == ",":
                    self.at += 1
                    open_containers[-1] = (container, self._name(container))
                    break
                if mark != ("}" if isinstance(container, dict) else "]"):
                    self._fail("expected ',' or the end of the " + _kind(container))
                self.at += 1
                open_containers.pop()
                value = container
            else:
                self._skip_space()
                if self.at < len(self.text):
                    self._fail(_END_EXPECTED)
                return value

    def _value(self) -> tuple[Json, bool]:
        """Read a scalar or an opening bracket; return whether a container was opened."""
        mark = self.text[self.at : self.at + 1]
        if mark in ("{", "["):
            self.at += 1
            return ({} if mark == "{" else []), True
        if mark == '"':
            return self._string(), False
        number = _NUMBER.match(self.text, self.at)
        if number:
            self.at = number.end()
            return self._number(number), False
        word = _WORD.match(self.text, self.at)
        if word and word[0] in _CONSTANTS:
            self.at = word.end()
            return _CONSTANTS[word[0]], False
        end = word.end() if word else self.at + 1
        return self._fail("expected a JSON value" + (f", found {word[0][:40]!r}" if word else ""), self.at, end)

    def _number(self, match: re.Match[str]) -> int | float | Decimal:
        if len(match[1]) > _MAX_DIGITS:
            problem = f"number has more than {_MAX_DIGITS} digits"
            self._fail(problem, match.start(), match.end(), remedy="write it shorter")
        if match[2] is None and match[3] is None:
            return int(match[1])
        try:
            return _decimal(match[0])
        except _TooLarge:
            self._fail("exponent is too large", match.start(3), match.end(3), remedy="write a smaller number")

    def _closes_at_once(self, container: Json) -> bool:
        self._skip_space()
        if self.text[self.at : self.at + 1] != ("}" if isinstance(container, dict) else "]"):
            return False
        self.at += 1
        return True

    def _name(self, container: Json) -> str:
        """Read a name and its colon where ``container`` is an object."""
        if not isinstance(container, dict):
            return ""
        self._skip_space()
        start = self.at
        if self.text[start : start + 1] != '"':
            self._fail("expected a name in double quotes")
        name = self._string()
        if name in container:
            self._fail(f"name {name!r} occurs twice in this object", start, self.at, remedy="keep one of them")
        self._skip_space()
        if self.text[self.at : self.at + 1] != ":":
            self._fail("expected ':' after the name")
        self.at += 1
        return name

    def _string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            partial = _STRING_START.match(self.text, self.at)
            end = partial.end() if partial else self.at
            if end >= len(self.text):
                self._fail("string is not closed", self.at, self.at + 1)
            what = "escape is not known" if self.text[end] == "\\" else "control character must be escaped"
            self._fail(what, end, end + 1)
        self.at = match.end()
        return str(json.loads(match[0]))

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _fail(
        self, problem: str, start: int | None = None, end: int | None = None, *, remedy: str | None = None
    ) -> NoReturn:
        """Raise the error for a fault; without a ``remedy`` the text is not JSON, and the characters there say why."""
        start = self.at if start is None else start
        suffix = "" if start < len(self.text) else "; the text ends here"
        raise GrammarSyntaxError(
            self.subject,
            (problem if remedy else f"not valid JSON: {problem}") + suffix,
            text=self.text,
            span=(start, start + 1 if end is None else end),
            remedy=remedy or _remedy(self.text, start, problem),
        )


_END_EXPECTED: Final = "expected the end of the text"
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
_YAML: Final = re.compile(r"\s*(?:---|-\s|[\w$-]+\s*:(?:\s|$))")


def _remedy(text: str, at: int, problem: str) -> str:
    """What to do about a text that is not JSON, by the characters where it becomes invalid."""
    rest, before = text[at : at + 2], text[:at].rstrip()
    word = _WORD.match(text, at)
    if not text.strip():
        return "give a JSON Schema"
    if problem == _END_EXPECTED:
        return "a text holds one JSON document; remove what follows it"
    if not rest:
        return "close what is open, or check that the text is complete"
    if word and word[0] in _PYTHON:
        return f"JSON writes {_PYTHON[word[0]]}; json.dumps(value) writes a Python value as JSON"
    if rest.startswith("'"):
        return "JSON has double quotes; json.dumps(value) writes a Python value as JSON"
    if rest[0] == "#" or rest in ("//", "/*"):
        return "JSON has no comments; remove them"
    if rest[0] in "}]" and before.endswith(","):
        return "remove the comma before it"
    if rest[0] in "\u201c\u201d\u201e\u2018\u2019":
        return 'write straight double quotes: "'
    if not before:
        if text.strip().endswith(".json"):
            return "to read a file, call sg.load(path)"
        return "this looks like YAML; convert it to JSON" if _YAML.match(text) else "give a JSON Schema"
    if rest[0] == '"':
        return "put a comma before it"
    return "python -m json.tool FILE checks a file"


def _kind(container: object) -> str:
    return "object" if isinstance(container, dict) else "array"


SUBJECT: Final = "json schema"
"""The subject of errors that have no location."""


class SchemaDump(bytes):
    """A dictionary as ``marshal`` dumps it; never bytes from outside, which are not safe to load."""

    __slots__ = ()


def content_of(schema: object, limits: Limits) -> str | SchemaDump | None:
    """A key that equal schemas share: their text, or a dump of a dictionary; ``None`` for other values.

    A dictionary is dumped because it may change later, and all that is made of it is read from the dump.
    Equal dumps have equal contents; the converse need not hold, because parts that are one object are dumped once.
    """
    if isinstance(schema, (str, bytes, bytearray)):
        return schema_text(schema, limits)
    return dump_of(schema) if isinstance(schema, dict) else None


def dump_of(value: dict[str, Json]) -> SchemaDump | None:
    """The dump of a dictionary; ``None`` if it holds decimals or objects of other classes, or is nested very deeply."""
    try:
        return SchemaDump(marshal.dumps(unshared(value)))
    except ValueError:
        return None


def given(content: str | SchemaDump) -> Json:
    """The dictionary that was dumped, or the text."""
    return marshal.loads(content) if isinstance(content, SchemaDump) else content


_THREADS_RUN_AT_ONCE: Final = not getattr(sys, "_is_gil_enabled", lambda: True)()


def unshared(value: Json) -> Json:
    """A value that no other thread changes while C code walks through it: a copy, where the interpreter has no lock.

    ``marshal`` and ``pickle`` hold nothing of a container that they walk through, and end the process where another
    thread changes it (https://github.com/python/cpython/issues/157108).
    """
    return copied(value) if _THREADS_RUN_AT_ONCE else value


def copied(value: Json) -> Json:
    """A copy of a JSON value with all its parts; each dictionary and list is that of one moment.

    Parts that are one object stay one; a tuple becomes a list, and an object of a subclass a plain one.

    Complexity: linear in the size of the value; without recursion.
    """
    root = [value]
    copies: dict[int, tuple[Json, Json]] = {}  # with the original, so that its id is not reused
    unfinished: list[Json] = [root]
    while unfinished:
        container = unfinished.pop()
        for key, part in list(container.items() if isinstance(container, dict) else enumerate(container)):
            if not isinstance(part, (dict, list, tuple)):
                continue
            if id(part) not in copies:
                copies[id(part)] = part, dict(part) if isinstance(part, dict) else list(part)
                unfinished.append(copies[id(part)][1])
            container[key] = copies[id(part)][1]
    return root[0]


def schema_text(source: str | bytes | bytearray, limits: Limits) -> str:
    """The text of a schema.

    Raises:
        GrammarSyntaxError: it is not UTF-8.
        LimitExceeded: it is too long.
    """
    if len(source) > limits.source_bytes:
        raise LimitExceeded(
            SUBJECT, limit="source_bytes", maximum=limits.source_bytes, evidence=f"the text has {len(source)}"
        )
    if isinstance(source, str):
        return source
    try:
        return bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = source[: error.start].decode() + source[error.start :].decode("utf-8", "replace")
        start = len(source[: error.start].decode())
        raise GrammarSyntaxError(
            SUBJECT,
            f"byte 0x{source[error.start]:02x} is not UTF-8",
            text=text,
            span=(start, start + 1),
            remedy="give JSON text in UTF-8",
        ) from None
