"""What a marked grammar says beside its text: where lines end, blocks begin, and text may be ignored.

A mark is a reference to a rule that is not there, or a node of its own; ``product`` gives it its meaning and leaves
none.
"""

from __future__ import annotations

from typing import ClassVar, Final, final

from structgen.errors import GrammarError
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import CharClass, Grammar, Reference, Sequence, postorder

__all__ = [
    "CLOSE",
    "DEDENT",
    "GAP",
    "INDENT",
    "NEWLINE",
    "OPEN",
    "Block",
    "Enclosed",
    "NotBefore",
    "Unbalanced",
    "nested",
]

NEWLINE: Final = Reference("<newline>")
"""The end of a line."""
INDENT: Final = Reference("<indent>")
"""The lines from here on are those of a block."""
DEDENT: Final = Reference("<dedent>")
"""The block has ended with the line before."""
GAP: Final = Reference("<ignored>")
"""Ignored text may stand here."""
OPEN: Final = Reference("<open>")
"""A bracket has opened."""
CLOSE: Final = Reference("<close>")
"""A bracket has closed."""

_DEPTH: Final = {INDENT.name: 1, OPEN.name: 1, DEDENT.name: -1, CLOSE.name: -1}
_PARTNER: Final = {DEDENT.name: INDENT.name, CLOSE.name: OPEN.name}


class _Wrapped(Grammar):
    __slots__ = ("item",)
    _fields = ("item",)
    item: Grammar
    what: ClassVar[str]

    def __init__(self, item: Grammar) -> None:
        object.__setattr__(self, "item", item)

    @property
    def children(self) -> tuple[Grammar, ...]:
        return (self.item,)


@final
class Block(_Wrapped):
    """The lines of a block."""

    __slots__ = ()


@final
class Enclosed(_Wrapped):
    """What stands between brackets, the closing one included."""

    __slots__ = ()


@final
class NotBefore(Grammar):
    """The next character of the text, if there is one, is none of ``characters``; text stands before it."""

    __slots__ = ("characters",)
    _fields = ("characters",)
    characters: CharClass

    def __init__(self, characters: CharClass) -> None:
        object.__setattr__(self, "characters", characters)

    def _own(self) -> object:
        return self.characters.ranges


class Unbalanced(GrammarError):
    """A mark without its partner in the same sequence; ``mark`` is its name."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        super().__init__("grammar", f"{mark} has no partner in its sequence")


def nested(term: Grammar) -> Grammar:
    """Return ``term`` with ``Block`` and ``Enclosed`` nodes in place of the marks that begin and end them.

    Raises:
        Unbalanced: a mark has no partner in the sequence that it stands in.

    Complexity:
        O(n) for n nodes; without recursion.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(term):
        children = [made[id(child)] for child in node.children]
        if isinstance(node, Sequence):
            made[id(node)] = _sequence(node, children)
        else:
            for child in children:
                _check(child)
            made[id(node)] = with_children(node, children)
    _check(made[id(term)])
    return made[id(term)]


def _sequence(node: Sequence, children: list[Grammar]) -> Grammar:
    """Splice sequences that hold half of a pair, and wrap what stands between two halves."""
    if not any(_is_half(child) or isinstance(child, Sequence) for child in children):
        return with_children(node, children)
    items: list[Grammar] = []
    for child in children:
        if isinstance(child, Sequence) and any(map(_is_half, child.items)):
            items += child.items
        else:
            items.append(child)
    if not any(map(_is_half, items)):
        return with_children(node, children)
    stack: list[tuple[str, list[Grammar]]] = [("", [])]
    for item in items:
        depth = _DEPTH.get(item.name, 0) if isinstance(item, Reference) else 0
        if depth > 0 and isinstance(item, Reference):
            stack.append((item.name, []))
        elif depth < 0 and isinstance(item, Reference):
            opening, inner = stack[-1]
            if opening != _PARTNER[item.name]:
                return Sequence(items)  # a half of the sequence around it, or an error there
            stack.pop()
            wrapped = Sequence(inner)
            stack[-1][1].append(Block(wrapped) if item.name == DEDENT.name else Enclosed(wrapped))
        else:
            stack[-1][1].append(item)
    return Sequence(stack[0][1]) if len(stack) == 1 else Sequence(items)


def _is_half(node: Grammar) -> bool:
    return isinstance(node, Reference) and node.name in _DEPTH


def _check(node: Grammar) -> None:
    items = node.items if isinstance(node, Sequence) else (node,)
    for item in items:
        if isinstance(item, Reference) and item.name in _DEPTH:
            raise Unbalanced(item.name)
