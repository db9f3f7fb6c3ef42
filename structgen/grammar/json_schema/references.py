"""``$ref``: from a URI reference to a schema of the same document."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote, urljoin

from structgen.errors import GrammarError
from structgen.grammar.json_schema.places import Place, Resource, escape, refused

if TYPE_CHECKING:
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["References"]


class References:
    """Resolves the references of one document.

    A document is indexed for ``$id`` and anchors at the first reference that is not a plain pointer.
    """

    def __init__(self, root: Resource, dialect: Dialect) -> None:
        self._root = root
        self._dialect = dialect
        self._index: _Index | None = None

    def resolve(self, place: Place) -> Place:
        """The schema that the ``$ref`` at ``place`` names.

        Raises:
            GrammarError: there is none.
            UnsupportedFeature: the reference leaves the document.
        """
        reference: str = place.schema["$ref"]
        uri, _, fragment = reference.partition("#")
        resource = place.resource if not uri else self._find_resource(place, uri)
        if not fragment:
            return self._at(resource, [], place)
        name = unquote(fragment)
        if name.startswith("/"):
            return self._at(resource, [_unescape(step) for step in name.split("/")[1:]], place)
        found = self._indexed().anchors.get((resource.uri, name))
        if found is None:
            _missing(place, f"no schema here has the anchor {name!r}")
        return found

    def _at(self, resource: Resource, steps: list[str], place: Place) -> Place:
        """Follow a JSON Pointer down from the root of ``resource``."""
        schema: Json = resource.root
        inner = resource
        for count, step in enumerate(steps):
            schema = _child(schema, step, steps[:count], place)
            identifier = schema.get(self._dialect.id_keyword) if isinstance(schema, dict) else None
            if isinstance(identifier, str) and not identifier.startswith("#") and count < len(steps) - 1:
                pointer = resource.pointer + "".join(f"/{escape(part)}" for part in steps[: count + 1])
                inner = inner.inner(schema, identifier, pointer)
        if not isinstance(schema, (dict, bool)):
            _missing(place, f"it names {type(schema).__name__} where a schema must be")
        prefix = [unquote(part) for part in resource.pointer.split("/")[1:]]
        return Place(schema, inner, None, tuple(_unescape(part) for part in prefix) + tuple(steps))

    def _find_resource(self, place: Place, uri: str) -> Resource:
        absolute = urljoin(place.resource.uri, uri)
        for known in (place.resource, self._root):
            if known.uri and absolute == known.uri:
                return known
        found = self._indexed().resources.get(absolute)
        if found is None:
            refused(
                place,
                "$ref",
                f"{place.schema['$ref']!r} leaves the document, and nothing is fetched",
                remedy="copy the schema under '$defs' and refer to it as '#/$defs/...'",
            )
        return found

    def _indexed(self) -> _Index:
        if self._index is None:
            self._index = _Index(self._root, self._dialect)
        return self._index


def _unescape(step: str) -> str:
    return step.replace("~1", "/").replace("~0", "~")


def _child(schema: Json, step: str, before: list[str], place: Place) -> Json:
    """One step of a JSON Pointer."""
    if isinstance(schema, dict) and step in schema:
        return schema[step]
    if isinstance(schema, list) and step.isdecimal() and step.isascii() and int(step[:9]) < len(schema):
        return schema[int(step[:9])]
    here = "#" + "".join(f"/{escape(part)}" for part in before)
    return _missing(place, f"{here} has no {step!r}")


def _missing(place: Place, evidence: str) -> NoReturn:
    raise GrammarError(
        place.subject("$ref"),
        f"reference {place.schema['$ref']!r} leads nowhere",
        evidence=evidence,
        remedy="refer to a schema of this document, for instance '#/$defs/name'",
    )


class _Index:
    """Every ``$id`` and anchor of a document.

    Attributes:
        resources: absolute URI to resource.
        anchors: URI of the resource and plain name to schema.
    """

    def __init__(self, root: Resource, dialect: Dialect) -> None:
        self.resources: dict[str, Resource] = {root.uri: root} if root.uri else {}
        self.anchors: dict[tuple[str, str], Place] = {}
        stack: list[tuple[Json, Resource, tuple[str | int, ...]]] = [(root.root, root, ())]
        seen: set[int] = set()
        while stack:
            value, resource, path = stack.pop()
            if id(value) in seen:
                continue
            if isinstance(value, dict):
                seen.add(id(value))
                resource = self._enter(value, resource, path, dialect)
                stack += [(item, resource, (*path, key)) for key, item in value.items() if key not in _DATA]
            elif isinstance(value, list):
                seen.add(id(value))
                stack += [(item, resource, (*path, index)) for index, item in enumerate(value)]

    def _enter(
        self, schema: dict[str, Json], resource: Resource, path: tuple[str | int, ...], dialect: Dialect
    ) -> Resource:
        identifier = schema.get(dialect.id_keyword)
        names = [schema[key] for key in ("$anchor", "$dynamicAnchor") if dialect.has(key) and key in schema]
        if isinstance(identifier, str) and path:
            if identifier.startswith("#"):
                names.append(identifier[1:])
            else:
                names += identifier.split("#", 1)[1:]
                resource = resource.inner(schema, identifier, "".join(f"/{escape(step)}" for step in path))
                self.resources.setdefault(resource.uri, resource)
        for name in names:
            if isinstance(name, str):
                self.anchors.setdefault((resource.uri, name), Place(schema, resource, None, path))
        return resource


_DATA = frozenset(("enum", "const", "default", "examples"))
