"""The spellings of a JSON value that the language of a schema must treat alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["all_spellings", "spellings", "strings_of"]

STYLES: tuple[dict[str, Any], ...] = ({"separators": (",", ":")}, {}, {"indent": 2})
"""Compact, as ``json.dumps`` writes by default, and indented."""
_SHORT = 10**8
"""Numbers below are written in other forms too."""


def spellings(value: Any, fixed: frozenset[str] | None) -> Iterator[bytes]:
    """Yield the distinct texts of ``value``: three styles, with escapes for what is not ASCII, and all escaped.

    Args:
        value: a JSON value.
        fixed: strings that are written in one way only, since they are names or constants of the schema; None if
            the escaped texts are wanted whatever strings they hold.

    A value with a lone surrogate has texts only where the escape for it is one.
    """
    written = [json.dumps(value, ensure_ascii=False, **style) for style in STYLES]
    is_ascii = written[0].isascii()
    if not is_ascii and (fixed is None or all(text.isascii() for text in strings_of(value) & fixed)):
        written += [json.dumps(value, **style) for style in STYLES]
    written.append(_escaped(value, fixed or frozenset()))
    for text in dict.fromkeys(written):
        try:
            yield text.encode()
        except UnicodeEncodeError:
            continue


def all_spellings(value: Any, *, exponents: bool) -> Iterator[bytes]:
    """Yield distinct texts of ``value`` for a policy that allows every one.

    They are those of :func:`spellings` with members in order and reversed, and the compact text with each integral
    number in other forms: with a fraction of zeros and, with ``exponents``, with an exponent, and the point one place
    to the left.
    """
    turned = _turned(value)
    texts = [text for data in (value, turned) for text in spellings(data, None)]
    for form in _FORMS if exponents else _FORMS[:1]:
        written = _written(turned, form)
        try:
            texts.append(written.encode())
        except UnicodeEncodeError:
            continue
    yield from dict.fromkeys(texts)


def _turned(value: Any) -> Any:
    """``value`` with the members of all objects in reverse order."""
    if isinstance(value, list):
        return [_turned(item) for item in value]
    if isinstance(value, dict):
        return {name: _turned(value[name]) for name in reversed(value)}
    return value


def _shifted(number: int) -> str:
    """The number with the point one place to the left, and an exponent that compensates."""
    digits = str(abs(number))
    return f"{'-' * (number < 0)}{digits[:-1] or '0'}.{digits[-1]}e1"


_FORMS: tuple[Callable[[int], str], ...] = (
    lambda number: f"{number}.0",
    lambda number: f"{number}e0",
    lambda number: f"{number}.000E+00",
    _shifted,
)


def _written(value: Any, form: Callable[[int], str]) -> str:
    """The compact text of ``value`` with its short integral numbers in another form."""
    if isinstance(value, list):
        return f"[{','.join(_written(item, form) for item in value)}]"
    if isinstance(value, dict):
        members = (f"{json.dumps(name, ensure_ascii=False)}:{_written(item, form)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and value == int(value) and abs(value) < _SHORT:
        return form(int(value))
    return json.dumps(value, ensure_ascii=False)


def strings_of(value: Any) -> frozenset[str]:
    """Return every string and every name in ``value``."""
    found: set[str] = set()
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            found.update(item)
            stack += item.values()
    return frozenset(found)


def _escaped(value: Any, fixed: frozenset[str]) -> str:
    """The compact text with ``\\uXXXX`` for every UTF-16 unit of the strings that are not fixed."""
    if isinstance(value, str):
        if value in fixed:
            return json.dumps(value, ensure_ascii=False)
        units = value.encode("utf-16-be", "surrogatepass").hex()
        return '"' + "".join(f"\\u{units[index : index + 4]}" for index in range(0, len(units), 4)) + '"'
    if isinstance(value, list):
        return f"[{','.join(_escaped(item, fixed) for item in value)}]"
    if isinstance(value, dict):
        members = (f"{_escaped(name, fixed)}:{_escaped(item, fixed)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    return json.dumps(value)
