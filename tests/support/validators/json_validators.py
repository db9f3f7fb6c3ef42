"""Two validators that are independent of structgen, corrected where they are known to leave the specification.

``jsonschema`` (Python) and ``jsonschema-rs`` (Rust) share no code.  Where they differ, one of them departs from a
standard; every such departure found so far is corrected here, by the clause that decides it:

* A pattern is an expression of ECMA-262 (JSON Schema Validation, 6.3.3), which ``jsonschema`` gives to ``re``.  There
  ``$`` matches before a final line feed too (ECMA-262, 22.2.2.4: at the end of the input only), ``\\d``, ``\\w`` and
  ``\\b`` know letters and digits beyond ASCII (22.2.2.9), ``\\s`` and ``.`` other characters (12.2, 12.3).
  So patterns are translated for it.  In ``jsonschema-rs`` the dot matches carriage returns and the separators U+2028
  and U+2029, and ``\\b`` knows letters beyond ASCII, so these are spelt out.
* Formats are asserted in every draft, as structgen does; each validator knows those of draft 2020-12.
* ``jsonschema`` calls every text with an ``@`` an email; RFC 5321, 4.1.2 says what a mailbox is.  Other checkers of
  its formats let a final line feed pass, since they end in ``$``, and it knows no leap seconds (RFC 3339, 5.7).
* Numbers are exact decimals, for both; ``multipleOf`` divides them as such.
* ``$schema`` has a meaning at the root of a resource only (JSON Schema Core, 8.1.1); ``jsonschema`` heeds it
  everywhere.

``tests/unit/testing/test_json_validators.py`` shows each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from typing import Any

import jsonschema
import jsonschema_rs

__all__ = ["Disagreement", "Judge", "python_pattern"]

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

_DIGIT = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)),
    *((0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_PIECE = re.compile(r"\\u\{[0-9A-Fa-f]+\}|\\.|\[\^\]|\[\]|\[\^?|\(\?<(?=[A-Za-z_$])|.", re.DOTALL)

# RFC 5321: Local-part is a dot-string or a quoted string, after @ comes a domain or an address literal.
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_MAILBOX = re.compile(
    rf'(?:{_ATOM}(?:\.{_ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*")@(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Za-z:.]+\])'
)
_LEAP = re.compile(r"([0-9]{2}):([0-9]{2}):60(?:\.[0-9]+)?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))\Z")
_MAY_END_IN_LINE_FEED = frozenset(("regex", "json-pointer", "relative-json-pointer"))


class Disagreement(AssertionError):
    """The validators disagree: one of them is wrong, and this file does not decide which."""


class Judge:
    """Whether texts are valid against one schema; numbers are exact decimals, not floats.

    Attributes:
        has_both: whether both validators could read the schema; one is enough to judge.
    """

    def __init__(self, schema: Any) -> None:
        self._judges = [judge for judge in (_python(schema), _rust(schema)) if judge is not None]
        self.has_both = len(self._judges) > 1

    def is_valid(self, text: str | bytes) -> bool:
        """Return the verdict on which the validators agree.

        Raises:
            Disagreement: they do not.
        """
        value = json.loads(text, parse_float=Decimal)
        found = [judge(value) for judge in self._judges]
        if len(set(found)) != 1:
            raise Disagreement(f"jsonschema says {found[0]}, jsonschema-rs {found[-1]}: {text!r}")
        return found[0]


def python_pattern(pattern: str) -> str:
    r"""Translate an expression of ECMA-262 for ``re``; what ``re`` does not have, such as ``\p``, stays."""
    written: list[str] = []
    in_class = False
    begun = ""  # "x": a range may start with it; "x-": the same with the hyphen
    for piece in _PIECE.findall(pattern):
        if in_class:
            in_class = piece != "]"
            # Unescaped, these cause warnings: they may become operators between sets.
            is_itself = piece in tuple("[&~|") or (piece == "-" and begun != "x")
            written.append(f"\\{piece}" if is_itself else _escape(piece))
            begun = "" if begun == "x-" else "x-" if begun == "x" and piece == "-" else "x"
        elif piece in ("[", "[^"):
            in_class, begun = True, ""
            written.append(piece)
        else:
            written.append(_outside(piece))
    return f"(?a:{''.join(written)})"


def _outside(piece: str) -> str:
    match piece:
        case "$":
            return r"\Z"
        case ".":
            return r"[^\n\r\u2028\u2029]"
        case "[^]":
            return r"[\s\S]"
        case "[]":
            return r"(?!)"
        case "(?<":
            return "(?P<"
    inner = _escape(piece)
    return f"[{inner}]" if piece[1:] in tuple("dDwWsS") else inner


def _escape(piece: str) -> str:
    """A piece as it is written between brackets; for a class the ranges without the class's own brackets."""
    known = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
    if piece[0] != "\\":
        return piece
    name = piece[1:]
    if name.lower() in known:
        ranges = known[name.lower()]
        return _class(ranges if name.islower() else _others(ranges))
    if name.startswith("u{"):
        return re.escape(chr(int(name[2:-1], 16)))
    return piece.replace("\\/", "/")


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    return "".join(f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in ranges)


