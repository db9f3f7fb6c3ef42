"""What a Constraint enforces, and how: the front end's entries with the lengths and sizes that the engine knows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from structgen.engine.typical_length import typical_length
from structgen.errors import LimitExceeded
from structgen.grammar.lengths import Longest, longest
from structgen.grammar.nodes import postorder
from structgen.grammar.nodes.description import Described, ReportEntry, Status

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint
    from structgen.grammar.nodes import Grammar

__all__ = ["Report", "entries_of", "report_of"]


@dataclass(frozen=True, slots=True)
class Report:
    """The account of a compiled grammar.

    Attributes:
        sources: the front ends that made parts of the grammar, in order of appearance.
        entries: one per keyword or construct of the input.
        policies: choices that the input left open, as (name, value).
        shortest_bytes, shortest_tokens: lengths of the shortest member; EOS is not counted, and
            other special tokens count as one byte.
        longest_bytes, longest_tokens: lengths of the longest member, as far as they are known.
        typical_characters: the expected length of a random derivation (``typical_length``), in characters; infinite if
            it diverges; None: not known.
        grammar_nodes: distinct nodes of the grammar.
        terms: terms of an engine that holds this grammar and nothing else.
        states: states that were made for the constraint until the report was asked for; they are made when they are
            first reached.
        vocabulary_size: number of token ids.
        unspellable: byte values that no token spells alone; members that need them may be out of reach.
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

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
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

    def lines(self, *, tokens: bool = True) -> Iterator[str]:
        """Yield the report as text, line by line, with or without what it says of tokens."""
        yield f"{', '.join(self.sources) or 'grammar'}: shortest member {self.shortest_bytes} bytes"
        for status in Status:
            found = self.with_status(status)
            if found:
                yield f"{status.value}:"
                yield from (f"  {e.where}  {e.keyword}" + (f"  ({e.detail})" if e.detail else "") for e in found)
        yield from (f"policy {name}: {value}" for name, value in self.policies)
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
            return "none; choices by the toss of a coin need not come to an end"
        return f"about {value:,.0f} characters, if choices are made by the toss of a coin"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def entries_of(
    grammar: Grammar,
) -> tuple[tuple[str, ...], tuple[ReportEntry, ...], tuple[tuple[str, str], ...]]:
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
    """Make the report of a constraint.  Costs a compilation, and a search for the fewest tokens."""
    grammar, vocabulary = constraint.grammar, constraint.vocabulary
    sources, entries, policies = entries_of(grammar)
    most = _longest(grammar)
    return Report(
        sources=sources,
        entries=entries,
        policies=policies,
        shortest_bytes=constraint.shortest_bytes,
        shortest_tokens=constraint.min_tokens(),
        longest_bytes=most,
        # Every byte may be a token of its own; where one is missing, tokens are at most as many.
        longest_tokens=Longest(0, most.at_most) if vocabulary.missing_bytes else most,
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
    except LimitExceeded:  # likewise
        return None


def _longest(grammar: Grammar) -> Longest:
    try:
        return longest(grammar)
    except LimitExceeded:  # its rules have no small flat form
        return Longest(0, None)
