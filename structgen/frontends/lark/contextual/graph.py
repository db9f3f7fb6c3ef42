"""Algorithms on graphs: equivalent states of deterministic automata, and terms for the strings along paths.

The edges of an automaton are labelled with sets of letters, those of a graph of paths with languages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from structgen.errors import LimitExceeded
from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.limits import spend
from structgen.grammar.nodes import EPSILON, Grammar, Repeat

__all__ = ["Graph", "equivalence_classes", "leading_to", "letters_by_class", "paths", "reachable", "sources_of"]

_Node = TypeVar("_Node", bound=Hashable)
_Edges: TypeAlias = Mapping[_Node, list[tuple[int, _Node]]]


def equivalence_classes(
    nodes: Iterable[_Node], edges: _Edges[_Node], label: Callable[[_Node], int | None], subject: str
) -> dict[_Node, int]:
    """Number the nodes, equivalent ones alike, except some cycles that lead to equivalent cycles.

    Args:
        nodes: the states.
        edges: by state, the next state by letters; targets outside of ``nodes`` are ignored.
        label: the output of a state, a number from -1 on or none; states with different outputs are not equivalent.
        subject: the subject of errors.

    Raises:
        LimitExceeded: large loops take more than ``Limits.steps``.

    Complexity: linear without cycles; at most n refinements in a strongly connected component of n states (E. F. Moore,
        1956).
    """
    graph = {node: [(letters, target) for letters, target in edges[node]] for node in nodes}
    graph = {node: [(letters, target) for letters, target in row if target in graph] for node, row in graph.items()}
    classes: dict[_Node, int] = {}
    known: dict[Hashable, int] = {}  # by the row of a state, and by all rows of a cycle
    count = 0
    for component in strongly_connected({node: [target for _, target in row] for node, row in graph.items()}):
        rows = {node: _row(node, graph, classes, label) for node in component}
        node = component[0]
        if len(component) == 1 and all(target != node for _, target in graph[node]):
            classes[node] = known.setdefault(rows[node], count)
            count += classes[node] == count
            continue
        inside = _refined(component, rows, graph, subject)
        examples = {number: node for node, number in inside.items()}
        same = _same_outside(node, graph, classes, label, known) if len(examples) == 1 else None
        if same is None:
            order = sorted(examples, reverse=True)
            # The numbers do not depend on the names of states, so equivalent components have equal rows.
            key = tuple([(rows[examples[each]], _merged(graph[examples[each]], inside)) for each in order])
            same = known.setdefault(key, count)
            count += len(order) if same == count else 0
        for node in component:
            classes[node] = same - 1 - inside[node]
        for node in examples.values():
            known.setdefault(_row(node, graph, classes, label), classes[node])
    return classes


_Row: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""The label of a state, and the letters that lead to each class."""


def _row(node: _Node, graph: _Edges[_Node], classes: Mapping[_Node, int], label: Callable[[_Node], int | None]) -> _Row:
    number = label(node)
    return _NO_LABEL if number is None else number, _merged(graph[node], classes)


_NO_LABEL: Final = -2


def _merged(row: Iterable[tuple[int, _Node]], classes: Mapping[_Node, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(letters_by_class(row, classes).items()))


def _same_outside(
    node: _Node,
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], int | None],
    known: Mapping[Hashable, int],
) -> int | None:
    """Return the class of an equivalent cycle that a component of one class leads to, None if there is none."""
    for candidate in dict.fromkeys(outside[target] for _, target in graph[node] if target in outside):
        merged = letters_by_class(graph[node], outside, default=candidate)
        number = label(node)
        key = _NO_LABEL if number is None else number, tuple(sorted(merged.items()))
        if known.get(key) == candidate:
            return candidate
    return None


def _refined(
    component: list[_Node], rows: Mapping[_Node, _Row], graph: _Edges[_Node], subject: str
) -> dict[_Node, int]:
    """Return the classes within one component, as negative numbers in the order of what is read from them."""
    inside = dict.fromkeys(component, -1)
    loop = {node: [(letters, target) for letters, target in graph[node] if target in inside] for node in component}
    keys: dict[_Node, Any] = dict(rows)
    count = 0
    while len(component) > 1:
        spend(2 * len(component), subject, _LARGE_LOOP)
        numbers = {key: -1 - index for index, key in enumerate(sorted(set(keys.values())))}
        inside = {node: numbers[key] for node, key in keys.items()}
        if len(numbers) == count:
            break
        count = len(numbers)
        keys = {node: (inside[node], _merged(row, inside)) for node, row in loop.items()}
    return inside


_LARGE_LOOP: Final = "a repetition in its terminals has many states"


def letters_by_class(
    row: Iterable[tuple[int, _Node]], classes: Mapping[_Node, int], *, default: int | None = None
) -> dict[int, int]:
    """Return the letters of edges that lead to each class.

    The class of a target is that in ``classes``, or ``default``; edges to no class are left out.
    """
    merged: dict[int, int] = {}
    for letters, target in row:
        number = classes.get(target, default)
        if number is not None:
            merged[number] = merged.get(number, 0) | letters
    return merged


def sources_of(edges: Mapping[_Node, list[tuple[Any, _Node]]]) -> dict[_Node, list[_Node]]:
    """Return the nodes with an edge to each node."""
    sources: dict[_Node, list[_Node]] = {}
    for node, out in edges.items():
        for _, target in out:
            if target in sources:
                sources[target].append(node)
            else:
                sources[target] = [node]
    return sources


def leading_to(
    found: Iterable[_Node], edges: Iterable[_Node], sources: Mapping[_Node, Iterable[_Node]]
) -> dict[_Node, None]:
    """Return the nodes from which one of ``found`` is reached, in the order of ``edges``."""
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

_STEPS_A_TERM: Final = 36
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
    spend(2 * (len(graph) + sum(map(len, graph.values()))), subject, _MANY_LOOPS)
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
    return {way: terms[0] if len(terms) == 1 else either(terms) for way, terms in ways.items()}


def _after_loop(again: list[Grammar], onward: _Outcome) -> _Outcome:
    if not again:
        return onward
    loop = Repeat(either(again))
    return {way: loop if term is EPSILON else joined([loop, term]) for way, term in onward.items()}
