"""Whether the alternatives of a ``oneOf`` exclude each other, so that it means the same as ``anyOf``.

Most pairs are settled by their types or by a property that is required on both sides with different constants; for
the rest the planner tries to build what they have in common, and finds it empty or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from structgen.grammar.json_schema.json_types import OBJECT
from structgen.grammar.json_schema.labels import labels_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.shapes import Shape

__all__ = ["Exclusion", "are_disjoint", "between_branches", "between_shapes"]


class Exclusion(NamedTuple):
    """Two shapes of different alternatives that must have no value in common."""

    first: Shape
    second: Shape
    place: Place
    indices: tuple[int, int]


def between_branches(branches: list[list[Shape]], place: Place, known: Container[int]) -> Iterator[Exclusion]:
    """The pairs of a ``oneOf`` at ``place`` that are not obviously disjoint; none if its schema is ``known``.

    Complexity: O(shapes) where constants of one property tell all alternatives apart, else quadratic.
    """
    if id(place.schema) in known:
        return
    labelled = [(_Traits(shape), index) for index, shapes in enumerate(branches) for shape in shapes]
    if _are_told_apart(labelled):
        return
    for j, (second, label) in enumerate(labelled):
        for first, other in labelled[:j]:
            if label != other and not first.excludes(second):
                yield Exclusion(first.shape, second.shape, place, (other, label))


def between_shapes(
    shapes: list[Shape], known: Container[int], found: Container[int] = frozenset()
) -> Iterator[Exclusion]:
    """The pairs among multiplied-out shapes that took different alternatives and are not obviously disjoint.

    Alternatives of the schemas in ``known`` do exclude each other.  Where all schemas with alternatives are in
    ``found``, which may grow meanwhile, no more pairs are looked for.
    """
    traits = [_Traits(shape) for shape in shapes]
    groups: dict[int, list[tuple[_Traits, int]]] = {}
    for one in traits:
        for branch in one.shape.branches:
            groups.setdefault(id(branch.place.schema), []).append((one, branch.index))
    if all(map(_are_told_apart, groups.values())):
        return
    undecided = [key for key in groups if key not in known]
    for j, second in enumerate(traits):
        if all(key in found for key in undecided):
            return
        for first in traits[:j]:
            if not first.excludes(second):
                clash = _clash(first.shape, second.shape, known)
                if clash:
                    yield Exclusion(first.shape, second.shape, *clash)


def are_disjoint(one: list[Shape], other: list[Shape]) -> bool:
    """Whether no shape of the one list obviously has a value in common with one of the other."""
    left, right = list(map(_Traits, one)), list(map(_Traits, other))
    return all(a.excludes(b) for a in left for b in right)


def _are_told_apart(labelled: list[tuple[_Traits, int]]) -> bool:
    """Whether some required property has constants in all shapes, and none under two labels."""
    if not all(one.shape.types == OBJECT for one, _ in labelled):
        return False
    candidates = labelled[0][0].constants if labelled else {}
    for name in candidates:
        owners: dict[object, int] = {}
        if all(
            name in one.constants and all(owners.setdefault(key, label) == label for key in one.constants[name])
            for one, label in labelled
        ):
            return True
    return False


def _clash(a: Shape, b: Shape, known: Container[int]) -> tuple[Place, tuple[int, int]] | None:
    """The alternatives that tell two shapes apart; none where a pair is known to be told apart already."""
    found: tuple[Place, tuple[int, int]] | None = None
    for one in a.branches:
        for other in b.branches:
            if one.place.schema is other.place.schema and one.index != other.index:
                if id(one.place.schema) in known:
                    return None
                found = found or (one.place, (one.index, other.index))
    return found


class _Traits:
    """What tells shapes apart quickly.

    Attributes:
        constants: for each required property with constants, their keys.
    """

    __slots__ = ("constants", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.constants: dict[str, frozenset[object]] = {}
        objects = [facet for facet in shape.objects if not facet.is_negated]
        required = {name for facet in objects for name in facet.required}
        for facet in objects:
            for name, (keys, _) in labels_of(facet).items():
                if name in required and name not in facet.outside:
                    self.constants[name] = keys & self.constants.get(name, keys)

    def excludes(self, other: _Traits) -> bool:
        """Whether the two shapes obviously have nothing in common."""
        if self.shape.excludes(other.shape):
            return True
        if self.shape.types & other.shape.types != OBJECT:
            return False
        return any(
            keys.isdisjoint(other.constants[name]) for name, keys in self.constants.items() if name in other.constants
        )
