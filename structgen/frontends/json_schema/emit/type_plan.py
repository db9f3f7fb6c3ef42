"""Plans of constants, arrays and objects: the schemas of the items and members, then one term."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.frontends.json_schema.emit.array import ArrayChain, array_term
from structgen.frontends.json_schema.emit.object_chain import ObjectChain
from structgen.frontends.json_schema.emit.object_term import object_term
from structgen.frontends.json_schema.emit.plan import Plan, array_is_empty, object_is_empty
from structgen.frontends.json_schema.emit.syntax import values_term
from structgen.frontends.json_schema.emit.unique_items import UniqueItems
from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
from structgen.frontends.json_schema.normal.object_layout import NameLanguage, ObjectLayout
from structgen.frontends.json_schema.normal.validity import Validity, is_unbounded, restricted_assertions
from structgen.frontends.json_schema.source.json_value import FRACTION
from structgen.frontends.json_schema.term import distinct
from structgen.grammar.nodes import EMPTY, Distinct, Grammar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structgen.frontends.json_schema.emit.planner import Planner
    from structgen.frontends.json_schema.emit.scalar_term import Reasons
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["CLOSED", "DISJUNCT_COST", "ENTRY_COST", "TypePlans"]

DISJUNCT_COST: Final = 64
ENTRY_COST: Final = 40
_ITEM_COST: Final = 16
"""The cost of a disjunct, a declared name and an item in ``Limits.grammar_nodes``: about their work, in nodes."""
CLOSED: Final = "additional='forbidden'"
"""How error texts name the policy that forbids undeclared members."""


class TypePlans:
    """Plans what a disjunct constrains of one type.

    Attributes:
        checked: by keyword, the identities of the schemas where it is checked while the text is written, not enforced.
    """

    def __init__(self, forms: NormalForm, syntax: Syntax, reasons: Reasons) -> None:
        """Start without plans; an empty term adds its reason to ``reasons``."""
        self.checked: dict[str, set[int]] = {"uniqueItems": set(), "minProperties": set()}
        self._forms = forms
        self._syntax = syntax
        self._reasons = reasons
        self._validity = Validity(forms)
        self._chains: dict[int, ObjectChain] = {}  # by the layout: several conjunctions may have the same objects

    def release(self) -> None:
        """Drop what refers back to these plans, so that they need no cycle collector to go."""
        self._chains.clear()

    def constants(self, planner: Planner, disjunct: Disjunct) -> Grammar:
        """The term of the values that a disjunct lists."""
        syntax = self._syntax.inside(planner.level)
        values = self._validity.constants(disjunct)
        source = disjunct.values[0]
        self._forms.spend(_ITEM_COST + 3 * len(source.members), source.location)
        if not values:
            why = "is empty" if not source.members else "has no value that the other keywords allow"
            self._reasons.append(((source.location,), f": {source.keyword!r} {why}"))
        return values_term(values, syntax, source.location, source.keyword, fractions=bool(disjunct.types & FRACTION))

    def array(self, planner: Planner, plan: Plan, disjunct: Disjunct) -> Plan:
        """Fill a plan, which is returned, with the arrays of a disjunct; ``planner`` plans the schemas of the items."""
        syntax = self._syntax.inside(planner.level)
        max_items = syntax.policy.max_items
        layout = ArrayLayout(disjunct.arrays, max_items)
        location = disjunct.arrays[0].location
        self._forms.spend(_ITEM_COST * (1 + len(layout.items)), location)
        if layout.unique is not None:
            unique = UniqueItems(layout, self._forms, self._validity, syntax)
            if unique.is_settled:
                return self._unique_array(planner, plan, unique, location)
            self._check("uniqueItems", (assertion.location for assertion in layout.positive if assertion.refusals))
        never_ends = layout.unique is not None and self._never_runs_out(layout)
        if layout.is_stateful:
            return self._stateful_array(planner, plan, layout, location, never_ends=never_ends)
        plan.children = planner.inside((*layout.items, layout.rest))
        plan.prove = lambda parts, ask: array_is_empty(layout, parts[:-1], parts[-1], ask)

        def build(terms: list[Grammar]) -> Grammar:
            term = array_term(layout, terms[:-1], terms[-1], syntax)
            if term is EMPTY:
                is_of_policy = max_items is not None and layout.min_count > max_items
                of_policy = f" by max_items={max_items} of the policy" if is_of_policy else ""
                self._reasons.append(((location,), f": 'minItems' asks for more items than are possible{of_policy}"))
            return term if layout.unique is None else distinct(term, is_spare=layout.is_spare, is_endless=never_ends)

        plan.build = build
        return plan

    def _never_runs_out(self, layout: ArrayLayout) -> bool:
        """Whether every required item can differ from all items before it, as far as the schemas tell."""
        if layout.negated or any(assertion.min_contained > 1 for assertion in layout.counted):
            return False
        required = layout.items[: layout.min_count]
        if layout.min_count > len(layout.items):
            required = [*required, layout.rest]
        return not self._syntax.policy.has_bounds and all(
            is_unbounded(locations, self._forms, closes=self._forms.closes) for locations in required
        )

    def _unique_array(self, planner: Planner, plan: Plan, unique: UniqueItems, location: Location) -> Plan:
        for disjuncts in unique.disjuncts:
            planner.separate(disjuncts)
        self._forms.spend(_ITEM_COST * unique.size, location)
        plan.children = planner.inside(unique.locations)

        def build(terms: list[Grammar]) -> Grammar:
            term = unique.term(terms)
            if term is EMPTY:
                self._reasons.append(((location,), ": there are fewer values than 'minItems' asks for"))
            return term

        plan.build = build
        plan.prove = unique.is_empty
        return plan

    def _stateful_array(
        self, planner: Planner, plan: Plan, layout: ArrayLayout, location: Location, *, never_ends: bool
    ) -> Plan:
        chain = ArrayChain(layout, self._forms.compare)
        syntax = self._syntax.inside(planner.level)
        self._forms.spend(_ITEM_COST * len(chain.locations), location)
        plan.children = planner.inside(chain.locations)
        plan.prove = chain.is_empty

        def build(terms: list[Grammar]) -> Grammar:
            term = chain.term(terms, syntax)
            if term is EMPTY:
                self._reasons.append(((location,), ": no array is left by 'contains', 'not' and the number of items"))
            return term if layout.unique is None else distinct(term, is_spare=layout.is_spare, is_endless=never_ends)

        plan.build = build
        return plan

    def object(self, planner: Planner, plan: Plan, disjunct: Disjunct) -> Plan:
        """Fill a plan with the objects of a disjunct; the arguments are those of ``array``."""
        assertions = disjunct.objects
        syntax = self._syntax.inside(planner.level)
        if self._forms.restricts and not planner.are_proofs:
            assertions = restricted_assertions(assertions, closes=self._forms.closes, requires=self._forms.requires)
        is_restricted = assertions is not disjunct.objects
        layout = self._layout(assertions)
        location = assertions[0].location
        self._forms.spend(DISJUNCT_COST + ENTRY_COST * len(layout.entries), location)
        if layout.is_stateful:
            return self._stateful_object(planner, plan, layout, location)
        count = len(layout.entries)
        entries, others = (entry.locations for entry in layout.entries), (region.locations for region in layout.others)
        plan.children = planner.inside((*entries, *others))
        plan.prove = lambda parts, ask: object_is_empty(layout, parts[:count], parts[count:], ask)

        def build(terms: list[Grammar]) -> Grammar:
            term = object_term(layout, terms[:count], terms[count:], syntax)
            if term is EMPTY:
                self._reasons.append(((location,), _impossible(layout, terms, self._forms if is_restricted else None)))
            return self._counted(term, layout)

        plan.build = build
        return plan

    def _layout(self, assertions: tuple[ObjectAssertion, ...]) -> ObjectLayout:
        """The layout of assertions; cached for the next normal form, unless ``propertyNames`` depends on that."""
        key = tuple(map(id, assertions))
        layout = self._forms.schemas.layouts.get(key)
        if layout is None:
            layout = ObjectLayout(assertions, self._names, self._syntax.policy)
            if all(assertion.names is True for assertion in assertions):
                self._forms.schemas.layouts[key] = layout  # it refers to the assertions, so their ids stay valid
        return layout

    def _names(self, locations: tuple[Location, ...]) -> NameLanguage:
        """The names that are valid against schemas."""
        return NameLanguage(locations, self._forms, self._validity)

    def _stateful_object(self, planner: Planner, plan: Plan, layout: ObjectLayout, location: Location) -> Plan:
        syntax = self._syntax.inside(planner.level)
        chain = self._chains.get(id(layout))
        if chain is None:  # the chain refers to the layout, so the id stays valid
            chain = self._chains[id(layout)] = ObjectChain(layout, self._forms.compare)
        self._forms.spend(_ITEM_COST * len(chain.locations), location)
        plan.children = planner.inside(chain.locations)
        plan.prove = chain.is_empty

        def build(terms: list[Grammar]) -> Grammar:
            term = chain.term(terms, syntax)
            if term is EMPTY:
                self._reasons.append(((location,), ": no object is left by 'not', 'required' and the like"))
            return self._counted(term, layout)

        plan.build = build
        return plan

    def _check(self, keyword: str, locations: Iterable[Location]) -> None:
        """Note schemas whose ``keyword`` is checked while the text is written."""
        self.checked[keyword].update(id(location.schema) for location in locations)

    def _counted(self, term: Grammar, layout: ObjectLayout) -> Grammar:
        """The term of a layout; where its names are compared, ``minProperties`` is noted as checked."""
        if isinstance(term, Distinct) and not term.is_spare:
            self._check("minProperties", (assertion.location for assertion in layout.positive if assertion.min_count))
        return term


def _impossible(layout: ObjectLayout, terms: list[Grammar], forms: NormalForm | None) -> str:
    """Why no object of a layout is possible; ``forms`` are given where their policy restricts it."""
    all_required = " with required='all' of the policy" if forms is not None and forms.requires else ""
    for entry, term in zip(layout.entries, terms, strict=False):
        if entry.is_required and (term is EMPTY or entry.is_forbidden):
            return f": required property {entry.name!r} can have no value{all_required}"
    max_count = layout.max_others
    of_policy = all_required if max_count is None else f" with max_members={max_count} of the policy"
    if forms is not None and forms.closes:
        of_policy = f" with {CLOSED} of the policy"
    return f": 'minProperties' or 'maxProperties' cannot be met{of_policy}"
