"""What :class:`~structgen.grammar.nodes.Distinct` excludes, stated on texts: repeated items and repeated names.

A text is read token by token, and only what is finished counts, so that the beginning of an array or object can be
judged as well: once something is repeated, it stays so.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Final

__all__ = ["repeats"]

_TOKEN: Final = re.compile(r'\s+|[\[\]{},:]|"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null', re.DOTALL)


def repeats(data: bytes) -> bool:
    """Whether the JSON array or object that ``data`` begins with repeats something.

    An array must not hold two equal items, and no object inside, nor itself, one name twice; arrays inside may.

    >>> repeats(b'[1, "a", 1.0]'), repeats(b'[1, "a", 1.0'), repeats(b'{"a": {"b": 1, "b": 2'), repeats(b"[[1, 1]]")
    (True, False, True, False)
    """
    text = data.decode("utf-8", "surrogateescape")
    containers: list[_Container] = []
    position = 0
    while (found := _TOKEN.match(text, position)) is not None:
        token, position = found.group(), found.end()
        value: object = None
        if token in ("[", "{"):
            containers.append(_Container(is_object=token == "{"))
            continue
        if token in (",", ":") or token.isspace():
            continue
        if token in ("]", "}"):
            value = containers.pop().key()
            if not containers:
                return False
        elif token[0] == "-" or token[0].isdigit():
            if position == len(text):
                return False  # more digits may follow
            value = "number", _decimal(token)
        else:
            value = "scalar", json.loads(token, strict=False) if token[0] == '"' else token
        if containers[-1].adds_repetition(value, judges_items=len(containers) == 1):
            return True
    return False


class _Container:
    """An open array or object, with the values of its items, or names and values in turn."""

    def __init__(self, *, is_object: bool) -> None:
        self.is_object = is_object
        self.parts: list[object] = []

    def adds_repetition(self, value: object, *, judges_items: bool) -> bool:
        self.parts.append(value)
        if self.is_object:
            names = self.parts[0::2]
            return len(names) > len(set(names))
        return judges_items and self.parts.index(value) < len(self.parts) - 1

    def key(self) -> object:
        """Equal values have equal keys."""
        if self.is_object:
            return "object", frozenset(zip(self.parts[0::2], self.parts[1::2], strict=True))
        return "array", tuple(self.parts)


def _decimal(token: str) -> object:
    number = Decimal(token).as_tuple()
    digits = "".join(map(str, number.digits))
    significant = digits.rstrip("0").lstrip("0")
    if not significant or not isinstance(number.exponent, int):
        return 0
    return number.sign, significant, number.exponent + len(digits) - len(digits.rstrip("0"))
