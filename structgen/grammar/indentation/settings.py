"""What an indented text looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Indentation"]

_BRACKETS: Final = ("()", "[]", "{}")
_MOST_WIDTHS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Indentation:
    """How lines are indented: what may stand before a line, and how much deeper a block may be than what it is in.

    A text obeys a stack of widths, which holds 0 at first.  A block puts a width on it that is larger than the last by
    a ``step``; all its lines have that width; behind it the width is one of those below, exactly.

    Attributes:
        step: by how many characters a block is deeper: one number, or any of ``(first, last)``.
        character: what lines are indented by: ``" "`` or a tab.
        max_width: the largest width.  Indentation is no context-free property; within a width it is.
        newline: names of the terminal that ends a line, of which a Lark grammar defines one.
        indent: name of the declared terminal that begins a block.
        dedent: name of the declared terminal that ends a block.
        brackets: pairs of terminals between which lines end nowhere and newlines are ignored; ``()`` for none.

    Raises:
        ValueError: a setting makes no sense.
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
            raise ValueError(f"Indentation: character {self.character!r} is neither a blank nor a tab")
        if not 0 <= self.max_width <= _MOST_WIDTHS:
            raise ValueError(f"Indentation: max_width {self.max_width} is not in 0..{_MOST_WIDTHS}")
        if isinstance(self.newline, str) or not self.newline:
            raise ValueError("Indentation: newline is a tuple of names; write newline=('_NL',)")
        if self.indent == self.dedent:
            raise ValueError(f"Indentation: indent and dedent have one name, {self.indent!r}")
        for pair in self.brackets:
            if len(pair) != 2 or pair[0] == pair[1]:
                raise ValueError(f"Indentation: {pair!r} is no pair of brackets; write '()'")

    def deeper(self, width: int) -> Sequence[int]:
        """Return the widths that a block inside one of ``width`` may have, smallest first."""
        low, high = self._bounds()
        return range(width + low, min(width + high, self.max_width) + 1)

    def _bounds(self) -> tuple[int, int]:
        return (self.step, self.step) if isinstance(self.step, int) else self.step
