"""Tokens of the text form, and what is on the stack of its reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, NoReturn, TypeVar

from structgen.errors import GrammarSyntaxError
from structgen.grammar.nodes import Choice, Grammar, Intersection, Sequence
from structgen.grammar.notation.spelling import SpellingError


class Token(NamedTuple):
    """A token of the text form and where it stands."""

    kind: str
    text: str
    start: int
    end: int


TOKEN: Final = re.compile(
    r"""
      (?P<space> (?: \s | \#[^\n]* )+ )
    | (?P<string> " [^"\\]* (?: \\. [^"\\]* )* " )
    | (?P<class> b? \[ [^\]\\]* (?: \\. [^\]\\]* )* \] )
    | (?P<quoted> < [^>\\]* (?: \\. [^>\\]* )* > )
    | (?P<name> [A-Za-z_][A-Za-z0-9_]* (?: \.[A-Za-z0-9_]+ )* )
    | (?P<number> -? [0-9]+ )
    | (?P<share> \$[0-9]+ )
    | (?P<count> \{ \s* [0-9]+ \s* (?: , \s* [0-9]* \s* )? \} )
    | (?P<mark> [()|&~*+?=;,.{}@] )
    """,
    re.VERBOSE | re.DOTALL,
)
UNCLOSED: Final = {'"': "string is not closed", "[": "class is not closed", "<": "quoted name is not closed"}
COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LONE: Final[dict[str, Callable[[tuple[Grammar, ...]], Grammar]]] = {
    "|": Choice,
    "&": Intersection,
    ",": Sequence,
}

LISTS_OF_PERMUTATION: Final = 2
PARTS_OF_PERMUTATION: Final = 4

Value = TypeVar("Value")


class Frame:
    """What was read since an opening bracket: alternatives of conjuncts of items, and the operand."""

    __slots__ = (
        "choices",
        "close",
        "conjuncts",
        "done",
        "items",
        "operand",
        "repeated",
        "scopes",
        "start",
        "tildes",
    )

    def __init__(self, start: int, close: str, done: Callable[[Frame, Token], None]) -> None:
        self.start = start
        self.close = close
        self.done = done
        self.scopes: list[dict[str, Grammar]] = []
        self.choices: list[Grammar] = []
        self.conjuncts: list[Grammar] = []
        self.items: list[Grammar] = []
        self.operand: Grammar | None = None
        self.repeated = False
        self.tildes = 0

    @property
    def is_empty(self) -> bool:
        return not (self.items or self.conjuncts or self.choices or self.tildes or self.operand is not None)


class TokenReader:
    """The tokens of a text, one ahead, and errors with their place."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._scan()
        self.ahead = next(self.tokens)

    def _scan(self) -> Iterator[Token]:
        text, position = self.text, 0
        while position < len(text):
            match = TOKEN.match(text, position)
            if match is None:
                character = text[position]
                problem = UNCLOSED.get(character, f"unexpected character {character!r}")
                self._fail(problem, position, position + 1)
            kind = match.lastgroup or ""
            if kind != "space":
                yield Token(kind, match[0], position, match.end())
            position = match.end()
        while True:
            yield Token("end", "", len(text), len(text))

    def _take(self) -> Token:
        token, self.ahead = self.ahead, next(self.tokens)
        return token

    def _at(self, kind: str, text: str) -> bool:
        return self.ahead.kind == kind and self.ahead.text == text

    def _expect(self, kind: str, text: str, what: str) -> Token:
        if not self._at(kind, text):
            self._unexpected(self.ahead, what)
        return self._take()

    def _fail(self, problem: str, start: int, end: int, remedy: str = "") -> NoReturn:
        raise GrammarSyntaxError("grammar text", problem, text=self.text, span=(start, end), remedy=remedy) from None

    def _unexpected(self, token: Token, expected: str) -> NoReturn:
        found = repr(token.text) if token.text else "the end of the text"
        self._fail(f"expected {expected}, found {found}", token.start, token.end)

    def _integer(self, token: Token, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python refuses to convert more than some thousand digits
            self._fail("number has too many digits", token.start, token.end)

    def _bounds(self, token: Token) -> tuple[int, int | None]:
        low, comma, high = token.text[1:-1].partition(",")
        first = self._integer(token, low)
        if not comma:
            return first, first
        last = self._integer(token, high) if high.strip() else None
        if last is not None and last < first:
            self._fail(f"the bounds {first}..{last} contain no count", token.start, token.end)
        return first, last

    def _spelled(self, read: Callable[[str, int, int], Value], start: int, end: int) -> Value:
        try:
            return read(self.text, start, end)
        except SpellingError as error:
            self._fail(error.problem, *error.span)