def _others(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found, begin = [], 0
    for low, high in ranges:
        found.append((begin, low - 1))
        begin = high + 1
    return [*found, (begin, 0x10FFFF)]


def _python(schema: Any) -> Callable[[Any], bool] | None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    read = _exactly(_rewritten(schema, python_pattern))
    if isinstance(read, dict):
        read.pop("$schema", None)  # otherwise it would lead back to the same class
    validator = _exact_kind(kind)(read, format_checker=_python_formats())
    try:
        validator.is_valid(None)
    except re.error:
        return None
    return lambda value: bool(validator.is_valid(value))


@cache
def _exact_kind(kind: Any) -> Any:
    """The validator with exact numbers."""
    types = kind.TYPE_CHECKER.redefine("number", lambda _, value: _is_number(value))
    if kind is not jsonschema.Draft4Validator:  # without this, 1.0 is no integer
        types = types.redefine("integer", lambda _, value: _is_number(value) and value == int(value))
    return jsonschema.validators.extend(kind, {"multipleOf": _check_multiple}, type_checker=types)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _check_multiple(_: Any, step: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    if _is_number(value) and Fraction(value) % Fraction(step):
        yield jsonschema.ValidationError(f"{value} is not a multiple of {step}")


def _exactly(schema: Any) -> Any:
    return json.loads(json.dumps(schema), parse_float=Decimal)


def _rewritten(part: Any, rewrite: Callable[[str], str], *, is_root: bool = True) -> Any:
    """A copy with translated patterns, and without ``$schema`` where it has no meaning."""
    if isinstance(part, list):
        return [_rewritten(item, rewrite, is_root=False) for item in part]
    if not isinstance(part, dict):
        return part
    found = {}
    for name, value in part.items():
        if name == "enum" and isinstance(value, list):
            found[name] = value
        elif name == "pattern" and isinstance(value, str):
            found[name] = rewrite(value)
        elif name == "patternProperties" and isinstance(value, dict):
            found[name] = {rewrite(one): _rewritten(inner, rewrite, is_root=False) for one, inner in value.items()}
        elif name != "$schema" or is_root or "$id" in part or "id" in part or not isinstance(value, str):
            found[name] = _rewritten(value, rewrite, is_root=False)
    return found


@cache
def _python_formats() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(formats=())
    for name, (check, raises) in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.items():
        checker.checkers[name] = (partial(_checked, name, check), raises)
    return checker


def _checked(name: str, check: Callable[[Any], bool], value: Any) -> bool:
    if not isinstance(value, str):
        return True
    if name == "email":
        return _MAILBOX.fullmatch(value) is not None
    if name in ("time", "date-time"):
        value = _without_leap_second(value)
    if value.endswith("\n") and name not in _MAY_END_IN_LINE_FEED:
        return False
    return bool(check(value))


def _without_leap_second(moment: str) -> str:
    """The moment with second 59 if second 60 is the last of a day in UTC; otherwise unchanged."""
    found = _LEAP.search(moment)
    if found is None:
        return moment
    hour, minute, sign, ahead, minutes_ahead = found.groups()
    offset = int(ahead or 0) * 60 + int(minutes_ahead or 0)
    in_utc = int(hour) * 60 + int(minute) - (-offset if sign == "-" else offset)
    place = found.start() + len("HH:MM:")
    return moment[:place] + "59" + moment[place + 2 :] if in_utc % 1440 == 1439 else moment


def _rust(schema: Any) -> Callable[[Any], bool] | None:
    text = json.dumps(_rewritten(schema, _rust_pattern))
    try:
        return jsonschema_rs.validator_for(text, validate_formats=True, formats=_rust_formats()).is_valid
    except (ValueError, jsonschema_rs.ReferencingError):
        return None


_INSIDE = "[A-Za-z0-9_]"
_RUST = {
    ".": _outside("."),
    r"\b": rf"(?:(?<={_INSIDE})(?!{_INSIDE})|(?<!{_INSIDE})(?={_INSIDE}))",
    r"\B": rf"(?:(?<={_INSIDE})(?={_INSIDE})|(?<!{_INSIDE})(?!{_INSIDE}))",
}


def _rust_pattern(pattern: str) -> str:
    r"""Spell out for Rust the dot (every character but the line feed) and ``\b`` (which knows letters beyond ASCII)."""
    written: list[str] = []
    in_class = False
    for piece in _PIECE.findall(pattern):
        written.append(piece if in_class else _RUST.get(piece, piece))
        in_class = piece in ("[", "[^") or (in_class and piece != "]")
    return "".join(written)


@cache
def _rust_formats() -> dict[str, Callable[[str], bool]]:
    names = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
    validators = {
        name: jsonschema_rs.validator_for({"$schema": DRAFT_2020, "format": name}, validate_formats=True)
        for name in names
    }
    return {name: validator.is_valid for name, validator in validators.items()}
