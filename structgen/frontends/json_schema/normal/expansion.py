"""Expansion of the keywords that apply in place: ``allOf``, ``anyOf``, ``oneOf``, ``not``, ``if``, references.

A conjunction of schemas is the list of all meets of their disjuncts; a negated schema is resolved by De Morgan's
rules. The schemas of members and items are not expanded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from structgen.frontends.json_schema.normal import exclusion
from structgen.frontends.json_schema.normal.disjunct import (
    AllowedValues,
    Disjunct,
    OneOfBranch,
    complement_of,
    joined_strings,
    lacking,
    mentioning,
    requiring,
)
from structgen.frontends.json_schema.normal.exclusion import settled_meet
from structgen.frontends.json_schema.normal.schema_reader import (
    REFERENCES,
    Applicator,
    ParsedSchema,
    judging_the_rest,
    silenced,
)
from structgen.frontends.json_schema.normal.validity import Validity
from structgen.frontends.json_schema.source.json_value import OBJECT, type_of, value_key
from structgen.frontends.json_schema.term import united
from structgen.grammar.limits import spend

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["Expansion"]

_JOINED: Final = -1
"""The index of the alternative that stands for all alternatives of a ``oneOf`` that list values."""
_MEET_STEPS: Final = 16
_ORIGINS_A_STEP: Final = 8
_MEET_COST: Final = 16
"""The cost of one conjunction of disjuncts in ``Limits.grammar_nodes``."""
_MANY_DEPENDENTS: Final = 4
"""From this many on, schemas under ``dependentSchemas`` that restrict one name divide its values."""

_Disjuncts: TypeAlias = Generator[object, Any, "list[Disjunct]"]


class Expansion:
    """Expands the schemas of a document.  Results are cached in the normal form."""

    def __init__(self, forms: NormalForm) -> None:
        self._forms = forms

    def disjuncts(self, location: Location, *, apart: bool = False) -> _Disjuncts:
        """The disjunction of one schema.

        With ``apart``, no value is in two disjuncts that evaluate different members or items.
        """
        if isinstance(location.schema, bool):
            return [Disjunct((location,))] if location.schema else []
        cache, requested = self._forms.expanded, location.key
        cached = cache.get((requested, apart))
        if cached is None:
            location = self._forms.schemas.canonical(location)
            cached = cache.get((location.key, apart))
        if cached is None:
            parsed = self._forms.read(location)
            if location.is_negated:
                cached = yield self._negation(parsed, apart=apart)
            elif parsed.applicators or parsed.looks_at_the_rest:
                cached = yield self._conjunction(parsed, apart=apart)
            else:
                cached = [parsed.disjunct]
        cache[requested, apart] = cache[location.key, apart] = cached
        return cached

    def _conjunction(self, parsed: ParsedSchema, *, apart: bool) -> _Disjuncts:
        looks_at_the_rest = parsed.looks_at_the_rest
        apart = apart or looks_at_the_rest
        result: list[Disjunct] | None = None
        for applicator in parsed.applicators or (Applicator(""),):
            if applicator.keyword == "":
                result = self.product(result, [parsed.disjunct], parsed.location)
            elif applicator.keyword in REFERENCES:
                disjuncts = yield self.disjuncts(self._forms.schemas.target(parsed, applicator.keyword), apart=apart)
                result = self.product(result, disjuncts, parsed.location)
            elif applicator.keyword == "not":
                disjuncts = yield self.disjuncts(applicator.locations[0].complement(), apart=apart)
                result = self.product(
                    result, silenced(disjuncts) if apart or self._forms.restricts else disjuncts, parsed.location
                )
            elif applicator.keyword == "if":
                if not apart and applicator.locations[1].schema is True and applicator.locations[2].schema is True:
                    continue  # the condition only decides what counts as evaluated
                result = self.product(result, (yield self._condition(applicator, apart=apart)), parsed.location)
            elif applicator.names:
                for union in (yield self._dependents(parsed.location, applicator, apart=apart)):
                    result = self.product(result, union, parsed.location)
            elif applicator.keyword == "allOf":
                for location in applicator.locations:
                    result = self.product(result, (yield self.disjuncts(location, apart=apart)), location)
            elif apart:
                result = self.product(result, (yield self._union_apart(applicator)), parsed.location)
            else:
                result = self.product(result, (yield self._union(parsed, applicator)), parsed.location)
        disjuncts = result or []
        return (
            [judging_the_rest(disjunct, parsed, self._forms) for disjunct in disjuncts]
            if looks_at_the_rest
            else disjuncts
        )

    def _dependents(
        self, whole: Location, applicator: Applicator, *, apart: bool
    ) -> Generator[object, Any, list[list[Disjunct]]]:
        """The schemas that hold where names occur, as unions of disjoint disjuncts.

        Where many of these schemas only restrict the value of one name, the values of this name are divided.  Dividing
        the objects by the names that occur would give one disjunct for each set of names.
        """
        result: list[list[Disjunct]] = []
        waiting: dict[int, tuple[Location, list[str]]] = {}
        for name, location in zip(applicator.names, applicator.locations, strict=True):
            waiting.setdefault(self._forms.schemas.key(location), (location, []))[1].append(name)
        for location, names in waiting.values():
            disjuncts = yield self.disjuncts(location, apart=apart)
            if not apart and len(applicator.names) >= _MANY_DEPENDENTS:
                outside = yield self.disjuncts(location.complement())
                if len(outside) == 1 and outside[0].types == OBJECT and any(f.outside for f in outside[0].objects):
                    free = self.product(disjuncts, mentioning(whole, names), location)
                    for name in names:
                        outside = self.product(outside, lacking(whole, name), location)
                    result.append([*free, *outside])
                    continue
            for name in names:
                present = self.product(disjuncts, requiring(whole, name), location)
                result.append([*lacking(whole, name), *present])
        return result

    def _condition(self, applicator: Applicator, *, apart: bool) -> _Disjuncts:
        condition, then, otherwise = applicator.locations
        left = yield self.disjuncts(condition, apart=apart)
        left = self.product(left, (yield self.disjuncts(then, apart=apart)), then)
        right = yield self.disjuncts(condition.complement(), apart=apart)
        if apart or self._forms.restricts:
            right = silenced(right)
        right = self.product(right, (yield self.disjuncts(otherwise, apart=apart)), otherwise)
        return left + right

    def _union(self, parsed: ParsedSchema, applicator: Applicator) -> _Disjuncts:
        result: list[Disjunct] = []
        constants: list[Disjunct] = []
        is_one_of = applicator.keyword == "oneOf" and len(applicator.locations) > 1
        joins = not is_one_of or self._may_join(parsed.location, applicator)
        for index, location in enumerate(applicator.locations):
            disjuncts: list[Disjunct] = yield self.disjuncts(location)
            # For oneOf only what _may_join looked at: a value in two lists must not be lost from a third alternative.
            lists = self._forms.is_constant(location) if is_one_of else len(disjuncts) == 1 and disjuncts[0].is_constant
            if joins and lists:
                constants.append(disjuncts[0])
            elif is_one_of:
                for other in self._forms.rivals(parsed.location, applicator, index):
                    outside: list[Disjunct] = yield self.disjuncts(other.complement())
                    disjuncts = self.product(
                        disjuncts, silenced(outside) if self._forms.restricts else outside, location
                    )
                branch = OneOfBranch(parsed.location, index)
                result += [_with_branch(disjunct, branch) for disjunct in disjuncts]
            else:
                result += disjuncts
        if constants:
            joined = _joined(constants, is_one_of=is_one_of)
            result.append(
                _with_branch(joined, OneOfBranch(parsed.location, _JOINED)) if is_one_of and result else joined
            )
        return result

    def _may_join(self, location: Location, applicator: Applicator) -> bool:
        """Whether the alternatives of a ``oneOf`` that list values may be joined to one list."""
        if id(location.schema) in self._forms.overlaps:
            return False
        listed = [inner for inner in applicator.locations if self._forms.is_constant(inner)]
        if len(listed) == len(applicator.locations):
            return True
        keys = [key for inner in listed for key in self._forms.read(inner).disjunct.values[0].keys]
        return len(keys) == len(set(keys))

    def _union_apart(self, applicator: Applicator) -> _Disjuncts:
        """The disjuncts of ``anyOf`` or ``oneOf``, divided by the set of alternatives that the values satisfy."""
        result: list[tuple[Disjunct | None, tuple[int, ...]]] = [(None, ())]
        earlier: list[list[Disjunct]] = []
        for index, location in enumerate(applicator.locations):
            inside: list[Disjunct] = yield self.disjuncts(location, apart=True)
            outside = silenced((yield self.disjuncts(location.complement(), apart=True)))
            is_apart = [exclusion.are_disjoint(inside, other) for other in earlier]
            earlier.append(inside)
            grown: list[tuple[Disjunct | None, tuple[int, ...]]] = []
            for disjunct, chosen in result:
                if any(is_apart[other] for other in chosen):
                    grown.append((disjunct, chosen))
                    continue
                before = None if disjunct is None else [disjunct]
                if not chosen or applicator.keyword == "anyOf":
                    grown += [(met, (*chosen, index)) for met in self.product(before, inside, location)]
                grown += [(met, chosen) for met in self.product(before, outside, location)]
            result = grown
        return [disjunct for disjunct, chosen in result if disjunct is not None and chosen]

    def _negation(self, parsed: ParsedSchema, *, apart: bool) -> _Disjuncts:
        """The values that are not valid against a schema."""
        if parsed.looks_at_the_rest:
            disjuncts = yield self._conjunction(parsed, apart=True)
            return self._outside_all(disjuncts, parsed.location)
        result: list[Disjunct] = []
        for applicator in parsed.applicators or (Applicator(""),):
            if applicator.keyword == "":
                if not parsed.disjunct.is_free:
                    result += complement_of(parsed.disjunct, Validity(self._forms).constants)
            elif applicator.keyword in REFERENCES:
                result += yield self.disjuncts(
                    self._forms.schemas.target(parsed, applicator.keyword).complement(), apart=apart
                )
            elif applicator.keyword == "not":
                result += yield self.disjuncts(applicator.locations[0], apart=apart)
            elif applicator.keyword == "if":
                condition, then, otherwise = applicator.locations
                result += yield self._both(condition, then.complement(), apart=apart)
                result += yield self._both(condition.complement(), otherwise.complement(), apart=apart)
            elif applicator.names:
                for name, location in zip(applicator.names, applicator.locations, strict=True):
                    outside = yield self.disjuncts(location.complement(), apart=apart)
                    result += self.product(requiring(parsed.location, name), outside, location)
            elif applicator.keyword == "allOf":
                for location in applicator.locations:
                    result += yield self.disjuncts(location.complement(), apart=apart)
            else:
                result += yield self._outside_union(applicator, parsed.location, apart=apart)
        return result

    def _both(self, first: Location, second: Location, *, apart: bool) -> _Disjuncts:
        left = yield self.disjuncts(first, apart=apart)
        return self.product(left, (yield self.disjuncts(second, apart=apart)), second)

    def _outside_union(self, applicator: Applicator, location: Location, *, apart: bool) -> _Disjuncts:
        """The values in none of the alternatives; for ``oneOf`` also the values in two of them."""
        result: list[Disjunct] | None = None
        for inner in applicator.locations:
            result = self.product(result, (yield self.disjuncts(inner.complement(), apart=apart)), inner)
        outside = result or []
        if applicator.keyword == "oneOf":
            for j, second in enumerate(applicator.locations):
                for first in applicator.locations[:j]:
                    left = yield self.disjuncts(first, apart=apart)
                    right = yield self.disjuncts(second, apart=apart)
                    if not exclusion.are_disjoint(left, right):
                        outside += self.product(left, right, location)
        return outside

    def _outside_all(self, disjuncts: list[Disjunct], location: Location) -> list[Disjunct]:
        """The values that are in none of the disjuncts."""
        result = [Disjunct((location,))]
        for disjunct in disjuncts:
            result = self.product(result, complement_of(disjunct, Validity(self._forms).constants), location)
        return result

    def product(self, left: list[Disjunct] | None, right: list[Disjunct], location: Location) -> list[Disjunct]:
        """The meets of all pairs; ``left`` is ``None`` for no constraint.

        Raises:
            LimitExceeded: there are too many disjuncts.
        """
        if left is None:
            return right
        if len(left) > 1 and len(right) > 1:
            left, right = joined_strings(left), joined_strings(right)
        self._forms.spend(len(left) * len(right), location)
        max_count = self._forms.nodes_left // _MEET_COST
        met: list[Disjunct] = []
        for a in left:
            met += [both for b in right if not a.excludes(b) and (both := _meet(a, b)) is not None]
            if len(met) > max_count:
                break
        self._forms.spend(_MEET_COST * len(met), location)
        spend(sum([_MEET_STEPS + len(both.origins) // _ORIGINS_A_STEP for both in met]), location.subject)
        if not met and left and right:
            a, b = left[0], right[0]
            why = ": the types exclude each other" if a.types & b.types == 0 else ": no constant is common"
            self._forms.contradictions.append((united(a.origins, b.origins), why))
        return met


def _meet(a: Disjunct, b: Disjunct) -> Disjunct | None:
    """The values of both; ``None`` if there are obviously none."""
    if a.is_free or b.is_free:
        return b if a.is_free else a
    return settled_meet(a, b)


def _with_branch(disjunct: Disjunct, branch: OneOfBranch) -> Disjunct:
    return replace(disjunct, branches=(*disjunct.branches, branch))


def _joined(disjuncts: list[Disjunct], *, is_one_of: bool) -> Disjunct:
    """One disjunct for alternatives that list values; for ``oneOf`` without the values in two lists."""
    if len(disjuncts) == 1:
        return disjuncts[0]
    lists: list[list[Json]] = []
    for disjunct in disjuncts:
        own = {value_key(value): value for value in disjunct.values[0].members if type_of(value) & disjunct.types}
        lists.append(list(own.values()))
    counts = Counter(value_key(value) for values in lists for value in values) if is_one_of else Counter()
    first = disjuncts[0].values[0]
    members = [value for values in lists for value in values if counts[value_key(value)] <= 1]
    return Disjunct((first.location,), values=(AllowedValues(members, first.location, first.keyword),))
