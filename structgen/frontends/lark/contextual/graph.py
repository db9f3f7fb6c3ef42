"""Algorithms on graphs: equivalent states of deterministic automata, and terms for the strings along paths.

The edges of an automaton are labelled with sets of letters, those of a graph of paths with languages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from structgen.errors import LimitExceeded
from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.limits import spend
from structgen.grammar.nodes import EPSILON, Grammar, Repeat

__all__ = ["Graph", "equivalence_classes", "leading_to", "letters_by_class", "paths", "reachable"]

_Node = TypeVar("_Node", bound=Hashable)
_Edges: TypeAlias = Mapping[_Node, list[tuple[int, _Node]]]


def equivalence_classes(
    nodes: Iterable[_Node], edges: _Edges[_Node], label: Callable[[_Node], Hashable], subject: str
) -> dict[_Node, int]:
    """Number the nodes, equivalent ones alike, except some cycles that lead to equivalent cycles.

    Args:
        nodes: the states.
        edges: by state, the next state by letters; targets outside of ``nodes`` are ignored.
        label: the output of a state; states with different outputs are not equivalent.
        subject: the subject of errors.

    Raises:
        LimitExceeded: large loops take more than ``Limits.steps``.

    Complexity: linear without cycles; at most n refinements in a strongly connected component of n states (E. F. Moore,
        1956).
    """
    graph = {node: [(letters, target) for letters, target in edges[node]] for node in nodes}
    graph = {node: [(letters, target) for letters, target in row if target in graph] for node, row in graph.items()}
    classes: dict[_Node, int] = {}
    known: dict[Hashable, int] = {}
    count = 0
    for component in strongly_connected({node: [target for _, target in row] for node, row in graph.items()}):
        inside = _refined(component, graph, classes, label, subject)
        # A component is identified by what a walk from one of its states meets.
        fresh: dict[int, int] = {}
        same = _same_outside(component, inside, graph, classes, label, known)
        if same is not None:
            fresh[inside[component[0]]] = same
        else:
            rows = _rows(inside, graph, classes, label)
            for number in rows:
                spend(len(rows) - 1, subject, _LARGE_LOOP)
                key = _walk(number, rows)
                if key not in known:
                    known[key] = count
                    count += 1
                fresh[number] = known[key]
        for node in component:
            classes[node] = fresh[inside[node]]
        if len(component) > 1 or any(target == component[0] for _, target in graph[component[0]]):
            for node in component:
                known.setdefault(_row(node, graph, classes, label), classes[node])
    return classes


def _same_outside(
    component: list[_Node],
    inside: Mapping[_Node, int],
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], Hashable],
    known: Mapping[Hashable, int],
) -> int | None:
    """Return the class of an equivalent cycle that a component of one class leads to, None if there is none."""
    if len(set(inside.values())) > 1:
        return None
    node = component[0]
    for candidate in dict.fromkeys(outside[target] for _, target in graph[node] if target in outside):
        merged = letters_by_class(graph[node], outside, default=candidate)
        if known.get((label(node), frozenset(merged.items()))) == candidate:
            return candidate
    return None


def _row(
    node: _Node, graph: _Edges[_Node], classes: Mapping[_Node, int], label: Callable[[_Node], Hashable]
) -> Hashable:
    return label(node), frozenset(letters_by_class(graph[node], classes).items())


def _refined(
    component: list[_Node],
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], Hashable],
    subject: str,
) -> dict[_Node, int]:
    """Return the classes within one component, as negative numbers."""
    inside = dict.fromkeys(component, -1)
    count = 1
    while len(component) > 1:
        spend(2 * len(component), subject, _LARGE_LOOP)
        keys: dict[Hashable, int] = {}
        refined: dict[_Node, int] = {}
        for node in component:
            merged = letters_by_class(graph[node], inside, outside)
            key = (inside[node], label(node), frozenset(merged.items()))
            refined[node] = keys.setdefault(key, -1 - len(keys))
        inside = refined
        if len(keys) == count:
            break
        count = len(keys)
    return inside


_LARGE_LOOP: Final = "a repetition in its terminals has many states"

_ClassRow: TypeAlias = tuple[Hashable, list[tuple[int, int]]]
"""The label of a class within a component, and its edges: class and letters, in the order of the lowest letters."""


def _rows(
    inside: Mapping[_Node, int],
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], Hashable],
) -> dict[int, _ClassRow]:
    rows: dict[int, _ClassRow] = {}
    for node, number in inside.items():
        if number not in rows:
            merged = letters_by_class(graph[node], inside, outside)
            rows[number] = label(node), sorted(merged.items(), key=lambda pair: pair[1] & -pair[1])
    return rows


def _walk(start: int, rows: Mapping[int, _ClassRow]) -> Hashable:
    """Return what a walk through a component from one of its classes meets; classes outside are numbers."""
    order = {start: -1}
    listed = [start]
    shape: list[tuple[Hashable, frozenset[tuple[int, int]]]] = []
    for number in listed:  # grows in the loop
        label, row = rows[number]
        for found, _ in row:
            if found < 0 and found not in order:
                order[found] = -1 - len(order)
                listed.append(found)
        shape.append((label, frozenset([(order.get(found, found), letters) for found, letters in row])))
    return shape[0] if not any(found < 0 for found, _ in shape[0][1]) else tuple(shape)


def letters_by_class(
    row: Iterable[tuple[int, _Node]],
    inside: Mapping[_Node, int],
    outside: Mapping[_Node, int] = MappingProxyType({}),
    *,
    default: int | None = None,
) -> dict[int, int]:
    """Return the letters of edges that lead to each class.

    The class of a target is that in ``inside`` or ``outside``, or ``default``; edges to no class are left out.
    """
    merged: dict[int, int] = {}
    for letters, target in row:
        number = inside[target] if target in inside else outside.get(target, default)
        if number is not None:
            merged[number] = merged.get(number, 0) | letters
    return merged


def leading_to(found: Iterable[_Node], edges: Mapping[_Node, list[tuple[Any, _Node]]]) -> dict[_Node, None]:
    """Return the nodes from which one of ``found`` is reached, in the order of ``edges``."""
    sources: dict[_Node, list[_Node]] = {}
    for node, out in edges.items():
        for _, target in out:
            sources.setdefault(target, []).append(node)
    reached = set(reachable(found, lambda node: sources.get(node, ())))
    return dict.fromkeys(node for node in edges if node in reached)


def reachable(roots: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> list[_Node]:
    """Return the nodes that ``roots`` lead to, themselves included, breadth first."""
    found = list(dict.fromkeys(roots))
    seen = set(found)
    for node in found:  # grows in the loop
        for target in following(node):
            if target not in seen:
                seen.add(target)
                found.append(target)
    return found


Graph: TypeAlias = Mapping[Any, list[tuple[Grammar, Any]]]
"""By node, its edges: a language and the node that it leads to."""

_MAX_LOOP_NESTING: Final = 100
"""How deeply loops through other nodes may be nested."""

_STEPS_A_TERM: Final = 30
_MANY_LOOPS: Final = "its lexer has many states that lead to each other"

_Outcome: TypeAlias = dict[Any, Grammar]
"""The strings that lead to each outcome."""


def paths(graph: Graph, outcomes: Mapping[Any, Any], subject: str) -> dict[Any, _Outcome]:
    """Return, for each node, the strings along the paths to each outcome.

    Args:
        graph: the edges of each node; targets must be nodes too.
        outcomes: the nodes at which a path may end, with the name of their outcome.
        subject: the subject of errors.

    Raises:
        LimitExceeded: loops are nested too deeply, or too many states lead to each other.

    Complexity: linear in the edges where loops have one entry each and no loops inside; terms share their parts.
    """
    exits = {node: {outcomes[node]: EPSILON} if node in outcomes else {} for node in graph}
    return _solve(graph, exits, 0, subject)


def _solve(graph: Graph, exits: Mapping[Any, _Outcome], depth: int, subject: str) -> dict[Any, _Outcome]:
    """Solve ``X = edges . X + exits``, component by component (D. N. Arden, 1961)."""
    if depth > _MAX_LOOP_NESTING:
        raise LimitExceeded(
            subject,
            limit="loops",
            maximum=_MAX_LOOP_NESTING,
            remedy='write its regexps in a simpler way, or use lexer="any"',
        )
    solved: dict[Any, _Outcome] = {}
    for component in strongly_connected({node: [target for _, target in graph[node]] for node in graph}):
        inside = set(component)
        if len(component) == 1:
            node = component[0]
            again = [label for label, target in graph[node] if target == node]
            onward = _gathered(graph, node, exits[node], solved, inside, subject)
            solved[node] = _after_loop(again, onward)
            continue
        entries = Counter(target for node in component for _, target in graph[node])
        head = max(component, key=entries.__getitem__)
        # Remove the head of the component; edges back to it are one more outcome.
        back = object()
        below = {
            node: [(label, target) for label, target in graph[node] if target in inside and target != head]
            for node in component
            if node != head
        }
        leaving: dict[Any, _Outcome] = {}
        for node in component:
            found = _gathered(graph, node, exits[node], solved, inside, subject)
            returning = [label for label, target in graph[node] if target == head]
            if returning:
                found = {**found, back: either(returning)}
            leaving[node] = found
        inner = _solve(below, {node: leaving[node] for node in below}, depth + 1, subject)
        around = _gathered(
            {head: [(label, target) for label, target in graph[head] if target in below]},
            head, leaving[head], inner, set(), subject,
        )  # fmt: skip
        again = [around.pop(back)] if back in around else []
        solved[head] = _after_loop(again, around)
        for node in component:
            if node != head:
                found = dict(inner[node])
                to_head = found.pop(back, None)
                if to_head is not None:
                    spend(_STEPS_A_TERM * len(solved[head]), subject, _MANY_LOOPS)
                    for way, term in solved[head].items():
                        tail = joined([to_head, term])
                        found[way] = either([found[way], tail]) if way in found else tail
                solved[node] = found
    return solved


def _gathered(
    graph: Graph, node: Any, exits: _Outcome, solved: Mapping[Any, _Outcome], inside: set[Any], subject: str
) -> _Outcome:
    """Return the outcomes of the edges that leave a component at ``node``."""
    ways: dict[Any, list[Grammar]] = {way: [term] for way, term in exits.items()}
    for label, target in graph[node]:
        if target not in inside:
            spend(_STEPS_A_TERM * len(solved[target]), subject, _MANY_LOOPS)
            for way, term in solved[target].items():
                ways.setdefault(way, []).append(joined([label, term]))
    return {way: either(terms) for way, terms in ways.items()}


def _after_loop(again: list[Grammar], onward: _Outcome) -> _Outcome:
    if not again:
        return onward
    loop = Repeat(either(again))
    return {way: loop if term is EPSILON else joined([loop, term]) for way, term in onward.items()}
