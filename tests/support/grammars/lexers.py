"""Grammars of lexemes read by brute force: an Earley parser over the lexemes of all divisions, or of the longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeAlias

import regex

__all__ = ["LexemeGrammar", "Piece"]

Symbols: TypeAlias = tuple[str, ...]


class Piece(NamedTuple):
    """A lexeme: a pattern of Python's ``regex``, whether it is lazy, and a stop at its end, which is no part of it."""

    pattern: str
    is_lazy: bool = False
    stop: str = ""


class _Item(NamedTuple):
    rule: str
    symbols: Symbols
    dot: int
    origin: int


_Chart: TypeAlias = tuple[frozenset[_Item], ...]


@cache
def _belongs(pattern: str, text: str) -> bool:
    return regex.fullmatch(pattern, text) is not None


@cache
def _is_begun(pattern: str, text: str) -> bool:
    return regex.fullmatch(pattern, text, partial=True) is not None


@dataclass(eq=False)
class LexemeGrammar:
    """Rules over lexemes; symbols that are no rules name pieces.

    Attributes:
        rules: the alternatives of each rule.
        pieces: the lexemes; none is empty.
    """

    rules: dict[str, list[Symbols]]
    pieces: dict[str, Piece]
    nullable: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.nullable = set()
        while True:
            new = {
                rule
                for rule, alternatives in self.rules.items()
                if any(all(symbol in self.nullable for symbol in symbols) for symbols in alternatives)
            }
            if new == self.nullable:
                return
            self.nullable = new

    def _completed(self, before: _Chart, kernel: set[_Item]) -> _Chart:
        here, items = len(before), set(kernel)
        agenda = list(kernel)
        while agenda:
            item = agenda.pop()
            new: set[_Item] = set()
            if item.dot == len(item.symbols):
                waiting = items if item.origin == here else before[item.origin]
                new |= {
                    other._replace(dot=other.dot + 1)
                    for other in waiting
                    if other.dot < len(other.symbols) and other.symbols[other.dot] == item.rule
                }
            else:
                symbol = item.symbols[item.dot]
                new |= {_Item(symbol, symbols, 0, here) for symbols in self.rules.get(symbol, ())}
                if symbol in self.nullable:
                    new.add(item._replace(dot=item.dot + 1))
            agenda += new - items
            items |= new
        return (*before, frozenset(items))

    def first(self) -> _Chart:
        """The chart before the first lexeme."""
        return self._completed((), {_Item("start", symbols, 0, 0) for symbols in self.rules["start"]})

    def allowed(self, chart: _Chart) -> set[str]:
        """The lexemes that may come next."""
        found = {item.symbols[item.dot] for item in chart[-1] if item.dot < len(item.symbols)}
        return found & self.pieces.keys()

    def after(self, chart: _Chart, read: set[str]) -> _Chart:
        """The chart after a lexeme that is any one of ``read``."""
        kernel = {
            item._replace(dot=item.dot + 1)
            for item in chart[-1]
            if item.dot < len(item.symbols) and item.symbols[item.dot] in read
        }
        return self._completed(chart, kernel)

    def is_complete(self, chart: _Chart) -> bool:
        """Whether the lexemes read so far are a sentence."""
        return any(item.rule == "start" and item.dot == len(item.symbols) and item.origin == 0 for item in chart[-1])

    def _lexemes(self, text: str, start: int, allowed: set[str], shortest: int = 1) -> Iterator[tuple[int, set[str]]]:
        """Where lexemes that begin at ``start`` may end, and which; not beyond the first match of a lazy one.

        Lazy matches of fewer than ``shortest`` characters end nothing.
        """
        for end in range(start + 1, len(text) + 1):
            read = {name for name in allowed if _belongs(self.pieces[name].pattern, text[start:end])}
            if end - start >= shortest and any(self.pieces[name].is_lazy for name in read):
                read = {name for name in read if self.pieces[name].is_lazy and not self.pieces[name].stop}
                if read:
                    yield end, read
                break
            if read:
                yield end, read
        for name in allowed:
            pattern, _, stop = self.pieces[name]
            for end in range(start + 1, len(text) + 1) if stop else ():
                whole = text[start:end] + stop
                if [size for size in range(len(whole) + 1) if _belongs(pattern, whole[:size])] == [len(whole)]:
                    yield end, {name}

    def accepts(self, text: str) -> bool:
        """Whether some division of the text is a sentence in which lazy lexemes commit.

        A text that is that of different pieces is read as any one of them.
        """
        agenda = [(0, self.first())]
        while agenda:
            start, chart = agenda.pop()
            if start == len(text) and self.is_complete(chart):
                return True
            for end, read in self._lexemes(text, start, self.allowed(chart)):
                alike = [
                    {name for name in read if self.pieces[name] == piece} for piece in set(map(self.pieces.get, read))
                ]
                agenda += [(end, self.after(chart, names)) for names in alike]
        return False

    def accepts_longest(self, text: str) -> bool:
        """Whether the one division by the longest match is a sentence; a match of a lazy lexeme ends it.

        A text that is that of different pieces is read as all of them.

        As in llguidance 1.9, the character that shows the end of a lexeme ends no lazy match by itself.
        """
        start, chart, is_seen = 0, self.first(), False
        while start < len(text):
            allowed = self.allowed(chart)
            rest = text[start:]
            ends = list(self._lexemes(text, start, allowed, shortest=2 if is_seen else 1))
            if not ends:
                return False
            end, read = ends[-1]
            is_lazy = end - start > is_seen and any(self.pieces[name].is_lazy for name in read)
            is_seen = False
            if not is_lazy:
                if self._goes_on(rest[: end - start + 1], allowed) and end < len(text):
                    return False
                is_seen = any(self._goes_on(text[start:end] + letter, allowed) for letter in set("ab<"))
            start, chart = end, self.after(chart, read)
        return self.is_complete(chart)

    def _goes_on(self, text: str, allowed: set[str]) -> bool:
        """Whether some lexeme begins with ``text``."""
        return any(_is_begun(self.pieces[name].pattern, text) for name in allowed)
