"""Rewrite a grammar so that no rule can reach itself without reading something first.

The left-recursive rules form left-linear systems, which are solved in matrix form.

Source: the matrix form is D. J. Rosenkrantz, "Matrix equations and normal forms for context-free grammars",
J. ACM 14 (1967); keeping only the rules in use is the left-corner transform of R. C. Moore, "Removing left
recursion from context-free grammars", NAACL 2000.  Both are for plain productions; ``left_splitting`` extends them to
the operators of the IR.  Its reference implementation in the tests is ``structgen.testing.small_scope``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import Nullability, cyclic_components, strongly_connected
from structgen.grammar.left_splitting import LeftPositions, Splitter, is_empty_choice
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import EPSILON, Grammar, Reference, Repeat, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import nodes_with_names, resolve

__all__ = ["left_recursive", "remove_left_recursion", "solve_left_linear"]


def solve_left_linear(flat: Rules, positions: LeftPositions, cycles: Iterable[Iterable[str]], limits: Limits) -> Rules:
    """Return an equal grammar in which no rule reaches itself in left position.

    ``flat`` is a resolved grammar, and ``cycles`` are the sets of its rules that reach each other in left position.
    """
    return _SystemSolver(flat, positions, cycles, limits).run()


class _LinearSystem(NamedTuple):
    """The equations of one set of rules, ``X_b = base[b] | X_a step[a][b] | ...``, over classes of equal rules."""

    leader: dict[str, str]
    base: dict[str, Grammar]
    step: dict[str, dict[str, Grammar]]


class _SystemSolver:
    """Defines rules on demand, starting from the body of the grammar."""

    def __init__(self, flat: Rules, positions: LeftPositions, cycles: Iterable[Iterable[str]], limits: Limits) -> None:
        self.body = flat.body
        self.rules = dict(flat.rules)
        self.nullable = positions.nullable
        self.splitter = Splitter(positions, self.nonempty, limits)
        self.cycles = [list(cycle) for cycle in cycles]
        self.cycle_of = {name: index for index, cycle in enumerate(self.cycles) for name in cycle}
        self.systems: dict[int, _LinearSystem] = {}
        self.reaching: dict[str, frozenset[str]] = {}
        # Rules to define: a function that makes the expression, and the rule of the grammar that it comes from.
        self.makers: dict[str, tuple[Callable[[], Grammar], str]] = {}
        self.names: dict[tuple[str, ...], str] = {}
        for name in self.rules:
            self.makers[name] = (partial(self.expression, name), name)

    def run(self) -> Rules:
        found: dict[str, Grammar] = {}
        seen: set[int] = set()
        stack = list(_references(self.body, seen))
        while stack:
            name = stack.pop()
            if name not in found:
                found[name] = self.makers[name][0]()
                stack += _references(found[name], seen)
        order = {name: index for index, name in enumerate(self.makers)}
        position = {name: (order[owner], order[name]) for name, (_, owner) in self.makers.items()}
        return Rules([(name, found[name]) for name in sorted(found, key=position.__getitem__)], self.body)

    # The expressions of the new rules

    def expression(self, name: str) -> Grammar:
        """The expression of a rule of the grammar."""
        if name not in self.cycle_of:
            return self.rules[name]
        if name in self.nullable.rules:
            return self.splitter.choice([EPSILON, Reference(self.nonempty(name))])
        return self.solution(name)

    def expression_without_empty(self, name: str) -> Grammar:
        if name in self.cycle_of:
            return self.solution(name)
        return self.splitter.without_empty(self.rules[name])

    def solution(self, name: str) -> Grammar:
        """The non-empty strings of a left-recursive rule."""
        system = self.system(name)
        leader = system.leader[name]
        if leader != name:  # a rule of equal language
            return Reference(self.nonempty(leader) if leader in self.nullable.rules else leader)
        sources = self.sources(name)
        return self.splitter.choice(
            self.splitter.sequence(base, self.after(source, name))
            for source, base in system.base.items()
            if source in sources
        )

    def after(self, source: str, target: str) -> Grammar:
        """The term that extends a string of ``source`` to a string of ``target``."""
        step = self.system(target).step[source]
        if source == target and not any(other in self.sources(target) for other in step if other != source):
            return self.loop(source)
        key = ("after", target, source)
        name = self.name(key, f"{target}.after.{source}", target, lambda: self.after_rule(source, target))
        return Reference(name)

    def after_rule(self, source: str, target: str) -> Grammar:
        step = self.system(target).step[source]
        ways = [
            self.splitter.sequence(part, self.after(other, target))
            for other, part in step.items()
            if other != source and other in self.sources(target)
        ]
        if source == target:
            ways.append(EPSILON)
        return self.splitter.sequence(self.loop(source), self.splitter.choice(ways))

    def loop(self, source: str) -> Grammar:
        part = self.system(source).step[source].get(source)
        return EPSILON if part is None else Repeat(part, 0, None)

    def sources(self, target: str) -> frozenset[str]:
        """The classes from which steps lead to ``target``, itself included."""
        if target not in self.reaching:
            step = self.system(target).step
            before: dict[str, list[str]] = {}
            for source, targets in step.items():
                for other in targets:
                    before.setdefault(other, []).append(source)
            found = {target}
            stack = [target]
            while stack:
                for source in before.get(stack.pop(), ()):
                    if source not in found:
                        found.add(source)
                        stack.append(source)
            self.reaching[target] = frozenset(found)
        return self.reaching[target]

    # Names

    def nonempty(self, name: str) -> str:
        """The name of the rule for the non-empty strings of a nullable rule."""
        return self.name(("nonempty", name), f"{name}.nonempty", name, lambda: self.expression_without_empty(name))

    def name(self, key: tuple[str, ...], wish: str, owner: str, make: Callable[[], Grammar]) -> str:
        if key not in self.names:
            name, count = wish, 1
            while name in self.makers:
                count += 1
                name = f"{wish}.{count}"
            self.names[key] = name
            self.makers[name] = (make, owner)
        return self.names[key]

    # The equations

    def system(self, name: str) -> _LinearSystem:
        index = self.cycle_of[name]
        if index not in self.systems:
            self.systems[index] = self.make_system(self.cycles[index])
        return self.systems[index]

    def make_system(self, cycle: list[str]) -> _LinearSystem:
        members = frozenset(cycle)
        splits = {name: self.splitter.split(self.rules[name], members) for name in cycle}
        # Rules that derive each other without reading have the same strings.
        silent: dict[str, list[str]] = {name: [] for name in cycle}
        for name, split in splits.items():
            for source, part in split.parts.items():
                if self.nullable(part):
                    silent[source].append(name)
        order = {name: index for index, name in enumerate(cycle)}
        leader: dict[str, str] = {}
        for equal in strongly_connected(silent):
            first = min(equal, key=order.__getitem__)
            leader |= dict.fromkeys(equal, first)
        bases: dict[str, list[Grammar]] = {leader[name]: [] for name in cycle}
        steps: dict[str, dict[str, list[Grammar]]] = {name: {} for name in bases}
        for name, split in splits.items():
            target = leader[name]
            bases[target].append(self.splitter.without_empty(split.rest))
            for source, part in split.parts.items():
                is_loop = leader[source] == target
                step = self.splitter.without_empty(part) if is_loop else part
                if not is_empty_choice(step):
                    steps[leader[source]].setdefault(target, []).append(step)
        return _LinearSystem(
            leader,
            {name: self.splitter.choice(items) for name, items in bases.items()},
            {
                source: {target: self.splitter.choice(items) for target, items in targets.items()}
                for source, targets in steps.items()
            },
        )


def _references(term: Grammar, seen: set[int]) -> Iterator[str]:
    """Yield the names that ``term`` refers to, in nodes that were not seen before."""
    stack = [term]
    while stack:
        node = stack.pop()
        if isinstance(node, Reference):
            yield node.name
        elif id(node) not in seen and not isinstance(node, Shared):
            seen.add(id(node))
            stack.extend(reversed(node.children))


_DEFAULT_LIMITS: Final = Limits()


def remove_left_recursion(grammar: Grammar, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    """Return an equal grammar without left recursion; ``grammar``, a closed term, itself where it has none.

    Rules keep their names.  New rules are called ``e.after.t`` (extends a ``t`` to an ``e``) and ``e.nonempty``.  Rules
    that nothing refers to any more are dropped, and so are descriptions inside terms that must be split.  A capture
    inside such a term does not report an empty match.

    Raises:
        GrammarError: a reference has no rule; or an intersection, complement, distinct term, label, temperature or
            budget starts with a left-recursive reference.
        UnsupportedFeature: a capture starts with a left-recursive reference, so its start is known too late; or a
            permutation does.
        LimitExceeded: the result would have more than ``limits.grammar_nodes`` nodes.

    Complexity: O(n) where nothing is left-recursive.

    >>> from structgen.grammar.nodes import Reference, Rules
    >>> e, t = Reference("e"), Reference("t")
    >>> print(remove_left_recursion(Rules({"e": e + "+" + t | t, "t": "x" | ("(" + e + ")")}, e)))
    rules {
      e = t ("+" t)*;
      t = "x" | "(" e ")"
    } in e
    """
    flat = resolve(grammar, limits, through_shared=True)
    if not flat.rules:
        return grammar
    positions = LeftPositions(flat, Nullability(dict(flat.rules)))
    cycles = left_recursive(flat, positions)
    if not cycles:
        return grammar
    if flat is grammar:  # no other scope is inside
        return solve_left_linear(flat, positions, cycles, limits)
    return _rewritten(grammar, limits)


def left_recursive(flat: Rules, positions: LeftPositions) -> list[list[str]]:
    """Return the sets of rules that reach each other in left position; ``flat`` is a resolved grammar."""
    return cyclic_components({name: positions.references(term) for name, term in flat.rules})


def _rewritten(grammar: Grammar, limits: Limits) -> Grammar:
    """Rewrite scope by scope: each ``Shared`` term is closed and stays so; inner ones come first."""
    descriptions = []
    root = grammar
    while isinstance(root, Described):
        descriptions.append(root.description)
        root = root.item
    made: dict[int, Grammar] = {}
    is_nullable: dict[int, bool] = {}
    for node in postorder(root):
        term = with_children(node, [made[id(child)] for child in node.children])
        if isinstance(term, Shared) and nodes_with_names(term.item):
            item, nullable = _rewritten_scope(term.item, is_nullable, limits)
            # A nullable shared term is replaced by its item: its context may need the non-empty strings only.
            term = item if nullable else with_children(term, [item])
            is_nullable[id(term)] = nullable
        made[id(node)] = term
    result, _ = _rewritten_scope(made[id(root)], is_nullable, limits)
    for description in reversed(descriptions):
        result = Described(result, description)
    return result


def _rewritten_scope(term: Grammar, is_nullable: dict[int, bool], limits: Limits) -> tuple[Grammar, bool]:
    flat = resolve(term, limits)
    positions = LeftPositions(flat, Nullability(dict(flat.rules), is_nullable))
    cycles = left_recursive(flat, positions)
    return solve_left_linear(flat, positions, cycles, limits) if cycles else term, positions.nullable(flat.body)
