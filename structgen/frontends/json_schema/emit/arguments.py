"""The arguments of a call in notations other than JSON: which values a schema allows, written another way.

A :class:`Notation` says how members, items and scalars are written.  The schema is read and its normal form made as for
JSON.  The planner here plans the outermost object, and the containers inside it where the notation nests; all other
values are JSON of their schemas, restricted to some types, so both kinds share rules and recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema.emit.array import ArrayChain, array_term
from structgen.frontends.json_schema.emit.object_chain import ObjectChain
from structgen.frontends.json_schema.emit.object_term import object_term
from structgen.frontends.json_schema.emit.plan import LeafCache, LeafKey, Plan
from structgen.frontends.json_schema.emit.planner import Planner
from structgen.frontends.json_schema.emit.type_plan import DISJUNCT_COST, ENTRY_COST
from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ArrayLayout, ObjectAssertion
from structgen.frontends.json_schema.normal.disjunct import Disjunct, exactly_array, exactly_object
from structgen.frontends.json_schema.normal.object_layout import NameLanguage, ObjectLayout, decoded_strings
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.normal.validity import Validity, restricted_assertions
from structgen.frontends.json_schema.source.json_value import ARRAY, OBJECT, STRING
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import ANY_STRING, alternatives
from structgen.grammar.limits import spend
from structgen.grammar.nodes import ANY_CHAR, EMPTY, Distinct, Grammar, Intersection, JsonString, Repeat

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.setting import Setting
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = ["ArgumentPlanner", "Notation", "NotationMarks", "Scalars", "refuse_name"]

_ANY_TEXT: Final = Repeat(ANY_CHAR)
_LEAF_STEPS: Final = 60
"""Steps of a value without subschemas whose term is cached; about the cost of planning it."""


class Scalars(NamedTuple):
    """Values that a notation writes from their JSON.

    Attributes:
        types: their types, as bits.
        schema: the schema that restricts a value to them.
        written: from their JSON to how they are written; ``EMPTY`` stays ``EMPTY``.
    """

    types: int
    schema: Mapping[str, Json]
    written: Callable[[Grammar], Grammar]


class NotationMarks(NamedTuple):
    """A notation in the form of the native planner.

    Attributes:
        terms: before a name, after it, after a value, between members, at the end; any name with what precedes it;
            before and after a text that is listed; before and after an item. ``None``: nothing.
        written: values that are written from their JSON: their types, and the marks before and after it.
        nested: the marks before arrays, and before objects, inside the arguments; empty: these are JSON.
        name_end: no name contains it.
        text_end: no text contains it.
        around_repeated: where the name is repeated after the value: the marks around it, before those of ``terms``.
        has_entities: whether names have XML's entities.
        strips: whether a line break at each end does not belong to a text.
    """

    terms: tuple[Grammar | None, ...]
    written: tuple[tuple[int, Grammar | None, Grammar | None], ...]
    nested: tuple[Grammar | None, ...]
    name_end: str
    text_end: str
    around_repeated: tuple[str, str] | None
    has_entities: bool
    strips: bool


class Notation(Protocol):
    """How values are written; equal notations write equal values the same."""

    def __hash__(self) -> int:
        """Terms are looked up by notation."""

    @property
    def scalars(self) -> tuple[Scalars, ...]:
        """The values that are written from their JSON; with ``nests`` none of them are containers."""

    @property
    def marks(self) -> NotationMarks | None:
        """The notation for the native planner; ``None``: that does not support it."""

    @property
    def nests(self) -> bool:
        """Whether containers inside the arguments are written in this notation too."""

    def syntax(self, json: Syntax, *, is_root: bool) -> Syntax:
        """The punctuation of the arguments (``is_root``), and of containers inside."""

    def key(self, name: str, location: Location, *, is_root: bool) -> Grammar:
        """A name with what precedes it; ``EMPTY``: no object may have it.

        Raises:
            UnsupportedFeature: the name cannot be written.
        """

    def names(self, language: Grammar, *, is_root: bool) -> Grammar | None:
        """The same for undeclared names; ``None``: the notation cannot write them."""

    def member(self, value: Grammar, name: str | None) -> Grammar:
        """A value with what follows it; ``name`` is ``None`` for undeclared names."""

    def item(self, value: Grammar) -> Grammar:
        """An item of an array."""

    def spells(self, text: str) -> bool:
        """Whether a string can be written."""

    def string(self, language: Grammar | None) -> Grammar:
        """A string whose text is in ``language``; ``None``: any text."""

    def array(self, items: Grammar) -> Grammar:
        """An array inside the arguments."""

    def object(self, members: Grammar) -> Grammar:
        """An object inside the arguments."""


def refuse_name(location: Location, name: str, problem: str, *, remedy: str) -> NoReturn:
    """Refuse a name that a schema lists and a notation cannot write.

    Raises:
        UnsupportedFeature: always.
    """
    is_declared = name in location.schema.get("properties", ())
    keyword, steps = ("properties", (name,)) if is_declared else ("required", ())
    refused(location, keyword, problem, remedy=remedy, steps=steps)


class ArgumentPlanner(Planner):
    """Makes the grammar of the arguments of one schema."""

    def __init__(self, forms: NormalForm, setting: Setting, notation: Notation) -> None:
        super().__init__(forms, setting)
        self._notation = notation
        self._policy = setting.policy
        self._syntaxes = _syntaxes_of(notation, setting)
        self._validity = Validity(forms)
        self._values: dict[tuple[frozenset[int], int], Plan] = {}
        self._expansions: dict[int, Callable[[Plan], None]] = {}  # by the identity of plans that are kept
        self._restrictions: dict[int, Location] = {}
        self._start: Location | None = None
        self._is_value = False
        self._setting = setting
        self._known: LeafCache | None = None  # of the dialect of the root

    def argument(self, location: Location) -> Grammar:
        """The grammar of the value of one argument; errors as for ``grammar``."""
        self._is_value = True
        return self.grammar(location)

    def request_root(self, location: Location) -> Plan:
        """The plan of the arguments, or of the value of one."""
        self._start = location
        if not self._counts_levels:
            self._known = _known_values(self._notation, self._setting, location.resource.dialect)
        if self._is_value:
            return self.value((location,), location)
        root = Plan((location,), 0)
        self._postpone(root, self._expand_arguments)
        return root

    def _postpone(self, plan: Plan, expand: Callable[[Plan], None]) -> None:
        self._expansions[id(plan)] = expand
        self._pending.append(plan)

    def _expand(self, plan: Plan) -> None:
        expand = self._expansions.pop(id(plan), None)
        if expand is None:
            super()._expand(plan)
        else:
            expand(plan)

    def _disjuncts(self, locations: tuple[Location, ...], types: int, near: Location) -> list[Disjunct]:
        """The disjuncts with some of ``types``; ``near`` is named where any value is allowed."""
        if locations:
            found = self._forms.disjuncts(locations)
        else:  # an empty schema at the location of ``near``
            found = [Disjunct((Location({}, near.resource, near.parent, near.path),))]
        found = [disjunct for disjunct in found if disjunct.types & types]
        self.separate(found)
        for disjunct in found:
            self._refuse(disjunct)
            self._note_nameless(locations, disjunct)
        return found

    def _root(self) -> Location:
        if self._start is None:  # the root is requested first
            raise RuntimeError("no schema was requested")
        return self._start

    def _expand_arguments(self, plan: Plan) -> None:
        disjuncts = self._disjuncts(plan.locations, OBJECT, plan.locations[0])
        if not disjuncts:
            self._reasons.append((plan.locations, ": arguments are an object, which it does not allow"))
        plan.children = [part for one in disjuncts for part in self._objects(one, is_root=True)]

    # Values

    def value(self, locations: tuple[Location, ...], near: Location) -> Plan:
        """The plan of a value in the notation; ``near`` is the schema of its container."""
        given = tuple(one for one in locations if one.is_negated or (one.schema is not True and one.schema != {}))
        leaf = self._leaf_key(given)
        if leaf is not None and self._known is not None:
            known = self._known.get(leaf)
            if known is not None:
                self.leaves.used.add(id(given[0].schema))
                spend(known.steps, given[0].subject)
                return known
        key = frozenset(map(self._forms.schemas.key, given)), self.level if self._counts_levels else 0
        plan = self._values.get(key)
        if plan is not None:
            plan.uses += 1
            return plan
        if self._depth > self._forms.limits.nesting:
            raise LimitExceeded(locations[0].subject(), limit="nesting", maximum=self._forms.limits.nesting)
        named = given or (near.inner({}, "any value"),)
        plan = self._values[key] = Plan(named, self._depth, level=self.level)
        self._postpone(plan, lambda plan: self._expand_value(plan, given, leaf, near))
        return plan

    def _leaf_key(self, given: tuple[Location, ...]) -> LeafKey | None:
        """The key of a schema without subschemas, whose term other documents share."""
        if self._known is None or len(given) != 1 or given[0].is_negated or self._may_be_nameless(given[0].schema):
            return None
        is_shared = given[0].resource.dialect is self._root().resource.dialect
        return self._known.key(given[0].schema) if is_shared else None

    def _expand_value(self, plan: Plan, locations: tuple[Location, ...], leaf: LeafKey | None, near: Location) -> None:
        notation = self._notation
        if leaf is not None:
            plan.build = lambda terms: self._kept(leaf, alternatives(*terms))
        disjuncts = self._disjuncts(locations, -1, near)
        types = reduce(or_, (disjunct.types for disjunct in disjuncts), 0)
        if types & STRING:
            plan.children.append(Plan((), 0, self._string(disjuncts)))
        for scalars in notation.scalars:
            if types & scalars.types:
                has_others = types & ~scalars.types or notation.nests
                restriction = (self._restriction(scalars),) if has_others else ()
                inner = self._request_conjunction((*locations, *restriction))
                plan.children.append(_wrapped(inner, scalars.written))
        if not notation.nests or self._is_deepest:
            return
        for disjunct in disjuncts:
            if disjunct.types & ARRAY:
                plan.children += [_wrapped(each, notation.array) for each in self._arrays(disjunct)]
            if disjunct.types & OBJECT:
                plan.children += [_wrapped(each, notation.object) for each in self._objects(disjunct, is_root=False)]

    def _kept(self, leaf: LeafKey, term: Grammar) -> Grammar:
        if self._known is not None and term is not EMPTY:
            self._known.keep(leaf, term, _LEAF_STEPS)
        return term

    def _restriction(self, scalars: Scalars) -> Location:
        """The schema of ``scalars`` as a location; always the same for the same."""
        location = self._restrictions.get(id(scalars.schema))
        if location is None:
            location = self._root().inner(dict(scalars.schema), "type")
            self._restrictions[id(scalars.schema)] = location
        return location

    def _string(self, disjuncts: list[Disjunct]) -> Grammar:
        longest = self._policy.max_length
        languages: list[Grammar] = []
        for disjunct in disjuncts:
            if disjunct.types & STRING:
                self._check_texts(disjunct)
                language = decoded_strings(disjunct, self._validity)
                if language is None and longest is None:
                    return self._notation.string(None)
                languages.append(_ANY_TEXT if language is None else language)
        language = alternatives(*languages)
        if longest is not None and language is not EMPTY:
            language = Intersection([language, Repeat(ANY_CHAR, 0, longest)])
        return language if language is EMPTY else self._notation.string(language)

    def _check_texts(self, disjunct: Disjunct) -> None:
        """Refuse a constant that the notation cannot write."""
        for value in self._validity.constants(disjunct) if disjunct.values else ():
            if isinstance(value, str) and not self._notation.spells(value):
                listed = disjunct.values[0]
                refused(
                    listed.location,
                    listed.keyword,
                    f"the text {value!r:.60} contains the mark that ends it",
                    remedy="leave this value out, or write the arguments as JSON",
                )

    # Containers

    def _inside(self, conjunctions: Iterable[tuple[Location, ...]], near: Location) -> list[Plan]:
        self.level += 1
        plans = [self.value(locations, near) for locations in conjunctions]
        self.level -= 1
        return plans

    def _arrays(self, disjunct: Disjunct) -> list[Plan]:
        """The arrays of a disjunct."""
        if not disjunct.values:
            return [self._array(disjunct.arrays or (ArrayAssertion(disjunct.origins[0]),))]
        constants = self._validity.constants(disjunct)
        return [self._array((exactly_array(one, disjunct.values[0]),)) for one in constants if isinstance(one, list)]

    def _array(self, assertions: tuple[ArrayAssertion, ...]) -> Plan:
        layout = ArrayLayout(assertions, self._policy.max_items)
        if layout.unique is not None:
            refused(layout.unique, "uniqueItems", "items are compared only where they are JSON")
        item, syntax = self._notation.item, self._syntaxes[False]
        plan = Plan((), 0)
        if layout.is_stateful:
            counts = ArrayChain(layout, self._forms.compare)
            plan.children = self._inside(counts.locations, assertions[0].location)
            plan.build = lambda terms: counts.term(list(map(item, terms)), syntax)
            return plan
        count = len(layout.items)
        has_rest = layout.max_count is None or layout.max_count > count
        plan.children = self._inside((*layout.items, *([layout.rest] if has_rest else ())), assertions[0].location)

        def build(terms: list[Grammar]) -> Grammar:
            written = [*map(item, terms), EMPTY]
            return array_term(layout, written[:count], written[count], syntax)

        plan.build = build
        return plan

    def _objects(self, disjunct: Disjunct, *, is_root: bool) -> list[Plan]:
        """The objects of a disjunct."""
        if not disjunct.values:
            return [self._object(disjunct.objects or (ObjectAssertion(disjunct.origins[0]),), is_root=is_root)]
        return [
            self._object((exactly_object(one, disjunct.values[0]),), is_root=is_root)
            for one in self._validity.constants(disjunct)
            if isinstance(one, dict)
        ]

    def _object(self, assertions: tuple[ObjectAssertion, ...], *, is_root: bool) -> Plan:
        forms, syntax, member = self._forms, self._syntaxes[is_root], self._notation.member
        if forms.restricts:
            assertions = restricted_assertions(assertions, closes=forms.closes, requires=forms.requires)
        layout = ObjectLayout(assertions, lambda names: NameLanguage(names, forms, self._validity), self._policy)
        location = assertions[0].location
        forms.spend(DISJUNCT_COST + ENTRY_COST * len(layout.entries), location)
        self._write_names(layout, assertions, is_root=is_root)
        plan = Plan((), 0)
        if layout.is_stateful:
            members = ObjectChain(layout, forms.compare)
            plan.children = self._inside(members.locations, location)

            def build_chain(terms: list[Grammar]) -> Grammar:
                return _compared(members.term(list(map(member, terms, members.names)), syntax), location)

            plan.build = build_chain
            return plan
        count = len(layout.entries)
        entries, others = (entry.locations for entry in layout.entries), (region.locations for region in layout.others)
        plan.children = self._inside((*entries, *others), location)

        def build(terms: list[Grammar]) -> Grammar:
            declared = [member(term, entry.name) for term, entry in zip(terms, layout.entries, strict=False)]
            undeclared = [member(term, None) for term in terms[count:]]
            term = object_term(layout, declared, undeclared, syntax)
            if term is EMPTY:
                self._reasons.append(((location,), ": no object is left by its required members and counts"))
            return _compared(term, location)

        plan.build = build
        return plan

    def _write_names(self, layout: ObjectLayout, assertions: tuple[ObjectAssertion, ...], *, is_root: bool) -> None:
        """Replace the JSON texts of names."""
        notation = self._notation
        for entry in layout.entries:
            if any(location.schema is False and not location.is_negated for location in entry.locations):
                entry.is_forbidden = True
            if not entry.is_forbidden:
                owner = next((one for one in assertions if entry.name in one.properties), assertions[0])
                entry.key = notation.key(entry.name, owner.location, is_root=is_root)
                entry.is_forbidden = entry.key is EMPTY
        for region in layout.others:
            location = next((one.location for one in assertions if one.patterns), assertions[0].location)
            key = notation.names(_decoded(region.key), is_root=is_root)
            if key is None:
                refused(
                    location,
                    "patternProperties" if region.matched else "additionalProperties",
                    "the mark after a value repeats the name, so names that the schema does not list cannot be written",
                    remedy='list the names under "properties", with "additionalProperties": false',
                )
            region.key = key
        for assertion in layout.negated:
            if assertion.names is not True and layout.others:
                refused(assertion.location, "propertyNames", "its negation is enforced only for names in JSON")


@lru_cache(maxsize=64)
def _syntaxes_of(notation: Notation, setting: Setting) -> dict[bool, Syntax]:
    """The punctuation of the arguments (true), and of containers inside."""
    return {is_root: notation.syntax(setting.syntax, is_root=is_root) for is_root in (True, False)}


@lru_cache(maxsize=64)
def _known_values(notation: Notation, setting: Setting, dialect: Dialect) -> LeafCache:
    return LeafCache(reader_of(dialect).active)


def _wrapped(plan: Plan, written: Callable[[Grammar], Grammar]) -> Plan:
    outer = Plan((), 0)
    outer.children = [plan]
    outer.build = lambda terms: terms[0] if terms[0] is EMPTY else written(terms[0])
    return outer


def _decoded(key: Grammar) -> Grammar:
    """The texts of names, from their JSON strings."""
    if key is ANY_STRING or key is EMPTY:
        return _ANY_TEXT if key is ANY_STRING else EMPTY
    if not isinstance(key, JsonString):
        raise RuntimeError(f"{key} is no JSON string")
    return key.value


def _compared(term: Grammar, location: Location) -> Grammar:
    """Refuse objects whose names must be compared while they are written."""
    if isinstance(term, Distinct):
        refused(
            location,
            "minProperties",
            "names that the schema does not list are compared only in JSON",
            remedy='list the names under "properties", with "additionalProperties": false',
        )
    return term
