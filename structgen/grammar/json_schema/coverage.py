"""Every keyword of JSON Schema and what becomes of it: the table that the documentation and the linter read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from structgen.grammar.json_schema.drafts import DRAFTS, dialect_named

__all__ = ["KEYWORDS", "Keyword"]


@dataclass(frozen=True, slots=True)
class Keyword:
    """What becomes of a keyword.

    Attributes:
        topic: what it is about: ``"any value"``, ``"strings"``, ``"references"`` ...
        treatment: one or two clauses; the limits of what is enforced among them.
        is_constraint: whether it can exclude a value, alone or together with others; else it is an annotation, or
            names or holds schemas.
    """

    topic: str
    treatment: str
    is_constraint: bool = True

    @staticmethod
    def drafts(name: str) -> str:
        """The drafts in which the keyword ``name`` has a meaning, ``"6 on"`` for instance."""
        having = [draft for draft in DRAFTS if dialect_named(draft).has(name)]
        (oldest, *_, newest), first, last = DRAFTS, having[0], having[-1]
        if first == last:
            return first
        if last == newest:
            return "all" if first == oldest else f"{first} on"
        return f"up to {last}" if first == oldest else f"{first} to {last}"


def _annotations(topic: str, treatment: str, *names: str) -> dict[str, Keyword]:
    return {name: Keyword(topic, treatment, is_constraint=False) for name in names}


_ENFORCED: Final = "enforced"

KEYWORDS: Final[dict[str, Keyword]] = {
    "type": Keyword("any value", _ENFORCED),
    "enum": Keyword("any value", "enforced; the values that all other keywords admit"),
    "const": Keyword("any value", "enforced; the value, if all other keywords admit it"),
    "nullable": Keyword("any value", "adds null to `type`, as in OpenAPI 3.0; no effect without `type`"),
    "allOf": Keyword("any value", "enforced, by merging; recursive schemas too"),
    "anyOf": Keyword("any value", "enforced; alternatives without any value vanish"),
    "oneOf": Keyword(
        "any value", "enforced; of alternatives that overlap, each is met with the complement of the others"
    ),
    "not": Keyword("any value", "enforced; refused over a `format` of which nothing is known that holds all of it"),
    "if": Keyword("any value", "enforced with `then` and `else`; no effect without them"),
    "then": Keyword("any value", "enforced; no effect without `if`"),
    "else": Keyword("any value", "enforced; no effect without `if`"),
    "$ref": Keyword("references", "enforced, in the document and those of `registry`; refused beyond"),
    "$dynamicRef": Keyword("references", "enforced, as `$ref`"),
    "$recursiveRef": Keyword("references", "enforced, as `$ref`"),
    "minLength": Keyword("strings", "enforced; lengths count code points, an escape counts as one"),
    "maxLength": Keyword("strings", "enforced, as `minLength`"),
    "pattern": Keyword("strings", "enforced, as ECMA-262 reads it, not anchored; back-references are refused"),
    "format": Keyword("strings", "enforced for the formats below, unless the policy says not to; other names are not"),
    "minimum": Keyword("numbers", "enforced in exact decimal arithmetic"),
    "maximum": Keyword("numbers", "enforced in exact decimal arithmetic"),
    "exclusiveMinimum": Keyword("numbers", "enforced; a boolean in draft 4"),
    "exclusiveMaximum": Keyword("numbers", "enforced; a boolean in draft 4"),
    "multipleOf": Keyword(
        "numbers",
        "enforced, also on decimals, while digits times remainders stay below 50,000; powers of ten, and intervals "
        "with at most 256 multiples, always; else refused",
    ),
    "items": Keyword("arrays", "enforced; an array of schemas up to draft 2019-09"),
    "prefixItems": Keyword("arrays", _ENFORCED),
    "additionalItems": Keyword("arrays", "enforced beside an array under `items`; else no effect"),
    "minItems": Keyword("arrays", _ENFORCED),
    "maxItems": Keyword("arrays", _ENFORCED),
    "uniqueItems": Keyword(
        "arrays",
        "enforced where the values are few, each at most once by value: `enum`, `const`, booleans, null, intervals of "
        "integers, unions of these; after a prefix too, where its items are such or provably different from all "
        "others; and where at most one item is possible; else checked at the end of each item",
    ),
    "contains": Keyword("arrays", _ENFORCED),
    "minContains": Keyword("arrays", "enforced; no effect without `contains`"),
    "maxContains": Keyword("arrays", "enforced; no effect without `contains`"),
    "unevaluatedItems": Keyword("arrays", _ENFORCED),
    "properties": Keyword("objects", _ENFORCED),
    "required": Keyword("objects", _ENFORCED),
    "additionalProperties": Keyword("objects", _ENFORCED),
    "patternProperties": Keyword(
        "objects",
        "enforced; a name may match several patterns and be declared too; refused where patterns divide the names into "
        "more than 200 regions",
    ),
    "propertyNames": Keyword("objects", _ENFORCED),
    "minProperties": Keyword(
        "objects",
        "enforced where no name can repeat, or at most one name beyond `required` is asked for; else names are "
        "compared as they are written, and those that patterns or `propertyNames` leave are refused",
    ),
    "maxProperties": Keyword("objects", "enforced; a repeated undeclared name counts each time"),
    "dependentRequired": Keyword("objects", _ENFORCED),
    "dependentSchemas": Keyword("objects", _ENFORCED),
    "dependencies": Keyword("objects", "enforced, in both forms; a keyword up to draft 7, and without `$schema`"),
    "unevaluatedProperties": Keyword("objects", _ENFORCED),
    **_annotations("references", "names a schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"),
    **_annotations("references", "holds schemas", "$defs", "definitions"),
    "$schema": Keyword("references", "chooses the draft", is_constraint=False),
    "$vocabulary": Keyword("references", "no effect in a schema", is_constraint=False),
    **_annotations("annotations", "annotation", "title", "description", "$comment", "default", "examples"),
    **_annotations("annotations", "annotation", "deprecated", "readOnly", "writeOnly"),
    **_annotations("annotations", "annotation", "contentEncoding", "contentMediaType", "contentSchema"),
    **_annotations("annotations", "annotation of OpenAPI", "example", "discriminator", "externalDocs", "xml"),
}
"""Every keyword that a specification knows, constraints first."""
