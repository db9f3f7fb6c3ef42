"""The documents of a schema: the given one, and the documents of the registry that it refers to.

A document is indexed for identifiers and anchors at the first reference that is not a local JSON Pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from structgen.errors import GrammarError
from structgen.frontends.json_schema.source.dialect import Dialect, dialect_named, dialect_of, identity
from structgen.frontends.json_schema.source.json_value import parse_json, unshared
from structgen.frontends.json_schema.source.location import Resource, absolute_uri, pointer_of, shown, without_fragment

if TYPE_CHECKING:
    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits

__all__ = [
    "HOLDERS",
    "NO_FORMATS",
    "RECURSIVE",
    "Document",
    "DocumentSetting",
    "Documents",
    "SchemaPath",
    "SchemaRegistry",
    "inner_schemas",
]

_SPECIFICATIONS: Final = {
    "DRAFT4": "4",
    "DRAFT6": "6",
    "DRAFT7": "7",
    "DRAFT201909": "2019-09",
    "DRAFT202012": "2020-12",
}


class DocumentSetting(Protocol):
    """The part of a ``Setting`` that reading and normalising a document need."""

    policy: JsonPolicy
    limits: Limits
    asserts_formats: bool
    coerces_one_of: bool
    formats: Mapping[str, StringFormat]


class SchemaRegistry:
    """Finds documents by URI.

    Args:
        registry: a ``referencing.Registry``, or a mapping from URIs to schemas as ``dict``, ``bool`` or JSON text.
        limits: the bounds on JSON text.
    """

    def __init__(self, registry: Mapping[str, Any] | None, limits: Limits) -> None:
        self._registry = {} if registry is None else registry
        self._limits = limits

    def find(self, uri: str) -> tuple[Json, str | None] | None:
        """The schema of ``uri`` and its draft in the registry, or ``None``.

        Raises:
            GrammarError: the entry of the registry is not a schema.
        """
        registry = self._registry
        for key in (uri, f"{uri}#"):
            if key in registry:
                return self._opened(registry[key], uri)
        if hasattr(registry, "get_or_retrieve"):
            try:
                return self._opened(registry.get_or_retrieve(uri).value, uri)
            except LookupError:  # raised by `referencing` for an unknown or unretrievable URI
                pass
        return None

    def metaschema(self, uri: str) -> Json:
        """The metaschema of the specification with this URI, or ``None``."""
        return _metaschemas().get(uri)

    def uris(self) -> Iterator[str]:
        """The URIs of the caller's documents."""
        yield from self._registry

    def _opened(self, value: Any, uri: str) -> tuple[Json, str | None]:
        draft = None
        if not isinstance(value, (dict, bool, str, bytes)) and hasattr(value, "contents"):
            value, draft = value.contents, _draft_of(value)
        if isinstance(value, (str, bytes)):
            value = parse_json(value if isinstance(value, str) else value.decode(), f"json schema {uri}", self._limits)
        if not isinstance(value, (dict, bool)):
            raise GrammarError(
                f"json schema {uri}#", "a schema must be an object or a boolean", evidence=f"found {shown(value)}"
            )
        return unshared(value), draft


def _draft_of(resource: Any) -> str | None:
    """The draft of a ``referencing.Resource``."""
    from referencing import jsonschema

    for name, draft in _SPECIFICATIONS.items():
        if getattr(jsonschema, name).create_resource(resource.contents) == resource:
            return draft
    return None


@cache
def _metaschemas() -> dict[str, Json]:
    """The metaschemas by URI without fragment; empty where their package is not installed."""
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return {}
    return {uri: REGISTRY.contents(uri) for uri in REGISTRY}


HOLDERS: Final = frozenset(("$defs", "definitions"))
"""Keywords that only contain schemas for references."""

_ONE: Final = frozenset((
    "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
))  # fmt: skip
_SEVERAL: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED: Final = HOLDERS | {"properties", "patternProperties", "dependentSchemas", "dependencies"}


def inner_schemas(keyword: str, value: Json) -> Iterator[tuple[Json, tuple[str | int, ...]]]:
    """The schemas directly under a keyword, each with the steps from the schema that has the keyword.

    Values where a schema is expected are included even if they are not schemas, such as names under ``dependencies``.
    """
    if isinstance(value, (dict, bool)) and keyword in _ONE:
        yield value, (keyword,)
    elif isinstance(value, (list, tuple)) and keyword in _SEVERAL:
        for index, inner in enumerate(value):
            yield inner, (keyword, index)
    elif isinstance(value, dict) and keyword in _NAMED:
        for name, inner in value.items():
            yield inner, (keyword, name)


