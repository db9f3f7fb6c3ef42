"""Read the text that :mod:`structgen.grammar.printer` writes back into the same term.

The syntax is stated in ``docs/reference/grammar-ir.md``.  ``parse(to_text(g)) == g`` for every term without
descriptions, so the reader simplifies nothing: ``"a" "b"`` is a sequence of two literals, not ``"ab"``.

A shift-reduce parser with an explicit stack: nesting costs memory, never recursion.
"""

from __future__ import annotations

from collections.abc import Callable

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar
from structgen.grammar.spelling import (
    COUNTS,
    KEYWORDS,
    LABEL_MARKS,
    LISTS_OF_PERMUTATION,
    LONE,
    PARTS_OF_PERMUTATION,
    Frame,
    Token,
    TokenReader,
    read_bytes,
    read_class,
    read_text,
)

__all__ = ["parse"]


def parse(text: str) -> Grammar:
    """Read a grammar term from what ``to_text`` writes; whitespace is free and ``#`` starts a comment.

    Raises:
        GrammarSyntaxError: the text does not parse; the error has the span.

    Complexity: O(len(text)).

    >>> print(parse('"a" ("," "a"){0,2}'))
    "a" ("," "a"){0,2}
    """
    return _Parser(text).parse()


class _Parser(TokenReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.frames: list[Frame] = []
        self.bindings: dict[str, Grammar] = {}
        self.result: Grammar | None = None

    def parse(self) -> Grammar:
        self.frames.append(Frame(0, "end", self._finish))
        if self._at("name", "let"):
            self._take()
            self._next_binding()
        while self.result is None:
            self._step(self._take())
        return self.result

    # One token at a time

    def _step(self, token: Token) -> None:
        match token.kind:
            case "string":
                data = self._spelled(read_bytes, token.start + 1, token.end - 1)
                self._operand(ir.Literal(data))
            case "class":
                self._operand(self._spelled(read_class, token.start, token.end))
            case "quoted":
                self._operand(ir.Reference(self._spelled(read_text, token.start + 1, token.end - 1)))
            case "share":
                if token.text not in self.bindings:
                    self._fail(f"{token.text} is not bound before its use", token.start, token.end)
                self._operand(self.bindings[token.text])
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

    def _mark(self, token: Token, mark: str) -> None:
        frame = self.frames[-1]
        match mark:
            case "*" | "+" | "?":
                self._repeat(token, *COUNTS[mark])
            case ".":
                self._operand(ir.ANY_CHAR)
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

    def _repeat(self, token: Token, low: int, high: int | None) -> None:
        frame = self.frames[-1]
        if frame.operand is None:
            self._unexpected(token, "a term before the repetition")
        if frame.repeated:
            self._fail("a repetition of a repetition needs parentheses", token.start, token.end)
        frame.operand, frame.repeated = ir.Repeat(frame.operand, low, high), True

    def _name(self, token: Token, name: str) -> None:
        if name not in KEYWORDS:
            self._operand(ir.Reference(name))
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
            self._open(begin, lambda term: ir.Distinct(term, is_spare, is_endless))
        elif name == "tokens":
            self._token_set()
        elif name == "temperature":
            self._open_tempered()
        elif name == "budget":
            self._open_budget()
        elif name == "label":
            self._open_label()
        elif name in {"json", "shared"}:
            wrap = ir.JsonString if name == "json" else ir.Shared
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
            self._operand(ir.SpecialToken(self._integer(value, value.text)))
        else:
            text = self._spelled(read_text, value.start + 1, value.end - 1)
            if or_text and not text:
                self._fail("a token without text cannot be written as text", value.start, value.end)
            self._operand(ir.SpecialToken(text, or_text))

    # Brackets

    def _open(self, token: Token, wrap: Callable[[Grammar], Grammar] | None) -> None:
        def done(frame: Frame, end: Token) -> None:
            term = self._term(frame, end)
            self._operand(wrap(term) if wrap is not None else term)

        self.frames.append(Frame(token.start, ")", done))

    def _open_parenthesis(self, token: Token) -> None:
        if self.ahead.kind == "mark" and self.ahead.text in LONE:
            make = LONE[self._take().text]
            if not self._at("mark", ")"):
                self._open(token, lambda term: make((term,)))
                return
        else:
            make = ir.Sequence
            if not self._at("mark", ")"):
                self._open(token, None)
                return
        self._take()
        self._operand(make(()))

    def _open_capture(self, token: Token) -> None:
        name = self._binder("the name of a capture")
        self._expect("mark", "(", "'(' after the name of a capture")
        self._open(token, lambda term: ir.Capture(name, term))

    def _open_label(self) -> None:
        kind = next((kind for kind, mark in LABEL_MARKS.items() if mark and self._at("mark", mark)), None)
        if kind is not None:
            self._take()
        begin = self._expect("mark", "(", "'(' after 'label'")
        self._open(begin, lambda term: ir.Label(term, kind or "a-label"))

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
            self._operand(ir.TokenSet(tokens, is_excluded))
        except ValueError as error:
            self._fail(str(error), begin.start, end.end)

    def _open_tempered(self) -> None:
        """Read the temperature, and open the frame of the item."""
        value = self._take()
        if value.kind != "string":
            self._unexpected(value, "a temperature in quotes")
        text = self._spelled(read_text, value.start + 1, value.end - 1)
        try:
            temperature = ir.Tempered(ir.EPSILON, float(text)).temperature
        except ValueError:
            self._fail(f"{text!r} is no temperature", value.start, value.end)
        begin = self._expect("mark", "(", "'(' after a temperature")
        self._open(begin, lambda term: ir.Tempered(term, temperature))

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
        self._open(begin, lambda term: ir.Budget(term, bounds.get("tokens"), bounds.get("characters")))

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

        def done(rule: Frame, end: Token) -> None:
            rules[name] = self._term(rule, end)
            if end.text == "}":
                self._expect("name", "in", "'in' after the rules")
            else:
                self._next_rule()

        self.frames.append(Frame(start.start, ";}", done))

    def _next_binding(self) -> None:
        """Read ``$n =`` and open the frame of its term, or ``in``."""
        if self._at("name", "in"):
            self._take()
            return
        token = self._take()
        if token.kind != "share" or token.text in self.bindings:
            self._unexpected(token, "a new name such as '$1', or 'in'")
        self._expect("mark", "=", f"'=' after {token.text!r}")

        def done(frame: Frame, end: Token) -> None:
            self.bindings[token.text] = self._term(frame, end)
            self._next_binding()

        self.frames.append(Frame(token.start, ";", done))

    def _next_part(self, head: Token, count: Token | None, parts: list[list[Grammar]]) -> None:
        """Read the next part of a permutation: required items, optional items, the rest, the separator."""
        while len(parts) <= LISTS_OF_PERMUTATION and not parts[-1] and self._at("mark", ";"):
            self._take()
            parts.append([])

        def done(frame: Frame, end: Token) -> None:
            parts[-1].append(self._term(frame, end))
            if end.text == ")":
                required, optional, (rest,), (separator,) = parts
                low, high = (0, None) if count is None else self._bounds(count)
                if count is not None and high is not None and high < len(required):
                    self._fail(f"{len(required)} required items do not fit {count.text}", head.start, end.end)
                self._operand(ir.Permutation(required, optional, rest, separator, low, high))
                return
            if end.text == ";":
                parts.append([])
            self._next_part(head, count, parts)

        close = ",;" if len(parts) <= LISTS_OF_PERMUTATION else ";" if len(parts) < PARTS_OF_PERMUTATION else ")"
        self.frames.append(Frame(self.ahead.start, close, done))

    def _close(self, token: Token) -> None:
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

    def _finish(self, frame: Frame, end: Token) -> None:
        self.result = self._term(frame, end)

    # Building terms

    def _settle_operand(self, frame: Frame) -> None:
        if frame.operand is None:
            return
        term = frame.operand
        for _ in range(frame.tildes):
            term = ir.Complement(term)
        frame.items.append(term)
        frame.operand, frame.tildes, frame.repeated = None, 0, False

    def _sequence(self, frame: Frame, token: Token) -> Grammar:
        self._settle_operand(frame)
        if frame.tildes or not frame.items:
            self._unexpected(token, "a term")
        items, frame.items = frame.items, []
        return items[0] if len(items) == 1 else ir.Sequence(items)

    def _conjunction(self, frame: Frame, token: Token) -> Grammar:
        last = self._sequence(frame, token)
        if not frame.conjuncts:
            return last
        conjuncts, frame.conjuncts = [*frame.conjuncts, last], []
        return ir.Intersection(conjuncts)

    def _term(self, frame: Frame, token: Token) -> Grammar:
        last = self._conjunction(frame, token)
        term = ir.Choice([*frame.choices, last]) if frame.choices else last
        for rules in reversed(frame.scopes):
            term = ir.Rules(rules, term)
        return term
