"""GBNF (llama.cpp) and EBNF (xgrammar): ``name ::= expression`` with the operators of regular expressions.

``docs/reference/gbnf.md`` states the syntax and where the two notations differ.

Sources: llama.cpp, ``grammars/README.md`` and ``src/llama-grammar.cpp``; xgrammar,
``docs/defining_structures/ebnf_grammar.md`` and ``cpp/grammar_parser.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from structgen.errors import GrammarError
from structgen.frontends.bnf.parser import Parser, read
from structgen.frontends.bnf.scanner import Notation, Token
from structgen.frontends.free_text import consecutive, dispatched, hidden_by, shortest
from structgen.frontends.regex import regex
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


_Value: TypeAlias = "Token | list[Token]"
_OF_JSON_STRING: Final = ir.Repeat(ir.CharClass([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)]), 0, None)


@dataclass(slots=True)
class _Arguments:
    """The arguments of a macro."""

    macro: Token
    values: list[_Value] = field(default_factory=list)
    named: dict[str, _Value] = field(default_factory=dict)


def _look_ahead(parser: Parser, token: Token) -> Grammar:
    """``(= ...)`` at the end of a rule: a hint about the text after it, which xgrammar does not enforce either."""
    parser.expression(token)
    following = parser.peek()
    if following.kind not in ("rule", "end"):
        raise parser.source.syntax_error(
            following.span, "look-ahead is inside an expression", "put it at the end of its rule"
        )
    parser.note("look-ahead", token, Status.ANNOTATION, "a hint to xgrammar's mask cache; not enforced")
    return ir.EPSILON


def _tag_dispatch(parser: Parser, macro: Token) -> Grammar:
    """Free text up to a tag, the rule of the tag, and so on."""
    arguments = _arguments(parser, macro, ("loop_after_dispatch", "excludes"))
    pairs = [_pair(parser, arguments, value, "string") for value in arguments.values]
    tags = {_filled(parser, tag): parser.reference(rule) for tag, rule in pairs}
    if len(tags) < len(pairs):
        raise _wrong(parser, macro, "a tag is given twice")
    excluded = [_filled(parser, token) for token in _tuple(parser, arguments, "excludes", "string")]
    for tag in tags:
        if tag in excluded:
            raise _wrong(parser, macro, f"the tag {tag!r} is excluded")
        other = hidden_by(tag, tags, excluded)
        if other is not None:
            raise parser.source.refused(
                macro.start,
                "TagDispatch",
                f"{other!r} occurs in the tag {tag!r}, so the tags are ambiguous",
                "choose tags that do not contain each other",
            )
    parser.note("macro TagDispatch", macro, Status.ENFORCED)
    loop = _flag(parser, arguments, "loop_after_dispatch", default=True)
    return dispatched(list(tags.items()), excluded, loop=loop)


def _looped(parser: Parser, arguments: _Arguments, parts: list[Grammar], free: Grammar) -> Grammar:
    if _flag(parser, arguments, "loop_after_dispatch", default=True):
        return ir.Sequence((ir.Repeat(ir.choice(*parts), 0, None), free)) if parts else free
    return ir.Choice([*parts, free]) if parts else free


def _token_tag_dispatch(parser: Parser, macro: Token) -> Grammar:
    """Free tokens up to a trigger, the rule of the trigger, and so on."""
    arguments = _arguments(parser, macro, ("loop_after_dispatch", "excludes"))
    pairs = [_pair(parser, arguments, value, "number") for value in arguments.values]
    triggers = {_id(parser, token): parser.reference(rule) for token, rule in pairs}
    excluded = [_id(parser, token) for token in _tuple(parser, arguments, "excludes", "number")]
    if len(triggers) < len(pairs) or not triggers.keys().isdisjoint(excluded):
        raise _wrong(parser, macro, "a token is given twice")
    parser.note("macro TokenTagDispatch", macro, Status.ENFORCED)
    free = ir.Repeat(ir.TokenSet([*triggers, *excluded], is_excluded=True), 0, None)
    parts: list[Grammar] = [ir.Sequence((free, ir.TokenSet([index]), rule)) for index, rule in triggers.items()]
    return _looped(parser, arguments, parts, free)


def _token_macro(parser: Parser, macro: Token) -> Grammar:
    """``Token``: one token of a set of ids; ``ExcludeToken``: one outside the set."""
    arguments = _arguments(parser, macro, ())
    ids = [_id(parser, _single(parser, arguments, value, "number")) for value in arguments.values]
    if not ids:
        raise _wrong(parser, macro, f"{macro.text} needs the id of a token")
    parser.note(f"macro {macro.text}", macro, Status.ENFORCED)
    return ir.TokenSet(ids, is_excluded=macro.text == "ExcludeToken")


_OPEN_FLAGS: Final = re.compile(r"\(\?([is]+)\)")


def _regex(parser: Parser, macro: Token) -> Grammar:
    """A regular expression; without flags its dot is any character, as in xgrammar."""
    arguments = _arguments(parser, macro, ("json_string", "flags"))
    if len(arguments.values) != 1:
        raise _wrong(parser, macro, "Regex takes one string")
    token = _single(parser, arguments, arguments.values[0], "string")
    flags = "s"
    if "flags" in arguments.named:
        flags = parser.string(_single(parser, arguments, arguments.named["flags"], "string")).replace("u", "")
        if set(flags) - set("is"):
            raise _wrong(parser, macro, f"the flags {flags!r} are not known", 'known are "i", "s" and "u"')
    pattern = parser.string(token)
    opened = _OPEN_FLAGS.match(pattern)
    if opened is not None:  # for the whole expression, as flags= are
        pattern, flags = pattern[opened.end() :], flags + opened[1]
    try:
        term = regex(pattern, dialect="ecma", flags="".join(sorted(set(flags))), limits=parser.limits)
    except GrammarError as error:
        remedy = error.remedy or "regular expressions are read as those of ECMA-262"
        raise parser.source.syntax_error(
            token.span, f"the regular expression is refused: {error.problem}", remedy
        ) from None
    parser.note("macro Regex", macro, Status.ENFORCED)
    if _flag(parser, arguments, "json_string", default=False):
        return ir.Intersection((term, _OF_JSON_STRING))
    return term


def _substring(parser: Parser, macro: Token) -> Grammar:
    """A contiguous part of a list of pieces."""
    arguments = _arguments(parser, macro, ())
    pieces = [parser.string(_single(parser, arguments, value, "string")) for value in arguments.values]
    parser.note("macro Substring", macro, Status.ENFORCED)
    return consecutive(pieces)


_MACROS: Final[Mapping[str, Callable[[Parser, Token], Grammar]]] = {
    "TagDispatch": _tag_dispatch,
    "TokenTagDispatch": _token_tag_dispatch,
    "Token": _token_macro,
    "ExcludeToken": _token_macro,
    "Regex": _regex,
    "Substring": _substring,
}


def _arguments(parser: Parser, macro: Token, known: tuple[str, ...]) -> _Arguments:
    """Read ``(value, name=value, ...)``."""
    found = _Arguments(macro)
    _expect(parser, "(", macro)
    while parser.peek().kind != ")":
        token = parser.take()
        if token.kind == "name" and parser.peek().kind == "equals":
            parser.take()
            if token.text not in known or token.text in found.named:
                raise _wrong(parser, token, f"{macro.text} has no argument {token.text!r}, or it is given twice")
            found.named[token.text] = _value(parser, macro, parser.take())
        else:
            found.values.append(_value(parser, macro, token))
        if parser.peek().kind != ")":
            comma = parser.take()
            if comma.kind != "comma" or parser.peek().kind == ")":
                raise _wrong(parser, comma, f"a value is expected in {macro.text}(...), and commas between them")
    parser.take()
    return found


def _value(parser: Parser, macro: Token, token: Token) -> _Value:
    if token.kind in ("string", "number", "name"):
        return token
    if token.kind != "(":
        raise _wrong(parser, token, f"{macro.text}(...) takes strings, numbers, names and tuples of them")
    items: list[Token] = []
    while parser.peek().kind != ")":
        item = parser.take()
        if item.kind not in ("string", "number", "name"):
            raise _wrong(parser, item, "a tuple holds strings, numbers and names")
        items.append(item)
        if parser.peek().kind != ")":
            _expect(parser, "comma", macro)
    parser.take()
    return items


def _expect(parser: Parser, kind: str, macro: Token) -> None:
    token = parser.take()
    if token.kind != kind:
        mark = "," if kind == "comma" else kind
        raise _wrong(parser, token, f"{mark} is expected in {macro.text}(...)")


def _pair(parser: Parser, arguments: _Arguments, value: _Value, kind: str) -> tuple[Token, Token]:
    if isinstance(value, Token) or len(value) != 2 or value[0].kind != kind or value[1].kind != "name":
        raise _wrong(parser, arguments.macro, f"{arguments.macro.text} takes pairs of a {kind} and a rule")
    return value[0], value[1]


def _single(parser: Parser, arguments: _Arguments, value: _Value, kind: str) -> Token:
    if not isinstance(value, Token) or value.kind != kind:
        raise _wrong(parser, arguments.macro, f"{arguments.macro.text} takes a {kind} here")
    return value


def _tuple(parser: Parser, arguments: _Arguments, name: str, kind: str) -> list[Token]:
    value = arguments.named.get(name, [])
    if isinstance(value, Token) or any(token.kind != kind for token in value):
        raise _wrong(parser, arguments.macro, f"{name} takes a tuple of {kind}s")
    return value


def _id(parser: Parser, token: Token) -> int:
    if len(token.text) > 12 or int(token.text) > ir.MAX_TOKEN_ID:
        raise _wrong(parser, token, f"no token has an id above {ir.MAX_TOKEN_ID}")
    return int(token.text)


def _flag(parser: Parser, arguments: _Arguments, name: str, *, default: bool) -> bool:
    value = arguments.named.get(name)
    if value is None:
        return default
    if not isinstance(value, Token) or value.text not in ("true", "false"):
        raise _wrong(parser, arguments.macro, f"{name} is true or false")
    return value.text == "true"


def _filled(parser: Parser, token: Token) -> str:
    text = parser.string(token)
    if not text:
        raise _wrong(parser, token, "the string is empty")
    return text


def _wrong(parser: Parser, token: Token, problem: str, remedy: str = "") -> Exception:
    return parser.source.syntax_error(token.span, problem, remedy)


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
    macros=_MACROS,
    elements={"look_ahead": _look_ahead},
    options=apply_options,
)
