"""The syntax of Lark's grammar files: text to tree.

The parser is Lark's own (LALR), generated from the grammar below, which follows Lark's reference.  The tokens come
from one regular expression, which is several times faster than a general lexer and tells the nesting in passing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import lark
from lark.lexer import Lexer

from structgen.errors import LimitExceeded
from structgen.grammar.lark.source import Source
from structgen.grammar.limits import Limits

__all__ = ["Node", "Token", "fold", "parse"]

Token: TypeAlias = lark.Token
Node: TypeAlias = "lark.Tree[lark.Token]"

_VALUE: Final = "TERMINAL | RULE | STRING | REGEXP | range | template"
_ATOM: Final = f"{_VALUE} | maybe | _LPAR expansions _RPAR"
# Values and atoms are put in place and not made rules: each rule costs a step for every token.
_SYNTAX: Final = r"""
start: (_item? _NL)* _item?
_item: rule | terminal | ignore | declare | override | extend | import_one | import_many
rule: [RULE_MODIFIERS] RULE [parameters] [_DOT NUMBER] _COLON expansions
terminal: TERMINAL [_DOT NUMBER] _COLON expansions
parameters: _LBRACE RULE (_COMMA RULE)* _RBRACE

ignore: _IGNORE expansions
declare: DECLARE (RULE | TERMINAL)+
override: OVERRIDE (rule | terminal)
extend: EXTEND (rule | terminal)
import_one: IMPORT [DOT] path [_TO name]
import_many: IMPORT [DOT] path _LPAR name (_COMMA name)* _RPAR
path: name (_DOT name)*
?name: RULE | TERMINAL

expansions: (expansion | alias) ((_OR | _NL_OR) (expansion | alias))*
alias: expansion _TO RULE
expansion: (ATOM | repeat | times)*
repeat: (ATOM) OP
times: (ATOM) TILDE NUMBER [_DOTDOT NUMBER]
maybe: _LBRA expansions _RBRA
range: STRING _DOTDOT STRING
template: RULE _LBRACE (VALUE) (_COMMA (VALUE))* _RBRACE

