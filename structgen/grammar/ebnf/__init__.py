"""EBNF, the notation of xgrammar for grammars; ``docs/gbnf.md`` says what is read and where the two differ.

Source: xgrammar, ``docs/defining_structures/ebnf_grammar.md`` and ``cpp/grammar_parser.cc``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from structgen.grammar.bnf.notation import Notation
from structgen.grammar.bnf.rules import read
from structgen.grammar.ebnf.macros import MACROS, look_ahead
from structgen.grammar.ebnf.options import apply_options
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar

__all__ = ["ebnf"]

_DEFAULT_LIMITS: Final = Limits()
_CONTROLS: Final = dict(zip("abfnrtv0e", "\a\b\f\n\r\t\v\0\x1b", strict=True))
_IN_STRING: Final = {mark: mark for mark in "'\"?\\/"} | _CONTROLS
_IN_CLASS: Final = _IN_STRING | {mark: mark for mark in "^$.*+()[]{}|-"}


def ebnf(text: str, *, root: str = "root", path: str | Path | None = None, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    r"""The texts of a grammar in EBNF, the notation of xgrammar.

    Args:
        text: the grammar.
        root: the rule to start from.
        path: the file that ``text`` comes from; errors name it.
        limits: bounds on the size of the grammar (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Returns:
        A grammar whose rules keep their names.

    Raises:
        GrammarSyntaxError: the text is malformed, or a name is not defined or defined twice; the error points there.
        UnsupportedFeature: a construct that is refused by name.
        GrammarError: there is no rule called ``root``.
        LimitExceeded: the grammar is too large.

    Complexity: linear in the text.

    >>> print(ebnf('root ::= item ("," item)*\nitem[capture] ::= [a-z]+'))
    rules {
      root = item ("," item)*;
      item = @item([a-z]+)
    } in root
    """
    return read(text, root, path, limits, _EBNF)


_OPTIONS: Final = r'\[[^\]"\r\n]{0,200}(?:"[^"\r\n]{0,200}"[^\]"\r\n]{0,200}){0,4}\](?=[ \t]*::=)'
_EBNF: Final = Notation(
    source="ebnf",
    subject="ebnf grammar",
    name=rf"[A-Za-z_.\-][A-Za-z0-9_.\-]*(?:{_OPTIONS})?",
    tokens={"number": r"\+?[0-9]+", "look_ahead": r"\(=", "comma": ",", "equals": "="},
    ends_at_line=False,
    hexadecimal={
        "x": re.compile(r"[0-9A-Fa-f]+"),
        "u": re.compile(r"[0-9A-Fa-f]{4}"),
        "U": re.compile(r"[0-9A-Fa-f]{8}"),
    },
    string_escapes=_IN_STRING,
    class_escapes=_IN_CLASS,
    macros=MACROS,
    elements={"look_ahead": look_ahead},
    options=apply_options,
)
