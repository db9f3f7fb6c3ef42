"""Rules: expressions in which ignored text may stand after every terminal, and templates."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from structgen.errors import LimitExceeded
from structgen.grammar.algebra import either, joined
from structgen.grammar.lark.definitions import Definition, Module, span_of
from structgen.grammar.lark.expressions import Budget, bounds_of
from structgen.grammar.lark.library import Library
from structgen.grammar.lark.syntax import Node, Token, fold
from structgen.grammar.lark.terminals import Terminals
from structgen.grammar.nodes import EPSILON, Grammar, Reference, Repeat

__all__ = ["RuleBuilder"]

# An instance of a template counts as this many nodes: ever new instances should meet the limit in good time.
_INSTANCE_COST: Final = 100


class _Value(NamedTuple):
    """A term, and what it is called as the argument of a template (``""`` for what cannot be one)."""

    term: Grammar
    name: str = ""


class _Use(NamedTuple):
    """A rule, or a template with its arguments."""

    definition: Definition
    arguments: Mapping[str, _Value]
    depth: int


class RuleBuilder:
    """Makes the expressions of all rules that others refer to.

    Attributes:
        rules: terms by the name of the rule or terminal.
    """

    def __init__(self, library: Library, budget: Budget) -> None:
        self.rules: dict[str, Grammar] = {}
        self._library = library
        self._budget = budget
        self._terminals = Terminals(library, budget)
        self._waiting: deque[tuple[str, _Use]] = deque()
        self._known: dict[str, _Value] = {}
        self._spelled: dict[str, _Value] = {}
        self._after = self._ignored()

    def build(self, start: Definition) -> Grammar:
        """Return the body of the grammar: ``start`` with ignored text before it.

        Raises:
            GrammarSyntaxError: a name is not defined or does not fit its place, or a part is malformed.
            UnsupportedFeature: a construct is refused by name.
            LimitExceeded: the grammar has too many nodes, or templates are nested too deeply.
        """
        body = self._reference(start, {}, 0).term
        main = self._library.main
        for definition in main.definitions.values():  # errors in unused definitions are errors too
            if not definition.parameters:
                self._reference(definition, {}, 0)
        while self._waiting:
            name, use = self._waiting.popleft()
            if use.definition.is_terminal:
                self.rules[name] = self._terminals.term(use.definition)
            else:
                leaf, node = partial(self._leaf, use), partial(self._node, use)
                self.rules[name] = fold(use.definition.tree, leaf, node).term
        return joined([self._after, body])

    def _ignored(self) -> Grammar:
        main = self._library.main
        if not main.ignored:
            return EPSILON
        term = either(self._terminals.expression(main, tree) for tree in main.ignored)
        if isinstance(term, Repeat) and term.min <= 1 and term.max is None:
            term = term.item  # (x+)* is x*
        return Repeat(term, 0, None)

    def _reference(self, definition: Definition, arguments: Mapping[str, _Value], depth: int) -> _Value:
        name = self._library.name_of(definition)
        if arguments:
            name += f"{{{','.join(value.name for value in arguments.values())}}}"
        if name not in self._known:
            if arguments:
                self._budget.charge(_INSTANCE_COST + len(name), definition.module.source.subject)
            self._waiting.append((name, _Use(definition, arguments, depth)))
            term = Reference(name)
            self._known[name] = _Value(joined([term, self._after]) if definition.is_terminal else term, name)
        return self._known[name]

    def _leaf(self, use: _Use, token: Token) -> _Value:
        module = use.definition.module
        self._budget.charge(2, module.source.subject)
        if token.type in {"STRING", "REGEXP"}:
            if token not in self._spelled:
                term = self._terminals.spelled(module, token)
                self._spelled[str(token)] = _Value(joined([term, self._after]), str(token))
            return self._spelled[token]
        if token in use.arguments:
            return use.arguments[token]
        found = self._find(module, token)
        if found.parameters:
            raise module.source.syntax_error(
                span_of(token),
                f"template {str(token)!r} is used without arguments",
                f"it takes {len(found.parameters)}: {token}{{...}}",
            )
        return self._reference(found, {}, 0)

    def _find(self, module: Module, token: Token) -> Definition:
        found = self._library.find(module, token)
        if found is None:
            kind = "terminal" if token.type == "TERMINAL" else "rule"
            raise module.source.syntax_error(
                span_of(token), f"{kind} {str(token)!r} is not defined", f"define it ({token}: ...) or import it"
            )
        return found

    def _node(self, use: _Use, tree: Node, parts: list[_Value]) -> _Value:
        module = use.definition.module
        self._budget.charge(1 + len(parts), module.source.subject)
        match tree.data:
            case "expansion":
                return parts[0] if len(parts) == 1 else _Value(joined(part.term for part in parts))
            case "expansions":
                return parts[0] if len(parts) == 1 else _Value(either(part.term for part in parts))
            case "alias":
                return parts[0]
            case "maybe":
                return _Value(Repeat(parts[0].term, 0, 1))
            case "repeat" | "times":
                return _Value(Repeat(parts[0].term, *bounds_of(module, tree)))
            case "range":
                term = self._terminals.range(module, tree)
                return _Value(joined([term, self._after]), "..".join(map(str, tree.children)))
            case _:
                return self._instance(use, tree, parts)

    def _instance(self, use: _Use, tree: Node, parts: list[_Value]) -> _Value:
        module = use.definition.module
        token = tree.children[0]
        if not isinstance(token, Token):
            raise TypeError("the name of a template is no token")
        if token in use.arguments:
            raise module.source.refused(
                token.start_pos or 0, "template parameter as template",
                f"parameter {str(token)!r} is used as a template", "pass a rule instead",
            )  # fmt: skip
        definition = self._find(module, token)
        if len(definition.parameters) != len(parts):
            raise module.source.syntax_error(
                span_of(token), f"{str(token)!r} takes {len(definition.parameters)} arguments, given {len(parts)}"
            )
        limits = self._budget.limits
        if use.depth >= limits.nesting:
            raise LimitExceeded(
                module.source.subject_at(token.start_pos or 0),
                limit="nesting",
                maximum=limits.nesting,
                evidence=f"template {str(token)!r} uses itself with ever new arguments",
            )
        return self._reference(definition, dict(zip(definition.parameters, parts, strict=True)), use.depth + 1)
