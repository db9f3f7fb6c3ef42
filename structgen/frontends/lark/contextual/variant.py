"""The rules of the result: each rule of the grammar once for each pair of contexts that it begins and ends in.

The parser and its lexers are one deterministic pushdown automaton, which becomes a grammar by the usual construction:
one rule for each pair of contexts (J. Hopcroft, J. Ullman 1979, 5.3).  Only pairs that occur are made, by following
every start (T. Reps, "Program analysis via graph reachability", 1998, calls such pairs summaries).  Variants and
lexemes are then written as rules of the IR.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.context import Context, Contexts, Piece
from structgen.frontends.lark.contextual.graph import leading_to, paths, reachable, sources_of
from structgen.frontends.lark.contextual.outline import Outline, OutlinePoint
from structgen.frontends.lark.contextual.table import END
from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import EPSILON, Grammar, Reference

__all__ = ["Assembly", "Variant", "VariantNode", "Variants"]

_STEPS_A_NODE: Final = 10

_PointInContext: TypeAlias = tuple[int, Context]
"""A point and the context there."""


class _End(NamedTuple):
    """A call that ends in a context."""

    call: int
    context: Context


_Label: TypeAlias = tuple[Piece, ...] | _End


@dataclass(slots=True, eq=False)
class _Call:
    """An outline that begins in a context."""

    index: int
    outline: int
    start: _PointInContext
    edges: dict[_PointInContext, list[tuple[_Label, _PointInContext]]]
    ends: dict[Context, list[_PointInContext]] = field(default_factory=dict)
    callers: list[tuple[_Call, _PointInContext, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule of the result.

    Attributes:
        origin: the rule of the grammar.
        root: its first node.
    """

    origin: str
    root: int


VariantNode: TypeAlias = tuple[bool, tuple[tuple[bool, int, int], ...]]
"""A node: whether the rule may end there, and its edges: whether the edge reads lexemes or a variant, the number of the
label or variant, and the next node."""
_Graph: TypeAlias = list[tuple[bool, list[tuple[bool, int, int]]]]
"""The nodes of one variant, each after those that it leads to; variants are not yet merged."""