SchemaPath = tuple[str | int, ...]

RECURSIVE: Final = ""
"""The name of the dynamic anchor that ``$recursiveAnchor`` makes; no other anchor can have it."""
NO_FORMATS: Final[Mapping[str, StringFormat]] = MappingProxyType({})


class Document:
    """A schema document.

    Attributes:
        name: the URI before ``#`` in its pointers; empty for the given document.
        resource: the resource of its root.
        asserts_formats: whether ``format`` restricts strings.
        coerces_one_of: whether ``oneOf`` is read as ``anyOf``.
        formats: the formats of the caller.
    """

    __slots__ = (
        "_documents",
        "_finds_copies",
        "_index",
        "asserts_formats",
        "coerces_one_of",
        "formats",
        "name",
        "resource",
    )

    def __init__(
        self,
        name: str,
        root: Json,
        uri: str,
        dialect: Dialect,
        documents: Documents,
        *,
        finds_copies: bool | None = None,
    ) -> None:
        self.name = name
        self.resource = Resource(root, uri, self, dialect, documents.limits)
        self.asserts_formats = documents.asserts_formats
        self.coerces_one_of = documents.coerces_one_of
        self.formats = documents.formats
        self._documents = documents
        self._index: DocumentIndex | None = None
        self._finds_copies = finds_copies

    @property
    def finds_copies(self) -> bool:
        """Whether equal schemas are planned once; if undecided, only where no object occurs twice."""
        if self._finds_copies is None:
            self._finds_copies = _is_tree(self.resource.root)
        return self._finds_copies

    @property
    def index(self) -> DocumentIndex:
        """Its identifiers and anchors."""
        if self._index is None:
            self._index = DocumentIndex(self.resource, self._documents)
        return self._index

    def inner(self, schema: Json, around: Resource, pointer: str) -> tuple[str, Dialect] | None:
        """The URI and the dialect of a schema within ``around`` that is its own resource, else ``None``."""
        if around.dialect.id_keyword not in schema:
            return None
        result = identity(schema, around.dialect, self._documents.metaschema, f"{self.name}#{pointer}")
        return result and (absolute_uri(around.uri, result[0]), result[1])


def _is_tree(value: Json) -> bool:
    seen: set[int] = set()
    waiting: list[Json] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (dict, list, tuple)):
            if id(value) in seen:
                return False
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value
    return True


class DocumentIndex:
    """The identifiers and anchors of a document.

    Attributes:
        resources: the resources by absolute URI.
        anchors: the paths of the anchors, by resource and name.
        dynamic: the paths of the anchors of ``$dynamicAnchor`` and ``$recursiveAnchor``, likewise.
    """

    def __init__(self, root: Resource, documents: Documents) -> None:
        self.resources: dict[str, Resource] = {root.uri: root} if root.uri else {}
        self.anchors: dict[tuple[Resource, str], SchemaPath] = {}
        self.dynamic: dict[Resource, dict[str, SchemaPath]] = {}
        self._by_pointer: dict[str, Resource] = {}
        self._documents = documents
        self._add(root)

    def base(self, resource: Resource) -> Resource:
        """The resource of the index at the location of ``resource``."""
        cached = self._by_pointer.get(resource.pointer)
        if cached is None:  # under a keyword without schemas, but a reference leads there
            self._add(resource)
            cached = resource
        return cached

    def at(self, pointer: str) -> Resource | None:
        """The resource whose root has this pointer (without ``#``)."""
        return self._by_pointer.get(pointer)

    def _add(self, root: Resource) -> None:
        """Visit the schemas of a resource, depth first in order."""
        self._enter(root, root.root, root.path)
        seen: set[int] = set()
        stack: list[Iterator[tuple[Json, Resource, SchemaPath]]] = [iter([(root.root, root, root.path)])]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
                continue
            schema, resource, path = item
            if isinstance(schema, dict) and id(schema) not in seen:
                seen.add(id(schema))
                if schema is not root.root:
                    resource = self._resource(schema, resource, path)
                stack.append(_children(schema, resource, path))

    def _resource(self, schema: dict[str, Json], around: Resource, path: SchemaPath) -> Resource:
        """The resource of a schema within ``around``; adds its anchors."""
        pointer = pointer_of(path)
        own = around.document.inner(schema, around, pointer)
        resource = around
        if own is not None:
            resource = around.inner(schema, *own, path)
        self._enter(resource, schema, path)
        return resource

    def _enter(self, resource: Resource, schema: Json, path: SchemaPath) -> None:
        if not isinstance(schema, dict):
            return
        dialect = resource.dialect
        if schema is resource.root:
            self._by_pointer[resource.pointer] = resource
            self.resources.setdefault(resource.uri, resource)
            if dialect.has("$recursiveAnchor") and schema.get("$recursiveAnchor") is True:
                self.dynamic.setdefault(resource, {})[RECURSIVE] = path
        if "$ref" in schema and dialect.reference_stands_alone:
            return
        identifier = schema.get(dialect.id_keyword)
        if dialect.id_may_be_anchor and isinstance(identifier, str) and "#" in identifier:
            self.anchors.setdefault((resource, identifier.partition("#")[2]), path)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str) and name and dialect.has(keyword):
                self.anchors.setdefault((resource, name), path)
                if keyword == "$dynamicAnchor":
                    self.dynamic.setdefault(resource, {}).setdefault(name, path)


