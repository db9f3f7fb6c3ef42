"""Terminals: regular expressions inside which nothing is ignored; and the ignored text and marks around them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from lark import Tree

from structgen.frontends.indentation.facts import any_number
from structgen.frontends.indentation.marks import CLOSE, DEDENT, GAP, INDENT, NEWLINE, OPEN, Indentation, NotBefore
from structgen.frontends.lark.definition import Definition, Module, NodeBudget, bounds_of
from structgen.frontends.lark.lazy import Pattern, branches, closed, first_lazy, is_plain, plain
from structgen.frontends.lark.lexeme_automaton import Lexeme, Skip
from structgen.frontends.lark.library import Library
from structgen.frontends.lark.llguidance import part_of_text
from structgen.frontends.lark.regexp import pattern_of, range_of
from structgen.frontends.lark.syntax import Node, Token, fold, span_of, tokens_of
from structgen.grammar.algebra import either, joined
from structgen.grammar.nodes import EPSILON, Complement, Grammar, Intersection, Literal, Repeat, postorder

__all__ = ["Surroundings", "Terminals", "is_regular"]

_NO_TERMINAL: Final = {
    "SPECIAL": "a token",
    "GRAMMAR": "another grammar",
    "JSON": "a JSON schema",
    "template": "a template",
    "parametrised": "a rule with a parameter",
    "nested": "a grammar",
    "conditional": "a condition",
    "alias": "an alias",
}
_NO_LEAF: Final = frozenset({"RULE", "SPECIAL", "GRAMMAR", "JSON"})
_NO_TREE: Final = frozenset({"template", "parametrised", "nested", "conditional"})


class Terminals:
    """Builds the terms of terminals, each once.

    Attributes:
        has_guards: whether a terminal built so far restricts the next character.
    """

    def __init__(self, library: Library, budget: NodeBudget) -> None:
        self._library = library
        self._budget = budget
        self._patterns: dict[int, Pattern] = {}
        self._terms: dict[int, Grammar] = {}
        self.has_guards = False

    def term(self, definition: Definition) -> Grammar:
        """Return the term of a terminal.

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
        """Return the term of a string or regexp in a rule; raises as ``term`` does."""
        return closed(self._leaf(module, token))

    def range(self, module: Module, tree: Node) -> Grammar:
        """Return the characters of ``"a".."z"``; raises as ``term`` does."""
        first, last = (token for token in tree.children if isinstance(token, Token))
        return range_of(module.source, first, last)

    def value(self, module: Module, part: Node | Token) -> Grammar:
        """Return the term of a single string, regexp, terminal or range; raises as ``term`` does."""
        if not isinstance(part, Token):
            return self.expression(module, part)
        found = self._library.find(module, part) if part.type == "TERMINAL" else None
        return self.spelled(module, part) if found is None else self.term(found)

    def expression(self, module: Module, tree: Node) -> Grammar:
        """Return the term of an expression over terminals; raises as ``term`` does."""
        for token in _terminals_in(tree):
            found = self._library.find(module, token)
            if found is not None:
                self._solve(found)
        return closed(fold(tree, partial(self._leaf, module), partial(self._node, module)))

    def _solve(self, root: Definition) -> None:
        """Build the pattern of a terminal after those of the terminals that it refers to."""
        is_open: dict[int, bool] = {}
        stack = [root]
        while stack:
            definition = stack[-1]
            key = id(definition)
            if key in self._patterns:
                stack.pop()
            elif key in is_open:
                parts = [
                    fold(part.tree, partial(self._leaf, part.module), partial(self._node, part.module))
                    for part in (definition, *definition.further)
                ]
                self._patterns[key] = parts[0] if len(parts) == 1 else branches(parts)
                is_open[key] = False
            else:
                is_open[key] = True
                used = [
                    (part, token) for part in (definition, *definition.further) for token in _terminals_in(part.tree)
                ]
                for part, token in used:
                    found = self._library.find(part.module, token)
                    if found is not None and id(found) not in self._patterns:
                        if is_open.get(id(found)):
                            raise part.module.source.syntax_error(
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
                f"rule {str(token)!r} is used where only terminals are allowed",
                "write it as a terminal, in upper case",
            )
        if token.type == "TERMINAL":
            found = self._library.find(module, token)
            if found is None:
                raise source.syntax_error(
                    span_of(token), f"terminal {str(token)!r} is not defined", f"define it: {token}: ..."
                )
            return self._counted(module, self._patterns[id(found)])
        if token.type == "STRUCTURED":
            return self._counted(module, (part_of_text(source, token),))
        if token.type in _NO_TERMINAL:
            raise source.syntax_error(
                span_of(token), f"{_NO_TERMINAL[token.type]} cannot be used inside a terminal", "put it into a rule"
            )
        pattern = pattern_of(source, token, self._budget.limits, is_rust=module.options is not None)
        self.has_guards = self.has_guards or any(isinstance(part, NotBefore) for part in pattern)
        return self._counted(module, pattern)

    def _node(self, module: Module, tree: Node, parts: list[Pattern]) -> Pattern:
        match tree.data:
            case "expansion":
                whole = tuple(item for part in parts for item in part)
                return self._counted(module, (plain(whole),) if is_plain(whole) else whole)
            case "expansions":
                return self._counted(module, parts[0] if len(parts) == 1 else branches(parts))
            case "maybe":
                return self._counted(module, branches([parts[0], ()]))
            case "conjunction":
                return self._counted(module, (Intersection(self._closed(module, tree, part) for part in parts),))
            case "negation":
                return self._counted(module, (Complement(self._closed(module, tree, parts[0])),))
            case "repeat" | "times" | "counted":
                low, high = bounds_of(module, tree)
                if (low, high) == (0, 1):
                    return branches([parts[0], ()])
                if not is_plain(parts[0]):
                    raise first_lazy(parts[0]).refuse("it is in a repeated group")
                return (Repeat(plain(parts[0]), low, high),)
            case "range":
                return (self.range(module, tree),)
            case _:
                token = next(tokens_of(tree))
                what = _NO_TERMINAL[str(tree.data)]
                raise module.source.syntax_error(span_of(token), f"{what} cannot be used inside a terminal")

    def _closed(self, module: Module, tree: Node, pattern: Pattern) -> Grammar:
        """Return the term of an operand of ``&`` or ``~``."""
        remedy = "write the boundary after the whole terminal"
        return self._unguarded(module, tree, closed(pattern), "an operand of '&' or '~'", remedy)

    def ignored(self, module: Module, tree: Node) -> Grammar:
        """Return the term of an expression that is ignored between terminals; raises as ``term`` does."""
        return self._unguarded(module, tree, self.expression(module, tree), "ignored text", "leave the boundary out")

    def _unguarded(self, module: Module, tree: Node, term: Grammar, what: str, remedy: str) -> Grammar:
        if self.has_guards and any(isinstance(node, NotBefore) for node in postorder(term)):
            token = next(tokens_of(tree))
            problem = f"{what} looks at the text after it (\\b)"
            raise module.source.refused(token.start_pos or 0, "word end", problem, remedy)
        return term

    def _counted(self, module: Module, pattern: Pattern) -> Pattern:
        self._budget.charge(1 + len(pattern), module.source.subject)
        return pattern


