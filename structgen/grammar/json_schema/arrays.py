"""Arrays: ``items``, ``prefixItems``, ``additionalItems``, ``minItems``, ``maxItems``."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.counts import least_count, most_count
from structgen.grammar.json_schema.facets import Facet
from structgen.grammar.json_schema.places import Place, malformed, refused
from structgen.grammar.json_schema.terms import chain
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Repeat, Sequence

if TYPE_CHECKING:
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.json_schema.syntax import Syntax

__all__ = ["READERS", "ArrayFacet", "ArrayLayout", "array_term"]


class ArrayFacet(Facet):
    """What one schema says about arrays.

    Attributes:
        place: the schema.
        prefix: the schemas of the first items, under ``prefix_keyword``.
        rest: the schema of all further items, under ``rest_keyword``.
        fewest, most: the bounds on their number; ``most`` is ``None`` without a bound.
        contained: the schema of ``contains``; from ``fewest_contained`` to ``most_contained`` items are valid there.
        covers_rest: whether the schema of all further items is given, so that no item is left unevaluated.
        unevaluated: the schema of ``unevaluatedItems``; ``None`` if it excludes nothing.
        refusals: keywords that cannot be negated, and not always be enforced.
        annotates: whether what it looks at counts as evaluated.
        is_negated: arrays that violate any of this but ``contained`` and ``refusals`` are meant.
    """

    __slots__ = (
        "contained",
        "fewest_contained",
        "most_contained",
        "prefix",
        "prefix_keyword",
        "refusals",
        "rest",
        "rest_keyword",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.prefix: list[Json] = []
        self.prefix_keyword = "prefixItems"
        self.rest: Json = True
        self.rest_keyword = "items"
        self.contained: Place | None = None
        self.fewest_contained = 1
        self.most_contained: int | None = None
        self.refusals: tuple[str, ...] = ()

    def _set_aside(self) -> None:
        self.contained, self.refusals = None, ()

    @property
    def is_plain(self) -> bool:
        """Whether it restricts items or their number."""
        return bool(self.prefix) or self.rest is not True or self.fewest > 0 or self.most is not None

    def item(self, index: int) -> Place | None:
        """The schema of the item at ``index``, or ``None`` if it may be anything."""
        if index < len(self.prefix):
            path, schema = (self.prefix_keyword, index), self.prefix[index]
            return Place(schema, self.place.resource, self.place, path)
        return self.further()

    def further(self) -> Place | None:
        """The schema of the items after the prefix, or ``None`` if they may be anything."""
        if self.rest is True:
            return None
        return Place(self.rest, self.place.resource, self.place, (self.rest_keyword,))


def _facet(shape: Shape, place: Place) -> ArrayFacet:
    if not shape.arrays:
        shape.arrays = (ArrayFacet(place),)
    return shape.arrays[0]


def _items(shape: Shape, place: Place, value: Json) -> None:
    facet = _facet(shape, place)
    if isinstance(value, list):  # up to draft 2019-09; additionalItems holds what follows
        if "prefixItems" in place.schema:
            malformed(place, "items", "a schema where 'prefixItems' is given too")
        facet.prefix, facet.prefix_keyword = value, "items"
        facet.rest, facet.rest_keyword = place.schema.get("additionalItems", True), "additionalItems"
        facet.covers_rest = "additionalItems" in place.schema
    elif isinstance(value, (dict, bool)):
        facet.rest = value
        facet.covers_rest = True
    else:
        malformed(place, "items", "a schema or an array of schemas")


def _prefix_items(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, list):
        malformed(place, "prefixItems", "an array of schemas")
    _facet(shape, place).prefix = value


def _additional_items(_: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "additionalItems", "a schema")


def _min_items(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).fewest = least_count(place, "minItems", value)


def _max_items(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).most = most_count(place, "maxItems", value)


def _unique_items(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(place, "uniqueItems", "true or false")
    if value:
        _facet(shape, place).refusals += ("uniqueItems",)


def _contains(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "contains", "a schema")
    _facet(shape, place).contained = Place(value, place.resource, place, ("contains",))


def _min_contains(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).fewest_contained = least_count(place, "minContains", value)


def _max_contains(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).most_contained = most_count(place, "maxContains", value)


def _unevaluated_items(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "unevaluatedItems", "a schema")
    facet = _facet(shape, place)
    if value is True or value == {}:
        facet.covers_rest = True
    else:
        facet.unevaluated = value


READERS: Final = {
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minContains": _min_contains,
    "maxContains": _max_contains,
    "unevaluatedItems": _unevaluated_items,
}


class ArrayLayout:
    """The conjunction of the array facets of a shape.

    Attributes:
        held: the facets that hold, and ``watched`` those that are violated.
        counted: the facets with ``contains``.
        fewest, most: the bounds on the number of items.
        items: for each position of the longest prefix the schemas that hold there.
        rest: the schemas that hold for all further items.
        unique: a schema with ``uniqueItems``, where more than one item is possible.
    """

    __slots__ = ("counted", "fewest", "held", "items", "most", "rest", "unique", "watched")

    def __init__(self, facets: tuple[ArrayFacet, ...], most: int | None = None) -> None:
        """Meet the facets; ``most`` is a bound on the number of items beside theirs."""
        self.held = tuple(facet for facet in facets if not facet.is_negated)
        self.watched = tuple(facet for facet in facets if facet.is_negated)
        self.counted = tuple(facet for facet in self.held if facet.contained is not None)
        self.fewest = max((facet.fewest for facet in self.held), default=0)
        bounds = [facet.most for facet in self.held if facet.most is not None]
        self.most = min(bounds if most is None else [*bounds, most], default=None)
        prefix = max(len(facet.prefix) for facet in facets)
        if self.most is not None:
            prefix = min(prefix, self.most)
        self.items = [_places(facet.item(index) for facet in self.held) for index in range(prefix)]
        self.rest = _places(facet.further() for facet in self.held)
        self.unique: Place | None = None
        for facet in self.held:
            for keyword in facet.refusals:
                if keyword != "uniqueItems":
                    refused(facet.place, keyword)
                if self.most is None or self.most > 1:
                    self.unique = facet.place

    @property
    def is_spare(self) -> bool:
        """Whether an array without equal items can end after any item, or after one that is not there yet."""
        return self.fewest <= 1 and not self.watched and all(facet.fewest_contained <= 1 for facet in self.counted)

    @property
    def is_watched(self) -> bool:
        """Whether something must be remembered from item to item."""
        return bool(self.watched or self.counted)


def _places(found: Iterable[Place | None]) -> tuple[Place, ...]:
    return tuple(place for place in found if place is not None)


def array_term(layout: ArrayLayout, items: Items[Grammar], rest: Grammar, syntax: Syntax) -> Grammar:
    """The arrays of a layout, given the terms of its items and of the rest (``EMPTY``: no such item).

    Complexity: O(len(items)), whatever the bounds.
    """
    fewest, most = layout.fewest, layout.most
    length = len(items) if most is None else min(len(items), most)
    for index in range(length):
        if items[index] is EMPTY:
            most = length = index
            break
    if rest is EMPTY and (most is None or most > length):
        most = length
    if most is not None and fewest > most:
        return EMPTY
    if most == 0:
        return Sequence((syntax.open_array, syntax.end_array))
    # From the right: what may follow the item before `index`.
    comma = syntax.comma
    tail: Grammar = EPSILON
    if most is None or most > length:
        start = max(length, 1)
        tail = Repeat(Sequence((comma, rest)), max(fewest - start, 0), None if most is None else most - start)
    for index in range(length - 1, 0, -1):
        further = chain(comma, items[index], tail)
        tail = further if index < fewest else Choice((EPSILON, further))
    first = items[0] if length else rest
    some = chain(first, tail, syntax.close_array)
    return Sequence((syntax.open_array, some if fewest else Choice((syntax.end_array, some))))
