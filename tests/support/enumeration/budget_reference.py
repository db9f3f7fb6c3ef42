"""What budgets of tokens mean, by brute force: all readings of a token sequence, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from structgen.grammar import nodes as ir
from structgen.testing.node_semantics import repeats

Symbol: TypeAlias = int | str
"""A byte, or the text of a special token."""


class Readings:
    """The readings of one token sequence, each token a string of symbols."""

    def __init__(self, tokens: Sequence[Sequence[Symbol]]) -> None:
        self.symbols: list[Symbol] = [symbol for token in tokens for symbol in token]
        self.token_of = [index for index, token in enumerate(tokens) for _ in token]

    def are_any(self, grammar: ir.Grammar) -> bool:
        return len(self.symbols) in set(self.ends(grammar, 0, {}))

    def ends(self, term: ir.Grammar, start: int, rules: Mapping[str, ir.Grammar]) -> set[int]:
        """Where readings of ``term`` that start at ``start`` may end."""
        match term:
            case ir.Literal(data=data):
                end = start + len(data)
                return {end} if self.symbols[start:end] == list(data) else set()
            case ir.CharClass(ranges=ranges) | ir.ByteClass(ranges=ranges):
                found = self.symbols[start : start + 1]
                is_in = bool(found) and isinstance(found[0], int) and any(a <= found[0] <= b for a, b in ranges)
                return {start + 1} if is_in else set()
            case ir.SpecialToken(token=token):
                return {start + 1} if self.symbols[start : start + 1] == [token] else set()
            case ir.Sequence(items=items):
                places = {start}
                for item in items:
                    places = {end for place in places for end in self.ends(item, place, rules)}
                return places
            case ir.Choice(items=items):
                return {end for item in items for end in self.ends(item, start, rules)}
            case ir.Repeat():
                return self.ends_of_repeat(term, start, rules)
            case ir.Reference(name=name):
                return self.ends(rules[name], start, rules)
            case ir.Rules(rules=bound, body=body):
                return self.ends(body, start, {**rules, **dict(bound)})
            case ir.Capture(item=item) | ir.Shared(item=item):
                return self.ends(item, start, rules)
            case ir.Distinct(item=item):
                return {end for end in self.ends(item, start, rules) if not repeats(self.text(start, end))}
            case ir.Budget(item=item, tokens=most):
                return {end for end in self.ends(item, start, rules) if most is None or self.count(start, end) <= most}
        raise TypeError(type(term).__name__)

    def ends_of_repeat(self, term: ir.Repeat, start: int, rules: Mapping[str, ir.Grammar]) -> set[int]:
        found: set[int] = set()
        places, count = {start}, 0
        while places and (term.max is None or count <= term.max):
            if count >= term.min:
                if places <= found:  # an item was empty, or all ends are known
                    break
                found |= places
            places = {end for place in places for end in self.ends(term.item, place, rules)}
            count += 1
        return found

    def text(self, start: int, end: int) -> bytes:
        """A part without special tokens."""
        return bytes(symbol for symbol in self.symbols[start:end] if isinstance(symbol, int))

    def count(self, start: int, end: int) -> int:
        """How many tokens have a symbol of this part."""
        return len(set(self.token_of[start:end]))


def members(grammar: ir.Grammar, tokens: Mapping[int, Sequence[Symbol]], length: int) -> Iterator[tuple[int, ...]]:
    """All token sequences up to a length that have a reading within all budgets."""
    level: list[tuple[int, ...]] = [()]
    for size in range(length + 1):
        for one in level:
            if Readings([tokens[token] for token in one]).are_any(grammar):
                yield one
        if size < length:
            level = [(*one, token) for one in level for token in tokens]
