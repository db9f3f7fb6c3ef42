"""From tokens to terms, without recursion, and from rules to a grammar with a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from structgen.errors import LimitExceeded
from structgen.frontends.bnf.scanner import Notation, Token, class_of, scan, string_of
from structgen.frontends.grammar_source import GrammarSource, check_text
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import Nullability, cyclic_components
from structgen.grammar.left_recursion import left_recursive
from structgen.grammar.left_splitting import LeftPositions
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status
from structgen.grammar.scopes import used_rules

__all__ = ["Definition", "Parser", "read"]

_COUNT: Final = re.compile(r"\{\s*([0-9]*)\s*(?:(,)\s*(-1|[0-9]*)\s*)?\}")
_QUANTIFIERS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_COUNT: Final = 1_000_000


class Definition(NamedTuple):
    """A rule: its name token, and its expression."""

    token: Token
    term: Grammar


@dataclass(slots=True)
class _OpenGroup:
    """The content of open parentheses: complete alternatives, and the items of the last one."""

    opening: Token
    alternatives: list[Grammar] = field(default_factory=list)
    items: list[Grammar] = field(default_factory=list)
    is_blocked: bool = True  # whether a repetition is an error: there is no item, or it has one

    def close_alternative(self) -> None:
        items = self.items
        self.alternatives.append(items[0] if len(items) == 1 else ir.sequence_of(tuple(items)) if items else ir.EPSILON)
        self.items = []
        self.is_blocked = True

    def term(self) -> Grammar:
        self.close_alternative()
        return self.alternatives[0] if len(self.alternatives) == 1 else ir.choice_of(tuple(self.alternatives))


class Parser:
    """Reads the rules of one text.

    Attributes:
        source: the text.
        notation: how it is written.
        limits: bounds on its size.
        entries: the report, in order.
        references: the first use of each name.
        regular: the rules that must be regular, with the option that requires it.
    """

    def __init__(self, source: GrammarSource, notation: Notation, limits: Limits) -> None:
        self.source = source
        self.notation = notation
        self.limits = limits
        self.entries: list[ReportEntry] = []
        self.references: dict[str, Token] = {}
        self.regular: dict[str, tuple[Token, str]] = {}
        self._tokens = scan(source, notation, limits)
        self._at = 0
        self._terms = 0
        self._known: dict[str, ir.Reference] = {}

    def peek(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    def take(self) -> Token:
        """Read the next token; the end token stays."""
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def note(self, keyword: str, token: Token, status: Status, detail: str = "") -> None:
        """Add one construct to the report."""
        self.entries.append(ReportEntry(keyword, self.source.where(token.start), status, detail))

    def reference(self, token: Token) -> ir.Reference:
        """A reference to the rule that a token names."""
        known = self._known.get(token.text)
        if known is None:
            known = self._known[token.text] = ir.Reference(token.text)
            self.references[token.text] = token
        return known

    def string(self, token: Token) -> str:
        """The text of a string token."""
        return string_of(self.source, token, self.notation)

    def definitions(self) -> dict[str, Definition]:
        """Read all rules.

        Raises:
            GrammarSyntaxError: the text is malformed, or defines a name twice.
            LimitExceeded: it is nested too deeply, or has too many terms.
        """
        found: dict[str, Definition] = {}
        while True:
            token = self.take()
            if token.kind == "newline":
                continue
            if token.kind == "end":
                return found
            if token.kind != "rule":
                self._refuse_outside(token)
            name, bracket, _ = token.text.partition("[")
            token_of_name = Token("rule", name, token.start)
            earlier = found.get(name)
            if earlier is not None:
                location = self.source.where(earlier.token.start)
                raise self.source.syntax_error(
                    token_of_name.span, f"{name!r} is defined more than once", f"it is first defined at {location}"
                )
            self.note(f"rule {name}", token, Status.ENFORCED)
            term = self.expression(token_of_name)
            if bracket:
                term = self.notation.options(self, token, term)
            found[name] = Definition(token_of_name, term)

    def expression(self, opening: Token) -> Grammar:
        """Read an expression up to the next rule, the end, or the ``)`` that closes ``opening``."""
        stack = [_OpenGroup(opening)]
        may_go_on = True  # whether the rule may continue after the end of the line
        while True:
            token = self.peek()
            kind, group = token.kind, stack[-1]
            if kind == "rule" and may_go_on and self.notation.ends_at_line:
                raise self.source.syntax_error(token.span, "an expression is expected before the next rule")
            if kind in ("rule", "end") or (kind == "newline" and not may_go_on and len(stack) == 1):
                if len(stack) == 1 and opening.kind == "rule":
                    break
                raise self.source.syntax_error(
                    group.opening.span, "the parenthesis is not closed", "close it with ) before the next rule"
                )
            self.take()
            if kind == "newline":
                continue
            may_go_on = kind == "|"
            if kind == ")":
                self._refuse_empty(group, token)
                if len(stack) == 1:
                    if opening.kind != "rule":
                        return group.term()
                    raise self.source.syntax_error(token.span, "no parenthesis is open here", "remove it")
                stack.pop()
                self._add(stack[-1], group.term(), token)
            elif kind == "(":
                if len(stack) >= self.limits.nesting:
                    raise LimitExceeded(
                        self.source.subject_at(token.start), limit="nesting", maximum=self.limits.nesting
                    )
                stack.append(_OpenGroup(token))
            elif kind == "|":
                self._refuse_empty(group, token)
                group.close_alternative()
            elif kind in _QUANTIFIERS or kind == "count":
                self._repeat(group, token)
            elif kind == opening.kind:
                raise self.source.syntax_error(token.span, "look-ahead is inside look-ahead", "remove one of them")
            else:
                self._add(group, self._element(token), token)
        self._refuse_empty(stack[0], token)
        return stack[0].term()

    def _element(self, token: Token) -> Grammar:
        match token.kind:
            case "string":
                return ir.Literal(self.string(token).encode())
            case "class":
                return class_of(self.source, token, self.notation)
            case "any":
                return ir.ANY_CHAR
            case "name":
                macro = self.notation.macros.get(token.text)
                return self.reference(token) if macro is None else macro(self, token)
        own = self.notation.elements.get(token.kind)
        if own is None:
            raise self.source.syntax_error(
                token.span, f"{token.text!r} has no meaning here", "expected a string, a class, a name or ( ... )"
            )
        return own(self, token)

    def _add(self, group: _OpenGroup, term: Grammar, token: Token) -> None:
        group.items.append(term)
        group.is_blocked = False
        self._count_term(token)

    def _count_term(self, token: Token) -> None:
        self._terms += 1
        if self._terms > self.limits.grammar_nodes:
            maximum = self.limits.grammar_nodes
            raise LimitExceeded(self.source.subject_at(token.start), limit="grammar_nodes", maximum=maximum)

    def _repeat(self, group: _OpenGroup, token: Token) -> None:
        if group.is_blocked:
            problem = f"{token.text} repeats nothing"
            if group.items:
                problem = f"{token.text} follows another repetition"
            raise self.source.syntax_error(
                token.span, problem, "put it after an item; in parentheses, an item with a repetition is one"
            )
        min_count, max_count = _QUANTIFIERS.get(token.kind) or self._count(token)
        group.items[-1] = ir.Repeat(group.items[-1], min_count, max_count)
        group.is_blocked = not self.notation.ends_at_line
        self._count_term(token)

    def _count(self, token: Token) -> tuple[int, int | None]:
        match = _COUNT.fullmatch(token.text)
        if match is None or not (match[1] or match[3]):
            raise self.source.syntax_error(token.span, "the count is malformed", "write it as {2}, {2,} or {2,5}")
        low, comma, high = match.groups()
        if len(low) > 7 or len(high or "") > 7 or max(int(low or 0), int(high or 0)) > _MAX_COUNT:
            raise self.source.syntax_error(token.span, f"the count is above {_MAX_COUNT}", "lower it, or leave it open")
        min_count = int(low or 0)
        max_count = min_count if not comma else int(high) if high and high != "-1" else None
        if max_count is not None and max_count < min_count:
            raise self.source.syntax_error(
                token.span, f"no count is from {min_count} to {max_count}", "swap the bounds"
            )
        return min_count, max_count

    def _refuse_empty(self, group: _OpenGroup, token: Token) -> None:
        """Refuse an empty alternative, except in notations where rules end with their lines.

        And in empty parentheses.
        """
        if group.items or self.notation.ends_at_line or (token.kind == ")" and not group.alternatives):
            return
        raise self.source.syntax_error(token.span, "an alternative is empty", 'write "" for the empty text')

    def _refuse_outside(self, token: Token) -> None:
        if token.kind == "|":
            raise self.source.syntax_error(
                token.span,
                "a line begins with |, but the rule ended with the line before",
                "put | at the end of that line, or the alternatives in parentheses",
            )
        raise self.source.syntax_error(token.span, "a rule is expected here", "write: name ::= expression")


def read(text: str, root: str, path: str | Path | None, limits: Limits, notation: Notation) -> Grammar:
    """Read a grammar; errors name the file ``path``.

    Raises:
        GrammarSyntaxError: the text is malformed, or a name is undefined or defined twice.
        UnsupportedFeature: a construct is refused by name.
        GrammarError: there is no rule called ``root``.
        LimitExceeded: the text is too large.
        ArgumentError: it is no text, or the path of a file.
    """
    with counted(limits):
        return _read(text, root, path, limits, notation)


def _read(text: str, root: str, path: str | Path | None, limits: Limits, notation: Notation) -> Grammar:
    check_text(text, limits, notation.subject)
    source = GrammarSource(text, "" if path is None else str(path), kind=notation.subject)
    parser = Parser(source, notation, limits)
    definitions = parser.definitions()
    for name, token in parser.references.items():
        if name not in definitions:
            raise source.syntax_error(token.span, f"no rule is called {name!r}", _similar(name, definitions))
    if root not in definitions:
        raise source.no_start(root, list(definitions), "root", " ::=")
    _check_regular(parser, definitions)
    body = ir.Reference(root)
    used = {name for name, _ in used_rules({name: each.term for name, each in definitions.items()}, body)}
    flat = ir.Rules([(name, each.term) for name, each in definitions.items() if name in used], body)
    return Described.deferred(None, _Read(flat, notation.source, parser.entries, definitions))


class _Read:
    """A grammar that was read; the remarks of its report are made on first use."""

    def __init__(
        self, flat: ir.Rules, source: str, entries: list[ReportEntry], definitions: Mapping[str, Definition]
    ) -> None:
        self._flat = flat
        self._source = source
        self._entries = entries
        self._definitions = definitions

    def item(self) -> Grammar:
        """The rules."""
        return self._flat

    def description(self) -> Description:
        """The report."""
        entries = _remarked(self._entries, self._definitions, self._flat)
        return Description(source=self._source, entries=tuple(entries))


def _check_regular(parser: Parser, definitions: Mapping[str, Definition]) -> None:
    """Refuse recursion in rules that must be regular."""
    if not parser.regular:
        return
    below = {name: _references(definition.term) for name, definition in definitions.items()}
    recursive = {name for group in cyclic_components(below) for name in group}
    for name, (token, option) in parser.regular.items():
        seen, stack = {name}, [name]
        while stack:
            used = stack.pop()
            if used in recursive:
                raise parser.source.syntax_error(
                    token.span,
                    f"{option!r} needs a rule without recursion, and {used!r} is recursive",
                    "write that rule without recursion",
                )
            stack += below[used] - seen
            seen |= below[used]


def _references(term: Grammar) -> set[str]:
    return {node.name for node in ir.postorder(term) if isinstance(node, ir.Reference)}


def _remarked(
    entries: Iterable[ReportEntry], definitions: Mapping[str, Definition], flat: ir.Rules
) -> Iterable[ReportEntry]:
    """The entries, with remarks on rules."""
    used = {name for name, _ in flat.rules}
    positions = LeftPositions(flat, Nullability(dict(flat.rules)))
    recursive = {name for group in left_recursive(flat, positions) for name in group}
    rules = {f"rule {name}": name for name in definitions}
    for entry in entries:
        name = rules.get(entry.keyword)
        if name is not None and name not in used:
            yield replace(entry, status=Status.ANNOTATION, detail="not reachable from the root")
        elif name is not None and name in recursive:
            yield replace(entry, detail="left-recursive: llama.cpp refuses it, here it is rewritten")
        else:
            yield entry


def _similar(name: str, definitions: Mapping[str, Definition]) -> str:
    lowered = name.lower().replace("_", "-")
    for known in definitions:
        if known.lower().replace("_", "-") == lowered:
            return f"write {known!r}: names are compared letter by letter"
    return f"define it: {name} ::= ..."
