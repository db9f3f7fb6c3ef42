"""Report of what a Constraint enforces, and how: the front end's entries, with lengths and sizes from the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from structgen.errors import LimitExceeded
from structgen.grammar import nodes as ir
from structgen.grammar.analysis import productive_rules, strongly_connected
from structgen.grammar.lengths import Longest, longest
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.nodes.description import Described, ReportEntry, Status, entry_table
from structgen.grammar.scopes import resolve

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint

__all__ = ["Report", "entries_of", "report_of", "typical_length"]

_LinearForm = dict[str, float]
"""A linear expression in the expected lengths of rules: their coefficients, and the constant under ``_CONSTANT``."""
_Known = tuple[dict[int, _LinearForm], dict[int, bool]]
"""The forms of nodes, and whether a derivation of them ends, by ``id``."""
_CONSTANT: Final = "\0"
_MAX_MATRIX: Final = 300
_MAX_SUMMANDS: Final = 2_000_000
"""Additions of the iteration, which replaces the matrix if there are more than ``_MAX_MATRIX`` rules."""
"""Rows of the table for notebooks."""
_OF_TOKENS: Final = ("shortest_tokens", "longest_tokens", "vocabulary_size", "unspellable_bytes")
_SMALL: Final = Limits(grammar_nodes=100_000)


def typical_length(grammar: Grammar) -> float:
    """Return the expected length, in characters, of a random derivation of a closed term; infinite if it diverges.

    A derivation chooses each non-empty alternative with equal probability, continues a repetition beyond its minimum
    with probability 1/2 up to its bound, and includes an optional item of a permutation with probability 1/2.  A class
    counts as one character, an intersection as its first item that is no complement, and a complement and a special
    token as one character each.

    The value depends on how the rules are written, not on the language alone.  If it is infinite, recursion branches so
    much that random choices need not end.

    Raises:
        LimitExceeded: the rules have more than 100,000 nodes, or the iteration does not converge.
        GrammarError: a reference has no rule.

    Complexity: O(n + s ** 3) for n nodes and strongly connected sets of s rules; sets of more than 300 rules are solved
        by a bounded number of iterations.

    >>> from structgen.frontends.regex import regex
    >>> typical_length(regex("ab?c*|de{3}"))
    3.25
    """
    flat = resolve(grammar, _SMALL, through_shared=True)
    rules = dict(flat.rules)
    productive = productive_rules(rules)
    known: _Known = {}, {}
    forms = {name: _form(term, productive, known) for name, term in rules.items()}
    solved: dict[str, float] = {}
    for group in strongly_connected(
        {name: [other for other in form if other != _CONSTANT] for name, form in forms.items()}
    ):
        solved |= _solve(group, forms, solved)
    return _value(_form(flat.body, productive, known), solved)


def _form(root: Grammar, productive: frozenset[str], known: _Known) -> _LinearForm:
    """The form of a term; rules share nodes, so what is known of nodes is kept."""
    made, alive = known
    for node in postorder(root, known=lambda node: id(node) in made):
        parts = [made[id(child)] for child in node.children]
        lives = [alive[id(child)] for child in node.children]
        alive[id(node)] = all(lives)
        match node:
            case ir.Literal():
                form = {_CONSTANT: float(len(node.data.decode("utf-8", "replace")))}
            case ir.Reference():
                form, alive[id(node)] = {node.name: 1.0}, node.name in productive
            case ir.Choice():
                chosen = [part for part, is_alive in zip(parts, lives, strict=True) if is_alive]
                form, alive[id(node)] = _sum((part, 1 / len(chosen)) for part in chosen), bool(chosen)
            case ir.Repeat():
                further = 1.0 if node.max is None else 1 - 0.5 ** min(node.max - node.min, 64)
                alive[id(node)] = lives[0] or node.min == 0
                form = _sum([(parts[0], node.min + further)]) if lives[0] else {}
            case ir.Permutation():
                form, alive[id(node)] = _arranged(node, parts, lives), True
            case ir.Intersection():
                positive = [
                    part for part, item in zip(parts, node.items, strict=True) if not isinstance(item, ir.Complement)
                ]
                form = positive[0] if positive else {_CONSTANT: 1.0}
            case ir.JsonString():
                form = _sum([(parts[0], 1.0), ({_CONSTANT: 2.0}, 1.0)])
            case ir.ByteClass() | ir.CharClass():
                form, alive[id(node)] = {_CONSTANT: 1.0}, bool(node.ranges)
            case ir.Complement():
                form, alive[id(node)] = {_CONSTANT: 1.0}, True
            case _ if not parts:
                form = {_CONSTANT: 1.0}
            case _:
                form = parts[0] if len(parts) == 1 else _sum((part, 1.0) for part in parts)
        made[id(node)] = form
    return made[id(root)]


def _arranged(node: ir.Permutation, parts: list[_LinearForm], lives: list[bool]) -> _LinearForm:
    *items, rest, separator = parts
    required, optional = items[: len(node.required)], items[len(node.required) :]
    others: float = max(node.min - len(required), 1) if lives[-2] else 0
    count: float = len(required) + len(optional) / 2 + others
    if node.max is not None and count > node.max:
        others = max(others - (count - node.max), 0)
        count = node.max
    return _sum(
        [
            *((part, 1.0) for part in required),
            *((part, 0.5) for part in optional),
            (rest, others),
            (separator, max(count - 1, 0)),
        ]
    )


def _sum(parts: Iterable[tuple[_LinearForm, float]]) -> _LinearForm:
    total: _LinearForm = {}
    for form, weight in parts:
        for name, value in form.items():
            total[name] = total.get(name, 0.0) + weight * value
    return {name: value for name, value in total.items() if value}


def _value(form: Mapping[str, float], solved: Mapping[str, float]) -> float:
    return sum(weight * (1.0 if name == _CONSTANT else solved[name]) for name, weight in form.items())


def _solve(group: list[str], forms: Mapping[str, _LinearForm], solved: Mapping[str, float]) -> dict[str, float]:
    """Solve rules that refer to each other, given the solutions of all other rules that they refer to."""
    index = {name: column for column, name in enumerate(group)}
    values = [_value({k: v for k, v in forms[name].items() if k not in index}, solved) for name in group]
    inner = {name: [(index[k], v) for k, v in forms[name].items() if k in index] for name in group}
    if not any(inner.values()):
        return dict(zip(group, values, strict=True))
    if not all(map(math.isfinite, values)):
        return dict.fromkeys(group, math.inf)
    constants = values.copy()
    if len(group) <= _MAX_MATRIX:
        import numpy as np  # slow to import, and few grammars are recursive

        matrix = np.zeros((len(group), len(group)))
        for name, edges in inner.items():
            for column, weight in edges:
                matrix[index[name], column] = weight
        if np.abs(np.linalg.eigvals(matrix)).max() >= 1 - 1e-9:
            return dict.fromkeys(group, math.inf)
        return dict(zip(group, np.linalg.solve(np.eye(len(group)) - matrix, constants).tolist(), strict=True))
    for _ in range(_MAX_SUMMANDS // sum(map(len, inner.values()))):
        change = 0.0
        for column, name in enumerate(group):
            value = constants[column] + sum(weight * values[other] for other, weight in inner[name])
            change = max(change, abs(value - values[column]) / (1 + value))
            values[column] = value
        if change < 1e-9:
            return dict(zip(group, values, strict=True))
        if max(values) > 1e12:
            return dict.fromkeys(group, math.inf)
    raise LimitExceeded("typical length of a grammar", limit="summands", maximum=_MAX_SUMMANDS)


@dataclass(frozen=True, slots=True)
class Report:
    """What a compiled grammar enforces.

    Attributes:
        sources: the front ends that made parts of the grammar, in order of appearance.
        entries: one per keyword or construct of the input.
        policies: choices that the input left open, as (name, value).
        shortest_bytes, shortest_tokens: length of the shortest string; EOS is not counted, and other special tokens
            count as one byte.
        longest_bytes, longest_tokens: bounds on the length of the longest string.
        typical_characters: the expected length of a random derivation (``typical_length``), in characters; infinite if
            it diverges, None if it is not known.
        grammar_nodes: distinct nodes of the grammar.
        terms: terms of an engine with only this grammar.
        states: states built so far; a state is built when it is first reached.
        vocabulary_size: number of token ids.
        unspellable: byte values that are no token by themselves; strings that need them may be out of reach.
    """

    sources: tuple[str, ...]
    entries: tuple[ReportEntry, ...]
    policies: tuple[tuple[str, str], ...]
    shortest_bytes: int
    shortest_tokens: int
    longest_bytes: Longest
    longest_tokens: Longest
    typical_characters: float | None
    grammar_nodes: int
    terms: int
    states: int
    vocabulary_size: int
    unspellable: bytes

    def with_status(self, status: Status) -> tuple[ReportEntry, ...]:
        """Return the entries of one status."""
        return tuple(entry for entry in self.entries if entry.status is status)

    def to_json(self, *, tokens: bool = True) -> dict[str, object]:
        """Return the report as JSON values, with or without what it says of the vocabulary."""
        values: dict[str, object] = {
            "sources": list(self.sources),
            "entries": [
                {"keyword": e.keyword, "where": e.where, "status": e.status.value, "detail": e.detail}
                for e in self.entries
            ],
            "policies": dict(self.policies),
            "shortest_bytes": self.shortest_bytes,
            "shortest_tokens": self.shortest_tokens,
            "longest_bytes": self.longest_bytes.to_json(),
            "longest_tokens": self.longest_tokens.to_json(),
            "typical_characters": self._typical_json(),
            "grammar_nodes": self.grammar_nodes,
            "terms": self.terms,
            "states": self.states,
            "vocabulary_size": self.vocabulary_size,
            "unspellable_bytes": list(self.unspellable),
        }
        return values if tokens else {name: value for name, value in values.items() if name not in _OF_TOKENS}

    def lines(self, *, tokens: bool = True) -> Iterator[str]:
        """Yield the report as text, line by line, with or without the lengths in tokens."""
        yield f"{', '.join(self.sources) or 'grammar'}: shortest string {self.shortest_bytes} bytes"
        for status in Status:
            entries = self.with_status(status)
            if entries:
                yield f"{status.value}:"
                yield from (f"  {e.where}  {e.keyword}" + (f"  ({e.detail})" if e.detail else "") for e in entries)
        if self.policies:
            yield "how values are written:"
            yield from (f"  {name}: {value}" for name, value in self.policies)
        yield f"length in bytes: shortest {self.shortest_bytes:,}; longest {self.longest_bytes}"
        if self.typical_characters is not None:
            yield f"typical length: {self._typical_text(self.typical_characters)}"
        if tokens:
            yield f"length in tokens: shortest {self.shortest_tokens:,}; longest {self.longest_tokens}"
        yield f"size: {self.grammar_nodes:,} grammar nodes, {self.terms:,} terms, {self.states:,} states so far"

    def _typical_json(self) -> float | str | None:
        value = self.typical_characters
        return value if value is None or math.isfinite(value) else "unbounded"

    @staticmethod
    def _typical_text(value: float) -> str:
        if math.isinf(value):
            return "none; random choices need not come to an end"
        return f"a random example has about {value:,.0f} characters"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        from structgen.markup import shortened

        counts = ", ".join(f"{len(held)} {status.value}" for status in Status if (held := self.with_status(status)))
        what = shortened(", ".join(self.sources) or "grammar")
        return f"Report({what}{counts and ': '}{counts}; strings of {self.shortest_bytes:,} bytes or more)"

    def _repr_html_(self) -> str:
        from structgen.markup import card, text_block

        facts = [line for line in self.lines() if not line.startswith("  ") and not line.endswith(":")]
        return card("Report", entry_table(self.entries), text_block("\n".join(facts)))


def entries_of(grammar: Grammar) -> tuple[tuple[str, ...], tuple[ReportEntry, ...], tuple[tuple[str, str], ...]]:
    """Collect the sources, entries and policies of every described part of a grammar."""
    sources: list[str] = []
    entries: list[ReportEntry] = []
    policies: list[tuple[str, str]] = []
    for node in postorder(grammar):
        if isinstance(node, Described):
            if node.description.source not in sources:
                sources.append(node.description.source)
            entries.extend(node.description.entries)
            policies.extend(item for item in node.description.policies if item not in policies)
    return tuple(sources), tuple(entries), tuple(policies)


def report_of(constraint: Constraint) -> Report:
    """Make the report of a constraint.  Costs a compilation, and a search for the smallest number of tokens."""
    grammar, vocabulary = constraint.grammar, constraint.vocabulary
    sources, entries, policies = entries_of(grammar)
    longest_bytes = _longest(grammar)
    return Report(
        sources=sources,
        entries=entries,
        policies=policies,
        shortest_bytes=constraint.shortest_bytes,
        shortest_tokens=constraint.min_tokens(),
        longest_bytes=longest_bytes,
        # If every byte is a token, a string can be spelled byte by byte; else there are at most as many tokens.
        longest_tokens=Longest(0, longest_bytes.at_most) if vocabulary.missing_bytes else longest_bytes,
        typical_characters=_typical(grammar),
        grammar_nodes=sum(1 for _ in postorder(grammar)),
        terms=constraint.terms(),
        states=constraint.native.states_used,
        vocabulary_size=vocabulary.size,
        unspellable=vocabulary.missing_bytes,
    )


def _typical(grammar: Grammar) -> float | None:
    try:
        return typical_length(grammar)
    except LimitExceeded:  # its rules have no small flat form
        return None


def _longest(grammar: Grammar) -> Longest:
    try:
        return longest(grammar)
    except LimitExceeded:  # its rules have no small flat form
        return Longest(0, None)
