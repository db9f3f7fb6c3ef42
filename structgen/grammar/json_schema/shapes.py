"""The normal form of a schema: a disjunction of shapes, each a conjunction of constraints by type.

JSON Schema keywords act on one type each and leave the others free, so the constraints of one schema fall apart by
type: this record of *facets* is a :class:`Shape`.  ``allOf``, ``$ref`` and siblings are the *meet* of shapes,
``anyOf`` and ``oneOf`` are several shapes.  The meet keeps the object and array facets of its parts side by side,
because ``additionalProperties`` looks at the ``properties`` of its own schema only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.grammar.json_schema.counts import united
from structgen.grammar.json_schema.equality import value_key
from structgen.grammar.json_schema.json_types import ANY, ARRAY, FRACTION, INTEGER, NUMBER, OBJECT, STRING
from structgen.grammar.json_schema.terms import alternatives

if TYPE_CHECKING:
    from structgen.grammar.json_schema.arrays import ArrayFacet
    from structgen.grammar.json_schema.labels import KnownNames
    from structgen.grammar.json_schema.numbers import NumberFacet
    from structgen.grammar.json_schema.objects import ObjectFacet
    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.json_schema.strings import StringFacet
    from structgen.grammar.nodes import Grammar

__all__ = ["Branch", "Shape", "Values", "joined_strings", "meet"]


class Values:
    """The finitely many values that ``enum`` or ``const`` leaves.

    Attributes:
        members: the values, in the order of the schema.
        place: the schema of the keyword, and ``keyword`` its name.
        facets: facets that only one of the members satisfies, by its key.
    """

    __slots__ = ("_keys", "_texts", "facets", "keyword", "members", "place")

    def __init__(self, members: list[Json], place: Place, keyword: str) -> None:
        self.members = members
        self.place = place
        self.keyword = keyword
        self._keys: frozenset[object] | None = None
        self._texts: frozenset[str] | None = None
        self.facets: dict[object, ArrayFacet | ObjectFacet] = {}

    @property
    def keys(self) -> frozenset[object]:
        """What tells the members apart from all other values."""
        if self._keys is None:
            self._keys = frozenset(map(value_key, self.members))
        return self._keys

    @property
    def texts(self) -> frozenset[str]:
        """The members that are strings."""
        if self._texts is None:
            self._texts = frozenset([member for member in self.members if isinstance(member, str)])
        return self._texts


class Branch:
    """One alternative of a ``oneOf``: shapes with different indices of one group must exclude each other.

    Attributes:
        place: the schema that holds the ``oneOf``.
        index: which alternative.
    """

    __slots__ = ("index", "place")

    def __init__(self, place: Place, index: int) -> None:
        self.place = place
        self.index = index


class Shape:
    """A conjunction of constraints, by type.  Treated as immutable once it is read.

    Attributes:
        types: the types that are left, as bits.
        values: the values that are left, one :class:`Values` a keyword; none: not restricted.
        string, number: the constraints on strings and numbers, or ``None``.
        arrays, objects: one facet for each schema that constrains arrays or objects.
        refusals: keywords that cannot be enforced, with their place.
        branches: the alternatives of ``oneOf`` that were taken on the way here.
        origins: the schemas that were met.
        known: what ``objects`` say about names, once somebody has asked.
    """

    __slots__ = (
        "arrays",
        "branches",
        "known",
        "number",
        "objects",
        "origins",
        "refusals",
        "string",
        "types",
        "values",
    )

    def __init__(self, place: Place) -> None:
        self.types = ANY
        self.values: tuple[Values, ...] = ()
        self.string: StringFacet | None = None
        self.number: NumberFacet | None = None
        self.arrays: tuple[ArrayFacet, ...] = ()
        self.objects: tuple[ObjectFacet, ...] = ()
        self.refusals: tuple[tuple[Place, str], ...] = ()
        self.branches: tuple[Branch, ...] = ()
        self.origins: tuple[Place, ...] = (place,)
        self.known: KnownNames | None = None

    @property
    def is_free(self) -> bool:
        """Whether it excludes nothing."""
        return self.types == ANY and not (
            self.values or self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    @property
    def is_constant(self) -> bool:
        """Whether it lists values and says nothing else but their types."""
        return len(self.values) == 1 and not (
            self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    def excludes(self, other: Shape) -> bool:
        """Whether types or constants alone show that the two have nothing in common."""
        if self.types & other.types == 0:
            return True
        return any(a.keys.isdisjoint(b.keys) for a in self.values for b in other.values)

    def admits_all_of(self, other: Shape) -> bool:
        """Whether types or constants alone show that it admits every value of ``other``."""
        if other.types & ~self.types or self.refusals or self.branches:
            return False
        if self.values:
            facets = self.string or self.number or self.arrays or self.objects
            return not facets and any(all(b.keys <= a.keys for a in self.values) for b in other.values)
        types = other.types
        return not (
            (self.string and types & STRING)
            or (self.number and types & NUMBER)
            or (self.arrays and types & ARRAY)
            or (self.objects and types & OBJECT)
        )

    @property
    def only_matches(self) -> bool:
        """Whether all that it says, beside types and lengths, is one language that strings belong to, or nothing."""
        if self.string is None or (self.types & INTEGER and not self.types & FRACTION):
            return False
        if self.string.formats or len(self.string.languages) > 1:
            return False
        return not (self.values or self.number or self.arrays or self.objects or self.refusals or self.branches)

    @property
    def is_scalar(self) -> bool:
        """Whether no part of it leads to other schemas."""
        return not ((self.objects and self.types & OBJECT) or (self.arrays and self.types & ARRAY) or self.values)


def meet(a: Shape, b: Shape) -> Shape:
    """The shape of the values that belong to both."""
    both = Shape.__new__(Shape)
    both.types = a.types & b.types
    both.values = a.values + b.values
    both.string = a.string.meet(b.string) if a.string and b.string else a.string or b.string
    both.number = a.number.meet(b.number) if a.number and b.number else a.number or b.number
    both.arrays = united(a.arrays, b.arrays)
    both.objects = united(a.objects, b.objects)
    both.refusals = a.refusals + b.refusals
    both.branches = a.branches + b.branches
    both.origins = united(a.origins, b.origins)
    both.known = None
    return both


def joined_strings(shapes: list[Shape]) -> list[Shape]:
    """The same union with fewer shapes: those that differ only in the language of their strings become one.

    Products of such unions are conjunctions of unions then, which an automaton reads side by side, and not the union
    of as many conjunctions as there are ways to choose.
    """
    groups: dict[object, list[Shape]] = {}
    for shape in shapes:
        key: object = id(shape)
        if shape.only_matches and shape.string is not None:
            key = shape.types, shape.string.shortest, shape.string.longest
        groups.setdefault(key, []).append(shape)
    return [group[0] if len(group) == 1 else _joined_strings(group) for group in groups.values()]


def _joined_strings(shapes: list[Shape]) -> Shape:
    joined = meet(shapes[0], shapes[0])
    languages: tuple[Grammar, ...] = ()
    for shape in shapes:
        joined.origins = united(joined.origins, shape.origins)
        if shape.string is not None:
            languages = united(languages, shape.string.languages)
    if joined.string is not None:
        is_free = not all(shape.string is None or shape.string.languages for shape in shapes)
        joined.string = joined.string.with_languages(() if is_free else (alternatives(*languages),))
    return joined