%declare RULE_MODIFIERS RULE TERMINAL NUMBER STRING REGEXP OP TILDE DOT DECLARE OVERRIDE EXTEND IMPORT
%declare _DOT _DOTDOT _COLON _COMMA _OR _NL_OR _NL _TO _IGNORE _LPAR _RPAR _LBRA _RBRA _LBRACE _RBRACE
""".replace("ATOM", _ATOM).replace("VALUE", _VALUE)

# In the order of Lark's own lexer, so that what could be read in two ways is read as Lark does.  Its loops are made
# possessive, which keeps them linear; what they then read differently ends in a lone backslash, an error anyway.
_TOKEN: Final = re.compile(
    r"""
      (?P<REGEXP> /(?!/)(?:\\[/\\]|[^/])*+/[imslux]* )
    | (?P<STRING> "(?:\\["\\]|[^"\n])*+"i? )
    | (?P<COMMENT> \s*+(?://|\#)[^\n]* )
    | (?P<RULE> _?[a-z][_a-z0-9]* )
    | (?P<TERMINAL> _?[A-Z][_A-Z0-9]* )
    | (?P<_NL_OR> (?:\r?\n)++\s*+\| )
    | (?P<_NL> (?:\r?\n)++\s*+ )
    | (?P<BACKSLASH> \\[ ]*\n )
    | (?P<NUMBER> [+-]?\d+ )
    | (?P<WS> [ \t]+ )
    | (?P<OVERRIDE> %override )
    | (?P<DECLARE> %declare )
    | (?P<EXTEND> %extend )
    | (?P<_IGNORE> %ignore )
    | (?P<IMPORT> %import )
    | (?P<RULE_MODIFIERS> (?:!|![?]?|[?]!?)(?=[_a-z]) )
    | (?P<_DOTDOT> \.\. )
    | (?P<_TO> -> )
    | (?P<OP> [+*]|[?](?![a-z_]) )
    | (?P<_DOT> \.(?!\.) )
    | (?P<_LBRA> \[ ) | (?P<_LBRACE> \{ ) | (?P<_LPAR> \( )
    | (?P<_OR> \| )
    | (?P<_RBRA> \] ) | (?P<_RBRACE> \} ) | (?P<_RPAR> \) )
    | (?P<TILDE> ~ )
    | (?P<_COLON> : )
    | (?P<_COMMA> , )
    """,
    re.VERBOSE,
)
_SKIPPED: Final = frozenset({"COMMENT", "BACKSLASH", "WS"})
_OPENING: Final = frozenset({"_LPAR", "_LBRA", "_LBRACE"})
_CLOSING: Final = frozenset({"_RPAR", "_RBRA", "_RBRACE"})

# What to call a token in a message, most telling first.
_SPELLED: Final = {
    "RULE": "a rule",
    "TERMINAL": "a terminal",
    "STRING": "a string",
    "REGEXP": "a regexp",
    "NUMBER": "a number",
    "_COLON": "':'",
    "_OR": "'|'",
    "_NL": "the end of the line",
    "_RPAR": "')'",
    "_RBRA": "']'",
    "_RBRACE": "'}'",
    "_COMMA": "','",
    "_TO": "'->'",
    "_LPAR": "'('",
    "OP": "'*', '+' or '?'",
}

_Value = TypeVar("_Value")


def parse(source: Source, limits: Limits) -> Node:
    """Parse a grammar file.

    Raises:
        GrammarSyntaxError: the text is no Lark grammar.
        LimitExceeded: it is nested too deeply.

    Complexity:
        O(n).
    """
    tokens = _scan(source, limits)
    try:
        return _parser().parse(tokens)
    except lark.UnexpectedToken as error:
        raise _unexpected(source, error) from None


def fold(root: Node, leaf: Callable[[Token], _Value], node: Callable[[Node, list[_Value]], _Value]) -> _Value:
    """Compute a value of an expression from those of its parts, without recursion.

    Names that are no part of the expression, such as an alias, and counts are left out of the parts.
    """
    stack: list[tuple[Node, Iterator[Node | Token], list[_Value]]] = [(root, _parts(root), [])]
    while True:
        tree, rest, values = stack[-1]
        part = next(rest, None)
        if part is None:
            stack.pop()
            value = node(tree, values)
            if not stack:
                return value
            stack[-1][2].append(value)
        elif isinstance(part, Token):
            values.append(leaf(part))
        else:
            stack.append((part, _parts(part), []))


def _parts(tree: Node) -> Iterator[Node | Token]:
    match tree.data:
        case "alias" | "repeat" | "times":
            return iter(tree.children[:1])
        case "template":
            return iter(tree.children[1:])
        case "range":
            return iter(())
        case _:
            return iter(tree.children)


class _GivenTokens(Lexer):
    """Hands on tokens that are made already."""

    def __init__(self, lexer_conf: object) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any = None) -> Iterator[Token]:
        return iter(lexer_state)


@lru_cache(maxsize=1)
def _parser() -> lark.Lark:
    return lark.Lark(_SYNTAX, parser="lalr", lexer=_GivenTokens, maybe_placeholders=True)


def _scan(source: Source, limits: Limits) -> Iterator[Token]:
    text, position, depth = source.text, 0, 0
    after_import = False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise source.syntax_error(
                (position, position + 1), _unreadable(text, position), "see Lark's grammar reference"
            )
        kind = match.lastgroup or ""
        if kind not in _SKIPPED:
            if kind in _OPENING:
                depth += 1
                if depth > limits.nesting:
                    raise LimitExceeded(
                        source.subject, limit="nesting", maximum=limits.nesting, evidence=source.where(position)
                    )
            elif kind in _CLOSING:
                depth -= 1
            elif kind == "_DOT" and after_import:
                kind = "DOT"
            after_import = kind == "IMPORT"
            yield Token(kind, match[0], position)
        position = match.end()


def _unreadable(text: str, position: int) -> str:
    character = text[position]
    if character == '"':
        return "a string is not closed on its line"
    if character == "/":
        return "a regexp is not closed"
    return f"unexpected character {character!r}"


def _unexpected(source: Source, error: lark.UnexpectedToken) -> Exception:
    token = error.token
    expected = [shown for kind, shown in _SPELLED.items() if kind in error.expected]
    remedy = f"expected {', '.join(expected[:-1])}{' or ' if expected[1:] else ''}{expected[-1]}" if expected else ""
    if token.type == "$END":
        return source.syntax_error((len(source.text), len(source.text)), "unexpected end of the grammar", remedy)
    start = token.start_pos or 0
    if token.type in {"_NL", "_NL_OR"}:
        return source.syntax_error((start, start + 1), "unexpected end of the line", remedy)
    return source.syntax_error((start, start + len(token)), f"unexpected {str(token)!r}", remedy)
