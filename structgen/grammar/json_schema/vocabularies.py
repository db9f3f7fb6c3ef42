"""The vocabularies of drafts 2019-09 and 2020-12, and the keywords of each."""

from __future__ import annotations

from typing import Final

__all__ = ["KNOWN", "vocabulary_of"]

_NAMES: Final = {
    "https://json-schema.org/draft/2019-09/vocab/": (
        "core",
        "applicator",
        "validation",
        "meta-data",
        "format",
        "content",
    ),
    "https://json-schema.org/draft/2020-12/vocab/": (
        "core",
        "applicator",
        "unevaluated",
        "validation",
        "meta-data",
        "format-annotation",
        "format-assertion",
        "content",
    ),
}

KNOWN: Final = {prefix + name: name for prefix, names in _NAMES.items() for name in names}
"""The URIs of the vocabularies of the specification, with their short names."""

_FORMATS: Final = frozenset(("format", "format-annotation", "format-assertion"))
_ALL: Final = frozenset(KNOWN.values())

_APPLICATORS: Final = frozenset(
    (
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "dependencies",
        "dependentSchemas",
        "else",
        "if",
        "items",
        "not",
        "oneOf",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "then",
    )
)
_UNEVALUATED: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
_ASSERTIONS: Final = frozenset(
    (
        "const",
        "dependentRequired",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
        "pattern",
        "required",
        "type",
        "uniqueItems",
    )
)


def vocabulary_of(keyword: str, draft: int) -> frozenset[str]:
    """The vocabularies that each give ``keyword`` a meaning; a keyword of none of them always has its meaning."""
    if keyword in _APPLICATORS:
        return frozenset(("applicator",))
    if keyword in _UNEVALUATED:
        return frozenset(("unevaluated" if draft >= 2020 else "applicator",))
    if keyword in _ASSERTIONS:
        return frozenset(("validation",))
    return _FORMATS if keyword == "format" else _ALL
