"""Lark grammars as Lark's LALR parser with its contextual lexer reads them: ``lark(text, lexer="contextual")``.

``docs/reference/lexing.md`` defines the language.  The parser and its lexers are a deterministic pushdown automaton,
which is written as an ordinary grammar.  Reading order: ``table`` (Lark's own), ``pattern``, ``lexer_automaton`` (which
match ``re`` finds), ``graph``, ``lexeme``, ``context``, ``variant``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from lark import Tree

from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark.contextual.context import Contexts
from structgen.frontends.lark.contextual.lexeme import Guards, Lexemes
from structgen.frontends.lark.contextual.lexer_automaton import LexerAutomaton
from structgen.frontends.lark.contextual.outline import make_outlines
from structgen.frontends.lark.contextual.pattern import LetterAlphabet, PatternRefusal, classes_of, term_of
from structgen.frontends.lark.contextual.table import Tables, make_tables
from structgen.frontends.lark.contextual.variant import Assembly, Variants
from structgen.frontends.lark.definition import Definition, Module, NodeBudget, bounds_of
from structgen.frontends.lark.library import Library
from structgen.frontends.lark.rule import RuleBuilder
from structgen.frontends.lark.syntax import Node, Token, fold, tokens_of
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import Grammar, Rules
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status

__all__ = ["contextual"]

_REMEDY: Final = "rewrite the terminal without it"
_POLICIES: Final = (
    ("division into terminals", "longest match, as Lark's contextual lexer"),
    ("ignored terminals", "where the lexer finds them"),
)


def contextual(
    library: Library, definition: Definition, start: str, indentation: object | None, limits: Limits
) -> Described:
    """Return the language that ``lark.Lark(text, start=start, parser="lalr", lexer="contextual")`` accepts.

    ``limits.grammar_nodes`` and ``limits.regular_states`` bound the work.

    Raises:
        GrammarSyntaxError: a part of the grammar is malformed, or Lark refuses it, for instance as not LALR(1).
        GrammarError: Lark refuses it for a reason without a position.
        UnsupportedFeature: a construct that Lark does not have, or a regexp that needs more than a finite automaton or
            looks further than one character.
        UnsatisfiableGrammar: no string is accepted.
        LimitExceeded: the grammar is too large, or its terminals are too hard to tell apart.
    """
    source = library.main.source
    if indentation is not None:
        raise GrammarError(
            source.subject,
            "indentation cannot be combined with the contextual lexer",
            evidence="blocks are read in every division into terminals",
            remedy='use lexer="any"',
        )
    _check_admissible(library, limits)
    with suppress(UnsupportedFeature):  # Lark's lexers support some of these; our other errors are clearer than Lark's
        RuleBuilder(library, NodeBudget(limits)).build(definition)
    entries = [entry for module in library.modules.values() if not module.source.is_builtin for entry in module.entries]
    description = Description(source="lark", entries=tuple(_enforced(entry) for entry in entries), policies=_POLICIES)
    return Described(_term(library, start, limits), description)


def _enforced(entry: ReportEntry) -> ReportEntry:
    """Return the report entry of a construct that affects the language here."""
    if entry.keyword.startswith("priority "):
        return replace(entry, status=Status.ENFORCED, detail="decides what the lexer and the parser prefer")
    if entry.keyword == "%ignore":
        return replace(entry, detail="allowed wherever the lexer finds it")
    return entry


def _term(library: Library, start: str, limits: Limits) -> Grammar:
    subject = library.main.source.subject
    try:
        tables = make_tables(library, start, limits)
        contexts = Contexts(tables, _lexemes(tables, limits, subject))
    except PatternRefusal as refusal:
        raise _refused(library, refusal.terminal, refusal) from None
    points, outlines, root = make_outlines(tables, contexts.state_classes, limits, subject)
    variants = Variants(points, outlines, contexts, limits, subject)
    starts = variants.solve(root)
    if not any(starts.values()):
        raise UnsatisfiableGrammar(
            subject, "Lark's lexer divides no string into terminals that the rules allow", remedy='use lexer="any"'
        )
    named = {name for name in tables.trees if name in library.main.definitions or name in library.main.imports}
    named |= {name for name in tables.trees if not name.startswith("__") and "__" in name}  # of imported files
    assembly = Assembly(variants, named, subject)
    return Rules(assembly.rules, assembly.body(contexts.first(), starts))


def _lexemes(tables: Tables, limits: Limits, subject: str) -> Lexemes:
    alphabet = LetterAlphabet(ranges for tree in tables.trees.values() for ranges in classes_of(tree))
    machine = LexerAutomaton(tables.trees, alphabet, limits, subject)
    guards = Guards(machine, limits.regular_states, subject)
    plain = {name: term for name, tree in tables.trees.items() if (term := term_of(tree)) is not None}
    return Lexemes(machine, guards, plain, limits.regular_states, subject)


def _refused(library: Library, terminal: str, refusal: PatternRefusal) -> GrammarError:
    source = library.main.source
    definition = library.main.definitions.get(terminal)
    position = definition.position if definition is not None else 0
    may_do = ', or use lexer="any", which reads (?!...) at the end' if refusal.feature == "look-ahead" else ""
    return source.refused(position, refusal.feature, refusal.problem, _REMEDY + may_do)


_ADMITTED_TREES: Final = frozenset(
    {"expansions", "expansion", "alias", "maybe", "repeat", "times", "range", "template"}
)
_ADMITTED_TOKENS: Final = frozenset({"RULE", "TERMINAL", "STRING", "REGEXP", "NUMBER", "OP", "TILDE"})
_SPELLINGS: Final = {"conjunction": "&", "negation": "~", "conditional": "%if", "counted": "{...}", "nested": "%lark"}
_TOKEN_SPELLINGS: Final = {"JSON": "%json", "STRUCTURED": "%regex"}
_ANY_LEXER: Final = 'only lexer="any" reads it'
_MIN_RULE_REPETITION: Final = 50
"""The smallest count for which Lark writes a repetition as rules."""
_MAX_SYMBOLS: Final = 200_000
"""Symbols that Lark may expand one rule to, before it drops equal alternatives."""
_DEFINITION_COST: Final = 40
"""Nodes that a rule or terminal counts as: Lark makes many passes over all of them."""
_DEFINITION_STEPS: Final = 400
_MAX_NESTING: Final = 100
"""Levels of terminals inside terminals: Lark inlines them by recursion, with one pass for each level."""


class _Extent(NamedTuple):
    """The size of an expression after Lark's expansion: alternatives, and the symbols of the longest."""

    alternatives: int
    length: int


