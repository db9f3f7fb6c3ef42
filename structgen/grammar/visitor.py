"""Passes over the IR: tables with a row for every node type, and two ways to recurse without the stack.

A table is checked when it is made: importing a pass that lacks a node type fails and names both.

``fold`` goes from the leaves of a term to its root.  ``trampoline`` runs any recursive function that is written as a
generator: ``result = yield function(smaller)`` stands for the recursive call.  Depth costs memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from structgen.grammar import nodes
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described

__all__ = ["NODE_TYPES", "Call", "NodeTable", "RecursiveTerm", "fold", "trampoline"]

Row = TypeVar("Row")
Result = TypeVar("Result")


def _node_types(base: type[Grammar]) -> Iterator[type[Grammar]]:
    """The classes below ``base`` that have no subclasses, of those in ``structgen.grammar.nodes``."""
    for node_type in base.__subclasses__():
        if node_type.__module__.startswith(nodes.__name__):
            yield from _node_types(node_type) if node_type.__subclasses__() else (node_type,)


NODE_TYPES: Final = tuple(_node_types(Grammar))
"""Every node type, ``Described`` included."""
if Described not in NODE_TYPES:
    raise ImportError("structgen.grammar.visitor: the node types are not loaded; import structgen.grammar first")


class NodeTable(dict[type[Grammar], Row]):
    """The rows of a pass by node type; the order of the rows is kept.

    >>> len(NodeTable("depth", {NODE_TYPES: 1})) == len(NODE_TYPES)
    True
    """

    def __init__(
        self,
        name: str,
        rows: Mapping[type[Grammar] | tuple[type[Grammar], ...], Row],
        *,
        excluded: Collection[type[Grammar]] = (),
    ) -> None:
        """Check and store the rows; ``name`` is that of the pass, which never sees the node types in ``excluded``.

        A tuple of node types shares one row.

        Raises:
            TypeError: a node type has no row, or two.
        """
        for key, row in rows.items():
            for node_type in key if isinstance(key, tuple) else (key,):
                if node_type in self:
                    raise TypeError(f"{name}: two rows for {node_type.__name__}; remove one")
                self[node_type] = row
        missing = [kind.__name__ for kind in NODE_TYPES if kind not in self and kind not in excluded]
        if missing:
            raise TypeError(f"{name}: no row for {', '.join(missing)}; say what the pass does with each")


class RecursiveTerm(Exception):
    """A term depends on itself, so it has no fold."""


def fold(
    root: Grammar,
    combine: Callable[[Grammar, list[Result]], Result],
    *,
    results: dict[int, Result] | None = None,
    below: Callable[[Grammar], Collection[Grammar]] | None = None,
) -> Result:
    """Compute a value for ``root`` from the values of the nodes below it, each node object once, without recursion.

    Args:
        root: any term.
        combine: the value of a node from the values of the nodes that it depends on.
        results: values from earlier folds by the ``id`` of the node, extended here; the nodes must stay alive.
        below: what a node depends on; ``None``: its children.

    Raises:
        RecursiveTerm: a node depends on itself, which only a ``below`` that follows references allows.

    Complexity: linear in the distinct nodes and edges.

    >>> from structgen.grammar.nodes import literal
    >>> fold(literal("a") | "b", lambda node, depths: 1 + max(depths, default=0))
    2
    """
    made: dict[int, Result] = {} if results is None else results
    is_open: set[int] = set()
    stack = [root]
    while stack:
        node = stack[-1]
        if id(node) in made:
            stack.pop()
            continue
        parts = node.children if below is None else below(node)
        missing = [part for part in parts if id(part) not in made]
        if not missing:
            made[id(node)] = combine(node, [made[id(part)] for part in parts])
            is_open.discard(id(node))
            stack.pop()
            continue
        is_open.add(id(node))
        if any(id(part) in is_open for part in missing):
            raise RecursiveTerm
        stack += reversed(missing)
    return made[id(root)]


Call: TypeAlias = Generator["Call[Any]", Any, Result]
"""A suspended call: it yields the calls that it depends on and returns a ``Result``."""


def trampoline(problem: Generator[object, Any, Result]) -> Result:
    """Return what ``problem`` returns, after solving the sub-problems that it yields.

    >>> def depth(n: int) -> Call[int]:
    ...     return 0 if n == 0 else 1 + (yield depth(n - 1))
    >>> trampoline(depth(100_000))
    100000
    """
    suspended: list[Generator[object, Any, Any]] = [problem]
    result: Any = None
    while suspended:
        try:
            callee = suspended[-1].send(result)
        except StopIteration as stop:
            suspended.pop()
            result = stop.value
        else:
            suspended.append(callee)  # type: ignore[arg-type]  # what is yielded is such a generator
            result = None
    answer: Result = result
    return answer
