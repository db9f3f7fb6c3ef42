"""The language of a contextual node as a table: (left requirement, right requirement) -> term.

A node that holds assertions has no single language, for what it matches depends on its surroundings.  It has a few,
each valid where its requirement on the left context and on the right context is met.  ``^a|b$`` is
``{(start, any): "a", (any, end): "b"}``.  Tables compose: where one node follows another, the second's requirement
on the left is met by the last character of the first, or handed on to the left where the first is empty.

Requirements are handed on, never guessed, so no part of a pattern is split by what might surround it: composing
costs a constant number of terms for each pair of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from structgen.errors import LimitExceeded
from structgen.grammar.nodes import EPSILON, Grammar, Literal
from structgen.grammar.regex.context import ANY, CHARACTERS, EDGE, LAST_NEWLINE, Alphabet, Cell
from structgen.grammar.regex.joining import either, then
from structgen.grammar.regex.restriction import Terms

__all__ = ["ANYWHERE", "EMPTY_TABLE", "Composer", "Table"]

Table = dict[Cell, Grammar]

ANYWHERE: Cell = (ANY, ANY)
EMPTY_TABLE: Table = {ANYWHERE: EPSILON}
"""The empty text, without any requirement."""

# A step of translation makes a few nodes, and looks at more.
_NODES_A_STEP: Final = 16
_MULTIPLIED: Final = "its assertions multiply"
_NEWLINE_TEXT: Final = Literal(b"\n")


class Composer:
    """Composition of tables over one alphabet, for one pattern.

    Attributes:
        alphabet: how the assertions tell characters apart.
        terms: what is known about the terms of the pattern.
        written_turns: the turns of loops that have been written out.
    """

    __slots__ = ("_left", "_max_nodes", "alphabet", "terms", "written_turns")

    def __init__(self, alphabet: Alphabet, max_nodes: int) -> None:
        self.alphabet = alphabet
        self.terms = Terms(alphabet)
        self.written_turns = 0
        self._max_nodes = max_nodes
        self._left = max_nodes // _NODES_A_STEP

    def spend(self, steps: int) -> None:
        """Count steps of translation.

        Raises:
            LimitExceeded: there have been more than the limit on nodes pays for.
        """
        self._left -= steps
        if self._left < 0:
            raise LimitExceeded("regex", limit="grammar_nodes", maximum=self._max_nodes, evidence=_MULTIPLIED)

    def composed(self, first: Table, second: Table) -> Table:
        """``first`` and then ``second``."""
        cells: list[tuple[Cell, Grammar]] = []
        for (left, promise), prefix in first.items():
            for (demand, right), suffix in second.items():
                for outer_left, before in self.before(prefix, left, demand):
                    self.spend(1)
                    cells.extend(
                        ((outer_left, outer_right), then(before, after))
                        for outer_right, after in self.after(suffix, right, promise)
                    )
        return union(cells)

    def before(self, term: Grammar, left: int, demand: int) -> Iterator[tuple[int, Grammar]]:
        """The texts of ``term`` after which ``demand`` holds, each with what is then required on the left."""
        if demand == ANY:
            yield left, term
            return
        self.spend(1)
        if demand & CHARACTERS:
            part = self.terms.last_in(term, demand & CHARACTERS)
            if part is not None:
                yield left, part
        if left & demand and self.terms.nullable(term):
            yield left & demand, EPSILON

    def after(self, term: Grammar, right: int, promise: int) -> Iterator[tuple[int, Grammar]]:
        """The texts of ``term`` that keep ``promise``, each with what is then required on the right."""
        for part, residual in self.keeping(term, promise):
            if right & residual:
                yield right & residual, part
        if promise != ANY and promise & right and self.terms.nullable(term):
            yield promise & right, EPSILON

    def keeping(self, term: Grammar, promise: int) -> Iterator[tuple[Grammar, int]]:
        """The texts of ``term`` that keep ``promise``, each with what is still promised after it.

        The empty text is among them only where nothing is promised.
        """
        if promise == ANY:
            yield term, ANY
            return
        self.spend(1)
        if promise & CHARACTERS:
            part = self.terms.first_in(term, promise & CHARACTERS)
            if part is not None:
                yield part, ANY
        if promise & LAST_NEWLINE and not promise & self.alphabet.line_feed and self.terms.holds_newline(term):
            yield _NEWLINE_TEXT, EDGE


def union(cells: Iterable[tuple[Cell, Grammar]]) -> Table:
    """The table of all ``cells``; a cell that another one makes superfluous is dropped."""
    gathered: dict[Cell, list[Grammar]] = {}
    for cell, term in cells:
        gathered.setdefault(cell, []).append(term)
    table = {cell: either(terms) for cell, terms in gathered.items()}
    if table.get(ANYWHERE) is EPSILON:
        return {cell: term for cell, term in table.items() if cell == ANYWHERE or term is not EPSILON}
    return table
