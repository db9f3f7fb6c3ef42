"""The meaning of single kinds of nodes, shared by the two reference implementations.

References, ``Label``, ``Distinct``, and the escapes of ``JsonString``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError
from structgen.frontends.json_schema.formats.identifier import is_a_label
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared

if TYPE_CHECKING:
    from structgen.grammar.nodes import LabelKind

__all__ = [
    "ResolvedNode",
    "extend_escape",
    "is_refused_label",
    "order_without_cycle",
    "possible_characters",
    "postorder_of",
    "repeats",
    "resolve",
]

_ASCII: Final = re.compile(rb"[a-zA-Z0-9-]*")
_LETTERS: Final = re.compile(rb"(?:[\xc2-\xdf][\x80-\xbf])*")
_MAX_OCTETS: Final = 59


def is_refused_label(data: bytes, kind: LabelKind) -> bool:
    """Whether the label that ``data`` begins with is invalid where it ends, or cannot become valid.

    >>> is_refused_label(b"xn--ll-0ea.", "a-label"), is_refused_label(b"xn--ll-0e.", "a-label")
    (False, True)
    >>> is_refused_label(b"xn--ll-0e", "a-label")
    False
    """
    found = (_LETTERS if kind == "u-label" else _ASCII).match(data)
    label = b"" if found is None else found.group()
    if kind == "u-label":
        text = label.decode()
        return any(len(text[:end].encode("punycode")) > _MAX_OCTETS for end in range(len(text) + 1))
    return len(label) < len(data) and not is_a_label(label.decode("ascii"), bidi=kind == "bidi")


_TOKEN: Final = re.compile(r'\s+|[\[\]{},:]|"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null', re.DOTALL)


def repeats(data: bytes) -> bool:
    """Whether the JSON array or object that ``data`` begins with repeats something.

    An array must not hold two equal items, and no object inside, nor itself, one name twice; arrays inside may.

    >>> repeats(b'[1, "a", 1.0]'), repeats(b'[1, "a", 1.0'), repeats(b'{"a": {"b": 1, "b": 2'), repeats(b"[[1, 1]]")
    (True, False, True, False)
    """
    text = data.decode("utf-8", "surrogateescape")
    containers: list[_OpenContainer] = []
    position = 0
    while (found := _TOKEN.match(text, position)) is not None:
        token, position = found.group(), found.end()
        value: object = None
        if token in ("[", "{"):
            containers.append(_OpenContainer(is_object=token == "{"))
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


@dataclass(slots=True)
class _OpenContainer:
    """An open array or object, with the values of its items, or names and values in turn."""

    is_object: bool
    parts: list[object] = field(default_factory=list)

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


@dataclass(frozen=True, slots=True)
class ResolvedNode:
    """A term in its scope; ``children`` are indices into the graph.

    ``Rules`` has one child, its body, and ``Reference`` one, the rule's expression: both mean their child.
    """

    term: Grammar
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _ReferenceScope:
    bindings: dict[str, Grammar]
    outer: _ReferenceScope | None


def resolve(grammar: Grammar) -> tuple[ResolvedNode, ...]:
    """Return the graph below ``grammar``; node 0 is the grammar itself.

    Raises:
        GrammarError: a reference is not bound by any enclosing ``Rules``.
    """
    scopes: dict[tuple[int, _ReferenceScope | None], _ReferenceScope] = {}
    indices: dict[tuple[int, _ReferenceScope | None], int] = {}
    places: list[tuple[Grammar, _ReferenceScope | None]] = []

    def index_of(term: Grammar, scope: _ReferenceScope | None) -> int:
        key = (id(term), scope)
        if key not in indices:
            indices[key] = len(places)
            places.append((term, scope))
        return indices[key]

    nodes: list[ResolvedNode] = []
    index_of(grammar, None)
    while len(nodes) < len(places):
        term, scope = places[len(nodes)]
        parts: list[tuple[Grammar, _ReferenceScope | None]]
        match term:
            case Rules():
                inner = scopes.setdefault((id(term), scope), _ReferenceScope(dict(term.rules), scope))
                parts = [(term.body, inner)]
            case Reference():
                parts = [_binding(term, scope)]
            case Shared():
                parts = [(term.item, None)]  # a shared term is closed
            case _:
                parts = [(child, scope) for child in term.children]
        nodes.append(ResolvedNode(term, tuple(index_of(part, inside) for part, inside in parts)))
    return tuple(nodes)


def postorder_of(nodes: tuple[ResolvedNode, ...], root: int) -> tuple[list[int], bool]:
    """Return the nodes below ``root``, children before parents, and whether any of them lies on a cycle.

    Where nodes form a cycle, no order puts every child first; what does not depend on a cycle is still in
    order.
    """
    order: list[int] = []
    cyclic = False
    done: dict[int, bool] = {}
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            done[node] = True
            order.append(node)
        elif node not in done:
            done[node] = False
            stack.append((node, True))
            for child in reversed(nodes[node].children):
                if child not in done:
                    stack.append((child, False))
                elif not done[child]:
                    cyclic = True
    return order, cyclic


def order_without_cycle(nodes: tuple[ResolvedNode, ...], root: int) -> list[int]:
    """Return the nodes below ``root``, children before parents, where the language must be regular.

    Raises:
        GrammarError: a rule refers to itself.
    """
    order, is_cyclic = postorder_of(nodes, root)
    if is_cyclic:
        raise GrammarError(
            "grammar",
            f"a rule inside {type(nodes[root].term).__name__} refers to itself",
            remedy="use only terms without recursion where a regular language is needed",
        )
    return order


def _binding(reference: Reference, scope: _ReferenceScope | None) -> tuple[Grammar, _ReferenceScope]:
    while scope is not None:
        if reference.name in scope.bindings:
            return scope.bindings[reference.name], scope
        scope = scope.outer
    raise GrammarError(
        "grammar",
        f"rule {reference.name!r} is not defined",
        remedy="bind it in an enclosing Rules(...), and keep Shared(...) terms closed",
    )


_SHORT_ESCAPES: Final = {
    ord('"'): '"',
    ord("\\"): "\\",
    ord("/"): "/",
    ord("b"): "\b",
    ord("f"): "\f",
    ord("n"): "\n",
    ord("r"): "\r",
    ord("t"): "\t",
}
_HEX_DIGITS: Final = frozenset(b"0123456789abcdefABCDEF")
_HIGH: Final = (0xD800, 0xDBFF)
"""The high surrogates."""
_LOW: Final = (0xDC00, 0xDFFF)
"""The low surrogates."""
_UNIT_LENGTH: Final = len(b"\\u0000")


def extend_escape(pending: bytes, byte: int) -> bytes | str | None:
    r"""Read one byte more of an escape in a JSON string, which began with a backslash (RFC 8259, section 7).

    ``pending`` is what has been read so far: ``b""``, ``b"\\"``, ``b"\\u00"``, ``b"\\ud83d\\u"`` ...; hexadecimal
    digits are in lower case.

    Returns:
        the longer pending spelling; or the character, when it is complete; or ``None``, when nothing that
        begins so spells a character.
    """
    place = len(pending) % _UNIT_LENGTH
    spelled = bytes([byte])
    if place == 0:  # a complete high surrogate waits for its low one
        return pending + spelled if spelled == b"\\" else None
    if place == 1:
        if spelled == b"u":
            return pending + spelled
        return _SHORT_ESCAPES.get(byte) if len(pending) == 1 else None
    if byte not in _HEX_DIGITS:
        return None
    pending += spelled.lower()
    characters = possible_characters(pending)
    if not characters:
        return None
    if len(pending) % _UNIT_LENGTH == 0 and characters[0][0] == characters[-1][1]:
        return chr(characters[0][0])
    return pending


def possible_characters(pending: bytes) -> tuple[tuple[int, int], ...]:
    """Return the characters that an escape prefix so can still spell, as ranges of scalar values."""
    if len(pending) < 2:
        return ((0, _HIGH[0] - 1), (_LOW[1] + 1, 0x10FFFF))
    low, high = _code_units(pending[:_UNIT_LENGTH])
    if len(pending) <= _UNIT_LENGTH:
        basic = ((low, min(high, _HIGH[0] - 1)), (max(low, _LOW[1] + 1), high))
        leads = max(low, _HIGH[0]), min(high, _HIGH[1])
        pairs = (_pair(leads[0], _LOW[0]), _pair(leads[1], _LOW[1])) if leads[0] <= leads[1] else (1, 0)
        return tuple((first, last) for first, last in (*basic, pairs) if first <= last)
    trail_low, trail_high = _code_units(pending[_UNIT_LENGTH:])
    first, last = max(trail_low, _LOW[0]), min(trail_high, _LOW[1])
    return ((_pair(low, first), _pair(low, last)),) if first <= last else ()


def _code_units(escape: bytes) -> tuple[int, int]:
    """The least and the greatest UTF-16 code unit that an escape prefix with ``escape`` can hold."""
    digits = escape[2:].decode()
    return int(digits.ljust(4, "0"), 16), int(digits.ljust(4, "f"), 16)


def _pair(high: int, low: int) -> int:
    return 0x10000 + ((high - _HIGH[0]) << 10) + (low - _LOW[0])
