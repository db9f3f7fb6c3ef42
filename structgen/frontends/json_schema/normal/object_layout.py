"""The names that an object may have, and the schemas of their values.

``propertyNames`` gives a regular language of decoded names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from structgen.frontends.disjointness import overlaps
from structgen.frontends.json_schema.normal.exclusion import between_disjuncts
from structgen.frontends.json_schema.source.json_value import STRING
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import ANY_STRING, alternatives
from structgen.grammar.limits import spend
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Repeat,
)

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.normal.validity import Validity
    from structgen.frontends.json_schema.policy import JsonPolicy

__all__ = [
    "DeclaredName",
    "NameLanguage",
    "NameRegion",
    "NameRule",
    "NameRules",
    "ObjectLayout",
    "decoded_strings",
    "region_locations",
]

_STEPS_A_NAME: Final = 3
_MAX_REGIONS: Final = 200
"""Regions into which overlapping patterns may divide the names."""


class NameRule(Protocol):
    """The names that ``propertyNames`` allows."""

    def admits(self, name: str) -> bool:
        """Whether a name is allowed."""

    def language(self) -> Grammar | None:
        """The allowed names; ``None``: all."""


@dataclass(slots=True, eq=False)
class DeclaredName:
    """A declared name.

    Attributes:
        name: the name, and ``key`` its text.
        is_required: whether it must occur.
        locations: the schemas of its value.
        is_forbidden: ``propertyNames`` excludes it.
    """

    name: str
    key: Grammar
    locations: tuple[Location, ...]
    is_required: bool = field(kw_only=True)
    is_forbidden: bool = False


@dataclass(slots=True, eq=False)
class NameRegion:
    """A region of undeclared names.

    Attributes:
        key: their texts.
        matched: the patterns that they match.
        locations: the schemas of their values.
        is_open: whether it has all names except declared ones, so that they never run out.
    """

    matched: tuple[str, ...]
    locations: tuple[Location, ...]
    _parts: list[Grammar]
    _excluded: list[Grammar]
    is_open: bool = field(kw_only=True)
    key: Grammar = field(init=False)

    def __post_init__(self) -> None:
        self.key = _region_key(self._parts, self._excluded)

    def within(self, languages: tuple[Grammar, ...]) -> Grammar:
        """The texts of the names that are also in all of ``languages``."""
        return _region_key([*self._parts, *languages], self._excluded)


NameRules = Callable[[tuple[Location, ...]], NameRule]


class ObjectLayout:
    """The conjunction of the object assertions of a disjunct.

    Attributes:
        positive: the assertions that hold; ``negated``: the assertions that must be violated.
        entries: the names of ``properties`` in order, then further required names.
        others: the regions of all other names.
        min_count, max_count: the bounds on the number of members.
        dependents: for a name the names that it requires.
        max_others: the bound of the policy on the number of members with undeclared names.
        name_rules: the names that the schemas of names allow.
    """

    __slots__ = (
        "_longest_name",
        "dependents",
        "entries",
        "max_count",
        "max_others",
        "min_count",
        "name_rules",
        "negated",
        "others",
        "positive",
    )

    def __init__(self, assertions: tuple[ObjectAssertion, ...], name_rules: NameRules, policy: JsonPolicy) -> None:
        self.positive = tuple(assertion for assertion in assertions if not assertion.is_negated)
        self.negated = tuple(assertion for assertion in assertions if assertion.is_negated)
        self.name_rules = name_rules
        self.dependents = _dependents(self.positive)
        if len(assertions) == 1 and not assertions[0].patterns and not self.is_stateful:
            self._of_one(assertions[0])
        else:
            self._of_several(assertions)
        self.max_others, self._longest_name = policy.max_members, policy.max_length
        if policy.escapes == "all":
            for entry in self.entries:
                entry.key = JsonString(Literal(entry.name.encode()))
        rules = tuple(assertion.names_location() for assertion in self.positive if assertion.names is not True)
        names = name_rules(rules) if rules else None
        if names is not None:
            for entry in self.entries:
                entry.is_forbidden = not names.admits(entry.name)
        self.others: list[NameRegion] = []
        is_closed = any(assertion.additional is False and not assertion.patterns for assertion in self.positive)
        if not is_closed and self.max_others != 0:
            self.others = list(self._regions(assertions, [entry.name for entry in self.entries], names))

    @property
    def is_stateful(self) -> bool:
        """Whether something must be remembered from member to member."""
        return bool(self.negated or self.dependents)

    def _of_one(self, assertion: ObjectAssertion) -> None:
        self.min_count, self.max_count = assertion.min_count, assertion.max_count
        properties, location = assertion.properties, assertion.location
        required = frozenset(assertion.required)
        self.entries = [
            DeclaredName(
                name,
                assertion.key(name),
                (assertion.property(name) if assertion.outside else location.inner(schema, "properties", name),),
                is_required=name in required,
            )
            for name, schema in properties.items()
        ]
        additional = assertion.additional_location()
        others = () if additional is None else (additional,)
        self.entries += [
            DeclaredName(name, assertion.key(name), others, is_required=True)
            for name in dict.fromkeys(assertion.required)
            if name not in properties
        ]

    def _of_several(self, assertions: tuple[ObjectAssertion, ...]) -> None:
        self.min_count = max((assertion.min_count for assertion in self.positive), default=0)
        self.max_count = min(
            (assertion.max_count for assertion in self.positive if assertion.max_count is not None), default=None
        )
        required = {name for assertion in self.positive for name in assertion.required}
        owners: dict[str, ObjectAssertion] = {}
        for assertion in assertions:
            for name in assertion.properties:
                owners.setdefault(name, assertion)
        for assertion in assertions:
            for name in assertion.required:
                owners.setdefault(name, assertion)
        for assertion in self.positive:
            for name, others in assertion.dependents.items():
                for one in (*others, name):
                    owners.setdefault(one, assertion)
        locations: dict[str, list[Location]] = {name: [] for name in owners}
        for assertion in self.positive:  # only for the names that the assertion is about
            concerned = owners if assertion.concerns_others else assertion.properties
            spend(_STEPS_A_NAME * len(concerned), assertion.location.subject)
            for name in concerned:
                locations[name] += assertion.locations_of(name)
        self.entries = [
            DeclaredName(name, assertion.key(name), tuple(locations[name]), is_required=name in required)
            for name, assertion in owners.items()
        ]

    def _regions(
        self, assertions: tuple[ObjectAssertion, ...], declared: list[str], names: NameRule | None
    ) -> Iterator[NameRegion]:
        """The regions of undeclared names; the region without patterns is last."""
        permitted = names.language() if names else None
        if permitted is EMPTY:
            return
        allowed = [] if permitted is None else [permitted]
        if self._longest_name is not None:
            allowed.append(Repeat(ANY_CHAR, 0, self._longest_name))
        patterns = {text: language for assertion in assertions for text, language in assertion.patterns}
        matching: dict[str, set[str]] = {text: set() for text in patterns}
        for assertion in assertions:
            for name in declared:
                for index in assertion.matching(name):
                    matching[assertion.patterns[index][0]].add(name)
        meeting = _meeting(assertions, patterns)
        for matched in _subsets(assertions, meeting):
            locations = region_locations(self.positive, matched)
            if any(location.schema is False for location in locations):
                continue
            if matched:
                inside = [patterns[text] for text in matched]
                # Exclude the declared names that match all patterns of the region.
                common = matching[matched[0]].intersection(*(matching[text] for text in matched[1:]))
                excluded = [name for name in declared if name in common] if common else []
                met = meeting[matched[0]].difference(matched)
                outside = [language for text, language in patterns.items() if text in met] if met else []
            else:
                inside, excluded = [], declared
                outside = list(patterns.values())
            literals: list[Grammar] = [Literal(name.encode("utf-8", "replace")) for name in excluded]
            is_open = not inside and not outside and permitted is None and self._longest_name != 0
            yield NameRegion(matched, locations, [*inside, *allowed], [*literals, *outside], is_open=is_open)


def _dependents(assertions: tuple[ObjectAssertion, ...]) -> dict[str, tuple[str, ...]]:
    result: dict[str, tuple[str, ...]] = {}
    for assertion in assertions:
        for name, others in assertion.dependents.items():
            result[name] = (*result.get(name, ()), *(other for other in others if other != name))
    return result


def _meeting(assertions: tuple[ObjectAssertion, ...], patterns: dict[str, Grammar]) -> dict[str, set[str]]:
    """For each pattern the others that one name may also match."""
    if len(patterns) < 2:
        return {key: set() for key in patterns}
    if len(patterns) > _MAX_REGIONS:
        _refuse_regions(assertions, len(patterns))
    texts = list(patterns)
    count = _with_patterns(assertions).counter("patternProperties")
    pairs = zip(texts, overlaps(list(patterns.values()), count), strict=True)
    return {text: {texts[index] for index in others} for text, others in pairs}


def _subsets(assertions: tuple[ObjectAssertion, ...], meeting: dict[str, set[str]]) -> Iterator[tuple[str, ...]]:
    """The sets of patterns that one name may match, as far as pairs of patterns tell; ``()`` is the last."""
    result: list[tuple[str, ...]] = []
    for text, others in meeting.items():
        grown = [(*subset, text) for subset in result if others.issuperset(subset)]
        result += [*grown, (text,)]
        if len(result) > _MAX_REGIONS:
            _refuse_regions(assertions, len(meeting))
    yield from sorted(result, key=len, reverse=True)
    yield ()


def _refuse_regions(assertions: tuple[ObjectAssertion, ...], count: int) -> NoReturn:
    refused(
        _with_patterns(assertions),
        "patternProperties",
        f"the {count} patterns divide the names into more than {_MAX_REGIONS} regions",
        remedy="anchor the patterns with distinct prefixes such as '^a_' and '^b_'",
    )


def _with_patterns(assertions: tuple[ObjectAssertion, ...]) -> Location:
    return next(assertion.location for assertion in assertions if assertion.patterns)


def region_locations(assertions: tuple[ObjectAssertion, ...], matched: tuple[str, ...]) -> tuple[Location, ...]:
    """The schemas of the values of undeclared names that match exactly ``matched``."""
    locations: list[Location] = []
    for assertion in assertions:
        matching = [assertion.pattern(text) for text, _ in assertion.patterns if text in matched]
        additional = None if matching else assertion.additional_location()
        locations += matching if additional is None else [additional]
    return tuple(locations)


def _region_key(inside: list[Grammar], outside: list[Grammar]) -> Grammar:
    """The JSON strings in all of ``inside`` and none of ``outside``."""
    parts = list(inside)
    if outside:
        parts.append(Complement(outside[0] if len(outside) == 1 else Choice(outside)))
    if not parts:
        return ANY_STRING
    return JsonString(parts[0] if len(parts) == 1 else Intersection(parts))


class NameLanguage:
    """The names that are valid against all schemas."""

    def __init__(self, locations: tuple[Location, ...], forms: NormalForm, validity: Validity) -> None:
        self._locations = locations
        self._forms = forms
        self._validity = validity

    def admits(self, name: str) -> bool:
        """Whether a name is allowed."""
        return self._validity.satisfies(name, self._locations)

    def language(self) -> Grammar | None:
        """The allowed names; ``None``: all; ``EMPTY``: none.

        Raises:
            UnsupportedFeature: a keyword under ``propertyNames`` cannot be enforced.
        """
        terms: list[Grammar] = []
        disjuncts = [disjunct for disjunct in self._forms.disjuncts(self._locations) if disjunct.types & STRING]
        for one in between_disjuncts(disjuncts, self._forms.overlaps):
            self._forms.note_overlap(one)
        for disjunct in disjuncts:
            for location, keyword in disjunct.refusals:
                refused(location, keyword)
            term = decoded_strings(disjunct, self._validity)
            if term is None:
                return None
            terms.append(term)
        return alternatives(*terms)


def decoded_strings(disjunct: Disjunct, validity: Validity) -> Grammar | None:
    """The texts of the strings of a disjunct; ``None``: all; ``EMPTY``: none.

    Raises:
        UnsupportedFeature: the language of a format is not regular.
    """
    if disjunct.values:
        texts = [value for value in validity.constants(disjunct) if isinstance(value, str)]
        return Choice([Literal(text.encode("utf-8", "replace")) for text in texts]) if texts else EMPTY
    assertion = disjunct.string
    if assertion is None:
        return None
    if assertion.is_contradictory:
        return EMPTY
    parts = assertion.all_languages()
    if assertion.shortest or assertion.longest is not None:
        parts.append(Repeat(ANY_CHAR, assertion.shortest, assertion.longest))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else Intersection(parts)
