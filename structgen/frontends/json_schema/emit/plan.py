"""Plans: how to build the term of a conjunction of schemas, and how to prove that it is empty.

Terms and rules are built depth first and without recursion.  A proof of emptiness is a generator for the trampoline: it
queries only the parts that can decide, such as the required members of an object.  A part that refers back to itself
counts as not empty, so a proof is certain, and a missing proof says nothing.  The plans of schemas without subschemas,
such as ``{"type": "string"}``, are cached by content, because few of them are new to a process.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence as Items
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from structgen.frontends.json_schema.normal.keyword_reader import NUMBER_READERS, STRING_READERS
from structgen.frontends.json_schema.term import alternatives
from structgen.grammar.flattening import memory_of
from structgen.grammar.nodes import EMPTY, Choice, Grammar, JsonString, Literal, Reference, Shared
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from collections.abc import Container

    from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout
    from structgen.frontends.json_schema.source.dialect import Dialect
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
    "SharedLeaves",
    "array_is_empty",
    "is_small",
    "object_is_empty",
    "union_is_empty",
]

Part = TypeVar("Part")
EmptinessProof: TypeAlias = Generator[object, Any, bool]
ProveEmpty: TypeAlias = Callable[[Part], EmptinessProof]
"""Proves that one part is empty, or fails to."""


def union_is_empty(parts: Items[Part], ask: ProveEmpty[Part]) -> EmptinessProof:
    """Whether all parts are empty."""
    for part in parts:
        if not (yield ask(part)):
            return False
    return True


def object_is_empty(
    layout: ObjectLayout, values: Items[Part], others: Items[Part], ask: ProveEmpty[Part]
) -> EmptinessProof:
    """Whether ``object_term`` is empty, given the values of the declared names and of the other regions.

    False where names that may be repeated would have to be counted.
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
    """Whether ``array_term`` is empty, given the items of the prefix and the rest."""
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
    """How to build the term of one conjunction of schemas.

    Attributes:
        locations: the schemas.
        depth: how many arrays and objects enclosed it where it was first requested.
        children: the plans of its parts; ``build`` makes the term from their terms.
        term: the result, once it is built.
        prove: proves emptiness from ``children``.
        is_empty: the result of ``prove``; ``None`` before.
        is_waiting: its children are not planned yet.
        level: how many arrays and objects enclose it, where the policy bounds that.
        uses: how often it was requested.
        steps: what making its term counted as, where it is cached.
        is_rule: it is recursive and needs a name; ``rule_name`` is the name, once assigned.
        state: new, open (on the path from the root), or done.
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
        "steps",
        "term",
        "uses",
    )

    def __init__(
        self, locations: tuple[Location, ...], depth: int, term: Grammar | None = None, *, level: int = 0
    ) -> None:
        # Written out: a schema has thousands of plans, and a generated method with another after it is slower.
        self.locations = locations
        self.depth = depth
        self.level = level
        self.children: list[Plan] = []
        self.build: Build = union
        self.prove: Prove = union_is_empty
        self.is_empty = None if term is None else term is EMPTY
        self.is_waiting = False
        self.steps = 0
        self.term = term
        self.uses = 1
        self.is_rule = False
        self.rule_name: str | None = None
        self.state = _NEW if term is None else _DONE

    def release(self) -> None:
        """Drop the references to children and closures, which form cycles in recursive plans."""
        self.children, self.build, self.prove = [], union, union_is_empty

    @property
    def name(self) -> str:
        """The labels of its schemas, negated ones after ``~``; the base of the rule name."""
        return " & ".join(
            f"~{location.label}" if location.is_negated else location.label for location in self.locations
        )


def union(terms: list[Grammar]) -> Grammar:
    """The term of a plan whose children are its alternatives."""
    return alternatives(*terms)


class PlanBuilder:
    """Builds the terms of plans.

    Attributes:
        rules: the terms that are recursive or used more than once, by name.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Grammar] = {}
        self._taken: set[str] = set()

    def _name(self, plan: Plan) -> str:
        """The unique rule name of a plan; schemas that the front end makes up may share a pointer."""
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
        """Build the term of a plan, after those of all its children."""
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
            else:  # open: an ancestor, so the plan is recursive
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
    """Whether repeating a term is as good as calling a rule."""
    if isinstance(term, Choice):
        return len(term.items) <= _FEW and all(isinstance(item, _SMALL) for item in term.items)
    return isinstance(term, _SMALL)


SIMPLE_KEYWORDS: Final = frozenset(("type", "nullable", *STRING_READERS, *NUMBER_READERS))
"""The keywords that decide the values of a schema without subschemas."""

_CACHED_KEYWORDS: Final = SIMPLE_KEYWORDS - {"multipleOf"}
"""The terms of ``multipleOf`` may be large; they have a cache of their own, bounded in bytes."""
_NUMBERS: Final = frozenset((int, float, bool, Decimal))
_PLAN_BYTES: Final = 1_024
_MAX_CHARACTERS: Final = 256
"""Characters of a value, so that the cache is bounded in bytes too."""

LeafKey = tuple[tuple[str, object, type], ...]


class LeafCache:
    """The plans of one dialect, policy and set of limits."""

    __slots__ = ("_active", "_plans")

    def __init__(self, active: Container[str]) -> None:
        """Start empty; ``active`` are the keywords that have a meaning."""
        self._active = active
        self._plans: ContentCache[Plan] = ContentCache(TERMS)

    def key(self, schema: Json) -> LeafKey | None:
        """The cache key of ``schema``; ``None`` if it has subschemas or is not worth caching."""
        if schema.__class__ is not dict:
            return None
        active = self._active
        key = []
        for keyword, value in schema.items():
            if keyword in active:
                if keyword not in _CACHED_KEYWORDS:
                    return None
                kind = value.__class__  # because 1 == 1.0 == True
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
        """The cached plan of a key."""
        return self._plans.get(key)

    def keep(self, key: LeafKey, term: Grammar, steps: int) -> int:
        """Cache the term of a key, and what making it counted as; return its bytes."""
        plan, size = Plan((), 0, term), memory_of(term)
        plan.steps = steps
        self._plans.put(key, plan, _PLAN_BYTES + size)
        return size


class SharedLeaves:
    """The plans of schemas without subschemas, which a document shares with the others of a setting.

    Args:
        leaves_of: the cache of a dialect, ``Setting.leaves``.

    Attributes:
        used: the schemas whose plans were in the cache, by identity.
    """

    def __init__(self, leaves_of: Callable[[Dialect], LeafCache]) -> None:
        self.used: set[int] = set()
        self._leaves_of = leaves_of
        self._dialect: Dialect | None = None  # of `_leaves`
        self._leaves: LeafCache | None = None

    def of(self, dialect: Dialect) -> LeafCache:
        """The leaves of the dialect of a schema, nearly always the same as before."""
        if self._leaves is None or dialect is not self._dialect:
            self._dialect, self._leaves = dialect, self._leaves_of(dialect)
        return self._leaves
