"""The syntax of Lark's grammar files, and of llguidance's dialect: text to tree.

The parser (LALR) is generated from the grammar below, which follows Lark's reference.  One regular
expression finds the tokens, several times faster than a general lexer, and the nesting is counted at the same time.

llguidance's additions (``docs/syntax.md`` of that project) use characters that are errors in Lark at that position, so
every text that Lark accepts is read as Lark reads it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, TypeVar

import lark
import lark.lexer
from lark.load_grammar import load_grammar
from lark.parse_tree_builder import ParseTreeBuilder

from structgen.errors import LimitExceeded
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark.lalr import bits, make_lalr, number_rules
from structgen.grammar.limits import Limits, spend

__all__ = ["Node", "Token", "fold", "parse", "span_of", "tokens_of"]

Token: TypeAlias = lark.Token
Node: TypeAlias = "lark.Tree[lark.Token]"
_load: Callable[..., Any] = load_grammar
_builder: Callable[..., Any] = ParseTreeBuilder

_PLAIN_VALUE: Final = "TERMINAL | RULE | STRING | REGEXP | range | template"
_VALUE: Final = f"{_PLAIN_VALUE} | SPECIAL | GRAMMAR | JSON | STRUCTURED | parametrised | nested"
_ATOM: Final = f"{_VALUE} | maybe | _LPAR expansions _RPAR | negation"
# Values and atoms are inlined: each rule would cost a reduction for every token.
_SYNTAX: Final = (
    r"""
start: (_item? _NL)* _item?
_item: rule | terminal | ignore | declare | override | extend | import_one | import_many | OPTIONS
rule: [RULE_MODIFIERS] RULE [PARAMETER] [parameters] [_DOT NUMBER] [attributes] _COLON expansions
terminal: TERMINAL [_DOT NUMBER] _COLON expansions
parameters: _LBRACE RULE (_COMMA RULE)* _RBRACE
attributes: _LBRA [attribute (_COMMA attribute)* _COMMA?] _RBRA
attribute: RULE [_EQUALS (VALUE | NUMBER | FLOAT)]

ignore: _IGNORE expansions
declare: DECLARE (RULE | TERMINAL)+
override: OVERRIDE (rule | terminal)
extend: EXTEND (rule | terminal)
import_one: IMPORT [DOT] path [_TO name]
import_many: IMPORT [DOT] path _LPAR name (_COMMA name)* _RPAR
path: name (_DOT name)*
?name: RULE | TERMINAL

expansions: (ALTERNATIVE) ((_OR | _NL_OR) (ALTERNATIVE))*
conditional: (expansion | conjunction | alias) CONDITION
alias: (expansion | conjunction) _TO RULE
conjunction: expansion (_AND expansion)+
expansion: (ATOM | repeat | times | counted)*
negation: _NOT (ATOM)
repeat: (ATOM) OP
times: (ATOM) TILDE NUMBER [_DOTDOT NUMBER]
counted: (ATOM) COUNTS
maybe: _LBRA expansions _RBRA
range: STRING _DOTDOT STRING
template: RULE _LBRACE (VALUE) (_COMMA (VALUE))* _RBRACE
parametrised: RULE PARAMETER
nested: NESTED _LBRACE (_item? _NL)* _item? _RBRACE

