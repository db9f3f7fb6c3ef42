"""From schemas to shapes: references, ``allOf``, ``anyOf`` and ``oneOf`` are multiplied out.

The conjunction of several schemas is the list of all meets of their shapes.  Only what applies to one and the same
value is multiplied; the schemas of members and items stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import LimitExceeded
from structgen.grammar.json_schema.counts import united
from structgen.grammar.json_schema.equality import type_of, value_key
from structgen.grammar.json_schema.places import Place, Resource, refused
from structgen.grammar.json_schema.reading import Local, Part, reader_of
from structgen.grammar.json_schema.references import References
from structgen.grammar.json_schema.shapes import Branch, Shape, Values, meet
from structgen.grammar.json_schema.trampoline import run

if TYPE_CHECKING:
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.limits import Limits

__all__ = ["NormalForm"]

_MEET_COST: Final = 16
"""What one meet counts against ``Limits.grammar_nodes``."""

_Shapes = Generator[object, Any, "list[Shape]"]


class NormalForm:
    """Reads each schema of a document once, and multiplies out conjunctions of them.

    Attributes:
        locals: the schemas that were read, by identity.
        resource: the document.
        contradictions: schemas that were found to exclude each other, with what does.
    """

    def __init__(self, resource: Resource, dialect: Dialect, limits: Limits) -> None:
        self.locals: dict[int, Local] = {}
        self.resource = resource
        self._read = reader_of(dialect).read
        self._limits = limits
        self.contradictions: list[tuple[tuple[Place, ...], str]] = []
        self._spent = 0
        self._references = References(resource, dialect)
        self._targets: dict[int, Place] = {}
        self._shapes: dict[int, list[Shape]] = {}
        self._grounded: set[int] = set()

    def read(self, place: Place) -> Local:
        """The keywords of a schema object."""
        key = id(place.schema)
        local = self.locals.get(key)
        if local is None:
            local = self.locals[key] = self._read(place)
        return local

    def spend(self, count: int, place: Place) -> None:
        """Count nodes of the grammar.

        Raises:
            LimitExceeded: there are more than ``Limits.grammar_nodes``.
        """
        self._spent += count
        if self._spent > self._limits.grammar_nodes:
            raise LimitExceeded(place.subject(), limit="grammar_nodes", maximum=self._limits.grammar_nodes)

    def target(self, local: Local) -> Place:
        """The schema that the ``$ref`` of ``local`` names."""
        key = id(local.place.schema)
        found = self._targets.get(key)
        if found is None:
            found = self._targets[key] = self._references.resolve(local.place)
        return found

    def in_place(self, local: Local) -> Iterable[tuple[str, Place]]:
        """The schemas that apply to the same value, each with its keyword."""
        for part in local.parts:
            if part.keyword == "$ref":
                yield "$ref", self.target(local)
            for place in part.places:
                yield part.keyword, place

    def shapes(self, places: tuple[Place, ...]) -> list[Shape]:
        """The disjunction that the conjunction of the schemas comes to; an empty list if they contradict.

        Raises:
            GrammarError: a schema is malformed or a reference leads nowhere.
            LimitExceeded: there are too many alternatives.
        """
        result: list[Shape] | None = None
        for place in places:
            result = self._product(result, self.shapes_of(place), place)
        return [] if result is None else result

    def shapes_of(self, place: Place) -> list[Shape]:
        """The disjunction that one schema comes to."""
        if isinstance(place.schema, bool):
            shape = Shape(place)
            return [shape] if place.schema else []
        known = self._shapes.get(id(place.schema))
        if known is not None:
            return known
        self.require_content(place)
        return run(self._expanded(place))

    def _expanded(self, place: Place) -> _Shapes:
        if isinstance(place.schema, bool):
            return [Shape(place)] if place.schema else []
        key = id(place.schema)
        known = self._shapes.get(key)
        if known is None:
            local = self.read(place)
            known = [local.shape] if not local.parts else (yield self._conjunction(local))
            self._shapes[key] = known
        return known

    def _conjunction(self, local: Local) -> _Shapes:
        result: list[Shape] | None = None
        for part in local.parts:
            if part.keyword == "":
                result = self._product(result, [local.shape], local.place)
            elif part.keyword == "$ref":
                result = self._product(result, (yield self._expanded(self.target(local))), local.place)
            elif part.keyword == "allOf":
                for place in part.places:
                    result = self._product(result, (yield self._expanded(place)), place)
            else:
                result = self._product(result, (yield self._union(local, part)), local.place)
        return result or []

    def _union(self, local: Local, part: Part) -> _Shapes:
        found: list[Shape] = []
        constants: list[Shape] = []
        is_one_of = part.keyword == "oneOf" and len(part.places) > 1
        for index, place in enumerate(part.places):
            shapes: list[Shape] = yield self._expanded(place)
            if len(shapes) == 1 and shapes[0].is_constant:
                constants.append(shapes[0])
            elif is_one_of:
                branch = Branch(local.place, index)
                found += [_with_branch(shape, branch) for shape in shapes]
            else:
                found += shapes
        if constants:
            joined = _joined(constants, is_one_of=is_one_of)
            found.append(_with_branch(joined, Branch(local.place, -1)) if is_one_of and found else joined)
        return found

    def _product(self, left: list[Shape] | None, right: list[Shape], place: Place) -> list[Shape]:
        if left is None:
            return right
        self.spend(_MEET_COST * len(left) * len(right), place)
        met = [_meet(a, b) for a in left for b in right if not a.excludes(b)]
        if not met and left and right:
            a, b = left[0], right[0]
            why = ": the types exclude each other" if a.types & b.types == 0 else ": no constant is common"
            self.contradictions.append((united(a.origins, b.origins), why))
        return met

    def is_constant(self, place: Place) -> bool:
        """Whether a schema only lists values."""
        if not isinstance(place.schema, dict):
            return False
        local = self.read(place)
        return not local.parts and local.shape.is_constant

    def require_content(self, start: Place) -> None:
        """Make sure that applying schemas in place comes to an end.

        Raises:
            UnsupportedFeature: a schema refers to itself with nothing between.
        """
        trail: list[tuple[Place, list[tuple[str, Place]]]] = []
        on_trail: set[int] = set()

        def enter(place: Place) -> None:
            if isinstance(place.schema, dict) and id(place.schema) not in self._grounded:
                if len(trail) >= self._limits.nesting:
                    raise LimitExceeded(place.subject(), limit="nesting", maximum=self._limits.nesting)
                on_trail.add(id(place.schema))
                trail.append((place, list(self.in_place(self.read(place)))))

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


def _meet(a: Shape, b: Shape) -> Shape:
    return b if a.is_free else a if b.is_free else meet(a, b)


def _with_branch(shape: Shape, branch: Branch) -> Shape:
    copy = meet(shape, shape)
    copy.values = shape.values
    copy.refusals = shape.refusals
    copy.branches = (*shape.branches, branch)
    return copy


def _joined(shapes: list[Shape], *, is_one_of: bool) -> Shape:
    """One shape for alternatives that list values; for ``oneOf`` without what two of them list."""
    if len(shapes) == 1:
        return shapes[0]
    lists: list[list[Json]] = []
    for shape in shapes:
        own = {value_key(value): value for value in shape.values[0].members if type_of(value) & shape.types}
        lists.append(list(own.values()))
    counts = Counter(value_key(value) for values in lists for value in values) if is_one_of else Counter()
    first = shapes[0].values[0]
    joined = Shape(first.place)
    members = [value for values in lists for value in values if counts[value_key(value)] <= 1]
    joined.values = (Values(members, first.place, first.keyword),)
    return joined
