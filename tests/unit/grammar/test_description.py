"""Terms that are made on first use."""

from __future__ import annotations

from structgen.grammar.nodes import Grammar, literal
from structgen.grammar.nodes.description import Described, Description


class _Source:
    """While it makes a term for the first time, somebody else asks for it too."""

    def __init__(self) -> None:
        self.node = Described.deferred(None, self)
        self.made: list[Grammar] = []
        self.others: list[Grammar] = []

    def item(self) -> Grammar:
        self.made.append(literal("a"))
        mine = self.made[-1]
        if len(self.made) == 1:
            self.others.append(self.node.item)
        return mine

    def description(self) -> Description:
        return Description("test")


def test_a_term_that_is_made_twice_at_a_time_is_not_replaced() -> None:
    """Whoever asked for it may still read it, without holding it, as the engine does."""
    source = _Source()
    assert source.node.item is source.others[0]
    assert len(source.made) == 2
    assert source.node.item is source.others[0]
