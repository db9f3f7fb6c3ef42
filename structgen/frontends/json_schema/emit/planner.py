"""From a schema to a grammar, in two passes without recursion.

The first pass, here, visits every conjunction of schemas that some value must satisfy, once, and notes its parts in
a :class:`Plan`; conjunctions are known by the schemas in them, so recursive schemas give a finite graph.  The second
pass (``plans``) goes through the graph depth first and builds terms from the leaves.  What is recursive or used more
than once becomes a rule; the rest stands where it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Final

from structgen.errors import LimitExceeded, UnsatisfiableGrammar
from structgen.frontends.disjointness import are_disjoint
from structgen.frontends.json_schema.emit.array import ArrayChain, array_term
from structgen.frontends.json_schema.emit.number import number_term, without_absorbed
from structgen.frontends.json_schema.emit.object_chain import ObjectChain
from structgen.frontends.json_schema.emit.object_term import object_term
from structgen.frontends.json_schema.emit.plan import Plan, PlanBuilder, array_is_empty, object_is_empty, union
from structgen.frontends.json_schema.emit.syntax import BOOLEAN_TERM, NULL_TERM, values_term
from structgen.frontends.json_schema.emit.unique_items import UniqueItems
from structgen.frontends.json_schema.normal import exclusion
from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
from structgen.frontends.json_schema.normal.disjunct import Disjunct, meet
from structgen.frontends.json_schema.normal.normal_form import BranchPairs, NormalForm
from structgen.frontends.json_schema.normal.object_layout import NameLanguage, ObjectLayout
from structgen.frontends.json_schema.normal.scalar_assertion import NumberAssertion, string_term
from structgen.frontends.json_schema.normal.validity import (
    Validity,
    closed_assertions,
    forbids,
    is_nameless,
    is_unbounded,
)
from structgen.frontends.json_schema.source.json_value import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
)
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import alternatives, distinct
from structgen.grammar.nodes import EMPTY, Distinct, Grammar, Rules
from structgen.grammar.trampoline import trampoline

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.plan import EmptinessProof, LeafCache, LeafKey
    from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
    from structgen.frontends.json_schema.normal.scalar_assertion import StringAssertion
    from structgen.frontends.json_schema.normal.schema_reader import Applicator, ParsedSchema, SchemaReader
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.translation import Setting
    from structgen.grammar.limits import Limits

__all__ = ["AlternativesOverlap", "Planner"]

_SHAPE_COST: Final = 64
_ENTRY_COST: Final = 40
_ITEM_COST: Final = 16
"""What a shape, a declared name and an item count against ``Limits.grammar_nodes``: about their work, in nodes."""
_CLOSED: Final = "additional='forbidden'"
_SCALAR_NAMES: Final = ("string", "number", "integer", "boolean", "null", "array")


class AlternativesOverlap(Exception):
    """Alternatives of a ``oneOf`` may both be valid, so that the normal form must be made anew.

    Attributes:
        overlaps: all pairs that are known by now, by the identity of the schema.
    """

    def __init__(self, overlaps: Mapping[int, BranchPairs]) -> None:
        super().__init__(len(overlaps))
        self.overlaps = overlaps


class Planner:
    """Makes the grammar of one document."""

    def __init__(self, forms: NormalForm, setting: Setting, limits: Limits) -> None:
        self.known: set[int] = set()  # the schemas whose plans were there, by identity
        self.nameless: set[int] = set()  # those that the policy would close, but that name no member
        self._forms = forms
        self._setting = setting
        self._dialect: Dialect | None = None  # that of the leaves
        self._leaves: LeafCache | None = None
        self._syntax = syntax = setting.syntax
        self._limits = limits
        self._validity = Validity(forms)
        # By what must hold, and the level where that matters.
        self._plans: dict[tuple[int | frozenset[int], int], Plan] = {}
        self._counts_levels = setting.policy.max_depth is not None
        self._explored: list[Plan] = []  # those that proofs do not use
        self._closes = setting.policy.additional == "forbidden"
        self._pending: deque[Plan] = deque()
        self._exclusions: list[Iterator[exclusion.Exclusion]] = []
        self._are_proofs = False  # what is planned now only serves to find it empty
        self._builder = PlanBuilder()
        # By keyword the identities of the schemas where it is checked as the text is written, not enforced.
        self.checked: dict[str, set[int]] = {"uniqueItems": set(), "minProperties": set()}
        self._chains: dict[int, ObjectChain] = {}  # by the layout: conjunctions come to the same objects
        self._plain: dict[tuple[int, int], Grammar] = {}  # the terms of unconstrained types, by level
        self._reasons: list[tuple[tuple[Location, ...], str]] = []
        self._depth = 0
        self._level = 0  # how many arrays and objects stand around what is asked for
        self._anything = [Plan((), 0, level.value) for level in syntax.levels]
        self._nothing = Plan((), 0, EMPTY)

    def grammar(self, place: Location) -> Grammar:
        """The grammar of the schema at ``place``.

        Raises:
            GrammarError: the schema is malformed, refused or unsatisfiable.
            LimitExceeded: it is too large.
            AlternativesOverlap: a ``oneOf`` was read as if its alternatives excluded each other.
        """
        try:
            return self._grammar(place)
        finally:
            for plan in (*self._plans.values(), *self._explored):
                if plan.term is None:
                    plan.release()
            self._plans.clear()
            self._explored.clear()

    def leaf(self, place: Location, reader: SchemaReader) -> Grammar:
        """The term of a schema of simple keywords, as ``grammar`` makes it; ``EMPTY`` where no value is valid.

        One planner may make any number of them, for it remembers nothing of their schemas.

        Raises:
            GrammarError: the schema is malformed or refused.
        """
        leaves = self._leaves_of(place)
        key = leaves.key(place.schema)
        plan = None if key is None else leaves.get(key)
        if plan is not None and plan.term is not None:
            return plan.term
        term = self._leaf(reader.read(place).shape, leaves, key)
        self._reasons.clear()
        return term

    def _grammar(self, place: Location) -> Grammar:
        root = self._request((place,))
        self._explore()
        self._are_proofs = True
        if self._closes:  # alternatives that overlap as the schema has them may be disjoint once they are closed
            self._explored += self._plans.values()
            self._plans.clear()
        for pairs in self._exclusions:
            for one in pairs:
                if id(one.place.schema) not in self._forms.found and self._overlap(one):
                    self._forms.note(one)
        if self._forms.found:
            overlaps = {key: self._overlapping(local) for key, local in self._forms.found.items()}
            raise AlternativesOverlap({**self._forms.overlaps, **overlaps})
        term = self._builder.build(root)
        if term is EMPTY:
            found = [*self._forms.contradictions, *self._reasons]
            reasons = [f"{_pointers(places)}{why}" for places, why in found[:3]]
            raise UnsatisfiableGrammar(
                place.subject(),
                "no value satisfies it",
                evidence="; ".join(dict.fromkeys(reasons)),
                remedy="loosen one of these keywords",
            )
        return Rules(self._builder.rules, term) if self._builder.rules else term

    # First pass

    def _request(self, places: tuple[Location, ...]) -> Plan:
        """The plan for a conjunction, made if it is new."""
        if len(places) != 1:
            return self._request_conjunction(places)
        place = places[0]
        schema = place.schema
        if schema is True:
            return self._open_value()
        if schema is False:
            return self._forbidden(places)
        if place.is_negated:
            return self._request_conjunction(places)
        known = id(schema), self._level if self._counts_levels else 0
        plan = self._plans.get(known)
        if plan is not None:
            plan.uses += not self._are_proofs
            return plan
        leaves = self._leaves_of(place)
        key = None if self._counts_levels or self._may_be_nameless(schema) else leaves.key(schema)
        if key is not None:
            plan = leaves.get(key)
            if plan is not None:
                self.known.add(id(schema))
                return plan
        if isinstance(schema, dict) and "$ref" not in schema:  # what it names is shared as it is
            place = self._forms.first(place)
        first = id(place.schema), known[1]
        plan = self._plans.get(first)
        if plan is not None:
            self._plans[known] = plan
            return plan
        local = self._forms.read(place)
        shape = local.shape
        if not local.parts and shape.is_scalar and shape.types and not shape.refusals:
            self._note_nameless((place,), shape)
            plan = Plan((place,), self._depth, self._leaf(shape, leaves, key))
        else:
            plan = self._new((place,))
        self._plans[known] = self._plans[first] = plan
        return plan

    def _forbidden(self, places: tuple[Location, ...]) -> Plan:
        """The plan of schemas that are ``false``."""
        closed = tuple(place.parent for place in places if forbids(place) and place.parent is not None)
        why = f": a member that must occur is not named, with {_CLOSED} of the policy" if closed else " is false"
        self._reasons.append((closed or places, why))
        return self._nothing

    def _leaf(self, shape: Disjunct, leaves: LeafCache, key: LeafKey | None) -> Grammar:
        """The term of a schema without parts, which is kept."""
        term = self._scalars(shape)
        # A proof may take a larger language for a format.
        if key is not None and term is not EMPTY and not self._are_proofs:
            leaves.keep(key, term)
        return term

    def _leaves_of(self, place: Location) -> LeafCache:
        """The leaves of the dialect of a schema, nearly always that of the one before."""
        dialect = place.resource.dialect
        if self._leaves is None or dialect is not self._dialect:
            self._dialect, self._leaves = dialect, self._setting.leaves(dialect)
        return self._leaves

    def _open_value(self) -> Plan:
        """The plan of what nothing is asked of."""
        return self._anything[min(self._level, len(self._anything) - 1)]

    def _request_conjunction(self, places: tuple[Location, ...]) -> Plan:
        distinct: dict[int, Location] = {}
        has_negated = has_false = False
        for place in places:  # one loop, for chains ask for thousands of these
            schema = place.schema
            if schema is not True and (place.is_negated or schema != {}):
                distinct.setdefault(self._forms.key(place), place)
                has_negated = has_negated or place.is_negated
                has_false = has_false or schema is False
        if len(distinct) <= 1 and not has_negated:
            return self._request(tuple(distinct.values())) if distinct else self._open_value()
        if has_false:
            return self._forbidden(tuple(place for place in places if place.schema is False))
        if has_negated and any(-key in distinct for key in distinct):
            self._reasons.append((tuple(distinct.values()), ": a schema and its negation"))
            return self._nothing
        key = frozenset(distinct), self._level if self._counts_levels else 0
        plan = self._plans.get(key)
        if plan is not None:
            plan.uses += not self._are_proofs
            return plan
        plan = self._plans[key] = self._new(tuple(distinct.values()))
        return plan

    def _new(self, places: tuple[Location, ...]) -> Plan:
        if self._depth > self._limits.nesting:
            raise LimitExceeded(places[0].subject(), limit="nesting", maximum=self._limits.nesting)
        plan = Plan(places, self._depth, level=self._level)
        if self._are_proofs:
            plan.is_waiting = True
        else:
            self._pending.append(plan)
        return plan

    def _explore(self) -> None:
        while self._pending:
            plan = self._pending.popleft()
            self._depth, self._level = plan.depth + 1, plan.level
            self._expand(plan)

    def _expand(self, plan: Plan) -> None:
        if len(plan.places) == 1 and not plan.places[0].is_negated:
            place = plan.places[0]
            local = self._forms.read(place)
            if not local.parts and not local.looks_at_the_rest:
                self._fill(plan, [local.shape])
                return
            self._forms.require_content(place)
            part = local.wrapped
            if part is not None and not self._are_values(local, part):
                self._alternatives(plan, local, part)
                return
        self._fill(plan, self._forms.shapes(plan.places))

    def _are_values(self, local: ParsedSchema, part: Applicator) -> bool:
        """Whether several alternatives only list values."""
        return len(part.places) > 1 and all(map(self._forms.is_constant, part.places))

    def _alternatives(self, plan: Plan, local: ParsedSchema, part: Applicator) -> None:
        """Let a plan be the union of the alternatives of a schema that is nothing else."""
        inner = [inner for _, inner in self._forms.in_place(local)]
        if part.keyword == "oneOf" and not self._are_proofs:
            branches = list(map(self._forms.shapes_of, inner))
            self._exclusions.append(exclusion.between_branches(branches, local.place, self._forms.overlaps))
        plan.build = union
        if part.keyword != "oneOf":
            plan.children = [self._request((branch,)) for branch in inner]
            return
        plan.children = [
            self._request((branch, *(other.complement() for other in self._forms.rivals(local.place, part, index))))
            for index, branch in enumerate(inner)
        ]

    def _fill(self, plan: Plan, shapes: list[Disjunct]) -> None:
        """Note what the shapes of a plan need."""
        self._separate(shapes)
        if self._closes:
            for shape in shapes:
                self._note_nameless(plan.places, shape)
        if not shapes:
            self._reasons.append((plan.places, ": no alternative is left"))
        is_object = len(shapes) == 1 and shapes[0].types == OBJECT and shapes[0].objects and not shapes[0].values
        if is_object and not self._is_deepest:
            self._refuse(shapes[0])
            self._object(plan, shapes[0])
            return
        plan.children = [part for shape in without_absorbed(shapes) for part in self._parts(shape)]
        plan.build = union

    def _separate(self, shapes: list[Disjunct]) -> None:
        """Note which alternatives of a ``oneOf`` must be told apart."""
        if any(shape.branches for shape in shapes) and not self._are_proofs:
            self._exclusions.append(exclusion.between_shapes(shapes, self._forms.overlaps, self._forms.found))

    def _may_be_nameless(self, schema: Json) -> bool:
        """Whether a leaf admits objects, so that each place where it stands must be noted."""
        return self._closes and isinstance(schema, dict) and schema.get("type") not in _SCALAR_NAMES

    def _note_nameless(self, places: tuple[Location, ...], shape: Disjunct) -> None:
        """Note the schemas whose objects the policy leaves open, for want of any name."""
        if self._closes and not self._are_proofs and shape.types & OBJECT and is_nameless(shape):
            self.nameless.update(id(place.schema) for place in places if not place.is_negated)

    def _refuse(self, shape: Disjunct) -> None:
        for place, keyword in shape.refusals:
            refused(place, keyword)

    def _parts(self, shape: Disjunct) -> list[Plan]:
        """What a shape is the union of, type by type."""
        if shape.types == 0:
            self._reasons.append((shape.origins, ": the types exclude each other"))
            return []
        self._refuse(shape)
        if shape.values:
            return [Plan((), 0, self._constants(shape))]
        parts = [Plan((), 0, self._scalars(shape))]
        if self._is_deepest and shape.types & (ARRAY | OBJECT):
            self._reasons.append((shape.origins, self._too_deep()))
            return parts
        if shape.types & ARRAY and shape.arrays:
            parts.append(self._array(Plan((), 0), shape))
        if shape.types & OBJECT and shape.objects:
            parts.append(self._object(Plan((), 0), shape))
        return parts

    def _too_deep(self) -> str:
        return f": it nests deeper than max_depth={self._setting.policy.max_depth} of the policy"

    @property
    def _is_deepest(self) -> bool:
        """Whether no array and object may stand here."""
        return self._counts_levels and self._level >= len(self._syntax.levels) - 1

    def _inside(self, conjunctions: Iterable[tuple[Location, ...]]) -> list[Plan]:
        """The plans of what an array or object holds."""
        self._level += 1
        plans = list(map(self._request, conjunctions))
        self._level -= 1
        return plans

    def _scalars(self, shape: Disjunct) -> Grammar:
        """All values of a shape but the arrays and objects that it constrains."""
        if shape.string or shape.number:
            return alternatives(*self._scalar_terms(shape))
        types = shape.types & ~((ARRAY if shape.arrays else 0) | (OBJECT if shape.objects else 0))
        key = types, self._level if self._counts_levels else 0
        term = self._plain.get(key)
        if term is None:
            whole = self._syntax.at(self._level).value
            term = self._plain[key] = whole if types == ANY else alternatives(*self._scalar_terms(shape))
        return term

    def _scalar_terms(self, shape: Disjunct) -> list[Grammar]:
        """The terms of the types that are not constrained further, and of strings and numbers."""
        types, syntax = shape.types, self._syntax
        terms: list[Grammar] = []
        if types & STRING:
            is_empty = self._are_proofs and _is_empty(shape.string)
            longest = self._setting.policy.max_length
            term = EMPTY if is_empty else string_term(shape.string, longest, is_proof=self._are_proofs)
            terms.append(term)
            if term is EMPTY:
                is_too_short = shape.string is not None and longest is not None and shape.string.shortest > longest
                most = f"max_length={longest} of the policy" if is_too_short else "'maxLength'"
                self._reasons.append((shape.origins, f": 'minLength' exceeds {most}"))
        if types & NUMBER:
            assertion = shape.number
            if not types & INTEGER:
                assertion = (assertion or NumberAssertion()).without_integers()
            term = number_term(
                assertion, syntax, shape.origins, integral=not types & FRACTION, is_proof=self._are_proofs
            )
            terms.append(term)
            if term is EMPTY:
                why = ": no number is left by 'minimum', 'maximum' and 'multipleOf'"
                self._reasons.append((shape.origins, why))
        if types & BOOLEAN:
            terms.append(BOOLEAN_TERM)
        if types & NULL:
            terms.append(NULL_TERM)
        if types & (ARRAY | OBJECT) and self._is_deepest:
            self._reasons.append((shape.origins, self._too_deep()))
        if types & ARRAY and not shape.arrays:
            terms.append(syntax.at(self._level).array)
        if types & OBJECT and not shape.objects:
            terms.append(syntax.at(self._level).object)
        return terms

    def _constants(self, shape: Disjunct) -> Grammar:
        values = self._validity.constants(shape)
        source = shape.values[0]
        self._forms.spend(_ITEM_COST + 3 * len(source.members), source.place)
        if not values:
            why = "is empty" if not source.members else "has no value that the other keywords allow"
            self._reasons.append(((source.place,), f": {source.keyword!r} {why}"))
        return values_term(values, self._syntax, source.place, source.keyword, fractions=bool(shape.types & FRACTION))

    def _array(self, plan: Plan, shape: Disjunct) -> Plan:
        """Note what the arrays of a shape need."""
        longest = self._setting.policy.max_items
        layout = ArrayLayout(shape.arrays, longest)
        place = shape.arrays[0].place
        self._forms.spend(_ITEM_COST * (1 + len(layout.items)), place)
        if layout.unique is not None:
            unique = UniqueItems(layout, self._forms, self._validity, self._syntax)
            if unique.is_settled:
                return self._unique_array(plan, unique, place)
            self._check("uniqueItems", (assertion.place for assertion in layout.held if assertion.refusals))
        never_ends = layout.unique is not None and self._never_runs_out(layout)
        if layout.is_watched:
            return self._watched_array(plan, layout, place, never_ends=never_ends)
        plan.children = self._inside((*layout.items, layout.rest))
        plan.prove = lambda parts, ask: array_is_empty(layout, parts[:-1], parts[-1], ask)

        def build(terms: list[Grammar]) -> Grammar:
            term = array_term(layout, terms[:-1], terms[-1], self._syntax)
            if term is EMPTY:
                of_policy = (
                    "" if longest is None or layout.fewest <= longest else f" by max_items={longest} of the policy"
                )
                self._reasons.append(((place,), f": 'minItems' asks for more items than are possible{of_policy}"))
            return term if layout.unique is None else distinct(term, is_spare=layout.is_spare, is_endless=never_ends)

        plan.build = build
        return plan

    def _never_runs_out(self, layout: ArrayLayout) -> bool:
        """Whether every item that is required can be one that is not there yet, as far as a look at schemas tells."""
        if layout.watched or any(assertion.min_contained > 1 for assertion in layout.counted):
            return False
        required = layout.items[: layout.fewest]
        if layout.fewest > len(layout.items):
            required = [*required, layout.rest]
        return not self._setting.policy.has_bounds and all(
            is_unbounded(places, self._forms, closes=self._closes) for places in required
        )

    def _unique_array(self, plan: Plan, unique: UniqueItems, place: Location) -> Plan:
        for shapes in unique.shapes:
            self._separate(shapes)
        self._forms.spend(_ITEM_COST * unique.size, place)
        plan.children = self._inside(unique.places)

        def build(terms: list[Grammar]) -> Grammar:
            term = unique.term(terms)
            if term is EMPTY:
                self._reasons.append(((place,), ": there are fewer values than 'minItems' asks for"))
            return term

        plan.build = build
        plan.prove = unique.is_empty
        return plan

    def _watched_array(self, plan: Plan, layout: ArrayLayout, place: Location, *, never_ends: bool) -> Plan:
        chain = ArrayChain(layout, self._forms.compare)
        self._forms.spend(_ITEM_COST * len(chain.places), place)
        plan.children = self._inside(chain.places)
        plan.prove = chain.is_empty

        def build(terms: list[Grammar]) -> Grammar:
            term = chain.term(terms, self._syntax)
            if term is EMPTY:
                self._reasons.append(((place,), ": no array is left by 'contains', 'not' and the number of items"))
            return term if layout.unique is None else distinct(term, is_spare=layout.is_spare, is_endless=never_ends)

        plan.build = build
        return plan

    def _object(self, plan: Plan, shape: Disjunct) -> Plan:
        """Note what the objects of a shape need."""
        assertions = shape.objects
        if self._closes and not self._are_proofs:
            assertions = closed_assertions(assertions)
        is_closed = assertions is not shape.objects
        layout = self._layout(assertions)
        place = assertions[0].place
        self._forms.spend(_SHAPE_COST + _ENTRY_COST * len(layout.entries), place)
        if layout.is_watched:
            return self._watched_object(plan, layout, place)
        count = len(layout.entries)
        entries, others = (entry.places for entry in layout.entries), (region.places for region in layout.others)
        plan.children = self._inside((*entries, *others))
        plan.prove = lambda parts, ask: object_is_empty(layout, parts[:count], parts[count:], ask)

        def build(terms: list[Grammar]) -> Grammar:
            term = object_term(layout, terms[:count], terms[count:], self._syntax)
            if term is EMPTY:
                self._reasons.append(((place,), _impossible(layout, terms, is_closed=is_closed)))
            return self._counted(term, layout)

        plan.build = build
        return plan

    def _layout(self, assertions: tuple[ObjectAssertion, ...]) -> ObjectLayout:
        """The layout of assertions, kept for when the normal form is made anew unless that has a say in it."""
        key = tuple(map(id, assertions))
        layout = self._forms.layouts.get(key)
        if layout is None:
            layout = ObjectLayout(assertions, self._names, self._syntax.policy)
            if all(assertion.names is True for assertion in assertions):
                self._forms.layouts[key] = layout  # which holds the assertions, so that their ids stay theirs
        return layout

    def _names(self, places: tuple[Location, ...]) -> NameLanguage:
        """The names that are valid against schemas."""
        return NameLanguage(places, self._forms, self._validity)

    def _watched_object(self, plan: Plan, layout: ObjectLayout, place: Location) -> Plan:
        chain = self._chains.get(id(layout))
        if chain is None:  # the chain holds the layout, so that its id stays its own
            chain = self._chains[id(layout)] = ObjectChain(layout, self._forms.compare)
        self._forms.spend(_ITEM_COST * len(chain.places), place)
        plan.children = self._inside(chain.places)
        plan.prove = chain.is_empty

        def build(terms: list[Grammar]) -> Grammar:
            term = chain.term(terms, self._syntax)
            if term is EMPTY:
                self._reasons.append(((place,), ": no object is left by 'not', 'required' and the like"))
            return self._counted(term, layout)

        plan.build = build
        return plan

    def _check(self, keyword: str, places: Iterable[Location]) -> None:
        """Note schemas of which ``keyword`` is checked."""
        self.checked[keyword].update(id(place.schema) for place in places)

    def _counted(self, term: Grammar, layout: ObjectLayout) -> Grammar:
        """The objects of a layout; where their names are compared, it is noted who asks for the number."""
        if isinstance(term, Distinct):
            self._check("minProperties", (assertion.place for assertion in layout.held if assertion.fewest))
        return term

    def _overlapping(self, local: ParsedSchema) -> BranchPairs:
        """The pairs of alternatives of a ``oneOf`` that may have a value in common."""
        found: set[tuple[int, int]] = set()
        for part in local.parts:
            if part.keyword == "oneOf":
                branches = list(map(self._forms.shapes_of, part.places))
                for one in exclusion.between_branches(branches, local.place, ()):
                    first, second = sorted(one.indices)
                    if (first, second) not in found and self._overlap(one):
                        found.add((first, second))
        return frozenset(found)

    def _overlap(self, one: exclusion.Exclusion) -> bool:
        """Whether two alternatives of a ``oneOf`` may have a value in common.

        Where ``oneOf`` occurs inside, it counts as ``anyOf``: what is empty then is empty all the more.
        """
        plan = Plan((), 0)
        self._depth = self._level = 0
        self._forms.spend(_SHAPE_COST, one.place)
        noted = len(self._reasons)
        self._fill(plan, [meet(one.first, one.second)])
        is_empty = trampoline(self._prove(plan))
        del self._reasons[noted:]
        return not is_empty

    def _prove(self, plan: Plan) -> EmptinessProof:
        """Whether no value satisfies a plan; on the way down it counts as satisfied."""
        if plan.is_empty is None:
            plan.is_empty = False
            if plan.is_waiting:
                plan.is_waiting = False
                self._level = plan.level
                self._expand(plan)
            plan.is_empty = yield plan.prove(plan.children, self._prove)
        return plan.is_empty


def _is_empty(assertion: StringAssertion | None) -> bool:
    """Whether the languages of an assertion are proved to exclude each other."""
    return assertion is not None and any(
        are_disjoint(*pair) for pair in combinations(assertion.all_languages(is_proof=True), 2)
    )


def _pointers(places: tuple[Location, ...]) -> str:
    return " and ".join(place.pointer for place in places)


def _impossible(layout: ObjectLayout, terms: list[Grammar], *, is_closed: bool) -> str:
    for entry, term in zip(layout.entries, terms, strict=False):
        if entry.is_required and (term is EMPTY or entry.is_forbidden):
            return f": required property {entry.name!r} can have no value"
    most = layout.max_others
    of_policy = "" if most is None else f" with max_members={most} of the policy"
    if is_closed:
        of_policy = f" with {_CLOSED} of the policy"
    return f": 'minProperties' or 'maxProperties' cannot be met{of_policy}"
