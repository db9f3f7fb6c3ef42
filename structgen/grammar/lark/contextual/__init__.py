"""Lark grammars as Lark's LALR parser with its contextual lexer reads them: ``lark(text, lexer="contextual")``.

``docs/lexing.md`` says what that language is.  The parser and its lexers are a deterministic pushdown automaton,
which is written as an ordinary grammar.  Reading order: ``tables`` (Lark's own), ``patterns``, ``alphabet``,
``machine`` (which match ``re`` finds), ``guards``, ``terms``, ``lexemes``, ``contexts``, ``outlines``, ``variants``,
``assembly``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.grammar.lark.contextual.admission import check_admissible
from structgen.grammar.lark.contextual.alphabet import Alphabet
from structgen.grammar.lark.contextual.assembly import Assembly
from structgen.grammar.lark.contextual.contexts import Contexts
from structgen.grammar.lark.contextual.guards import Guards
from structgen.grammar.lark.contextual.lexemes import Lexemes
from structgen.grammar.lark.contextual.machine import Machine
from structgen.grammar.lark.contextual.outlines import make_outlines
from structgen.grammar.lark.contextual.patterns import Refusal, classes_of, term_of
from structgen.grammar.lark.contextual.tables import Tables, make_tables
from structgen.grammar.lark.contextual.variants import Variants
from structgen.grammar.lark.definitions import Definition
from structgen.grammar.lark.expressions import Budget
from structgen.grammar.lark.library import Library
from structgen.grammar.lark.rules import RuleBuilder
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Rules
from structgen.grammar.report import Described, Description, ReportEntry, Status

__all__ = ["contextual"]

_ANY: Final = 'say it without, or use lexer="any"'
_POLICIES: Final = (
    ("division into terminals", "longest match, as Lark's contextual lexer"),
    ("ignored terminals", "where the lexer finds them"),
)


def contextual(
    library: Library, definition: Definition, start: str, indentation: object | None, limits: Limits
) -> Described:
    """The texts that ``lark.Lark(text, start=start, parser="lalr", lexer="contextual")`` accepts, with a report.

    Args:
        library: the grammar and its imports.
        definition: the start rule.
        start: its name.
        indentation: must be ``None``: blocks by indentation are not read this way.
        limits: ``grammar_nodes`` and ``regular_states`` bound the work.

    Raises:
        GrammarSyntaxError: a part of the grammar is malformed, or Lark refuses it: it need not be LALR(1).
        GrammarError: Lark refuses it for a reason that belongs to no place.
        UnsupportedFeature: a construct that Lark has not, or a regexp that needs more than a finite automaton or looks
            further than at one character.
        UnsatisfiableGrammar: no text can be read.
        LimitExceeded: the grammar is too large, or its terminals are too hard to tell apart.
    """
    source = library.main.source
    if indentation is not None:
        raise GrammarError(
            source.subject,
            "indentation and the contextual lexer do not go together",
            evidence="blocks are read in every division into terminals",
            remedy='use lexer="any"',
        )
    check_admissible(library, limits)
    with suppress(UnsupportedFeature):  # some of these Lark's lexers can do; other errors are told better than by Lark
        RuleBuilder(library, Budget(limits)).build(definition)
    entries = [entry for module in library.modules.values() if not module.source.is_builtin for entry in module.entries]
    description = Description(source="lark", entries=tuple(_enforced(entry) for entry in entries), policies=_POLICIES)
    return Described(_term(library, start, limits), description)


def _enforced(entry: ReportEntry) -> ReportEntry:
    """The entry of a construct that decides here which texts belong to the language."""
    if entry.keyword.startswith("priority "):
        return replace(entry, status=Status.ENFORCED, detail="decides what the lexer and the parser prefer")
    if entry.keyword == "%ignore":
        return replace(entry, detail="may stand wherever the lexer finds it")
    return entry


def _term(library: Library, start: str, limits: Limits) -> Grammar:
    subject = library.main.source.subject
    try:
        tables = make_tables(library, start, limits)
        contexts = Contexts(tables, _lexemes(tables, limits, subject))
    except Refusal as refusal:
        raise _refused(library, refusal.terminal, refusal) from None
    points, outlines, root = make_outlines(tables, contexts.places, limits, subject)
    variants = Variants(points, outlines, contexts, limits, subject)
    starts = variants.solve(root)
    if not any(starts.values()):
        raise UnsatisfiableGrammar(
            subject, "no text is divided by Lark's lexer into terminals that the rules allow", remedy='use lexer="any"'
        )
    named = {name for name in tables.trees if name in library.main.definitions or name in library.main.imports}
    named |= {name for name in tables.trees if not name.startswith("__") and "__" in name}  # of imported files
    assembly = Assembly(variants, named, subject)
    return Rules(assembly.rules, assembly.body(contexts.first(), starts))


def _lexemes(tables: Tables, limits: Limits, subject: str) -> Lexemes:
    alphabet = Alphabet(ranges for tree in tables.trees.values() for ranges in classes_of(tree))
    machine = Machine(tables.trees, alphabet, limits, subject)
    guards = Guards(machine, limits.regular_states, subject)
    plain = {name: term for name, tree in tables.trees.items() if (term := term_of(tree)) is not None}
    return Lexemes(machine, guards, plain, limits.regular_states, subject)


def _refused(library: Library, terminal: str, refusal: Refusal) -> GrammarError:
    source = library.main.source
    definition = library.main.definitions.get(terminal)
    position = definition.position if definition is not None else 0
    return source.refused(position, refusal.feature, refusal.problem, _ANY)
