"""What the expressions of rules and of terminals have in common."""

from __future__ import annotations

from typing import Final

from structgen.errors import LimitExceeded
from structgen.grammar.lark.definitions import Module, span_of
from structgen.grammar.lark.syntax import Node, Token
from structgen.grammar.limits import Limits

__all__ = ["Budget", "bounds_of"]

_BOUNDS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MOST_DIGITS: Final = 10


class Budget:
    """Counts the nodes that a grammar is made of."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._spent = 0

    def charge(self, count: int, subject: str) -> None:
        """Add nodes made for ``subject``.

        Raises:
            LimitExceeded: they are more than ``grammar_nodes``.
        """
        self._spent += count
        if self._spent > self.limits.grammar_nodes:
            raise LimitExceeded(subject, limit="grammar_nodes", maximum=self.limits.grammar_nodes)


def bounds_of(module: Module, tree: Node) -> tuple[int, int | None]:
    """Return the counts of ``x?``, ``x*``, ``x+``, ``x~n``, ``x~n..m`` and ``x{n,m}``.

    Raises:
        GrammarSyntaxError: a count is negative or far too large, or the bounds contain none.
    """
    if tree.data == "repeat":
        return _BOUNDS[str(tree.children[1])]
    numbers: list[int] = []
    tokens = tree.children[2:]
    if tree.data == "counted":
        counts = tree.children[1]
        first, _, last = str(counts)[1:-1].partition(",")
        start = counts.start_pos if isinstance(counts, Token) else 0
        tokens = [Token("NUMBER", part, start) for part in (first.strip() or "0", last.strip()) if part]
    for token in tokens:
        if isinstance(token, Token):
            if len(token) > _MOST_DIGITS or int(token) < 0:
                problem = f"count {token[:_MOST_DIGITS]}{'...' * (len(token) > _MOST_DIGITS)} is out of range"
                raise module.source.syntax_error(span_of(token), problem, "give a count from 0 on")
            numbers.append(int(token))
            if numbers[-1] < numbers[0]:
                problem = f"the bounds {numbers[0]}..{numbers[-1]} contain no count"
                raise module.source.syntax_error(span_of(token), problem, "swap them")
    if tree.data == "counted" and str(tree.children[1]).rstrip(" \t}").endswith(","):
        return numbers[0], None
    return numbers[0], numbers[-1]
