"""The second pass: from a graph of plans to terms and rules, depth first and without recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.proofs import Answer, Ask, union_is_empty
from structgen.grammar.json_schema.terms import alternatives
from structgen.grammar.nodes import (
    EMPTY,
    Choice,
    Grammar,
    JsonString,
    Literal,
    Reference,
    Shared,
)

if TYPE_CHECKING:
    from structgen.grammar.json_schema.places import Place

__all__ = ["Builder", "Plan", "is_small"]

Build = Callable[[list[Grammar]], Grammar]
Prove = Callable[["list[Plan]", Ask["Plan"]], Answer]

_SMALL: Final = (Shared, Literal, Reference, JsonString)
_FEW: Final = 8

_NEW: Final = 0
_OPEN: Final = 1
_DONE: Final = 2


class Plan:
    """What is to be built for one conjunction of schemas.

    Attributes:
        places: the schemas.
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
        "places",
        "prove",
        "rule_name",
        "state",
        "term",
        "uses",
    )

    def __init__(self, places: tuple[Place, ...], depth: int, term: Grammar | None = None, *, level: int = 0) -> None:
        self.places = places
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
        """What its rule is about: the labels of its schemas, those that must not hold behind ``~``."""
        return " & ".join(f"~{place.label}" if place.is_negated else place.label for place in self.places)


def union(terms: list[Grammar]) -> Grammar:
    """The term of a plan whose children are its alternatives."""
    return alternatives(*terms)


class Builder:
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
        if plan.is_rule or (plan.uses > 1 and plan.places and not is_small(term)):
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
