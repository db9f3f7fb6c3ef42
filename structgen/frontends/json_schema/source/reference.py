"""From a reference to the schema that it names: ``$ref``, ``$dynamicRef`` and ``$recursiveRef``.

Dynamic scopes are tracked statically.  What a dynamic reference means depends on the resources that the evaluation
went through, but only on this: for each name of a dynamic anchor, the outermost of these resources that has it.
There are finitely many such assignments.  For each that occurs, the resource is copied, so that its schema objects
are distinct from those of other scopes, and everything that identifies schemas by object identity holds unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema.source.document import RECURSIVE
from structgen.frontends.json_schema.source.location import Location, Resource, absolute_uri, escape, refused

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.document import Documents, SchemaPath
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits

__all__ = ["DynamicScope", "DynamicScopes", "References", "ScopesNeeded", "enter"]


class DynamicScope:
    """The outermost resource for each name of a dynamic anchor.

    Attributes:
        winners: these resources, as the index of their document has them.
        number: which scope it is, in the order in which they occur.
    """

    __slots__ = ("number", "scopes", "winners")

    def __init__(self, winners: dict[str, Resource], number: int, scopes: DynamicScopes) -> None:
        self.winners = winners
        self.number = number
        self.scopes = scopes

    def entering(self, resource: Resource) -> DynamicScope:
        """The scope after ``resource``, one of an index, is entered."""
        names = resource.document.index.dynamic.get(resource, {})
        added = {name: resource for name in names if name not in self.winners}
        return self.scopes.get(self.winners | added) if added else self


class DynamicScopes:
    """The scopes and instances of one schema.

    Attributes:
        originals: for each object of a copy, by identity, the identity of what it is a copy of.
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


class ScopesNeeded(Exception):
    """A reference depends on the dynamic scope, and scopes are not tracked."""


class References:
    """Resolves the references of a schema and the documents that it refers to.

    Args:
        documents: where references lead to.
        tracks_scopes: whether every resource is instantiated for each of its dynamic scopes.  Without that a
            reference that depends on the scope raises :class:`ScopesNeeded`.
    """

    def __init__(self, documents: Documents, *, tracks_scopes: bool) -> None:
        self._documents = documents
        self._resolved: dict[tuple[Resource, str], Location] = {}  # without the dynamic ones
        self._scopes = DynamicScopes(documents.limits) if tracks_scopes else None

    def start(self) -> Location:
        """The schema that was given."""
        root = self._documents.root.resource
        return self._location(root, (), self._scopes.get({}).entering(root) if self._scopes else None)

    def originals(self, schemas: set[int]) -> set[int]:
        """The identities of the schemas of the documents, given those that were read."""
        return {self._scopes.originals.get(key, key) for key in schemas} if self._scopes else schemas

    def resolve(self, location: Location, keyword: str) -> Location:
        """The schema that the reference under ``keyword`` at ``location`` names.

        Raises:
            GrammarError: there is none.
            UnsupportedFeature: it names a document that is not known.
            ScopesNeeded: the answer depends on the dynamic scope.
            LimitExceeded: there are too many dynamic scopes.
        """
        reference: str = location.schema[keyword]
        if keyword != "$ref":
            return self._resolve(location, keyword, reference)
        key = location.resource, reference
        found = self._resolved.get(key)
        if found is None:
            found = self._resolved[key] = self._resolve(location, keyword, reference)
        return found

    def _resolve(self, location: Location, keyword: str, reference: str) -> Location:
        uri, _, fragment = reference.partition("#")
        start = location.resource if not uri else self._find(location, keyword, uri)
        name = unquote(fragment)
        if not name or name.startswith("/"):
            steps = [_unescape(step) for step in name.split("/")[1:]]
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
        """The target of a dynamic reference whose first target is a schema of ``resource``."""
        dynamic = resource.document.index.dynamic
        base = resource.document.index.base(resource)
        if dynamic.get(base, {}).get(name) != path:  # the first target is no dynamic anchor
            return resource, path
        if self._scopes is None or location.resource.scope is None:
            raise ScopesNeeded
        winner = location.resource.scope.winners.get(name, base)
        return winner, winner.document.index.dynamic[winner][name]

    def _placed(self, location: Location, resource: Resource, path: SchemaPath, keyword: str) -> Location:
        scope = location.resource.scope
        if scope is None or self._scopes is None:
            found = self._location(resource, path, None)
        else:
            base, here = (one.document.index.base(one) for one in (resource, location.resource))
            if base is here:
                found = self._location(location.resource, path, scope)
            else:
                found = self._location(base, path, scope.entering(base))
        if not isinstance(found.schema, (dict, bool)):
            _missing(location, keyword, f"it names {type(found.schema).__name__} where a schema must be")
        return found

    def _location(self, resource: Resource, path: SchemaPath, scope: DynamicScope | None) -> Location:
        if scope is not None and self._scopes is not None and resource.scope is not scope:
            resource = self._scopes.instance(resource, scope)
        schema: Json = resource.root
        for step in path[len(resource.path) :]:
            schema = schema[int(step) if isinstance(schema, list) else step]
        return Location(schema, resource, None, path)

    def _find(self, location: Location, keyword: str, uri: str) -> Resource:
        wanted = absolute_uri(location.resource.uri, uri)
        if wanted and wanted == location.resource.uri:
            return location.resource
        found = self._documents.find(wanted, location.resource.document)
        if found is None:
            refused(
                location,
                keyword,
                f"{location.schema[keyword]!r} is in a document that is not known, and nothing is fetched",
                remedy=f"give {wanted!r} in 'registry', or copy the schema under '$defs'",
            )
        return found


