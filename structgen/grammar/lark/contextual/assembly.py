"""The grammar of the result: variants and lexemes as rules of the IR."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final

from structgen.grammar.algebra import either, joined
from structgen.grammar.analysis import strongly_connected
from structgen.grammar.lark.contextual.contexts import Context, Piece
from structgen.grammar.lark.contextual.terms import paths
from structgen.grammar.lark.contextual.variants import Variants
from structgen.grammar.nodes import EPSILON, Grammar, Reference

__all__ = ["Assembly"]

_HELPER: Final = re.compile(r"__(.+)_(?:star|plus|repeat)_(?:a\d+_b\d+_(?:opt_)?)?\d+")
"""The rules that Lark writes for operators."""


class Assembly:
    """Writes the rules.

    Attributes:
        rules: terms by name.
    """

    def __init__(self, variants: Variants, named: Container[str], subject: str) -> None:
        """Write the rules of the variants.

        Args:
            variants: which are solved.
            named: the terminals that have a name in the grammar text; others stand in place.
            subject: what errors are about.
        """
        self.rules: dict[str, Grammar] = {}
        self._variants = variants
        self._named = named
        self._subject = subject
        self._taken: dict[str, int] = {}
        self._lexemes: dict[tuple[str, Grammar], Grammar] = {}
        self._labels: dict[int, Grammar] = {}
        self._terms: dict[int, Grammar] = {}
        self._used: dict[int, Grammar] = {}
        self._write()

    def body(self, before: Mapping[Context, Grammar], starts: Mapping[Context, list[int]]) -> Grammar:
        """The whole: ignored text and what may come then."""
        return either(
            joined([term, either(self._used[variant] for variant in starts[context])])
            for context, term in before.items()
            if starts[context]
        )

    def _write(self) -> None:
        variants = self._variants.variants
        chains = self._chains()
        in_place = {number for chain in chains for number in chain}
        names: dict[int, str] = {}
        for number, variant in enumerate(variants):
            if number not in in_place:
                helper = _HELPER.fullmatch(variant.origin)
                names[number] = self._unique(f"{helper[1]}.repeated" if helper else variant.origin)
                self._used[number] = Reference(names[number])
        for chain in chains:
            self._write_chain(chain)
        for number, name in names.items():
            self.rules[name] = self._term(variants[number].root)

    def _chains(self) -> list[list[int]]:
        """The variants of Lark's own rules that are written in place, each set before those that use it."""
        variants = self._variants.variants
        helpers = {number: variant.origin for number, variant in enumerate(variants) if variant.origin.startswith("__")}
        begins: dict[int, list[int]] = {}
        for number, origin in helpers.items():
            edges = self._variants.nodes[variants[number].root][1]
            begins[number] = [used for is_lexeme, used, _ in edges if not is_lexeme and helpers.get(used) == origin]
        chains = [chain for chain in strongly_connected(begins) if self._is_chain(chain)]
        home = {number: index for index, chain in enumerate(chains) for number in chain}
        needs: dict[int, list[int]] = {}
        for index, chain in enumerate(chains):
            used = {home[other] for number in chain for other in self._uses(variants[number].root) if other in home}
            needs[index] = sorted(used - {index})
        # A circle of them would have no end; Lark writes none.
        return [chains[circle[0]] for circle in strongly_connected(needs) if len(circle) == 1]

    def _uses(self, root: int) -> list[int]:
        found: dict[int, None] = {}
        for node in self._below(root):
            found.update((number, None) for is_lexeme, number, _ in self._variants.nodes[node][1] if not is_lexeme)
        return list(found)

    def _below(self, root: int) -> list[int]:
        seen = {root}
        found = [root]
        for node in found:
            for _, _, target in self._variants.nodes[node][1]:
                if target not in seen:
                    seen.add(target)
                    found.append(target)
        return found

    def _is_chain(self, component: list[int]) -> bool:
        """Whether these variants refer to each other at their beginning only."""
        inside = set(component)
        for number in component:
            variant = self._variants.variants[number]
            for node in self._below(variant.root):
                edges = self._variants.nodes[node][1]
                if node != variant.root and any(not is_lexeme and used in inside for is_lexeme, used, _ in edges):
                    return False
        return True

    def _write_chain(self, component: list[int]) -> None:
        """Solve ``X = first | Y rest | ...``, a left-linear system: each first, then a path along the rests."""
        inside = set(component)
        graph: dict[object, list[tuple[Grammar, object]]] = {number: [] for number in component}
        begin: dict[int, Grammar] = {}
        for number in component:
            is_final, edges = self._variants.nodes[self._variants.variants[number].root]
            parts = [EPSILON] if is_final else []
            for is_lexeme, used, target in edges:
                if not is_lexeme and used in inside:
                    graph[used].append((self._term(target), number))
                else:
                    parts.append(joined([self._label(is_lexeme, used), self._term(target)]))
            if parts:
                begin[number] = either(parts)
        solved = paths(graph, {number: number for number in component}, self._subject)
        for number in component:
            self._used[number] = either(
                joined([first, solved[origin][number]]) for origin, first in begin.items() if number in solved[origin]
            )

    def _term(self, root: int) -> Grammar:
        """The term of a node and those behind it; the variants that it uses must be known."""
        nodes = self._variants.nodes
        for node in sorted(self._below(root)):
            if node in self._terms:
                continue
            is_final, edges = nodes[node]
            parts = [joined([self._label(*edge[:2]), self._terms[edge[2]]]) for edge in edges]
            self._terms[node] = either([*parts, EPSILON] if is_final and parts else parts or [EPSILON])
        return self._terms[root]

    def _label(self, is_lexeme: bool, number: int) -> Grammar:
        if not is_lexeme:
            return self._used[number]
        found = self._labels.get(number)
        if found is None:
            pieces = self._variants.labels[number]
            found = self._labels[number] = either(joined([self._lexeme(piece), piece.ignored]) for piece in pieces)
        return found

    def _lexeme(self, piece: Piece) -> Grammar:
        if piece.token not in self._named:
            return piece.lexemes
        key = (piece.token, piece.lexemes)
        found = self._lexemes.get(key)
        if found is None:
            name = self._unique(piece.token)
            self.rules[name] = piece.lexemes
            found = self._lexemes[key] = Reference(name)
        return found

    def _unique(self, name: str) -> str:
        count = self._taken[name] = self._taken.get(name, 0) + 1
        return name if count == 1 else f"{name}.{count}"