class Variants:
    """The variants of all rules.

    Attributes:
        labels: what is read for a terminal: any of the pieces.
        nodes: the nodes, each after those that it leads to.
        variants: the variants.
    """

    def __init__(
        self,
        points: Sequence[OutlinePoint],
        outlines: Sequence[Outline],
        contexts: Contexts,
        limits: Limits,
        subject: str,
    ) -> None:
        self._points = points
        self._outlines = outlines
        self._contexts = contexts
        self._limits = limits
        self._subject = subject
        self._calls: dict[tuple[int, Hashable], _Call] = {}
        self._waiting: deque[tuple[_Call, _PointInContext]] = deque()
        self._first = [tuple(sorted(outline.first)) for outline in outlines]
        self._spent = 0
        self._labels: dict[tuple[Piece, ...], int] = {}
        self.labels: list[tuple[Piece, ...]] = []
        self.nodes: list[VariantNode] = []
        self.variants: list[Variant] = []

    def solve(self, start: int) -> dict[Context, list[int]]:
        """Make the variants that lead to a whole string; return those of the start rule by the first context.

        Raises:
            LimitExceeded: there are too many.
        """
        calls = {context: self._call(start, context) for context in self._contexts.first()}
        while self._waiting:
            self._follow(*self._waiting.popleft())
        every = list(self._calls.values())
        numbers: dict[tuple[int, Context], int] = {}
        listed: list[tuple[_Call, Context]] = []

        def number_of(call: int, end: Context) -> int:
            number = numbers.setdefault((call, end), len(listed))
            if number == len(listed):
                listed.append((every[call], end))
            return number

        roots = {
            context: [number_of(call.index, end) for end in call.ends if self._contexts.is_end(end, END)]
            for context, call in calls.items()
        }
        graphs: list[_Graph] = []
        sources: dict[int, dict[_PointInContext, list[_PointInContext]]] = {}
        for call, end in listed:  # grows in the loop
            if call.index not in sources:
                sources[call.index] = sources_of(call.edges)
            useful = leading_to(call.ends[end], call.edges, sources[call.index])
            graphs.append(self._graph(call, end, useful, number_of))
        classes = self._merged([self._outlines[call.outline].origin for call, _ in listed], graphs)
        return {context: sorted({classes[variant] for variant in found}) for context, found in roots.items()}

    def _graph(
        self, call: _Call, end: Context, useful: Iterable[_PointInContext], number_of: Callable[[int, Context], int]
    ) -> _Graph:
        """Return the ``useful`` part of a call, which leads to ``end``, its first item last."""
        finals = set(call.ends[end])
        # Points come after those that they lead to.
        order = sorted(useful, key=lambda item: item[0])
        position = {item: index for index, item in enumerate(order)}
        graph: _Graph = []
        for item in order:
            found: list[tuple[bool, int, int]] = []
            for label, target in call.edges[item]:
                if target in position:
                    is_lexeme = not isinstance(label, _End)
                    shown = number_of(label.call, label.context) if isinstance(label, _End) else self._pieces(label)
                    found.append((is_lexeme, shown, position[target]))
            graph.append((item in finals, found))
        return graph

    def _pieces(self, label: tuple[Piece, ...]) -> int:
        found = self._labels.setdefault(label, len(self.labels))
        if found == len(self.labels):
            self.labels.append(label)
        return found

    def _merged(self, origins: list[str], graphs: list[_Graph]) -> list[int]:
        """Make the nodes of all variants, equal variants once; return which variant each became."""
        names = {origin: number for number, origin in enumerate(dict.fromkeys(origins))}
        classes = [names[origin] for origin in origins]
        count = len(names)
        while True:
            numbers: dict[VariantNode, int] = {}
            roots = [_root(graph, classes, numbers) for graph in graphs]
            keys: dict[tuple[str, int], int] = {}
            classes = [keys.setdefault(key, len(keys)) for key in zip(origins, roots, strict=True)]
            if len(keys) == count:
                break
            count = len(keys)
        numbers = {}
        made: dict[int, Variant] = {}
        for number, origin, graph in zip(classes, origins, graphs, strict=True):
            if number not in made:
                made[number] = Variant(origin, _root(graph, classes, numbers))
        self.nodes = list(numbers)
        self.variants = [made[number] for number in range(len(made))]
        return classes

    def _call(self, outline: int, context: Context) -> _Call:
        """Return the call of an outline in a context; contexts that it treats alike share a call."""
        key: Hashable = context
        if not self._outlines[outline].is_nullable:
            key = tuple(self._contexts.source(context, token) for token in self._first[outline])
        found = self._calls.get((outline, key))
        if found is None:
            start = (self._outlines[outline].root, context)
            found = self._calls[outline, key] = _Call(len(self._calls), outline, start, {start: []})
            self._waiting.append((found, start))
        return found

    def _follow(self, call: _Call, item: _PointInContext) -> None:
        number, context = item
        point = self._points[number]
        self._charge(1 + len(point.edges))
        for forbidden in point.ends:
            self._end(call, Context(context.kind, context.guard, context.forbidden | forbidden), item)
        for name, target, child in point.edges:
            if name:
                for after, pieces in self._contexts.shift(context, name, target).items():
                    self._link(call, item, tuple(pieces), (child, after))
            else:
                callee = self._call(target, context)
                callee.callers.append((call, item, child))
                for end in list(callee.ends):
                    self._link(call, item, _End(callee.index, end), (child, end))

    def _link(self, call: _Call, item: _PointInContext, label: _Label, target: _PointInContext) -> None:
        self._charge(1)
        call.edges[item].append((label, target))
        if target not in call.edges:
            call.edges[target] = []
            self._waiting.append((call, target))

    def _end(self, call: _Call, context: Context, item: _PointInContext) -> None:
        if context in call.ends:
            call.ends[context].append(item)
            return
        call.ends[context] = [item]
        for caller, where, child in list(call.callers):
            self._link(caller, where, _End(call.index, context), (child, context))

    def _charge(self, count: int) -> None:
        self._spent += count
        if self._spent > self._limits.grammar_nodes:
            raise LimitExceeded(
                self._subject,
                limit="grammar_nodes",
                maximum=self._limits.grammar_nodes,
                evidence="its rules have a variant for each lexer that reads inside them",
                remedy='make its terminals easier to tell apart, use lexer="any", or raise Limits(grammar_nodes=...)',
            )
        spend(_STEPS_A_NODE * count, self._subject, "its rules have a variant for each lexer that reads inside them")


def _root(graph: _Graph, classes: Sequence[int], numbers: dict[VariantNode, int]) -> int:
    """Number the nodes of a graph, equal ones alike; return the number of the first item, which is the last node."""
    made: list[int] = []
    for is_final, row in graph:
        found = {
            (is_lexeme, number if is_lexeme else classes[number], made[target]) for is_lexeme, number, target in row
        }
        node = (is_final, tuple(sorted(found)))
        made.append(numbers.setdefault(node, len(numbers)))
    return made[-1]


_HELPER: Final = re.compile(r"__(.+)_(?:star|plus|repeat)_(?:a\d+_b\d+_(?:opt_)?)?\d+")
"""Names of the rules that Lark writes for operators."""


