r"""Languages with indented blocks, for grammars built in Python and for Lark grammars.

``docs/reference/indentation.md`` states the language. Reading order: ``marks``, ``facts``, ``product``.
"""

from __future__ import annotations

from typing import Final

from structgen.errors import GrammarError
from structgen.frontends.indentation.marks import DEDENT, INDENT, NEWLINE, Indentation, nested
from structgen.frontends.indentation.product import product
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import joined
from structgen.grammar.flattening import is_empty
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.scopes import resolve

__all__ = ["NEWLINE", "Indentation", "block", "indented", "line_end"]

_DEFAULT_LIMITS: Final = Limits()
_FOUR_BLANKS: Final = Indentation()
_BLANKS: Final = ir.Repeat(ir.CharClass([(9, 9), (32, 32)]))
_ANY: Final = ir.Repeat(ir.ANY_CHAR)
_LINE_ENDS: Final = joined([ir.literal("\n"), ir.Repeat(joined([_BLANKS, ir.literal("\n")]))])
"""The end of a line, and blank lines after it."""


def block(lines: Grammar) -> Grammar:
    """The end of a line, then ``lines`` in a deeper block.

    Every line of ``lines`` ends with ``NEWLINE``.  Only valid inside :func:`indented`.
    """
    return joined([NEWLINE, INDENT, lines, DEDENT])


def indented(
    lines: Grammar,
    indentation: Indentation = _FOUR_BLANKS,
    *,
    newline: Grammar = _LINE_ENDS,
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    r"""The strings of ``lines`` in which each line is indented by the width of its block.

    Args:
        lines: a term with ``NEWLINE`` at the end of each line, and :func:`block`, whose rules may hold both.
        indentation: widths and characters; its names and brackets are for Lark grammars.
        newline: the end of a line, up to and including its last newline; it includes blank lines and comment lines.
        limits: ``grammar_nodes`` bounds the rules that are made.

    Raises:
        GrammarError: ``lines`` refers to a missing rule, or a block is in an invalid position.
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
    marks = {mark.name: ir.EMPTY for mark in (NEWLINE, INDENT, DEDENT)}
    flat = resolve(ir.Rules(marks, lines), limits)
    rules = {name: nested(term) for name, term in flat.rules if name not in marks}
    return product(rules, nested(flat.body), indentation=indentation, newline=newline, ignored=None, limits=limits)


def line_end(newline: Grammar, indentation: Indentation) -> Grammar:
    r"""Return the part of a newline terminal up to and including its last newline.

    Such a terminal (``/(\r?\n[\t ]*)+/``) also matches the indentation of the next line, which may be any.

    Raises:
        GrammarError: it does not match exactly with every indentation.
    """
    ends = ir.Intersection((newline, joined([_ANY, ir.literal("\n")])))
    whole = ir.Intersection((newline, joined([_ANY, ir.literal("\n"), _BLANKS])))
    further = joined([ends, ir.Repeat(ir.literal(indentation.character))])
    if is_empty(ends):
        raise GrammarError(
            "newline terminal", "it matches no string that ends with a newline", remedy=r"write /(\r?\n[\t ]*)+/"
        )
    if not is_empty(ir.Intersection((further, ir.Complement(newline)))) or not is_empty(
        ir.Intersection((whole, ir.Complement(joined([ends, _BLANKS]))))
    ):
        raise GrammarError(
            "newline terminal",
            "its matches with and without the indentation of the next line differ otherwise",
            remedy=r"let it end with [\t ]*, as in /(\r?\n[\t ]*)+/",
        )
    return ends
