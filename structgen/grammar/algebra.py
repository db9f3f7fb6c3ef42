"""Combinators that make terms from terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from structgen.grammar import nodes
from structgen.grammar.nodes import EPSILON, MAX_CODE_POINT, CharClass, Grammar, choice, literal, sequence
from structgen.grammar.nodes.description import Described
from structgen.grammar.nodes.regular import gaps_between
from structgen.grammar.visitor import fold

__all__ = ["either", "inverse_of", "joined", "optional", "select", "text", "token", "undescribed", "with_children"]

_SPLICE_UP_TO: Final = 32


def text(value: str | bytes) -> Grammar:
    """Exactly this string; needed only where no operator or front end takes the ``str`` itself.

    Raises:
        TypeError: ``value`` is neither text nor bytes.
        ValueError: it holds a lone surrogate, which has no UTF-8 form.

    >>> print(text("yes").named("answer"))
    @answer("yes")
    """
    if not isinstance(value, (str, bytes)):
        raise TypeError(
            f"text: expected str or bytes, found {type(value).__name__}; write numbers and other values as text"
        )
    return literal(value)


def token(token: str | int) -> Grammar:
    """One special token of the vocabulary, by its text or its id.

    No string matches it, and it matches no string. The vocabulary decides at compile time which tokens are special.

    Raises:
        TypeError: ``token`` is neither text nor an integer.
        ValueError: it is empty or a negative id.

    >>> print(token("<|tool_call|>"))
    token("<|tool_call|>")
    """
    if isinstance(token, bool) or not isinstance(token, (str, int)):
        raise TypeError(f"token: expected the text or the id of a special token, found {type(token).__name__}")
    if token == "" or (isinstance(token, int) and token < 0):
        raise ValueError(f"token: {token!r} names no token; give its text, or its id from 0 on")
    return nodes.SpecialToken(token)


def select(options: Iterable[Grammar | str | bytes]) -> Grammar:
    """Any one of ``options``; a ``str`` or ``bytes`` is its literal.

    Raises:
        ValueError: there are no options.
        TypeError: ``options`` is itself a string, or an option is neither text nor a grammar.

    >>> print(select(["yes", "no"]))
    "yes" | "no"
    """
    if isinstance(options, (str, bytes, Grammar)):
        raise TypeError(f"select: expected a list of options, found {type(options).__name__}; write select([...])")
    items = list(options)
    if not items:
        raise ValueError("select: no options to choose from; give at least one")
    for item in items:
        if not isinstance(item, (str, bytes, Grammar)):
            raise TypeError(
                f"select: expected text or a grammar as an option, found {type(item).__name__}; "
                "write numbers and other values as text"
            )
    return choice(*items)


def optional(item: Grammar | str | bytes) -> Grammar:
    """``item`` or nothing.

    >>> print(optional("!"))
    "!" | ""
    """
    return choice(literal(item) if isinstance(item, (str, bytes)) else item, EPSILON)


def joined(items: Iterable[Grammar]) -> Grammar:
    """The items one after the other; spliced as by ``sequence`` while short, else nested.

    So growing a term item by item takes linear time; ``sequence`` would copy it at each step.
    """
    parts = list(items)
    if sum(map(_size, parts)) <= _SPLICE_UP_TO:
        return sequence(*parts)
    retained = [part for part in parts if not (isinstance(part, nodes.Literal) and not part.data)]
    return retained[0] if len(retained) == 1 else nodes.Sequence(retained)


def either(items: Iterable[Grammar]) -> Grammar:
    """Any one of the items, each object once; spliced while short, else nested."""
    parts = list({id(item): item for item in items}.values())
    if len(parts) == 1:
        return parts[0]
    if sum(len(part.items) if isinstance(part, nodes.Choice) else 1 for part in parts) <= _SPLICE_UP_TO:
        return choice(*parts)
    return nodes.Choice(parts)


def undescribed(term: Grammar) -> Grammar:
    """Return ``term`` without the descriptions of its front ends; the language is the same.

    Complexity: O(n) for n distinct nodes; without recursion.
    """

    def combine(node: Grammar, parts: list[Grammar]) -> Grammar:
        return parts[0] if isinstance(node, Described) else with_children(node, parts)

    return fold(term, combine)


def with_children(node: Grammar, children: Sequence[Grammar]) -> Grammar:
    """Return ``node`` with ``children`` instead of its own; the same object if none differs.

    Raises:
        ValueError: there are more or fewer children than ``node`` has.
    """
    old = node.children
    if len(old) != len(children):
        raise ValueError(f"with_children: {type(node).__name__} has {len(old)} children; given {len(children)}")
    if all(map(_is_same, old, children)):
        return node
    if isinstance(node, (nodes.Sequence, nodes.Choice)):  # most nodes
        return type(node)(children)
    remaining = iter(children)
    return type(node)(*[_replaced(getattr(node, name), remaining) for name in node._fields])


def _replaced(value: object, children: Iterator[Grammar]) -> object:
    """The value of a field with the next of ``children`` in place of each term in it."""
    if isinstance(value, Grammar):
        return next(children)
    if isinstance(value, tuple):
        return tuple([_replaced(item, children) for item in value])
    return value


def _size(part: Grammar) -> int:
    """How much ``sequence`` would copy, in items of at most 32 bytes."""
    items = part.items if isinstance(part, nodes.Sequence) else (part,)
    return len(items) + sum(len(item.data) // 32 for item in items if isinstance(item, nodes.Literal))


def _is_same(one: object, other: object) -> bool:
    return one is other


def inverse_of(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges of all other characters; ``ranges`` are sorted and disjoint."""
    return CharClass(gaps_between(ranges, MAX_CODE_POINT)).ranges