class Assembly:
    """Writes the rules.

    Attributes:
        rules: terms by name.
    """

    def __init__(self, variants: Variants, named: Container[str], subject: str) -> None:
        """Write the rules of solved variants; terminals without a name in ``named`` are inlined."""
        self.rules: dict[str, Grammar] = {}
        self._variants = variants
        self._named = named
        self._subject = subject
        self._taken: dict[str, int] = {}
        self._lexemes: dict[tuple[str, Grammar], Grammar] = {}
        self._labels: dict[int, Grammar] = {}
        self._terms: dict[int, Grammar] = {}
        self._used: dict[int, Grammar] = {}
        self._write()

    def body(self, before: Mapping[Context, Grammar], starts: Mapping[Context, list[int]]) -> Grammar:
        """Return the whole grammar: ignored text, then the start rule."""
        return either(
            joined([term, either(self._used[variant] for variant in starts[context])])
            for context, term in before.items()
            if starts[context]
        )

    def _write(self) -> None:
        variants = self._variants.variants
        chains = self._chains()
        in_place = {number for chain in chains for number in chain}
        names: dict[int, str] = {}
        for number, variant in enumerate(variants):
            if number not in in_place:
                helper = _HELPER.fullmatch(variant.origin)
                names[number] = self._unique(f"{helper[1]}.repeated" if helper else variant.origin)
                self._used[number] = Reference(names[number])
        for chain in chains:
            self._write_chain(chain)
        for number, name in names.items():
            self.rules[name] = self._term(variants[number].root)

    def _chains(self) -> list[list[int]]:
        """Return the variants of Lark's own rules that are inlined, each set before those that use it."""
        variants = self._variants.variants
        helpers = {number: variant.origin for number, variant in enumerate(variants) if variant.origin.startswith("__")}
        begins: dict[int, list[int]] = {}
        for number, origin in helpers.items():
            edges = self._variants.nodes[variants[number].root][1]
            begins[number] = [used for is_lexeme, used, _ in edges if not is_lexeme and helpers.get(used) == origin]
        chains = [chain for chain in strongly_connected(begins) if self._is_chain(chain)]
        home = {number: index for index, chain in enumerate(chains) for number in chain}
        needs: dict[int, list[int]] = {}
        for index, chain in enumerate(chains):
            used = {home[other] for number in chain for other in self._uses(variants[number].root) if other in home}
            needs[index] = sorted(used - {index})
        # A cycle of them would be infinite; Lark writes none.
        return [chains[circle[0]] for circle in strongly_connected(needs) if len(circle) == 1]

    def _uses(self, root: int) -> list[int]:
        found: dict[int, None] = {}
        for node in self._below(root):
            found.update((number, None) for is_lexeme, number, _ in self._variants.nodes[node][1] if not is_lexeme)
        return list(found)

    def _below(self, root: int) -> list[int]:
        return reachable([root], lambda node: [target for _, _, target in self._variants.nodes[node][1]])

    def _is_chain(self, component: list[int]) -> bool:
        """Return whether these variants refer to each other only at their start."""
        inside = set(component)
        for number in component:
            variant = self._variants.variants[number]
            for node in self._below(variant.root):
                edges = self._variants.nodes[node][1]
                if node != variant.root and any(not is_lexeme and used in inside for is_lexeme, used, _ in edges):
                    return False
        return True

    def _write_chain(self, component: list[int]) -> None:
        """Solve the left-linear system ``X = first | Y rest | ...``: each first, then a path along the rests."""
        inside = set(component)
        graph: dict[object, list[tuple[Grammar, object]]] = {number: [] for number in component}
        begin: dict[int, Grammar] = {}
        for number in component:
            is_final, edges = self._variants.nodes[self._variants.variants[number].root]
            parts = [EPSILON] if is_final else []
            for is_lexeme, used, target in edges:
                if not is_lexeme and used in inside:
                    graph[used].append((self._term(target), number))
                else:
                    parts.append(joined([self._label(used, is_lexeme=is_lexeme), self._term(target)]))
            if parts:
                begin[number] = either(parts)
        solved = paths(graph, {number: number for number in component}, self._subject)
        for number in component:
            self._used[number] = either(
                joined([first, solved[origin][number]]) for origin, first in begin.items() if number in solved[origin]
            )

    def _term(self, root: int) -> Grammar:
        """Return the term of a node and those after it; the variants that it uses must be written."""
        nodes = self._variants.nodes
        for node in sorted(self._below(root)):
            if node in self._terms:
                continue
            is_final, edges = nodes[node]
            parts = [
                joined([self._label(number, is_lexeme=is_lexeme), self._terms[target]])
                for is_lexeme, number, target in edges
            ]
            self._terms[node] = either([*parts, EPSILON] if is_final and parts else parts or [EPSILON])
        return self._terms[root]

    def _label(self, number: int, *, is_lexeme: bool) -> Grammar:
        if not is_lexeme:
            return self._used[number]
        found = self._labels.get(number)
        if found is None:
            pieces = self._variants.labels[number]
            found = self._labels[number] = either(joined([self._lexeme(piece), piece.ignored]) for piece in pieces)
        return found

    def _lexeme(self, piece: Piece) -> Grammar:
        if piece.token not in self._named:
            return piece.lexemes
        key = (piece.token, piece.lexemes)
        found = self._lexemes.get(key)
        if found is None:
            name = self._unique(piece.token)
            self.rules[name] = piece.lexemes
            found = self._lexemes[key] = Reference(name)
        return found

    def _unique(self, name: str) -> str:
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}.{count}"
