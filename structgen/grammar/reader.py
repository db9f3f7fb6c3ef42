"""Read the text that :mod:`structgen.grammar.printer` writes back into the same term.

The syntax is stated in ``docs/grammar-ir.md``.  ``parse(to_text(g)) == g`` for every term without
descriptions, so the reader simplifies nothing: ``"a" "b"`` is a sequence of two literals, not ``"ab"``.

A shift-reduce parser with an explicit stack: nesting costs memory, never recursion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, NoReturn, TypeVar

from structgen.errors import GrammarSyntaxError
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    Budget,
    Capture,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Label,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    Tempered,
    TokenSet,
)
from structgen.grammar.spelling import KEYWORDS, LABEL_MARKS, SpellingError, read_bytes, read_class, read_text

__all__ = ["parse"]


def parse(text: str) -> Grammar:
    """Read a grammar term from its text.

    Args:
        text: what :func:`structgen.grammar.printer.to_text` writes; whitespace is free and ``#`` starts a
            comment.

    Raises:
        GrammarSyntaxError: the text does not parse; the error has the span.

    Complexity:
        O(len(text)).

    >>> print(parse('"a" ("," "a"){0,2}'))
    "a" ("," "a"){0,2}
    """
    return _Parser(text).parse()


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


_TOKEN: Final = re.compile(
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
_UNCLOSED: Final = {'"': "string is not closed", "[": "class is not closed", "<": "quoted name is not closed"}
_COUNTS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LONE: Final[dict[str, Callable[[tuple[Grammar, ...]], Grammar]]] = {
    "|": Choice,
    "&": Intersection,
    ",": Sequence,
}

_LISTS_OF_PERMUTATION: Final = 2
_PARTS_OF_PERMUTATION: Final = 4

_Value = TypeVar("_Value")


class _Frame:
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

    def __init__(self, start: int, close: str, done: Callable[[_Frame, _Token], None]) -> None:
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


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._scan()
        self.ahead = next(self.tokens)
        self.frames: list[_Frame] = []
        self.shares: dict[str, Grammar] = {}
        self.result: Grammar | None = None

    def parse(self) -> Grammar:
        self.frames.append(_Frame(0, "end", self._finish))
        if self._at("name", "let"):
            self._take()
            self._next_share()
        while self.result is None:
            self._step(self._take())
        return self.result

    # Reading tokens

    def _scan(self) -> Iterator[_Token]:
        text, position = self.text, 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                character = text[position]
                problem = _UNCLOSED.get(character, f"unexpected character {character!r}")
                self._fail(problem, position, position + 1)
            kind = match.lastgroup or ""
            if kind != "space":
                yield _Token(kind, match[0], position, match.end())
            position = match.end()
        while True:
            yield _Token("end", "", len(text), len(text))

    def _take(self) -> _Token:
        token, self.ahead = self.ahead, next(self.tokens)
        return token

    def _at(self, kind: str, text: str) -> bool:
        return self.ahead.kind == kind and self.ahead.text == text

    def _expect(self, kind: str, text: str, what: str) -> _Token:
        if not self._at(kind, text):
            self._unexpected(self.ahead, what)
        return self._take()

    def _fail(self, problem: str, start: int, end: int, remedy: str = "") -> NoReturn:
        raise GrammarSyntaxError("grammar text", problem, text=self.text, span=(start, end), remedy=remedy) from None

    def _unexpected(self, token: _Token, expected: str) -> NoReturn:
        found = repr(token.text) if token.text else "the end of the text"
        self._fail(f"expected {expected}, found {found}", token.start, token.end)

    # One token at a time

    def _step(self, token: _Token) -> None:
        match token.kind:
            case "string":
                data = self._spelled(read_bytes, token.start + 1, token.end - 1)
                self._operand(Literal(data))
            case "class":
                self._operand(self._spelled(read_class, token.start, token.end))
            case "quoted":
                self._operand(Reference(self._spelled(read_text, token.start + 1, token.end - 1)))
            case "share":
                if token.text not in self.shares:
                    self._fail(f"{token.text} is not bound before its use", token.start, token.end)
                self._operand(self.shares[token.text])
            case "name":
                self._name(token, token.text)
            case "count":
                self._repeat(token, *self._bounds(token))
            case "mark":
                self._mark(token, token.text)
            case "end":
                self._close(token)
            case _:
                self._unexpected(token, "a term")

    def _mark(self, token: _Token, mark: str) -> None:
        frame = self.frames[-1]
        match mark:
            case "*" | "+" | "?":
                self._repeat(token, *_COUNTS[mark])
            case ".":
                self._operand(ANY_CHAR)
            case "(":
                self._open_parenthesis(token)
            case "@":
                self._open_capture(token)
            case "~":
                self._settle_operand(frame)
                frame.tildes += 1
            case "|":
                frame.choices.append(self._conjunction(frame, token))
            case "&":
                frame.conjuncts.append(self._sequence(frame, token))
            case ")" | ";" | "}" | ",":
                self._close(token)
            case _:
                self._unexpected(token, "a term")

    def _operand(self, term: Grammar) -> None:
        frame = self.frames[-1]
        self._settle_operand(frame)
        frame.operand = term

    def _repeat(self, token: _Token, low: int, high: int | None) -> None:
        frame = self.frames[-1]
        if frame.operand is None:
            self._unexpected(token, "a term before the repetition")
        if frame.repeated:
            self._fail("a repetition of a repetition needs parentheses", token.start, token.end)
        frame.operand, frame.repeated = Repeat(frame.operand, low, high), True

    def _name(self, token: _Token, name: str) -> None:
        if name not in KEYWORDS:
            self._operand(Reference(name))
        elif name == "rules":
            if not self.frames[-1].is_empty:
                self._fail("rules inside a term need parentheses", token.start, token.end)
            self._expect("mark", "{", "'{' after 'rules'")
            self.frames[-1].scopes.append({})
            self._next_rule()
        elif name == "token":
            self._special_token()
        elif name == "distinct":
            is_spare, is_endless = self._at("mark", "?"), self._at("mark", "*")
            if is_spare or is_endless:
                self._take()
            begin = self._expect("mark", "(", "'(' after 'distinct'")
            self._open(begin, lambda term: Distinct(term, is_spare, is_endless))
        elif name == "tokens":
            self._token_set()
        elif name == "temperature":
            self._open_tempered()
        elif name == "budget":
            self._open_budget()
        elif name == "label":
            self._open_label()
        elif name in {"json", "shared"}:
            wrap = JsonString if name == "json" else Shared
            self._open(self._expect("mark", "(", f"'(' after {name!r}"), wrap)
        elif name == "permutation":
            count = self._take() if self.ahead.kind == "count" else None
            self._expect("mark", "(", "'(' after 'permutation'")
            self._next_part(token, count, [[]])
        else:
            self._unexpected(token, f"a term (write <{name}> for the rule of this name)")

    def _special_token(self) -> None:
        or_text = self._at("mark", "?")
        if or_text:
            self._take()
        self._expect("mark", "(", "'(' after 'token'")
        value = self._take()
        if value.kind != "string" and (or_text or value.kind != "number"):
            self._unexpected(value, "the text or the id of a special token")
        self._expect("mark", ")", "')'")
        if value.kind == "number":
            self._operand(SpecialToken(self._integer(value, value.text)))
        else:
            text = self._spelled(read_text, value.start + 1, value.end - 1)
            if or_text and not text:
                self._fail("a token without text cannot be written as text", value.start, value.end)
            self._operand(SpecialToken(text, or_text))

    # Brackets

    def _open(self, token: _Token, wrap: Callable[[Grammar], Grammar] | None) -> None:
        def done(frame: _Frame, end: _Token) -> None:
            term = self._term(frame, end)
            self._operand(wrap(term) if wrap is not None else term)

        self.frames.append(_Frame(token.start, ")", done))

    def _open_parenthesis(self, token: _Token) -> None:
        if self.ahead.kind == "mark" and self.ahead.text in _LONE:
            make = _LONE[self._take().text]
            if not self._at("mark", ")"):
                self._open(token, lambda term: make((term,)))
                return
        else:
            make = Sequence
            if not self._at("mark", ")"):
                self._open(token, None)
                return
        self._take()
        self._operand(make(()))

    def _open_capture(self, token: _Token) -> None:
        name = self._binder("the name of a capture")
        self._expect("mark", "(", "'(' after the name of a capture")
        self._open(token, lambda term: Capture(name, term))

    def _open_label(self) -> None:
        kind = next((kind for kind, mark in LABEL_MARKS.items() if mark and self._at("mark", mark)), None)
        if kind is not None:
            self._take()
        begin = self._expect("mark", "(", "'(' after 'label'")
        self._open(begin, lambda term: Label(term, kind or "a-label"))

    def _token_set(self) -> None:
        """Read ``except``, if it is there, and the list of tokens in parentheses."""
        is_excluded = self._at("name", "except")
        if is_excluded:
            self._take()
        begin = self._expect("mark", "(", "'(' after 'tokens'")
        tokens: list[str | int | tuple[int, int]] = []
        while not self._at("mark", ")"):
            if tokens:
                self._expect("mark", ",", "',' or ')' after a token")
            value = self._take()
            if value.kind == "string":
                tokens.append(self._spelled(read_text, value.start + 1, value.end - 1))
                continue
            if value.kind != "number":
                self._unexpected(value, "the text or the id of a token")
            low = high = self._integer(value, value.text)
            if self._at("name", "to"):
                self._take()
                last = self._take()
                if last.kind != "number":
                    self._unexpected(last, "the last id of a range")
                high = self._integer(last, last.text)
            tokens.append((low, high))
        end = self._take()
        try:
            self._operand(TokenSet(tokens, is_excluded))
        except ValueError as error:
            self._fail(str(error), begin.start, end.end)

    def _open_tempered(self) -> None:
        """Read the temperature, and open the frame of the item."""
        value = self._take()
        if value.kind != "string":
            self._unexpected(value, "a temperature in quotes")
        text = self._spelled(read_text, value.start + 1, value.end - 1)
        try:
            temperature = Tempered(EPSILON, float(text)).temperature
        except ValueError:
            self._fail(f"{text!r} is no temperature", value.start, value.end)
        begin = self._expect("mark", "(", "'(' after a temperature")
        self._open(begin, lambda term: Tempered(term, temperature))

    def _open_budget(self) -> None:
        """Read ``tokens n characters m``, one of them or both, and open the frame of the item."""
        bounds: dict[str, int] = {}
        while self.ahead.kind == "name" and self.ahead.text in {"tokens", "characters"} - bounds.keys():
            what = self._take().text
            number = self._take()
            if number.kind != "number" or number.text.startswith("-"):
                self._unexpected(number, f"a number of {what}")
            bounds[what] = self._integer(number, number.text)
        if not bounds:
            self._unexpected(self.ahead, "'tokens' or 'characters' after 'budget'")
        begin = self._expect("mark", "(", "'(' after the bounds of a budget")
        self._open(begin, lambda term: Budget(term, bounds.get("tokens"), bounds.get("characters")))

    def _binder(self, what: str) -> str:
        token = self._take()
        if token.kind == "quoted":
            return self._spelled(read_text, token.start + 1, token.end - 1)
        if token.kind != "name" or token.text in KEYWORDS:
            self._unexpected(token, what)
        return token.text

    def _next_rule(self) -> None:
        """Read ``name =`` and open the frame of its expression, or ``} in``."""
        rules = self.frames[-1].scopes[-1]
        if self._at("mark", "}"):
            self._take()
            self._expect("name", "in", "'in' after the rules")
            return
        start = self.ahead
        name = self._binder("the name of a rule, or '}'")
        if name in rules:
            self._fail(f"rule {name!r} is bound twice", start.start, start.end)
        self._expect("mark", "=", "'=' after the name of a rule")

        def done(rule: _Frame, end: _Token) -> None:
            rules[name] = self._term(rule, end)
            if end.text == "}":
                self._expect("name", "in", "'in' after the rules")
            else:
                self._next_rule()

        self.frames.append(_Frame(start.start, ";}", done))

    def _next_share(self) -> None:
        """Read ``$n =`` and open the frame of its term, or ``in``."""
        if self._at("name", "in"):
            self._take()
            return
        token = self._take()
        if token.kind != "share" or token.text in self.shares:
            self._unexpected(token, "a new name such as '$1', or 'in'")
        self._expect("mark", "=", f"'=' after {token.text!r}")

        def done(frame: _Frame, end: _Token) -> None:
            self.shares[token.text] = self._term(frame, end)
            self._next_share()

        self.frames.append(_Frame(token.start, ";", done))

    def _next_part(self, head: _Token, count: _Token | None, parts: list[list[Grammar]]) -> None:
        """Read on in a permutation: lists of required and of optional items, further members, the separator."""
        while len(parts) <= _LISTS_OF_PERMUTATION and not parts[-1] and self._at("mark", ";"):
            self._take()
            parts.append([])

        def done(frame: _Frame, end: _Token) -> None:
            parts[-1].append(self._term(frame, end))
            if end.text == ")":
                required, optional, (rest,), (separator,) = parts
                low, high = (0, None) if count is None else self._bounds(count)
                if count is not None and high is not None and high < len(required):
                    self._fail(f"{len(required)} required items do not fit {count.text}", head.start, end.end)
                self._operand(Permutation(required, optional, rest, separator, low, high))
                return
            if end.text == ";":
                parts.append([])
            self._next_part(head, count, parts)

        close = ",;" if len(parts) <= _LISTS_OF_PERMUTATION else ";" if len(parts) < _PARTS_OF_PERMUTATION else ")"
        self.frames.append(_Frame(self.ahead.start, close, done))

    def _close(self, token: _Token) -> None:
        frame = self.frames[-1]
        if token.kind != "end" and token.text in frame.close:
            self.frames.pop()
            frame.done(frame, token)
        elif token.kind == "end" and frame.close != "end":
            self._fail(f"expected {frame.close[-1]!r} to close this", frame.start, frame.start + 1)
        elif token.kind == "end":
            frame.done(frame, token)
        else:
            self._unexpected(token, "a term" if frame.is_empty else "an operator, a term or the end")

    def _finish(self, frame: _Frame, end: _Token) -> None:
        self.result = self._term(frame, end)

    # Building terms

    def _settle_operand(self, frame: _Frame) -> None:
        if frame.operand is None:
            return
        term = frame.operand
        for _ in range(frame.tildes):
            term = Complement(term)
        frame.items.append(term)
        frame.operand, frame.tildes, frame.repeated = None, 0, False

    def _sequence(self, frame: _Frame, token: _Token) -> Grammar:
        self._settle_operand(frame)
        if frame.tildes or not frame.items:
            self._unexpected(token, "a term")
        items, frame.items = frame.items, []
        return items[0] if len(items) == 1 else Sequence(items)

    def _conjunction(self, frame: _Frame, token: _Token) -> Grammar:
        last = self._sequence(frame, token)
        if not frame.conjuncts:
            return last
        conjuncts, frame.conjuncts = [*frame.conjuncts, last], []
        return Intersection(conjuncts)

    def _term(self, frame: _Frame, token: _Token) -> Grammar:
        last = self._conjunction(frame, token)
        term = Choice([*frame.choices, last]) if frame.choices else last
        for rules in reversed(frame.scopes):
            term = Rules(rules, term)
        return term

    # Spellings

    def _integer(self, token: _Token, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python refuses to convert more than some thousand digits
            self._fail("number has too many digits", token.start, token.end)

    def _bounds(self, token: _Token) -> tuple[int, int | None]:
        low, comma, high = token.text[1:-1].partition(",")
        first = self._integer(token, low)
        if not comma:
            return first, first
        last = self._integer(token, high) if high.strip() else None
        if last is not None and last < first:
            self._fail(f"the bounds {first}..{last} contain no count", token.start, token.end)
        return first, last

    def _spelled(self, read: Callable[[str, int, int], _Value], start: int, end: int) -> _Value:
        try:
            return read(self.text, start, end)
        except SpellingError as error:
            self._fail(error.problem, *error.span)