def enter(location: Location) -> Resource:
    """Let the references of a schema be relative to its own identifier, if it has one; return its resource.

    The result and ``place.resource`` are the same afterwards.
    """
    resource = location.resource
    schema = location.schema
    if schema is resource.root or resource.dialect.id_keyword not in schema:
        return resource
    path = location.steps
    pointer = "".join(f"/{escape(step)}" for step in path)
    found = resource.document.inner(schema, resource, pointer)
    if found is not None:
        inner = resource.inner(schema, *found, path)
        if resource.scope is not None:
            inner.scope = resource.scope.entering(resource.document.index.base(inner))
        location.resource = inner
    return location.resource


def _follow(start: Resource, steps: list[str], location: Location, keyword: str) -> tuple[Resource, SchemaPath]:
    """Follow a JSON Pointer down from the root of ``start``: the innermost resource on the way, and the path."""
    resource, schema = start, start.root
    for count, step in enumerate(steps):
        schema = _child(schema, step, steps[:count], location, keyword)
        if isinstance(schema, dict) and ("$id" in schema or "id" in schema):
            pointer = start.pointer + "".join(f"/{escape(part)}" for part in steps[: count + 1])
            resource = start.document.index.at(pointer) or resource
    return resource, start.path + tuple(steps)


def _unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _child(schema: Json, step: str, before: list[str], location: Location, keyword: str) -> Json:
    """One step of a JSON Pointer."""
    if isinstance(schema, dict) and step in schema:
        return schema[step]
    if isinstance(schema, list) and step.isdecimal() and step.isascii() and int(step[:9]) < len(schema):
        return schema[int(step[:9])]
    here = "#" + "".join(f"/{escape(part)}" for part in before)
    return _missing(location, keyword, f"{here} has no {step!r}")


def _missing(location: Location, keyword: str, evidence: str) -> NoReturn:
    raise GrammarError(
        location.subject(keyword),
        f"reference {location.schema[keyword]!r} leads nowhere",
        evidence=evidence,
        remedy="refer to a schema of this document, for instance '#/$defs/name'",
    )