def is_regular(tree: Node) -> bool:
    """Return whether an expression has only parts that are allowed in a terminal."""
    stack: list[object] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Tree):
            if part.data in _NO_TREE:
                return False
            stack.extend(part.children[:1] if part.data == "alias" else part.children)
        elif isinstance(part, Token) and part.type in _NO_LEAF:
            return False
    return True


def _terminals_in(tree: Node) -> Iterator[Token]:
    stack: list[object] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Tree):
            if part.data == "nested":  # a nested grammar has its own names
                continue
            stack.extend(reversed(part.children))
        elif isinstance(part, Token) and part.type == "TERMINAL":
            yield part


class Surroundings:
    """The ignored text and the marks (``structgen.frontends.indentation.marks``) around the terminals in rules.

    Attributes:
        ignored: one piece of ignored text, None if nothing is ignored.
        marks: the marks that replace the terminals of lines and blocks, by name.
        brackets: the marks after terminals that are brackets, by their text.
        before: what may stand before the first terminal.
    """

    def __init__(
        self,
        library: Library,
        terminals: Terminals,
        indentation: Indentation | None,
        *,
        is_marked: bool,
        has_lexemes: bool = False,
    ) -> None:
        """Build the ignored text; with ``is_marked`` a mark stands for it, with ``indentation`` there are all marks.

        With ``has_lexemes`` all lexemes are marked, for ``committed``.
        """
        main, options = library.main, library.main.options or {}
        pairs = () if indentation is None else indentation.brackets
        self.ignored: Grammar | None = None
        self.marks = _line_marks(library, indentation)
        self.brackets = {text.encode(): mark for pair in pairs for text, mark in zip(pair, (OPEN, CLOSE), strict=True)}
        self._after = EPSILON
        self._has_lexemes = has_lexemes
        if main.ignored:
            self.ignored = either(terminals.ignored(main, tree) for tree in main.ignored)
            self._after = Repeat(self.ignored, 0, 1) if options.get("ignore_once") else any_number(self.ignored)
            self._after = Skip(self._after) if has_lexemes else self._after
        if is_marked:
            self._after = GAP
        has_begun = main.options is not None and not options.get("allow_initial_skip")
        self.before = EPSILON if has_begun else self._after

    def followed(self, term: Grammar, text: Grammar = EPSILON) -> Grammar:
        """Return a terminal, which stands for ``text``, with its bracket mark and the ignored text after it."""
        mark = self.brackets.get(text.data, EPSILON) if isinstance(text, Literal) else EPSILON
        return joined([self.lexeme(term), mark, self._after])

    def after(self, term: Grammar) -> Grammar:
        """Return what is no lexeme, or is marked already, with the ignored text after it."""
        return joined([term, self._after])

    def lexeme(self, term: Grammar, match: Grammar | None = None, *, is_stop: bool = False, owner: str = "") -> Grammar:
        """Return a lexeme with its mark, if there are such marks; see ``Lexeme``."""
        return Lexeme(term, match, is_stop, owner) if self._has_lexemes else term


def _line_marks(library: Library, indentation: Indentation | None) -> dict[str, Grammar]:
    if indentation is None:
        return {}
    marks: dict[str, Grammar] = {indentation.indent: INDENT, indentation.dedent: DEDENT}
    for name in indentation.newline:
        found = library.find(library.main, name)
        if found is not None:
            marks[library.name_of(found)] = NEWLINE
    return marks
