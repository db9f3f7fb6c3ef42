"""Plans: what is to be built for each conjunction of schemas, proofs that it is empty, and the terms built from it.

Terms and rules are built depth first and without recursion.  A proof of emptiness is a generator for the trampoline:
it queries only those parts that can decide, such as the required members of an object.  What refers back to itself
counts as not empty, so a proof of emptiness is certain, and a missing one says nothing.  The plans of schemas without
parts, ``{"type": "string"}`` above all, are cached by content, for few of them are new to a process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence as Items
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from structgen.frontends.json_schema.normal.keyword_reader import NUMBER_READERS, STRING_READERS
from structgen.frontends.json_schema.term import alternatives
from structgen.grammar.nodes import EMPTY, Choice, Grammar, JsonString, Literal, Reference, Shared

if TYPE_CHECKING:
    from collections.abc import Container

    from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location

__all__ = [
    "SIMPLE_KEYWORDS",
    "EmptinessProof",
    "LeafCache",
    "LeafKey",
    "Plan",
    "PlanBuilder",
    "ProveEmpty",
    "array_is_empty",
    "is_small",
    "object_is_empty",
    "union_is_empty",
]

Part = TypeVar("Part")
EmptinessProof: TypeAlias = Generator[object, Any, bool]
ProveEmpty: TypeAlias = Callable[[Part], EmptinessProof]
"""Finds out whether one part is empty."""


def union_is_empty(parts: Items[Part], ask: ProveEmpty[Part]) -> EmptinessProof:
    """Whether all parts are empty."""
    for part in parts:
        if not (yield ask(part)):
            return False
    return True


def object_is_empty(
    layout: ObjectLayout, values: Items[Part], others: Items[Part], ask: ProveEmpty[Part]
) -> EmptinessProof:
    """Whether ``object_term`` makes nothing of a layout, given the values of its names and of its other regions.

    Where names that may be repeated would have to be counted, the answer is no.
    """
    required = 0
    for entry, value in zip(layout.entries, values, strict=True):
        if entry.is_required:
            required += 1
            if entry.is_forbidden or (yield ask(value)):
                return True
    if layout.max_count is not None and layout.max_count < max(layout.min_count, required):
        return True
    need = layout.min_count - required
    if need <= 0:
        return False
    for region, value in zip(layout.others, others, strict=True):
        if region.key is not EMPTY and not (yield ask(value)):
            return False
    for entry, value in zip(layout.entries, values, strict=True):
        if not (entry.is_required or entry.is_forbidden or (yield ask(value))):
            need -= 1
            if need == 0:
                return False
    return True


def array_is_empty(layout: ArrayLayout, items: Items[Part], rest: Part, ask: ProveEmpty[Part]) -> EmptinessProof:
    """Whether ``array_term`` makes nothing of a layout, given its items and the rest."""
    if layout.max_count is not None and layout.max_count < layout.min_count:
        return True
    for item in items[: layout.min_count]:
        if (yield ask(item)):
            return True
    if layout.min_count <= len(items):
        return False
    is_empty: bool = yield ask(rest)
    return is_empty


Build = Callable[[list[Grammar]], Grammar]
Prove = Callable[["list[Plan]", ProveEmpty["Plan"]], EmptinessProof]

_SMALL: Final = (Shared, Literal, Reference, JsonString)
_FEW: Final = 8

_NEW: Final = 0
_OPEN: Final = 1
_DONE: Final = 2


class Plan:
    """What is to be built for one conjunction of schemas.

    Attributes:
        locations: the schemas.
        depth: how many arrays and objects stand around it where it was met first.
        children: the plans that its parts need, and ``build`` makes the term from theirs.
        term: the result, once it is there.
        prove: finds out from ``children`` whether it is empty.
        is_empty: what ``prove`` found; ``None`` if it was not asked.
        is_waiting: its children are not there yet.
        level: how many arrays and objects stand around it, where that is counted.
        uses: how often it is asked for.
        is_rule: it is recursive and so needs a name; ``rule_name`` is that, once it is given.
        state: not yet met, on the way down, or done.
    """

    __slots__ = (
        "build",
        "children",
        "depth",
        "is_empty",
        "is_rule",
        "is_waiting",
        "level",
        "locations",
        "prove",
        "rule_name",
        "state",
        "term",
        "uses",
    )

    def __init__(
        self, locations: tuple[Location, ...], depth: int, term: Grammar | None = None, *, level: int = 0
    ) -> None:
        self.locations = locations
        self.depth = depth
        self.level = level
        self.children: list[Plan] = []
        self.build: Build = union
        self.prove: Prove = union_is_empty
        self.is_empty = None if term is None else term is EMPTY
        self.is_waiting = False
        self.term = term
        self.uses = 1
        self.is_rule = False
        self.rule_name: str | None = None
        self.state = _NEW if term is None else _DONE

    def release(self) -> None:
        """Let go of what it was made from: that holds the planner, and recursive plans hold each other."""
        self.children, self.build, self.prove = [], union, union_is_empty

    @property
    def name(self) -> str:
        """What its rule is about: the labels of its schemas, those that must not hold after ``~``."""
        return " & ".join(
            f"~{location.label}" if location.is_negated else location.label for location in self.locations
        )


def union(terms: list[Grammar]) -> Grammar:
    """The term of a plan whose children are its alternatives."""
    return alternatives(*terms)


class PlanBuilder:
    """Builds the terms of plans.

    Attributes:
        rules: what is recursive or used more than once, by name.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Grammar] = {}
        self._taken: set[str] = set()

    def _name(self, plan: Plan) -> str:
        """The name of the rule of a plan.  Schemas that the front end makes up may share the pointer of a keyword."""
        if plan.rule_name is None:
            base = name = plan.name
            number = 1
            while name in self._taken:
                number += 1
                name = f"{base} ({number})"
            self._taken.add(name)
            plan.rule_name = name
        return plan.rule_name

    def build(self, root: Plan) -> Grammar:
        """Build the term of a plan and of all that it needs."""
        stack = [root]
        while stack:
            plan = stack[-1]
            if plan.state == _DONE:
                stack.pop()
            elif plan.state == _NEW:
                plan.state = _OPEN
                stack += [child for child in reversed(plan.children) if child.state == _NEW]
            else:
                stack.pop()
                self._finish(plan)
        return EMPTY if root.term is None else root.term

    def _finish(self, plan: Plan) -> None:
        terms: list[Grammar] = []
        for child in plan.children:
            if child.term is not None:
                terms.append(child.term)
            else:  # above us on the way down
                child.is_rule = True
                terms.append(Reference(self._name(child)))
        term = plan.build(terms)
        plan.state = _DONE
        if plan.is_rule or (plan.uses > 1 and plan.locations and not is_small(term)):
            name = self._name(plan)
            self.rules[name] = term
            term = EMPTY if term is EMPTY else Reference(name)
        plan.term = term
        plan.release()