def _check_admissible(library: Library, limits: Limits) -> None:
    """Refuse, before Lark loads a grammar, what Lark does not have and what it would expand too far.

    Raises:
        UnsupportedFeature: it has a construct that Lark does not have.
        LimitExceeded: its operators expand to too many alternatives, it has too many definitions, or its terminals are
            nested too deeply or have too many parts.

    Complexity: linear in the grammar.
    """
    count = sum(len(module.definitions) for module in library.modules.values() if not module.source.is_builtin)
    if count * _DEFINITION_COST > limits.grammar_nodes:
        raise LimitExceeded(
            library.main.source.subject,
            limit="grammar_nodes",
            maximum=limits.grammar_nodes,
            evidence=f"its {count} definitions count as {_DEFINITION_COST} each, for Lark's own analysis",
            remedy='use lexer="any"',
        )
    spend(_DEFINITION_STEPS * count, library.main.source.subject, f"Lark's own analysis of its {count} definitions")
    for module in library.modules.values():
        if module.options is not None:
            raise module.source.refused(0, "%llguidance", "%llguidance is no statement of Lark", _ANY_LEXER)
        for name, position in module.declared.items():
            problem = f"terminal {name} is declared, and no lexer here supplies it"
            raise module.source.refused(position, "%declare", problem, "define it, or " + _ANY_LEXER)
        for definition in _definitions(module):
            _check_constructs(definition)
            if not definition.is_terminal:
                _check_extent(definition, limits)
        for tree in module.ignored:
            _check_tree(module, tree, 0)
    _check_terminals(library, limits)


def _definitions(module: Module) -> Iterator[Definition]:
    yield from module.definitions.values()
    for changes in module.changes.values():
        for change in changes:
            yield change.definition


def _check_terminals(library: Library, limits: Limits) -> None:
    """Bound the size of terminals after inlining the terminals that they refer to."""
    done: dict[int, _Extent] = {}  # levels and parts
    for module in library.modules.values():
        for root in _definitions(module):
            stack = [root] if root.is_terminal else []
            opened: set[int] = set()
            while stack:
                definition = stack[-1]
                below = [] if id(definition) in done else list(_terminals_in(library, definition))
                waiting = [each for each in below if id(each) not in done and id(each) not in opened]
                if id(definition) not in done and waiting and id(definition) not in opened:
                    opened.add(id(definition))
                    stack += waiting
                    continue
                stack.pop()
                if id(definition) not in done:  # a recursive terminal is reported elsewhere
                    extents = [done.get(id(each), _Extent(0, 0)) for each in below]
                    levels = 1 + max((extent.alternatives for extent in extents), default=0)
                    parts = 1 + sum(extent.length for extent in extents)
                    _check_terminal(definition, levels, parts, limits)
                    done[id(definition)] = _Extent(levels, parts)


