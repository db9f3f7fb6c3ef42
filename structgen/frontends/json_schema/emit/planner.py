"""From a schema to a grammar, in two passes without recursion.

The first pass plans every conjunction of schemas that some value must satisfy, once: what it consists of becomes the
children of a :class:`Plan`.  Conjunctions are identified by their schemas, so recursive schemas give a finite graph.
The second pass (``PlanBuilder``) goes through the graph depth first and builds terms from the leaves.  A recursive plan
or one that is used more than once becomes a rule; others are inlined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from structgen.errors import LimitExceeded, UnsatisfiableGrammar
from structgen.frontends.json_schema.emit.number import without_absorbed
from structgen.frontends.json_schema.emit.plan import Plan, PlanBuilder, SharedLeaves, union
from structgen.frontends.json_schema.emit.scalar_term import ScalarTerms
from structgen.frontends.json_schema.emit.type_plan import CLOSED, DISJUNCT_COST, TypePlans
from structgen.frontends.json_schema.normal import exclusion
from structgen.frontends.json_schema.normal.disjunct import Disjunct, meet
from structgen.frontends.json_schema.normal.normal_form import BranchPairs, NormalForm
from structgen.frontends.json_schema.normal.validity import forbids, is_nameless
from structgen.frontends.json_schema.source.json_value import ARRAY, OBJECT
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.grammar.limits import spend, steps_left, steps_since
from structgen.grammar.nodes import EMPTY, EPSILON, Grammar, Rules, Sequence
from structgen.grammar.visitor import trampoline

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.plan import EmptinessProof, LeafCache, LeafKey
    from structgen.frontends.json_schema.emit.scalar_term import Reasons
    from structgen.frontends.json_schema.normal.schema_reader import Applicator, ParsedSchema
    from structgen.frontends.json_schema.setting import Setting
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = ["AlternativesOverlap", "Planner"]

_REQUEST_STEPS: Final = 25
_SCALAR_NAMES: Final = ("string", "number", "integer", "boolean", "null", "array")


class AlternativesOverlap(Exception):
    """Two alternatives of a ``oneOf`` may both be valid: the normal form must be made again.

    Attributes:
        overlaps: all pairs that may overlap, by the identity of the schema.
    """

    def __init__(self, overlaps: Mapping[int, BranchPairs]) -> None:
        super().__init__(len(overlaps))
        self.overlaps = overlaps


class Planner:
    """Makes the grammar of one document.

    Attributes:
        leaves: the plans of the schemas without subschemas.
        types: plans what is constrained of one type.
        nameless: the schemas that the policy would close, but that name no member, by identity.
        are_proofs: whether plans now only serve to prove that something is empty.
        level: how many arrays and objects enclose the schema that is requested.
    """

    def __init__(self, forms: NormalForm, setting: Setting) -> None:
        self.leaves = SharedLeaves(setting.leaves)
        self.nameless: set[int] = set()
        self.are_proofs = False
        self._forms = forms
        self._reasons: Reasons = []
        self._scalars = ScalarTerms(setting.syntax, self._reasons)
        self._closes, self._counts_levels = forms.closes, self._scalars.counts_levels
        self.types = TypePlans(forms, setting.syntax, self._reasons)
        self._outside = setting.syntax.outside
        self._anything = [Plan((), 0, level.value) for level in setting.syntax.levels]
        # By the schemas, and the level where that matters.
        self._plans: dict[tuple[int | frozenset[int], int], Plan] = {}
        self._explored: list[Plan] = []  # those that proofs do not use
        self._pending: deque[Plan] = deque()
        self._exclusions: list[Iterator[exclusion.Exclusion]] = []
        self._depth = 0
        self.level = 0

    def grammar(self, location: Location) -> Grammar:
        """The grammar of the schema at ``location``.

        Raises:
            GrammarError: the schema is malformed, refused or unsatisfiable.
            LimitExceeded: it is too large.
            AlternativesOverlap: a ``oneOf`` was read as if its alternatives excluded each other.
        """
        try:
            return self._grammar(location)
        finally:
            for plan in (*self._plans.values(), *self._explored):
                if plan.term is None:
                    plan.release()
            self._plans.clear()
            self._explored.clear()
            self.types.release()

    def _grammar(self, location: Location) -> Grammar:
        root = self.request_root(location)
        self._explore()
        self.are_proofs = True
        if self._forms.restricts:  # overlapping alternatives may be disjoint once they are closed
            self._explored += self._plans.values()
            self._plans.clear()
        for pairs in self._exclusions:
            for one in pairs:
                if id(one.location.schema) not in self._forms.overlapping and self._overlap(one):
                    self._forms.note_overlap(one)
        if self._forms.overlapping:
            overlaps = {key: self._overlapping(parsed) for key, parsed in self._forms.overlapping.items()}
            raise AlternativesOverlap({**self._forms.overlaps, **overlaps})
        builder = PlanBuilder()
        term = builder.build(root)
        if term is EMPTY:
            reasons = [*self._forms.contradictions, *self._reasons][:3]
            evidence = [" and ".join(one.pointer for one in locations) + why for locations, why in reasons]
            raise UnsatisfiableGrammar(
                location.subject(),
                "no value satisfies it",
                evidence="; ".join(dict.fromkeys(evidence)),
                remedy="loosen one of these keywords",
            )
        if self._outside is not EPSILON:
            term = Sequence((self._outside, term, self._outside))
        return Rules(builder.rules, term) if builder.rules else term

    # First pass

    def request_root(self, location: Location) -> Plan:
        """The plan of the whole document."""
        return self._request((location,))

    def _request(self, locations: tuple[Location, ...]) -> Plan:
        """The plan of a conjunction, made if it is new."""
        if len(locations) != 1:
            return self._request_conjunction(locations)
        location = locations[0]
        schema = location.schema
        spend(_REQUEST_STEPS, location.subject)
        if schema is True:
            return self._open_value()
        if schema is False:
            return self._forbidden(locations)
        if location.is_negated:
            return self._request_conjunction(locations)
        key_of_schema = id(schema), self.level if self._counts_levels else 0
        plan = self._plans.get(key_of_schema)
        if plan is not None:
            plan.uses += not self.are_proofs
            return plan
        leaves = self.leaves.of(location.resource.dialect)
        key = None if self._counts_levels or self._may_be_nameless(schema) else leaves.key(schema)
        if key is not None:
            plan = leaves.get(key)
            if plan is not None:
                self.leaves.used.add(id(schema))
                spend(plan.steps, location.subject)
                return plan
        if isinstance(schema, dict) and "$ref" not in schema:  # the target of a reference is shared anyway
            location = self._forms.schemas.canonical(location)
        first = id(location.schema), key_of_schema[1]
        plan = self._plans.get(first)
        if plan is not None:
            self._plans[key_of_schema] = plan
            return plan
        before = steps_left()
        parsed = self._forms.read(location)
        disjunct = parsed.disjunct
        if not parsed.applicators and disjunct.is_scalar and disjunct.types and not disjunct.refusals:
            self._note_nameless((location,), disjunct)
            plan = Plan((location,), self._depth, self._leaf(disjunct, leaves, key, before))
        else:
            plan = self._new((location,))
        self._plans[key_of_schema] = self._plans[first] = plan
        return plan

    def _forbidden(self, locations: tuple[Location, ...]) -> Plan:
        """The plan of a conjunction that contains ``false``."""
        closed = tuple(location.parent for location in locations if forbids(location) and location.parent is not None)
        why = f": a member that must occur is not named, with {CLOSED} of the policy" if closed else " is false"
        self._reasons.append((closed or locations, why))
        return Plan((), 0, EMPTY)

    def _leaf(self, disjunct: Disjunct, leaves: LeafCache, key: LeafKey | None, before: int) -> Grammar:
        """The term of a schema without subschemas; cached with the steps that were counted since ``before``."""
        term = self._scalars.term(disjunct, self.level, is_proof=self.are_proofs)
        # A proof may replace a format by a superset.
        if key is not None and term is not EMPTY and not self.are_proofs:
            leaves.keep(key, term, steps_since(before))
        return term

    def _open_value(self) -> Plan:
        """The plan of any value."""
        return self._anything[min(self.level, len(self._anything) - 1)]

    def _request_conjunction(self, locations: tuple[Location, ...]) -> Plan:
        locations = tuple(one for one in locations if one.is_negated or (one.schema is not True and one.schema != {}))
        if len(locations) == 1 and not locations[0].is_negated:
            return self._request(locations)
        distinct: dict[int, Location] = {}
        key_of = self._forms.schemas.key
        has_negated = has_false = False
        for location in locations:  # a single loop: chains request thousands of conjunctions
            distinct.setdefault(key_of(location), location)
            has_negated = has_negated or location.is_negated
            has_false = has_false or location.schema is False
        if len(distinct) <= 1 and not has_negated:
            return self._request(tuple(distinct.values())) if distinct else self._open_value()
        if has_false:
            return self._forbidden(tuple(location for location in locations if location.schema is False))
        if has_negated and any(-key in distinct for key in distinct):
            self._reasons.append((tuple(distinct.values()), ": a schema and its negation"))
            return Plan((), 0, EMPTY)
        key = frozenset(distinct), self.level if self._counts_levels else 0
        plan = self._plans.get(key)
        if plan is not None:
            plan.uses += not self.are_proofs
            return plan
        plan = self._plans[key] = self._new(tuple(distinct.values()))
        return plan

    def _new(self, locations: tuple[Location, ...]) -> Plan:
        if self._depth > self._forms.limits.nesting:
            raise LimitExceeded(locations[0].subject(), limit="nesting", maximum=self._forms.limits.nesting)
        plan = Plan(locations, self._depth, level=self.level)
        if self.are_proofs:
            plan.is_waiting = True
        else:
            self._pending.append(plan)
        return plan

    def _explore(self) -> None:
        while self._pending:
            plan = self._pending.popleft()
            self._depth, self.level = plan.depth + 1, plan.level
            self._expand(plan)

    def _expand(self, plan: Plan) -> None:
        if len(plan.locations) == 1 and not plan.locations[0].is_negated:
            location = plan.locations[0]
            parsed = self._forms.read(location)
            if not parsed.applicators and not parsed.looks_at_the_rest:
                self._fill(plan, [parsed.disjunct])
                return
            self._forms.require_content(location)
            applicator = parsed.wrapped
            if applicator is not None and not self._are_values(parsed, applicator):
                self._alternatives(plan, parsed, applicator)
                return
        self._fill(plan, self._forms.disjuncts(plan.locations))

    def _are_values(self, parsed: ParsedSchema, applicator: Applicator) -> bool:
        """Whether there are several alternatives and all only list values."""
        return len(applicator.locations) > 1 and all(map(self._forms.is_constant, applicator.locations))

    def _alternatives(self, plan: Plan, parsed: ParsedSchema, applicator: Applicator) -> None:
        """Fill the plan of a schema that is only a union of alternatives."""
        inner = [inner for _, inner in self._forms.schemas.in_place(parsed)]
        if applicator.keyword == "oneOf" and not self.are_proofs:
            branches = list(map(self._forms.disjuncts_of, inner))
            self._exclusions.append(exclusion.between_branches(branches, parsed.location, self._forms.overlaps))
        plan.build = union
        if applicator.keyword != "oneOf":
            plan.children = [self._request((branch,)) for branch in inner]
            return
        plan.children = [
            self._request(
                (branch, *(other.complement() for other in self._forms.rivals(parsed.location, applicator, index)))
            )
            for index, branch in enumerate(inner)
        ]

    def _fill(self, plan: Plan, disjuncts: list[Disjunct]) -> None:
        """Fill the plan of a union of disjuncts."""
        self.separate(disjuncts)
        if self._closes:
            for disjunct in disjuncts:
                self._note_nameless(plan.locations, disjunct)
        if not disjuncts:
            self._reasons.append((plan.locations, ": no alternative is left"))
        only = disjuncts[0] if len(disjuncts) == 1 else None
        if only is not None and only.types == OBJECT and only.objects and not only.values and not self._is_deepest:
            self._refuse(only)
            self.types.object(self, plan, only)
            return
        plan.children = [part for disjunct in without_absorbed(disjuncts) for part in self._parts(disjunct)]
        plan.build = union

    def separate(self, disjuncts: list[Disjunct]) -> None:
        """Note which alternatives of a ``oneOf`` must exclude each other."""
        if any(disjunct.branches for disjunct in disjuncts) and not self.are_proofs:
            self._exclusions.append(
                exclusion.between_disjuncts(disjuncts, self._forms.overlaps, self._forms.overlapping)
            )

    def _may_be_nameless(self, schema: Json) -> bool:
        """Whether a leaf admits objects, so that ``nameless`` needs each of its occurrences."""
        return self._closes and isinstance(schema, dict) and schema.get("type") not in _SCALAR_NAMES

    def _note_nameless(self, locations: tuple[Location, ...], disjunct: Disjunct) -> None:
        """Note the schemas whose objects the policy leaves open because they name no member."""
        if self._closes and not self.are_proofs and disjunct.types & OBJECT and is_nameless(disjunct):
            self.nameless.update(id(location.schema) for location in locations if not location.is_negated)

    def _refuse(self, disjunct: Disjunct) -> None:
        for location, keyword in disjunct.refusals:
            refused(location, keyword)

    def _parts(self, disjunct: Disjunct) -> list[Plan]:
        """The plans of a disjunct, one for each type."""
        if disjunct.types == 0:
            self._reasons.append((disjunct.origins, ": the types exclude each other"))
            return []
        self._refuse(disjunct)
        if disjunct.values:
            return [Plan((), 0, self.types.constants(self, disjunct))]
        parts = [Plan((), 0, self._scalars.term(disjunct, self.level, is_proof=self.are_proofs))]
        if self._is_deepest and disjunct.types & (ARRAY | OBJECT):
            self._scalars.note_too_deep(disjunct)
            return parts
        if disjunct.types & ARRAY and disjunct.arrays:
            parts.append(self.types.array(self, Plan((), 0), disjunct))
        if disjunct.types & OBJECT and disjunct.objects:
            parts.append(self.types.object(self, Plan((), 0), disjunct))
        return parts

    @property
    def _is_deepest(self) -> bool:
        return self._scalars.is_deepest(self.level)

    def inside(self, conjunctions: Iterable[tuple[Location, ...]]) -> list[Plan]:
        """The plans of the items or members of a container."""
        self.level += 1
        plans = list(map(self._request, conjunctions))
        self.level -= 1
        return plans

    def _overlapping(self, parsed: ParsedSchema) -> BranchPairs:
        """The pairs of alternatives of a ``oneOf`` that may have a value in common."""
        result: set[tuple[int, int]] = set()
        for applicator in parsed.applicators:
            if applicator.keyword == "oneOf":
                branches = list(map(self._forms.disjuncts_of, applicator.locations))
                for one in exclusion.between_branches(branches, parsed.location, ()):
                    first, second = sorted(one.indices)
                    if (first, second) not in result and self._overlap(one):
                        result.add((first, second))
        return frozenset(result)

    def _overlap(self, one: exclusion.Exclusion) -> bool:
        """Whether two alternatives of a ``oneOf`` may have a value in common.

        A ``oneOf`` inside counts as ``anyOf``: this is a superset, so a proof of emptiness still holds.
        """
        plan = Plan((), 0)
        self._depth = self.level = 0
        self._forms.spend(DISJUNCT_COST, one.location)
        noted = len(self._reasons)
        self._fill(plan, [meet(one.first, one.second)])
        is_empty = trampoline(self._prove(plan))
        del self._reasons[noted:]
        return not is_empty

    def _prove(self, plan: Plan) -> EmptinessProof:
        """Whether no value satisfies a plan.  A plan that refers back to itself counts as satisfied."""
        if plan.is_empty is None:
            plan.is_empty = False
            if plan.is_waiting:
                plan.is_waiting = False
                self.level = plan.level
                self._expand(plan)
            plan.is_empty = yield plan.prove(plan.children, self._prove)
        return plan.is_empty
