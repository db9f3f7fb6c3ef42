"""Whether the alternatives of a ``oneOf`` exclude each other, so that it means the same as ``anyOf``.

Types, or a property that both require with different constants, decide most pairs.  For the others the planner builds
the meet and proves that it is empty, or fails to.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.frontends.json_schema.normal.disjunct import Disjunct, meet
from structgen.frontends.json_schema.source.json_value import OBJECT, value_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location

__all__ = [
    "Exclusion",
    "NameConstraints",
    "are_disjoint",
    "between_branches",
    "between_disjuncts",
    "constants_by_name",
    "constants_of",
    "settled_meet",
]

Keys = frozenset[object]

_NONE: Final[Keys] = frozenset()
_WORDS: Final = re.compile(r"\^(?:\((?:\?:)?(?P<several>[\w -]+(?:\|[\w -]+)*)\)|(?P<one>[\w -]+))\$")
_SAYS_NO_MORE: Final = frozenset(
    ("const", "enum", "pattern", "title", "description", "default", "examples", "$comment", "markdownDescription")
)


def constants_of(schema: Json, dialect: Dialect) -> tuple[Keys, bool] | None:
    """The keys of the only values that a schema can admit, and whether it admits them all; ``None`` if unknown."""
    if schema is False:
        return _NONE, True
    if schema is True:
        return None
    if not isinstance(schema, dict) or "$schema" in schema or not dialect.has("enum"):
        return None
    if "$ref" in schema and dialect.reference_stands_alone:
        return None
    says_more = schema.keys() - _SAYS_NO_MORE
    if "const" in schema and dialect.has("const"):
        return frozenset((value_key(schema["const"]),)), not says_more and "enum" not in schema
    values = schema.get("enum")
    if isinstance(values, (list, tuple)):
        keys = frozenset(map(value_key, values))
        is_all = not says_more or (says_more == {"type"} and _are_strings(schema, values))
        return keys, is_all and "pattern" not in schema
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and schema.get("type") == "string":
        words = _WORDS.fullmatch(pattern)
        if words is not None:
            return frozenset((words["several"] or words["one"]).split("|")), says_more == {"type"}
    return None


def _are_strings(schema: dict[str, Json], values: Json) -> bool:
    return schema["type"] == "string" and all(isinstance(value, str) for value in values)


def constants_by_name(assertion: ObjectAssertion) -> dict[str, tuple[Keys, bool]]:
    """The constants of the members of an assertion, by name; cached."""
    labels = assertion.labels
    if labels is None:
        labels = assertion.labels = {}
        dialect = assertion.location.resource.dialect
        for name, schema in assertion.properties.items():
            constants = constants_of(schema, dialect)
            if constants is not None:
                labels[name] = constants
    return labels


def _allowed_labels(assertion: ObjectAssertion) -> list[tuple[str, Keys]]:
    """The names of a positive assertion with the only constants that they can have; cached."""
    if assertion.allowed_labels is None:
        labels = constants_by_name(assertion)
        assertion.allowed_labels = [(name, keys) for name, (keys, _) in labels.items() if name not in assertion.outside]
        assertion.allowed_labels += [(name, _NONE) for name in assertion.outside if assertion.properties[name] is True]
    return assertion.allowed_labels


def _denied_labels(assertion: ObjectAssertion) -> list[tuple[str, Keys]]:
    """The names of a positive assertion with constants that they cannot have; cached."""
    if assertion.denied_labels is None:
        labels = constants_by_name(assertion)
        assertion.denied_labels = [
            (name, labels[name][0]) for name in assertion.outside if name in labels and labels[name][1]
        ]
    return assertion.denied_labels


def settled_meet(a: Disjunct, b: Disjunct) -> Disjunct | None:
    """The values of both, without redundant assertions; ``None`` if there are obviously none.

    Objects are left out if their assertions obviously contradict each other.

    Complexity: linear in the number of assertions, labels and required names; where ``a`` is the result of an earlier
    call and the assertions of ``b`` only exclude something, in those of ``b`` alone, except for joining tuples.
    """
    if not (a.objects and b.objects and a.types & b.types & OBJECT):
        return meet(a, b)
    constraints = _name_constraints(a)
    if constraints is not None:
        are_objects = a.types & b.types == OBJECT
        if are_objects and constraints.contradicts(b):
            return None
        excluding = constraints.left_to_exclude(a, b)
        if excluding is not None:
            if not excluding and are_objects and a.types == OBJECT and not (b.values or b.refusals or b.branches):
                return a
            both = meet(a, b)
            both.objects = (*a.objects, *excluding)
            both.name_constraints = constraints
            return both
    return _settled(meet(a, b), constraints, len(a.objects))


def _name_constraints(disjunct: Disjunct) -> NameConstraints | None:
    """The name constraints of a disjunct; ``None`` if its negated assertions were not simplified."""
    if disjunct.name_constraints is None and not any(
        assertion.is_negated or assertion.outside for assertion in disjunct.objects
    ):
        disjunct.name_constraints = NameConstraints(disjunct)
    return (
        disjunct.name_constraints
        if disjunct.name_constraints is not None and disjunct.name_constraints.is_possible
        else None
    )


def _settled(disjunct: Disjunct, before: NameConstraints | None, count: int) -> Disjunct | None:
    """The disjunct without redundant assertions, and without objects if its assertions obviously contradict each other.

    ``before`` are the name constraints of the first ``count`` assertions, if available.
    """
    if len(disjunct.objects) < 2:
        return disjunct
    constraints = NameConstraints(disjunct, before, count)
    retained = tuple([f for f in disjunct.objects if not ((f.is_negated or f.outside) and constraints.is_idle(f))])
    if not constraints.is_possible or any(
        assertion.is_negated and constraints.holds(assertion) for assertion in retained
    ):
        if disjunct.types == OBJECT:
            return None
        disjunct.objects, disjunct.types = (), disjunct.types & ~OBJECT
        return disjunct
    if len(retained) < len(disjunct.objects):
        disjunct.objects = retained
        constraints.has_outside = any(assertion.outside for assertion in retained)
    disjunct.name_constraints = constraints
    return disjunct


class NameConstraints:
    """The positive assertions of a disjunct on names.

    Negated assertions, and the removal of redundant ones, do not change it.

    Attributes:
        allowed: for names with constants, the allowed constants; empty if the name cannot occur.
        required: the required names, each with the number of assertions that require it.
        has_outside: whether an assertion denies constants.
        is_possible: false if a required name obviously has no value.
    """

    allowed: dict[str, Keys]
    required: dict[str, int]
    has_outside: bool
    is_possible: bool
    _listed: dict[str, Keys]  # the allowed constants before denied ones are removed
    _closed: list[ObjectAssertion]

    def __init__(self, disjunct: Disjunct, before: NameConstraints | None = None, count: int = 0) -> None:
        """Collect the constraints; ``before`` are those of the first ``count`` assertions."""
        allowed = {} if before is None else before._listed.copy()
        required = {} if before is None else before.required.copy()
        self._holding = [assertion for assertion in disjunct.objects if not assertion.is_negated]
        self._closed = [] if before is None else before._closed.copy()
        self.has_outside = before is not None and before.has_outside
        for assertion in disjunct.objects if before is None else disjunct.objects[count:]:
            if assertion.is_negated:
                continue
            for name in assertion.required:
                required[name] = required.get(name, 0) + 1
            self.has_outside = self.has_outside or bool(assertion.outside)
            for name, keys in _allowed_labels(assertion):
                before_keys = allowed.get(name)
                allowed[name] = keys if before_keys is None else keys & before_keys
            if assertion.additional is False and not assertion.patterns:
                self._closed.append(assertion)
        self.required = required
        self._listed = allowed
        if self.has_outside:
            allowed = dict(allowed)
            for assertion in self._holding:
                for name, keys in _denied_labels(assertion) if assertion.outside else ():
                    if name in allowed:
                        allowed[name] -= keys
        self.allowed = allowed
        # The same as _is_absent, without a call for each name.
        self.is_possible = all(required.keys() <= assertion.properties.keys() for assertion in self._closed)
        for name, keys in allowed.items():
            if not keys and name in required:
                self.is_possible = False

    def contradicts(self, other: Disjunct) -> bool:
        """Whether another disjunct allows no constant of a required name that this one allows."""
        allowed = self.allowed
        for assertion in other.objects:
            if not assertion.is_negated:
                for name, keys in _allowed_labels(assertion):
                    constants = allowed.get(name)
                    is_required = name in self.required or name in assertion.required
                    if is_required and constants is not None and constants.isdisjoint(keys):
                        return True
        return False

    def left_to_exclude(self, disjunct: Disjunct, other: Disjunct) -> list[ObjectAssertion] | None:
        """The assertions of ``other`` that exclude values from ``disjunct``, whose constraints these are.

        ``None`` if ``other`` has further constraints, or contradicts ``disjunct``.
        """
        result: list[ObjectAssertion] = []
        for assertion in other.objects:
            if assertion.is_negated:
                if assertion not in disjunct.objects and not self._is_violated(assertion):
                    if self.holds(assertion):
                        return None
                    result.append(assertion)
            elif len(other.objects) > 1 or self.has_outside or not self._is_apart(assertion):
                return None
        return result

    def _is_apart(self, assertion: ObjectAssertion) -> bool:
        """Whether an assertion only denies constants that a required member cannot have anyway."""
        if not assertion.outside or assertion.annotates or len(assertion.properties) > 1:
            return False
        for name, keys in _denied_labels(assertion):
            listed = self._listed.get(name)
            return listed is not None and listed.isdisjoint(keys) and all(map(self.required.get, assertion.required))
        return False

    def _is_absent(self, name: str) -> bool:
        keys = self.allowed.get(name)
        if keys is not None and not keys:
            return True
        return bool(self._closed) and any(name not in assertion.properties for assertion in self._closed)

    def is_idle(self, assertion: ObjectAssertion) -> bool:
        """Whether an assertion is redundant; if so its required names are no longer counted."""
        if assertion.is_negated:
            return self._is_violated(assertion)
        if not assertion.outside or assertion.annotates or len(assertion.properties) > 1:
            return False
        for name, keys in _denied_labels(assertion):
            listed = self._listed.get(name)
            if listed is None or not listed.isdisjoint(keys):
                return False
            required = self.required
            for other in assertion.required:
                if required.get(other, 0) < 2:
                    return False
            for other in assertion.required:
                required[other] -= 1
            return True
        return False

    def _is_violated(self, assertion: ObjectAssertion) -> bool:
        """Whether every object here violates an assertion."""
        if any(map(self._is_absent, assertion.required)):
            return True
        for name, (keys, _) in constants_by_name(assertion).items() if not assertion.outside else ():
            constants = self.allowed.get(name)
            if self.required.get(name) and (not keys or (constants is not None and keys.isdisjoint(constants))):
                return True
        return False

    def holds(self, assertion: ObjectAssertion) -> bool:
        """Whether no object here violates an assertion."""
        if any(map(assertion.is_complement_of, self._holding)):
            return True
        if assertion.patterns or assertion.additional is not True or assertion.names is not True or assertion.outside:
            return False
        if (
            assertion.min_count
            or assertion.max_count is not None
            or not all(map(self.required.get, assertion.required))
        ):
            return False
        labels = constants_by_name(assertion)
        for name, schema in assertion.properties.items():
            if schema is True or self._is_absent(name):
                continue
            keys, is_all = labels.get(name, (_NONE, False))
            if not is_all or name not in self.allowed or not self.allowed[name] <= keys:
                return False
        return True


class Exclusion(NamedTuple):
    """Two disjuncts of different alternatives that must have no value in common."""

    first: Disjunct
    second: Disjunct
    location: Location
    indices: tuple[int, int]


def between_branches(
    branches: list[list[Disjunct]], location: Location, settled: Container[int]
) -> Iterator[Exclusion]:
    """The pairs of a ``oneOf`` at ``location`` that are not obviously disjoint; none if its schema is in ``settled``.

    Complexity: O(disjuncts) where the constants of one property separate all alternatives, else quadratic.
    """
    if id(location.schema) in settled:
        return
    labelled = [(_Traits(disjunct), index) for index, disjuncts in enumerate(branches) for disjunct in disjuncts]
    if _are_separated(labelled):
        return
    for j, (second, label) in enumerate(labelled):
        for first, other in labelled[:j]:
            if label != other and not first.excludes(second):
                yield Exclusion(first.disjunct, second.disjunct, location, (other, label))


def between_disjuncts(
    disjuncts: list[Disjunct], settled: Container[int], overlapping: Container[int] = frozenset()
) -> Iterator[Exclusion]:
    """The pairs among multiplied-out disjuncts that took different alternatives and are not obviously disjoint.

    The alternatives of schemas in ``settled`` exclude each other.  The search ends once all other schemas are in
    ``overlapping``, which may grow during the iteration.
    """
    traits = [_Traits(disjunct) for disjunct in disjuncts]
    groups: dict[int, list[tuple[_Traits, int]]] = {}
    for one in traits:
        for branch in one.disjunct.branches:
            groups.setdefault(id(branch.location.schema), []).append((one, branch.index))
    if all(map(_are_separated, groups.values())):
        return
    undecided = [key for key in groups if key not in settled]
    for j, second in enumerate(traits):
        if all(key in overlapping for key in undecided):
            return
        for first in traits[:j]:
            if not first.excludes(second):
                clash = _clash(first.disjunct, second.disjunct, settled)
                if clash:
                    yield Exclusion(first.disjunct, second.disjunct, *clash)


def are_disjoint(one: list[Disjunct], other: list[Disjunct]) -> bool:
    """Whether the disjuncts of two lists obviously have no value in common."""
    left, right = list(map(_Traits, one)), list(map(_Traits, other))
    return all(a.excludes(b) for a in left for b in right)


def _are_separated(labelled: list[tuple[_Traits, int]]) -> bool:
    """Whether some required property has constants in all disjuncts, and none under two labels."""
    if not all(one.disjunct.types == OBJECT for one, _ in labelled):
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


def _clash(a: Disjunct, b: Disjunct, settled: Container[int]) -> tuple[Location, tuple[int, int]] | None:
    """The alternatives of a ``oneOf`` that differ; ``None`` if a ``oneOf`` in ``settled`` already separates the two."""
    result: tuple[Location, tuple[int, int]] | None = None
    for one in a.branches:
        for other in b.branches:
            if one.location.schema is other.location.schema and one.index != other.index:
                if id(one.location.schema) in settled:
                    return None
                result = result or (one.location, (one.index, other.index))
    return result


class _Traits:
    """The properties that separate disjuncts quickly.

    Attributes:
        constants: the keys of the constants of each required property.
    """

    __slots__ = ("constants", "disjunct")

    def __init__(self, disjunct: Disjunct) -> None:
        self.disjunct = disjunct
        self.constants: dict[str, frozenset[object]] = {}
        objects = [assertion for assertion in disjunct.objects if not assertion.is_negated]
        required = {name for assertion in objects for name in assertion.required}
        for assertion in objects:
            for name, (keys, _) in constants_by_name(assertion).items():
                if name in required and name not in assertion.outside:
                    self.constants[name] = keys & self.constants.get(name, keys)

    def excludes(self, other: _Traits) -> bool:
        """Whether the two disjuncts obviously have no value in common."""
        if self.disjunct.excludes(other.disjunct):
            return True
        if self.disjunct.types & other.disjunct.types != OBJECT:
            return False
        return any(
            keys.isdisjoint(other.constants[name]) for name, keys in self.constants.items() if name in other.constants
        )
