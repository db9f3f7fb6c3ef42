"""The normal form of schemas: a disjunction of conjunctions, which are called disjuncts.

This module reads each schema once, identifies equal schemas, resolves references and counts the work; ``expansion``
multiplies out.

``oneOf`` is first read as ``anyOf`` of alternatives that exclude each other.  If the planner finds two alternatives
that do not, it compares all pairs of that ``oneOf`` and starts again; then each alternative is met with the complement
of the alternatives that overlap with it.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema.normal.disjunct import Disjunct
from structgen.frontends.json_schema.normal.expansion import Expansion
from structgen.frontends.json_schema.normal.schema_reader import (
    REFERENCES,
    Applicator,
    ParsedSchema,
    reader_of,
    silenced,
)
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.source.reference import enter
from structgen.grammar.limits import spend
from structgen.grammar.visitor import trampoline

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.exclusion import Exclusion
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout
    from structgen.frontends.json_schema.source.document import DocumentSetting
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.reference import References

__all__ = ["BranchPairs", "DocumentSchemas", "NormalForm", "Relation"]

_NODES_A_STEP: Final = 4
_MAX_COMPARED_BYTES: Final = 16 << 20
"""Bytes of schemas that are compared to find equal ones."""

BranchPairs: TypeAlias = frozenset[tuple[int, int]]
"""Pairs of alternatives of a ``oneOf``, the lower index first."""


class Relation(Enum):
    """Whether the values of a conjunction are all inside or all outside another schema."""

    INSIDE = auto()
    OUTSIDE = auto()
    UNKNOWN = auto()


class DocumentSchemas:
    """The schemas of a document, which its normal forms share: each is read once, equal ones as one.

    Attributes:
        copies: pairs of equal schemas; only the second is planned in conjunctions.
        grounded: the schemas for which applying schemas in place is known to terminate, by identity.
        layouts: the layouts of objects that the planner made, by the ids of their assertions.
    """

    def __init__(self, references: References) -> None:
        self.copies: list[tuple[Json, Json]] = []
        self.grounded: set[int] = set()
        self.layouts: dict[tuple[int, ...], ObjectLayout] = {}
        self._references = references
        self._dialect = references.start().resource.dialect
        self._reader = reader_of(self._dialect)
        self._parsed: dict[int, ParsedSchema] = {}
        self._targets: dict[tuple[int, str], Location] = {}
        self._written: dict[tuple[bytes, int], Location] = {}
        self._canonical: dict[int, Location] = {}
        self._text_left = _MAX_COMPARED_BYTES

    def adopt(self, parsed: ParsedSchema) -> None:
        """Register a parsed schema that is in no document."""
        key = id(parsed.location.schema)
        self._parsed[key], self._canonical[key] = parsed, parsed.location

    def read(self, location: Location) -> ParsedSchema:
        """Read the keywords of a schema object; cached."""
        key = id(location.schema)
        parsed = self._parsed.get(key)
        if parsed is None:
            dialect = enter(location).dialect if isinstance(location.schema, dict) else location.resource.dialect
            if dialect is not self._dialect:  # compared by identity: hashing takes longer than reading most schemas
                self._dialect, self._reader = dialect, reader_of(dialect)
            parsed = self._parsed[key] = self._reader.read(location)
        return parsed

    def target(self, parsed: ParsedSchema, keyword: str) -> Location:
        """The schema that a reference of ``parsed`` names; cached."""
        key = id(parsed.location.schema), keyword
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = self._references.resolve(parsed.location, keyword)
        return target

    def in_place(self, parsed: ParsedSchema) -> Iterable[tuple[str, Location]]:
        """The schemas that apply to the same value, each with its keyword."""
        for applicator in parsed.applicators:
            if applicator.keyword in REFERENCES:
                yield applicator.keyword, self.target(parsed, applicator.keyword)
            for location in applicator.locations:
                yield applicator.keyword, location

    def key(self, location: Location) -> int:
        """A number that equal schemas of one resource share, so that their references agree.

        The key of a negated schema is the negative of the key of its complement.
        """
        first = self._canonical.get(id(location.schema)) or self._find_canonical(location)
        key = id(first.schema)
        return -key if location.is_negated else key

    def canonical(self, location: Location) -> Location:
        """One location for all schemas with the same key, so that they are planned once.

        It is ``location`` itself where comparing would take too long: after much text (the text of nested schemas is
        compared again at every level), and in documents that contain one object many times (its text would be dumped
        for each).
        """
        first = self._canonical.get(id(location.schema))
        if first is None:
            if self._text_left <= 0 or not location.resource.document.finds_copies:
                return location
            first = self._find_canonical(location)
        if first.schema is location.schema:
            return location
        return first.complement() if location.is_negated else first

    def _find_canonical(self, location: Location) -> Location:
        """The first location that was requested among equal schemas."""
        schema = location.schema
        first = location.complement() if location.is_negated else location
        try:
            # In version 2 equal values have equal dumps, and 1, 1.0 and true have different ones.
            text = marshal.dumps(schema, 2)
        except ValueError:  # decimals, or very deep nesting
            pass
        else:
            self._text_left -= len(text)
            first = self._written.setdefault((text, id(location.resource)), first)
            if first.schema is not schema:
                self.copies.append((schema, first.schema))
        self._canonical[id(schema)] = first
        return first


class NormalForm:
    """Multiplies out conjunctions of schemas, and counts the work.

    Attributes:
        schemas: the schemas of the document.
        closes: whether the policy forbids members that no schema names.
        requires: whether the policy requires all members that schemas declare.
        restricts: whether it matters which schema names a member; the disjuncts of a negation then name none.
        limits: the bounds on nodes and nesting.
        reached: the schemas that were read, by identity.
        expanded: the disjuncts of each schema that was expanded, by the key of its location and ``apart``.
        contradictions: schemas that exclude each other, with the reason.
        overlaps: the pairs of alternatives that may both be valid, by the identity of the schema with ``oneOf``.
        overlapping: further schemas whose alternatives overlap; ``expanded`` does not take them into account.
    """

    def __init__(
        self,
        schemas: DocumentSchemas,
        setting: DocumentSetting,
        overlaps: Mapping[int, BranchPairs] = MappingProxyType({}),
    ) -> None:
        self.schemas = schemas
        self.closes = setting.policy.additional == "forbidden"
        self.requires = setting.policy.required == "all"
        self.restricts = self.closes or self.requires
        self.limits = setting.limits
        self.reached: dict[int, ParsedSchema] = {}
        self.contradictions: list[tuple[tuple[Location, ...], str]] = []
        self.expanded: dict[tuple[int, bool], list[Disjunct]] = {}
        self.overlaps = overlaps
        self.overlapping: dict[int, ParsedSchema] = {}
        self._spent = 0
        self._relations: dict[tuple[tuple[int, ...], int], Relation] = {}

    def read(self, location: Location) -> ParsedSchema:
        """Read the keywords of a schema object, and note that it was reached; cached."""
        key = id(location.schema)
        parsed = self.reached.get(key)
        if parsed is None:
            parsed = self.reached[key] = self.schemas.read(location)
        return parsed

    def spend(self, count: int, location: Location) -> None:
        """Count nodes of the grammar.

        Raises:
            LimitExceeded: there are more than ``Limits.grammar_nodes``, or they take more than ``Limits.steps``.
        """
        self._spent += count
        if self._spent > self.limits.grammar_nodes:
            raise LimitExceeded(location.subject(), limit="grammar_nodes", maximum=self.limits.grammar_nodes)
        spend(count // _NODES_A_STEP, location.subject)

    @property
    def nodes_left(self) -> int:
        """How many nodes may still be spent."""
        return self.limits.grammar_nodes - self._spent

    def disjuncts(self, locations: tuple[Location, ...]) -> list[Disjunct]:
        """The disjunction of a conjunction of schemas; an empty list if they contradict each other.

        Raises:
            GrammarError: a schema is malformed or a reference leads nowhere.
            LimitExceeded: there are too many alternatives.
        """
        expansion = Expansion(self)
        result: list[Disjunct] | None = None
        for location in locations:
            disjuncts = self.disjuncts_of(location)
            if location.is_negated and self.restricts:
                disjuncts = silenced(disjuncts)
            result = expansion.product(result, disjuncts, location)
        return [] if result is None else result

    def disjuncts_of(self, location: Location) -> list[Disjunct]:
        """The disjunction of one schema."""
        if isinstance(location.schema, bool):
            return [Disjunct((location,))] if location.schema else []
        cached = self.expanded.get((location.key, False))
        if cached is not None:
            return cached
        self.require_content(location)
        return trampoline(Expansion(self).disjuncts(location))

    def rivals(self, location: Location, applicator: Applicator, index: int) -> list[Location]:
        """The alternatives of a ``oneOf`` that may overlap with the one at ``index``."""
        pairs = self.overlaps.get(id(location.schema), ())
        return [
            other
            for number, other in enumerate(applicator.locations)
            if (min(index, number), max(index, number)) in pairs
        ]

    def compare(self, locations: tuple[Location, ...], other: Location) -> Relation:
        """Whether the values of a conjunction are inside ``other``, as far as types, constants and equality tell."""
        key = self.schemas.key(other)
        keys = tuple([self.schemas.key(location) for location in locations])
        relation = self._relations.get((keys, key))
        if relation is None:
            relation = Relation.INSIDE if key in keys else self._compared(locations, other)
            self._relations[keys, key] = relation
        return relation

    def _compared(self, locations: tuple[Location, ...], other: Location) -> Relation:
        inside, outside = self.disjuncts(locations) if locations else [Disjunct((other,))], self.disjuncts_of(other)
        if all(a.excludes(b) for a in inside for b in outside):
            return Relation.OUTSIDE
        if all(any(b.admits_all_of(a) for b in outside) for a in inside):
            return Relation.INSIDE
        return Relation.UNKNOWN

    def note_overlap(self, one: Exclusion) -> None:
        """Note that two alternatives of a ``oneOf`` may overlap, which ``expanded`` does not take into account."""
        self.overlapping[id(one.location.schema)] = self.read(one.location)

    def is_constant(self, location: Location) -> bool:
        """Whether a schema only lists values."""
        if not isinstance(location.schema, dict):
            return False
        parsed = self.read(location)
        return not parsed.applicators and not location.is_negated and parsed.disjunct.is_constant

    def require_content(self, start: Location) -> None:
        """Check that applying schemas in place terminates.

        Raises:
            UnsupportedFeature: a schema refers to itself without an array or object between.
        """
        if id(start.schema) in self.schemas.grounded:
            return
        trail: list[tuple[Location, list[tuple[str, Location]]]] = []
        on_trail: set[int] = set()

        def enter(location: Location) -> None:
            if isinstance(location.schema, dict) and id(location.schema) not in self.schemas.grounded:
                parsed = self.read(location)
                if not parsed.applicators:
                    self.schemas.grounded.add(id(location.schema))
                    return
                if len(trail) >= self.limits.nesting:
                    raise LimitExceeded(location.subject(), limit="nesting", maximum=self.limits.nesting)
                on_trail.add(id(location.schema))
                trail.append((location, list(self.schemas.in_place(parsed))))

        enter(start)
        while trail:
            location, waiting = trail[-1]
            if not waiting:
                trail.pop()
                on_trail.discard(id(location.schema))
                self.schemas.grounded.add(id(location.schema))
                continue
            keyword, inner = waiting.pop()
            if id(inner.schema) in on_trail and isinstance(inner.schema, dict):
                refused(
                    location,
                    keyword,
                    f"{inner.pointer} refers back to itself without any array or object between",
                    remedy="end the cycle, or put the reference under 'properties' or 'items'",
                )
            enter(inner)
