r"""Texts whose lines are indented by their nesting: blocks, in programs of grammars and in Lark grammars.

``docs/indentation.md`` states the language.  Reading order: ``settings``, ``marks``, ``facts``, ``product``.
"""

from __future__ import annotations

from typing import Final

from structgen.errors import GrammarError
from structgen.frontends.indentation.marks import DEDENT, INDENT, NEWLINE, Indentation, nested
from structgen.frontends.indentation.product import product
from structgen.grammar.algebra import joined
from structgen.grammar.flattening import is_empty
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    Repeat,
    Rules,
    literal,
)
from structgen.grammar.scopes import resolve

__all__ = ["NEWLINE", "Indentation", "block", "indented", "line_end"]

_DEFAULT_LIMITS: Final = Limits()
_FOUR_BLANKS: Final = Indentation()
_BLANKS: Final = Repeat(CharClass([(9, 9), (32, 32)]))
_ANY: Final = Repeat(ANY_CHAR)
_LINE_ENDS: Final = joined([literal("\n"), Repeat(joined([_BLANKS, literal("\n")]))])
"""The end of a line, and blank lines after it."""


def block(lines: Grammar) -> Grammar:
    """The end of a line, and ``lines`` in a block that is deeper than the line before.

    Every line of ``lines`` ends with ``NEWLINE``.  The term has a meaning inside of :func:`indented` only.
    """
    return joined([NEWLINE, INDENT, lines, DEDENT])


def indented(
    lines: Grammar,
    indentation: Indentation = _FOUR_BLANKS,
    *,
    newline: Grammar = _LINE_ENDS,
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    r"""The texts of ``lines`` in which each line has the width of the block that it stands in.

    Args:
        lines: a term with ``NEWLINE`` at the end of each line, and :func:`block`, whose rules may hold both.
        indentation: widths and characters; its names and brackets are for Lark grammars.
        newline: what ends a line, up to and with its last newline: blank lines and lines of comments are part of it.
        limits: ``grammar_nodes`` bounds the rules that are made.

    Raises:
        GrammarError: ``lines`` refers to a rule that is not there, or a block stands where it has no meaning.
        LimitExceeded: there are too many rules.

    Complexity: linear in the size of the rules that hold blocks, times the widths.

    >>> from structgen.grammar.nodes import Reference, choice
    >>> line = choice("pass" + NEWLINE, "if x:" + block(Reference("line").many(1)))
    >>> print(indented(Rules({"line": line}, Reference("line").many(1)), Indentation(step=1, max_width=1)))
    let
      $1 = ([\t ]* "\n")*;
    in
    rules {
      line = "pass\n" $1 | "if x:\n" $1 line.2 line.2*;
      line.2 = " pass\n" $1
    } in line line*
    """
    marks = {mark.name: EMPTY for mark in (NEWLINE, INDENT, DEDENT)}
    flat = resolve(Rules(marks, lines), limits)
    rules = {name: nested(term) for name, term in flat.rules if name not in marks}
    return product(rules, nested(flat.body), indentation=indentation, newline=newline, ignored=None, limits=limits)


def line_end(newline: Grammar, indentation: Indentation) -> Grammar:
    r"""Return what a terminal for newlines says of the end of a line, up to and with its last newline.

    Such a terminal (``/(\r?\n[\t ]*)+/``) also takes the indentation of the next line, and may take any.

    Raises:
        GrammarError: it does not take every indentation there is, or only with one.
    """
    ends = Intersection((newline, joined([_ANY, literal("\n")])))
    whole = Intersection((newline, joined([_ANY, literal("\n"), _BLANKS])))
    further = joined([ends, Repeat(literal(indentation.character))])
    if is_empty(ends):
        raise GrammarError(
            "newline terminal", "it has no text that ends with a newline", remedy=r"write /(\r?\n[\t ]*)+/"
        )
    if not is_empty(Intersection((further, Complement(newline)))) or not is_empty(
        Intersection((whole, Complement(joined([ends, _BLANKS]))))
    ):
        raise GrammarError(
            "newline terminal",
            "its texts with and without the indentation of the next line differ otherwise",
            remedy=r"let it end with [\t ]*, as in /(\r?\n[\t ]*)+/",
        )
    return ends
