"""Dynamic scopes, tracked statically: a resource is instantiated for every dynamic scope that it is entered with.

What ``$dynamicRef`` and ``$recursiveRef`` mean depends on the resources that the evaluation went through, but only
on this: for each name of a dynamic anchor, the outermost of these resources that has it.  There are finitely many
such assignments.  For each that occurs, the resource is copied, so that its schema objects are distinct from those
of other scopes, and everything that knows schemas by their identity holds without change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.errors import LimitExceeded
from structgen.grammar.json_schema.places import Resource

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.limits import Limits

__all__ = ["Scope", "Scopes"]


class Scope:
    """The outermost resource for each name of a dynamic anchor.

    Attributes:
        winners: these resources, as the index of their document has them.
        number: which scope it is, in the order in which they occur.
    """

    __slots__ = ("number", "scopes", "winners")

    def __init__(self, winners: dict[str, Resource], number: int, scopes: Scopes) -> None:
        self.winners = winners
        self.number = number
        self.scopes = scopes

    def entering(self, resource: Resource) -> Scope:
        """The scope after ``resource``, one of an index, is entered."""
        names = resource.document.index.dynamic.get(resource, {})
        added = {name: resource for name in names if name not in self.winners}
        return self.scopes.get(self.winners | added) if added else self


class Scopes:
    """The scopes and instances of one schema.

    Attributes:
        originals: for each object of a copy, by identity, the identity of what it is a copy of.
    """

    def __init__(self, limits: Limits) -> None:
        self.originals: dict[int, int] = {}
        self._limits = limits
        self._scopes: dict[frozenset[tuple[str, Resource]], Scope] = {}
        self._instances: dict[tuple[Resource, Scope], Resource] = {}

    def get(self, winners: dict[str, Resource]) -> Scope:
        """The scope with these winners."""
        key = frozenset(winners.items())
        if key not in self._scopes:
            self._scopes[key] = Scope(winners, len(self._scopes), self)
        return self._scopes[key]

    def instance(self, resource: Resource, scope: Scope) -> Resource:
        """The copy of ``resource``, one of an index, for evaluations that enter it with ``scope``.

        Raises:
            LimitExceeded: the copies are too large together.

        Complexity: linear in the resource at the first call, then constant.
        """
        found = self._instances.get((resource, scope))
        if found is None:
            found = resource.copied(self._copied(resource), scope)
            self._instances[resource, scope] = found
        return found

    def _copied(self, resource: Resource) -> Json:
        """A deep copy, without recursion; what occurs twice as one object is copied once."""
        copies: dict[int, Json] = {}
        waiting: list[Json] = [resource.root]
        while waiting:
            value = waiting.pop()
            if isinstance(value, (dict, list, tuple)) and id(value) not in copies:
                copies[id(value)] = {} if isinstance(value, dict) else []
                waiting += value.values() if isinstance(value, dict) else value
                if len(self.originals) + len(copies) > self._limits.grammar_nodes:
                    subject = f"json schema {resource.document.name}#{resource.pointer}"
                    evidence = "it has too many dynamic scopes"
                    raise LimitExceeded(
                        subject, limit="grammar_nodes", maximum=self._limits.grammar_nodes, evidence=evidence
                    )
        self._fill(resource.root, copies)
        self.originals |= {id(copy): original for original, copy in copies.items()}
        return copies.get(id(resource.root), resource.root)

    def _fill(self, root: Json, copies: dict[int, Json]) -> None:
        waiting: list[Json] = [root]
        filled: set[int] = set()
        while waiting:
            value = waiting.pop()
            if id(value) in filled or id(value) not in copies:
                continue
            filled.add(id(value))
            copy = copies[id(value)]
            if isinstance(value, dict):
                copy.update((key, copies.get(id(item), item)) for key, item in value.items())
                waiting += value.values()
            else:
                copy += [copies.get(id(item), item) for item in value]
                waiting += value
