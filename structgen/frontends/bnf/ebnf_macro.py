"""The macros of xgrammar: ``TagDispatch(...)``, ``Token(...)``, ``Regex(...)``, ``Substring(...)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from structgen.errors import GrammarError
from structgen.frontends.bnf.parser import Parser
from structgen.frontends.bnf.scanner import Token
from structgen.frontends.free_text import dispatched, hidden_by
from structgen.frontends.regex import regex
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Status

__all__ = ["MACROS", "look_ahead"]

_Value: TypeAlias = "Token | list[Token]"
_OF_JSON_STRING: Final = ir.Repeat(ir.CharClass([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)]), 0, None)


@dataclass(slots=True)
class _Arguments:
    """The arguments of a macro."""

    macro: Token
    values: list[_Value] = field(default_factory=list)
    named: dict[str, _Value] = field(default_factory=dict)


def look_ahead(parser: Parser, token: Token) -> Grammar:
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


def _token(parser: Parser, macro: Token) -> Grammar:
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
    suffixes: list[Grammar] = [ir.EPSILON]
    for piece in reversed(pieces):
        suffixes.append(ir.Choice((ir.EPSILON, ir.Sequence((ir.literal(piece), suffixes[-1])))))
    return ir.Choice(suffixes)


MACROS: Final[Mapping[str, Callable[[Parser, Token], Grammar]]] = {
    "TagDispatch": _tag_dispatch,
    "TokenTagDispatch": _token_tag_dispatch,
    "Token": _token,
    "ExcludeToken": _token,
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
