"""The ways to write a JSON value that the language of a schema must treat alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["spellings", "strings_of"]

STYLES: tuple[dict[str, Any], ...] = ({"separators": (",", ":")}, {}, {"indent": 2})
"""Compact, as ``json.dumps`` writes by default, and indented."""


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
