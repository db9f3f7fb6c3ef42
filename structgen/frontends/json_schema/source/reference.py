"""Resolution of references: ``$ref``, ``$dynamicRef`` and ``$recursiveRef``.

Dynamic scopes are tracked statically.  The target of a dynamic reference depends only on this: for each name of a
dynamic anchor, the outermost resource with that anchor among the resources that were entered.  There are finitely many
such assignments (scopes).  The resource is copied for each scope that occurs, so code that identifies schemas by object
identity works unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema.source.document import RECURSIVE
from structgen.frontends.json_schema.source.location import (
    Location,
    Resource,
    absolute_uri,
    pointer_of,
    pointer_steps,
    refused,
)

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.document import Documents, SchemaPath
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits

__all__ = ["DynamicScope", "DynamicScopes", "References", "ScopesNeeded", "enter"]


@dataclass(frozen=True, slots=True, eq=False)
class DynamicScope:
    """The outermost resource for each name of a dynamic anchor.

    Attributes:
        winners: these resources, from the index of their document.
        number: the number of the scope, in the order of occurrence.
    """

    winners: dict[str, Resource]
    number: int
    scopes: DynamicScopes

    def entering(self, resource: Resource) -> DynamicScope:
        """The scope after entering ``resource``, which is from an index."""
        names = resource.document.index.dynamic.get(resource, {})
        added = {name: resource for name in names if name not in self.winners}
        return self.scopes.get(self.winners | added) if added else self


class DynamicScopes:
    """The scopes and instances of one schema.

    Attributes:
        originals: for the identity of each object of a copy, the identity of the original.
    """

    def __init__(self, limits: Limits) -> None:
        self.originals: dict[int, int] = {}
        self._limits = limits
        self._scopes: dict[frozenset[tuple[str, Resource]], DynamicScope] = {}
        self._instances: dict[tuple[Resource, DynamicScope], Resource] = {}

    def get(self, winners: dict[str, Resource]) -> DynamicScope:
        """The scope with these winners."""
        key = frozenset(winners.items())
        if key not in self._scopes:
            self._scopes[key] = DynamicScope(winners, len(self._scopes), self)
        return self._scopes[key]

    def instance(self, resource: Resource, scope: DynamicScope) -> Resource:
        """The copy of ``resource``, which is from an index, for ``scope``.

        Raises:
            LimitExceeded: the copies are too large in total.

        Complexity: linear in the resource at the first call, then constant.
        """
        cached = self._instances.get((resource, scope))
        if cached is None:
            cached = resource.copied(self._copied(resource), scope)
            self._instances[resource, scope] = cached
        return cached

    def _copied(self, resource: Resource) -> Json:
        """A deep copy, without recursion; an object that occurs twice is copied once."""
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


class ScopesNeeded(Exception):
    """A reference depends on the dynamic scope, and scopes are not tracked."""


class References:
    """Resolves the references of a schema and its documents.

    Args:
        documents: the documents that references may name.
        tracks_scopes: whether every resource is copied for each of its dynamic scopes.  If not, a reference that
            depends on the scope raises :class:`ScopesNeeded`.
    """

    def __init__(self, documents: Documents, *, tracks_scopes: bool) -> None:
        self._documents = documents
        self._resolved: dict[tuple[Resource, str], Location] = {}  # without dynamic references
        self._scopes = DynamicScopes(documents.limits) if tracks_scopes else None

    def start(self) -> Location:
        """The root schema."""
        root = self._documents.root.resource
        return self._location(root, (), self._scopes.get({}).entering(root) if self._scopes else None)

    def originals(self, schemas: set[int]) -> set[int]:
        """The identities of schemas, with copies replaced by their originals."""
        return {self._scopes.originals.get(key, key) for key in schemas} if self._scopes else schemas

    def resolve(self, location: Location, keyword: str) -> Location:
        """The schema that the reference under ``keyword`` at ``location`` names.

        Raises:
            GrammarError: there is no such schema.
            UnsupportedFeature: it names an unknown document.
            ScopesNeeded: the result depends on the dynamic scope.
            LimitExceeded: there are too many dynamic scopes.
        """
        reference: str = location.schema[keyword]
        if keyword != "$ref":
            return self._resolve(location, keyword, reference)
        key = location.resource, reference
        cached = self._resolved.get(key)
        if cached is None:
            cached = self._resolved[key] = self._resolve(location, keyword, reference)
        return cached

    def _resolve(self, location: Location, keyword: str, reference: str) -> Location:
        uri, _, fragment = reference.partition("#")
        start = location.resource if not uri else self._find(location, keyword, uri)
        name = unquote(fragment)
        if not name or name.startswith("/"):
            steps = pointer_steps(name)
            resource, path = _follow(start, steps, location, keyword)
        else:
            resource = start.document.index.base(start)
            anchors = resource.document.index.anchors
            if (resource, name) not in anchors:
                _missing(location, keyword, f"no schema there has the anchor {name!r}")
            path = anchors[resource, name]
        if keyword != "$ref":
            resource, path = self._outermost(
                location, resource, path, RECURSIVE if keyword == "$recursiveRef" else name
            )
        self._documents.use(resource.document)
        return self._placed(location, resource, path, keyword)

    def _outermost(
        self, location: Location, resource: Resource, path: SchemaPath, name: str
    ) -> tuple[Resource, SchemaPath]:
        """The target of a dynamic reference that initially resolves to a schema of ``resource``."""
        dynamic = resource.document.index.dynamic
        base = resource.document.index.base(resource)
        if dynamic.get(base, {}).get(name) != path:  # the initial target is not a dynamic anchor
            return resource, path
        if self._scopes is None or location.resource.scope is None:
            raise ScopesNeeded
        winner = location.resource.scope.winners.get(name, base)
        return winner, winner.document.index.dynamic[winner][name]

    def _placed(self, location: Location, resource: Resource, path: SchemaPath, keyword: str) -> Location:
        scope = location.resource.scope
        if scope is None or self._scopes is None:
            result = self._location(resource, path, None)
        else:
            base, here = (one.document.index.base(one) for one in (resource, location.resource))
            if base is here:
                result = self._location(location.resource, path, scope)
            else:
                result = self._location(base, path, scope.entering(base))
        if not isinstance(result.schema, (dict, bool)):
            _missing(location, keyword, f"it names {type(result.schema).__name__} where a schema must be")
        return result

    def _location(self, resource: Resource, path: SchemaPath, scope: DynamicScope | None) -> Location:
        if scope is not None and self._scopes is not None and resource.scope is not scope:
            resource = self._scopes.instance(resource, scope)
        schema: Json = resource.root
        for step in path[len(resource.path) :]:
            schema = schema[int(step) if isinstance(schema, list) else step]
        return Location(schema, resource, None, path)

    def _find(self, location: Location, keyword: str, uri: str) -> Resource:
        target = absolute_uri(location.resource.uri, uri)
        if target and target == location.resource.uri:
            return location.resource
        result = self._documents.find(target, location.resource.document)
        if result is None:
            refused(
                location,
                keyword,
                f"{location.schema[keyword]!r} is in a document that is not known, and nothing is fetched",
                remedy=f"give {target!r} in 'registry', or copy the schema under '$defs'",
            )
        return result


def enter(location: Location) -> Resource:
    """Resolve the references of a schema against its own identifier, if it has one.

    Returns the resource of the schema, which is ``location.resource`` afterwards.
    """
    resource = location.resource
    schema = location.schema
    if schema is resource.root or resource.dialect.id_keyword not in schema:
        return resource
    path = location.steps
    pointer = pointer_of(path)
    identity = resource.document.inner(schema, resource, pointer)
    if identity is not None:
        inner = resource.inner(schema, *identity, path)
        if resource.scope is not None:
            inner.scope = resource.scope.entering(resource.document.index.base(inner))
        location.resource = inner
    return location.resource


def _follow(start: Resource, steps: list[str], location: Location, keyword: str) -> tuple[Resource, SchemaPath]:
    """Follow a JSON Pointer from the root of ``start``: the innermost resource on the way, and the path."""
    resource, schema = start, start.root
    for count, step in enumerate(steps):
        schema = _child(schema, step, steps[:count], location, keyword)
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            pointer = start.pointer + pointer_of(steps[: count + 1])
            resource = start.document.index.at(pointer) or resource
    return resource, start.path + tuple(steps)


def _child(schema: Json, step: str, before: list[str], location: Location, keyword: str) -> Json:
    """One step of a JSON Pointer."""
    if isinstance(schema, dict) and step in schema:
        return schema[step]
    if isinstance(schema, list) and step.isdecimal() and step.isascii() and int(step[:9]) < len(schema):
        return schema[int(step[:9])]
    return _missing(location, keyword, f"#{pointer_of(before)} has no {step!r}")


def _missing(location: Location, keyword: str, evidence: str) -> NoReturn:
    raise GrammarError(
        location.subject(keyword),
        f"reference {location.schema[keyword]!r} leads nowhere",
        evidence=evidence,
        remedy="refer to a schema of this document, for instance '#/$defs/name'",
    )
