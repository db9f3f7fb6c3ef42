"""How the text of a grammar is spelled: escapes of literals, names and classes, and the tokens of its reader.

The printer uses the first half, the reader all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, TypeVar

from structgen.errors import GrammarSyntaxError
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.regular import gaps_between

__all__ = [
    "KEYWORDS",
    "LABEL_MARKS",
    "SpellingError",
    "read_bytes",
    "read_class",
    "read_text",
    "write_bytes",
    "write_class",
    "write_name",
    "write_text",
]

KEYWORDS: Final = frozenset(
    {
        *("budget", "distinct", "in", "json", "label", "let", "permutation", "rules", "shared", "temperature", "token"),
        "tokens",
    }
)
"""Reserved words; a rule or capture of such a name is quoted: ``<token>``."""
LABEL_MARKS: Final[dict[ir.LabelKind, str]] = {"a-label": "", "bidi": "*", "u-label": "+"}
"""What follows the word ``label``, by the kind of label."""

_BARE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_UNESCAPES: Final = {"n": 10, "r": 13, "t": 9} | {mark: ord(mark) for mark in '\\"<>[]^-'}
_ELEMENT: Final = re.compile(r"\\x([0-9a-fA-F]{2})|\\u\{([0-9a-fA-F]{1,6})\}|\\(.)|([^\\])", re.DOTALL)

# What needs an escape inside "...", <...> and [...]; characters beyond ASCII are checked one by one.
_UNSAFE_IN_STRING: Final = re.compile(r"[^ !#-\[\]-~]")
_UNSAFE_IN_NAME: Final = re.compile(r"[^ -;=?-\[\]-~]")
_UNSAFE_IN_CLASS: Final = re.compile(r"[^ -,./0-Z_`a-~]")
_ANY: Final = ir.ANY_CHAR.ranges if isinstance(ir.ANY_CHAR, ir.CharClass) else ()


class SpellingError(Exception):
    """An escape or a range cannot be read.

    Attributes:
        problem: what is wrong.
        span: half-open interval of offsets into the text that was read.
    """

    def __init__(self, problem: str, span: tuple[int, int]) -> None:
        super().__init__(problem)
        self.problem = problem
        self.span = span


def write_text(text: str) -> str:
    """Spell characters, lone surrogates included, as a string."""
    return f'"{_UNSAFE_IN_STRING.sub(lambda match: _escape(match[0]), text)}"'


def write_bytes(data: bytes) -> str:
    r"""Spell bytes as a string, with ``\xNN`` for each byte that is not part of well-formed UTF-8."""

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        if 0xDC80 <= code <= 0xDCFF:  # how "surrogateescape" reads an undecodable byte
            return f"\\x{code - 0xDC00:02x}"
        return _escape(match[0])

    return f'"{_UNSAFE_IN_STRING.sub(escape, data.decode("utf-8", "surrogateescape"))}"'


def write_name(name: str) -> str:
    """Spell the name of a rule or capture: bare where it is an identifier, else ``<quoted>``."""
    if _BARE_NAME.fullmatch(name) and name not in KEYWORDS:
        return name
    return f"<{_UNSAFE_IN_NAME.sub(lambda match: _escape(match[0]), name)}>"


def write_class(node: ir.ByteClass | ir.CharClass) -> Iterator[str]:
    """Spell a class in pieces, negated where that is shorter; ``.`` is any character."""
    write: Callable[[int], str]
    if isinstance(node, ir.ByteClass):
        head, inverse, write = "b[", gaps_between(node.ranges, 255), _class_byte
    elif node.ranges == _ANY:
        yield "."
        return
    else:
        head, inverse, write = "[", ir.CharClass(gaps_between(node.ranges, ir.MAX_CODE_POINT)).ranges, _class_character
    negated = len(inverse) < len(node.ranges)
    yield f"{head}^" if negated else head
    for low, high in inverse if negated else node.ranges:
        yield _class_range(low, high, write)
    yield "]"


def read_bytes(text: str, start: int, end: int) -> bytes:
    """Read the inside of a string as bytes.

    Raises:
        SpellingError: an escape is not known, or a character has no UTF-8 form.
    """
    inside = text[start:end]
    if "\\" not in inside and inside.isascii():
        return inside.encode()
    data = bytearray()
    for code, raw, span in _elements(text, start, end):
        if raw:
            data.append(code)
        elif ir.SURROGATES[0] <= code <= ir.SURROGATES[1]:
            raise SpellingError("surrogate has no UTF-8 form; write its bytes as \\xNN", span)
        else:
            data += chr(code).encode()
    return bytes(data)


def read_text(text: str, start: int, end: int) -> str:
    """Read the inside of a name or of the text of a special token.

    Raises:
        SpellingError: an escape is not known, or stands for a raw byte.
    """
    characters: list[str] = []
    for code, raw, span in _elements(text, start, end):
        if raw:
            raise SpellingError("raw byte in a name; write a character as \\u{...}", span)
        characters.append(chr(code))
    return "".join(characters)


def read_class(text: str, start: int, end: int) -> ir.ByteClass | ir.CharClass:
    """Read a class, from its ``[`` or ``b[`` to its ``]``.

    Raises:
        SpellingError: an escape is not known, a range is in the wrong order or has no upper end, or a class mixes bytes
            and characters.
    """
    of_bytes = text[start] == "b"
    start += 2 if of_bytes else 1
    negated = text[start] == "^"
    ranges = list(_ranges(text, start + negated, end - 1, of_bytes=of_bytes))
    if of_bytes:
        return ir.ByteClass(gaps_between(ir.ByteClass(ranges).ranges, 255) if negated else ranges)
    return ir.CharClass(gaps_between(ir.CharClass(ranges).ranges, ir.MAX_CODE_POINT) if negated else ranges)


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if 0x20 <= ord(character) < 0x7F:
        return f"\\{character}"
    return character if character.isprintable() else f"\\u{{{ord(character):x}}}"


def _class_character(code: int) -> str:
    character = chr(code)
    return _escape(character) if _UNSAFE_IN_CLASS.match(character) else character


def _class_byte(byte: int) -> str:
    return _class_character(byte) if 0x20 <= byte < 0x7F or byte in b"\n\r\t" else f"\\x{byte:02x}"


def _class_range(low: int, high: int, write: Callable[[int], str]) -> str:
    if high - low < 2:
        return "".join(write(code) for code in range(low, high + 1))
    return f"{write(low)}-{write(high)}"


def _elements(text: str, start: int, end: int) -> Iterator[tuple[int, bool, tuple[int, int]]]:
    """Yield code, whether it is a raw byte, and span of each character or escape."""
    position = start
    while position < end:
        match = _ELEMENT.match(text, position, end)
        if match is None:
            raise SpellingError("escape is not known", (position, min(position + 2, end)))
        raw, code, short, plain = match.groups()
        if plain is not None:
            value = ord(plain)
        elif short is not None:
            value = _UNESCAPES.get(short, -1)
        else:
            value = int(raw or code, 16)
        if not 0 <= value <= ir.MAX_CODE_POINT:
            raise SpellingError(f"escape {match[0]!r} is not known", match.span())
        yield value, raw is not None, match.span()
        position = match.end()


def _ranges(text: str, start: int, end: int, *, of_bytes: bool) -> Iterator[tuple[int, int]]:
    low: int | None = None
    is_open = False  # whether a hyphen after `low` waits for the upper end
    for code, raw, span in _elements(text, start, end):
        if raw and not of_bytes:
            raise SpellingError("raw byte in a class of characters; write \\u{...} or b[...]", span)
        if of_bytes and not raw and code > 0x7F:
            raise SpellingError("character beyond ASCII in a class of bytes; write its bytes as \\xNN", span)
        is_hyphen = text[span[0] : span[1]] == "-"
        if is_hyphen and low is not None and not is_open:
            is_open = True
        elif is_hyphen:
            raise SpellingError("hyphen is not between two ends of a range; write it as \\-", span)
        elif low is not None and is_open:
            if code < low:
                raise SpellingError("range is in the wrong order", span)
            yield low, code
            low, is_open = None, False
        else:
            if low is not None:
                yield low, low
            low = code
    if is_open:
        raise SpellingError("hyphen is not between two ends of a range; write it as \\-", (end - 1, end))
    if low is not None:
        yield low, low


class Token(NamedTuple):
    """A token of the text form, with its span."""

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
    "|": ir.Choice,
    "&": ir.Intersection,
    ",": ir.Sequence,
}

LISTS_OF_PERMUTATION: Final = 2
PARTS_OF_PERMUTATION: Final = 4

Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class Frame:
    """The state since an opening bracket: alternatives of conjuncts of items, and the operand."""

    start: int
    close: str
    done: Callable[[Frame, Token], None]
    scopes: list[dict[str, Grammar]] = field(default_factory=list)
    choices: list[Grammar] = field(default_factory=list)
    conjuncts: list[Grammar] = field(default_factory=list)
    items: list[Grammar] = field(default_factory=list)
    operand: Grammar | None = None
    repeated: bool = False
    tildes: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.items or self.conjuncts or self.choices or self.tildes or self.operand is not None)


class TokenReader:
    """The tokens of a text, with one token of look-ahead, and errors with spans."""

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
