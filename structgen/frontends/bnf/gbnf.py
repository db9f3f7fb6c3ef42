"""GBNF, the notation of llama.cpp for grammars; ``docs/gbnf.md`` says what is read and where the two differ.

Source: llama.cpp, ``grammars/README.md`` and ``src/llama-grammar.cpp``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from structgen.frontends.bnf.parser import Parser, read
from structgen.frontends.bnf.scanner import Notation, Token
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import MAX_TOKEN_ID, Grammar, TokenSet
from structgen.grammar.nodes.description import Status

__all__ = ["gbnf"]

_DEFAULT_LIMITS: Final = Limits()
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_TOKEN_ID: Final = re.compile(r"<\[([0-9]{1,10})\]>")


def gbnf(text: str, *, root: str = "root", path: str | Path | None = None, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    r"""The texts of a grammar in GBNF, the notation of llama.cpp.

    Args:
        text: the grammar.
        root: the rule to start from.
        path: the file that ``text`` comes from; errors name it.
        limits: bounds on the size of the grammar (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Returns:
        A grammar whose rules keep their names.  Left recursion, which llama.cpp refuses, is noted and stays in it.

    Raises:
        GrammarSyntaxError: the text is malformed, or a name is not defined or defined twice; the error points there.
        UnsupportedFeature: a construct that is refused by name.
        GrammarError: there is no rule called ``root``.
        LimitExceeded: the grammar is too large.

    Complexity: linear in the text.

    >>> print(gbnf('root ::= "(" root ")" | [0-9]{1,3}'))
    rules {
      root = "(" root ")" | [0-9]{1,3}
    } in root
    """
    return read(text, root, path, limits, _GBNF)


def _token(parser: Parser, token: Token) -> Grammar:
    """One token: ``<[1000]>`` by its id, ``<think>`` by its text, and with ``!`` before it any other."""
    inside = token.text.removeprefix("!")
    match = _TOKEN_ID.fullmatch(inside)
    if match is None and (inside.startswith("<[") or inside == "<>"):
        raise parser.source.syntax_error(token.span, "the token is malformed", "write <[1000]> or <think>")
    named: str | int = inside if match is None else int(match[1])
    if isinstance(named, int) and named > MAX_TOKEN_ID:
        raise parser.source.syntax_error(token.span, f"no token has an id above {MAX_TOKEN_ID}")
    parser.note(f"token {token.text}", token, Status.ENFORCED)
    return TokenSet([named], is_excluded=inside != token.text)


def _no_options(parser: Parser, token: Token, term: Grammar) -> Grammar:
    return term  # names have no brackets here


_GBNF: Final = Notation(
    source="gbnf",
    subject="gbnf grammar",
    name=r"[A-Za-z0-9_-]+",
    tokens={"any": r"\.", "token": r"!?<[^>\r\n]*>"},
    ends_at_line=True,
    hexadecimal={
        "x": re.compile(r"[0-9A-Fa-f]{2}"),
        "u": re.compile(r"[0-9A-Fa-f]{4}"),
        "U": re.compile(r"[0-9A-Fa-f]{8}"),
    },
    string_escapes=_ESCAPES,
    class_escapes=_ESCAPES,
    macros={},
    elements={"token": _token},
    options=_no_options,
)
