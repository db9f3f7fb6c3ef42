"""GBNF (llama.cpp) and EBNF (xgrammar): ``name ::= expression`` with the operators of regular expressions.

``docs/gbnf.md`` states the syntax and where the two notations differ.

Sources: llama.cpp, ``grammars/README.md`` and ``src/llama-grammar.cpp``; xgrammar,
``docs/defining_structures/ebnf_grammar.md`` and ``cpp/grammar_parser.cc``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from structgen.frontends.bnf.ebnf_macro import MACROS, look_ahead
from structgen.frontends.bnf.parser import Parser, read
from structgen.frontends.bnf.scanner import Notation, Token
from structgen.frontends.free_text import shortest
from structgen.grammar import nodes as ir
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Status

__all__ = ["apply_options", "ebnf", "gbnf"]

_DEFAULT_LIMITS: Final = Limits()
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_CODE_POINTS: Final = {"u": re.compile(r"[0-9A-Fa-f]{4}"), "U": re.compile(r"[0-9A-Fa-f]{8}")}
_TOKEN_ID: Final = re.compile(r"<\[([0-9]{1,10})\]>")


def gbnf(text: str, *, root: str = "root", path: str | Path | None = None, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    r"""Read a grammar in GBNF, the notation of llama.cpp.

    Args:
        text: the grammar.
        root: the start rule.
        path: the file that ``text`` comes from; errors name it.
        limits: bounds on the size of the grammar (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Returns:
        A grammar whose rules keep their names. Left recursion, which llama.cpp refuses, is reported and supported.

    Raises:
        GrammarSyntaxError: the text is malformed, or a name is undefined or defined twice; the error shows the
            position.
        UnsupportedFeature: a construct is refused by name.
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
    """One token: ``<[1000]>`` by its id, ``<think>`` by its text; with ``!``, any other token."""
    inside = token.text.removeprefix("!")
    match = _TOKEN_ID.fullmatch(inside)
    if match is None and (inside.startswith("<[") or inside == "<>"):
        raise parser.source.syntax_error(token.span, "the token is malformed", "write <[1000]> or <think>")
    named: str | int = inside if match is None else int(match[1])
    if isinstance(named, int) and named > ir.MAX_TOKEN_ID:
        raise parser.source.syntax_error(token.span, f"no token has an id above {ir.MAX_TOKEN_ID}")
    parser.note(f"token {token.text}", token, Status.ENFORCED)
    return ir.TokenSet([named], is_excluded=inside != token.text)


def _no_options(parser: Parser, token: Token, term: Grammar) -> Grammar:
    return term  # names have no brackets here


_GBNF: Final = Notation(
    source="gbnf",
    subject="gbnf grammar",
    name=r"[A-Za-z0-9_-]+",
    tokens={"any": r"\.", "token": r"!?<[^>\r\n]*>"},
    ends_at_line=True,
    hexadecimal={"x": re.compile(r"[0-9A-Fa-f]{2}"), **_CODE_POINTS},
    string_escapes=_ESCAPES,
    class_escapes=_ESCAPES,
    macros={},
    elements={"token": _token},
    options=_no_options,
)


_ONE_OPTION: Final = re.compile(r'\s*([A-Za-z_]+)\s*(?:=\s*("[^"]*"|[0-9.eE+-]+)\s*)?(,|$)')
_STRICT: Final = "strictly; xgrammar lets a part that cannot end there run over"
_MADE_BY_XGRAMMAR: Final = (
    "stop_capture",
    "capture_hidden_suffix_bytes",
    "capture_hidden_stop_bytes",
    "capture_hidden_body_rule_id",
    "capture_hidden_marker_rule_id",
)


def apply_options(parser: Parser, token: Token, term: Grammar) -> Grammar:
    """Apply the options of a rule to its expression.

    Raises:
        GrammarSyntaxError: an option is unknown, given twice, or has no valid value.
        UnsupportedFeature: an option is refused by name.
    """
    name, _, inside = token.text.partition("[")
    values: dict[str, str | None] = {}
    position, text = 0, inside[:-1]
    while position < len(text):
        match = _ONE_OPTION.match(text, position)
        if match is None or match[1] in values:
            raise _malformed(parser, token, "the options are malformed, or one is given twice")
        values[match[1]] = match[2]
        position = match.end()
    if not values:
        raise _malformed(parser, token, "there are no options in the brackets")
    for option in values:
        if option in _MADE_BY_XGRAMMAR:
            raise parser.source.refused(
                token.start,
                option,
                f"the option {option!r} is internal to xgrammar",
                "write the marker as a rule of its own, and capture the text before it",
            )
        if option not in ("lazy", "max_tokens", "max_chars", "temperature", "capture"):
            raise _malformed(parser, token, f"the option {option!r} is not known")
    if "lazy" in values:
        _without_value(parser, token, values, "lazy")
        term = shortest(term)
        parser.regular[name] = token, "lazy"
        parser.note("option lazy", token, Status.ENFORCED, "the strings without a shorter prefix that matches")
    if "max_tokens" in values or "max_chars" in values:
        tokens, characters = (_number(parser, token, values, option) for option in ("max_tokens", "max_chars"))
        term = ir.Budget(term, tokens, characters)
        parser.note("option max_tokens" if characters is None else "option max_chars", token, Status.ENFORCED, _STRICT)
    if "temperature" in values:
        term = ir.Tempered(term, _temperature(parser, token, values["temperature"]))
    if "capture" in values:
        value = values["capture"]
        if value == '""' or (value is not None and not value.startswith('"')):
            raise _malformed(parser, token, "capture has no name")
        term = ir.Capture(name if value is None else value[1:-1], term)
        parser.note("option capture", token, Status.ENFORCED)
    return term


def _number(parser: Parser, token: Token, values: dict[str, str | None], option: str) -> int | None:
    if option not in values:
        return None
    value = values[option] or ""
    if not value.isdecimal() or not value.isascii() or len(value) > 10:
        raise _malformed(parser, token, f"{option} has no number")
    return int(value)


def _temperature(parser: Parser, token: Token, value: str | None) -> float:
    try:
        found = float(value or "")
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise _malformed(parser, token, "temperature has no finite number of at least 0")
    parser.note("option temperature", token, Status.ANNOTATION, "says how tokens are sampled, not which are allowed")
    return found


def _without_value(parser: Parser, token: Token, values: dict[str, str | None], option: str) -> None:
    if values[option] is not None:
        raise _malformed(parser, token, f"{option} takes no value")


def _malformed(parser: Parser, token: Token, problem: str) -> Exception:
    return parser.source.syntax_error(token.span, problem, 'write for instance name[capture="x", max_chars=20] ::= ...')


_CONTROLS: Final = dict(zip("abfnrtv0e", "\a\b\f\n\r\t\v\0\x1b", strict=True))
_IN_STRING: Final = {mark: mark for mark in "'\"?\\/"} | _CONTROLS
_IN_CLASS: Final = _IN_STRING | {mark: mark for mark in "^$.*+()[]{}|-"}


def ebnf(text: str, *, root: str = "root", path: str | Path | None = None, limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    r"""Read a grammar in EBNF, the notation of xgrammar; arguments, result and errors as for :func:`gbnf`.

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
    hexadecimal={"x": re.compile(r"[0-9A-Fa-f]+"), **_CODE_POINTS},
    string_escapes=_IN_STRING,
    class_escapes=_IN_CLASS,
    macros=MACROS,
    elements={"look_ahead": look_ahead},
    options=apply_options,
)
