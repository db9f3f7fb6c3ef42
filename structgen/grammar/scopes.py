"""Names and scopes: which rule a reference belongs to, and grammars with one flat set of rules.

A reference belongs to the innermost enclosing ``Rules`` that binds its name; a ``Shared`` term is closed, so no
rule outside it is in scope inside.  One node object may occur in several scopes and describe a language in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from structgen.errors import GrammarError, LimitExceeded, some
from structgen.grammar.algebra import with_children
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Reference, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described

__all__ = ["free_references", "nodes_with_names", "resolve", "used_rules"]

_DEFAULT_LIMITS: Final = Limits()


def free_references(term: Grammar) -> tuple[str, ...]:
    """Return the names that ``term`` refers to and does not bind, sorted.

    A name that is free in a ``Shared`` term is free in ``term``, even if it is bound outside.

    Complexity: O(n + s) for n nodes, and s the sizes of the sets of free names of all ``Rules`` together.
    """
    with_names = nodes_with_names(term)
    return _all_free(term, _free_names(term, with_names), with_names.values())


def resolve(grammar: Grammar, limits: Limits = _DEFAULT_LIMITS, *, through_shared: bool = False) -> Rules:
    """Return an equal grammar with one flat set of rules.

    The result is a ``Rules`` node whose rules have unique names. No other ``Rules`` is below it, except inside
    ``Shared`` terms, which stay unchanged. A rule keeps its name if it is free, else it becomes ``name.2``, ``name.3``
    ... The rules of one node are made once for each binding of its free names.

    Args:
        grammar: a closed term.
        limits: ``grammar_nodes`` bounds the work; a term with one node in exponentially many scopes has no small flat
            form.
        through_shared: replace ``Shared`` terms by their items, so that their rules are flat too.

    Raises:
        GrammarError: a reference has no rule.
        LimitExceeded: the result would have too many nodes.

    >>> from structgen.grammar.nodes import literal
    >>> print(resolve("(" + Rules({"x": literal("a")}, Reference("x"))))
    rules {
      x = "a"
    } in "(" x
    """
    return _Resolver(grammar, limits, through_shared=through_shared).run()


def used_rules(rules: Mapping[str, Grammar], body: Grammar) -> list[tuple[str, Grammar]]:
    """Return the rules that are reachable from the body, in the order of their first reference.

    Nothing is looked for in ``Described`` and ``Rules`` below them, which are closed: a schema, or a nested grammar.
    """
    found: dict[str, Grammar] = {}
    stack = [body]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, Reference) and node.name not in found:
            found[node.name] = rules[node.name]
            stack.append(rules[node.name])
        elif id(node) not in seen and not isinstance(node, (Described, Rules)):
            seen.add(id(node))
            stack.extend(reversed(node.children))
    return list(found.items())


def nodes_with_names(root: Grammar) -> dict[int, Grammar]:
    """Return the nodes that have a reference or rules below them, children first; scopes change no other nodes."""
    found: dict[int, Grammar] = {}
    for node in postorder(root):
        if isinstance(node, (Reference, Rules)) or any(id(child) in found for child in node.children):
            found[id(node)] = node
    return found


def _free_names(root: Grammar, with_names: Mapping[int, Grammar]) -> dict[int, frozenset[str]]:
    """The free names of ``root`` and of each ``Rules`` and ``Shared`` node, without those of inner ``Shared`` nodes."""
    free: dict[int, frozenset[str]] = {}
    for node in with_names.values():
        if isinstance(node, (Rules, Shared)) or node is root:
            names: set[str] = set()
            for inner in _scope_below(node, with_names):
                names |= {inner.name} if isinstance(inner, Reference) else free[id(inner)]
            if isinstance(node, Rules):
                names.difference_update(name for name, _ in node.rules)
            free[id(node)] = frozenset(names)
    return free


def _scope_below(start: Grammar, with_names: Mapping[int, Grammar]) -> Iterator[Grammar]:
    """Yield the references and rules below ``start`` outside any other ``Rules`` or ``Shared``."""
    seen: set[int] = set()
    stack = [start]
    while stack:
        node = stack.pop()
        if isinstance(node, Reference) or (isinstance(node, Rules) and node is not start):
            yield node
        elif not isinstance(node, Shared) or node is start:
            for child in node.children:
                if id(child) in with_names and id(child) not in seen:
                    seen.add(id(child))
                    stack.append(child)


def _all_free(root: Grammar, free: Mapping[int, frozenset[str]], nodes: Iterable[Grammar]) -> tuple[str, ...]:
    names = set(free.get(id(root), ()))
    for node in nodes:
        if isinstance(node, Shared):
            names |= free[id(node)]
    return tuple(sorted(names))


def _refuse_free(free: tuple[str, ...]) -> None:
    if free:
        raise GrammarError(
            "grammar",
            f"no rule is called {some(free)}",
            remedy="bind each name in a Rules(...) around its references, and keep Shared(...) terms closed",
        )


class _Resolver:
    """Rewrites terms scope by scope; a scope maps the names that are visible in it to unique names."""

    def __init__(self, root: Grammar, limits: Limits, *, through_shared: bool) -> None:
        self.root = root
        self.limits = limits
        self.through_shared = through_shared
        self.with_names = nodes_with_names(root)
        self.free = _free_names(root, self.with_names)
        _refuse_free(_all_free(root, self.free, self.with_names.values()))
        self.scopes: list[dict[str, str]] = [{}]
        self.scope_of: dict[tuple[int, tuple[str, ...]], int] = {}
        self.made: dict[tuple[int, int], Grammar] = {}
        self.waiting: list[tuple[str, Grammar, int]] = []
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}

    def run(self) -> Rules:
        if isinstance(self.root, Rules) and self.is_flat():
            return self.root
        body = self.rewrite(self.root, 0)
        rules: list[tuple[str, Grammar]] = []
        while len(rules) < len(self.waiting):  # rewriting a rule may find further ones
            name, term, scope = self.waiting[len(rules)]
            rules.append((name, self.rewrite(term, scope)))
        return Rules(rules, body)

    def is_flat(self) -> bool:
        return not any(node is not self.root and isinstance(node, (Rules, Shared)) for node in self.with_names.values())

    def rewrite(self, root: Grammar, root_scope: int) -> Grammar:
        made = self.made
        stack: list[tuple[Grammar, int, bool]] = [(root, root_scope, False)]
        while stack:
            node, scope, is_open = stack.pop()
            key = (id(node), scope)
            if key in made:
                continue
            if id(node) not in self.with_names or (isinstance(node, Shared) and not self.through_shared):
                made[key] = node
            elif isinstance(node, Reference):
                name = self.scopes[scope][node.name]
                made[key] = node if name == node.name else Reference(name)
            elif isinstance(node, (Rules, Shared)):
                inside = (node.body, self.enter(node, scope)) if isinstance(node, Rules) else (node.item, 0)
                body = made.get((id(inside[0]), inside[1]))
                if body is None:
                    stack += [(node, scope, False), (*inside, False)]
                else:
                    made[key] = body
            elif is_open:
                made[key] = with_children(node, [made[id(child), scope] for child in node.children])
            else:
                stack.append((node, scope, True))
                stack.extend((child, scope, False) for child in reversed(node.children))
            if len(made) + len(stack) > self.limits.grammar_nodes:
                self.refuse()
        return made[id(root), root_scope]

    def enter(self, node: Rules, around: int) -> int:
        """Return the scope inside ``node``, with unique names for its rules."""
        outer = self.scopes[around]
        free = sorted(self.free[id(node)])
        key = (id(node), tuple(outer[name] for name in free))
        scope = self.scope_of.get(key)
        if scope is None:
            scope = self.scope_of[key] = len(self.scopes)
            names = {name: outer[name] for name in free}
            names |= {name: self.unique(name) for name, _ in node.rules}
            self.scopes.append(names)
            self.waiting += [(names[name], term, scope) for name, term in node.rules]
        return scope

    def unique(self, name: str) -> str:
        found = name
        while found in self.taken:
            self.counts[name] = self.counts.get(name, 1) + 1
            found = f"{name}.{self.counts[name]}"
        self.taken.add(found)
        return found

    def refuse(self) -> None:
        raise LimitExceeded(
            "grammar",
            limit="grammar_nodes",
            maximum=self.limits.grammar_nodes,
            evidence="that many nodes occur in different scopes of its rules",
        )
