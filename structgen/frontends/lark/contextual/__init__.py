"""Lark grammars as Lark's LALR parser with its contextual lexer reads them: ``lark(text, lexer="contextual")``.

``docs/lexing.md`` defines the language.  The parser and its lexers are a deterministic pushdown automaton, which is
written as an ordinary grammar.  Reading order: ``table`` (Lark's own), ``pattern``, ``lexer_automaton`` (which match
``re`` finds), ``graph``, ``lexeme``, ``context``, ``variant``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark.contextual.admission import check_admissible
from structgen.frontends.lark.contextual.context import Contexts
from structgen.frontends.lark.contextual.lexeme import Guards, Lexemes
from structgen.frontends.lark.contextual.lexer_automaton import LexerAutomaton
from structgen.frontends.lark.contextual.pattern import LetterAlphabet, PatternRefusal, classes_of, term_of
from structgen.frontends.lark.contextual.table import Tables, make_outlines, make_tables
from structgen.frontends.lark.contextual.variant import Assembly, Variants
from structgen.frontends.lark.definition import Definition, NodeBudget
from structgen.frontends.lark.library import Library
from structgen.frontends.lark.rule import RuleBuilder
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Rules
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status

__all__ = ["contextual"]

_REMEDY: Final = 'rewrite the terminal without it, or use lexer="any"'
_POLICIES: Final = (
    ("division into terminals", "longest match, as Lark's contextual lexer"),
    ("ignored terminals", "where the lexer finds them"),
)


def contextual(
    library: Library, definition: Definition, start: str, indentation: object | None, limits: Limits
) -> Described:
    """Return the language that ``lark.Lark(text, start=start, parser="lalr", lexer="contextual")`` accepts.

    Args:
        library: the grammar and its imports.
        definition: the start rule.
        start: the name of the start rule.
        indentation: must be None: blocks by indentation are not supported here.
        limits: ``grammar_nodes`` and ``regular_states`` bound the work.

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
    check_admissible(library, limits)
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
    return source.refused(position, refusal.feature, refusal.problem, _REMEDY)
