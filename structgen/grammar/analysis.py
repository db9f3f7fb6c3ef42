"""Analyses of a term without compiling it: recursion, nullable rules, and rules that match nothing.

The analyses of rules take a *resolved* grammar: one flat map from unique names to expressions, as
:func:`~structgen.grammar.scopes.resolve` makes it.  Each is linear in the distinct nodes and edges and keeps an
explicit stack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import free_references, resolve
from structgen.grammar.visitor import NodeTable

__all__ = [
    "Nullability",
    "cyclic_components",
    "free_references",
    "is_regular",
    "productive_rules",
    "resolve",
    "strongly_connected",
    "unending_rules",
]

_Key = TypeVar("_Key", bound=Hashable)


def is_regular(grammar: Grammar) -> bool:
    """Whether a closed term is syntactically regular.

    It has no recursive rule, special token, set of tokens, budget of tokens, distinct term or label.
    Such terms may be intersected and complemented. Recursive rules count as not regular even where their language is.

    Raises:
        GrammarError: a reference has no rule.
    """
    flat = resolve(grammar, through_shared=True)
    rules = dict(flat.rules)
    order = _dependencies_first(flat.body, rules)
    return order is not None and not any(map(_is_beyond_regular, order))


def _is_beyond_regular(node: Grammar) -> bool:
    return isinstance(node, (ir.SpecialToken, ir.TokenSet, ir.Distinct, ir.Label)) or (
        isinstance(node, ir.Budget) and node.tokens is not None
    )


def productive_rules(rules: Mapping[str, Grammar]) -> frozenset[str]:
    """Return the names of the rules that may match a string; every other rule is certainly empty.

    An intersection counts as productive when its items are, and a complement always. The engine decides both exactly,
    with automata.
    """
    return _holding(rules, _least_fixpoint(rules, lambda node: _PRODUCTIVE[type(node)](node)))


def unending_rules(grammar: Grammar) -> list[str]:
    """Return the names of rules that only refer to each other, so that none of them can end; empty if there are none.

    A rule that refers to itself in every alternative is one of these.
    """
    try:
        rules = dict(resolve(grammar, through_shared=True).rules)
    except (GrammarError, LimitExceeded):
        return []
    productive = productive_rules(rules)
    graph = {
        name: [node.name for node in ir.postorder(term) if isinstance(node, ir.Reference)]
        for name, term in rules.items()
        if name not in productive
    }
    for component in cyclic_components(graph):
        return [name for name in graph if name in component]
    return []


class Nullability:
    """Decides whether a term over the given rules matches the empty string.

    Attributes:
        rules: the names of the nullable rules; an unknown name counts as not nullable.
    """

    def __init__(self, rules: Mapping[str, Grammar], shared: Mapping[int, bool] | None = None) -> None:
        """Solve the rules; ``shared`` says by ``id`` whether each ``Shared`` node that has rules inside is nullable.

        Raises:
            GrammarError: a rule is recursive through a complement.
        """
        self._known: dict[int, tuple[Grammar, bool]] = {}
        self._shared = shared or {}
        self.rules: frozenset[str] = frozenset()
        self._solve_complements(rules)
        solved = _least_fixpoint(rules, self._leaf)
        self.rules = _holding(rules, solved)
        self._known |= solved

    def __call__(self, term: Grammar) -> bool:
        """Whether ``term`` is nullable; linear in the nodes that were not queried before."""
        known = self._known
        stack = [term]
        while stack:
            node = stack[-1]
            if id(node) in known:
                stack.pop()
                continue
            value = self._leaf(node)
            if value is None and isinstance(node, ir.Reference):
                value = node.name in self.rules
            if value is None:
                waiting = [child for child in node.children if id(child) not in known]
                if waiting:
                    stack += waiting
                    continue
                value = _combined(node, [known[id(child)][1] for child in node.children])
            known[id(node)] = (node, value)
        return known[id(term)][1]

    def _leaf(self, node: Grammar) -> bool | None:
        return _NULLABLE[type(node)](self, node)

    def _of_complement(self, node: Grammar) -> bool | None:
        return self._known[id(node)][1] if id(node) in self._known else None

    def _solve_complements(self, rules: Mapping[str, Grammar]) -> None:
        """Decide complements first: they are not monotone, but nothing below them is recursive."""
        values: dict[int, bool] = {}
        for node in _all_nodes(rules.values()):
            if not isinstance(node, ir.Complement):
                continue
            order = _dependencies_first(node, rules, values)
            if order is None:
                raise GrammarError(
                    "grammar",
                    "the item of a complement refers to a recursive rule",
                    remedy="complement only what is regular",
                )
            for inner in order:
                value = self._leaf(inner)
                if value is None:
                    value = _combined(inner, [values[id(child)] for child in _below(inner, rules)])
                values[id(inner)] = value
            self._known[id(node)] = (node, values[id(node)])


def _undecided(*_: object) -> None:
    """The row of a node whose value follows from the nodes that it depends on."""


_INNER: Final = (
    ir.Sequence,
    ir.Choice,
    ir.Permutation,
    ir.Intersection,
    ir.Reference,
    ir.Rules,
    ir.Capture,
    ir.Budget,
    ir.Tempered,
    Described,
)
_PRODUCTIVE: Final[NodeTable[Callable[[Any], bool | None]]] = NodeTable(
    "productive rules",
    {
        (ir.ByteClass, ir.CharClass): lambda node: bool(node.ranges),
        (ir.Literal, ir.SpecialToken, ir.TokenSet, ir.Complement): lambda _: True,
        ir.Repeat: lambda node: True if node.min == 0 else None,
        (*_INNER, ir.JsonString, ir.Shared, ir.Distinct, ir.Label): _undecided,
    },
)
_NULLABLE: Final[NodeTable[Callable[[Nullability, Any], bool | None]]] = NodeTable(
    "nullability",
    {
        ir.Literal: lambda _, node: not node.data,
        (ir.ByteClass, ir.CharClass, ir.SpecialToken, ir.TokenSet, ir.JsonString): lambda _, __: False,
        ir.Repeat: lambda _, node: True if node.min == 0 else None,
        ir.Shared: lambda solver, node: solver._shared.get(id(node)),
        ir.Complement: Nullability._of_complement,
        (*_INNER, ir.Distinct, ir.Label): _undecided,
    },
)


def strongly_connected(graph: Mapping[_Key, Iterable[_Key]]) -> list[list[_Key]]:
    """Return the strongly connected components of ``graph``, each before those that lead to it.

    Targets that are no keys are ignored. The order of the result depends only on the order of ``graph``.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, SIAM J. Comput. 1 (1972).
    """
    index: dict[_Key, int] = {}
    low: dict[_Key, int] = {}
    positions: dict[_Key, int] = {}
    finished: set[_Key] = set()
    path: list[_Key] = []
    components: list[list[_Key]] = []
    for root in graph:
        work = [(root, iter(graph[root]))] if root not in index else []
        while work:
            node, targets = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                positions[node] = len(path)
                path.append(node)
            for target in targets:
                if target in finished:
                    continue
                if target in index:
                    low[node] = min(low[node], index[target])
                elif target in graph:
                    work.append((target, iter(graph[target])))
                    break
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    component = path[positions[node] :]
                    del path[positions[node] :]
                    finished.update(component)
                    components.append(component)
    return components


def cyclic_components(graph: Mapping[_Key, Collection[_Key]]) -> list[list[_Key]]:
    """Return the strongly connected components whose nodes lead back to themselves, in the same order."""
    return [group for group in strongly_connected(graph) if len(group) > 1 or group[0] in graph[group[0]]]


def _combined(node: Grammar, values: list[bool]) -> bool:
    if isinstance(node, ir.Complement):
        return not values[0]
    threshold, weights = _quorum(node, len(values))
    return sum(weight for weight, value in zip(weights, values, strict=True) if value) >= threshold


def _quorum(node: Grammar, count: int) -> tuple[int, list[int]]:
    """How much of what a node depends on must have a property for the node to have it: a threshold and weights.

    A choice needs one item, other nodes need all. A permutation needs its required items, the separator if there are
    two items, and enough other items to reach ``min``; ``rest`` counts as any number of items.
    """
    if isinstance(node, ir.Choice):
        return 1, [1] * count
    if not isinstance(node, ir.Permutation):
        return count, [1] * count
    due = len(node.required)
    others = max(node.min - due, 0)
    heavy = len(node.optional) + others + 1  # more than all others together
    separator = heavy if due + others > 1 else 0
    weights = [heavy] * due + [1] * len(node.optional) + [others, separator]
    return heavy * due + others + separator, weights


def _below(node: Grammar, rules: Mapping[str, Grammar]) -> tuple[Grammar, ...]:
    """The nodes that ``node`` depends on: its children, or the expression that it refers to."""
    return (rules[node.name],) if isinstance(node, ir.Reference) else node.children


def _all_nodes(roots: Iterable[Grammar]) -> Iterator[Grammar]:
    """Yield the distinct nodes below ``roots``, children first."""
    seen: set[int] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, is_open = stack.pop()
        if is_open:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in node.children)


def _dependencies_first(root: Grammar, rules: Mapping[str, Grammar], done: Container[int] = ()) -> list[Grammar] | None:
    """The nodes that ``root`` depends on, through references, in order; ``None`` if they form a cycle.

    Nodes whose ``id`` is in ``done`` are left out with all that they depend on.
    """
    order: list[Grammar] = []
    is_open: dict[int, bool] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        state = is_open.get(id(node))
        if state is None and id(node) not in done:
            is_open[id(node)] = True
            for child in _below(node, rules):
                if is_open.get(id(child)):
                    return None
                stack.append(child)
            continue
        stack.pop()
        if state:
            is_open[id(node)] = False
            order.append(node)
    return order


def _holding(rules: Mapping[str, Grammar], solved: Mapping[int, tuple[Grammar, bool]]) -> frozenset[str]:
    return frozenset(name for name, term in rules.items() if solved[id(term)][1])


def _least_fixpoint(
    rules: Mapping[str, Grammar], leaf: Callable[[Grammar], bool | None]
) -> dict[int, tuple[Grammar, bool]]:
    """Solve a monotone property of the rules: a node has it when enough of what it depends on has it (:func:`_quorum`).

    ``leaf`` decides a node at once, or is None.  The result says by ``id`` whether each visited node has the property.
    """
    waiting: dict[int, list[tuple[Grammar, int]]] = {}  # nodes by what they depend on, and how much it counts
    missing: dict[int, int] = {}
    holds: set[int] = set()
    queue: list[Grammar] = []
    seen: dict[int, Grammar] = {}
    stack = list(rules.values())
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        value = leaf(node)
        if value is None and not (isinstance(node, ir.Reference) and node.name not in rules):
            below = _below(node, rules)
            stack += below
            missing[id(node)], weights = _quorum(node, len(below))
            for child, weight in zip(below, weights, strict=True):
                waiting.setdefault(id(child), []).append((node, weight))
            value = missing[id(node)] == 0
        if value:
            queue.append(node)
    while queue:
        node = queue.pop()
        if id(node) not in holds:
            holds.add(id(node))
            for parent, weight in waiting.get(id(node), ()):
                missing[id(parent)] -= weight
                if missing[id(parent)] <= 0:
                    queue.append(parent)
    return {key: (node, key in holds) for key, node in seen.items()}