def _terminals_in(library: Library, definition: Definition) -> Iterator[Definition]:
    for token in tokens_of(definition.tree):
        inner = library.find(definition.module, str(token)) if token.type == "TERMINAL" else None
        if inner is not None:
            yield inner


def _check_terminal(definition: Definition, levels: int, parts: int, limits: Limits) -> None:
    source = definition.module.source
    if levels > _MAX_NESTING:
        raise LimitExceeded(
            source.subject_at(definition.position),
            limit="levels of terminals",
            maximum=_MAX_NESTING,
            evidence=f"terminal {definition.name!r} refers to others through more levels",
            remedy='write it out, or use lexer="any"',
        )
    if parts > _MAX_SYMBOLS:
        raise LimitExceeded(
            source.subject_at(definition.position),
            limit="grammar_nodes",
            maximum=limits.grammar_nodes,
            evidence=f"terminal {definition.name!r} has more than {_MAX_SYMBOLS} parts when its terminals are inlined",
            remedy='use lexer="any"',
        )


def _check_constructs(definition: Definition) -> None:
    source = definition.module.source
    if definition.attributes is not None or definition.has_parameter:
        what = "attributes" if definition.attributes is not None else "a parameter"
        problem = f"rule {definition.name!r} has {what}, which Lark does not know"
        raise source.refused(definition.position, what, problem, _ANY_LEXER)
    _check_tree(definition.module, definition.tree, definition.position)


def _check_tree(module: Module, root: Node, position: int) -> None:
    stack: list[object] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, Tree):
            if part.data not in _ADMITTED_TREES:
                inner = next(tokens_of(part), None)
                where = position if inner is None else inner.start_pos or 0
                shown = _SPELLINGS.get(str(part.data), str(part.data))
                raise module.source.refused(where, shown, f"{shown} is no operator of Lark", _ANY_LEXER)
            stack.extend(reversed(part.children))
        elif isinstance(part, Token) and part.type not in _ADMITTED_TOKENS:
            shown = _TOKEN_SPELLINGS.get(part.type, str(part)[:40])
            raise module.source.refused(part.start_pos or 0, shown, f"{shown} is no construct of Lark", _ANY_LEXER)


def _check_extent(definition: Definition, limits: Limits) -> None:
    module = definition.module

    def node(tree: Node, parts: list[_Extent]) -> _Extent:
        extent = _extent(module, tree, parts)
        if extent.alternatives * extent.length > _MAX_SYMBOLS:
            raise LimitExceeded(
                module.source.subject_at(definition.position),
                limit="grammar_nodes",
                maximum=limits.grammar_nodes,
                evidence=f"Lark expands the operators of rule {definition.name!r} to too many alternatives",
                remedy='split it into several rules, or use lexer="any"',
            )
        return extent

    fold(definition.tree, lambda _: _Extent(1, 1), node)


def _extent(module: Module, tree: Node, parts: list[_Extent]) -> _Extent:
    match tree.data:
        case "expansion":
            product, length = 1, 1
            for part in parts:
                product *= part.alternatives
                length += part.length
                if product * length > _MAX_SYMBOLS:
                    break
            return _Extent(product, length)
        case "expansions":
            return _Extent(sum(part.alternatives for part in parts), max(part.length for part in parts))
        case "maybe":
            return _Extent(parts[0].alternatives + 1, parts[0].length)
        case "repeat" | "times":
            return _repeated(parts[0], *bounds_of(module, tree))
        case "alias":
            return parts[0]
        case _:
            return _Extent(1, 1)


def _repeated(item: _Extent, low: int, high: int | None) -> _Extent:
    if high is None:
        return _Extent(2 - low, 1) if item.alternatives * item.length * 2 <= _MAX_SYMBOLS else _Extent(_MAX_SYMBOLS, 2)
    if high >= _MIN_RULE_REPETITION:  # rules of at most ten times the item
        return _Extent(min(20 * item.alternatives**10, _MAX_SYMBOLS), 10 * item.length)
    total = 0
    for count in range(low, high + 1):
        total += item.alternatives**count
        if total > _MAX_SYMBOLS:
            break
    return _Extent(max(total, 1), max(high * item.length, 1))
