r"""The syntax tree of a regular expression: IR terms wherever possible, small nodes where context matters.

A part without assertions *is* a language, so the parser makes its IR term at once. Only assertions (anchors,
boundaries, look-aheads) and the nodes around them are nodes of this module, which ``translate`` turns into IR.

Look-arounds of one character are boundaries, like ``\b``, and allowed everywhere: ``(?!-)``, ``(?<=[a-z])`` and
``(?=,|$)`` depend on one adjacent character or the edge of the input only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from structgen.frontends.regex.context import ANYTHING, NOTHING, Side
from structgen.grammar.nodes import EPSILON, Capture, CharClass, Choice, Grammar, Literal, Repeat, Sequence

__all__ = [
    "Alternatives",
    "Boundary",
    "Concatenation",
    "Contextual",
    "Item",
    "Lookahead",
    "Loop",
    "Named",
    "Node",
    "Span",
    "alternatives",
    "as_boundary",
    "concatenation",
    "has_fixed_width",
    "loop",
    "named",
    "to_node",
]

Span: TypeAlias = tuple[int, int]
"""Half-open interval of character offsets into the pattern."""

_SPLICED_ITEMS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Boundary:
    """A zero-width assertion: it holds where one of ``cells`` does.

    Attributes:
        cells: pairs of an accepted left side and an accepted right side.
    """

    cells: tuple[tuple[Side, Side], ...]
    has_lookahead: bool = field(default=False, init=False)


@dataclass(frozen=True, slots=True, eq=False)
class Lookahead:
    """``(?=body)``, or ``(?!body)`` when ``negative``."""

    body: Node
    negative: bool
    span: Span
    has_lookahead: bool = field(default=True, init=False)


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation:
    """The items one after the other; at least one is contextual."""

    items: tuple[Node, ...]
    has_lookahead: bool


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """Any one of the items; at least one is contextual."""

    items: tuple[Node, ...]
    has_lookahead: bool


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A contextual ``item`` from ``min`` to ``max`` times."""

    item: Contextual
    min: int
    max: int | None
    span: Span
    has_lookahead: bool


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A contextual ``item`` whose text is captured under ``name``."""

    name: str
    item: Contextual
    span: Span
    has_lookahead: bool


Contextual: TypeAlias = Boundary | Lookahead | Concatenation | Alternatives | Loop | Named
Node: TypeAlias = Grammar | Contextual
Item: TypeAlias = str | Node
"""A node, or literal text that may still be joined with adjacent text; ``""`` is the empty string."""


def to_node(item: Item) -> Node:
    """``item`` as a node; literal text becomes a term."""
    if isinstance(item, str):
        return Literal(item.encode()) if item else EPSILON
    return item


def concatenation(items: list[Item]) -> Item:
    """The items one after the other, with adjacent literal text joined and short sequences spliced."""
    if len(items) == 1:
        return items[0]
    run = _TermBuilder()
    parts: list[Node] = []
    for item in items:
        if isinstance(item, str):
            run.text.append(item.encode())
        elif isinstance(item, Grammar):
            run.add(item)
        else:
            parts.extend(run.ended())
            parts.append(item)
    if not parts:
        return next(run.ended(), "")
    parts.extend(run.ended())
    return parts[0] if len(parts) == 1 else Concatenation(tuple(parts), _any_lookahead(parts))


class _TermBuilder:
    """Builds one term from adjacent items without assertions."""

    __slots__ = ("terms", "text")

    def __init__(self) -> None:
        self.terms: list[Grammar] = []
        self.text: list[bytes] = []

    def add(self, item: Grammar) -> None:
        if isinstance(item, Literal):
            self.text.append(item.data)
        elif isinstance(item, Sequence) and len(item.items) <= _SPLICED_ITEMS:
            for part in item.items:
                self.add_one(part)
        else:
            self.add_one(item)

    def add_one(self, item: Grammar) -> None:
        if isinstance(item, Literal):
            self.text.append(item.data)
            return
        if self.text:
            self.end_text()
        self.terms.append(item)

    def end_text(self) -> None:
        data = b"".join(self.text)
        self.text = []
        if data:
            self.terms.append(Literal(data))

    def ended(self) -> Iterator[Grammar]:
        """The term of the run, if it is not the empty string; the run is empty afterwards."""
        if self.text:
            self.end_text()
        if self.terms:
            yield self.terms[0] if len(self.terms) == 1 else Sequence(self.terms)
        self.terms = []


def alternatives(branches: list[Item]) -> Item:
    """Any one of the branches; those without assertions become one term."""
    if len(branches) == 1:
        return branches[0]
    nodes = [to_node(branch) for branch in branches]
    plain: list[Grammar] = []
    contextual: list[Node] = []
    for node in nodes:
        if isinstance(node, Grammar):
            plain.append(node)
        else:
            contextual.append(node)
    if not contextual:
        return Choice(plain)
    if plain:
        contextual.append(plain[0] if len(plain) == 1 else Choice(plain))
    return Alternatives(tuple(contextual), _any_lookahead(contextual))


def loop(item: Item, minimum: int, maximum: int | None, span: Span) -> Item:
    """``item`` from ``minimum`` to ``maximum`` times, simplified where possible."""
    if maximum == 0 or item == "":
        return ""
    if minimum == 1 and maximum == 1:
        return item
    if isinstance(item, (Boundary, Lookahead)):
        # An assertion consumes nothing, so one round is as good as many.
        return item if minimum else ""
    node = to_node(item)
    if not isinstance(node, Grammar):
        return Loop(node, minimum, maximum, span, node.has_lookahead)
    if maximum is None and minimum <= 1 and isinstance(node, Repeat) and node.min <= 1:
        if node.max is None:
            return Repeat(node.item, minimum * node.min, None)
        if node.max == 1:
            return Repeat(node.item, minimum * node.min, None)
    return Repeat(node, minimum, maximum)


def named(name: str, item: Item, span: Span) -> Item:
    """``item``, captured under ``name``."""
    node = to_node(item)
    if isinstance(node, Grammar):
        return Capture(name, node)
    return Named(name, node, span, node.has_lookahead)


def _any_lookahead(nodes: list[Node]) -> bool:
    return any(not isinstance(node, Grammar) and node.has_lookahead for node in nodes)


def as_boundary(body: Node, *, ahead: bool, negative: bool) -> Boundary | None:
    """The boundary of a look-around with this body, or ``None`` if it sees more than one character."""
    left = right = NOTHING
    for item in body.items if isinstance(body, Alternatives) else (body,):
        for sides in _sides(item, ahead=ahead):
            if sides is None:
                return None
            left, right = left.joined(sides[0]), right.joined(sides[1])
    if not negative:
        return Boundary(((left, ANYTHING), (ANYTHING, right)))
    before, after = left.complement, right.complement
    return None if before is None or after is None else Boundary(((before, after),))


def has_fixed_width(body: Node) -> bool:
    """Whether a body that ``as_boundary`` accepts has one width, as Python's look-behind requires."""
    items = body.items if isinstance(body, Alternatives) else (body,)
    return len({isinstance(item, Boundary) for item in items}) == 1


def _sides(item: Node, *, ahead: bool) -> Iterator[tuple[Side, Side] | None]:
    """What each alternative accepts on the left or on the right; ``None`` for an unsupported alternative."""
    if isinstance(item, Boundary):
        for left, right in item.cells:
            if left == ANYTHING:
                yield NOTHING, right
            elif right == ANYTHING:
                yield left, NOTHING
            else:
                yield None
        return
    for term in item.items if isinstance(item, Choice) else (item,):
        side = _side(term)
        yield None if side is None else (NOTHING, side) if ahead else (side, NOTHING)


def _side(term: Node) -> Side | None:
    """The side of one character of ``term``; ``None`` if its strings are not single characters."""
    if isinstance(term, CharClass):
        return Side(at_edge=False, characters=term.ranges)
    if isinstance(term, Literal):
        text = term.data.decode()
        if len(text) == 1:
            return Side(at_edge=False, characters=((ord(text), ord(text)),))
    return None
