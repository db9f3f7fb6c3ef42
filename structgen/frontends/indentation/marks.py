"""Settings of indentation, and the marks of a grammar for lines, blocks and ignored text.

A mark is a reference to a reserved name, or a node of its own; ``product`` replaces all marks.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from typing import ClassVar, Final, final

from structgen.errors import GrammarError
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import CharClass, Grammar, Reference, Sequence
from structgen.grammar.visitor import fold

__all__ = [
    "CLOSE",
    "DEDENT",
    "GAP",
    "INDENT",
    "NEWLINE",
    "OPEN",
    "Block",
    "Enclosed",
    "Indentation",
    "NotBefore",
    "Unbalanced",
    "nested",
]

NEWLINE: Final = Reference("<newline>")
"""The end of a line."""
INDENT: Final = Reference("<indent>")
"""A block begins."""
DEDENT: Final = Reference("<dedent>")
"""The block has ended."""
GAP: Final = Reference("<ignored>")
"""Ignored text is allowed here."""
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
    """The text between brackets, with the closing bracket."""

    __slots__ = ()


@final
class NotBefore(Grammar):
    """A guard after some text: the next character, if there is one, is not in ``characters``."""

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
    """Return ``term`` with ``Block`` and ``Enclosed`` nodes instead of their pairs of marks.

    Raises:
        Unbalanced: a mark has no partner in its sequence.

    Complexity:
        O(n) for n nodes; without recursion.
    """

    def combine(node: Grammar, children: list[Grammar]) -> Grammar:
        if isinstance(node, Sequence):
            return _sequence(node, children)
        for child in children:
            _check(child)
        return with_children(node, children)

    result = fold(term, combine)
    _check(result)
    return result


def _sequence(node: Sequence, children: list[Grammar]) -> Grammar:
    """Splice sequences with half of a pair, and wrap the items between two halves."""
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
                return Sequence(items)  # a half of a pair in the sequence around it, or an error there
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


_BRACKETS: Final = ("()", "[]", "{}")
_MAX_WIDTHS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Indentation:
    """How lines are indented.

    The widths of open blocks form a stack, which starts with 0. A block pushes a width that is larger than the last by
    a ``step``. All its lines have that width. After it, the width is exactly one of those below.

    Attributes:
        step: the additional width of a block: one number, or an inclusive range ``(first, last)``.
        character: the indentation character: ``" "`` or a tab.
        max_width: the largest width. Indentation is context-free only up to a bound.
        newline: possible names of the terminal that ends a line; a Lark grammar defines one of them.
        indent: the declared terminal that begins a block.
        dedent: the declared terminal that ends a block.
        brackets: pairs of terminals; newlines between them are ignored. ``()`` for none.

    Raises:
        ValueError: a setting is invalid.
    """

    step: int | tuple[int, int] = 4
    character: str = " "
    max_width: int = 80
    newline: tuple[str, ...] = ("_NL", "_NEWLINE")
    indent: str = "_INDENT"
    dedent: str = "_DEDENT"
    brackets: tuple[str, ...] = _BRACKETS

    def __post_init__(self) -> None:
        low, high = self._bounds()
        if not 1 <= low <= high:
            raise ValueError(f"Indentation: step {self.step!r} contains no width from 1 on; give 1 <= first <= last")
        if self.character not in (" ", "\t"):
            raise ValueError(f"Indentation: character {self.character!r} is neither a space nor a tab")
        if not 0 <= self.max_width <= _MAX_WIDTHS:
            raise ValueError(f"Indentation: max_width {self.max_width} is not in 0..{_MAX_WIDTHS}")
        if isinstance(self.newline, str) or not self.newline:
            raise ValueError("Indentation: newline is a tuple of names; write newline=('_NL',)")
        if self.indent == self.dedent:
            raise ValueError(f"Indentation: indent and dedent have the same name, {self.indent!r}")
        for pair in self.brackets:
            if len(pair) != 2 or pair[0] == pair[1]:
                raise ValueError(f"Indentation: {pair!r} is no pair of brackets; write '()'")

    def deeper(self, width: int) -> abc.Sequence[int]:
        """Return the possible widths of a block inside a block of ``width``, smallest first."""
        low, high = self._bounds()
        return range(width + low, min(width + high, self.max_width) + 1)

    def _bounds(self) -> tuple[int, int]:
        return (self.step, self.step) if isinstance(self.step, int) else self.step
