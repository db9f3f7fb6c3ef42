"""From text to tokens; what is no token is an error with its place."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from structgen.errors import GrammarSyntaxError, LimitExceeded
from structgen.grammar.bnf.notation import Notation
from structgen.grammar.lark.source import Source
from structgen.grammar.limits import Limits

__all__ = ["Token", "scan"]


class Token(NamedTuple):
    """A piece of the text.

    Attributes:
        kind: ``"name"``, ``"rule"`` (a name with ``::=`` behind it), ``"string"``, ``"class"``, ``"count"``,
            ``"number"``, ``"newline"``, ``"end"``, a kind of the notation's own, or the piece itself.
        text: as it stands.
        start: its offset.
    """

    kind: str
    text: str
    start: int

    @property
    def span(self) -> tuple[int, int]:
        """Its half-open interval of offsets."""
        return self.start, self.start + len(self.text)


_COMMON: Final = {
    "skipped": r"[ \t]+|\#[^\r\n]*",
    "newline": r"\r\n?|\n",
    "assign": r"::=",
    "string": r'"[^"\\]*(?:\\.[^"\\]*)*"',
    "class": r"\[[^\]\\]*(?:\\.[^\]\\]*)*\]",
    "count": r"\{[^{}\"\[\]()|:]{0,80}\}",
}
_TOKENS_PER_NODE: Final = 4
"""Tokens that a node of the grammar may take: an item, its repetition, and what separates it."""
_PUNCTUATION: Final = r"[()|*+?]"
_UNFINISHED: Final = {
    '"': ("the string is not terminated", 'close it with "'),
    "[": ("the class of characters is not terminated", "close it with ]"),
    "{": ("the count is not terminated", "write it as {2}, {2,} or {2,5}"),
    "<": ("the token is not terminated", "close it with >"),
    "'": ("a string stands in single quotes", 'write it in double ones: "..."'),
    ":": ("a colon stands alone", "a rule is written: name ::= expression"),
    "=": ("an equals sign stands alone", "a rule is written: name ::= expression"),
    ";": ("rules have no semicolon behind them", "remove it"),
    "/": ("a slash stands outside a string", "comments begin with #, and there are no regexps in slashes"),
}


@cache
def _pattern(own: tuple[tuple[str, str], ...], name: str) -> re.Pattern[str]:
    kinds = [*_COMMON.items(), *own, ("name", name), ("punctuation", _PUNCTUATION)]
    return re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in kinds), re.DOTALL)


def scan(source: Source, notation: Notation, limits: Limits) -> list[Token]:
    """Return the tokens of a text, the last of kind ``"end"``.

    A name that ``::=`` follows is of kind ``"rule"``, and that is left out.

    Raises:
        GrammarSyntaxError: something is no token, or a rule does not begin its line.
        LimitExceeded: there are far more tokens than ``limits.grammar_nodes``.

    Complexity: linear.
    """
    text, position = source.text, 0
    match_at = _pattern(tuple(notation.tokens.items()), notation.name).match
    found: list[Token] = []
    is_line_start = True
    most = _TOKENS_PER_NODE * limits.grammar_nodes
    while position < len(text):
        match = match_at(text, position)
        if match is None:
            raise _unexpected(source, position)
        if len(found) > most:
            maximum = limits.grammar_nodes
            raise LimitExceeded(source.subject_at(position), limit="grammar_nodes", maximum=maximum)
        kind, piece, start = match.lastgroup or "", match[0], position
        position = match.end()
        if kind == "skipped":
            continue
        if kind == "newline":
            is_line_start = True
            if notation.ends_at_line and not (found and found[-1].kind == "newline"):
                found.append(Token(kind, piece, start))
            continue
        if kind == "assign":
            _mark_rule(source, found, start)
            continue
        found.append(Token(piece if kind == "punctuation" else kind, piece, start))
        if kind == "name":
            found[-1] = Token("first name" if is_line_start else kind, piece, start)
        is_line_start = False
    found.append(Token("end", "", len(text)))
    return [Token("name", *token[1:]) if token.kind == "first name" else token for token in found]


def _mark_rule(source: Source, found: list[Token], start: int) -> None:
    """Make the name before ``::=`` one of a rule."""
    while found and found[-1].kind == "newline":  # between a name and ::=, which does no harm
        found.pop()
    last = found[-1] if found else None
    if last is None or last.kind not in ("name", "first name"):
        raise source.syntax_error((start, start + 3), "no name stands before ::=", "write: name ::= expression")
    if last.kind == "name":
        raise source.syntax_error(last.span, "a rule begins within a line", "begin a new line before its name")
    found[-1] = Token("rule", last.text, last.start)


def _unexpected(source: Source, position: int) -> GrammarSyntaxError:
    character = source.text[position]
    if character == "!":
        character = "<"
    problem, remedy = _UNFINISHED.get(character, (f"the character {character!r} has no meaning here", "remove it"))
    return source.syntax_error((position, position + 1), problem, remedy)