%declare RULE_MODIFIERS RULE TERMINAL NUMBER FLOAT STRING REGEXP OP TILDE DOT DECLARE OVERRIDE EXTEND IMPORT
%declare _DOT _DOTDOT _COLON _COMMA _OR _NL_OR _NL _TO _IGNORE _LPAR _RPAR _LBRA _RBRA _LBRACE _RBRACE
%declare OPTIONS SPECIAL GRAMMAR JSON STRUCTURED NESTED PARAMETER CONDITION COUNTS _AND _NOT _EQUALS
""".replace("ATOM", _ATOM)
    .replace("VALUE", _VALUE)
    .replace("ALTERNATIVE", "expansion | alias | conjunction | conditional")
)

# In the order of Lark's own lexer, which decides between several matches.  Loops are possessive, which keeps them
# linear; the only texts that this reads differently end in a lone backslash, an error anyway.
_TOKEN: Final = re.compile(
    r"""
      (?P<REGEXP> /(?!/)(?:\\[/\\]|[^/])*+/[imslux]* )
    | (?P<STRING> "(?:\\["\\]|[^"\n])*+"i? )
    | (?P<COMMENT> \s*+(?://|\#)[^\n]* )
    | (?P<RULE> _?[a-z](?:[_a-z0-9]|-(?!>))* )
    | (?P<TERMINAL> _?[A-Z](?:[_A-Z0-9]|-(?!>))* )
    | (?P<_NL_OR> (?:\r?\n)++\s*+\| )
    | (?P<_NL> (?:\r?\n)++\s*+ )
    | (?P<BACKSLASH> \\[ ]*\n )
    | (?P<FLOAT> [+-]?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+) )
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
    | (?P<COUNTS> \{[ \t]*+(?:\d++[ \t]*+(?:,[ \t]*+\d*+)?|,[ \t]*+\d++)[ \t]*+\} )
    | (?P<_LBRA> \[ ) | (?P<_LBRACE> \{ ) | (?P<_LPAR> \( )
    | (?P<_OR> \| )
    | (?P<_RBRA> \] ) | (?P<_RBRACE> \} ) | (?P<_RPAR> \) )
    | (?P<TILDE> ~(?=(?:[ \t]|\\[ ]*\n)*+[+-]?\d) )
    | (?P<PARAMETER> ::[ \t]*+(?:0[xX][0-9a-fA-F]++|\d++|[a-z_]++(?:[ \t]*\([^()\n]*\))?) )
    | (?P<_COLON> : )
    | (?P<_COMMA> , )
    | (?P<_NOT> ~ )
    | (?P<_AND> & )
    | (?P<_EQUALS> = )
    | (?P<SPECIAL> <[^<>\s]+> )
    | (?P<GRAMMAR> @[a-zA-Z0-9_-]+ )
    | (?P<JSON> %json\b\s*+ )
    | (?P<STRUCTURED> %regex\b\s*+ )
    | (?P<OPTIONS> %(?:llguidance|grammar_options)\b\s*+ )
    | (?P<NESTED> %lark\b )
    | (?P<CONDITION> %if\b[ \t]*+ )
    """,
    re.VERBOSE,
)
_SKIPPED: Final = frozenset({"COMMENT", "BACKSLASH", "WS"})
_OPENING: Final = frozenset({"_LPAR", "_LBRA", "_LBRACE"})
_CLOSING: Final = frozenset({"_RPAR", "_RBRA", "_RBRACE"})
_HOLDS_JSON: Final = frozenset({"JSON", "STRUCTURED", "OPTIONS"})
_JSON_MARK: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]"]', re.DOTALL)
_JSON_SCALAR: Final = re.compile(r'true|false|null|"(?:[^"\\\n]|\\.)*+"|-?\d[\d.eE+-]*+')
_PARENTHESIS: Final = re.compile(r"[()\n]")

# Names of tokens in messages, the most helpful first.
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
    "_EQUALS": "'='",
    "SPECIAL": "a special token",
}

_Value = TypeVar("_Value")


def parse(source: GrammarSource, limits: Limits) -> Node:
    """Parse a grammar file.

    Raises:
        GrammarSyntaxError: the text is no Lark grammar.
        LimitExceeded: it is nested too deeply, or has too many tokens for ``limits.steps``.

    Complexity:
        O(n).
    """
    states, start, end = _table()
    path: list[Any] = [start]
    values: list[Any] = []
    kind = ""
    tokens = _scan(source, limits)
    while kind != "$END":
        token = next(tokens, _END)
        kind = token.type
        while True:
            action = states[path[-1]].get(kind)
            if action.__class__ is not tuple:  # shift: the next state
                break
            size, target, made = action
            if size:
                parts = values[-size:]
                del values[-size:], path[-size:]
            else:
                parts = []
            path.append(states[path[-1]][target])
            values.append(made(parts))
            if kind == "$END" and path[-1] == end:
                tree: Node = values[-1]
                return tree
        if action is None:
            raise _unexpected(source, token, states[path[-1]])
        path.append(action)
        values.append(token)
    raise RuntimeError("the parser read all tokens without accepting")


def fold(
    root: Node,
    leaf: Callable[[Token], _Value],
    node: Callable[[Node, list[_Value]], _Value],
    is_dropped: Callable[[Node], bool] | None = None,
) -> _Value:
    """Compute the value of an expression from the values of its parts, without recursion.

    Aliases, other names and counts are not among the parts.  If ``is_dropped`` is true for a subtree, its parts are
    skipped and ``node`` gets none.
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
        elif is_dropped is not None and is_dropped(part):
            values.append(node(part, []))
        else:
            stack.append((part, _parts(part), []))


def _parts(tree: Node) -> Iterator[Node | Token]:
    match tree.data:
        case "alias" | "repeat" | "times" | "counted" | "conditional":
            return iter(tree.children[:1])
        case "template":
            return iter(tree.children[1:])
        case "range" | "nested" | "parametrised":
            return iter(())
        case _:
            return iter(tree.children)


def tokens_of(root: Node) -> Iterator[Token]:
    """Yield the tokens below a node in order; unlike Lark's ``scan_values``, without recursion."""
    stack: list[object] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, Token):
            yield part
        elif isinstance(part, lark.Tree):
            stack.extend(reversed(part.children))


