"""Equivalent states of deterministic automata."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from structgen.grammar.analysis import strongly_connected

__all__ = ["equivalence_classes"]

_Node = TypeVar("_Node", bound=Hashable)
_Edges: TypeAlias = Mapping[_Node, list[tuple[int, _Node]]]


def equivalence_classes(
    nodes: Iterable[_Node], edges: _Edges[_Node], label: Callable[[_Node], Hashable]
) -> dict[_Node, int]:
    """Number the nodes, equivalent ones alike, but for large circles that lead to others like themselves.

    Args:
        nodes: the states that count.
        edges: by state, the next state by letters; targets that do not count are left out.
        label: what a state says; states that say different things are not equivalent.

    Complexity: linear where no circles are; within a strongly connected component of n states n refinements at most
    (E. F. Moore, 1956).
    """
    graph = {node: [(letters, target) for letters, target in edges[node]] for node in nodes}
    graph = {node: [(letters, target) for letters, target in row if target in graph] for node, row in graph.items()}
    classes: dict[_Node, int] = {}
    known: dict[Hashable, int] = {}
    count = 0
    for component in strongly_connected({node: [target for _, target in row] for node, row in graph.items()}):
        inside = _refined(component, graph, classes, label)
        # A component is told by what a walk from one of its states meets; equal ones are met once.
        fresh: dict[int, int] = {}
        same = _same_outside(component, inside, graph, classes, label, known)
        if same is not None:
            fresh[inside[component[0]]] = same
        for number in dict.fromkeys(inside.values()):
            if same is not None:
                break
            key = _walk(number, inside, graph, classes, label)
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
    """The class of a circle outside that a component of one class leads to and is like."""
    if len(set(inside.values())) > 1:
        return None
    node = component[0]
    for candidate in dict.fromkeys(outside[target] for _, target in graph[node] if target in outside):
        merged: dict[int, int] = {}
        for letters, target in graph[node]:
            number = outside.get(target, candidate)
            merged[number] = merged.get(number, 0) | letters
        if known.get((label(node), frozenset(merged.items()))) == candidate:
            return candidate
    return None


def _row(
    node: _Node, graph: _Edges[_Node], classes: Mapping[_Node, int], label: Callable[[_Node], Hashable]
) -> Hashable:
    merged: dict[int, int] = {}
    for letters, target in graph[node]:
        merged[classes[target]] = merged.get(classes[target], 0) | letters
    return label(node), frozenset(merged.items())


def _refined(
    component: list[_Node],
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], Hashable],
) -> dict[_Node, int]:
    """The classes within one component; they have negative numbers."""
    inside = dict.fromkeys(component, -1)
    count = 1
    while len(component) > 1:
        keys: dict[Hashable, int] = {}
        refined: dict[_Node, int] = {}
        for node in component:
            merged: dict[int, int] = {}
            for letters, target in graph[node]:
                number = inside[target] if target in inside else outside[target]
                merged[number] = merged.get(number, 0) | letters
            key = (inside[node], label(node), frozenset(merged.items()))
            refined[node] = keys.setdefault(key, -1 - len(keys))
        inside = refined
        if len(keys) == count:
            break
        count = len(keys)
    return inside


def _walk(
    start: int,
    inside: Mapping[_Node, int],
    graph: _Edges[_Node],
    outside: Mapping[_Node, int],
    label: Callable[[_Node], Hashable],
) -> Hashable:
    """What a walk through a component from one of its classes meets, with the classes outside by their numbers."""
    example: dict[int, _Node] = {}
    for node, number in inside.items():
        example.setdefault(number, node)
    order = {start: -1}
    listed = [start]
    shape: list[tuple[Hashable, frozenset[tuple[int, int]]]] = []
    for number in listed:
        merged: dict[int, int] = {}
        for letters, target in graph[example[number]]:
            found = inside[target] if target in inside else outside[target]
            merged[found] = merged.get(found, 0) | letters
        for found, _ in sorted(merged.items(), key=lambda pair: pair[1] & -pair[1]):
            if found < 0 and found not in order:
                order[found] = -1 - len(order)
                listed.append(found)
        row = frozenset((order.get(found, found), letters) for found, letters in merged.items())
        shape.append((label(example[number]), row))
    return shape[0] if not any(found < 0 for found, _ in shape[0][1]) else tuple(shape)