def _children(
    schema: dict[str, Json], resource: Resource, path: SchemaPath
) -> Iterator[tuple[Json, Resource, SchemaPath]]:
    for keyword, value in schema.items():  # also next to a $ref that hides siblings: references reach them
        for inner, steps in inner_schemas(keyword, value):
            yield inner, resource, path + steps


class Documents:
    """The given document, and the loaded documents of the registry.

    Attributes:
        root: the given document.
        loaded: the documents of the registry that the grammar depends on, in the order of their use.
        limits: the bounds on patterns and JSON text.
        work: the work on all of them.
        asserts_formats: whether ``format`` restricts strings.
        coerces_one_of: whether ``oneOf`` is read as ``anyOf``.
        formats: the formats of the caller.
    """

    def __init__(
        self,
        schema: Json,
        chosen: Dialect | None,
        library: SchemaRegistry,
        setting: DocumentSetting,
        *,
        finds_copies: bool | None = None,
    ) -> None:
        """Start with one document; a dialect that is ``chosen`` overrides ``$schema``.

        The formats of the caller are always asserted.  ``finds_copies`` says whether equal schemas are planned once;
        ``None``: if the schema is a tree.
        """
        self.limits = setting.limits
        self.asserts_formats = setting.asserts_formats
        self.coerces_one_of = setting.coerces_one_of
        self.formats = setting.formats
        self.loaded: list[Document] = []
        self._library = library
        self._by_uri: dict[str, Document] = {}
        dialect = chosen or dialect_of(schema, None, self.metaschema)
        self.root = Document("", schema, _identifier(schema, dialect), dialect, self, finds_copies=finds_copies)

    def metaschema(self, uri: str) -> Json:
        """The metaschema of ``uri``, for its ``$vocabulary``, or ``None``."""
        result = self._library.find(without_fragment(uri))
        return result[0] if result else self._library.metaschema(without_fragment(uri))

    def find(self, uri: str, around: Document) -> Resource | None:
        """The resource of an absolute URI; ``around`` is the document that refers to it."""
        for document in (around, self.root):
            if uri == document.resource.uri:
                return document.resource
            if uri in document.index.resources:
                return document.index.resources[uri]
        cached = self._by_uri.get(uri) or self._load(uri)
        if cached is not None:
            return cached.resource
        for other in self._library.uris():
            loaded = self._by_uri.get(other) or self._load(without_fragment(other))
            if loaded is not None and uri in loaded.index.resources:
                return loaded.index.resources[uri]
        return None

    def _load(self, uri: str) -> Document | None:
        entry = self._library.find(uri)
        if entry is None:
            metaschema = self._library.metaschema(uri)
            if metaschema is None:
                return None
            entry = metaschema, None
        schema, draft = entry
        otherwise = dialect_named(draft) if draft else self.root.resource.dialect
        dialect = dialect_of(schema, otherwise, self.metaschema, f"{uri}#")
        base = absolute_uri(uri, _identifier(schema, dialect))
        document = Document(uri, schema, base, dialect, self)
        self._by_uri[uri] = document
        self._by_uri.setdefault(base, document)
        return document

    def use(self, document: Document) -> None:
        """Note that the grammar depends on a document."""
        if document is not self.root and document not in self.loaded:
            self.loaded.append(document)


def _identifier(schema: Json, dialect: Dialect) -> str:
    """The identifier of the root of a document, or ``""``."""
    if not isinstance(schema, dict) or ("$ref" in schema and dialect.reference_stands_alone):
        return ""
    identifier = schema.get(dialect.id_keyword)
    return without_fragment(identifier) if isinstance(identifier, str) else ""
