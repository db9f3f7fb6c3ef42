"""Membership of a few texts in an IR term, by set algebra: the oracle of the tests of regular expressions.

A :class:`Universe` is a finite set of texts closed under substrings, so that every operator of the IR can be computed
on the strings inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar

Texts = frozenset[str]


def texts_up_to(length: int, alphabet: str) -> list[str]:
    """All texts over ``alphabet`` of at most ``length`` characters."""
    return ["".join(text) for size in range(length + 1) for text in product(alphabet, repeat=size)]


class Universe:
    """All substrings of some texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        parts = {text[start:end] for text in texts for end in range(len(text) + 1) for start in range(end + 1)}
        self.texts: Texts = frozenset(parts | {""})
        self.longest = max(map(len, self.texts))
        self._splits = [
            (text, [(text[:cut], text[cut:]) for cut in range(len(text) + 1)]) for text in sorted(self.texts)
        ]
        self._single = frozenset(text for text in self.texts if len(text) == 1)

    def members(self, term: Grammar) -> Texts:
        """The texts of the universe that belong to ``term``."""
        known: dict[int, Texts] = {}
        for node in ir.postorder(term):
            known[id(node)] = self._combined(node, [known[id(child)] for child in node.children])
        return known[id(term)]

    def _combined(self, node: Grammar, parts: list[Texts]) -> Texts:
        match node:
            case ir.Literal(data=data):
                return self.texts & {data.decode()}
            case ir.CharClass(ranges=ranges):
                return frozenset(text for text in self._single if any(low <= ord(text) <= high for low, high in ranges))
            case ir.Sequence():
                return self._concatenation(parts)
            case ir.Choice():
                return frozenset().union(*parts)
            case ir.Repeat(min=least, max=most):
                return self._repetition(parts[0], least, most)
            case ir.Intersection():
                return self.texts.intersection(*parts)
            case ir.Complement():
                return self.texts - parts[0]
        [same] = parts
        return same

    def _concatenation(self, parts: list[Texts]) -> Texts:
        done: Texts = frozenset({""})
        for part in parts:
            done = frozenset(
                text for text, splits in self._splits if any(left in done and right in part for left, right in splits)
            )
        return done

    def _repetition(self, item: Texts, least: int, most: int | None) -> Texts:
        if item >= self._single and least == 0 and most is None:
            return self.texts
        filled = item - {""}
        if "" in item:
            least = 0
        found: set[str] = set()
        power: Texts = frozenset({""})
        for count in range(self.longest + 1 if most is None else min(self.longest, most) + 1):
            if count >= least:
                found |= power
            power = self._concatenation([power, filled])
        return frozenset(found)
