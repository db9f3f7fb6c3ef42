"""Rewrite a grammar so that no rule can reach itself without reading something first.

A predictive engine calls a rule where it meets a reference; a rule that can call itself at the same position
(``e: e "+" t``, also through other rules or behind parts that may be empty) would call for ever.

The idea.  Take a set C of rules that reach each other in left position.  Split the expression of each rule B of
C into what starts with a rule of C and what does not, the empty string aside::

    B = Q_B  |  A R_AB  |  ...            one alternative for each A in C that B can start with

This is a left-linear system.  Its solution is ``A = Q_B Y_BA | ...`` where the rule ``Y_BA``, "what turns a B
into an A", is right-linear: ``Y_BA = R_BD Y_DA | ...``, and empty where B is A.  With one rule in C this is
``e = t ("+" t)*``.  Nothing is multiplied out: for each rule of C that is still in use afterwards there are at
most as many rules Y as C has rules, with as many alternatives together as C has left references.

Source: the matrix form is D. J. Rosenkrantz, "Matrix equations and normal forms for context-free grammars",
J. ACM 14 (1967); keeping only what is still in use is the left-corner transform of R. C. Moore, "Removing left
recursion from context-free grammars", NAACL 2000.  Both are for plain productions; ``left_splitting`` carries
them over to the operators of the IR.  Its twin in the tests is ``structgen.testing.languages``.
"""

from __future__ import annotations

from typing import Final

from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import Nullability, strongly_connected
from structgen.grammar.left_splitting import LeftPositions
from structgen.grammar.left_system import solve
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Rules, Shared, postorder
from structgen.grammar.report import Described
from structgen.grammar.scopes import nodes_with_names, resolve

__all__ = ["remove_left_recursion"]

_DEFAULT_LIMITS: Final = Limits()


def remove_left_recursion(grammar: Grammar, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    """Return an equal grammar without left recursion; ``grammar`` itself where it has none.

    Rules keep their names.  New rules are called ``e.after.t`` (what turns a ``t`` into an ``e``) and
    ``e.nonempty``.  Rules that nothing refers to any more are dropped, and so are descriptions below the root of
    terms that must be split.  A capture inside such a term does not report an empty match.

    Args:
        grammar: a closed term.
        limits: ``grammar_nodes`` bounds the size of the result.

    Raises:
        GrammarError: a reference has no rule, or a rule is recursive through a boolean operator.
        UnsupportedFeature: a capture starts with a left-recursive reference: where it starts is only known after
            it has begun.
        LimitExceeded: the result would have too many nodes.

    Complexity:
        O(n) where nothing is left-recursive.

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
    cycles = _cycles(flat, positions)
    if not cycles:
        return grammar
    if flat is grammar:  # no other scope lies inside
        return solve(flat, positions, cycles, limits)
    return _rewritten(grammar, limits)


def _cycles(flat: Rules, positions: LeftPositions) -> list[list[str]]:
    """Return the sets of rules that reach each other in left position."""
    graph = {name: positions.references(term) for name, term in flat.rules}
    return [
        component
        for component in strongly_connected(graph)
        if len(component) > 1 or component[0] in graph[component[0]]
    ]


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
            # A shared term that may be empty is put in place: what surrounds it may need it without the empty
            # string, which is then a matter of its rules.
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
    cycles = _cycles(flat, positions)
    return solve(flat, positions, cycles, limits) if cycles else term, positions.nullable(flat.body)
