"""The dialects of JSON Schema: drafts and vocabularies, their keywords, and how ``$schema`` selects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.errors import UnsupportedFeature

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = [
    "DRAFTS",
    "KNOWN",
    "UNDECLARED",
    "Dialect",
    "dialect_named",
    "dialect_of",
    "identity",
    "standard_dialect",
    "vocabulary_of",
]

_NAMES: Final = {
    "https://json-schema.org/draft/2019-09/vocab/": (
        "core", "applicator", "validation", "meta-data", "format", "content",
    ),
    "https://json-schema.org/draft/2020-12/vocab/": (
        "core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "format-assertion",
        "content",
    ),
}  # fmt: skip
KNOWN: Final = {prefix + name: name for prefix, names in _NAMES.items() for name in names}
"""The URIs of the vocabularies of the specification, with their short names."""

_FORMATS: Final = frozenset(("format", "format-annotation", "format-assertion"))
_ALL: Final = frozenset(KNOWN.values())

_APPLICATORS: Final = frozenset((
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "dependencies", "dependentSchemas", "else",
    "if", "items", "not", "oneOf", "patternProperties", "prefixItems", "properties", "propertyNames", "then",
))  # fmt: skip
_UNEVALUATED: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
_ASSERTIONS: Final = frozenset((
    "const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "maxContains", "maxItems",
    "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum",
    "multipleOf", "pattern", "required", "type", "uniqueItems",
))  # fmt: skip

ANNOTATIONS: Final = (
    *("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions", "$schema", "$vocabulary"),
    *("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("contentEncoding", "contentMediaType", "contentSchema", "example", "discriminator", "externalDocs", "xml"),
)
"""Names that constrain nothing by themselves, and are no mistakes: those of the drafts and of OpenAPI."""


def vocabulary_of(keyword: str, draft: int) -> frozenset[str]:
    """The vocabularies that define ``keyword``; a keyword without vocabularies always has its meaning."""
    if keyword in _APPLICATORS:
        return frozenset(("applicator",))
    if keyword in _UNEVALUATED:
        return frozenset(("unevaluated" if draft >= 2020 else "applicator",))
    if keyword in _ASSERTIONS:
        return frozenset(("validation",))
    return _FORMATS if keyword == "format" else _ALL


_YEARS: Final = {
    "draft-04/schema": 4,
    "draft-06/schema": 6,
    "draft-07/schema": 7,
    "draft/2019-09/schema": 2019,
    "draft/2020-12/schema": 2020,
    "schema": 2020,
}
_OLD: Final = ("draft-00/schema", "draft-01/schema", "draft-02/schema", "draft-03/schema")

DRAFTS: Final = {"4": 4, "6": 6, "7": 7, "2019-09": 2019, "2020-12": 2020}
"""The drafts by their usual name."""

_SINCE: Final = {
    **dict.fromkeys(("$id", "const", "contains", "propertyNames"), 6),
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("$anchor", "$recursiveAnchor", "$recursiveRef", "dependentRequired", "dependentSchemas"), 2019),
    **dict.fromkeys(("maxContains", "minContains", "unevaluatedItems", "unevaluatedProperties"), 2019),
    **dict.fromkeys(("$dynamicAnchor", "$dynamicRef", "prefixItems"), 2020),
}
_UNTIL: Final = {"id": 4, "additionalItems": 2019, "$recursiveAnchor": 2019, "$recursiveRef": 2019}

FindMetaschema = Callable[[str], "Json"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which keywords have a meaning.

    Attributes:
        draft: 4, 6, 7, 2019 or 2020.
        declared: whether ``$schema`` or the caller says so.  If not, keywords and forms that only older drafts know
            (``dependencies``, an array under ``items``, a boolean ``exclusiveMinimum``) keep their meaning.
        vocabularies: the short names of the vocabularies of a metaschema; ``None``: all.
    """

    draft: int
    declared: bool
    vocabularies: frozenset[str] | None = None

    def has(self, keyword: str) -> bool:
        """Whether the dialect has ``keyword``; true for keywords of no draft."""
        if not self.declared:
            return keyword != "id"
        if not _SINCE.get(keyword, 0) <= self.draft <= _UNTIL.get(keyword, self.draft):
            return False
        return self.vocabularies is None or not self.vocabularies.isdisjoint(vocabulary_of(keyword, self.draft))

    @property
    def reference_stands_alone(self) -> bool:
        """Whether ``$ref`` hides its siblings, as it does up to draft 7."""
        return self.draft <= 7

    @property
    def id_keyword(self) -> str:
        """The keyword that gives a schema a URI."""
        return "id" if self.draft == 4 else "$id"

    @property
    def id_may_be_anchor(self) -> bool:
        """Whether an identifier that is only a fragment is an anchor, as it is up to draft 7."""
        return self.draft <= 7 or not self.declared

    @property
    def name(self) -> str:
        """The usual name of the draft, with its vocabularies."""
        written = {2019: "2019-09", 2020: "2020-12"}.get(self.draft, str(self.draft))
        if self.vocabularies is not None:
            return f"draft {written} with the vocabularies {', '.join(sorted(self.vocabularies))}"
        return f"draft {written}" + ("" if self.declared else " with the forms of older drafts")


