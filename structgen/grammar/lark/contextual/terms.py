"""From automata to terms: the texts along the paths of a graph whose edges bear languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from structgen.errors import LimitExceeded
from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.nodes import EPSILON, Grammar, Repeat

__all__ = ["Graph", "paths"]

Graph: TypeAlias = Mapping[Any, list[tuple[Grammar, Any]]]
"""By node, its edges: a language and the node that it leads to."""

_DEEPEST: Final = 100
"""How many loops through other nodes may lie inside each other."""

_Outcome: TypeAlias = dict[Any, Grammar]
"""By way out, the texts that lead to it."""


def paths(graph: Graph, outcomes: Mapping[Any, Any], subject: str) -> dict[Any, _Outcome]:
    """Return, for each node, the texts of the paths to each outcome.

    Args:
        graph: the edges of each node; targets must be nodes too.
        outcomes: nodes at which a path may end, with what they are called.
        subject: what errors are about.

    Raises:
        LimitExceeded: loops are nested too deeply.

    Complexity: linear in the edges where loops have one entry each and no loops inside; terms share their parts.
    """
    exits = {node: {outcomes[node]: EPSILON} if node in outcomes else {} for node in graph}
    return _solve(graph, exits, 0, subject)


def _solve(graph: Graph, exits: Mapping[Any, _Outcome], depth: int, subject: str) -> dict[Any, _Outcome]:
    """Solve ``X = edges . X + exits``, component by component (D. N. Arden, 1961)."""
    if depth > _DEEPEST:
        raise LimitExceeded(
            subject, limit="loops", maximum=_DEEPEST, remedy='write its regexps in a simpler way, or use lexer="any"'
        )
    solved: dict[Any, _Outcome] = {}
    for component in strongly_connected({node: [target for _, target in graph[node]] for node in graph}):
        inside = set(component)
        if len(component) == 1:
            node = component[0]
            again = [label for label, target in graph[node] if target == node]
            onward = _gathered(graph, node, exits[node], solved, inside)
            solved[node] = _after_loop(again, onward)
            continue
        head = max(component, key=lambda node: sum(target == node for one in component for _, target in graph[one]))
        # Without its head the component falls apart; what comes back to the head is one more way out.
        back = object()
        below = {
            node: [(label, target) for label, target in graph[node] if target in inside and target != head]
            for node in component
            if node != head
        }
        leaving: dict[Any, _Outcome] = {}
        for node in component:
            found = _gathered(graph, node, exits[node], solved, inside)
            returning = [label for label, target in graph[node] if target == head]
            if returning:
                found = {**found, back: either(returning)}
            leaving[node] = found
        inner = _solve(below, {node: leaving[node] for node in below}, depth + 1, subject)
        around = _gathered(
            {head: [(label, target) for label, target in graph[head] if target in below]},
            head, leaving[head], inner, set(),
        )  # fmt: skip
        again = [around.pop(back)] if back in around else []
        solved[head] = _after_loop(again, around)
        for node in component:
            if node != head:
                found = dict(inner[node])
                to_head = found.pop(back, None)
                if to_head is not None:
                    for way, term in solved[head].items():
                        tail = joined([to_head, term])
                        found[way] = either([found[way], tail]) if way in found else tail
                solved[node] = found
    return solved


def _gathered(
    graph: Graph,
    node: Any,
    exits: _Outcome,
    solved: Mapping[Any, _Outcome],
    inside: set[Any],
) -> _Outcome:
    """What leads out of a component at ``node``."""
    ways: dict[Any, list[Grammar]] = {way: [term] for way, term in exits.items()}
    for label, target in graph[node]:
        if target not in inside:
            for way, term in solved[target].items():
                ways.setdefault(way, []).append(joined([label, term]))
    return {way: either(terms) for way, terms in ways.items()}


def _after_loop(again: list[Grammar], onward: _Outcome) -> _Outcome:
    if not again:
        return onward
    loop = Repeat(either(again))
    return {way: loop if term is EPSILON else joined([loop, term]) for way, term in onward.items()}
