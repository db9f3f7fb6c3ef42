"""From schemas to shapes: what applies to one value in place is multiplied out.

The conjunction of several schemas is the list of all meets of their shapes, and a negated schema is resolved by De
Morgan's distributions.  The schemas of members and items stay where they are.

``oneOf`` is first read as ``anyOf`` of alternatives that exclude each other.  Where the planner finds that two of
them do not, it looks at all pairs of that ``oneOf`` and begins anew; then each alternative is met with the complement
of those that overlap with it.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema.normal import exclusion
from structgen.frontends.json_schema.normal.disjunct import (
    AllowedValues,
    Disjunct,
    OneOfBranch,
    complement_of,
    joined_strings,
    lacking,
    meet,
    mentioning,
    requiring,
)
from structgen.frontends.json_schema.normal.exclusion import settled_meet
from structgen.frontends.json_schema.normal.schema_reader import (
    REFERENCES,
    Applicator,
    ParsedSchema,
    judging_the_rest,
    reader_of,
    silenced,
)
from structgen.frontends.json_schema.normal.validity import Validity
from structgen.frontends.json_schema.source.json_value import OBJECT, type_of, value_key
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.source.reference import enter
from structgen.frontends.json_schema.term import united
from structgen.grammar.trampoline import trampoline

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.reference import References
    from structgen.grammar.limits import Limits

__all__ = ["BranchPairs", "NormalForm", "Relation"]

_JOINED: Final = -1
"""The number of the alternative that stands for all alternatives of a ``oneOf`` that list values."""
_MEET_COST: Final = 16
"""What one meet counts against ``Limits.grammar_nodes``."""

_MANY_DEPENDENTS: Final = 4
"""From so many on, schemas under ``dependentSchemas`` that look at one name divide its values."""

_MAX_COMPARED_BYTES: Final = 16 << 20
"""Bytes of schemas that are compared to find those that are written alike."""

_Disjuncts = Generator[object, Any, "list[Disjunct]"]
BranchPairs: TypeAlias = frozenset[tuple[int, int]]
"""Alternatives of a ``oneOf``, the lower first."""


class Relation(Enum):
    """How a set of values lies to a schema."""

    INSIDE = auto()
    OUTSIDE = auto()
    UNKNOWN = auto()


class NormalForm:
    """Reads each schema of a document once, and multiplies out conjunctions of them.

    Attributes:
        locals: the schemas that were read, by identity.
        contradictions: schemas that were found to exclude each other, with what does.
        overlaps: for each ``oneOf`` that is known to need it, by the identity of its schema, the pairs of
            alternatives that may both be valid.
        found: further schemas whose alternatives overlap, which the shapes made so far do not take into account.
        layouts: those of objects that the planner made, by the ids of their assertions.
        copies: pairs of schemas that are written alike, of which only the second is planned in conjunctions.
    """

    def __init__(
        self,
        references: References,
        limits: Limits,
        overlaps: Mapping[int, BranchPairs] = MappingProxyType({}),
        before: NormalForm | None = None,
        *,
        closes: bool = False,
    ) -> None:
        """Begin.

        Args:
            references: where references lead to.
            limits: the bound on the nodes of the grammar.
            overlaps: the alternatives that are known to overlap.
            before: the one that they were found with, which has read the schemas already.
            closes: whether it matters which schema names a member: what comes out of a negation names none.
        """
        self.locals: dict[int, ParsedSchema] = {}
        self._limits = limits
        self._closes = closes
        self.contradictions: list[tuple[tuple[Location, ...], str]] = []
        self._spent = 0
        self._references = references
        self._shapes: dict[tuple[int, bool], list[Disjunct]] = {}
        self._relations: dict[tuple[tuple[int, ...], int], Relation] = {}
        self.overlaps = overlaps
        self.found: dict[int, ParsedSchema] = {}
        self._dialect = references.start().resource.dialect
        self._reader = reader_of(self._dialect)
        # What depends on no alternatives stays.
        self._read: dict[int, ParsedSchema] = before._read if before else {}
        self._targets: dict[tuple[int, str], Location] = before._targets if before else {}
        self._grounded: set[int] = before._grounded if before else set()
        self._written: dict[tuple[bytes, int], Location] = before._written if before else {}
        self._firsts: dict[int, Location] = before._firsts if before else {}
        self._text_left: int = before._text_left if before else _MAX_COMPARED_BYTES
        self.layouts: dict[tuple[int, ...], ObjectLayout] = before.layouts if before else {}
        self.copies: list[tuple[Json, Json]] = before.copies if before else []

    def adopt(self, local: ParsedSchema) -> None:
        """Let a schema that stands in no document be read as ``local``; its text means nothing."""
        key = id(local.place.schema)
        self.locals[key] = self._read[key] = local
        self._firsts[key] = local.place

    def key(self, place: Location) -> int:
        """The same number for schemas of one resource that are written alike, so that their references mean the same.

        That of a negated schema is the negative of its complement's.
        """
        first = self._firsts.get(id(place.schema)) or self._written_first(place)
        key = id(first.schema)
        return -key if place.is_negated else key

    def first(self, place: Location) -> Location:
        """One place for all schemas with the same key, so that they are planned once.

        It is the place itself where comparing would take too long: when much text was compared already, for that of
        nested schemas is compared again at every level, and where one object stands in many places of a document, for
        its text would be written out for each.
        """
        first = self._firsts.get(id(place.schema))
        if first is None:
            if self._text_left <= 0 or not place.resource.document.finds_copies:
                return place
            first = self._written_first(place)
        if first.schema is place.schema:
            return place
        return first.complement() if place.is_negated else first

    def _written_first(self, place: Location) -> Location:
        """The first place that was asked for of those whose schemas are written alike."""
        schema = place.schema
        first = place.complement() if place.is_negated else place
        try:
            # In version 2 equal values have equal dumps, and 1, 1.0 and true have different ones.
            text = marshal.dumps(schema, 2)
        except ValueError:  # decimals, or very deep nesting
            pass
        else:
            self._text_left -= len(text)
            first = self._written.setdefault((text, id(place.resource)), first)
            if first.schema is not schema:
                self.copies.append((schema, first.schema))
        self._firsts[id(schema)] = first
        return first

    def read(self, place: Location) -> ParsedSchema:
        """The keywords of a schema object."""
        key = id(place.schema)
        local = self.locals.get(key)
        if local is None:
            local = self._read.get(key)
            if local is None:
                dialect = enter(place).dialect if isinstance(place.schema, dict) else place.resource.dialect
                if dialect is not self._dialect:  # whose hash takes longer than most schemas
                    self._dialect, self._reader = dialect, reader_of(dialect)
                local = self._read[key] = self._reader.read(place)
            self.locals[key] = local
        return local

    def spend(self, count: int, place: Location) -> None:
        """Count nodes of the grammar.

        Raises:
            LimitExceeded: there are more than ``Limits.grammar_nodes``.
        """
        self._spent += count
        if self._spent > self._limits.grammar_nodes:
            raise LimitExceeded(place.subject(), limit="grammar_nodes", maximum=self._limits.grammar_nodes)

    def target(self, local: ParsedSchema, keyword: str) -> Location:
        """The schema that a reference of ``local`` names."""
        key = id(local.place.schema), keyword
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = self._references.resolve(local.place, keyword)
        return found

    def in_place(self, local: ParsedSchema) -> Iterable[tuple[str, Location]]:
        """The schemas that apply to the same value, each with its keyword."""
        for part in local.parts:
            if part.keyword in REFERENCES:
                yield part.keyword, self.target(local, part.keyword)
            for place in part.places:
                yield part.keyword, place

    def shapes(self, places: tuple[Location, ...]) -> list[Disjunct]:
        """The disjunction that the conjunction of the schemas comes to; an empty list if they contradict.

        Raises:
            GrammarError: a schema is malformed or a reference leads nowhere.
            LimitExceeded: there are too many alternatives.
        """
        result: list[Disjunct] | None = None
        for place in places:
            shapes = self.shapes_of(place)
            if place.is_negated and self._closes:
                shapes = silenced(shapes)
            result = self._product(result, shapes, place)
        return [] if result is None else result

    def shapes_of(self, place: Location) -> list[Disjunct]:
        """The disjunction that one schema comes to."""
        if isinstance(place.schema, bool):
            shape = Disjunct(place)
            return [shape] if place.schema else []
        known = self._shapes.get((place.key, False))
        if known is not None:
            return known
        self.require_content(place)
        return trampoline(self._expanded(place))

    def _expanded(self, place: Location, *, apart: bool = False) -> _Disjuncts:
        """The shapes of a schema; with ``apart`` no value belongs to two that evaluate different members or items."""
        if isinstance(place.schema, bool):
            return [Disjunct(place)] if place.schema else []
        asked = place.key
        known = self._shapes.get((asked, apart))
        if known is None:
            place = self.first(place)
            known = self._shapes.get((place.key, apart))
        if known is None:
            local = self.read(place)
            if place.is_negated:
                known = yield self._negation(local, apart=apart)
            elif local.parts or local.looks_at_the_rest:
                known = yield self._conjunction(local, apart=apart)
            else:
                known = [local.shape]
        self._shapes[asked, apart] = self._shapes[place.key, apart] = known
        return known

    def _conjunction(self, local: ParsedSchema, *, apart: bool) -> _Disjuncts:
        looks_at_the_rest = local.looks_at_the_rest
        apart = apart or looks_at_the_rest
        result: list[Disjunct] | None = None
        for part in local.parts or (Applicator(""),):
            if part.keyword == "":
                result = self._product(result, [local.shape], local.place)
            elif part.keyword in REFERENCES:
                shapes = yield self._expanded(self.target(local, part.keyword), apart=apart)
                result = self._product(result, shapes, local.place)
            elif part.keyword == "not":
                shapes = yield self._expanded(part.places[0].complement(), apart=apart)
                result = self._product(result, silenced(shapes) if apart or self._closes else shapes, local.place)
            elif part.keyword == "if":
                if not apart and part.places[1].schema is True and part.places[2].schema is True:
                    continue  # it only matters for what counts as evaluated
                result = self._product(result, (yield self._condition(part, apart=apart)), local.place)
            elif part.names:
                for union in (yield self._dependents(local.place, part, apart=apart)):
                    result = self._product(result, union, local.place)
            elif part.keyword == "allOf":
                for place in part.places:
                    result = self._product(result, (yield self._expanded(place, apart=apart)), place)
            elif apart:
                result = self._product(result, (yield self._union_apart(part)), local.place)
            else:
                result = self._product(result, (yield self._union(local, part)), local.place)
        shapes = result or []
        return [judging_the_rest(shape, local, self) for shape in shapes] if looks_at_the_rest else shapes

    def _dependents(
        self, whole: Location, part: Applicator, *, apart: bool
    ) -> Generator[object, Any, list[list[Disjunct]]]:
        """What must hold where names occur, as unions that no value is in twice.

        Many schemas that only limit the value of one and the same name divide its values instead of the objects with
        and without each other name, of which there are as many as there are sets of names.
        """
        found: list[list[Disjunct]] = []
        waiting: dict[int, tuple[Location, list[str]]] = {}
        for name, place in zip(part.names, part.places, strict=True):
            waiting.setdefault(self.key(place), (place, []))[1].append(name)
        for place, names in waiting.values():
            shapes = yield self._expanded(place, apart=apart)
            if not apart and len(part.names) >= _MANY_DEPENDENTS:
                outside = yield self._expanded(place.complement())
                if len(outside) == 1 and outside[0].types == OBJECT and any(f.outside for f in outside[0].objects):
                    free = self._product(shapes, mentioning(whole, names), place)
                    for name in names:
                        outside = self._product(outside, lacking(whole, name), place)
                    found.append([*free, *outside])
                    continue
            for name in names:
                present = self._product(shapes, requiring(whole, name), place)
                found.append([*lacking(whole, name), *present])
        return found

    def _condition(self, part: Applicator, *, apart: bool) -> _Disjuncts:
        condition, then, otherwise = part.places
        left = yield self._expanded(condition, apart=apart)
        left = self._product(left, (yield self._expanded(then, apart=apart)), then)
        right = yield self._expanded(condition.complement(), apart=apart)
        if apart or self._closes:
            right = silenced(right)
        right = self._product(right, (yield self._expanded(otherwise, apart=apart)), otherwise)
        return left + right

    def _union(self, local: ParsedSchema, part: Applicator) -> _Disjuncts:
        found: list[Disjunct] = []
        constants: list[Disjunct] = []
        is_one_of = part.keyword == "oneOf" and len(part.places) > 1
        joins = not is_one_of or self._may_join(local.place, part)
        for index, place in enumerate(part.places):
            shapes: list[Disjunct] = yield self._expanded(place)
            # Of a oneOf those alone that _may_join looked at: what two alternatives list must not vanish from a third.
            lists = self.is_constant(place) if is_one_of else len(shapes) == 1 and shapes[0].is_constant
            if joins and lists:
                constants.append(shapes[0])
            elif is_one_of:
                for other in self.rivals(local.place, part, index):
                    outside: list[Disjunct] = yield self._expanded(other.complement())
                    shapes = self._product(shapes, silenced(outside) if self._closes else outside, place)
                branch = OneOfBranch(local.place, index)
                found += [_with_branch(shape, branch) for shape in shapes]
            else:
                found += shapes
        if constants:
            joined = _joined(constants, is_one_of=is_one_of)
            found.append(_with_branch(joined, OneOfBranch(local.place, _JOINED)) if is_one_of and found else joined)
        return found

    def _may_join(self, place: Location, part: Applicator) -> bool:
        """Whether those alternatives of a ``oneOf`` that list values may be read as one list."""
        if id(place.schema) in self.overlaps:
            return False
        listed = [inner for inner in part.places if self.is_constant(inner)]
        if len(listed) == len(part.places):
            return True
        keys = [key for inner in listed for key in self.read(inner).shape.values[0].keys]
        return len(keys) == len(set(keys))

    def rivals(self, place: Location, part: Applicator, index: int) -> list[Location]:
        """The alternatives of a ``oneOf`` that are known to overlap with one of them."""
        pairs = self.overlaps.get(id(place.schema), ())
        return [other for number, other in enumerate(part.places) if (min(index, number), max(index, number)) in pairs]

    def _union_apart(self, part: Applicator) -> _Disjuncts:
        """The shapes of ``anyOf`` or ``oneOf``, each with all alternatives to which its values belong."""
        found: list[tuple[Disjunct | None, tuple[int, ...]]] = [(None, ())]
        known: list[list[Disjunct]] = []
        for index, place in enumerate(part.places):
            inside: list[Disjunct] = yield self._expanded(place, apart=True)
            outside = silenced((yield self._expanded(place.complement(), apart=True)))
            is_apart = [exclusion.are_disjoint(inside, other) for other in known]
            known.append(inside)
            grown: list[tuple[Disjunct | None, tuple[int, ...]]] = []
            for shape, chosen in found:
                if any(is_apart[other] for other in chosen):
                    grown.append((shape, chosen))
                    continue
                before = None if shape is None else [shape]
                if not chosen or part.keyword == "anyOf":
                    grown += [(met, (*chosen, index)) for met in self._product(before, inside, place)]
                grown += [(met, chosen) for met in self._product(before, outside, place)]
            found = grown
        return [shape for shape, chosen in found if shape is not None and chosen]

    def _negation(self, local: ParsedSchema, *, apart: bool) -> _Disjuncts:
        """The values that are not valid against a schema."""
        if local.looks_at_the_rest:
            shapes = yield self._conjunction(local, apart=True)
            return self._outside_all(shapes, local.place)
        found: list[Disjunct] = []
        for part in local.parts or (Applicator(""),):
            if part.keyword == "":
                if not local.shape.is_free:
                    found += complement_of(local.shape, Validity(self).constants)
            elif part.keyword in REFERENCES:
                found += yield self._expanded(self.target(local, part.keyword).complement(), apart=apart)
            elif part.keyword == "not":
                found += yield self._expanded(part.places[0], apart=apart)
            elif part.keyword == "if":
                condition, then, otherwise = part.places
                found += yield self._both(condition, then.complement(), apart=apart)
                found += yield self._both(condition.complement(), otherwise.complement(), apart=apart)
            elif part.names:
                for name, place in zip(part.names, part.places, strict=True):
                    outside = yield self._expanded(place.complement(), apart=apart)
                    found += self._product(requiring(local.place, name), outside, place)
            elif part.keyword == "allOf":
                for place in part.places:
                    found += yield self._expanded(place.complement(), apart=apart)
            else:
                found += yield self._outside_union(part, local.place, apart=apart)
        return found

    def _both(self, first: Location, second: Location, *, apart: bool) -> _Disjuncts:
        left = yield self._expanded(first, apart=apart)
        return self._product(left, (yield self._expanded(second, apart=apart)), second)

    def _outside_union(self, part: Applicator, place: Location, *, apart: bool) -> _Disjuncts:
        """The values in none of the alternatives; for ``oneOf`` also those in two of them."""
        result: list[Disjunct] | None = None
        for inner in part.places:
            result = self._product(result, (yield self._expanded(inner.complement(), apart=apart)), inner)
        found = result or []
        if part.keyword == "oneOf":
            for j, second in enumerate(part.places):
                for first in part.places[:j]:
                    left = yield self._expanded(first, apart=apart)
                    right = yield self._expanded(second, apart=apart)
                    if not exclusion.are_disjoint(left, right):
                        found += self._product(left, right, place)
        return found

    def _outside_all(self, shapes: list[Disjunct], place: Location) -> list[Disjunct]:
        """The values that are in none of the shapes."""
        result = [Disjunct(place)]
        for shape in shapes:
            result = self._product(result, complement_of(shape, Validity(self).constants), place)
        return result

    def _product(self, left: list[Disjunct] | None, right: list[Disjunct], place: Location) -> list[Disjunct]:
        if left is None:
            return right
        if len(left) > 1 and len(right) > 1:
            left, right = joined_strings(left), joined_strings(right)
        self.spend(len(left) * len(right), place)
        most = (self._limits.grammar_nodes - self._spent) // _MEET_COST
        met: list[Disjunct] = []
        for a in left:
            met += [both for b in right if not a.excludes(b) and (both := _meet(a, b)) is not None]
            if len(met) > most:
                break
        self.spend(_MEET_COST * len(met), place)
        if not met and left and right:
            a, b = left[0], right[0]
            why = ": the types exclude each other" if a.types & b.types == 0 else ": no constant is common"
            self.contradictions.append((united(a.origins, b.origins), why))
        return met

    def compare(self, places: tuple[Location, ...], other: Location) -> Relation:
        """How the values of a conjunction lie to a schema, as far as types, constants and equality tell."""
        key = self.key(other)
        keys = tuple([self.key(place) for place in places])
        known = self._relations.get((keys, key))
        if known is None:
            known = self._relations[keys, key] = Relation.INSIDE if key in keys else self._compared(places, other)
        return known

    def _compared(self, places: tuple[Location, ...], other: Location) -> Relation:
        """How they lie to each other, found out anew."""
        inside, outside = self.shapes(places) if places else [Disjunct(other)], self.shapes_of(other)
        if all(a.excludes(b) for a in inside for b in outside):
            return Relation.OUTSIDE
        if all(any(b.admits_all_of(a) for b in outside) for a in inside):
            return Relation.INSIDE
        return Relation.UNKNOWN

    def note(self, one: exclusion.Exclusion) -> None:
        """Note that two alternatives of a ``oneOf`` are not told apart by the shapes made so far."""
        self.found[id(one.place.schema)] = self.read(one.place)

    def is_constant(self, place: Location) -> bool:
        """Whether a schema only lists values."""
        if not isinstance(place.schema, dict):
            return False
        local = self.read(place)
        return not local.parts and not place.is_negated and local.shape.is_constant

    def require_content(self, start: Location) -> None:
        """Make sure that applying schemas in place comes to an end.

        Raises:
            UnsupportedFeature: a schema refers to itself with nothing between.
        """
        if id(start.schema) in self._grounded:
            return
        trail: list[tuple[Location, list[tuple[str, Location]]]] = []
        on_trail: set[int] = set()

        def enter(place: Location) -> None:
            if isinstance(place.schema, dict) and id(place.schema) not in self._grounded:
                local = self.read(place)
                if not local.parts:
                    self._grounded.add(id(place.schema))
                    return
                if len(trail) >= self._limits.nesting:
                    raise LimitExceeded(place.subject(), limit="nesting", maximum=self._limits.nesting)
                on_trail.add(id(place.schema))
                trail.append((place, list(self.in_place(local))))

        enter(start)
        while trail:
            place, waiting = trail[-1]
            if not waiting:
                trail.pop()
                on_trail.discard(id(place.schema))
                self._grounded.add(id(place.schema))
                continue
            keyword, inner = waiting.pop()
            if id(inner.schema) in on_trail and isinstance(inner.schema, dict):
                refused(
                    place,
                    keyword,
                    f"{inner.pointer} refers back to itself without any array or object between",
                    remedy="end the cycle, or put the reference under 'properties' or 'items'",
                )
            enter(inner)


def _meet(a: Disjunct, b: Disjunct) -> Disjunct | None:
    """The values of both; ``None`` where there are obviously none."""
    if a.is_free or b.is_free:
        return b if a.is_free else a
    return settled_meet(a, b)


def _with_branch(shape: Disjunct, branch: OneOfBranch) -> Disjunct:
    copy = meet(shape, shape)
    copy.values = shape.values
    copy.refusals = shape.refusals
    copy.branches = (*shape.branches, branch)
    copy.known = shape.known
    return copy


def _joined(shapes: list[Disjunct], *, is_one_of: bool) -> Disjunct:
    """One shape for alternatives that list values; for ``oneOf`` without what two of them list."""
    if len(shapes) == 1:
        return shapes[0]
    lists: list[list[Json]] = []
    for shape in shapes:
        own = {value_key(value): value for value in shape.values[0].members if type_of(value) & shape.types}
        lists.append(list(own.values()))
    counts = Counter(value_key(value) for values in lists for value in values) if is_one_of else Counter()
    first = shapes[0].values[0]
    joined = Disjunct(first.place)
    members = [value for values in lists for value in values if counts[value_key(value)] <= 1]
    joined.values = (AllowedValues(members, first.place, first.keyword),)
    return joined