UNDECLARED: Final = Dialect(2020, declared=False)
_PLAIN: Final = {draft: Dialect(draft, declared=True) for draft in DRAFTS.values()}


def dialect_named(name: str) -> Dialect:
    """The dialect of a draft by its name: ``"2020-12"``, ``"7"`` ...

    Raises:
        ValueError: there is no such draft.
    """
    if name not in DRAFTS:
        raise ValueError(f"json_schema: draft is {name!r}; give one of {', '.join(DRAFTS)}")
    return _PLAIN[DRAFTS[name]]


def dialect_of(schema: Json, otherwise: Dialect | None, find: FindMetaschema, pointer: str = "#") -> Dialect:
    """Read ``$schema``.

    Args:
        schema: the schema.
        otherwise: the dialect where ``$schema`` is missing or names an unknown metaschema; ``None``: draft 2020-12 with
            the forms of older drafts.
        find: returns the metaschema of a URI, or ``None``.
        pointer: the location of the schema, for messages.

    Raises:
        UnsupportedFeature: draft 3 or older is declared, or the metaschema requires an unknown vocabulary.
    """
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    vocabularies: frozenset[str] | None = None
    seen: set[str] = set()
    while isinstance(declared, str) and declared not in seen:
        seen.add(declared)
        path = _path(declared)
        if path in _OLD:
            _refuse(pointer, f"{declared!r} is older than draft 4", "rewrite the schema for draft 2020-12")
        if path in _YEARS:
            dialect = _PLAIN[_YEARS[path]]
            return dialect if vocabularies is None else Dialect(dialect.draft, declared=True, vocabularies=vocabularies)
        metaschema = find(declared)
        declared = metaschema.get("$schema") if isinstance(metaschema, dict) else None
        if vocabularies is None and declared is not None:
            vocabularies = _vocabularies(metaschema.get("$vocabulary"), pointer)
    return otherwise or UNDECLARED


@lru_cache(maxsize=64)
def standard_dialect(uri: str) -> Dialect | None:
    """The dialect of the draft whose metaschema has a URI; ``None`` if there is none."""
    year = _YEARS.get(_path(uri))
    return None if year is None else _PLAIN[year]


def _path(uri: str) -> str:
    return uri.rstrip("#").partition("://json-schema.org/")[2]


def _vocabularies(chosen: Json, pointer: str) -> frozenset[str] | None:
    """The short names of the known vocabularies of a ``$vocabulary``.

    Raises:
        UnsupportedFeature: an unknown vocabulary is required.
    """
    if not isinstance(chosen, dict):
        return None
    for uri, is_required in chosen.items():
        if uri not in KNOWN and is_required is True:
            _refuse(pointer, f"its metaschema requires the vocabulary {uri!r}", "make the vocabulary optional there")
    return frozenset(KNOWN[uri] for uri in chosen if uri in KNOWN) | {"core"}


def _refuse(pointer: str, problem: str, remedy: str) -> None:
    raise UnsupportedFeature(
        f"json schema {pointer}/$schema", "$schema", where=f"{pointer}/$schema", problem=problem, remedy=remedy
    )


def identity(schema: Json, around: Dialect, find: FindMetaschema, pointer: str) -> tuple[str, Dialect] | None:
    """The identifier and the dialect of a schema object that is its own resource, else ``None``.

    The dialect around it decides which keyword is the identifier.  An identifier next to a ``$ref`` that hides its
    siblings does not count, nor does an identifier that is only a fragment.
    """
    identifier = schema.get(around.id_keyword)
    if not isinstance(identifier, str) or identifier.startswith("#"):
        return None
    if "$ref" in schema and around.reference_stands_alone:
        return None
    return identifier, dialect_of(schema, around, find, pointer) if "$schema" in schema else around
