"""The bytes that members of a grammar are made of, read off the term without compiling it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Complement,
    Grammar,
    JsonString,
    Literal,
    SpecialToken,
    postorder,
)

__all__ = ["byte_alphabet", "special_tokens"]

_ESCAPES: Final = b'"\\/bfnrtu' + b"0123456789abcdefABCDEF"
_CONTINUATIONS: Final = range(0x80, 0xC0)


def byte_alphabet(grammar: Grammar) -> frozenset[int]:
    """Return bytes of which every member of the grammar is made.

    A byte that is missing is in no member.  One that is there need not be in any: what is excluded by intersections,
    by rules that are never reached, or by what stands beside it, is not looked at.  Of characters beyond ASCII, every
    continuation byte is counted.

    Complexity: linear in the distinct nodes of the term and in the ranges of its classes.
    """
    found: set[int] = set()
    for node in postorder(grammar):
        if isinstance(node, Literal):
            found.update(node.data)
        elif isinstance(node, ByteClass):
            for low, high in node.ranges:
                found.update(range(low, high + 1))
        elif isinstance(node, SpecialToken) and node.or_text:
            found.update(str(node.token).encode())
        elif isinstance(node, CharClass):
            found.update(_bytes_of_characters(node))
        elif isinstance(node, JsonString):
            found.update(_ESCAPES)
        elif isinstance(node, Complement):
            return frozenset(range(256))
    return frozenset(found)


def special_tokens(grammar: Grammar) -> frozenset[str | int]:
    """Return the special tokens that the grammar names, by text or id."""
    return frozenset(node.token for node in postorder(grammar) if isinstance(node, SpecialToken) and not node.or_text)


def _bytes_of_characters(node: CharClass) -> Iterator[int]:
    for low, high in node.ranges:
        yield from range(low, min(high, 0x7F) + 1)
        if high > 0x7F:
            # In the order of characters, leading bytes never fall.
            first, last = chr(max(low, 0x80)).encode()[0], chr(high).encode()[0]
            yield from range(first, last + 1)
            yield from _CONTINUATIONS
