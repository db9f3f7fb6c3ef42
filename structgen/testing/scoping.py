"""References resolved: a grammar as a plain graph of terms, for the two slow definitions of its meaning.

A name means the rule of the innermost enclosing ``Rules`` that binds it, so one term object may stand for
different languages in different places. A node of the graph is a term together with the scope that it
stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

from structgen.errors import GrammarError
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared

__all__ = ["Node", "postorder_of", "resolve"]


@dataclass(frozen=True, slots=True)
class Node:
    """A term in its scope; ``children`` are indices into the graph.

    ``Rules`` has one child, its body, and ``Reference`` one, the rule's expression: both mean their child.
    """

    term: Grammar
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Scope:
    bindings: dict[str, Grammar]
    outer: _Scope | None


def resolve(grammar: Grammar) -> tuple[Node, ...]:
    """Return the graph below ``grammar``; node 0 is the grammar itself.

    Raises:
        GrammarError: a reference is not bound by any enclosing ``Rules``.
    """
    scopes: dict[tuple[int, _Scope | None], _Scope] = {}
    indices: dict[tuple[int, _Scope | None], int] = {}
    places: list[tuple[Grammar, _Scope | None]] = []

    def index_of(term: Grammar, scope: _Scope | None) -> int:
        key = (id(term), scope)
        if key not in indices:
            indices[key] = len(places)
            places.append((term, scope))
        return indices[key]

    nodes: list[Node] = []
    index_of(grammar, None)
    while len(nodes) < len(places):
        term, scope = places[len(nodes)]
        parts: list[tuple[Grammar, _Scope | None]]
        match term:
            case Rules():
                inner = scopes.setdefault((id(term), scope), _Scope(dict(term.rules), scope))
                parts = [(term.body, inner)]
            case Reference():
                parts = [_binding(term, scope)]
            case Shared():
                parts = [(term.item, None)]  # a shared term is closed
            case _:
                parts = [(child, scope) for child in term.children]
        nodes.append(Node(term, tuple(index_of(part, inside) for part, inside in parts)))
    return tuple(nodes)


def postorder_of(nodes: tuple[Node, ...], root: int) -> tuple[list[int], bool]:
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


def _binding(reference: Reference, scope: _Scope | None) -> tuple[Grammar, _Scope]:
    while scope is not None:
        if reference.name in scope.bindings:
            return scope.bindings[reference.name], scope
        scope = scope.outer
    raise GrammarError(
        "grammar",
        f"rule {reference.name!r} is not defined",
        remedy="bind it in an enclosing Rules(...), and keep Shared(...) terms closed",
    )
