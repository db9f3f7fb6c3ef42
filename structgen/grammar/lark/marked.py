"""Grammars whose texts have lines, blocks or ends of words: what their marks mean."""

from __future__ import annotations

from structgen.errors import GrammarError
from structgen.grammar.indentation import line_end
from structgen.grammar.indentation.marks import CLOSE, DEDENT, INDENT, Unbalanced, nested
from structgen.grammar.indentation.product import product
from structgen.grammar.indentation.settings import Indentation
from structgen.grammar.lark.definitions import Definition, span_of
from structgen.grammar.lark.library import Library
from structgen.grammar.lark.rules import RuleBuilder
from structgen.grammar.lark.syntax import tokens_of
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Rules

__all__ = ["without_marks"]


def without_marks(
    builder: RuleBuilder, body: Grammar, library: Library, indentation: Indentation | None, limits: Limits
) -> Rules:
    """Return the rules of ``builder``, and ``body``, with marks given their meaning.

    Raises:
        GrammarSyntaxError: a block or bracket begins in one rule and ends in another, or the newline terminal is none.
        GrammarError: there is no newline terminal, or a mark stands where it has no meaning.
        LimitExceeded: the rules have too many variants.
    """
    rules: dict[str, Grammar] = {}
    for name, term in builder.rules.items():
        try:
            rules[name] = nested(term)
        except Unbalanced as error:
            raise _unbalanced(builder.definitions[name], error.mark, indentation) from None
    newline = None if indentation is None else _line_end(builder, library, indentation)
    return product(
        rules, nested(body), indentation=indentation, newline=newline, ignored=builder.ignored, limits=limits
    )


def _line_end(builder: RuleBuilder, library: Library, indentation: Indentation) -> Grammar:
    for name in indentation.newline:
        found = library.find(library.main, name)
        if found is not None:
            try:
                return line_end(builder.terminal(found), indentation)
            except GrammarError as error:
                span = (found.position, found.position + len(found.name))
                raise found.module.source.syntax_error(span, error.problem, error.remedy) from None
    names = " or ".join(indentation.newline)
    raise GrammarError(
        library.main.source.subject,
        f"there is no terminal called {names}, which would end a line",
        remedy="define it, or give its name: Indentation(newline=...)",
    )


def _unbalanced(definition: Definition, mark: str, indentation: Indentation | None) -> GrammarError:
    source = definition.module.source
    what, partner = {
        INDENT.name: ("a block begins", "does not end"),
        DEDENT.name: ("a block ends", "does not begin"),
        CLOSE.name: ("a bracket closes", "does not open"),
    }.get(mark, ("a bracket opens", "does not close"))
    position = definition.position
    span = (position, position + len(definition.name))
    if indentation is not None and mark in (INDENT.name, DEDENT.name):
        wanted = indentation.indent if mark == INDENT.name else indentation.dedent
        span = next((span_of(token) for token in tokens_of(definition.tree) if token == wanted), span)
    return source.syntax_error(
        span,
        f"{what} here and {partner} in the same sequence of rule {definition.name!r}",
        "put both into one sequence",
    )
