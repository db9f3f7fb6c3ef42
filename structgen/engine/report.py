"""What a Constraint enforces, and how: the front end's entries with the sizes that the engine knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from structgen.grammar.nodes import postorder
from structgen.grammar.report import Described, ReportEntry, Status

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
        shortest_bytes: length of the shortest member.
        vocabulary_size: number of token ids.
        unspellable: byte values that no token spells alone; members that need them may be out of reach.
    """

    sources: tuple[str, ...]
    entries: tuple[ReportEntry, ...]
    policies: tuple[tuple[str, str], ...]
    shortest_bytes: int
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
            "vocabulary_size": self.vocabulary_size,
            "unspellable_bytes": list(self.unspellable),
        }

    def __str__(self) -> str:
        lines = [f"{', '.join(self.sources) or 'grammar'}: shortest member {self.shortest_bytes} bytes"]
        for status in Status:
            found = self.with_status(status)
            if found:
                lines.append(f"{status.value}:")
                lines.extend(f"  {e.where}  {e.keyword}" + (f"  ({e.detail})" if e.detail else "") for e in found)
        lines.extend(f"policy {name}: {value}" for name, value in self.policies)
        return "\n".join(lines)


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
    """Make the report of a constraint."""
    sources, entries, policies = entries_of(constraint.grammar)
    return Report(
        sources=sources,
        entries=entries,
        policies=policies,
        shortest_bytes=constraint.shortest_bytes,
        vocabulary_size=constraint.vocabulary.size,
        unspellable=constraint.vocabulary.missing_bytes,
    )