def span_of(token: Token) -> tuple[int, int]:
    """Return the half-open interval of a token's offsets."""
    start = token.start_pos or 0
    return start, start + len(token)


def _made(name: str, children: list[Any]) -> Node:
    """Make a tree whose name is a plain string, which compares faster than Lark's token."""
    return lark.Tree(_NAMES.setdefault(name, str(name)), children)


_NAMES: Final[dict[str, str]] = {}


_END: Final = Token("$END", "", 0)
_COUNTED_TOKENS: Final = 64  # at a time
_STEPS_A_TOKEN: Final = 6


_State: TypeAlias = "dict[str, Any]"


_loading: Final = threading.Lock()


@contextmanager
def _collisions_unchecked() -> Iterator[None]:
    """Let Lark make its own parser of grammars without looking for terminals that collide: .2 s, for warnings alone."""
    with _loading:
        checks = lark.lexer.has_interegular
        lark.lexer.has_interegular = False
        try:
            yield
        finally:
            lark.lexer.has_interegular = checks


@lru_cache(maxsize=1)
def _table() -> tuple[list[_State], int, int]:
    """Return the parser table: actions by state, the start state, and the end state.

    An action is the next state (shift), or the size, the name and the callback of a reduction.  Lark reads the grammar
    and makes the callbacks; its own generator and loop take ten and two times as long as those here.
    """
    with _collisions_unchecked():
        grammar, _ = _load(_SYNTAX, "<syntax>", [], global_keep_all_tokens=False)
    _, rules, _ = grammar.compile(["start"], set())
    callbacks = _builder(rules, _made, maybe_placeholders=True).create_callback()
    numbered = number_rules(rules, "start")
    table = make_lalr(numbered, None)
    names = [name for name, _ in numbered.symbols]
    states: list[_State] = []
    for row, reductions in zip(table.goto, table.reductions, strict=True):
        state: _State = {names[symbol]: target for symbol, target in row.items()}
        for rule, lookaheads in reductions.items():
            action = (len(rules[rule].expansion), str(rules[rule].origin.name), callbacks[rules[rule]])
            for bit in bits(lookaheads):
                state.setdefault(names[numbered.first_terminal + bit], action)  # rather shift
        states.append(state)
    return states, 0, table.goto[0][numbered.start]


def _token(kind: str, text: str, position: int) -> Token:
    """Make a token, three times as fast as ``Token(kind, text, position)``."""
    token = str.__new__(Token, text)
    token.type = kind
    token.value = text
    token.start_pos = position
    return token