def is_small(term: Grammar) -> bool:
    """Whether a term is as well repeated as called."""
    if isinstance(term, Choice):
        return len(term.items) <= _FEW and all(isinstance(item, _SMALL) for item in term.items)
    return isinstance(term, _SMALL)


SIMPLE_KEYWORDS: Final = frozenset(("type", "nullable", *STRING_READERS, *NUMBER_READERS))
"""The keywords that the values of a schema without parts depend on."""

_CACHED_KEYWORDS: Final = SIMPLE_KEYWORDS - {"multipleOf"}
"""A multiple may be a large term, which is kept elsewhere, within a bound in bytes."""
_NUMBERS: Final = frozenset((int, float, bool, Decimal))
_MAX_PLANS: Final = 4_096
_MAX_CHARACTERS: Final = 256
"""Characters of a value, so that what is kept is bounded in bytes too."""

LeafKey = tuple[tuple[str, object, type], ...]


class LeafCache:
    """The plans of one dialect, policy and set of limits."""

    __slots__ = ("_active", "_plans")

    def __init__(self, active: Container[str]) -> None:
        """Begin with none.

        Args:
            active: every keyword that means something.
        """
        self._active = active
        self._plans: dict[LeafKey, Plan] = {}

    def key(self, schema: Json) -> LeafKey | None:
        """What the values of ``schema`` depend on; ``None`` if it is no leaf, or not worth keeping."""
        if schema.__class__ is not dict:
            return None
        active = self._active
        key = []
        for keyword, value in schema.items():
            if keyword in active:
                if keyword not in _CACHED_KEYWORDS:
                    return None
                kind = value.__class__  # for 1 == 1.0 == True
                if kind is str:
                    if len(value) > _MAX_CHARACTERS:
                        return None
                elif kind is list:
                    if any(name.__class__ is not str for name in value):
                        return None
                    value = tuple(value)  # noqa: PLW2901
                elif kind not in _NUMBERS:
                    return None
                key.append((keyword, value, kind))
        return tuple(key)

    def get(self, key: LeafKey) -> Plan | None:
        """The plan that was kept for a key."""
        return self._plans.get(key)

    def keep(self, key: LeafKey, term: Grammar) -> None:
        """Keep the term of a key."""
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        self._plans[key] = Plan((), 0, term)
