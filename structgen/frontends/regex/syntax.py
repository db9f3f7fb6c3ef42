r"""The syntax tree of a regular expression: IR terms wherever possible, small nodes where context matters.

A part without assertions *is* a language, so the parser makes its IR term at once. Only assertions (anchors,
boundaries, look-aheads) and the nodes around them are nodes of this module, which ``translate`` turns into IR.

Look-arounds of one character are boundaries, like ``\b``, and allowed everywhere: ``(?!-)``, ``(?<=[a-z])`` and
``(?=,|$)`` depend on one adjacent character or the edge of the input only.

A boundary looks at one character to either side at most, or at the edge of the text: a :class:`Side` is what it accepts
there. Each pattern splits the characters into blocks that its assertions do not distinguish
(:class:`ContextAlphabet`), and a side becomes a bit mask over: the edge of the text, the case of exactly one line feed
before the end, and the blocks.  These cases exclude each other, so the conjunction of two assertions is the
intersection of their masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from structgen.frontends.regex.code_point import (
    ALL,
    NONE,
    Ranges,
    complement,
    contains,
    difference,
    intersection,
    ranges_bytes,
    union,
)
from structgen.grammar.nodes import EPSILON, Capture, CharClass, Choice, Grammar, Literal, Repeat, Sequence
from structgen.memory_cache import TERMS, cached

__all__ = [
    "ANY",
    "ANYTHING",
    "CHARACTERS",
    "EDGE",
    "LAST_NEWLINE",
    "NOTHING",
    "Alternatives",
    "Boundary",
    "Cell",
    "Concatenation",
    "ContextAlphabet",
    "Contextual",
    "Item",
    "Lookahead",
    "Loop",
    "Named",
    "Node",
    "Side",
    "Span",
    "TooManyBlocks",
    "alphabet_of",
    "alternatives",
    "as_boundary",
    "concatenation",
    "has_fixed_width",
    "loop",
    "named",
    "to_node",
]

Cell = tuple[int, int]
"""A requirement on the left context and one on the right context, as masks."""

ANY: Final = -1
"""The mask of no requirement: all bits."""
EDGE: Final = 1
"""There is no character on this side."""
LAST_NEWLINE: Final = 2
"""On the right: one line feed and then the end of the text."""
CHARACTERS: Final = ~(EDGE | LAST_NEWLINE)
"""All bits of blocks of characters."""

_FIRST_BLOCK: Final = 4
_MAX_BLOCKS: Final = 64
_USES_OF_A_BLOCK: Final = 8
"""Unions of blocks are remembered; about this many hold each block."""
_LINE_FEED: Final = 0x0A


class TooManyBlocks(Exception):
    """The assertions of a pattern distinguish more than 64 kinds of characters."""


class Side(NamedTuple):
    """The contexts that an assertion accepts on one side.

    Attributes:
        at_edge: whether it accepts the edge of the text.
        characters: the accepted characters.
        last_newline: whether it accepts one line feed that is the last character of the text.
    """

    at_edge: bool
    characters: Ranges
    last_newline: bool = False

    @property
    def complement(self) -> Side | None:
        """The complement of this side; ``None`` if it would separate a last line feed from others."""
        if self.last_newline and not contains(self.characters, _LINE_FEED):
            return None
        return Side(not self.at_edge, complement(self.characters))

    def joined(self, other: Side) -> Side:
        """The union of both sides."""
        characters = union(self.characters, other.characters)
        return Side(self.at_edge or other.at_edge, characters, self.last_newline or other.last_newline)


ANYTHING: Final = Side(at_edge=True, characters=ALL)
"""No requirement."""
NOTHING: Final = Side(at_edge=False, characters=NONE)
"""An unsatisfiable requirement."""


class ContextAlphabet:
    """The characters, split into blocks that the assertions of a pattern do not distinguish.

    Raises:
        TooManyBlocks: there are more than 64 blocks.
    """

    __slots__ = ("_masks", "_ranges", "blocks", "line_feed")

    def __init__(self, sets: Iterable[Ranges]) -> None:
        blocks: list[Ranges] = [ALL]
        for members in sets:
            parts = [(intersection(block, members), difference(block, members)) for block in blocks]
            blocks = [part for pair in parts for part in pair if part]
            if len(blocks) > _MAX_BLOCKS:
                raise TooManyBlocks
        self.blocks: dict[int, Ranges] = {_FIRST_BLOCK << index: block for index, block in enumerate(blocks)}
        self.line_feed = next(bit for bit, block in self.blocks.items() if contains(block, _LINE_FEED))
        self._masks: dict[Side, int] = {}
        self._ranges: dict[int, Ranges] = {}

    def mask(self, side: Side) -> int:
        """The cases that ``side`` accepts; its characters are a union of blocks."""
        if side is ANYTHING:
            return ANY
        if side is NOTHING:
            return 0
        known = self._masks.get(side)
        if known is None:
            known = self._masks[side] = self._mask(side)
        return known

    def ranges(self, mask: int) -> Ranges:
        """The characters of the blocks in ``mask``."""
        mask &= CHARACTERS
        known = self._ranges.get(mask)
        if known is None:
            chosen = [block for bit, block in self.blocks.items() if mask & bit]
            known = ALL if len(chosen) == len(self.blocks) else union(*chosen)
            self._ranges[mask] = known
        return known

    def characters(self, mask: int) -> CharClass:
        """One character of the blocks in ``mask``."""
        return CharClass(self.ranges(mask))

    def _mask(self, side: Side) -> int:
        if side.characters == ALL:
            return ANY if side.at_edge else ~EDGE
        mask = EDGE if side.at_edge else 0
        if side.characters != NONE:
            for bit, block in self.blocks.items():
                if contains(side.characters, block[0][0]):
                    mask |= bit
        if side.last_newline or mask & self.line_feed:
            mask |= LAST_NEWLINE
        return mask


def _alphabet_bytes(alphabet: ContextAlphabet) -> int:
    return _USES_OF_A_BLOCK * sum(map(ranges_bytes, alphabet.blocks.values()))


@cached(TERMS, _alphabet_bytes)
def alphabet_of(sets: tuple[Ranges, ...]) -> ContextAlphabet:
    """The alphabet that separates ``sets``, cached for patterns with the same assertions.

    Raises:
        TooManyBlocks: there are more than 64 blocks.
    """
    return ContextAlphabet(sets)


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
