"""Terminals: regular pieces of text, inside which nothing is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lark import Tree

from structgen.grammar.lark.definitions import Definition, Module, span_of
from structgen.grammar.lark.expressions import Budget, bounds_of
from structgen.grammar.lark.library import Library
from structgen.grammar.lark.regexps import pattern_of, range_of
from structgen.grammar.lark.shortest import Pattern, branches, closed, first_lazy, is_plain, plain
from structgen.grammar.lark.syntax import Node, Token, fold
from structgen.grammar.nodes import Grammar, Repeat

__all__ = ["Terminals"]


class Terminals:
    """Makes terms of terminals, each once."""

    def __init__(self, library: Library, budget: Budget) -> None:
        self._library = library
        self._budget = budget
        self._patterns: dict[int, Pattern] = {}
        self._terms: dict[int, Grammar] = {}

    def term(self, definition: Definition) -> Grammar:
        """Return the texts of a terminal.

        Raises:
            GrammarSyntaxError: it refers to a rule, to itself or to nothing, or a part of it is malformed.
            UnsupportedFeature: a regexp cannot be compiled.
            LimitExceeded: the grammar has too many nodes.
        """
        key = id(definition)
        if key not in self._terms:
            self._solve(definition)
            self._terms[key] = closed(self._patterns[key])
        return self._terms[key]

    def spelled(self, module: Module, token: Token) -> Grammar:
        """Return the texts of a string or regexp that a rule holds; raises as ``term`` does."""
        return closed(self._leaf(module, token))

    def range(self, module: Module, tree: Node) -> Grammar:
        """Return the characters of ``"a".."z"``; raises as ``term`` does."""
        first, last = (token for token in tree.children if isinstance(token, Token))
        return range_of(module.source, first, last)

    def expression(self, module: Module, tree: Node) -> Grammar:
        """Return the texts of an expression over terminals; raises as ``term`` does."""
        for token in _terminals_in(tree):
            found = self._library.find(module, token)
            if found is not None:
                self._solve(found)
        return closed(fold(tree, partial(self._leaf, module), partial(self._node, module)))

    def _solve(self, root: Definition) -> None:
        """Make the pattern of a terminal after those that it refers to."""
        is_open: dict[int, bool] = {}
        stack = [root]
        while stack:
            definition = stack[-1]
            key = id(definition)
            if key in self._patterns:
                stack.pop()
            elif key in is_open:
                module = definition.module
                self._patterns[key] = fold(definition.tree, partial(self._leaf, module), partial(self._node, module))
                is_open[key] = False
            else:
                is_open[key] = True
                for token in _terminals_in(definition.tree):
                    found = self._library.find(definition.module, token)
                    if found is not None and id(found) not in self._patterns:
                        if is_open.get(id(found)):
                            raise definition.module.source.syntax_error(
                                span_of(token),
                                f"terminal {found.name!r} is recursive",
                                "only rules may be recursive: write it in lower case",
                            )
                        stack.append(found)

    def _leaf(self, module: Module, token: Token) -> Pattern:
        source = module.source
        if token.type == "RULE":
            raise source.syntax_error(
                span_of(token),
                f"rule {str(token)!r} is used where only terminals may stand",
                "write it as a terminal, in upper case",
            )
        if token.type == "TERMINAL":
            found = self._library.find(module, token)
            if found is None:
                raise source.syntax_error(
                    span_of(token), f"terminal {str(token)!r} is not defined", f"define it: {token}: ..."
                )
            return self._counted(module, self._patterns[id(found)])
        return self._counted(module, pattern_of(source, token, self._budget.limits))

    def _node(self, module: Module, tree: Node, parts: list[Pattern]) -> Pattern:
        match tree.data:
            case "expansion":
                whole = tuple(item for part in parts for item in part)
                return self._counted(module, (plain(whole),) if is_plain(whole) else whole)
            case "expansions":
                return self._counted(module, parts[0] if len(parts) == 1 else branches(parts))
            case "maybe":
                return self._counted(module, branches([parts[0], ()]))
            case "repeat" | "times":
                low, high = bounds_of(module, tree)
                if (low, high) == (0, 1):
                    return branches([parts[0], ()])
                if not is_plain(parts[0]):
                    raise first_lazy(parts[0]).refuse("it stands in a group that is repeated")
                return (Repeat(plain(parts[0]), low, high),)
            case "range":
                return (self.range(module, tree),)
            case _:
                token = next(iter(tree.scan_values(lambda value: isinstance(value, Token))))
                raise module.source.syntax_error(span_of(token), "a template cannot be used inside a terminal")

    def _counted(self, module: Module, pattern: Pattern) -> Pattern:
        self._budget.charge(1 + len(pattern), module.source.subject)
        return pattern


def _terminals_in(tree: Node) -> Iterator[Token]:
    stack: list[object] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Tree):
            stack.extend(reversed(part.children))
        elif isinstance(part, Token) and part.type == "TERMINAL":
            yield part