def _scan(source: GrammarSource, limits: Limits) -> Iterator[Token]:
    text, position, depth = source.text, 0, 0
    after_import = False
    tokens = 0
    while position < len(text):
        tokens += 1
        if tokens % _COUNTED_TOKENS == 0:
            spend(_COUNTED_TOKENS * _STEPS_A_TOKEN, partial(source.subject_at, position))
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
            elif kind in _HOLDS_JSON:
                start = match.end()
                position = _json_end(source, start, match[0].strip(), limits)
                yield _token(kind, text[start:position], start)
                continue
            elif kind == "CONDITION":
                start = match.end()
                position = _condition_end(source, start)
                yield _token(kind, text[start:position], start)
                continue
            after_import = kind == "IMPORT"
            yield _token(kind, match[0], position)
        position = match.end()


def _json_end(source: GrammarSource, start: int, keyword: str, limits: Limits) -> int:
    """Return where the JSON value that begins at ``start`` ends; it is parsed later."""
    text, depth = source.text, 0
    if text[start : start + 1] not in ("{", "["):
        scalar = _JSON_SCALAR.match(text, start)
        if scalar is None:
            raise source.syntax_error((start, start + 1), f"no JSON follows {keyword}", f"write {keyword} {{ ... }}")
        return scalar.end()
    for mark in _JSON_MARK.finditer(text, start):
        if mark[0] in "{[":
            depth += 1
            if depth > limits.nesting:
                raise LimitExceeded(
                    source.subject, limit="nesting", maximum=limits.nesting, evidence=source.where(mark.start())
                )
        elif mark[0] in "}]":
            depth -= 1
            if depth == 0:
                return mark.end()
        elif mark[0] == '"':
            raise source.syntax_error((mark.start(), mark.end()), f"a string in the JSON of {keyword} is not closed")
    raise source.syntax_error((start, start + 1), f"the JSON of {keyword} is not closed")


def _condition_end(source: GrammarSource, start: int) -> int:
    """Return where the condition of ``%if`` ends: after its parentheses, or after a name without parentheses."""
    name = _NAME.match(source.text, start)
    if name is None:
        raise source.syntax_error((start, start + 1), "no condition follows %if", "write for instance %if bit_clear(0)")
    if not source.text.startswith("(", name.end()):
        return name.start(1) + len(name[1])
    depth = 0
    for mark in _PARENTHESIS.finditer(source.text, name.end()):
        depth += {"(": 1, ")": -1}.get(mark[0], 0)
        if depth == 0:
            return mark.end()
        if mark[0] == "\n":
            break
    raise source.syntax_error((start, name.end() + 1), "the condition of %if is not closed on its line")


_NAME: Final = re.compile(r"([a-z_]+)[ \t]*+")


def _unreadable(text: str, position: int) -> str:
    character = text[position]
    if character == '"':
        return "a string is not closed on its line; close it with a double quote"
    if character == "'":
        return 'unexpected character "\'"; write strings in double quotes'
    if character == "/":
        return "a regexp is not closed"
    return f"unexpected character {character!r}"


def _unexpected(source: GrammarSource, token: Token, kinds: Container[str]) -> Exception:
    expected = [shown for kind, shown in _SPELLED.items() if kind in kinds]
    remedy = f"expected {', '.join(expected[:-1])}{' or ' if expected[1:] else ''}{expected[-1]}" if expected else ""
    if token.type == "$END":
        return source.syntax_error((len(source.text), len(source.text)), "unexpected end of the grammar", remedy)
    start = token.start_pos or 0
    if start and source.text.startswith("::=", start - 1):  # a first colon may follow a name
        remedy = "Lark writes name: ...; gbnf() and ebnf() read '::=' (--from gbnf, --from ebnf)"
        return source.syntax_error((start - 1, start + 2), "unexpected '::='", remedy)
    if token.type in {"_NL", "_NL_OR"}:
        return source.syntax_error((start, start + 1), "unexpected end of the line", remedy)
    return source.syntax_error((start, start + len(token)), f"unexpected {str(token)!r}", remedy)
